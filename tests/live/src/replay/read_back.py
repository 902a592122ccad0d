"""Reads OUT.requests.csv, OUT.chains.csv, OUT.calls.csv and OUT.pftrace back and prints their sums as JSON.

The trace is parsed with Perfetto's own protocol definitions, and its rules are checked as the UI relies on them:
slices of one track do not overlap, an arrow has both its ends, what is referred to was told before.
"""

import collections
import csv
import json
import os
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

base = sys.argv[1]


def rows(name):
    if not os.path.exists(name):
        return []
    with open(name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def requests():
    sums = collections.defaultdict(lambda: [0, 0, 0, 0])
    for row in rows(base + ".requests.csv"):
        of = sums[row["side"], row["guest"], row["device"], row["op"]]
        of[0] += row["completed_ns"] != ""
        of[1] += row["issued_ns"] != ""
        of[2] += int(row["moved_bytes"])
        of[3] += int(row["d2c_ns"] or 0)
    return [[*key, *of] for key, of in sums.items()]


def chains():
    sums = collections.defaultdict(lambda: [0, 0, 0, 0])
    uneven = 0
    segments = collections.Counter()
    for row in rows(base + ".chains.csv"):
        parts = {name: int(row[name]) for name in row if name.endswith("_ns") and row[name]}
        for name in ("at_ns", "clock_bound_ns", "q2c_ns"):
            parts.pop(name, None)
        key = row["guest"], row["guest_device"]
        of = sums[key]
        of[0] += 1
        of[1] += not row["unlinked"]
        if not row["unlinked"]:
            uneven += sum(parts.values()) != int(row["q2c_ns"])
            if row["op"] != "flush":
                of[2] += int(row["q2c_ns"])
                for name, ns in parts.items():
                    segments[*key, name.removesuffix("_ns")] += ns
        of[3] += int(row["q2c_ns"])
    return {
        "disks": [[*key, *of] for key, of in sums.items()],
        "segments": [[*key, ns] for key, ns in segments.items()],
        "uneven": uneven,
    }


def calls():
    """Calls, those without I/O, those that were linked, their bios and summed latency; segments of the linked ones."""
    sums = collections.defaultdict(lambda: [0, 0, 0, 0, 0])
    segments = collections.Counter()
    threads = collections.defaultdict(lambda: [0, 0])
    uneven = 0
    for row in rows(base + ".calls.csv"):
        key = row["guest"], row["process"], row["op"], row["mount"], row["inode"]
        latency = int(row["latency_ns"])
        of = sums[key]
        of[0] += 1
        of[1] += int(row["without_io"])
        of[2] += int(row["linked"])
        of[3] += int(row["bios"])
        of[4] += latency
        of_thread = threads[row["guest"], row["process"], row["tid"]]
        of_thread[0] += 1
        of_thread[1] += latency
        parts = {name: row[name] for name in row if name.endswith("_ns")}
        for name in ("start_ns", "at_ns", "clock_bound_ns", "latency_ns"):
            del parts[name]
        residual = parts.pop("residual_ns")
        if int(row["linked"]):
            uneven += int(residual) != 0 or sum(map(int, parts.values())) != latency
            for name, ns in parts.items():
                segments[*key, name.removesuffix("_ns")] += int(ns)
        else:
            uneven += residual != "" or any(parts.values())
    return {
        "rows": [[*key, *of] for key, of in sums.items()],
        "segments": [[*key, ns] for key, ns in segments.items()],
        "threads": [[*key, *of] for key, of in threads.items()],
        "uneven": uneven,
    }


def trace():
    whole = proto.Trace()
    with open(base + ".pftrace", "rb") as file:
        whole.ParseFromString(file.read())
    tracks, notes, events = {}, {}, []
    wrong = collections.Counter()
    for place, packet in enumerate(whole.packet):
        for note in packet.interned_data.debug_annotation_names:
            notes[note.iid] = note.name
        if packet.HasField("track_descriptor"):
            about = packet.track_descriptor
            wrong["parents"] += about.parent_uuid not in (0, *tracks)
            tracks[about.uuid] = about
        if packet.HasField("track_event"):
            wrong["tracks"] += packet.track_event.track_uuid not in tracks
            events.append((packet.timestamp, place, packet.track_event))
        wrong["unknown"] += len(proto.TracePacket.FromString(packet.SerializeToString()).ListFields()) == 0
    events.sort(key=lambda event: event[:2])
    name = lambda uuid: (tracks[tracks[uuid].parent_uuid].name, tracks[uuid].name)
    slices, counters = collections.defaultdict(lambda: [0, 0]), {}
    busy, flows, arrows = {}, {}, 0
    kind = proto.TrackEvent
    # Of calls: the sums of their notes, and the ends of their arrows that are no bio of the guest.
    noted, of_calls = collections.Counter(), collections.Counter()
    is_call = lambda uuid: name(uuid)[0].endswith(" programs")
    for ts, _, event in events:
        uuid = event.track_uuid
        if event.type == kind.TYPE_SLICE_BEGIN:
            wrong["overlaps"] += uuid in busy
            busy[uuid] = ts
            wrong["notes"] += any(note.name_iid not in notes for note in event.debug_annotations)
            if is_call(uuid):
                for note in event.debug_annotations:
                    noted[notes.get(note.name_iid)] += note.uint_value or note.int_value
            for flow in event.flow_ids:
                wrong["flows"] += flow in flows
                flows[flow] = uuid
            for flow in event.terminating_flow_ids:
                other = flows.pop(flow, None)
                wrong["flows"] += other is None
                arrows += 1
                ends = (uuid, other) if is_call(uuid) else (other, uuid)
                if other is not None and is_call(ends[0]):
                    of_calls["arrows"] += 1
                    of_calls["backward"] += ends[0] == uuid
                    wrong["arrows of calls"] += name(ends[1])[1] != "guest: bios"
        elif event.type == kind.TYPE_SLICE_END:
            of = slices[name(uuid)]
            of[0] += 1
            of[1] += ts - busy.pop(uuid, ts)
        elif event.type == kind.TYPE_COUNTER:
            of = counters.setdefault(name(uuid), [0, 0, 0, ts])
            of[1] += of[2] * (ts - of[3])
            of[0], of[2], of[3] = max(of[0], event.counter_value), event.counter_value, ts
    wrong["open"] += len(busy)
    wrong["flows"] += len(flows)
    return {
        "slices": [[*key, *of] for key, of in slices.items()],
        "counters": [[*key, *of[:3]] for key, of in counters.items()],
        "arrows": arrows,
        "noted": noted,
        "calls": of_calls,
        "wrong": {what: n for what, n in wrong.items() if n},
    }


print(json.dumps({"requests": requests(), "chains": chains(), "calls": calls(), "trace": trace()}))
