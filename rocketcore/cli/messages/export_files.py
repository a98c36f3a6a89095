"""Files that ``rocket message export`` writes: they grow at their end, and what was flushed stays as it is.

jsonl    a message a line, the object that ``consume -o json`` prints
arrow    Arrow's IPC file; on stdout its stream
parquet  row groups, see ``parquet_parts``

A file has its name when it is complete. Until then it is ``NAME.partial``; what is in it beyond the last note of
``NAME.progress`` is cut off when the export goes on.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rocketcore.cli.shell.failures import CommandFailed
from rocketcore.client.config import RECORD_BATCH_BYTES
from rocketcore.files.faults import unreadable
from rocketcore.printable import error_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FORMATS",
    "ArrowFile",
    "ExportFile",
    "Growing",
    "JsonlFile",
    "ParquetFile",
    "count_messages",
    "format_of",
    "require_pyarrow",
]

FORMATS: Final = ("parquet", "arrow", "jsonl")
_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_ARROW_MAGIC_BYTES: Final = 8
_READ_BYTES: Final = 1 << 20


def format_of(name: str, given: str | None) -> str:
    """Return the format of a file by what was asked for, or by its name; ``-`` is jsonl. Raises ValueError."""
    if given is not None:
        return given
    if name == "-":
        return "jsonl"
    suffix = Path(name).suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"{name!r} has no known suffix (.parquet, .arrow, .jsonl): give --format")
    return _SUFFIXES[suffix]


def require_pyarrow(form: str) -> None:
    """Raise CommandFailed where pyarrow is not installed."""
    try:
        import numpy  # noqa: F401 - columns of messages are made with it
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise CommandFailed(
            "NOT_INSTALLED", f"{form} needs {error.name}", "pip install 'rocketcore[arrow]'; jsonl needs no package"
        ) from error


class Growing(io.RawIOBase):
    """A file that grows: bytes go to its end, whose position is counted and not asked for, as a pipe has none.

    write_some  writes at the end of the file, and returns how many bytes it did
    kept        bytes from the beginning of the file that are there already: as many are taken, not written once more
    """

    def __init__(self, write_some: Callable[[memoryview], int], position: int = 0, kept: int = 0) -> None:
        super().__init__()
        self._write_some = write_some
        self._kept = kept
        self.position = position

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        size = len(view)
        view = view[max(0, min(size, self._kept - self.position)) :]
        while view:
            view = view[self._write_some(view) :]
        self.position += size
        return size

    def end(self) -> None:
        """Take nothing more: pyarrow's writers try to write their end whenever they are let go, perhaps much later."""
        self._write_some = _refuse_write


def _refuse_write(data: memoryview) -> int:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class ExportFile(Protocol):
    """Messages on their way into a file; ``pending`` are the bytes that were added since the last flush."""

    pending: int

    def flush(self) -> None:
        """Write what is pending."""

    def finish(self) -> None:
        """Write what is pending, and the end of the file."""


def count_messages(path: Path, form: str) -> int:
    """Return how many messages a file has that is complete; raises ValueError for one that is none, OSError."""
    if form == "jsonl":
        with path.open("rb", buffering=0) as file:
            lines, last = 0, b"\n"
            while data := file.read(_READ_BYTES):
                lines, last = lines + data.count(b"\n"), data[-1:]
        if last != b"\n":
            raise ValueError("its last line is cut off")
        return lines
    import pyarrow.parquet as pq
    from pyarrow import dataset

    try:
        # pyarrow is given no name: one with a colon is an address to it.
        with path.open("rb") as file:
            if form == "parquet":
                return int(pq.read_metadata(file).num_rows)
            return int(dataset.IpcFileFormat().make_fragment(file).count_rows())
    except unreadable() as error:
        raise ValueError(f"it cannot be read: {error_text(error)}") from error


