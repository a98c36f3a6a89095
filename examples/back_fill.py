"""Read a time range of a topic again, into a table: python examples/back_fill.py TOPIC TABLE START UNTIL"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from rocketcore.spark import local_session


def moment(text: str) -> datetime:
    """Return a time; of UTC, unless it says otherwise."""
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def main(spark: SparkSession, topic: str, table: str, start: datetime, until: datetime, name_server: str) -> None:
    source = {
        "nameServer": name_server,
        "topic": topic,
        "startingTimestamp": start.isoformat(),
        "endingTimestamp": until.isoformat(),
    }
    messages = spark.read.format("rocketmq").options(**source).load()
    rows = messages.withColumn("body", f.col("body").cast("string"))
    # Takes the place of what an earlier run left there: however often the range is read, the table has it once.
    folder = f"{table}/start={start.astimezone(UTC):%Y%m%dT%H%M%S}"
    rows.write.mode("overwrite").parquet(folder)
    print(f"{spark.read.parquet(folder).count():,} messages of topic {topic} in {folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("table", help="folder of the files, one below it for each range")
    parser.add_argument("start", type=moment, help="such as 2026-11-23T14:00, which is UTC, or 2026-11-23T15:00+01:00")
    parser.add_argument("until", type=moment, help="the first moment that is not read any more")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    arguments = vars(parser.parse_args())
    with local_session("back-fill") as spark:
        main(spark, **arguments)
