"""Damage in the commit log: put aside, and bridged, so that ours and Apache's scans walk on to what lies behind it.

A scan of the log stops at the first bytes that are no record; Java then cuts everything off from there. So where sound
records lie behind damage, the damaged bytes are copied to ``damaged/<physical offset, 20 digits>`` and their place is
taken by tombstones: records of type PREPARED, which nobody queues, of a topic of their own. At the end of a file a
filler does the same. A crash at any moment leaves the damage as it was, a torn tombstone, or the bridge; the next start
does the rest again. What was put aside first is never overwritten.

Files are mended too: one that is missing between others, or that lost or gained bytes, is brought to its size again,
and what it lacks is damage.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rocketcore._fast.commit_log import COLUMNS, FILLER, FILLER_SIZE, FULL, encode_filler, walk
from rocketcore._fast.record import CHECKSUM_SIZE, encode_stored, stored_size
from rocketcore.broker.store.file_system import REPLACE, FileSystem
from rocketcore.broker.store.log.segment_file import Segment, segment_name
from rocketcore.errors import StoreCorrupted
from rocketcore.table import Table

__all__ = [
    "PAGE_BYTES",
    "TOMBSTONE_MIN_BYTES",
    "TOMBSTONE_TOPIC",
    "DamagedRange",
    "FileFaults",
    "bridge",
    "is_full",
    "mend_files",
    "put_aside",
]

TOMBSTONE_TOPIC = b"RMQ_SYS_DAMAGED"
TOMBSTONE_MAX_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 4096
PREPARED = 0x4
FIXED_BYTES = stored_size(0, 0, 0, 0)
TOMBSTONE_MIN_BYTES = FIXED_BYTES + 1
"""No record is shorter: a topic has a byte at least."""

logger = logging.getLogger(__name__)


class DamagedRange(NamedTuple):
    """``length`` bytes of the log from ``physical_offset`` on that hold no message any more."""

    path: Path
    physical_offset: int
    length: int


def put_aside(root: Path, segment: Segment, begin: int, end: int, files: FileSystem) -> None:
    """Copy the bytes ``begin`` to ``end`` of a segment, durably, below ``root``; not where there are only zeros."""
    path = _free_place(root / "damaged" / segment_name(segment.start + begin), segment, begin, end, files)
    if path is None:
        return
    chunks = [(at, min(at + CHUNK_BYTES, end)) for at in range(begin, end, CHUNK_BYTES)]
    written = [at for at, stop in chunks if _readable(segment, at, stop).strip(b"\0")]
    if not written:
        return
    files.make_folder(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    with files.opened(temporary, REPLACE) as fd:
        files.resize(fd, end - begin)
        for at in written:
            files.write(fd, _readable(segment, at, min(at + CHUNK_BYTES, end)), at - begin)
        files.sync(fd)
    files.rename(temporary, path)
    files.sync_folder(path.parent)
    files.sync_folder(root)


def _free_place(path: Path, segment: Segment, begin: int, end: int, files: FileSystem) -> Path | None:
    """Return where to put bytes aside, beside what lay there before them; None if they are there already."""
    for number in itertools.count(1):
        if not path.exists():
            return path
        if path.stat().st_size == end - begin and files.read_file(path) == _readable(segment, begin, end):
            return None
        path = path.with_name(f"{path.name.partition('.')[0]}.{number}")
    return None


def _readable(segment: Segment, begin: int, end: int) -> bytes:
    """Read bytes of a segment, with zeros for pages that cannot be read."""
    try:
        return segment.read(begin, end - begin)
    except OSError:
        if end - begin <= PAGE_BYTES:
            return bytes(end - begin)
    return b"".join(_readable(segment, at, min(at + PAGE_BYTES, end)) for at in range(begin, end, PAGE_BYTES))


def bridge(segment: Segment, begin: int, end: int, store_timestamp: int, *, checksum: bool) -> None:
    """Lay tombstones, or a filler at the end of the file, over the bytes ``begin`` to ``end`` of a segment, durably."""
    if end == segment.size:
        if end - begin >= FILLER_SIZE:
            segment.write(encode_filler(end - begin), begin)
    else:
        for at, size in _pieces(begin, end):
            segment.write(_tombstone(segment.start + at, size, store_timestamp, checksum=checksum), at)
    segment.sync()


def _pieces(begin: int, end: int) -> Iterator[tuple[int, int]]:
    while end - begin > TOMBSTONE_MAX_BYTES + TOMBSTONE_MIN_BYTES:
        yield begin, TOMBSTONE_MAX_BYTES
        begin += TOMBSTONE_MAX_BYTES
    yield begin, end - begin


def _tombstone(physical_offset: int, size: int, store_timestamp: int, *, checksum: bool) -> bytes:
    """Return a record of exactly ``size`` bytes; a short one does without checksum and with less of its topic."""
    topic = TOMBSTONE_TOPIC[: size - FIXED_BYTES]
    room = size - FIXED_BYTES - len(topic)
    checksum = checksum and room >= CHECKSUM_SIZE
    return encode_stored(
        topic=topic,
        queue_id=0,
        flag=0,
        queue_offset=0,
        physical_offset=physical_offset,
        sys_flag=PREPARED,
        born_timestamp=store_timestamp,
        born_host=bytes(8),
        store_timestamp=store_timestamp,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_offset=0,
        body=bytes(room - CHECKSUM_SIZE if checksum else room),
        properties=b"",
        checksum=checksum,
    )


# -------------------------------------------------------------------------------------------------------------- files


def mend_files(
    root: Path, found: dict[int, Path], size: int, files: FileSystem, before: Callable[[], None]
) -> int | None:
    """Bring the files of a log to ``size`` each and fill the gaps between them.

    found    start offset and path of each file
    before   called once before the first file is changed
    returns  the end of the last file that was missing or too short, 0 where none was; None if no file was changed
    raises   StoreCorrupted, and nothing is changed, for files that plainly do not belong together or were written with
             another size; OSError
    """
    faults = FileFaults.find(found, size, files)
    if not faults:
        return None
    before()
    for start, length in faults.wrong.items():
        path = found[start]
        logger.error("commit log file has the wrong size path=%s bytes=%d configured=%d", path, length, size)
        _resize(root, path, start, length, size, files)
    for start in faults.missing:
        path = found[min(found)].with_name(segment_name(start))
        logger.error("commit log file missing path=%s", path)
        Segment.create(path.parent, start, size, files)
    return faults.lost_end(size)


class FileFaults(NamedTuple):
    """What is not as it should be of the files of a log; false where all is.

    wrong    start offset → length of each file that has another one than the configured
    missing  start offsets of files that are not there between others
    """

    wrong: dict[int, int]
    missing: list[int]

    @classmethod
    def find(cls, found: dict[int, Path], size: int, files: FileSystem) -> FileFaults:
        """Look at the names and lengths of files; raises StoreCorrupted and OSError as ``mend_files`` does."""
        sizes = {start: path.stat().st_size for start, path in found.items()}
        wrong = {start: length for start, length in sizes.items() if length != size}
        missing = [start for start in range(min(found), max(found), size) if start not in found]
        if wrong or missing:
            _refuse_others(found, wrong, missing, size, files)
        return cls(wrong, missing)

    def lost_end(self, size: int) -> int:
        """Return the end of the last file that is missing or too short, 0 where none is."""
        lacking = [start for start, length in self.wrong.items() if length < size] + self.missing
        return max(lacking) + size if lacking else 0

    def __bool__(self) -> bool:
        return bool(self.wrong or self.missing)


def _refuse_others(
    found: dict[int, Path], wrong: dict[int, int], missing: list[int], size: int, files: FileSystem
) -> None:
    first = min(found)
    strange = [start for start in found if (start - first) % size]
    # Files of another configuration have all one length, and none is empty.
    of_other_size = len(wrong) == len(found) and len(set(wrong.values())) == 1 and wrong[first] > 0
    if len(found) == 1:
        # What lies behind the configured size of a longer one cannot be judged.
        length = wrong[first]
        is_whole = length % PAGE_BYTES == 0 and (length > size or is_full(found[first], first, length, files))
        of_other_size = of_other_size and is_whole
    if strange or of_other_size:
        start = min(wrong) if wrong else strange[0]
        raise StoreCorrupted(f"{found[start]} has {found[start].stat().st_size} bytes and not the configured {size}")
    if len(missing) > len(found):
        raise StoreCorrupted(f"{found[first].parent}: no file starts at {missing[0]}, but one starts at {max(found)}")


def is_full(path: Path, start: int, length: int, files: FileSystem) -> bool:
    """Whether the records of a file of the log fill it, up to its filler: it was made with this length then."""
    segment = Segment(path, start, length, files)
    try:
        table = Table(4096, COLUMNS)
        at, status = 0, FULL
        while status == FULL:
            _, at, status, _ = walk(segment.view(), at, length, start, table.view)
        return status == FILLER and int.from_bytes(segment.read(at, 4), "big") == length - at
    finally:
        segment.close()


def _resize(root: Path, path: Path, start: int, length: int, size: int, files: FileSystem) -> None:
    """Bring a file to its size; what is too much of it is put aside."""
    if length > size:
        longer = Segment(path, start, length, files)
        put_aside(root, longer, size, length, files)
        longer.close()
    with files.opened(path) as fd:
        files.resize(fd, size)
        files.allocate(fd, size)
        files.sync(fd)
