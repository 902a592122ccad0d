-- The same disks' requests by what they run on: kernel and QEMU of the host, its file system, cache mode, bus.
-- Run in the folder of the data set: duckdb < by_kind.sql
WITH set_ups AS (
    SELECT recording, guest, guest_device AS device, host_kernel, qemu_version, host_fs, cache, bus
    FROM read_parquet('topology/**/*.parquet', hive_partitioning = true)
    WHERE guest_device IS NOT NULL
)
SELECT host_kernel, qemu_version, host_fs, cache, bus, op,
       count(DISTINCT (d.host, guest, device)) AS disks, sum(n)::BIGINT AS n, sum(sum_ns)::BIGINT AS sum_ns,
       round(sum(sum_ns) / sum(n))::BIGINT AS mean_ns
FROM read_parquet('disks/**/*.parquet', hive_partitioning = true) AS d
JOIN set_ups USING (recording, guest, device)
WHERE side = 'guest' AND layer = 'block'
GROUP BY host_kernel, qemu_version, host_fs, cache, bus, op
ORDER BY mean_ns DESC, host_kernel, qemu_version, host_fs, cache, bus, op;
