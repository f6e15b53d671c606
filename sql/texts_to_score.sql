-- Which texts does the language model score? What may be trained on, the clean reference kept apart, noise.
CREATE OR REPLACE VIEW kn_texts AS
SELECT id, text FROM documents WHERE split IN ('train', 'check')
UNION ALL
SELECT id, text FROM kn_noise;
