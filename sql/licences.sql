-- Under which licences is the kept text?
SELECT
    licence,
    count(*) AS documents,
    sum(bytes)::BIGINT AS bytes,
    list_sort(list(DISTINCT CASE part WHEN '' THEN source ELSE part END)) AS origins
FROM catalogue
WHERE kept AND split IN ('train', 'heldout')
GROUP BY licence
ORDER BY bytes DESC, licence;
