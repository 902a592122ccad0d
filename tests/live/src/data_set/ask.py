"""Asks an engine every question of `sql/` and prints the answers as JSON: by data set and question, a list of rows.

Arguments: a JSON object with `engine`, `sql` (the folder with the questions), `sets` (a folder for each name) and `some` (names
of sets that are asked these questions only).
"""

import decimal
import glob
import json
import os
import sys

ask = json.loads(sys.argv[1])
SQL = ask["sql"]


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def statements(script):
    return [statement for statement in script.split(";\n") if statement.strip()]


def tables(engine):
    return text(f"{SQL}/{engine}/tables.sql") + text(f"{SQL}/{engine}/requests.sql")


class DuckDB:
    def __init__(self):
        import duckdb

        self.engine = duckdb

    def open(self, folder):
        os.chdir(folder)
        self.connection = self.engine.connect()
        self.connection.execute(tables("duckdb"))

    def ask(self, question):
        answer = self.connection.execute(question)
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row)) for row in answer.fetchall()]

    def close(self):
        pass


class ClickHouse:
    def open(self, folder):
        os.chdir(folder)
        from chdb import session

        self.session = session.Session()
        for statement in statements(tables("clickhouse")):
            self.session.query(statement)

    def ask(self, question):
        answer = self.session.query(question.rstrip().removesuffix(";"), "JSONEachRow")
        return [json.loads(line) for line in str(answer).splitlines() if line]

    def close(self):
        self.session.close()


class Spark:
    """Two worker processes of their own, and one session for all questions."""

    def __init__(self):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark.sql import SparkSession

        # What begins soonest: so few rows are not worth a compiler's second look, nor a job to list folders.
        java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = SparkSession.builder.master("local-cluster[2,1,1024]")
        for name, value in {
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "OFF",
            "spark.sql.catalogImplementation": "in-memory",
        }.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()

    def open(self, folder):
        # Its processes have a working folder of their own.
        for statement in statements(tables("spark").replace("path '", f"path '{folder}/")):
            self.session.sql(statement)

    def ask(self, question):
        return [row.asDict() for row in self.session.sql(question).collect()]

    def close(self):
        self.session.stop()


def plain(value):
    """Numbers of any kind as JSON has them."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"{value!r} is of no kind that was expected")


engine = {"duckdb": DuckDB, "clickhouse": ClickHouse, "spark": Spark}[ask["engine"]]()
answers = {}
for name, folder in ask["sets"].items():
    engine.open(folder)
    all_questions = sorted(os.path.basename(path).removesuffix(".sql") for path in glob.glob(f"{SQL}/*.sql"))
    questions = ask["some"].get(name, all_questions)
    answers[name] = {question: engine.ask(text(f"{SQL}/{question}.sql")) for question in questions}
engine.close()
print(json.dumps(answers, default=plain))
