-- For which reasons would each document be dropped, perplexity apart?
CREATE OR REPLACE TABLE earlier_reasons AS
SELECT
    documents.id,
    list_concat(quality_reasons.reasons, list_filter([
        CASE WHEN exact_duplicates.id IS NOT NULL THEN 'exact_duplicate' END,
        CASE WHEN near_duplicates.id IS NOT NULL THEN 'near_duplicate' END,
        CASE WHEN split = 'train' AND contamination.share > settings.max_contamination
            THEN 'contaminated' END
    ], lambda reason: reason IS NOT NULL)) AS reasons
FROM documents
JOIN quality_reasons USING (id)
LEFT JOIN exact_duplicates USING (id)
LEFT JOIN near_duplicates USING (id)
LEFT JOIN contamination USING (base),
settings;
