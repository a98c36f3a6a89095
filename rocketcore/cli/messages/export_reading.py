"""What an export reads: the ranges of its queues, how far it is in them, and the messages that are missing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketcore.cli.messages.consume import POLL_SECONDS
from rocketcore.cli.messages.export_files import ArrowFile, ExportFile, JsonlFile, ParquetFile, with_facts
from rocketcore.cli.messages.forms import message_object
from rocketcore.cli.messages.watch import Missing
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import Settings
from rocketcore.cli.shell.render import json_text, timestamp
from rocketcore.client.config import RECORD_BATCH_BYTES
from rocketcore.codes import TOOLS_GROUP
from rocketcore.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketcore.client.loop_client import LoopClient

__all__ = ["ExportState", "Stretch", "file_schema", "fill"]

_INT64_MAX: Final = (1 << 63) - 1


class Stretch(msgspec.Struct, forbid_unknown_fields=True):
    """The messages of a queue from ``start`` up to ``end``; those below ``next`` are in the file."""

    broker: str
    queue_id: int
    start: int
    end: int
    next: int

    def __post_init__(self) -> None:
        if self.queue_id < 0 or not 0 <= self.start <= self.next <= self.end <= _INT64_MAX:
            raise ValueError(
                f"{self.broker}/{self.queue_id} has no messages {self.start} to {self.end}, {self.next} next"
            )

    def queue(self, topic: str) -> MessageQueue:
        return MessageQueue(topic, self.broker, self.queue_id)


class ExportState(msgspec.Struct, forbid_unknown_fields=True):
    """How far an export is.

    asked       what the command line said
    namesrv     name servers of the cluster
    began       epoch milliseconds
    size, rows  bytes and messages of the file that are there for good; parts: row groups of parquet
    complete    whether the file lacks nothing but its name
    """

    asked: dict[str, Any]
    namesrv: list[str]
    began: int
    stretches: list[Stretch]
    size: int = 0
    rows: int = 0
    parts: list[tuple[int, int]] = []
    complete: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be; what is noted is no more than text that somebody may have changed."""
        read = sum(stretch.next - stretch.start for stretch in self.stretches)
        if not 0 <= self.rows <= read or not 0 <= self.size <= _INT64_MAX or (self.rows and not self.size):
            raise ValueError(f"{self.rows} messages in {self.size} bytes, of {read} that were read")
        if self.complete and read < self.total:
            raise ValueError(f"it is complete with {read} of {self.total} messages")
        edges = [0, *(edge for part in self.parts for edge in part)]
        if edges[1::2] != edges[:-1:2] or any(begin >= end for begin, end in self.parts) or edges[-1] > self.size:
            raise ValueError(f"parts of {self.size} bytes do not lie one behind the other")

    @property
    def total(self) -> int:
        return sum(stretch.end - stretch.start for stretch in self.stretches)


def _columns(state: ExportState) -> tuple[str, ...]:
    from rocketcore.client.arrow_batches import COLUMNS, DEFAULT_COLUMNS

    asked = state.asked
    return tuple(
        name
        for name in COLUMNS
        if name in DEFAULT_COLUMNS or (asked["properties"] if name == "properties" else asked["hosts"])
    )


def file_schema(state: ExportState) -> pa.Schema:
    """Return the schema of the file, which says what is in it."""
    from rocketcore import __version__
    from rocketcore.client.arrow_batches import schema_of

    ranges = {f"{each.broker}:{each.queue_id}": [each.start, each.end] for each in state.stretches}
    facts = {
        "topic": state.asked["topic"],
        "ranges": json.dumps(ranges),
        "tag": state.asked["tag"] or "*",
        "exported_at": timestamp(state.began) or "",
        "rocketcore": __version__,
    }
    return with_facts(schema_of(_columns(state)), facts)


def fill(
    file: ExportFile, state: ExportState, client: LoopClient, settings: Settings, part_bytes: int
) -> Iterator[int]:
    """Add the messages that are missing to the file; yields how many came, when ``state`` says up to where.

    Of lines it may be none that came.
    """
    if isinstance(file, JsonlFile):
        return _fill_lines(file, state, settings, part_bytes)
    assert isinstance(file, (ArrowFile, ParquetFile))
    return _fill_columns(file, state, client, min(RECORD_BATCH_BYTES, part_bytes))


