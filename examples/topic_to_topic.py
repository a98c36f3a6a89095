"""Copy a topic, also to another cluster: python examples/topic_to_topic.py SOURCE TARGET CHECKPOINT"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from rocketcore.spark import local_session


def main(
    spark: SparkSession, source: str, target: str, checkpoint: str, tags: str, name_server: str, to: str | None
) -> None:
    read = {"nameServer": name_server, "topic": source, "subExpression": tags, "includeProperties": "true"}
    messages = spark.readStream.format("rocketmq").options(**read).load()
    # A message takes its id along. Where and when it was stored is left behind: ignoreSystemColumns.
    write = {
        "nameServer": to or name_server,
        "topic": target,
        "createTopic": "true",
        "ignoreSystemColumns": "true",
        "checkpointLocation": checkpoint,
    }
    query = messages.writeStream.format("rocketmq").options(**write).trigger(availableNow=True).start()
    query.awaitTermination()
    print(f"{sum(batch.numInputRows for batch in query.recentProgress):,} messages copied from {source} to {target}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="topic to copy")
    parser.add_argument("target", help="topic to copy to; made if it is not there")
    parser.add_argument("checkpoint", help="folder in which Spark notes how far it is")
    parser.add_argument("--tags", default="*", help="only messages with these tags, such as 'a || b'")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--to", help="name server of the other cluster")
    arguments = vars(parser.parse_args())
    with local_session("topic to topic") as spark:
        main(spark, **arguments)
