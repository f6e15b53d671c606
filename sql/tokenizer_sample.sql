-- On which documents is the tokenizer trained? Kept ones in an order by content, up to some bytes.
SELECT text
FROM (
    SELECT text, content, id, sum(bytes) OVER (ORDER BY content, id) - bytes AS before
    FROM catalogue
    WHERE kept AND split = 'train'
)
WHERE before < $sample_bytes
ORDER BY content, id;
