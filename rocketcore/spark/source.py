"""The data source that Spark calls ``rocketmq``: what it reads and writes, and with which options.

Batch reads and batch writes. Spark pickles this class by name, so every node needs rocketcore installed.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from rocketcore.errors import ConfigError, RocketError
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options

__all__ = ["RocketMQDataSource"]


class RocketMQDataSource(DataSource):
    """``format("rocketmq")``: RocketMQ topics as tables of messages.

    raises  ConfigError for wrong options or columns: in the driver, before the first task
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        from rocketcore.spark.schema import read_schema  # pyarrow, which looking for a format needs not

        options = parse_options(SourceOptions, self.options)
        return read_schema(options.include_properties, options.include_hosts)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketcore.spark.range_task import Projection
        from rocketcore.spark.reader import RocketMQReader
        from rocketcore.spark.schema import check_read_schema

        options, columns = parse_options(SourceOptions, self.options), check_read_schema(schema)
        fields = tuple((field.name, field.nullable) for field in schema.fields)
        return RocketMQReader(options, Projection(columns, fields))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from rocketcore.spark.schema import check_write_schema
        from rocketcore.spark.writer import RocketMQWriter, plan_queues

        options = parse_options(SinkOptions, self.options)
        if overwrite:
            raise ConfigError('a topic cannot be overwritten: use .mode("append")')
        columns = check_write_schema(schema, options)
        try:
            queues = plan_queues(options)
        except RocketError as error:
            raise error.with_traceback(None) from None  # Spark prints every frame; the last line is what counts
        return RocketMQWriter(options, columns, queues)

    def streamReader(self, schema: StructType) -> NoReturn:
        raise ConfigError("readStream is not there yet: rocketcore reads topics in batch queries only (spark.read)")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError("writeStream is not there yet: rocketcore writes in batch queries only (frame.write)")
