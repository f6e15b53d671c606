-- Which texts of a reference split broke no rule?
SELECT id, text
FROM documents JOIN earlier_reasons USING (id)
WHERE split = $split AND len(reasons) = 0
ORDER BY sha256(id);
