-- How surprising are the clean texts of the self-check, and the noise made of them?
SELECT id, perplexity
FROM kn_scores
SEMI JOIN (SELECT id FROM kn_noise UNION ALL SELECT id FROM kn_check) USING (id);
