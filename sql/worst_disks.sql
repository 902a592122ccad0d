-- Which disks are worst: what their guests waited for a request, by operation, over all recordings. A percentile is the
-- bound of a bucket: the value lies at most 6.3 % below it.
WITH buckets AS (
    SELECT host, guest, device, op, at_most_ns, sum(n) AS n
    FROM disk_latencies
    WHERE side = 'guest' AND layer = 'block'
    GROUP BY host, guest, device, op, at_most_ns
),
below AS (
    SELECT host, guest, device, op, at_most_ns,
           sum(n) OVER (PARTITION BY host, guest, device, op ORDER BY at_most_ns
                        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS not_above
    FROM buckets
),
sums AS (
    SELECT host, guest, device, op, CAST(sum(n) AS BIGINT) AS n, CAST(sum(sum_ns) AS BIGINT) AS sum_ns
    FROM disks
    WHERE side = 'guest' AND layer = 'block'
    GROUP BY host, guest, device, op
)
SELECT host, guest, device, op, n, sum_ns, CAST(sum_ns AS DOUBLE) / n AS mean_ns,
       min(CASE WHEN 100 * not_above >= 50 * n THEN at_most_ns END) AS p50_ns,
       min(CASE WHEN 100 * not_above >= 90 * n THEN at_most_ns END) AS p90_ns,
       min(CASE WHEN 100 * not_above >= 99 * n THEN at_most_ns END) AS p99_ns,
       min(CASE WHEN 1000 * not_above >= 999 * n THEN at_most_ns END) AS p999_ns
FROM below JOIN sums USING (host, guest, device, op)
GROUP BY host, guest, device, op, n, sum_ns
ORDER BY p99_ns DESC, host, guest, device, op;
