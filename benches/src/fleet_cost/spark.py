"""Asks Spark what `nestrace fleet report` asks of a data set, and prints as JSON how long that took and the memory of all its
processes.

Arguments: the folder with the questions, the data set.
"""

import json
import os
import sys
import time

from pyspark.sql import SparkSession

SQL, data_set = sys.argv[1:]
QUESTIONS = ["recordings", "worst_disks", "by_kind", "segments", "findings", "noisy_hosts", "outliers", "regressions"]


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def peak_bytes(parent):
    """Most memory that was resident, of every process below one."""
    children = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
            children.setdefault(int(stat[1]), []).append(int(pid))
        except OSError:
            continue
    total, below = 0, [parent]
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        try:
            lines = text(f"/proc/{pid}/status").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    return total


os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
begin = time.monotonic()
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "OFF",
    # What Spark's documentation has for very many small files: more of them in a task, no job for each folder.
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    "spark.driver.memory": "4g",
    "spark.sql.catalogImplementation": "in-memory",
}.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
for statement in text(f"{SQL}/spark/tables.sql").replace("path '", f"path '{data_set}/").split(";\n"):
    # The calls are not multiplied.
    if statement.strip() and "call" not in statement.split("(")[0]:
        session.sql(statement)
rows = {name: len(session.sql(text(f"{SQL}/{name}.sql")).limit(50).collect()) for name in QUESTIONS}
seconds = time.monotonic() - begin
print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(os.getpid()), "rows": rows}))
session.stop()
