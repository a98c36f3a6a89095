"""What is known to be durable: RocketMQ's ``checkpoint`` file, and the bounds of the consume queues beside it.

``checkpoint``   4096 bytes (broker.md §6): times of the last message flushed to the log, put in queues, put in the
                 index; from 5.x on also the physical offset up to which the store is confirmed. From byte 64 on, where
                 RocketMQ's fields are over, ours: where the log begins, the CRC-32 of the 64 bytes before, and the
                 CRC-32 of these two. RocketMQ leaves them alone; so where only the first CRC is wrong, it has run since
``queuebounds``  our own (``queue_bounds``): where the log begins and from where on its records have checksums, min and
                 max of every consume queue when the log before ``confirm_offset`` and the queues built from it were on
                 disk, and how far the log belongs to topics that were deleted. With it a start need not read the
                 queues, and reads the log from ``confirm_offset`` on only. Without it, or with a damaged one,
                 everything is built from the log again. RocketMQ ignores the file
``abort``        stands while the store runs: the process id, which is RocketMQ's content, and behind it, if the run
                 gives every record a checksum, from where on all have one, and the CRC-32 of these two words. While
                 none runs it is called ``abort.off``: so the next run has room for its mark on a full disk

What the log cannot tell is in two of them: where it began, and up to where it was on disk (``Notes``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from rocketcore.broker.store.file_system import FileSystem, sync_checked, sync_names, write_checked
from rocketcore.broker.store.notes.queue_bounds import QueueBounds
from rocketcore.broker.store.notes.small_file import replace_durably
from rocketcore.disk import is_passing

__all__ = ["Checkpoint", "Notes", "RunMark", "note_begin"]

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 4096
RUN_MARK_BYTES = 64
_FIELDS = Struct(">qqqqq")
_OUR_POSITION = 64
_OURS = Struct(">qI")
_DIGEST = Struct(">I")
_OUR_END = _OUR_POSITION + _OURS.size + _DIGEST.size


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """The times and offsets in ``checkpoint`` (Java: ``StoreCheckpoint``).

    The time of the index is that of the files that are whole: after a crash Apache removes those that end later, and
    where ``messageIndexSafe`` asks for a whole index it reads the log from there.

    begin_offset  where the log begins; -1 where that is not known, as in a file that RocketMQ made or in a damaged one
    rocketmq_ran  RocketMQ was the last to write the file
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    begin_offset: int = -1
    rocketmq_ran: bool = False

    @classmethod
    def read(cls, path: Path, files: FileSystem) -> Checkpoint:
        """Read the file; all zero where it is missing, too short or damaged.

        raises  OSError where it may be read the next time: files that were deleted would count as lost
        """
        try:
            data = files.read_file(path)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            if is_passing(error):
                error.filename = str(path)
                raise
            logger.error("checkpoint not readable path=%s reason=%s", path, error)
            return cls()
        if len(data) < _FIELDS.size:
            return cls()
        physic, logics, index, master, confirm = _FIELDS.unpack_from(data)
        begin_offset, rocketmq_ran = _begin_offset(data), False
        if begin_offset >= 0:
            rocketmq_ran = _OURS.unpack_from(data, _OUR_POSITION)[1] != zlib.crc32(data[:_OUR_POSITION])
        elif len(data) == CHECKPOINT_BYTES and physic > 0:
            rocketmq_ran = not any(data[_OUR_POSITION:])
        return cls(
            physic_msg_timestamp=physic,
            logics_msg_timestamp=logics,
            index_msg_timestamp=index,
            master_flushed_offset=master,
            confirm_physical_offset=confirm,
            begin_offset=begin_offset,
            rocketmq_ran=rocketmq_ran,
        )

    @staticmethod
    def fault(content: bytes) -> str:
        """Return why a content is not one that was written, an empty text where it may be."""
        if len(content) != CHECKPOINT_BYTES:
            return f"it has {len(content)} bytes and not {CHECKPOINT_BYTES}"
        if _begin_offset(content) < 0 and any(content[_OUR_POSITION:]):
            return "its checksum is wrong"
        return ""

    def encode(self) -> bytes:
        head = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        if self.begin_offset >= 0:
            head = head.ljust(_OUR_POSITION, b"\0")
            head += _our_bytes(self.begin_offset, head)
        return head.ljust(CHECKPOINT_BYTES, b"\0")

    def write(self, path: Path, files: FileSystem) -> None:
        replace_durably(path, self.encode(), files)


def note_begin(path: Path, begin: int, files: FileSystem) -> None:
    """Have a checkpoint say, durably, that the log begins at ``begin``; no room on the disk is needed where it is one.

    The bytes are written where they stand, within one sector: a crash leaves the old ones or the new ones.

    raises  OSError
    """
    try:
        head = files.read_file(path)[:_OUR_POSITION]
    except FileNotFoundError:
        head = b""
    if len(head) < _OUR_POSITION:
        Checkpoint(begin_offset=begin).write(path, files)
        return
    with files.opened(path) as fd:
        write_checked(fd, _our_bytes(begin, head), _OUR_POSITION, path, files)
        sync_checked(fd, path, files)


def _our_bytes(begin: int, head: bytes) -> bytes:
    ours = _OURS.pack(begin, zlib.crc32(head))
    return ours + _DIGEST.pack(zlib.crc32(ours))


def _begin_offset(data: bytes) -> int:
    """Return where the log begins, -1 where the content of a checkpoint does not say, or not as it was written."""
    if len(data) < _OUR_END:
        return -1
    digest_position = _OUR_END - _DIGEST.size
    if _DIGEST.unpack_from(data, digest_position)[0] != zlib.crc32(data[_OUR_POSITION:digest_position]):
        return -1
    return int(_OURS.unpack_from(data, _OUR_POSITION)[0])


