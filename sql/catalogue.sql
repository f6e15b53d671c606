-- What was decided about every document, and why? Scores and all reasons, in order of the rules.
CREATE OR REPLACE TABLE catalogue AS
WITH decided AS (
    SELECT
        documents.*,
        list_concat(earlier_reasons.reasons, list_filter([
            CASE WHEN split = 'train' AND perplexity < low THEN 'perplexity_low' END,
            CASE WHEN split = 'train' AND perplexity > high THEN 'perplexity_high' END
        ], lambda reason: reason IS NOT NULL)) AS reasons,
        coalesce(exact_duplicates.survivor, near_duplicates.survivor) AS survivor,
        near_duplicates.jaccard,
        contamination.share AS contamination,
        lm_words, nll, perplexity, kn_scores.length_bucket
    FROM documents
    JOIN earlier_reasons USING (id)
    LEFT JOIN exact_duplicates USING (id)
    LEFT JOIN near_duplicates USING (id)
    LEFT JOIN contamination USING (base)
    LEFT JOIN kn_scores ON kn_scores.id = documents.id
    LEFT JOIN thresholds
        ON thresholds.source = documents.source
        AND thresholds.length_bucket = kn_scores.length_bucket
)
SELECT
    id, content, source, part, split, origin, licence, language,
    len(reasons) = 0 AS kept,
    reasons[1] AS first_reason,
    * EXCLUDE (
        id, content, source, part, split, origin, licence, language, base, bands, scope, preference
    )
FROM decided;
