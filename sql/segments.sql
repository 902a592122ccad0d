-- Where the time goes, layer by layer, over all recordings: each segment's share of what guests waited for their data.
WITH sums AS (
    SELECT host, guest, device, sum(sum_ns) AS sum_ns,
           sum(guest_queue_ns) AS guest_queue, sum(virt_submit_ns) AS virt_submit, sum(qemu_submit_ns) AS qemu_submit,
           sum(qemu_job_ns) AS qemu_job, sum(host_fs_submit_ns) AS host_fs_submit, sum(host_queue_ns) AS host_queue,
           sum(stack_submit_ns) AS stack_submit, sum(stack_between_ns) AS stack_between,
           sum(stack_complete_ns) AS stack_complete, sum(device_ns) AS on_device,
           sum(device_flush_ns) AS device_flush, sum(remote_ns) AS remote, sum(host_fs_between_ns) AS host_fs_between,
           sum(host_fs_complete_ns) AS host_fs_complete, sum(qemu_between_ns) AS qemu_between,
           sum(qemu_complete_ns) AS qemu_complete, sum(virt_complete_ns) AS virt_complete
    FROM disks
    WHERE layer = 'chain' AND op <> 'flush'
    GROUP BY host, guest, device
),
names AS (
    SELECT 'guest_queue' AS segment
    UNION ALL SELECT 'virt_submit' UNION ALL SELECT 'qemu_submit' UNION ALL SELECT 'qemu_job'
    UNION ALL SELECT 'host_fs_submit' UNION ALL SELECT 'host_queue' UNION ALL SELECT 'stack_submit'
    UNION ALL SELECT 'stack_between' UNION ALL SELECT 'stack_complete' UNION ALL SELECT 'device'
    UNION ALL SELECT 'device_flush' UNION ALL SELECT 'remote' UNION ALL SELECT 'host_fs_between'
    UNION ALL SELECT 'host_fs_complete' UNION ALL SELECT 'qemu_between' UNION ALL SELECT 'qemu_complete'
    UNION ALL SELECT 'virt_complete'
),
segments AS (
    SELECT host, guest, device, sum_ns, segment,
           CASE segment
               WHEN 'guest_queue' THEN guest_queue WHEN 'virt_submit' THEN virt_submit
               WHEN 'qemu_submit' THEN qemu_submit WHEN 'qemu_job' THEN qemu_job
               WHEN 'host_fs_submit' THEN host_fs_submit WHEN 'host_queue' THEN host_queue
               WHEN 'stack_submit' THEN stack_submit WHEN 'stack_between' THEN stack_between
               WHEN 'stack_complete' THEN stack_complete WHEN 'device' THEN on_device
               WHEN 'device_flush' THEN device_flush WHEN 'remote' THEN remote
               WHEN 'host_fs_between' THEN host_fs_between WHEN 'host_fs_complete' THEN host_fs_complete
               WHEN 'qemu_between' THEN qemu_between WHEN 'qemu_complete' THEN qemu_complete
               WHEN 'virt_complete' THEN virt_complete
           END AS ns
    FROM sums CROSS JOIN names
)
SELECT host, guest, device, segment, CAST(ns AS BIGINT) AS ns, CAST(ns AS DOUBLE) / CAST(sum_ns AS DOUBLE) AS share
FROM segments
WHERE sum_ns > 0 AND ns IS NOT NULL
ORDER BY host, guest, device, ns DESC, segment;
