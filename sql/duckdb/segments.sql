-- Where the time goes, layer by layer, over all recordings: each segment's share of what guests waited for their data.
-- Run in the folder of the data set: duckdb < segments.sql
WITH sums AS (
    SELECT host, guest, device, op, n, sum_ns, segment, ns
    FROM (
        SELECT host, guest, device, op, n, sum_ns, guest_queue_ns, virt_submit_ns, qemu_submit_ns, host_fs_submit_ns,
               host_queue_ns, device_ns, device_flush_ns, host_fs_between_ns, host_fs_complete_ns, qemu_between_ns,
               qemu_complete_ns, virt_complete_ns
        FROM read_parquet('disks/**/*.parquet', hive_partitioning = true)
        WHERE layer = 'chain' AND op <> 'flush'
    )
    UNPIVOT (ns FOR segment IN (guest_queue_ns, virt_submit_ns, qemu_submit_ns, host_fs_submit_ns, host_queue_ns, device_ns,
                                device_flush_ns, host_fs_between_ns, host_fs_complete_ns, qemu_between_ns, qemu_complete_ns,
                                virt_complete_ns))
)
SELECT host, guest, device, replace(segment, '_ns', '') AS segment, sum(ns)::BIGINT AS ns, sum(ns) / sum(sum_ns) AS share
FROM sums
GROUP BY host, guest, device, segment
ORDER BY host, guest, device, ns DESC;
