-- Which words of the reference does the model know? Reads kn_reference (id, text) and kn_settings.
CREATE OR REPLACE TABLE kn_vocabulary AS
SELECT word, 2 + row_number() OVER (ORDER BY word) AS w
FROM (SELECT unnest(kn_words(text)) AS word FROM kn_reference)
GROUP BY word
HAVING count(*) >= (SELECT min_count FROM kn_settings);
