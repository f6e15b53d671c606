-- What is the held-out text that nothing trained on may share n-grams with?
SELECT text
FROM documents
JOIN quality_reasons USING (id)
ANTI JOIN exact_duplicates USING (id)
ANTI JOIN near_duplicates USING (id)
WHERE split = 'heldout' AND len(reasons) = 0
ORDER BY preference;
