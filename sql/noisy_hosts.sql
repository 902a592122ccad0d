-- On which hosts the host itself makes guests wait: the time of their data requests in its file system, its queue, its
-- stacked devices and its device. `amplification` is the bytes that the devices under the images moved, divided by the bytes
-- that the guests asked for. I/O of the host's other programs counts too; a device below another one is not counted again.
-- md and dm get bios and no requests, so the bytes of their bios count.
WITH chains AS (
    SELECT host, count(DISTINCT guest || '/' || device) AS disks, sum(n) AS n, sum(sum_ns) AS sum_ns,
           sum(host_fs_submit_ns + host_queue_ns + device_ns + device_flush_ns + host_fs_between_ns + host_fs_complete_ns
               + coalesce(stack_submit_ns, 0) + coalesce(stack_between_ns, 0) + coalesce(stack_complete_ns, 0)) AS host_ns
    FROM disks
    WHERE layer = 'chain' AND op <> 'flush'
    GROUP BY host
),
asked AS (
    SELECT host, sum(bytes) AS guest_bytes
    FROM disks
    WHERE layer = 'qemu' AND op <> 'discard'
    GROUP BY host
),
images AS (
    SELECT DISTINCT host, recording, host_device AS device
    FROM topology
    WHERE host_device IS NOT NULL
),
of_devices AS (
    SELECT host, recording, device,
           coalesce(sum(CASE WHEN layer = 'device' THEN bytes END), sum(bytes)) AS bytes
    FROM disks
    WHERE side = 'host' AND layer IN ('block', 'device') AND op <> 'discard'
    GROUP BY host, recording, device
),
moved AS (
    SELECT host, sum(bytes) AS device_bytes
    FROM of_devices JOIN images USING (host, recording, device)
    GROUP BY host
),
all_bytes AS (
    SELECT host, guest_bytes, device_bytes
    FROM asked LEFT JOIN moved USING (host)
)
SELECT host, disks, CAST(n AS BIGINT) AS n, CAST(sum_ns AS BIGINT) AS sum_ns, CAST(host_ns AS BIGINT) AS host_ns,
       CAST(host_ns AS DOUBLE) / CAST(sum_ns AS DOUBLE) AS host_share,
       CAST(device_bytes AS DOUBLE) / CAST(nullif(guest_bytes, 0) AS DOUBLE) AS amplification
FROM chains LEFT JOIN all_bytes USING (host)
WHERE sum_ns > 0
ORDER BY host_ns DESC, host;
