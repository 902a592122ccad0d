"""Holds a data set of many recordings, read by DuckDB, against what `nestrace analyze` says of each of them.

The folder has `set`, the data set; `analyses`, a JSON file for each recording, called as the recording is in the data set;
and `sql`, the questions that nestrace comes with.
"""

import collections
import glob
import json
import os
import sys

import duckdb

folder = sys.argv[1]
os.chdir(folder + "/set")
DISKS = "read_parquet('disks/**/*.parquet', hive_partitioning = true)"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}

wrong = []
checked = collections.Counter()


def hold(what, holds, figures):
    checked[what.split(":")[0]] += 1
    if not holds:
        wrong.append(f"{what}: {figures}")


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


analyses = {}
for path in glob.glob(folder + "/analyses/*.json"):
    with open(path, encoding="utf-8") as file:
        analyses[os.path.basename(path).removesuffix(".json")] = json.load(file)

of_set = {
    row[:7]: row[7:]
    for row in duckdb.sql(
        "SELECT recording, side, guest, device, disk, layer, op, sum(n)::BIGINT, sum(sum_ns)::BIGINT, "
        f"list(at_most_ns), list(counts) FROM {DISKS} GROUP BY ALL"
    ).fetchall()
}
of_analyses = {
    (recording, *key): dist
    for recording, analysis in analyses.items()
    for key, dist in expected(analysis)
    if dist and dist["n"]
}
hold("rows", of_set.keys() == of_analyses.keys(), sorted(map(str, of_set.keys() ^ of_analyses.keys()))[:5])


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
            # Bounds lie a sixteenth of a power of two apart; below 1,024 ns is one bucket.
            width = 0 if bound < 1024 else 2 ** ((bound + 1).bit_length() - 1 - 4)
            return (bound + 1 - width if width else 0, bound)
    return (0, 0)


for key, dist in of_analyses.items():
    n, sum_ns, bounds, counts = of_set.get(key, (0, 0, [], []))
    hold(f"count: {key}", n == dist["n"], f"{n}, expected {dist['n']}")
    # The JSON form has the mean, rounded.
    mean = sum_ns / n if n else 0
    hold(f"sum: {key}", abs(mean - dist["mean"]) <= 0.5, f"{mean}, expected {dist['mean']}")
    if key[5] == "chain":
        continue
    hold(f"samples: {key}", sum(map(sum, counts)) == n, f"{counts}, expected {n}")
    for name, q in QUANTILES.items():
        low, high = nearest_rank(bounds, counts, q)
        # A percentile of the JSON form is within 0.1 %.
        holds = low * 0.999 <= dist[name] <= high * 1.001
        hold(f"percentile: {name} of {key}", holds, f"{dist[name]}, expected {low} to {high}")

segments = duckdb.sql(f"SELECT recording, guest, device, op, COLUMNS('.*_ns') FROM {DISKS} WHERE layer = 'chain'")
names = segments.columns
sums = collections.Counter()
for row in segments.fetchall():
    for name, ns in zip(names[4:], row[4:]):
        sums[(*row[:4], name)] += ns or 0
for recording, analysis in analyses.items():
    for chains in analysis["chains"]:
        for op, parts in chains["by_op"].items():
            n = chains["latency_ns"][op]["n"]
            for part in parts:
                key = recording, chains["guest"], chains["guest_device"], op, part["name"] + "_ns"
                want = part["mean_ns"] * n
                hold(f"segment: {key}", abs(sums[key] - want) <= 1 + want * 1e-9, f"{sums[key]}, expected {want}")

questions = {}
for path in sorted(glob.glob(folder + "/sql/*.sql")):
    with open(path, encoding="utf-8") as file:
        answer = duckdb.sql(file.read())
    questions[os.path.basename(path)] = [dict(zip(answer.columns, row)) for row in answer.fetchall()]

totals = collections.defaultdict(lambda: [0, 0])
for (_, side, guest, device, _, layer, op), dist in of_analyses.items():
    if side == "guest" and layer == "block":
        totals[guest, device, op][0] += dist["n"]
        totals[guest, device, op][1] += dist["mean"] * dist["n"]
answered = collections.defaultdict(lambda: [0, 0])
for row in questions["worst_disks.sql"]:
    answered[row["guest"], row["device"], row["op"]][0] += row["n"]
    answered[row["guest"], row["device"], row["op"]][1] += row["sum_ns"]
hold("question: worst_disks has each disk", answered.keys() == totals.keys(), f"{answered.keys() ^ totals.keys()}")
for key, (n, sum_ns) in totals.items():
    got = answered[key]
    hold(f"question: worst_disks of {key}", got[0] == n and abs(got[1] - sum_ns) <= n, f"{got}, expected {n}, {sum_ns}")
found = collections.Counter(
    (finding["id"], finding["severity"]) for analysis in analyses.values() for finding in analysis["findings"]
)
got = collections.Counter({(row["id"], row["severity"]): row["recordings"] for row in questions["findings.sql"]})
hold("question: findings", got == found, f"{got - found} too many, {found - got} missing")
of_guests = sum(dist["n"] for (_, side, _, _, _, layer, _), dist in of_analyses.items() if (side, layer) == ("guest", "block"))
linked = {(chains["guest"], chains["guest_device"]) for analysis in analyses.values() for chains in analysis["chains"]}
by_kind = sum(row["n"] for row in questions["by_kind.sql"])
in_topology = sum(n for (guest, device, _), (n, _) in totals.items() if (guest, device) in linked)
hold("question: by_kind", by_kind == in_topology and by_kind > 0, f"{by_kind}, expected {in_topology} of {of_guests}")
shares = collections.Counter()
for row in questions["segments.sql"]:
    shares[row["host"], row["guest"], row["device"]] += row["share"]
hold("question: segments", shares and all(abs(share - 1) < 1e-6 for share in shares.values()), f"{shares}")

print(json.dumps({"checked": checked, "wrong": wrong, "recordings": len(analyses)}))
