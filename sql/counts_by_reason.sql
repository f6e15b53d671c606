-- How many documents did each reason drop first, and how many does it hold for at all?
SELECT
    reason,
    count(*) FILTER (reason = first_reason) AS first,
    count(*) AS any
FROM (
    SELECT first_reason, unnest(reasons) AS reason
    FROM catalogue WHERE split IN ('train', 'heldout')
)
GROUP BY reason
ORDER BY reason;
