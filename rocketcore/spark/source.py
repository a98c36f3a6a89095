"""The data source that Spark calls ``rocketmq``: what it reads and writes, and with which options.

Batch queries, streaming reads. Spark pickles this class by name, so every node needs rocketcore installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from rocketcore.errors import ConfigError, RocketError
from rocketcore.spark.options import (
    SinkOptions,
    SourceOptions,
    StreamSourceOptions,
    parse_options,
    read_options_class,
)

if TYPE_CHECKING:
    from rocketcore.spark.range_task import Projection

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

        # Nobody says whether a batch query asks or a stream.
        options = parse_options(read_options_class(self.options), self.options)
        return read_schema(options.include_properties, options.include_hosts)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketcore.spark.reader import RocketMQReader

        return RocketMQReader(parse_options(SourceOptions, self.options), _projection(schema))

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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rocketcore.spark.stream_reader import stream_reader

        return stream_reader(parse_options(StreamSourceOptions, self.options), _projection(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError("writeStream is not there yet: rocketcore writes in batch queries only (frame.write)")


def _projection(schema: StructType) -> Projection:
    from rocketcore.spark.range_task import Projection
    from rocketcore.spark.schema import check_read_schema

    columns = check_read_schema(schema)
    return Projection(columns, tuple((field.name, field.nullable) for field in schema.fields))
