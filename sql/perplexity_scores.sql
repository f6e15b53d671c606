-- How surprising is each text to the model? Reads kn_texts_part (id, text), adds to kn_scores.
-- Sums are of whole micronats, so that they are the same in whatever order threads add.
INSERT INTO kn_scores
WITH b2 AS (SELECT context, backoff FROM kn_contexts WHERE n = 2),
b3 AS (SELECT context, backoff FROM kn_contexts WHERE n = 3),
scored AS (
    SELECT
        id,
        coalesce(
            kn_p3.p,
            coalesce(b3.backoff, 1) * coalesce(kn_p2.p, coalesce(b2.backoff, 1) * kn_p1.p)
        ) AS p
    FROM kn_ngrams('kn_texts_part') AS g
    JOIN kn_p1 ON kn_p1.w = g.w
    LEFT JOIN kn_p2 ON kn_p2.gram = (h1 << 20) | g.w
    LEFT JOIN b2 ON b2.context = h1
    LEFT JOIN kn_p3 ON kn_p3.gram = (h2 << 40) | (h1 << 20) | g.w
    LEFT JOIN b3 ON b3.context = (h2 << 20) | h1
)
SELECT
    id,
    count(*) AS lm_words,
    sum(round(-ln(p) * 1e6)::BIGINT)::BIGINT / 1e6 AS nll,
    exp(nll / lm_words) AS perplexity,
    greatest(4, least(9, floor(log2(lm_words))))::INTEGER AS length_bucket
FROM scored
GROUP BY id;
