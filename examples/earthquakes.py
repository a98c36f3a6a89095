"""Watch a week of earthquakes as they come, and draw them: python examples/earthquakes.py PICTURE"""

from __future__ import annotations

import argparse
from importlib.resources import files

from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import rocketcore as rmq
from rocketcore.spark import local_session

FIELDS = "id string, time bigint, mag double, longitude double, latitude double, depth_km double"


def replay(topic: str, name_server: str) -> int:
    """Send what the seismometers told, in the order of time; return how many messages the topic holds then."""
    with rmq.Producer(name_server, group="seismometers") as producer:
        for line in (files("rocketcore") / "sample" / "earthquakes.ndjson").read_bytes().splitlines():
            producer.send_nowait(rmq.Message(topic, line))
        producer.flush()
    with rmq.Admin(name_server) as admin:
        return sum(queue.max_offset - queue.min_offset for queue in admin.topic_stats(topic).values())


def draw(events: DataFrame, picture: str) -> int:
    """Draw each event once, the strong ones over the weak, and return their number."""
    once = events.dropna().dropDuplicates(["id"]).withColumn("day", f.timestamp_millis("time")).orderBy("mag")
    columns = once.toArrow().to_pydict()
    colours = {"c": columns["depth_km"], "cmap": "plasma_r", "alpha": 0.7}
    figure = Figure(figsize=(11, 9), layout="constrained")
    earth, week = figure.subplots(2, height_ratios=(3, 1))
    dots = earth.scatter(
        columns["longitude"], columns["latitude"], [3 * 2 ** max(0, m) for m in columns["mag"]], **colours
    )
    earth.set(title=f"{len(columns['id']):,} seismic events", xlabel="longitude", ylabel="latitude")
    figure.colorbar(dots, label="depth (km)")
    week.scatter(columns["day"], columns["mag"], 5, **colours)
    week.set(xlabel="day (UTC)", ylabel="magnitude")
    figure.savefig(picture)
    return len(columns["id"])


def main(spark: SparkSession, picture: str, topic: str, name_server: str) -> None:
    with rmq.Admin(name_server) as admin:
        admin.create_topic(topic, queues=4, exist_ok=True)
    messages = spark.readStream.format("rocketmq").option("nameServer", name_server).option("topic", topic).load()
    events = messages.select(f.from_json(f.col("body").cast("string"), FIELDS).alias("event")).select("event.*")
    query = events.writeStream.format("memory").queryName("seen").start()
    sent = replay(topic, name_server)
    while (seen := spark.table("seen").count()) < sent:
        print(f"{seen:,} of {sent:,} messages", flush=True)
        query.awaitTermination(1)  # raises what the query failed with
    query.stop()
    print(f"{draw(spark.table('seen'), picture):,} seismic events in {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", help="file to write: .png, .svg or .pdf")
    parser.add_argument("--topic", default="seismometers", help="made if it is not there")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("earthquakes") as spark:
        main(spark, **arguments)
