"""Messages of a pull that an SQL92 expression selects (Java: ``DefaultMessageStore.getMessage``, a ``MessageFilter``).

A kernel goes over what is in memory and sound. A message of which it cannot say so by itself is read like any other,
and named, waited for or passed over as it is; then the kernel goes on behind it. What is selected, and where a limit
ends the pull, one object decides for both (``_fast/selection.pyx``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rocketcore._fast.consume_queue import unit
from rocketcore._fast.selection import Selection
from rocketcore.broker.store.log.pages import Cold, Pages
from rocketcore.errors import StoreCorrupted

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rocketcore._fast.sql_filter import SqlFilter
    from rocketcore.broker.store.log.commit_log import CommitLog
    from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
    from rocketcore.broker.store.reading.records import Records

__all__ = ["select"]

_Window: TypeAlias = "tuple[Buffer, int, int, int, bool]"
"""File of the log, its physical offset, the physical offsets between which it may be read now, whether it is sealed."""

_NOTHING: _Window = (b"", 0, 0, 0, False)


def select(
    wanted: SqlFilter,
    units: bytes | bytearray,
    queue: ConsumeQueue,
    queue_offset: int,
    max_count: int,
    max_bytes: int,
    log: CommitLog,
    pages: Pages,
    records: Records,
) -> tuple[bytes, int, int]:
    """Select among units of a queue: (records back to back, messages, units examined). Loop thread only.

    raises  StoreCorrupted, OSError, Cold for the first unit; where one behind it cannot be read, fewer are examined
    """
    selection = Selection(wanted, units, queue.queue_id, queue_offset, max_count, max_bytes)
    while not selection.run(*_window(log, pages, selection.next()[0])):
        physical_offset, size = selection.next()
        record = None
        if not queue.is_gone(physical_offset, size, log.min_offset):
            try:
                record = records.checked(queue, queue_offset + selection.examined, physical_offset, size)
            except (OSError, StoreCorrupted, Cold):
                if not selection.examined:
                    raise
                break
        if record is None:
            selection.pass_over()
        else:
            selection.decide(record, *records.properties_range)
    if selection.examined:
        begin, _, _ = unit(units, 0)
        last, size, _ = unit(units, selection.examined - 1)
        log.resident.was_read(begin, last + size)
    return selection.body(), selection.count, selection.examined


def _window(log: CommitLog, pages: Pages, physical_offset: int) -> _Window:
    """Return what may be read without a question around a record."""
    segment = log.find_segment(physical_offset)
    if segment is None or not log.knows_seal(segment):
        return _NOTHING
    begin, end = pages.in_memory(segment, physical_offset - segment.start)
    if begin == end:
        return _NOTHING
    try:
        view = segment.view()
    except OSError:
        return _NOTHING  # the read of the record says what is wrong
    return view, segment.start, segment.start + begin, segment.start + end, log.is_sealed(segment)
