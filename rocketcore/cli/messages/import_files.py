"""Files that ``rocket message import`` reads: pieces of messages in their order, from any message on.

parquet, arrow  any columns that fit; those that only a read has are left out, as Spark's ``ignoreSystemColumns`` does
csv             the same columns, all of text: an empty cell but that of a body is none; read as a whole
jsonl           an object a line, of ``produce --jsonl`` or as ``consume -o json`` prints them
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, NamedTuple, Protocol, TypeVar

from rocketcore.cli.messages.envelopes import read_envelope
from rocketcore.cli.messages.piped import PipedLines
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.files.csv_rows import csv_rows
from rocketcore.files.faults import TextFault, unpacking_errors, unreadable
from rocketcore.files.text import decoded
from rocketcore.message import SHARDING_KEY, Message
from rocketcore.printable import error_text

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = [
    "Checksum",
    "ColumnSource",
    "DamagedFile",
    "Line",
    "LineSource",
    "Piece",
    "Source",
    "enumerate_rows",
    "form_of_content",
    "open_columns",
]

PIECE_BYTES: Final = 1 << 20
"""About what one piece holds."""

WAIT_SECONDS: Final = 1.0
"""How long a message of a pipe waits for others of its piece."""

_DECODED_BYTES: Final = 64 << 20
"""What is decoded of a parquet file at once, where all rows are as long as the longest."""

_SHOWN_ROWS: Final = 16
"""Rows by which the others are judged."""

_LINE_BYTES: Final = 32 << 20
"""The longest line: a message of 4 MiB, each byte of it an escape of six, and its properties."""

_ARROW_MAGIC: Final = b"ARROW1"
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_PARQUET_MAGIC: Final = b"PAR1"
_READ_FIELDS: Final = ("topic", "broker", "queue_id", "offset", "born_at", "stored_at", "reconsume_times")
"""What a line has of the message that was read, and a copy has not."""
_MORE_FIELDS: Final = frozenset({*_READ_FIELDS, "msg_id"})

PayloadT = TypeVar("PayloadT", covariant=True)


class DamagedFile(Exception):
    """A file is not what it claims to be; says where and why, and leaves its name to who opened it."""


def form_of_content(head: bytes) -> str:
    """Return the format of a file by how it begins: parquet, arrow or jsonl."""
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    return "arrow" if head.startswith((_ARROW_MAGIC, _ARROW_STREAM)) else "jsonl"


@dataclass(frozen=True, slots=True)
class Checksum:
    """What was read of a file: its length and its CRC-32."""

    length: int = 0
    crc32: int = 0

    def after(self, data: bytes) -> Checksum:
        return Checksum(self.length + len(data), zlib.crc32(data, self.crc32))


class Line(NamedTuple):
    """A message of a line, the id that it has already, and the number of the line: the first of a file is 1."""

    message: Message
    msg_id: str | None
    number: int


class Piece(NamedTuple, Generic[PayloadT]):
    """Messages that are sent together, and what was read of the file with them, where that is known."""

    rows: int
    payload: PayloadT
    read: Checksum = Checksum()


class Source(Protocol[PayloadT]):
    """A file to import; ``rows`` are the messages in it, None where only the end will tell."""

    rows: int | None

    def pieces(self, first: int, most: int | None) -> Iterator[Piece[PayloadT]]:
        """Yield the messages from number ``first`` on, at most so many in a piece."""


class LineSource:
    """A jsonl file, or a pipe with such lines; the payload is messages with their ids and lines.

    read   what earlier runs read of the file, which stands behind it
    lines  that were read so
    pipe   whoever writes it may take their time
    leaves says whether the pieces are to end: behind what was read of a pipe, and anywhere in a file
    raises MessageIllegal naming the line that is no message, when those before it were yielded
    """

    rows: int | None = None

    def __init__(
        self,
        file: BinaryIO,
        topic: str,
        tag: str | None,
        read: Checksum,
        lines: int = 0,
        *,
        pipe: bool = False,
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file = file
        self._topic = topic
        self._tag = tag
        self._read = read
        self._lines = lines
        self._pipe = pipe
        self._leaves = leaves

    def pieces(self, first: int, most: int | None) -> Iterator[Piece[list[Line]]]:
        """Yield messages; those of a pipe when the first of them has waited for ``WAIT_SECONDS``."""
        piped = PipedLines(self._file, _LINE_BYTES + 1, most) if self._pipe else None
        messages: list[Line] = []
        size = 0
        until = math.inf
        while True:
            try:
                line = self._line(piped, until)
                if line:
                    self._lines += 1
                    message = self._message(line)
            except (MessageIllegal, DamagedFile):
                if messages:
                    yield Piece(len(messages), messages, self._read)
                raise
            if line:
                if message is not None:
                    messages.append(message)
                    size += len(line)
                    if piped is not None:
                        until = min(until, time.monotonic() + WAIT_SECONDS)
                self._read = self._read.after(line)
            if messages and (not line or size >= PIECE_BYTES or len(messages) == most):
                yield Piece(len(messages), messages, self._read)
                messages, size, until = [], 0, math.inf
            leaves = self._leaves()
            if line == b"" or (leaves and (piped is None or line is None)):
                return
            if leaves and piped is not None:
                piped.stop()

    def _line(self, piped: PipedLines | None, until: float) -> bytes | None:
        try:
            if piped is None:
                return self._file.readline(_LINE_BYTES + 1)
            return piped.line(until, self._leaves)
        except unpacking_errors() as error:
            raise DamagedFile(f"it cannot be read behind line {self._lines}: {error_text(error)}") from error

    def _message(self, line: bytes) -> Line | None:
        """Return the message of a line; None for a blank one."""
        if len(line) > _LINE_BYTES:
            raise MessageIllegal(f"line {self._lines}: the line has more than {_LINE_BYTES} bytes")
        try:
            fields = read_envelope(line, self._lines, more=_MORE_FIELDS)
        except TextFault as error:
            raise MessageIllegal(str(error)) from None
        if fields is None:
            return None
        for name in _READ_FIELDS:
            fields.pop(name, None)
        msg_id = fields.pop("msg_id", None)
        try:
            if msg_id == "":
                raise MessageIllegal("msg_id is empty")
            return Line(Message(self._topic, **_copied(fields, self._tag)), msg_id, self._lines)
        except (ValueError, TypeError, MessageIllegal) as error:
            raise MessageIllegal(f"line {self._lines}: {error}") from None


def _copied(fields: dict[str, Any], tag: str | None) -> dict[str, Any]:
    """Return the fields of a message without the properties that RocketMQ itself sets, or other fields say."""
    from rocketcore.codes import RESERVED_PROPERTIES

    properties = {
        name: value for name, value in (fields.get("properties") or {}).items() if name not in RESERVED_PROPERTIES
    }
    group = properties.pop(SHARDING_KEY, None)
    copied = {**fields, "properties": properties}
    if group is not None and copied.get("message_group") is None:
        copied["message_group"] = group
    if tag is not None:
        copied["tag"] = tag
    return copied


class ColumnSource:
    """Record batches of a parquet or Arrow file; the payload is a record batch with the columns of messages.

    schema   of the file
    batches  yields the record batches, beginning with that of a row, whose number comes with the first
    given    role → column; where it is empty columns are known by their names
    raises   ConfigError naming the column that does not fit
    """

    def __init__(
        self, schema: pa.Schema, rows: int | None, batches: _Batches, given: Mapping[str, str], tag: str | None
    ) -> None:
        self.rows = rows
        self.columns, self.left_out = _roles(schema, given, tag)
        self._batches = batches
        self._check(schema)

    def _check(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        from rocketcore.client.arrow_columns import copied_columns, message_columns

        fields = [schema.field(name) for name in self.columns.values()]
        empty = [pa.array([], field.type) for field in fields]
        try:
            message_columns(copied_columns(pa.RecordBatch.from_arrays(empty, list(self.columns))), 0)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise ConfigError(
                f"pyarrow has no way from {', '.join(str(field.type) for field in fields)}: {error}"
            ) from error
        except ConfigError as error:
            renamed = [f"{name} is {role}" for role, name in self.columns.items() if role != name]
            raise ConfigError(f"{error} ({', '.join(renamed)})" if renamed else str(error)) from None

    def pieces(self, first: int, most: int | None) -> Iterator[Piece[pa.RecordBatch]]:
        for batch in self._sound(first):
            for start, end in _cuts(batch, most):
                yield Piece(end - start, batch.slice(start, end - start))

    def _sound(self, first: int) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the columns to send; raises DamagedFile.

        Arrow's IPC format has offsets, lengths and dictionary positions that whoever wrote the file chose, and nothing
        that works with them looks at them first: they are compared with the memory that is there before anything
        does. So are texts, which have to be UTF-8; a body need not be.
        """
        from rocketcore.client.arrow_columns import copied_columns

        behind = 0
        try:
            for begin, whole in self._batches(first):
                batch = _with_bytes(whole.select(list(self.columns.values())).rename_columns(list(self.columns)))
                batch.validate(full=True)
                if (left := batch.slice(max(0, first - begin))).num_rows:
                    yield copied_columns(left)
                behind = begin + batch.num_rows
            if self.rows is None and behind < first:
                raise DamagedFile(f"it has {behind} messages, of which {first} are said to be sent")
        except unreadable() as error:
            raise DamagedFile(
                f"the record batch that begins with row {behind} cannot be read: {error_text(error)}"
            ) from error


