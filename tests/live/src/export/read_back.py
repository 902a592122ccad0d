"""Sums of a data set, read by DuckDB and by pyarrow, as one JSON object: {"duckdb": …, "pyarrow": …}."""

import json
import os
import sys

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

OUT = sys.argv[1]
QUEUE, COMPLETE = 1, 14
OP_MASK = 0xFF
SEGMENTS = [
    "guest_queue", "virt_submit", "qemu_submit", "qemu_job", "host_fs_submit", "host_queue",
    "stack_submit", "stack_between", "stack_complete", "device", "device_flush", "remote",
    "host_fs_between", "host_fs_complete", "qemu_between", "qemu_complete", "virt_complete",
]
CALL_SEGMENTS = [
    "guest_fs_submit", "guest_dirty_throttle", "guest_page_wait", "guest_journal", *SEGMENTS,
    "guest_fs_between", "guest_fs_complete",
]
# From bios and requests that name each other: D to C and Q to C of each bio.
WAY = """
WITH events AS (SELECT * FROM {events}),
issued AS (
    SELECT guest, dev, object AS request, ts_ns AS d_ns, related AS bio FROM events WHERE kind = 11
    UNION ALL
    SELECT guest, dev, object, ts_ns, unnest([related, "offset", bytes]) FROM events WHERE kind = 12
),
queued AS (SELECT guest, dev, object AS bio, ts_ns AS q_ns, bytes FROM events WHERE kind = 1),
completed AS (SELECT guest, dev, object AS request, ts_ns AS c_ns FROM events WHERE kind = 14 AND related = 0)
SELECT issued.guest, issued.dev, count(*), sum(c_ns - d_ns)::BIGINT, sum(c_ns - q_ns)::BIGINT FROM issued
ASOF JOIN queued AS q ON q.guest = issued.guest AND q.dev = issued.dev AND q.bio = issued.bio AND issued.d_ns >= q.q_ns
ASOF JOIN completed AS c
    ON c.guest = issued.guest AND c.dev = issued.dev AND c.request = issued.request AND issued.d_ns <= c.c_ns
WHERE issued.bio <> 0 AND q.bytes > 0 GROUP BY ALL
"""
HAS_CHAINS = os.path.isdir(f"{OUT}/chains")
HAS_CALLS = os.path.isdir(f"{OUT}/call_rows")


def of_duckdb():
    db = duckdb.connect()

    def table(name):
        return f"read_parquet('{OUT}/{name}/**/*.parquet', hive_partitioning = true, hive_types_autocast = false)"

    def rows(query):
        return [list(row) for row in db.execute(query).fetchall()]

    sums = {
        "streams": rows(f"SELECT guest, count(*) FROM {table('events')} GROUP BY guest"),
        "kinds": rows(f"SELECT guest, kind, count(*) FROM {table('events')} GROUP BY ALL"),
        "queued": rows(
            f"SELECT guest, dev, count(*) FROM {table('events')} WHERE kind = {QUEUE} AND bytes > 0 GROUP BY ALL"
        ),
        "completed": rows(
            f"SELECT guest, dev, flags & {OP_MASK} AS op, sum(bytes)::BIGINT FROM {table('events')}"
            f" WHERE kind = {COMPLETE} AND bytes > 0 GROUP BY ALL"
        ),
        "dates": rows(f"SELECT DISTINCT host, date::VARCHAR FROM {table('events')}"),
    }
    if not HAS_CHAINS:
        sums["ways"] = rows(WAY.format(events=table("events")))
    if HAS_CHAINS:
        segments = ", ".join(f"sum({name}_ns)::BIGINT" for name in SEGMENTS)
        sums["chains"] = rows(
            f"SELECT guest, guest_device, count(*), sum(q2c_ns)::BIGINT, {segments} FROM {table('chains')}"
            " WHERE unlinked IS NULL AND op <> 'flush' GROUP BY ALL"
        )
        sums["bios"] = rows(
            f"SELECT guest, guest_device, unlinked IS NULL, count(*) FROM {table('chains')} GROUP BY ALL"
        )
        # What a chain's own row says is what its tree says, and each interval is in its parent.
        sums["trees"] = rows(
            f"SELECT count(*), sum(to_ns - from_ns)::BIGINT FROM {table('spans')} WHERE span = 0"
        )
        sums["parents"] = rows(
            f"SELECT count(*) FROM {table('spans')} AS child ANTI JOIN {table('spans')} AS parent"
            " ON parent.guest = child.guest AND parent.guest_device = child.guest_device"
            " AND parent.io = child.io AND parent.span = child.parent WHERE child.parent IS NOT NULL"
        )
    if HAS_CALLS:
        segments = ", ".join(f"sum({name}_ns)::BIGINT" for name in CALL_SEGMENTS)
        sums["calls"] = rows(
            "SELECT guest, process, op, mount, inode, count(*), sum(without_io::INT)::BIGINT, sum(linked::INT)::BIGINT,"
            f" sum(latency_ns)::BIGINT, {segments} FROM {table('call_rows')} GROUP BY ALL"
        )
        parts = " + ".join(f"{name}_ns" for name in CALL_SEGMENTS)
        sums["uneven_calls"] = rows(
            f"SELECT count(*) FROM {table('call_rows')} WHERE residual_ns <> 0 OR {parts} <> latency_ns"
            " OR linked IS DISTINCT FROM (residual_ns IS NOT NULL)"
        )
        sums["programs"] = rows(f"SELECT DISTINCT process, mount, path FROM {table('call_rows')}")
    return sums


