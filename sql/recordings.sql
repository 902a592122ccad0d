-- What the data set holds.
WITH all_recordings AS (
    SELECT host, recording, min(start_unix_ns) AS start_unix_ns, max(duration_ns) AS duration_ns, max(lost) AS lost
    FROM disks
    GROUP BY host, recording
),
guest_disks AS (
    SELECT DISTINCT host, guest, device
    FROM disks
    WHERE side = 'guest' AND layer = 'block'
),
counted AS (
    SELECT count(*) AS disks
    FROM guest_disks
)
SELECT count(*) AS recordings, count(DISTINCT host) AS hosts, max(disks) AS disks, min(start_unix_ns) AS first_unix_ns,
       max(start_unix_ns) AS last_unix_ns, CAST(sum(duration_ns) AS BIGINT) AS duration_ns,
       CAST(sum(lost) AS BIGINT) AS lost, sum(CASE WHEN lost > 0 THEN 1 ELSE 0 END) AS recordings_with_losses
FROM all_recordings CROSS JOIN counted;
