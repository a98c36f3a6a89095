"""Files that ``rocket message import`` reads: pieces of messages in their order, from any message on.

parquet, arrow  any columns that fit; those that only a read has are left out, as Spark's ``ignoreSystemColumns`` does
jsonl           an object a line, of ``produce --jsonl`` or as ``consume -o json`` prints them
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, NamedTuple, Protocol, TypeVar

from rocketcore.cli.envelopes import read_envelope
from rocketcore.cli.export_files import one_line, unreadable
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message import SHARDING_KEY, Message

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Checksum",
    "ColumnSource",
    "DamagedFile",
    "LineSource",
    "Piece",
    "Source",
    "enumerate_rows",
    "form_of_content",
    "open_columns",
]

PIECE_BYTES: Final = 1 << 20
"""About what one piece holds."""

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
    """A jsonl file, or a pipe with such lines; the payload is messages, each with its id where it has one.

    read  what earlier runs read of the file, which stands behind it
    """

    rows: int | None = None

    def __init__(self, file: BinaryIO, topic: str, tag: str | None, read: Checksum) -> None:
        self._file = file
        self._topic = topic
        self._tag = tag
        self._read = read

    def pieces(self, first: int, most: int | None) -> Iterator[Piece[list[tuple[Message, str | None]]]]:
        messages: list[tuple[Message, str | None]] = []
        size = 0
        for line in self._file:
            text = line.strip()
            if text:
                try:
                    messages.append(self._message(text, first + len(messages)))
                except MessageIllegal:
                    if messages:
                        yield Piece(len(messages), messages, self._read)
                    raise
                size += len(text)
            self._read = self._read.after(line)
            if size >= PIECE_BYTES or len(messages) == most:
                yield Piece(len(messages), messages, self._read)
                first, messages, size = first + len(messages), [], 0
        if messages:
            yield Piece(len(messages), messages, self._read)

    def _message(self, text: bytes, row: int) -> tuple[Message, str | None]:
        try:
            fields = read_envelope(text, more=_MORE_FIELDS)
            for name in _READ_FIELDS:
                fields.pop(name, None)
            msg_id = fields.pop("msg_id", None)
            if msg_id is not None and (not isinstance(msg_id, str) or not msg_id):
                raise ValueError("msg_id is not a text")
            return Message(self._topic, **_copied(fields, self._tag)), msg_id
        except (ValueError, TypeError, MessageIllegal) as error:
            raise MessageIllegal(f"row {row}: {error}") from None


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

        from rocketcore.client.arrow_columns import message_columns

        fields = [schema.field(name) for name in self.columns.values()]
        empty = [pa.array([], field.type) for field in fields]
        try:
            message_columns(pa.RecordBatch.from_arrays(empty, list(self.columns)), 0)
        except ConfigError as error:
            renamed = [f"{name} is {role}" for role, name in self.columns.items() if role != name]
            raise ConfigError(f"{error} ({', '.join(renamed)})" if renamed else str(error)) from None

    def pieces(self, first: int, most: int | None) -> Iterator[Piece[pa.RecordBatch]]:
        from rocketcore.client.arrow_columns import copied_columns

        for begin, whole in self._sound(first):
            batch = whole.slice(max(0, first - begin))
            if not batch.num_rows:
                continue
            batch = copied_columns(batch)
            rows = max(1, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes))
            rows = min(rows, most or rows)
            for start in range(0, batch.num_rows, rows):
                piece = batch.slice(start, rows)
                yield Piece(piece.num_rows, piece)

    def _sound(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the columns of the record batches; raises DamagedFile.

        Arrow's IPC format has offsets, lengths and dictionary positions that whoever wrote the file chose, and nothing
        that works with them looks at them first: they are compared with the memory that is there before anything
        does. So are texts, which have to be UTF-8; a body need not be.
        """
        behind = 0
        try:
            for begin, whole in self._batches(first):
                batch = _with_bytes(whole.select(list(self.columns.values())).rename_columns(list(self.columns)))
                batch.validate(full=True)
                yield begin, batch
                behind = begin + batch.num_rows
            if self.rows is None and behind < first:
                raise DamagedFile(f"it has {behind} messages, of which {first} are said to be sent")
        except unreadable() as error:
            raise DamagedFile(
                f"the record batch that begins with row {behind} cannot be read: {one_line(error)}"
            ) from error


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
                raise ConfigError(f"there is no column {name!r}; there are {', '.join(schema.names)}")
            own = spelled(role, WRITTEN_COLUMNS)
            if own is None or is_system_column(own, topic_named=True):
                known = [known for known in WRITTEN_COLUMNS if not is_system_column(known, topic_named=True)]
                raise ConfigError(f"a message has no column {role!r}; there are {', '.join(known)}")
            roles[own] = name
        left_out = [name for name in schema.names if name not in given.values()]
    else:
        for name in schema.names:
            known_as = spelled(name, WRITTEN_COLUMNS)
            if is_system_column(name, topic_named=True):
                left_out.append(name)
            elif known_as is None or known_as in roles:
                what = "means nothing to a message" if known_as is None else "is there twice"
                raise ConfigError(f"column {name!r} {what}: --column ROLE=NAME names those to take, as body={name}")
            else:
                roles[known_as] = name
    if "body" not in roles:
        raise ConfigError(f"there is no column body among {', '.join(schema.names)}: --column body=NAME names it")
    if tag is not None and "tags" in roles:
        left_out.append(roles.pop("tags"))
    return roles, left_out


def open_columns(file: BinaryIO, form: str, given: Mapping[str, str], tag: str | None, *, pipe: bool) -> ColumnSource:
    """Open a parquet or Arrow file; raises ConfigError for one that does not fit, DamagedFile."""
    try:
        if form == "parquet":
            return _open_parquet(file, given, tag)
        return _open_stream(file, given, tag) if pipe else _open_arrow(file, given, tag)
    except ConfigError:  # which is a ValueError as well
        raise
    except unreadable() as error:
        raise DamagedFile(f"it is no {form} file: {one_line(error)}") from error


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
            if begin + group.num_rows > first:
                size = max(1, group.num_rows * 4 * PIECE_BYTES // max(1, group.total_byte_size))
                columns = list(columned.columns.values())
                found = source.iter_batches(size, row_groups=[index], columns=columns)
                yield from enumerate_rows(found, begin, begin + group.num_rows)
            begin += group.num_rows

    columned = ColumnSource(source.schema_arrow, source.metadata.num_rows, batches, given, tag)
    return columned


def _open_stream(file: BinaryIO | pa.OSFile, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow as pa

    stream = pa.ipc.open_stream(file)
    return ColumnSource(stream.schema, None, lambda first: enumerate_rows(iter(stream)), given, tag)


def _open_arrow(file: BinaryIO, given: Mapping[str, str], tag: str | None) -> ColumnSource:
    import pyarrow as pa
    from pyarrow import dataset

    # Not mapped: of a file that becomes shorter meanwhile a map kills the process that looks at it.
    opened = pa.OSFile(file.name)
    if opened.read(len(_ARROW_MAGIC)) != _ARROW_MAGIC:
        opened.seek(0)
        return _open_stream(opened, given, tag)
    source = pa.ipc.open_file(opened)
    rows = dataset.dataset(file.name, format="ipc").count_rows()  # of which nothing has to be unpacked

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
