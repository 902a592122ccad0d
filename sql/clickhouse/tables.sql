-- The tables of a data set, for ClickHouse; the questions of this folder's parent are asked of them.
-- Run in the folder of the data set:
--   cat NESTRACE/sql/clickhouse/tables.sql NESTRACE/sql/worst_disks.sql | clickhouse local --output-format PrettyCompact
SET use_hive_partitioning = 0, prefer_column_name_to_alias = 1, join_use_nulls = 1, cast_keep_nullable = 1,
    input_format_parquet_allow_missing_columns = 1;

CREATE OR REPLACE VIEW disks AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/date=([^/]*)')) AS date
FROM file('disks/host=*/date=*/*.parquet', Parquet, '
    side Nullable(String), guest Nullable(String), device Nullable(String), disk Nullable(String),
    layer Nullable(String), op Nullable(String), minute_unix_ns Nullable(Int64), n Nullable(Int64),
    sum_ns Nullable(Int64), bytes Nullable(Int64), at_most_ns Array(Int64), counts Array(Int64),
    guest_queue_ns Nullable(Int64), virt_submit_ns Nullable(Int64), qemu_submit_ns Nullable(Int64),
    qemu_job_ns Nullable(Int64),
    host_fs_submit_ns Nullable(Int64), host_queue_ns Nullable(Int64), stack_submit_ns Nullable(Int64),
    stack_between_ns Nullable(Int64), stack_complete_ns Nullable(Int64), device_ns Nullable(Int64),
    device_flush_ns Nullable(Int64), remote_ns Nullable(Int64), host_fs_between_ns Nullable(Int64),
    host_fs_complete_ns Nullable(Int64),
    qemu_between_ns Nullable(Int64), qemu_complete_ns Nullable(Int64), virt_complete_ns Nullable(Int64),
    recording Nullable(String), start_unix_ns Nullable(Int64), duration_ns Nullable(Int64), lost Nullable(Int64)
');

CREATE OR REPLACE VIEW calls AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/date=([^/]*)')) AS date
FROM file('calls/host=*/date=*/*.parquet', Parquet, '
    guest Nullable(String), process Nullable(String), op Nullable(String), mount Nullable(String),
    inode Nullable(Int64), path Nullable(String), minute_unix_ns Nullable(Int64), n Nullable(Int64),
    sum_ns Nullable(Int64), bytes Nullable(Int64), without_io Nullable(Int64), failed Nullable(Int64),
    linked Nullable(Int64), linked_ns Nullable(Int64), at_most_ns Array(Int64), counts Array(Int64),
    guest_fs_submit_ns Nullable(Int64), guest_dirty_throttle_ns Nullable(Int64), guest_page_wait_ns Nullable(Int64),
    guest_journal_ns Nullable(Int64), guest_queue_ns Nullable(Int64), virt_submit_ns Nullable(Int64),
    qemu_submit_ns Nullable(Int64), qemu_job_ns Nullable(Int64), host_fs_submit_ns Nullable(Int64),
    host_queue_ns Nullable(Int64), stack_submit_ns Nullable(Int64), stack_between_ns Nullable(Int64),
    stack_complete_ns Nullable(Int64),
    device_ns Nullable(Int64), device_flush_ns Nullable(Int64), remote_ns Nullable(Int64),
    host_fs_between_ns Nullable(Int64),
    host_fs_complete_ns Nullable(Int64), qemu_between_ns Nullable(Int64), qemu_complete_ns Nullable(Int64),
    virt_complete_ns Nullable(Int64), guest_fs_between_ns Nullable(Int64), guest_fs_complete_ns Nullable(Int64),
    recording Nullable(String), start_unix_ns Nullable(Int64), duration_ns Nullable(Int64), lost Nullable(Int64)
');

CREATE OR REPLACE VIEW findings AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/date=([^/]*)')) AS date
FROM file('findings/host=*/date=*/*.parquet', Parquet, '
    id Nullable(String), guest Nullable(String), disk Nullable(String), severity Nullable(String),
    title Nullable(String), share Nullable(Float64), evidence Nullable(String), advice Nullable(String),
    recording Nullable(String), start_unix_ns Nullable(Int64), duration_ns Nullable(Int64), lost Nullable(Int64)
');

CREATE OR REPLACE VIEW topology AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/date=([^/]*)')) AS date
FROM file('topology/host=*/date=*/*.parquet', Parquet, '
    guest Nullable(String), uuid Nullable(String), disk Nullable(String), guest_device Nullable(String),
    bus Nullable(String), format Nullable(String), cache Nullable(String), aio Nullable(String),
    iothread Nullable(String), image Nullable(String), virtual_size Nullable(Int64),
    image_allocated Nullable(Int64), host_fs Nullable(String), host_fs_options Nullable(String),
    host_device Nullable(String), host_scheduler Nullable(String), host_kernel Nullable(String),
    guest_kernel Nullable(String), guest_fs Nullable(String), qemu_version Nullable(String), accel Nullable(String),
    recording Nullable(String), start_unix_ns Nullable(Int64), duration_ns Nullable(Int64), lost Nullable(Int64)
');

-- One row for each bucket of a distribution.
CREATE OR REPLACE VIEW disk_latencies AS
SELECT host, recording, side, guest, device, disk, layer, op, minute_unix_ns, bound AS at_most_ns, count AS n
FROM disks ARRAY JOIN at_most_ns AS bound, counts AS count;

CREATE OR REPLACE VIEW call_latencies AS
SELECT host, recording, guest, process, op, mount, inode, path, minute_unix_ns, bound AS at_most_ns, count AS n
FROM calls ARRAY JOIN at_most_ns AS bound, counts AS count;
