"""Send 200,000 flights through a topic and ask when they are late: python examples/flights.py"""

from __future__ import annotations

import argparse
import time
from importlib.resources import files

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import rocketcore as rmq
from rocketcore.spark import local_session


def main(spark: SparkSession, topic: str, name_server: str) -> None:
    table = pa.ipc.open_file((files("rocketcore") / "sample" / "flights-200k.arrow").read_bytes()).read_all()
    hour = f.floor("time").cast("int")
    flights = spark.createDataFrame(table).select(
        f.to_json(f.struct("delay", "distance", hour.alias("hour"))).alias("body"),
        hour.cast("string").alias("shardingKey"),  # the flights of an hour stay in one queue, in their order
    )
    with rmq.Admin(name_server) as admin:
        admin.create_topic(topic, queues=4, exist_ok=True)
    target = {"nameServer": name_server, "topic": topic}
    started = time.perf_counter()
    flights.write.format("rocketmq").mode("append").options(**target, queueSelector="hash").save()
    print(f"{table.num_rows:,} flights sent to topic {topic} in {time.perf_counter() - started:.1f} s")

    started = time.perf_counter()
    messages = spark.readStream.format("rocketmq").options(**target).schema("body binary").load()
    flight = f.from_json(f.col("body").cast("string"), "delay int, hour int").alias("flight")
    late = (
        messages.select(flight)
        .groupBy("flight.hour")
        .agg(f.count("*").alias("flights"), f.avg("flight.delay").alias("delay"))
    )
    query = (
        late.writeStream.format("memory").queryName("late").outputMode("complete").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    read = sum(batch.numInputRows for batch in query.recentProgress)
    print(f"{read:,} flights read from it in {time.perf_counter() - started:.1f} s; mean delay by hour, in minutes:")
    for row in spark.table("late").orderBy("hour").collect():
        print(f"{row.hour:02}:00 {row.flights:8,} flights {row.delay:7.1f} {'#' * round(max(0, row.delay))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="flights", help="made if it is not there")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("flights") as spark:
        main(spark, **arguments)
