-- In which order do the kept documents of a split go into its shards? By a hash of content and seed.
SELECT id, text, bytes
FROM catalogue
WHERE kept AND split = $split
ORDER BY sha256($seed || ':' || content), id;
