"""Which messages that waited were delivered, as the log tells: for a start whose notes are older than the log.

A delivery has a prepared transaction offset, by which the service that delivers says which message it is: the physical
offset of the message that waited, and 1. By level: it has a delay level (its text still has it). The message that waits
has a level too, and no such offset. By time: it has no level. So has a committed message of a transaction, whose offset
is that of its half message: no message begins a byte before another one, so it never looks like a delivery.
"""

from __future__ import annotations

import logging

from rocketcore._fast.commit_log import COLUMNS, DELAY_LEVEL, FILLER, FULL, PREPARED_OFFSET, walk
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.table import Table

__all__ = ["find_deliveries"]

_ROWS = 1024

logger = logging.getLogger(__name__)


def find_deliveries(log: CommitLog, start: int, end: int, *, by_level: bool) -> set[int]:
    """Return the prepared transaction offsets, but 0, of the log's messages with a delay level, or of those without.

    start, end  bounds in the log; a record begins at ``start``
    """
    found: set[int] = set()
    table = Table(_ROWS, COLUMNS)
    while start < end and (segment := log.find_segment(start)) is not None:
        view = segment.view()
        stop = min(segment.size, end - segment.start)
        at, status = start - segment.start, FULL
        while status == FULL and at < stop:
            count, at, status = walk(view, at, stop, segment.start, table.view, False)[:3]
            levels, prepared = table.column(DELAY_LEVEL, count), table.column(PREPARED_OFFSET, count)
            found.update(offset for level, offset in zip(levels, prepared, strict=True) if (level > 0) is by_level)
        start = segment.end
        if status != FILLER and at < stop:
            # Damage that the next full scan will bridge; a delivery that lies in it is not known.
            following = log.find_behind(segment, at, sealed=log.is_sealed(segment))
            start = end if following is None else following
            logger.error(
                "a message that waited may come twice: log not read path=%s from=%d to=%d",
                segment.path, at, min(start, end) - segment.start,
            )  # fmt: skip
    found.discard(0)
    return found
