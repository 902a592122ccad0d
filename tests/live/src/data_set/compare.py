"""Holds what engines answer to the questions of `sql/` against what `nestrace analyze` says of each recording.

The folder has `together`, the data set; `apart`, the same files as if each recording were of a host of its own, which is
called as the recording; `analyses`, a JSON file for each recording; and `answers`, a JSON file for each engine.
"""

import collections
import glob
import json
import math
import os
import statistics
import sys

import duckdb

folder = sys.argv[1]
os.chdir(folder + "/together")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
OF_HOST = ["host_fs_submit", "host_queue", "device", "device_flush", "host_fs_between", "host_fs_complete"]
OF_HOST += ["stack_submit", "stack_between", "stack_complete"]

wrong = []
checked = collections.Counter()


def hold(what, holds, figures):
    checked[what.split(":")[0]] += 1
    if not holds:
        wrong.append(f"{what}: {figures}")


def near(a, b, least=0.0):
    """Equal but for the last digits; JSON forms have means that are rounded to a nanosecond."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= max(least, 1e-9 * abs(a), 1e-9 * abs(b))


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def named(pattern):
    return {os.path.basename(path).removesuffix(".json"): read(path) for path in sorted(glob.glob(pattern))}


analyses = named(folder + "/analyses/*.json")
engines = named(folder + "/answers/*.json")


def expected(analysis):
    """By side, guest, device, disk, layer and operation: the distribution in the JSON form."""
    for device in analysis["devices"]:
        key = device["side"], device["guest"] or "-", device["name"], None
        latency = device["latency_ns"]
        for layer, part, flush in (("block", "q2c", "flush"), ("device", "d2c", "flush_d2c")):
            for op, parts in latency["by_op"].items():
                yield (*key, layer, op), parts[part]
            yield (*key, layer, "flush"), latency[flush]
    for disk in analysis["qemu"]:
        for op, dist in disk["latency_ns"].items():
            yield ("host", disk["guest"], None, disk["disk"], "qemu", op), dist
    for chains in analysis["chains"]:
        for op in ("read", "write", "discard", "flush"):
            key = "guest", chains["guest"], chains["guest_device"], chains["disk"], "chain", op
            yield key, chains["latency_ns"][op]


def bucket(bound):
    """The bounds of a bucket that ends there: they lie a sixteenth of a power of two apart from 1,024 ns on."""
    return (0 if bound < 1024 else bound + 1 - 2 ** ((bound + 1).bit_length() - 1 - 4), bound)


def nearest_rank(bounds, counts, q):
    """The bounds between which a quantile lies."""
    buckets = collections.Counter()
    for some_bounds, some_counts in zip(bounds, counts):
        buckets.update(dict(zip(some_bounds, some_counts)))
    rank = max(1, -(-sum(buckets.values()) * q // 1))
    below = 0
    for bound, n in sorted(buckets.items()):
        below += n
        if below >= rank:
            return bucket(bound)
    return (0, 0)


def in_bucket(value, bound):
    """A percentile of the JSON form is within 0.1 %."""
    low, high = bucket(bound)
    return low * 0.999 <= value <= high * 1.001


# The table itself, of every layer.
of_analyses = {
    (recording, *key): dist
    for recording, analysis in analyses.items()
    for key, dist in expected(analysis)
    if dist and dist["n"]
}
of_set = {
    row[:7]: row[7:]
    for row in duckdb.sql(
        "SELECT recording, side, guest, device, disk, layer, op, sum(n)::BIGINT, sum(sum_ns)::BIGINT, list(at_most_ns),"
        " list(counts) FROM read_parquet('disks/**/*.parquet', hive_partitioning = true) GROUP BY ALL"
    ).fetchall()
}
hold("rows", of_set.keys() == of_analyses.keys(), sorted(map(str, of_set.keys() ^ of_analyses.keys()))[:5])
for key, dist in of_analyses.items():
    n, sum_ns, bounds, counts = of_set.get(key, (0, 0, [], []))
    hold(f"count: {key}", n == dist["n"], f"{n}, expected {dist['n']}")
    mean = sum_ns / n if n else 0
    hold(f"sum: {key}", abs(mean - dist["mean"]) <= 0.5, f"{mean}, expected {dist['mean']}")
    if key[5] == "chain":
        continue
    hold(f"samples: {key}", sum(map(sum, counts)) == n, f"{counts}, expected {n}")
    for name, q in QUANTILES.items():
        low, high = nearest_rank(bounds, counts, q)
        holds = low * 0.999 <= dist[name] <= high * 1.001
        hold(f"percentile: {name} of {key}", holds, f"{dist[name]}, expected {low} to {high}")

# Every file says what it is, and has what engines prune by.
for table in ("disks", "calls", "findings", "topology"):
    for path in glob.glob(f"{table}/*/*/*.parquet"):
        about = duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{path}')").fetchall()
        schema = [value.decode() for key, value in about if key == b"nestrace_schema"]
        hold(f"schema: {path}", schema == ["nestrace-parquet/2"], schema)
    if table in ("disks", "calls"):
        bare = duckdb.sql(
            "SELECT file_name, path_in_schema FROM parquet_metadata"
            f"('{table}/*/*/*.parquet') WHERE num_values > 0 AND path_in_schema IN ('n', 'guest', 'minute_unix_ns')"
            " AND stats_min_value IS NULL AND coalesce(stats_null_count, 0) < num_values"
        ).fetchall()
        hold(f"statistics: {table}", not bare, bare[:3])


def answers(what, question):
    """What each engine says: by its name, the rows."""
    return {engine: sets[what][question] for engine, sets in engines.items()}


def by(rows, *keys):
    return {tuple(row[key] for key in keys): row for row in rows}


def guest_block():
    """By recording, guest, device and operation, the distribution of what the guest saw."""
    for (recording, side, guest, device, _, layer, op), dist in of_analyses.items():
        if (side, layer) == ("guest", "block"):
            yield (recording, guest, device, op), dist


# Each recording apart: what an engine says of it is what analyze says of it.
expected_disks = dict(guest_block())
for engine, rows in answers("apart", "worst_disks").items():
    rows = by(rows, "host", "guest", "device", "op")
    hold(f"question: worst_disks in {engine}", rows.keys() == expected_disks.keys(), f"{rows.keys() ^ expected_disks.keys()}")
    for key, dist in expected_disks.items():
        row = rows.get(key)
        if not row:
            continue
        what = f"worst_disks of {key} in {engine}"
        hold(f"question: {what}", row["n"] == dist["n"], f"{row}, expected {dist}")
        hold(f"question: mean, {what}", abs(row["mean_ns"] - dist["mean"]) <= 0.5, f"{row}, expected {dist}")
        hold(f"question: sum, {what}", near(row["sum_ns"], row["mean_ns"] * row["n"], 1), f"{row}")
        for name in QUANTILES:
            holds = in_bucket(dist[name], row[f"{name}_ns"])
            hold(f"question: {name}, {what}", holds, f"{row}, expected {dist}")

expected_segments, of_chains = {}, collections.defaultdict(lambda: [0, 0, 0, set()])
for recording, analysis in analyses.items():
    for chains in analysis["chains"]:
        sums = collections.Counter()
        for op, parts in chains["by_op"].items():
            if op == "flush":
                continue
            n = chains["latency_ns"][op]["n"]
            for part in parts:
                sums[part["name"]] += part["mean_ns"] * n
            mine = of_chains[recording]
            mine[0] += n
            mine[1] += (chains["latency_ns"][op]["mean"] or 0) * n
        if sums.total():
            of_chains[recording][2] += sum(sums[name] for name in OF_HOST)
            of_chains[recording][3].add((chains["guest"], chains["guest_device"]))
        for name, ns in sums.items():
            key = recording, chains["guest"], chains["guest_device"], name
            expected_segments[key] = expected_segments.get(key, 0) + ns
expected_segments = {key: ns for key, ns in expected_segments.items() if ns}
for engine, rows in answers("apart", "segments").items():
    got = {key: row["ns"] for key, row in by(rows, "host", "guest", "device", "segment").items() if row["ns"]}
    hold(f"question: segments in {engine}", got.keys() == expected_segments.keys(), f"{got.keys() ^ expected_segments.keys()}")
    for key, ns in expected_segments.items():
        hold(f"question: segments of {key} in {engine}", near(got.get(key, 0), ns, 1 + ns * 1e-9), f"{got.get(key)}, expected {ns}")
    shares = collections.Counter()
    for row in rows:
        shares[row["host"], row["guest"], row["device"]] += row["share"]
    hold(f"question: shares in {engine}", shares and all(near(it, 1, 1e-9) for it in shares.values()), f"{shares}")
# What the devices that the images lie on moved, for a byte that the guests asked QEMU for.
lie_on = collections.defaultdict(set)
for recording, device in duckdb.sql(
    "SELECT DISTINCT recording, host_device FROM read_parquet('topology/**/*.parquet', hive_partitioning = true)"
).fetchall():
    lie_on[recording].add(device)
expected_moved = {}
for recording, analysis in analyses.items():
    asked = sum(disk["bytes"]["read"] + disk["bytes"]["write"] for disk in analysis["qemu"])
    devices = [it["bytes"] for it in analysis["devices"] if it["side"] == "host" and it["name"] in lie_on[recording]]
    moved = sum(it["read"] + it["write"] for it in devices)
    expected_moved[recording] = moved / asked if asked and devices else None
hold("question: devices below each other", any(expected_moved.values()), f"{expected_moved}")
for engine, rows in answers("apart", "noisy_hosts").items():
    rows = by(rows, "host")
    wanted = {(recording,) for recording, (n, sum_ns, _, _) in of_chains.items() if sum_ns}
    hold(f"question: noisy_hosts in {engine}", rows.keys() == wanted, f"{rows.keys() ^ wanted}")
    for (recording,), row in rows.items():
        n, sum_ns, host_ns, disks = of_chains[recording]
        holds = row["n"] == n and near(row["sum_ns"], sum_ns, n) and near(row["host_ns"], host_ns, 1 + n)
        holds = holds and row["disks"] == len(disks) and near(row["host_share"], host_ns / sum_ns, 1e-6)
        hold(f"question: noisy_hosts of {recording} in {engine}", holds, f"{row}, expected {of_chains[recording]}")
        # Requests that were in flight when the recording began have no latency, so they are in no row.
        got, moved = row["amplification"], expected_moved[recording]
        holds = got is moved or got is not None and moved is not None and 0.98 * moved <= got <= moved * (1 + 1e-9)
        hold(f"question: amplification of {recording} in {engine}", holds, f"{row}, expected {moved}")

# Calls, row by row of calls[].
expected_calls = {}
for recording, analysis in analyses.items():
    for row in analysis["calls"] or []:
        file = row["file"]
        key = recording, row["guest"], row["process"], row["op"], file["mount"], file["inode"], file["path"] or ""
        mine = expected_calls.setdefault(key, {"n": 0, "sum": 0, "linked": 0, "journal": 0, "dists": []})
        parts = {part["name"]: part["mean_ns"] for part in row["segments"]}
        mine["n"] += row["n"]
        mine["sum"] += row["latency_ns"]["mean"] * row["n"]
        mine["linked"] += row["linked"]
        mine["journal"] += parts.get("guest_journal", 0) * row["linked"]
        mine["dists"].append(row["latency_ns"])
for engine, rows in answers("apart", "calls").items():
    rows = by(rows, "host", "guest", "process", "op", "mount", "inode", "path")
    hold(f"question: calls in {engine}", rows.keys() == expected_calls.keys(), f"{sorted(map(str, rows.keys() ^ expected_calls.keys()))[:4]}")
    for key, want in expected_calls.items():
        row = rows.get(key)
        if not row:
            continue
        what = f"calls of {key} in {engine}"
        holds = row["n"] == want["n"] and row["linked"] == want["linked"] and near(row["sum_ns"], want["sum"], want["n"])
        hold(f"call: {what}", holds, f"{row}, expected {want}")
        hold(f"call: journal, {what}", near(row["journal_ns"], want["journal"], 1 + want["journal"] * 1e-6), f"{row}, expected {want}")
        if len(want["dists"]) == 1:
            dist = want["dists"][0]
            holds = all(in_bucket(dist[name], row[f"{name}_ns"]) for name in ("p50", "p99"))
            hold(f"call: percentiles, {what}", holds, f"{row}, expected {dist}")

# Together: figures add up over recordings.
for what in ("together", "apart"):
    for engine, rows in answers(what, "worst_disks").items():
        got = collections.Counter()
        for row in rows:
            got[row["guest"], row["device"], row["op"]] += row["n"]
        want = collections.Counter()
        for (_, guest, device, op), dist in expected_disks.items():
            want[guest, device, op] += dist["n"]
        hold(f"question: worst_disks adds up in {engine}, {what}", got == want, f"{got - want}, {want - got}")
    found = collections.Counter(
        (finding["id"], finding["severity"]) for analysis in analyses.values() for finding in analysis["findings"]
    )
    shares = collections.defaultdict(list)
    for analysis in analyses.values():
        for finding in analysis["findings"]:
            shares[finding["id"], finding["severity"]].append(finding["share"])
    for engine, rows in answers(what, "findings").items():
        got = collections.Counter({(row["id"], row["severity"]): row["recordings"] for row in rows})
        hold(f"question: findings in {engine}, {what}", got == found, f"{got - found} too many, {found - got} missing")
        for row in rows:
            mean = statistics.fmean(shares[row["id"], row["severity"]])
            hold(f"question: share of {row['id']} in {engine}", near(row["mean_share"], mean, 1e-9), f"{row}, expected {mean}")
            hold(f"question: advice of {row['id']} in {engine}", bool(json.loads(row["advice"])), f"{row}")
    linked = {
        (recording, chains["guest"], chains["guest_device"])
        for recording, analysis in analyses.items()
        for chains in analysis["chains"]
    }
    in_topology = sum(dist["n"] for (recording, guest, device, _), dist in expected_disks.items() if (recording, guest, device) in linked)
    for engine, rows in answers(what, "by_kind").items():
        n = sum(row["n"] for row in rows)
        hold(f"question: by_kind in {engine}, {what}", n == in_topology > 0, f"{n}, expected {in_topology}")
    for engine, (row,) in answers(what, "recordings").items():
        # A recording without I/O has no row.
        of_io = {key[0] for key in of_analyses}
        lost = sum(analyses[recording]["trace"]["lost"] for recording in of_io)
        lasted = sum(analyses[recording]["trace"]["duration_ns"] for recording in of_io)
        holds = (row["recordings"], row["lost"], row["duration_ns"]) == (len(of_io), lost, lasted)
        hold(f"question: recordings in {engine}, {what}", holds, f"{row}, expected {len(of_io)}, {lost}, {lasted}")

# Outliers, computed once more from what analyze says.
kinds = {}
for host, recording, guest, device, *kind in duckdb.sql(
    "SELECT DISTINCT host, recording, guest, guest_device, coalesce(host_kernel, '-'), coalesce(qemu_version, '-'),"
    " coalesce(host_fs, '-'), coalesce(cache, '-'), coalesce(bus, '-')"
    " FROM read_parquet('topology/**/*.parquet', hive_partitioning = true) WHERE guest_device IS NOT NULL"
).fetchall():
    kinds[recording, guest, device] = tuple(kind)
peers = collections.defaultdict(dict)
for (recording, guest, device, op), dist in expected_disks.items():
    kind = kinds.get((recording, guest, device))
    if kind and dist["n"] >= 100:
        peers[*kind, op][recording, guest, device] = math.log(dist["mean"])
peers = {kind: disks for kind, disks in peers.items() if len(disks) >= 8}
expected_z = {}
for (*_, op), disks in peers.items():
    middle = statistics.median(disks.values())
    sigma = max(1.4826 * statistics.median(abs(value - middle) for value in disks.values()), 0.05)
    for disk, value in disks.items():
        z = (value - middle) / sigma
        if z >= 1.6:
            expected_z[*disk, op] = z, len(disks)
hold("question: kinds with peers", peers, "no kind has eight disks")
for engine, rows in answers("apart", "outliers").items():
    rows = by(rows, "host", "guest", "device", "op")
    hold(f"question: outliers in {engine}", rows.keys() == expected_z.keys(), f"{rows.keys()}, expected {expected_z.keys()}")
    for key, (z, n) in expected_z.items():
        row = rows.get(key, {"z": 0, "peers": 0, "compared": 0})
        holds = near(row["z"], z, 1e-3) and row["peers"] == n and row["compared"] == sum(map(len, peers.values()))
        hold(f"question: outlier {key} in {engine}", holds, f"{row}, expected {z}, {n}")

# What is asked of minutes and of single requests, once more from the rows.
newest = max(row[0] for row in duckdb.sql("SELECT minute_unix_ns FROM read_parquet('disks/**/*.parquet') WHERE minute_unix_ns IS NOT NULL").fetchall())
weeks = collections.defaultdict(lambda: [0, 0, 0, 0])
for host, guest, device, op, minute, n, sum_ns in duckdb.sql(
    "SELECT host, guest, device, op, minute_unix_ns, n, sum_ns FROM read_parquet('disks/**/*.parquet', hive_partitioning = true)"
    " WHERE side = 'guest' AND layer = 'block' AND minute_unix_ns IS NOT NULL"
).fetchall():
    week = (newest - minute) // (7 * 86_400 * 10**9)
    if week < 2:
        mine = weeks[host, guest, device, op]
        mine[2 * week] += n
        mine[2 * week + 1] += sum_ns
ratios = {key: (it[1] / it[0]) / (it[3] / it[2]) for key, it in weeks.items() if it[0] >= 100 and it[2] >= 100}
for engine, rows in answers("together", "regressions").items():
    got = {key: row["ratio"] for key, row in by(rows, "host", "guest", "device", "op").items()}
    holds = got.keys() == ratios.keys() and all(near(got[key], ratios[key], 1e-9 * ratios[key]) for key in got)
    hold(f"question: regressions in {engine}", holds, f"{got}, expected {ratios}")
slowest = max(dist["max"] for dist in expected_disks.values())
for engine, rows in answers("together", "slowest").items():
    roots = [row for row in rows if row["span"] == 0]
    holds = len(roots) == 10 and all(row["ns"] == row["q2c_ns"] for row in roots) and roots[0]["q2c_ns"] <= slowest
    hold(f"question: slowest in {engine}", holds and len(rows) > 20, f"{roots}, at most {slowest}")

# All engines say the same, whatever was asked.
first, *others = engines


def in_order(rows):
    """By their words: rows whose sums of fractions differ in the last digit can stand the other way round."""
    return sorted(rows, key=lambda row: sorted((key, value) for key, value in row.items() if isinstance(value, str)))


for engine in others:
    for what, questions in engines[first].items():
        for question, rows in questions.items():
            theirs = engines[engine][what][question]
            holds = len(rows) == len(theirs)
            for a, b in zip(in_order(rows), in_order(theirs)):
                same = a.keys() == b.keys()
                for key in a if same else []:
                    x, y = a[key], b[key]
                    same = same and (near(x, y) if isinstance(x, (int, float)) and isinstance(y, (int, float)) else x == y)
                if not same:
                    hold(f"engines: {question} in {engine}", False, f"{b}, in {first} {a}")
                    break
            hold(f"engines: {question} of {what} in {engine}", holds, f"{len(theirs)} rows, expected {len(rows)}")

# The report of nestrace-fleet: DataFusion says of each recording what analyze says, and of all what the other engines say.
def alike(a, b, keys):
    return all(near(a[key], b[key]) if isinstance(a[key], (int, float)) else a[key] == b[key] for key in keys)


def first_rows(what, name, theirs, ours, unknown=None):
    """The report's list is the beginning of another engine's answer."""
    theirs = [{key: unknown if value is None else value for key, value in row.items()} for row in theirs[:50]]
    holds = len(ours) == len(theirs) and all(alike(a, b, a) for a, b in zip(theirs, ours))
    different = [pair for pair in zip(theirs, ours) if not alike(*pair, pair[0])]
    hold(f"report: {name}, {what}", holds, f"{len(ours)} rows, expected {len(theirs)}: {different[:1]}")


def latency_of_each(report):
    for row in report["worst_disks"]:
        dist = expected_disks[row["host"], row["guest"], row["device"], row["op"]]
        holds = row["n"] == dist["n"] and abs(row["mean_ns"] - dist["mean"]) <= 0.5
        holds = holds and near(row["sum_ns"], row["mean_ns"] * row["n"], 1)
        holds = holds and all(in_bucket(dist[name], row[f"{name}_ns"]) for name in QUANTILES)
        hold("report: as analyze says", holds, f"{row}, expected {dist}")


for what in ("together", "apart"):
    report = read(f"{folder}/report-{what}.json")
    rows = engines[first][what]
    # The report passes over what has too few requests for a 99th percentile.
    enough = {name: [row for row in rows[name] if row["n"] >= 100] for name in ("worst_disks", "by_kind")}
    first_rows(what, "worst_disks", enough["worst_disks"], report["worst_disks"])
    first_rows(what, "kinds", enough["by_kind"], report["kinds"], "-")
    first_rows(what, "noisy_hosts", rows["noisy_hosts"], report["noisy_hosts"])
    (about,) = rows["recordings"]
    for key, value in about.items():
        hold(f"report: {key}, {what}", report[key] == value, f"{report[key]}, expected {value}")
    keys = {"recordings": "recordings", "disks": "disks", "mean_share": "time_share", "waited_ns": "waited_ns"}
    findings = by(rows["findings"], "id", "severity")
    got = by(report["findings"], "id", "severity")
    hold(f"report: findings, {what}", got.keys() == findings.keys(), f"{got.keys() ^ findings.keys()}")
    for key, row in got.items():
        want = {name: findings[key][theirs] for theirs, name in keys.items()}
        holds = alike(want, row, want) and row["advice"] == json.loads(findings[key]["advice"])
        hold(f"report: finding {key}, {what}", holds, f"{row}, expected {findings[key]}")
    sums = collections.Counter()
    for row in rows["segments"]:
        sums[row["segment"]] += row["ns"]
    got = {row["segment"]: row["ns"] for row in report["segments"]}
    hold(f"report: segments, {what}", got == sums, f"{got}, expected {sums}")
    shares = sum(row["share"] for row in report["segments"])
    hold(f"report: shares, {what}", near(shares, 1), f"{shares}")
    keys = ("host", "guest", "device", "op")
    candidates = by(rows["outliers"], *keys)
    compared = {row["compared"] for row in rows["outliers"]} or {report["compared"]}
    hold(f"report: compared, {what}", compared == {report["compared"]}, f"{report['compared']}, expected {compared}")
    # Benjamini and Hochberg: what is listed has a z among the largest ones.
    for row in report["outliers"]:
        one = candidates.get(tuple(row[key] for key in keys))
        holds = one and alike(one, row, one.keys() - {"compared"}) and row["q"] <= 0.05 and row["mean_ns"] >= 1.5 * row["peers_ns"]
        hold(f"report: outlier, {what}", holds, f"{row}, {one}")
    changes = report["changes"]
    if rows["regressions"]:
        top = rows["regressions"][0]
        holds = changes["compared"] == top["compared"] and near(changes["median_ratio"], top["median_ratio"])
        hold(f"report: changes, {what}", holds and changes["until_unix_ns"] == newest, f"{changes}, expected {top}")
    slower = by(rows["regressions"], *keys)
    for row in changes["slower"]:
        one = slower.get(tuple(row[key] for key in keys))
        holds = one and alike(one, row, one.keys() & row.keys()) and row["q"] <= 0.05
        hold(f"report: slower, {what}", holds, f"{row}, {one}")
    hold(f"report: left out, {what}", report["n_left_out"] == 0, f"{report['left_out']}")
    if what == "apart":
        latency_of_each(report)

# Files of older and newer releases among them change nothing but the advice, which the older ones do not have.
def without_advice(rows):
    return in_order([{key: value for key, value in row.items() if key != "advice"} for row in rows])


def same(a, b):
    """Equal but for the last digits of sums of fractions."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    # An engine may write a fraction of 1 as a whole number.
    numbers = all(isinstance(it, (int, float)) for it in (a, b)) and float in (type(a), type(b))
    return near(a, b) if numbers else a == b


for engine, sets in engines.items():
    for question, rows in sets["mixed"].items():
        want = without_advice(sets["apart"][question])
        got = without_advice(rows)
        hold(f"mixed: {question} in {engine}", want and same(want, got), f"{got[:2]}, expected {want[:2]}")
mixed, apart, damaged = (read(f"{folder}/report-{what}.json") for what in ("mixed", "apart", "damaged"))
for key in apart.keys() - {"data_set", "segments"}:
    want, got = (without_advice(report[key]) if key == "findings" else report[key] for report in (apart, mixed))
    hold(f"mixed: {key} of the report", same(want, got), f"{got}, expected {want}")
# A damaged file is named, and all else is as it was.
for key in mixed.keys() - {"left_out", "n_left_out"}:
    hold(f"damaged: {key} of the report", same(damaged[key], mixed[key]), f"{damaged[key]}, expected {mixed[key]}")
files = [one["file"] for one in damaged["left_out"]]
hold("damaged: its name", files == ["disks/host=damaged/date=2026-11-20/cut.parquet"] and damaged["n_left_out"] == 1, files)

print(json.dumps({"checked": checked, "wrong": wrong, "recordings": len(analyses), "engines": list(engines)}))
