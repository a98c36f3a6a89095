"""Spark reads and writes RocketMQ topics: ``spark.read.format("rocketmq")``, ``frame.write.format("rocketmq")``.

Built on PySpark's Python Data Source API with Arrow record batches in both directions. Where rocketcore is installed,
Spark finds the format by itself (``pyspark_rocketmq``); ``register`` is for a session whose Python path came later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcore.spark.java import find_java
from rocketcore.spark.session import local_session, recommended_settings
from rocketcore.spark.write_ids import write_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_java", "local_session", "recommended_settings", "register", "write_id"]


def register(spark: SparkSession) -> None:
    """Make ``format("rocketmq")`` known to a session."""
    from rocketcore.spark.source import RocketMQDataSource

    spark.dataSource.register(RocketMQDataSource)
