-- Which quality rules does each document break? Reads documents and cleaning (one row: the limits).
-- Rules that count words by spaces are left out where a script has none.
CREATE OR REPLACE TABLE quality_reasons AS
SELECT
    documents.id,
    list_filter([
        CASE WHEN chars < min_chars THEN 'too_short' END,
        CASE WHEN chars > max_chars THEN 'too_long' END,
        CASE WHEN words < min_words THEN 'few_words' END,
        CASE WHEN broken_share > max_broken_share THEN 'broken_characters' END,
        CASE WHEN unsegmented_share < 0.2 AND word_length < min_word_length THEN 'short_words' END,
        CASE WHEN unsegmented_share < 0.2 AND word_length > max_word_length THEN 'long_words' END,
        CASE WHEN unsegmented_share < 0.2 AND alphabetic_words < min_alphabetic_words
            THEN 'few_alphabetic_words' END,
        CASE WHEN symbol_share > max_symbol_share THEN 'symbols' END,
        CASE WHEN digit_share > max_digit_share THEN 'digits' END,
        CASE WHEN markup_share > max_markup_share THEN 'markup' END,
        CASE WHEN bullet_lines > max_bullet_lines THEN 'bullets' END,
        CASE WHEN language = 'en' AND stop_words < min_stop_words THEN 'few_stop_words' END,
        CASE WHEN repetition > max_repetition THEN 'repetition' END,
        CASE WHEN top_bigram > max_top_bigram THEN 'top_bigram' END
    ], lambda reason: reason IS NOT NULL) AS reasons
FROM documents, cleaning;
