-- Which documents came in? One row each; `preference` says which of two alike is kept (1 is best).
-- Reads parts (all workers' rows) and sources (name, rank).
CREATE OR REPLACE TABLE documents AS
WITH numbered AS (
    SELECT *, row_number() OVER (PARTITION BY base ORDER BY split) AS occurrence FROM parts
), named AS (
    SELECT
        CASE occurrence WHEN 1 THEN base ELSE base || '-' || occurrence END AS id,
        * EXCLUDE (occurrence),
        CASE WHEN split IN ('train', 'heldout') THEN 'corpus' ELSE 'reference' END AS scope,
        CASE split WHEN 'heldout' THEN 0 WHEN 'check' THEN 1 ELSE 2 END AS split_rank
    FROM numbered
)
SELECT
    named.* EXCLUDE (split_rank),
    row_number() OVER (
        ORDER BY split_rank, sources.rank, named.bytes DESC, named.id
    ) AS preference
FROM named JOIN sources ON sources.name = named.source;
