-- The tables of a data set, for Spark SQL; the questions of this folder's parent are asked of them.
-- Run in the folder of the data set: spark-sql -i NESTRACE/sql/spark/tables.sql -f NESTRACE/sql/worst_disks.sql
-- Columns are named, so that Spark opens no file to find them; a column that an older file does not have is null.
CREATE OR REPLACE TEMPORARY VIEW disks (
    side STRING, guest STRING, device STRING, disk STRING, layer STRING, op STRING, minute_unix_ns BIGINT, n BIGINT,
    sum_ns BIGINT, bytes BIGINT, at_most_ns ARRAY<BIGINT>, counts ARRAY<BIGINT>, guest_queue_ns BIGINT,
    virt_submit_ns BIGINT, qemu_submit_ns BIGINT, qemu_job_ns BIGINT, host_fs_submit_ns BIGINT,
    host_queue_ns BIGINT, stack_submit_ns BIGINT, stack_between_ns BIGINT, stack_complete_ns BIGINT,
    device_ns BIGINT,
    device_flush_ns BIGINT, remote_ns BIGINT, host_fs_between_ns BIGINT, host_fs_complete_ns BIGINT,
    qemu_between_ns BIGINT,
    qemu_complete_ns BIGINT, virt_complete_ns BIGINT, recording STRING, start_unix_ns BIGINT, duration_ns BIGINT,
    lost BIGINT, host STRING, date STRING
) USING parquet OPTIONS (path 'disks');

CREATE OR REPLACE TEMPORARY VIEW calls (
    guest STRING, process STRING, op STRING, mount STRING, inode BIGINT, path STRING, minute_unix_ns BIGINT,
    n BIGINT, sum_ns BIGINT, bytes BIGINT, without_io BIGINT, failed BIGINT, linked BIGINT, linked_ns BIGINT,
    at_most_ns ARRAY<BIGINT>, counts ARRAY<BIGINT>, guest_fs_submit_ns BIGINT, guest_dirty_throttle_ns BIGINT,
    guest_page_wait_ns BIGINT, guest_journal_ns BIGINT, guest_queue_ns BIGINT, virt_submit_ns BIGINT,
    qemu_submit_ns BIGINT, qemu_job_ns BIGINT, host_fs_submit_ns BIGINT, host_queue_ns BIGINT,
    stack_submit_ns BIGINT, stack_between_ns BIGINT, stack_complete_ns BIGINT, device_ns BIGINT,
    device_flush_ns BIGINT, remote_ns BIGINT,
    host_fs_between_ns BIGINT, host_fs_complete_ns BIGINT, qemu_between_ns BIGINT, qemu_complete_ns BIGINT,
    virt_complete_ns BIGINT, guest_fs_between_ns BIGINT, guest_fs_complete_ns BIGINT, recording STRING,
    start_unix_ns BIGINT, duration_ns BIGINT, lost BIGINT, host STRING, date STRING
) USING parquet OPTIONS (path 'calls');

CREATE OR REPLACE TEMPORARY VIEW findings (
    id STRING, guest STRING, disk STRING, severity STRING, title STRING, share DOUBLE, evidence STRING,
    advice STRING, recording STRING, start_unix_ns BIGINT, duration_ns BIGINT, lost BIGINT, host STRING, date STRING
) USING parquet OPTIONS (path 'findings');

CREATE OR REPLACE TEMPORARY VIEW topology (
    guest STRING, uuid STRING, disk STRING, guest_device STRING, bus STRING, format STRING, cache STRING,
    aio STRING, iothread STRING, image STRING, virtual_size BIGINT, image_allocated BIGINT, host_fs STRING,
    host_fs_options STRING, host_device STRING, host_scheduler STRING, host_kernel STRING, guest_kernel STRING,
    guest_fs STRING, qemu_version STRING, accel STRING, recording STRING, start_unix_ns BIGINT, duration_ns BIGINT,
    lost BIGINT, host STRING, date STRING
) USING parquet OPTIONS (path 'topology');

-- One row for each bucket of a distribution.
CREATE OR REPLACE TEMPORARY VIEW disk_latencies AS
SELECT host, recording, side, guest, device, disk, layer, op, minute_unix_ns, bucket.at_most_ns, bucket.counts AS n
FROM disks LATERAL VIEW explode(arrays_zip(at_most_ns, counts)) AS bucket;

CREATE OR REPLACE TEMPORARY VIEW call_latencies AS
SELECT host, recording, guest, process, op, mount, inode, path, minute_unix_ns, bucket.at_most_ns, bucket.counts AS n
FROM calls LATERAL VIEW explode(arrays_zip(at_most_ns, counts)) AS bucket;