def _cuts(batch: pa.RecordBatch, most: int | None) -> Iterator[tuple[int, int]]:
    """Yield where pieces of a record batch begin and end, each with about ``PIECE_BYTES`` of decoded columns."""
    import numpy

    behind = numpy.cumsum(_decoded_bytes(batch))
    start = 0
    while start < batch.num_rows:
        before = behind[start - 1] if start else 0
        end = max(start + 1, int(numpy.searchsorted(behind, before + PIECE_BYTES, "right")))
        end = min(end, start + (most or end))
        yield start, end
        start = end


def _decoded_bytes(batch: pa.RecordBatch) -> numpy.typing.NDArray[numpy.int64]:
    """Return what each row takes where every value is written out.

    A dictionary has a value once that a million rows name, and views share the bytes that they show: a file of a
    kilobyte may have gigabytes of messages.
    """
    import numpy
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = numpy.ones(batch.num_rows, numpy.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and pa.types.is_primitive(column.type.value_type):
            sizes += column.type.value_type.bit_width // 8
        elif pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).cast(pa.int64()).to_numpy()
        elif pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
            # A view is 16 bytes, and begins with the length.
            views = numpy.frombuffer(column.buffers()[1], numpy.int32).reshape(-1, 4)
            lengths = views[column.offset : column.offset + len(column), 0]
            sizes += numpy.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
        else:
            sizes += column.nbytes // batch.num_rows
    return sizes