class JsonlFile:
    """Lines; a flush writes them all at once.

    written  path of the file as far as it is there, with so many rows
    """

    def __init__(self, file: Growing, *, written: Path | None = None, rows: int = 0) -> None:
        self.pending = 0
        self._file = file
        self._lines: list[bytes] = []
        if written is not None and (found := count_messages(written, "jsonl")) != rows:
            raise ValueError(f"it has {found} messages")

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self.pending += len(line)

    def flush(self) -> None:
        self._file.write(b"".join(self._lines))
        self._lines, self.pending = [], 0

    def finish(self) -> None:
        self.flush()


class ArrowFile:
    """Record batches in Arrow's IPC format.

    A writer cannot go on in a file that another began. It is given the batches once more that are there, while
    ``file`` takes their bytes without writing them: they are the same.

    stream   the format without a footer, for a pipe
    written  path of the file as far as it is there
    """

    def __init__(
        self, file: Growing, schema: pa.Schema, *, stream: bool = False, written: Path | None = None, rows: int = 0
    ) -> None:
        import pyarrow as pa

        self.pending = 0
        self._pa = pa
        self._schema = schema
        self._small: list[pa.RecordBatch] = []
        self._small_bytes = 0
        self._writer = pa.ipc.new_stream(file, schema) if stream else pa.ipc.new_file(file, schema)
        if written is not None:
            end, found = written.stat().st_size, 0
            with written.open("rb") as source:
                source.seek(_ARROW_MAGIC_BYTES)
                try:
                    for batch in pa.ipc.open_stream(source):
                        batch.validate(full=True)  # who writes it trusts its offsets
                        self._writer.write_batch(batch)
                        found += batch.num_rows
                except unreadable() as error:
                    raise ValueError(f"it cannot be read: {error_text(error)}") from error
            if file.position != end or found != rows:
                raise ValueError(f"it has {found} messages in {file.position} bytes")

    def add(self, batch: pa.RecordBatch) -> None:
        self._small.append(batch)
        self._small_bytes += batch.nbytes
        self.pending += batch.nbytes
        if self._small_bytes >= RECORD_BATCH_BYTES:
            self._write()

    def flush(self) -> None:
        self._write()
        self.pending = 0

    def finish(self) -> None:
        self.flush()
        self._writer.close()

    def _write(self) -> None:
        table = self._pa.Table.from_batches(self._small, self._schema).combine_chunks()
        for batch in table.to_batches():
            self._writer.write_batch(batch)
        self._small, self._small_bytes = [], 0


class ParquetFile:
    """Row groups; a flush makes one of what is pending.

    written  path of the file as far as it is there; parts: where its parts begin and end
    """

    def __init__(
        self,
        file: Growing,
        schema: pa.Schema,
        *,
        written: Path | None = None,
        parts: Sequence[tuple[int, int]] = (),
        rows: int = 0,
    ) -> None:
        from rocketcore.cli.messages.parquet_parts import PartsWriter, read_part

        self.pending = 0
        self.parts = list(parts)
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        if written is None:
            self._writer = PartsWriter(file, schema)
            return
        try:
            with written.open("rb", buffering=0) as reader:
                known = [read_part(reader, begin, end) for begin, end in parts]
            found = sum(part.num_rows for part in known)  # before the first of them is that of all
            self._writer = PartsWriter(file, schema, known)
        except unreadable() as error:
            raise ValueError(f"it cannot be read: {error_text(error)}") from error
        end = parts[-1][1] if parts else 0
        if found != rows or end != file.position:
            raise ValueError(f"it has {found} messages in {end} bytes")

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.pending += batch.nbytes

    def flush(self) -> None:
        if self._batches:
            begin = self._file.position
            self._writer.write(self._batches)
            self.parts.append((begin, self._file.position))
        self._batches, self.pending = [], 0

    def finish(self) -> None:
        self.flush()
        self._writer.finish()


def with_facts(schema: pa.Schema, facts: Mapping[str, str]) -> pa.Schema:
    """Return a schema whose file says where its rows come from, as ``rocketmq.NAME`` of its key-value metadata."""
    return schema.with_metadata({f"rocketmq.{name}": value for name, value in facts.items()})
