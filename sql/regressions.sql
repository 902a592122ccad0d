-- What became slower: each disk's mean latency in the last seven days against the seven days before, and by how many
-- robust standard deviations its change differs from that of all disks (`z`, of the logarithm of the ratio; a spread
-- below 5 % counts as 5 %). `compared` is how many there are: the more, the larger a z happens by chance.
WITH newest AS (
    SELECT max(minute_unix_ns) AS newest_ns
    FROM disks
),
weeks AS (
    SELECT host, guest, device, op, n, sum_ns,
           CASE WHEN minute_unix_ns > newest_ns - 604800000000000 THEN 1 ELSE 0 END AS is_last
    FROM disks CROSS JOIN newest
    WHERE side = 'guest' AND layer = 'block' AND minute_unix_ns > newest_ns - 1209600000000000
),
sums AS (
    SELECT host, guest, device, op,
           CAST(sum(CASE WHEN is_last = 0 THEN n ELSE 0 END) AS BIGINT) AS n_before,
           CAST(sum(is_last * n) AS BIGINT) AS n_last,
           CAST(sum(CASE WHEN is_last = 0 THEN sum_ns ELSE 0 END) AS DOUBLE) AS sum_before_ns,
           CAST(sum(is_last * sum_ns) AS DOUBLE) AS sum_last_ns
    FROM weeks
    GROUP BY host, guest, device, op
),
ratios AS (
    SELECT host, guest, device, op, n_before, n_last, sum_before_ns / n_before AS mean_before_ns,
           sum_last_ns / n_last AS mean_last_ns,
           ln((sum_last_ns / n_last) / (sum_before_ns / n_before)) AS log_ratio
    FROM sums
    WHERE n_before >= 100 AND n_last >= 100 AND sum_before_ns > 0 AND sum_last_ns > 0
),
middle AS (
    SELECT median(log_ratio) AS middle, count(*) AS compared
    FROM ratios
),
distances AS (
    SELECT host, guest, device, op, n_before, n_last, mean_before_ns, mean_last_ns, log_ratio, log_ratio - middle AS distance,
           middle, compared
    FROM ratios CROSS JOIN middle
),
spread AS (
    SELECT greatest(1.4826 * median(abs(distance)), 0.05) AS sigma
    FROM distances
)
SELECT host, guest, device, op, n_before, n_last, mean_before_ns, mean_last_ns, exp(log_ratio) AS ratio,
       distance / sigma AS z, compared, exp(middle) AS median_ratio, newest_ns
FROM distances CROSS JOIN spread CROSS JOIN newest
ORDER BY ratio DESC, host, guest, device, op;