def _with_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages whose bodies are bytes, where they were text."""
    import pyarrow as pa

    index = batch.schema.get_field_index("body")
    body = batch.column(index)
    if pa.types.is_string(body.type):
        return batch.set_column(index, "body", body.view(pa.binary()))
    if pa.types.is_large_string(body.type):
        return batch.set_column(index, "body", body.view(pa.large_binary()))
    return batch


class _Batches(Protocol):
    def __call__(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]: ...


def _roles(schema: pa.Schema, given: Mapping[str, str], tag: str | None) -> tuple[dict[str, str], list[str]]:
    """Return role → column, and the columns that are left out; raises ConfigError."""
    from rocketcore.client.arrow_roles import WRITTEN_COLUMNS, is_system_column, spelled

    roles: dict[str, str] = {}
    left_out = []
    if given:
        for role, name in given.items():
            if name not in schema.names:
                raise ConfigError(f"no column {name!r}; the columns are {', '.join(schema.names)}")
            own = spelled(role, WRITTEN_COLUMNS)
            if own is None or is_system_column(own, topic_named=True):
                known = [known for known in WRITTEN_COLUMNS if not is_system_column(known, topic_named=True)]
                raise ConfigError(f"messages have no column {role!r}; there are {', '.join(known)}")
            roles[own] = name
        left_out = [name for name in schema.names if name not in given.values()]
    else:
        for name in schema.names:
            known_as = spelled(name, WRITTEN_COLUMNS)
            if is_system_column(name, topic_named=True):
                left_out.append(name)
            elif known_as is None or known_as in roles:
                what = "cannot be sent with a message" if known_as is None else "is there twice"
                raise ConfigError(f"column {name!r} {what}: --column ROLE=NAME names those to take, as body={name}")
            else:
                roles[known_as] = name
    if "body" not in roles:
        raise ConfigError(f"no column body among {', '.join(schema.names)}: name it with --column body=NAME")
    if tag is not None and "tags" in roles:
        left_out.append(roles.pop("tags"))
    return roles, left_out


def open_columns(file: BinaryIO, form: str, given: Mapping[str, str], tag: str | None, *, pipe: bool) -> ColumnSource:
    """Open a parquet, Arrow or CSV file; raises ConfigError for one that does not fit, DamagedFile."""
    try:
        if form == "csv":
            return _open_csv(file, given, tag)
        if form == "parquet":
            return _open_parquet(file, given, tag)
        return _open_stream(file, given, tag) if pipe else _open_arrow(file, given, tag)
    except ConfigError:  # which is a ValueError as well
        raise
    except unreadable() as error:
        raise DamagedFile(f"not a valid {form} file: {error_text(error)}") from error


def _open_csv(file: BinaryIO, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow as pa

    names, rows = csv_rows(decoded(file.read()))
    columns: list[list[str]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    table = pa.RecordBatch.from_arrays([pa.array(column, pa.large_string()) for column in columns], names)
    batches = partial(_csv_batches, table, given.get("body", "body"))
    return ColumnSource(table.schema, len(rows), batches, given, tag)


def _csv_batches(table: pa.RecordBatch, body: str, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows at once, with nulls for cells without a text: a message has no empty tag or key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        column if name == body else pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    yield 0, pa.RecordBatch.from_arrays(columns, table.schema.names)


def _open_parquet(file: BinaryIO, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow.parquet as pq

    # Pages are read as they are needed: a row group may be larger than memory.
    source = pq.ParquetFile(file, buffer_size=PIECE_BYTES, pre_buffer=False)
    counts = [source.metadata.row_group(index).num_rows for index in range(source.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != source.metadata.num_rows:
        raise ValueError(f"its footer has {source.metadata.num_rows} rows, in row groups of {counts[:10]}")

    def batches(first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        begin = 0
        for index in range(source.num_row_groups):
            group = source.metadata.row_group(index)
            if group.num_rows and begin + group.num_rows > first:
                columns = list(columned.columns.values())
                size = group.num_rows * 4 * PIECE_BYTES // max(1, group.total_byte_size)
                size = max(1, min(size, _DECODED_BYTES // _longest_row(source, file, index, columns)))
                found = source.iter_batches(size, row_groups=[index], columns=columns)
                yield from enumerate_rows(found, begin, begin + group.num_rows)
            begin += group.num_rows

    columned = ColumnSource(source.schema_arrow, source.metadata.num_rows, batches, given, tag)
    return columned


def _longest_row(source: pq.ParquetFile, file: BinaryIO, index: int, columns: Sequence[str]) -> int:
    """Return about how many bytes a row of a row group may have, by the longest values of the columns' dictionaries.

    pyarrow decodes as many rows at once as it is asked for; with the first of them it shows the dictionaries. What the
    footer says of a column is not asked for: where that is damaged, pyarrow ends the process.
    """
    import pyarrow.parquet as pq

    leaves = [source.schema.column(number) for number in range(len(source.schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    shown = pq.ParquetFile(
        file, metadata=source.metadata, read_dictionary=texts, buffer_size=PIECE_BYTES, pre_buffer=False
    )
    for batch in shown.iter_batches(_SHOWN_ROWS, [index], columns):
        return max(1, sum(map(_longest_value, batch.columns)))
    return 1


def _longest_value(column: pa.Array) -> int:
    """Return the bytes of the longest value, of a list those of its values if all were the longest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        several = pc.max(pc.pairwise_diff(column.offsets)).as_py() or 0
        parts = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        return int(several * sum(map(_longest_value, parts)))
    if pa.types.is_dictionary(kind):
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return int(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 0


def _open_stream(file: BinaryIO, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow as pa

    stream = pa.ipc.open_stream(file)
    return ColumnSource(stream.schema, None, lambda first: enumerate_rows(iter(stream)), given, tag)


def _open_arrow(file: BinaryIO, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow as pa
    from pyarrow import dataset

    # Not mapped: of a file that becomes shorter meanwhile a map kills the process that looks at it. Nor by its name,
    # which pyarrow takes for an address where it has a colon, and refuses where it is no UTF-8.
    stream = file.read(len(_ARROW_MAGIC)) != _ARROW_MAGIC
    file.seek(0)
    if stream:
        return _open_stream(file, given, tag)
    rows = dataset.IpcFileFormat().make_fragment(file).count_rows()  # of which nothing has to be unpacked
    source = pa.ipc.open_file(file)

    def batches(first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        return enumerate_rows(map(source.get_batch, range(source.num_record_batches)), end=rows)

    return ColumnSource(source.schema, rows, batches, given, tag)


def enumerate_rows(
    batches: Iterator[pa.RecordBatch], begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield record batches with the number of their first row.

    end     number of the row behind the last, where that is known
    raises  DamagedFile where it is another
    """
    for batch in batches:
        behind = begin + batch.num_rows
        if end is not None and behind > end:
            break
        yield begin, batch
        begin = behind
    else:
        behind = begin
    if end is not None and behind != end:
        raise DamagedFile(f"its footer has row {end} where row {behind} is")