def _fill_columns(
    file: ArrowFile | ParquetFile, state: ExportState, client: LoopClient, batch_bytes: int
) -> Iterator[int]:
    from rocketcore.cli.messages.cluster_client import patience
    from rocketcore.client.arrow_ranges import QueueRange
    from rocketcore.client.arrow_reader import RangeReader, ReadSettings

    timeout = client.config.timeout
    read = ReadSettings(
        columns=_columns(state),
        group=TOOLS_GROUP,
        tags=state.asked["tag"] or "*",
        fail_on_data_loss=False,  # what is gone or damaged is counted, and the rest is wanted
        if_damaged=None,
        batch_bytes=batch_bytes,
        timeout=timeout,
        fetch_timeout=patience(),
    )
    schema = file_schema(state)

    def add(batch: pa.RecordBatch) -> int:
        if batch.num_rows:
            file.add(batch.replace_schema_metadata(schema.metadata))
            stretch.next = batch.column("queueOffset")[-1].as_py() + 1
        return int(batch.num_rows)

    for stretch in state.stretches:
        if stretch.next >= stretch.end:
            continue
        left = QueueRange(stretch.queue(state.asked["topic"]), stretch.next, stretch.end)
        # Decoded and written on this thread: the loop's pulls meanwhile.
        with contextlib.closing(RangeReader(client.instance, [left], read).record_batches(client.run)) as batches:
            yield from map(add, batches)
        stretch.next = stretch.end


def _fill_lines(file: JsonlFile, state: ExportState, settings: Settings, part_bytes: int) -> Iterator[int]:
    from rocketcore import PullConsumer
    from rocketcore.cli.messages.cluster_client import patience

    topic = state.asked["topic"]
    left = {each.queue(topic): each for each in state.stretches if each.next < each.end}
    if not left:
        return
    missing = Missing({queue: (each.next, each.end) for queue, each in left.items()})
    with PullConsumer(
        settings.namesrv, group=TOOLS_GROUP, start_from="first", tls=settings.tls, **settings.credentials
    ) as consumer:
        consumer.gaps.tell(missing.note)
        consumer.assign(list(left), tag=state.asked["tag"])
        for queue, stretch in left.items():
            consumer.seek(queue, stretch.next)
        longest, moved_at = patience(), time.monotonic()
        while left:
            count = 0
            for message in consumer.poll(POLL_SECONDS):
                stretch = left.get(message.queue)  # type: ignore[assignment]
                if stretch is None or message.offset >= stretch.end:
                    continue
                if message.offset < stretch.next:
                    where = f"{topic} {stretch.broker}/{stretch.queue_id}"
                    raise CommandFailed(
                        "OUT_OF_ORDER", f"{where}: offset {message.offset} came where {stretch.next} was next",
                        "the topic was deleted and created again meanwhile, or its broker answers wrongly: check the "
                        "broker's log",
                        exit_code=EXIT_PARTLY,
                    )  # fmt: skip
                file.add(json_text(message_object(message)).encode() + b"\n")
                stretch.next, moved_at = message.offset + 1, time.monotonic()
                count += 1
                if file.pending >= part_bytes:  # a poll may bring messages of 100 MiB
                    yield count
                    count = 0
            for queue, stretch in list(left.items()):
                position = min(stretch.end, consumer.position(queue))
                if position > stretch.next:
                    stretch.next, moved_at = position, time.monotonic()
                if position == stretch.end:
                    del left[queue]
            yield count  # also 0: what is pending does not wait for more
            if left and time.monotonic() - moved_at > longest:
                where = ", ".join(f"{queue}@{stretch.next}" for queue, stretch in left.items())
                raise CommandFailed("UNREADABLE", f"received nothing for {longest:g} s from {where}",
                                    "check the log of its broker", exit_code=EXIT_PARTLY)  # fmt: skip
