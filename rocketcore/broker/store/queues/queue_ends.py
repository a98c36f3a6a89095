"""Where consume queues end, as their own files tell: what nothing else remembers once a note is lost.

The log tells where a queue ends by the last message of it. Of a queue whose messages all went with the begin of the log
it says nothing, and one that began at 0 again would have consumers, who are further, skip what comes. So before queues
are removed, to be built again from the log, the end of each is read from its last file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from rocketcore._fast.consume_queue import unit
from rocketcore.broker.store.config import UNIT_SIZE
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.segment_file import is_log_name, written_ranges
from rocketcore.broker.store.notes.queue_bounds import QueueBounds, pack_rows, unpack_rows
from rocketcore.broker.store.queues.consume_queue import MAX_QUEUE_ID, is_blank
from rocketcore.disk import is_passing

__all__ = ["remember_ends"]

LAST_UNITS = 64
"""Units at the end of a queue that are looked at: the newest of them that leads to before the log tells."""

logger = logging.getLogger(__name__)


def remember_ends(bounds: QueueBounds, root: Path, log_begin: int, files: FileSystem) -> None:
    """Have bounds say where queues end whose files lead to before ``log_begin``, where they end later than noted.

    root    the folder ``consumequeue``
    raises  OSError where a file may be read the next time
    """
    for topic in _names(root, files):
        found = _ends(root / topic, log_begin, bounds.deleted_before.get(topic, 0), files)
        known = unpack_rows(bounds.rows.get(topic, b""))
        later = {each: end for each, end in found.items() if end > known.get(each, (0, 0))[1]}
        if later:
            bounds.rows[topic] = pack_rows(known | {each: (end, end) for each, end in later.items()})


def _ends(folder: Path, log_begin: int, deleted_before: int, files: FileSystem) -> Mapping[int, int]:
    """Return queue id → end, of the queues in the folder of a topic."""
    ends = {}
    for name in _names(folder, files):
        if name.isascii() and name.isdigit() and int(name) <= MAX_QUEUE_ID:
            try:
                end = _end(folder / name, log_begin, deleted_before, files)
            except OSError as error:
                _name_unless_passing(error, folder / name)
                continue
            if end:
                ends[int(name)] = end
    return ends


def _end(folder: Path, log_begin: int, deleted_before: int, files: FileSystem) -> int:
    """Return the end of a queue, 0 where its last units do not lead to before the log; raises OSError."""
    for name in sorted(filter(is_log_name, files.names(folder)), reverse=True):
        with files.opened(folder / name, os.O_RDONLY) as fd:
            units = _last_units(fd, files)
        if units is not None:
            position, data = units
            for index in reversed(range(len(data) // UNIT_SIZE)):
                place, size, _ = unit(data, index)
                # A blank stands for a message, but not for one of which topic of the name.
                is_gone = not deleted_before if is_blank(place, size) else deleted_before <= place < log_begin
                if is_gone and size > 0:
                    return (int(name) + position) // UNIT_SIZE + index + 1
            return 0
    return 0


def _last_units(fd: int, files: FileSystem) -> tuple[int, bytes] | None:
    """Return the last units of a file that are not zeros, and where they begin; None where there are none."""
    step = LAST_UNITS * UNIT_SIZE
    for begin, end in reversed(written_ranges(fd, 0, os.fstat(fd).st_size)):
        while end > begin:
            start = max(end - step, begin) // UNIT_SIZE * UNIT_SIZE
            data = files.read(fd, end - start, start).rstrip(b"\0")
            if data:
                return start, data + bytes(-len(data) % UNIT_SIZE)
            end = start
    return None


def _names(folder: Path, files: FileSystem) -> list[str]:
    try:
        return files.names(folder)
    except OSError as error:
        _name_unless_passing(error, folder)
        return []


def _name_unless_passing(error: OSError, path: Path) -> None:
    """Name what the disk does not give; raise what it may give the next time: then nothing is removed yet."""
    if is_passing(error):
        error.filename = error.filename or str(path)
        raise error
    logger.error("ends of queues not read path=%s reason=%s", path, error)
