-- Which disks are slower than their peers: disks with the same kernel and QEMU of the host, host file system, cache mode
-- and bus, by operation. `z` is the distance of the mean latency's logarithm from the peers' median, in robust standard
-- deviations (1.4826 times the median distance; a spread below 5 % counts as 5 %). Kinds have eight disks at least.
-- Disks with a z of 1.6 or more are listed, and the one with the largest in any case. `compared` is how many disks and
-- operations were: the more, the larger a z happens by chance.
WITH set_ups AS (
    SELECT DISTINCT host, recording, guest, guest_device AS device, coalesce(host_kernel, '-') AS host_kernel,
           coalesce(qemu_version, '-') AS qemu_version, coalesce(host_fs, '-') AS host_fs, coalesce(cache, '-') AS cache,
           coalesce(bus, '-') AS bus
    FROM topology
    WHERE guest_device IS NOT NULL
),
of_recordings AS (
    SELECT host, recording, guest, device, op, sum(n) AS n, sum(sum_ns) AS sum_ns
    FROM disks
    WHERE side = 'guest' AND layer = 'block'
    GROUP BY host, recording, guest, device, op
),
of_disks AS (
    SELECT host_kernel, qemu_version, host_fs, cache, bus, op, host, guest, device, CAST(sum(n) AS BIGINT) AS n,
           CAST(sum(sum_ns) AS DOUBLE) / CAST(sum(n) AS DOUBLE) AS mean_ns,
           ln(CAST(sum(sum_ns) AS DOUBLE) / CAST(sum(n) AS DOUBLE)) AS log_ns
    FROM of_recordings JOIN set_ups USING (host, recording, guest, device)
    GROUP BY host_kernel, qemu_version, host_fs, cache, bus, op, host, guest, device
    HAVING sum(n) >= 100 AND sum(sum_ns) > 0
),
middles AS (
    SELECT host_kernel, qemu_version, host_fs, cache, bus, op, median(log_ns) AS middle, count(*) AS peers
    FROM of_disks
    GROUP BY host_kernel, qemu_version, host_fs, cache, bus, op
    HAVING count(*) >= 8
),
distances AS (
    SELECT host_kernel, qemu_version, host_fs, cache, bus, op, host, guest, device, n, mean_ns, middle, peers,
           log_ns - middle AS distance
    FROM of_disks JOIN middles USING (host_kernel, qemu_version, host_fs, cache, bus, op)
),
spreads AS (
    SELECT host_kernel, qemu_version, host_fs, cache, bus, op, greatest(1.4826 * median(abs(distance)), 0.05) AS sigma
    FROM distances
    GROUP BY host_kernel, qemu_version, host_fs, cache, bus, op
),
compared AS (
    SELECT CAST(sum(peers) AS BIGINT) AS compared
    FROM middles
),
candidates AS (
    SELECT host, guest, device, op, host_kernel, qemu_version, host_fs, cache, bus, n, mean_ns, exp(middle) AS peers_ns, peers,
           distance / sigma AS z
    FROM distances JOIN spreads USING (host_kernel, qemu_version, host_fs, cache, bus, op)
),
largest AS (
    SELECT max(z) AS largest_z
    FROM candidates
)
SELECT host, guest, device, op, host_kernel, qemu_version, host_fs, cache, bus, n, mean_ns, peers_ns, peers, z, compared
FROM candidates CROSS JOIN compared CROSS JOIN largest
WHERE z >= least(1.6, largest_z)
ORDER BY z DESC, host, guest, device, op;
