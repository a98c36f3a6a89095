"""The data source that Spark calls ``rocketmq``: what it reads and writes, and with which options.

Spark pickles this class by name, so every node needs rocketcore installed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from rocketcore.errors import ConfigError
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

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._unpickled = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_unpickled": True}

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
        from rocketcore.spark.writer import RocketMQWriter, plan_write

        options = parse_options(SinkOptions, self.options)
        if overwrite:
            raise ConfigError('a topic cannot be overwritten: use .mode("append")')
        return RocketMQWriter(plan_write(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rocketcore.spark.stream_reader import stream_reader

        return stream_reader(parse_options(StreamSourceOptions, self.options), _projection(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of one batch.

        overwrite  the output mode is complete: every batch is the whole result, and is sent as such
        """
        from rocketcore.spark.stream_writer import RocketMQStreamWriter, plan_stream_write

        # Spark makes a data source in the process in which a batch is planned. To commit it, it unpickles one in
        # another: all rows are stored by then, and whether the topic could be written to is no question any more.
        return RocketMQStreamWriter(None if self._unpickled else plan_stream_write(self.options, schema))


def _projection(schema: StructType) -> Projection:
    from rocketcore.spark.range_task import Projection
    from rocketcore.spark.schema import check_read_schema

    columns = check_read_schema(schema)
    return Projection(columns, tuple((field.name, field.nullable) for field in schema.fields))
