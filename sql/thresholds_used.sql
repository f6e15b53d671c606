-- Between which perplexities was each source kept, by length of document (in words, from a power of 2)?
SELECT
    source,
    (2 ** length_bucket)::INTEGER AS from_words,
    measured_on,
    round(low, 2) AS low,
    round(high, 2) AS high
FROM thresholds
WHERE low IS NOT NULL OR high IS NOT NULL
ORDER BY source, length_bucket;
