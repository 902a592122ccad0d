-- The tables of single requests, for ClickHouse: what slowest.sql asks for beside tables.sql.
CREATE OR REPLACE VIEW chains AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/guest=([^/]*)')) AS guest
FROM file('chains/host=*/guest=*/date=*/*.parquet', Parquet, '
    guest_device Nullable(String), io Nullable(Int64), disk Nullable(String), op Nullable(String),
    offset Nullable(Int64), bytes Nullable(Int64), q_ns Nullable(Int64), at_ns Nullable(Int64),
    clock_bound_ns Nullable(Int64), q2c_ns Nullable(Int64), unlinked Nullable(String), unix_ns Nullable(Int64),
    recording Nullable(String)
');

CREATE OR REPLACE VIEW spans AS
SELECT *, decodeURLComponent(extract(_path, '/host=([^/]*)')) AS host, decodeURLComponent(extract(_path, '/guest=([^/]*)')) AS guest
FROM file('spans/host=*/guest=*/date=*/*.parquet', Parquet, '
    guest_device Nullable(String), io Nullable(Int64), span Nullable(Int64), parent Nullable(Int64),
    layer Nullable(String), what Nullable(String), place Nullable(String), offset Nullable(Int64),
    bytes Nullable(Int64), from_ns Nullable(Int64), to_ns Nullable(Int64), recording Nullable(String)
');
