-- How often does each n-gram of the reference occur (highest order), and after how many different
-- words (lower orders)? A gram packs its words' ids, 20 bits each, the last word lowest.
CREATE OR REPLACE TABLE kn_raw AS
SELECT (h2 << 40) | (h1 << 20) | w AS gram, count(*) AS times
FROM kn_ngrams('kn_reference')
GROUP BY ALL;

CREATE OR REPLACE TABLE kn_counts AS
WITH order_3 AS (
    SELECT gram, times FROM kn_raw WHERE (SELECT model_order FROM kn_settings) = 3
), order_2 AS (
    SELECT
        gram & ((1::BIGINT << 40) - 1) AS gram,
        CASE WHEN (SELECT model_order FROM kn_settings) = 3 THEN count(*) ELSE sum(times) END AS times
    FROM kn_raw
    GROUP BY ALL
), order_1 AS (
    SELECT gram & ((1::BIGINT << 20) - 1) AS gram, count(*) AS times FROM order_2 GROUP BY ALL
)
SELECT 3 AS n, gram, gram >> 20 AS context, times::BIGINT AS times FROM order_3
UNION ALL
SELECT 2, gram, gram >> 20, times::BIGINT FROM order_2
UNION ALL
SELECT 1, gram, gram >> 20, times::BIGINT FROM order_1;
