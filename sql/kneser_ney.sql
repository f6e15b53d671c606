-- How likely is each n-gram's last word after the others? Interpolated Kneser-Ney smoothing
-- (Kneser and Ney 1995; Chen and Goodman 1999, section 3), one discount an order, n1 / (n1 + 2 n2):
--   p(w | h) = max(c(hw) - D, 0) / c(h.) + D N(h.) / c(h.) p(w | shorter h)
-- and below order 1 the uniform distribution over the vocabulary, unknown word and end included.
CREATE OR REPLACE TABLE kn_discounts AS
SELECT n, CASE WHEN ones > 0 AND twos > 0 THEN ones / (ones + 2.0 * twos) ELSE 0.5 END AS discount
FROM (
    SELECT n, count(*) FILTER (times = 1) AS ones, count(*) FILTER (times = 2) AS twos
    FROM kn_counts
    GROUP BY n
);

CREATE OR REPLACE TABLE kn_contexts AS
SELECT n, context, total, discount * followers / total AS backoff
FROM (
    SELECT n, context, sum(times)::BIGINT AS total, count(*) AS followers
    FROM kn_counts
    GROUP BY n, context
) JOIN kn_discounts USING (n);

CREATE OR REPLACE TABLE kn_p1 AS
WITH possible AS (
    SELECT w FROM kn_vocabulary UNION ALL SELECT unnest([1, 2])
)
SELECT
    w,
    greatest(coalesce(times, 0) - discount, 0) / total
        + backoff / (SELECT count(*) FROM possible) AS p
FROM possible
LEFT JOIN (SELECT gram, times FROM kn_counts WHERE n = 1) ON gram = w,
(SELECT discount, total, backoff FROM kn_contexts JOIN kn_discounts USING (n) WHERE n = 1);

CREATE OR REPLACE TABLE kn_p2 AS
SELECT gram, greatest(times - discount, 0) / total + backoff * kn_p1.p AS p
FROM kn_counts
JOIN kn_contexts USING (n, context)
JOIN kn_discounts USING (n)
JOIN kn_p1 ON w = gram & ((1::BIGINT << 20) - 1)
WHERE n = 2;

CREATE OR REPLACE TABLE kn_p3 AS
SELECT kn_counts.gram, greatest(times - discount, 0) / total + backoff * kn_p2.p AS p
FROM kn_counts
JOIN kn_contexts USING (n, context)
JOIN kn_discounts USING (n)
JOIN kn_p2 ON kn_p2.gram = kn_counts.gram & ((1::BIGINT << 40) - 1)
WHERE n = 3;
