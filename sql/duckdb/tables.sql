-- The tables of a data set, for DuckDB; the questions of this folder's parent are asked of them.
-- Run in the folder of the data set: cat NESTRACE/sql/duckdb/tables.sql NESTRACE/sql/worst_disks.sql | duckdb
CREATE OR REPLACE TEMP VIEW disks AS
SELECT * FROM read_parquet('disks/host=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'date': VARCHAR});

CREATE OR REPLACE TEMP VIEW calls AS
SELECT * FROM read_parquet('calls/host=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'date': VARCHAR});

CREATE OR REPLACE TEMP VIEW findings AS
SELECT * FROM read_parquet('findings/host=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'date': VARCHAR});

CREATE OR REPLACE TEMP VIEW topology AS
SELECT * FROM read_parquet('topology/host=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'date': VARCHAR});

-- One row for each bucket of a distribution.
CREATE OR REPLACE TEMP VIEW disk_latencies AS
SELECT host, recording, side, guest, device, disk, layer, op, minute_unix_ns, unnest(at_most_ns) AS at_most_ns, unnest(counts) AS n
FROM disks;

CREATE OR REPLACE TEMP VIEW call_latencies AS
SELECT host, recording, guest, process, op, mount, inode, path, minute_unix_ns, unnest(at_most_ns) AS at_most_ns, unnest(counts) AS n
FROM calls;
