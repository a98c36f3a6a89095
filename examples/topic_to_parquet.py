"""Keep the messages of a topic as Parquet files: python examples/topic_to_parquet.py TOPIC TABLE CHECKPOINT"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from rocketcore.spark import local_session


def main(
    spark: SparkSession, topic: str, table: str, checkpoint: str, every: str | None, group: str, name_server: str
) -> None:
    source = {"nameServer": name_server, "topic": topic, "groupId": group}
    rows = (
        spark.readStream.format("rocketmq")
        .options(**source)
        .load()
        .select(
            "brokerName", "queueId", "queueOffset", "msgId", "keys", "tags", "storeTimestamp",
            f.col("body").cast("string").alias("body"),
            f.to_date("storeTimestamp").alias("day"),
        )
    )  # fmt: skip
    writer = rows.writeStream.format("parquet").partitionBy("day")
    writer = writer.option("path", table).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    query = writer.start()
    query.awaitTermination()  # raises what the query failed with
    print(f"{sum(batch.numInputRows for batch in query.recentProgress):,} messages of topic {topic} added to {table}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("table", help="folder of the files, one below it for each day")
    parser.add_argument("checkpoint", help="folder in which Spark notes how far it is")
    parser.add_argument("--every", help="go on for good, with a batch in each, such as '10 seconds'")
    parser.add_argument("--group", default="topic-to-parquet", help="consumer group under which the lag is seen")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("topic to Parquet") as spark:
        main(spark, **arguments)
