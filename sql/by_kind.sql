-- The same disks' requests by what they run on: kernel and QEMU of the host, its file system, cache mode, bus.
WITH set_ups AS (
    SELECT DISTINCT host, recording, guest, guest_device AS device, host_kernel, qemu_version, host_fs, cache, bus
    FROM topology
    WHERE guest_device IS NOT NULL
),
of_disks AS (
    SELECT host, recording, guest, device, op, sum(n) AS n, sum(sum_ns) AS sum_ns
    FROM disks
    WHERE side = 'guest' AND layer = 'block'
    GROUP BY host, recording, guest, device, op
)
SELECT host_kernel, qemu_version, host_fs, cache, bus, op,
       count(DISTINCT host || '/' || guest || '/' || device) AS disks,
       CAST(sum(n) AS BIGINT) AS n, CAST(sum(sum_ns) AS BIGINT) AS sum_ns,
       CAST(sum(sum_ns) AS DOUBLE) / CAST(sum(n) AS DOUBLE) AS mean_ns
FROM of_disks JOIN set_ups USING (host, recording, guest, device)
GROUP BY host_kernel, qemu_version, host_fs, cache, bus, op
ORDER BY mean_ns DESC, host_kernel, qemu_version, host_fs, cache, bus, op;
