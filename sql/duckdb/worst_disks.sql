-- Which disks are worst: what their guests waited for a request, by operation, over all recordings.
-- Run in the folder of the data set: duckdb < worst_disks.sql
WITH latencies AS (
    SELECT host, guest, device, op, unnest(at_most_ns) AS at_most_ns, unnest(counts) AS n
    FROM read_parquet('disks/**/*.parquet', hive_partitioning = true)
    WHERE side = 'guest' AND layer = 'block'
),
buckets AS (
    SELECT host, guest, device, op, at_most_ns, sum(n) AS n
    FROM latencies
    GROUP BY host, guest, device, op, at_most_ns
),
ranked AS (
    SELECT *,
           sum(n) OVER (PARTITION BY host, guest, device, op ORDER BY at_most_ns) AS not_above,
           sum(n) OVER (PARTITION BY host, guest, device, op) AS all_n
    FROM buckets
),
percentiles AS (
    SELECT host, guest, device, op,
           min(at_most_ns) FILTER (WHERE not_above >= ceil(0.50 * all_n)) AS p50_ns,
           min(at_most_ns) FILTER (WHERE not_above >= ceil(0.99 * all_n)) AS p99_ns
    FROM ranked
    GROUP BY host, guest, device, op
),
sums AS (
    SELECT host, guest, device, op, sum(n) AS n, sum(sum_ns) AS sum_ns
    FROM read_parquet('disks/**/*.parquet', hive_partitioning = true)
    WHERE side = 'guest' AND layer = 'block'
    GROUP BY host, guest, device, op
)
SELECT host, guest, device, op, n::BIGINT AS n, sum_ns::BIGINT AS sum_ns, round(sum_ns / n)::BIGINT AS mean_ns, p50_ns, p99_ns
FROM sums JOIN percentiles USING (host, guest, device, op)
ORDER BY p99_ns DESC, host, guest, device, op;
