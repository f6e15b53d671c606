-- Which documents are compared for near duplicates? Those of the corpus that no rule has dropped.
SELECT documents.id, documents.bands
FROM documents
JOIN quality_reasons USING (id)
ANTI JOIN exact_duplicates USING (id)
WHERE scope = 'corpus' AND len(reasons) = 0
ORDER BY preference;
