"""Count earthquakes by time and kind: python examples/window_to_topic.py TOPIC RESULTS CHECKPOINT"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketcore.spark import local_session


def aggregate(messages: DataFrame, width: str, late: str) -> DataFrame:
    """Return a row for each window and kind, once the window is over."""
    event = f.from_json(f.col("body").cast("string"), "time bigint, type string, mag double").alias("event")
    columns = f.timestamp_millis("event.time").alias("time"), "event.type", "event.mag"
    windows = messages.select(event).select(*columns).withWatermark("time", late)
    return windows.groupBy(f.window("time", width), "type").agg(
        f.count("*").alias("events"), f.max("mag").alias("strongest")
    )


def main(
    spark: SparkSession, topic: str, results: str, checkpoint: str, width: str, late: str, name_server: str
) -> None:
    messages = spark.readStream.format("rocketmq").option("nameServer", name_server).option("topic", topic).load()
    rows = aggregate(messages, width, late).select(
        f.to_json(f.struct("window.start", "window.end", "type", "events", "strongest")).alias("body"),
        f.col("type").alias("tags"),
        # The id follows from the window and the type: it is the same whichever task sends it, and however often.
        f.upper(f.md5(f.concat_ws(" ", f.unix_seconds("window.start"), f.unix_seconds("window.end"), "type"))).alias(
            "msgId"
        ),
    )
    target = {"nameServer": name_server, "topic": results, "createTopic": "true", "checkpointLocation": checkpoint}
    query = rows.writeStream.format("rocketmq").options(**target).trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(batch.numInputRows for batch in query.recentProgress)
    print(f"{read:,} events read; what is over since the last run is in topic {results}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic", help="of JSON objects with time (milliseconds since 1970), type and mag")
    parser.add_argument("results", help="topic that gets a message for each window and type")
    parser.add_argument("checkpoint", help="folder in which Spark keeps how far it is, and the windows that are open")
    parser.add_argument("--width", default="1 day", help="of a window")
    parser.add_argument("--late", default="1 hour", help="how long a window waits for events that come late")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("windows to a topic") as spark:
        main(spark, **arguments)
