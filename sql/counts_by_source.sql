-- How much of each source came in, was kept, and how many tokens is that?
SELECT
    source, part, split,
    count(*) AS documents_in,
    count(*) FILTER (kept) AS documents_kept,
    coalesce(sum(bytes) FILTER (kept), 0)::BIGINT AS bytes_kept,
    coalesce(sum(tokens) FILTER (kept), 0)::BIGINT AS tokens
FROM catalogue
GROUP BY ALL
ORDER BY ALL;