def of_pyarrow():
    def table(name):
        return ds.dataset(f"{OUT}/{name}", format="parquet", partitioning="hive")

    def grouped(data, keys, sums):
        made = data.group_by(keys).aggregate(sums)
        # Keys come first or last, by release.
        names = keys + [f"{column}_{function}" if column != [] else "count_all" for column, function in sums]
        return [list(row) for row in zip(*(made.column(name).to_pylist() for name in names))]

    events = table("events").to_table(columns=["host", "guest", "date", "kind", "dev", "flags", "bytes"])
    count = ([], "count_all")
    with_data = pc.greater(events["bytes"], pa.scalar(0, pa.uint64()))
    queued = events.filter(pc.and_(pc.equal(events["kind"], pa.scalar(QUEUE, pa.uint8())), with_data))
    completed = events.filter(pc.and_(pc.equal(events["kind"], pa.scalar(COMPLETE, pa.uint8())), with_data))
    op = pc.bit_wise_and(completed["flags"], pa.scalar(OP_MASK, pa.uint32())).cast("int64")
    completed = completed.append_column("op", op)
    sums = {
        "streams": grouped(events, ["guest"], [count]),
        "kinds": grouped(events, ["guest", "kind"], [count]),
        "queued": grouped(queued, ["guest", "dev"], [count]),
        "completed": grouped(completed, ["guest", "dev", "op"], [("bytes", "sum")]),
        "dates": [[row["host"], str(row["date"]) if row["date"] is not None else None]
                  for row in events.group_by(["host", "date"]).aggregate([]).to_pylist()],
    }
    if HAS_CHAINS:
        chains = table("chains").to_table()
        data = chains.filter(pc.and_(pc.is_null(chains["unlinked"]), pc.not_equal(chains["op"], "flush")))
        segments = [(f"{name}_ns", "sum") for name in SEGMENTS]
        sums["chains"] = grouped(data, ["guest", "guest_device"], [count, ("q2c_ns", "sum"), *segments])
        linked = chains.append_column("linked", pc.is_null(chains["unlinked"]))
        sums["bios"] = grouped(linked, ["guest", "guest_device", "linked"], [count])
        spans = table("spans").to_table()
        roots = spans.filter(pc.equal(spans["span"], 0))
        length = pc.sum(pc.subtract(roots["to_ns"], roots["from_ns"])).as_py() or 0
        sums["trees"] = [[roots.num_rows, length]]
    if HAS_CALLS:
        calls = table("call_rows").to_table()
        for name in ("without_io", "linked"):
            place = calls.schema.get_field_index(name)
            calls = calls.set_column(place, name, calls[name].cast("int64"))
        summed = ["without_io", "linked", "latency_ns", *(f"{name}_ns" for name in CALL_SEGMENTS)]
        keys = ["guest", "process", "op", "mount", "inode"]
        sums["calls"] = grouped(calls, keys, [count, *((name, "sum") for name in summed)])
    return sums


def in_order(sums):
    found = {name: sorted(rows, key=json.dumps) for name, rows in sums.items()}
    return {**found, "segments": SEGMENTS, "call_segments": CALL_SEGMENTS}


print(json.dumps({"duckdb": in_order(of_duckdb()), "pyarrow": in_order(of_pyarrow())}))
