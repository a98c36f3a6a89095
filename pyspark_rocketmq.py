"""Lets Spark find ``format("rocketmq")`` by itself: Spark imports every top-level module named ``pyspark_…``."""

from rocketcore.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
