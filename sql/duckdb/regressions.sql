-- What became slower: each disk's mean latency in the last seven days against the seven days before.
-- Run in the folder of the data set: duckdb < regressions.sql
WITH last AS (
    SELECT max(minute_unix_ns) AS ns
    FROM read_parquet('disks/**/*.parquet', hive_partitioning = true)
),
weeks AS (
    SELECT host, guest, device, op, n, sum_ns,
           CASE WHEN minute_unix_ns > last.ns - 7 * 86400000000000 THEN 'last' ELSE 'before' END AS week
    FROM read_parquet('disks/**/*.parquet', hive_partitioning = true), last
    WHERE side = 'guest' AND layer = 'block' AND minute_unix_ns > last.ns - 14 * 86400000000000
)
SELECT host, guest, device, op,
       sum(n) FILTER (WHERE week = 'before')::BIGINT AS n_before, sum(n) FILTER (WHERE week = 'last')::BIGINT AS n_last,
       sum(sum_ns) FILTER (WHERE week = 'before') / sum(n) FILTER (WHERE week = 'before') AS mean_before_ns,
       sum(sum_ns) FILTER (WHERE week = 'last') / sum(n) FILTER (WHERE week = 'last') AS mean_last_ns
FROM weeks
GROUP BY host, guest, device, op
HAVING n_before > 0 AND n_last > 0
ORDER BY mean_last_ns / mean_before_ns DESC, host, guest, device, op;
