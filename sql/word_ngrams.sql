-- Of which words, each after which two, does a text consist? Ids: 0 begins, 1 ends, 2 is any unknown word.
-- A word is a run of letters, digits and marks; a punctuation mark; a character of a script without spaces.
CREATE OR REPLACE MACRO kn_words(text) AS regexp_extract_all(
    lower(text),
    '[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]|[^\s\p{P}\p{S}\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]+|\S'
);

CREATE OR REPLACE MACRO kn_ngrams(texts) AS TABLE
WITH tokens AS (
    SELECT id, unnest(words) AS word, generate_subscripts(words, 1) AS place
    FROM (SELECT id, list_append(kn_words(text), '') AS words FROM query_table(texts))
), encoded AS (
    SELECT id, place, CASE WHEN word = '' THEN 1 ELSE coalesce(w, 2) END AS w
    FROM tokens LEFT JOIN kn_vocabulary USING (word)
)
SELECT id, w, lag(w, 1, 0) OVER text AS h1, lag(w, 2, 0) OVER text AS h2
FROM encoded
WINDOW text AS (PARTITION BY id ORDER BY place);
