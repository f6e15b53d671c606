-- Between which perplexities is a document of a source and length kept? Reads limits (a row a source),
-- and what no earlier rule has dropped. Percentiles are ranks, so equal inputs give equal cuts.
CREATE OR REPLACE TABLE thresholds AS
WITH clean AS (
    SELECT source, split, length_bucket, perplexity
    FROM documents
    JOIN earlier_reasons USING (id)
    JOIN kn_scores USING (id)
    WHERE len(reasons) = 0
), measured AS (
    SELECT source, length_bucket, 'source' AS percentile_of, list_sort(list(perplexity)) AS sorted
    FROM clean WHERE split = 'train' GROUP BY ALL
    UNION ALL
    SELECT limits.source, length_bucket, 'reference', list_sort(list(perplexity))
    FROM clean, limits WHERE split = 'check' GROUP BY ALL
)
SELECT
    source,
    length_bucket,
    len(sorted) AS measured_on,
    -- greatest and least pass over what is NULL, so an absent bound is kept out by CASE.
    greatest(
        CASE WHEN min_percentile IS NOT NULL THEN
            sorted[least(len(sorted), floor(len(sorted) * min_percentile / 100)::BIGINT + 1)]
        END,
        min_perplexity
    ) AS low,
    least(
        CASE WHEN max_percentile IS NOT NULL THEN
            sorted[greatest(1, ceil(len(sorted) * max_percentile / 100)::BIGINT)]
        END,
        max_perplexity
    ) AS high
FROM limits
JOIN (SELECT DISTINCT length_bucket FROM kn_scores) ON true
LEFT JOIN measured USING (source, length_bucket, percentile_of);
