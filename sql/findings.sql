-- Which advice would help most: findings by how many disks have them, and by the time that guests waited because of them.
-- A finding's share is the part of what the disk's data requests waited that it explains; null where it explains none.
WITH waits AS (
    SELECT host, recording, guest, disk, sum(sum_ns) AS sum_ns
    FROM disks
    WHERE layer = 'chain' AND op <> 'flush'
    GROUP BY host, recording, guest, disk
),
found AS (
    SELECT id, severity, host, guest, disk, share, recording, advice, share * sum_ns AS waited_ns
    FROM findings LEFT JOIN waits USING (host, recording, guest, disk)
)
SELECT id, severity, count(*) AS recordings, count(DISTINCT host || '/' || guest || '/' || disk) AS disks,
       avg(share) AS mean_share, max(share) AS max_share, sum(waited_ns) AS waited_ns, min(advice) AS advice
FROM found
GROUP BY id, severity
ORDER BY disks DESC, mean_share DESC, id, severity;
