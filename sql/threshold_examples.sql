-- What do documents just inside and just outside the perplexity thresholds look like?
WITH near AS (
    SELECT
        CASE
            WHEN kept AND perplexity <= high THEN 'kept, just below the high threshold'
            ELSE 'dropped, just above the high threshold'
        END AS side,
        catalogue.source, perplexity, left(text, 300) AS text,
        abs(ln(perplexity) - ln(high)) AS distance, id
    FROM catalogue
    JOIN thresholds
        ON thresholds.source = catalogue.source
        AND thresholds.length_bucket = catalogue.length_bucket
    WHERE split = 'train' AND high IS NOT NULL
        AND (kept OR first_reason = 'perplexity_high')
    UNION ALL
    SELECT 'dropped, low perplexity', source, perplexity, left(text, 300), perplexity, id
    FROM catalogue WHERE first_reason = 'perplexity_low'
    UNION ALL
    SELECT 'dropped, highest perplexity', source, perplexity, left(text, 300), -perplexity, id
    FROM catalogue WHERE first_reason = 'perplexity_high'
)
SELECT side, source, round(perplexity, 1) AS perplexity, text
FROM near
QUALIFY row_number() OVER (PARTITION BY side ORDER BY distance, id) <= 3
ORDER BY side, perplexity, text;
