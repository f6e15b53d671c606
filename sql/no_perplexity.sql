-- What are the scores when the filter is off? None.
CREATE OR REPLACE TABLE kn_scores (
    id VARCHAR, lm_words BIGINT, nll DOUBLE, perplexity DOUBLE, length_bucket INTEGER
);
