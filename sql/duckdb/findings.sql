-- Which advice would help most: findings by how many disks have them, and by what they cost there.
-- Run in the folder of the data set: duckdb < findings.sql
SELECT id, severity, count(*) AS recordings, count(DISTINCT (host, guest, disk)) AS disks, avg(share) AS mean_share,
       max(share) AS max_share
FROM read_parquet('findings/**/*.parquet', hive_partitioning = true)
GROUP BY id, severity
ORDER BY disks DESC, mean_share DESC, id;
