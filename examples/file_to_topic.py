"""Send the rows of files to a topic: python examples/file_to_topic.py PATH TOPIC"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from rocketcore.spark import local_session, write_id


def load(spark: SparkSession, path: str, kind: str) -> DataFrame:
    """Return the column body: lines as they are, rows of tables as JSON objects."""
    if kind == "lines":
        return spark.read.text(path).select(f.col("value").alias("body"))
    csv = {"header": "true", "escape": '"'}  # names in the first line, quotes doubled, as most programs write it
    table = spark.read.format(kind).options(**csv).load(path)
    return table.select(f.to_json(f.struct("*")).alias("body"))


def main(
    spark: SparkSession, path: str, topic: str, kind: str, key: str, tag: str, run: str | None, name_server: str
) -> None:
    sent = Observation()
    rows = load(spark, path, kind).select(
        "body",
        f.get_json_object("body", f"$.{key}").alias("keys"),  # null where there is none: the message has no key then
        f.get_json_object("body", f"$.{tag}").alias("tags"),
    )
    writer = rows.observe(sent, f.count("*").alias("rows")).write.format("rocketmq").mode("append")
    writer.option("nameServer", name_server).option("topic", topic)
    if run is not None:
        writer.option("writeId", write_id(run, 0))  # the ids of the messages follow from it, from task and row
    writer.save()
    print(f"{sent.get['rows']:,} rows sent to topic {topic}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="file or folder, under a name that all of Spark's machines read")
    parser.add_argument("topic")
    parser.add_argument("--kind", choices=("lines", "parquet", "csv"), default="lines", help="lines: of JSON")
    parser.add_argument("--key", default="id", help="field of the JSON objects that is the message's key")
    parser.add_argument("--tag", default="type", help="field that is its tag")
    parser.add_argument("--run", help="name of this run: another of the same name sends the same ids")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("file to topic") as spark:
        main(spark, **arguments)
