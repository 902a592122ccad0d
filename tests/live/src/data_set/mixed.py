"""Makes a data set of several releases: `mixed` has the files of `apart`, every third as an older release wrote it (schema 1,
without columns that were added since), every third as a newer one may (with a column that is not known yet).

Argument: the folder of both. Prints how many files are older and newer.
"""

import collections
import glob
import json
import os
import sys

import pyarrow
import pyarrow.parquet

os.chdir(sys.argv[1])
# What the questions that are asked of it do not need.
ADDED = {"remote_ns", "qemu_job_ns", "advice", "accel"}
made = collections.Counter()
for table in ("disks", "findings", "topology", "calls"):
    for nth, path in enumerate(sorted(glob.glob(f"apart/{table}/*/*/*.parquet"))):
        to = path.replace("apart/", "mixed/", 1)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        kind = ("same", "older", "newer")[nth % 3]
        made[kind] += 1
        if kind == "same":
            os.link(path, to)
            continue
        rows = pyarrow.parquet.ParquetFile(path).read()
        about = dict(rows.schema.metadata or {})
        if kind == "older":
            about[b"nestrace_schema"] = b"nestrace-parquet/1"
            rows = rows.drop_columns([name for name in rows.column_names if name in ADDED])
        else:
            rows = rows.append_column("from_a_newer_release", pyarrow.array(["?"] * len(rows), pyarrow.string()))
        pyarrow.parquet.write_table(rows.replace_schema_metadata(about), to, compression="zstd")
for table in ("chains", "spans"):
    os.symlink(os.path.realpath(f"apart/{table}"), f"mixed/{table}")
os.link("apart/_nestrace.json", "mixed/_nestrace.json")
print(json.dumps(made))
