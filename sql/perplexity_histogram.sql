-- How are the perplexities of otherwise clean documents spread? Bins of a quarter of a power of two.
SELECT
    floor(log2(perplexity) * 4)::INTEGER AS bin,
    count(*) FILTER (kept) AS kept,
    count(*) FILTER (first_reason = 'perplexity_low') AS low,
    count(*) FILTER (first_reason = 'perplexity_high') AS high
FROM catalogue
WHERE split = 'train' AND perplexity IS NOT NULL
    AND (kept OR first_reason IN ('perplexity_low', 'perplexity_high'))
GROUP BY bin
ORDER BY bin;