@dataclass(slots=True)
class RunMark:
    """The file ``abort``: where it is, the last run did not end in order.

    sealed_from  every record behind this physical offset has a checksum; None: that is not known
    """

    sealed_from: int | None = None

    @classmethod
    def read(cls, path: Path, files: FileSystem) -> RunMark | None:
        """Read the file; None where there is none. One of RocketMQ's, or a damaged one, says nothing more."""
        try:
            words = files.read_file(path).split()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.error("mark of the last run not readable path=%s reason=%s", path, error)
            return cls()
        return cls(int(words[1]) if cls._is_ours(words) else None)

    @classmethod
    def fault(cls, content: bytes) -> str:
        """Return why a content is neither RocketMQ's nor ours, an empty text where it is."""
        words = content.split()
        is_rocketmqs = not words or (len(words) == 1 and words[0].isdigit())
        return "" if is_rocketmqs or cls._is_ours(words) else "its checksum is wrong"

    @classmethod
    def _is_ours(cls, words: list[bytes]) -> bool:
        return len(words) == 3 and words == cls._words(words[0], words[1])

    def write(self, path: Path, files: FileSystem) -> None:
        """Leave the mark, durably; no room on the disk is needed where there was a run before.

        raises  OSError, which names the file
        """
        words = [b"%d" % os.getpid()]
        if self.sealed_from is not None:
            words = self._words(words[0], b"%d" % self.sealed_from)
        resting = _resting(path)
        # Whoever ran last and left its mark is told by it until this one is whole.
        place = resting if resting.exists() else path
        with files.opened(place, os.O_RDWR | os.O_CREAT) as fd:
            write_checked(fd, b" ".join(words).ljust(RUN_MARK_BYTES), 0, place, files)
            sync_checked(fd, place, files)
        if place is resting:
            files.rename(resting, path)
        sync_names(path.parent, files)

    @staticmethod
    def last_alive(path: Path, files: FileSystem) -> int:
        """Return when the last run ended, or what is known of a later time: milliseconds; 0 where nothing is."""
        seen = [0.0]
        for each in (path, _resting(path), path.with_name("checkpoint")):
            with contextlib.suppress(OSError):
                seen.append(files.changed(each))
        return round(max(seen) * 1000)

    @staticmethod
    def put_off(path: Path, files: FileSystem) -> None:
        """Note that the run ended in order: all of it is on disk. Raises OSError."""
        files.rename(path, _resting(path))
        sync_names(path.parent, files)

    @staticmethod
    def _words(process_id: bytes, sealed_from: bytes) -> list[bytes]:
        return [process_id, sealed_from, b"%08x" % zlib.crc32(process_id + b" " + sealed_from)]


def _resting(path: Path) -> Path:
    return path.with_name(f"{path.name}.off")


@dataclass(slots=True, kw_only=True)
class Notes:
    """What the notes in the folder of a store say together.

    bounds        of the queues, with the begin of the log from whichever note tells it; 0 where none does, as a log
                  begins there until RocketMQ deletes from it, and -1 where RocketMQ made this store
    begin_noted   a note tells the begin of the log
    trimmed       the log was cut at its begin after the bounds were noted: queues may begin before it there
    known_end     the log before it was on disk
    mark          of the last run; None: it ended in order
    rocketmq_ran  RocketMQ ran since our last run ended: it may have deleted the oldest files of the log
    index_timestamp  the index files that end until then are whole (``Checkpoint``)
    """

    bounds: QueueBounds
    begin_noted: bool = True
    trimmed: bool = False
    known_end: int = -1
    mark: RunMark | None = None
    rocketmq_ran: bool = False
    index_timestamp: int = 0

    @classmethod
    def read(cls, root: Path, files: FileSystem) -> Notes:
        """Read the notes; one that is missing or damaged says nothing."""
        bounds = QueueBounds.read(root / "queuebounds", files) or QueueBounds(confirm_offset=-1)
        checkpoint = Checkpoint.read(root / "checkpoint", files)
        trimmed = 0 <= bounds.begin_offset < checkpoint.begin_offset and not checkpoint.rocketmq_ran
        if bounds.begin_offset < 0 or trimmed:
            bounds.begin_offset = checkpoint.begin_offset
        begin_noted = bounds.begin_offset >= 0
        if not begin_noted and not checkpoint.rocketmq_ran:
            bounds.begin_offset = 0
        known_end = bounds.confirm_offset
        if checkpoint.begin_offset >= 0 and not checkpoint.rocketmq_ran:
            known_end = max(known_end, checkpoint.confirm_physical_offset)
        return cls(
            bounds=bounds,
            begin_noted=begin_noted,
            trimmed=trimmed,
            known_end=known_end,
            mark=RunMark.read(root / "abort", files),
            rocketmq_ran=checkpoint.rocketmq_ran,
            index_timestamp=checkpoint.index_msg_timestamp,
        )

    @property
    def log_begin(self) -> int:
        """Where the log begins, by our own notes; 0 where they do not say, or RocketMQ may have gone on."""
        return self.bounds.begin_offset if self.begin_noted and not self.rocketmq_ran else 0

    @property
    def index_is_ours(self) -> bool:
        """Whether our note tells of the index as it is.

        RocketMQ's mark says no more than that it ran, and one that was killed may not have written the checkpoint.
        """
        return not self.rocketmq_ran and (self.mark is None or self.mark.sealed_from is not None)

    @property
    def sealed_from(self) -> int | None:
        """Every record behind this physical offset has a checksum; None: that is not known."""
        if self.rocketmq_ran:
            return None
        return self.bounds.sealed_from if self.mark is None else self.mark.sealed_from
