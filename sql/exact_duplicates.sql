-- Which documents have the content of a preferred one, and of which?
CREATE OR REPLACE TABLE exact_duplicates AS
SELECT id, first_value(id) OVER alike AS survivor
FROM documents
WINDOW alike AS (PARTITION BY scope, content ORDER BY preference)
QUALIFY row_number() OVER alike > 1;
