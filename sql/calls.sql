-- Who waits for which file: the calls of the guests' programs, the costliest first, over all recordings.
WITH buckets AS (
    SELECT guest, process, op, mount, inode, path, host, at_most_ns, sum(n) AS n
    FROM call_latencies
    GROUP BY guest, process, op, mount, inode, path, host, at_most_ns
),
ranked AS (
    SELECT host, guest, process, op, mount, inode, path, at_most_ns, n,
           sum(n) OVER (PARTITION BY host, guest, process, op, mount, inode, path ORDER BY at_most_ns
                        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS not_above,
           sum(n) OVER (PARTITION BY host, guest, process, op, mount, inode, path) AS all_n
    FROM buckets
),
percentiles AS (
    SELECT host, guest, process, op, coalesce(mount, '') AS mount, coalesce(inode, -1) AS inode, coalesce(path, '') AS path,
           min(CASE WHEN not_above >= 0.50 * all_n THEN at_most_ns END) AS p50_ns,
           min(CASE WHEN not_above >= 0.99 * all_n THEN at_most_ns END) AS p99_ns
    FROM ranked
    GROUP BY host, guest, process, op, coalesce(mount, ''), coalesce(inode, -1), coalesce(path, '')
),
sums AS (
    SELECT host, guest, process, op, coalesce(mount, '') AS mount, coalesce(inode, -1) AS inode, coalesce(path, '') AS path,
           CAST(sum(n) AS BIGINT) AS n, CAST(sum(sum_ns) AS BIGINT) AS sum_ns, CAST(sum(linked) AS BIGINT) AS linked,
           CAST(sum(linked_ns) AS BIGINT) AS linked_ns,
           CAST(sum(guest_journal_ns) AS BIGINT) AS journal_ns,
           CAST(sum(device_ns + device_flush_ns) AS BIGINT) AS on_device_ns
    FROM calls
    GROUP BY host, guest, process, op, coalesce(mount, ''), coalesce(inode, -1), coalesce(path, '')
)
SELECT host, guest, process, op, mount, nullif(inode, -1) AS inode, path, n, sum_ns, CAST(sum_ns AS DOUBLE) / n AS mean_ns,
       p50_ns, p99_ns, linked, linked_ns, journal_ns, on_device_ns
FROM sums JOIN percentiles USING (host, guest, process, op, mount, inode, path)
ORDER BY sum_ns DESC, host, guest, process, op, mount, inode, path;
