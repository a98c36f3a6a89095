"""The files of the consume queues, compared with the units that the log asks for.

Units come as the log is read, for one queue after the other and in the order of each, and are compared with the bytes
of its files where these are. What then is left in the folders, before the begin of a queue or behind its end, is looked
at last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rocketcore._fast.consume_queue import put_blank, unit
from rocketcore.broker.store.config import UNIT_SIZE
from rocketcore.broker.store.file_system import entries
from rocketcore.broker.store.log.segment_file import is_log_name, written_ranges
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.notes.queue_bounds import unpack_rows
from rocketcore.broker.store.queues.consume_queue import (
    MAX_QUEUE_ID,
    ConsumeQueue,
    DamagedUnit,
    Units,
    is_blank,
)
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.timed import TIMED_TOPICS
from rocketcore.broker.store.verify.files import AuditedLog, subfolders
from rocketcore.broker.store.verify.report import Report

__all__ = ["QueueAudit"]

RANGES = 16
"""Damaged ranges of a queue that are named one by one."""

CHUNK_BYTES = 4000 * UNIT_SIZE
_STEP_BYTES = 64 * UNIT_SIZE

_BLANK = bytearray(UNIT_SIZE)
put_blank(_BLANK, 0, 1)


class QueueAudit:
    """Used by one verification: ``compare`` for what the log asks for, then ``finish``."""

    def __init__(self, log: AuditedLog, table: QueueTable, notes: Notes, file_bytes: int, report: Report) -> None:
        self._log = log
        self._table = table
        self._notes = notes
        self._files = log.files
        self._file_bytes = file_bytes
        self._report = report
        self._absent: dict[ConsumeQueue, tuple[int, int]] = {}
        """Units that were not found in the files, and no other behind them yet."""
        self._ranges: dict[ConsumeQueue, int] = {}
        self._more: dict[ConsumeQueue, int] = {}
        self._other_times = 0

    # ------------------------------------------------------------------ what the log asks for

    def compare(self, units: Units) -> None:
        """Compare units with those in the files; blanks among them are lost messages."""
        queue = units.queue
        start = max(units.first, queue.min_offset)
        if start >= units.end:
            return
        wanted = memoryview(units.data)[(start - units.first) * UNIT_SIZE :]
        self._count(queue, start, bytes(wanted))
        for first, last in self._by_file(start, units.end):
            expected = wanted[(first - start) * UNIT_SIZE : (last - start) * UNIT_SIZE]
            found = self._read(queue, first, last)
            if found == expected:
                self._close(queue)
            else:
                self._differ(queue, first, expected, found)

    def _count(self, queue: ConsumeQueue, start: int, wanted: bytes) -> None:
        served = len(wanted) // UNIT_SIZE
        at = wanted.find(_BLANK)
        while at >= 0:
            if at % UNIT_SIZE == 0:
                offset = start + at // UNIT_SIZE
                self._report.lose(queue, offset, offset + 1)
                served -= 1
            at = wanted.find(_BLANK, at + UNIT_SIZE - at % UNIT_SIZE)
        self._report.served += served

    def _by_file(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Cut a range of queue offsets at the ends of files."""
        in_file = self._file_bytes // UNIT_SIZE
        while start < end:
            stop = min(end, start - start % in_file + in_file)
            yield start, stop
            start = stop

    def _read(self, queue: ConsumeQueue, first: int, last: int) -> bytes:
        """Return units of one file; zeros for what is not there."""
        length = (last - first) * UNIT_SIZE
        self._report.read_bytes += length
        try:
            return self._table.files.peek(queue, first, last - first).ljust(length, b"\0")
        except FileNotFoundError:
            pass
        except OSError as error:
            path, within = self._table.files.place(queue, first)
            self._report.name("queue", path, within, length, f"it cannot be read: {error.strerror}")
        return bytes(length)

    def _differ(self, queue: ConsumeQueue, first: int, expected: memoryview, found: bytes) -> None:
        """Name what differs of units of one file; those at the end that are zeros may come later."""
        written = -(-len(found.rstrip(b"\0")) // UNIT_SIZE) * UNIT_SIZE
        end = first + len(found) // UNIT_SIZE
        if written:
            self._close(queue)
        differing = self._different(expected[:written], found[:written])
        wrong = [index for index in differing if self._is_wrong(queue, unit(expected, index), unit(found, index))]
        self._name_each(queue, [(first + index, "leads elsewhere") for index in wrong])
        if written < len(found):
            absent = first + written // UNIT_SIZE
            self._absent[queue] = self._absent.get(queue, (absent, absent))[0], end

    @staticmethod
    def _different(expected: memoryview, found: bytes) -> Iterator[int]:
        """Return which units differ."""
        view = memoryview(found)
        for step in range(0, len(found), _STEP_BYTES):
            if expected[step : step + _STEP_BYTES] != view[step : step + _STEP_BYTES]:
                for at in range(step, min(step + _STEP_BYTES, len(found)), UNIT_SIZE):
                    if expected[at : at + UNIT_SIZE] != view[at : at + UNIT_SIZE]:
                        yield at // UNIT_SIZE

    def _is_wrong(self, queue: ConsumeQueue, expected: tuple[int, int, int], found: tuple[int, int, int]) -> bool:
        if is_blank(*expected[:2]):
            # Its message was there when it was written, and is damaged now: that was named.
            return not self._report.is_named(found[0])
        if queue.topic in TIMED_TOPICS and found[:2] == expected[:2]:
            # When it is due depends on the settings of the day.
            self._other_times += 1
            return False
        return True

    def _name_each(self, queue: ConsumeQueue, wrong: list[tuple[int, str]]) -> None:
        """Name units, ascending: those next to each other together, where they have the same fault."""
        begin = 0
        for index in range(1, len(wrong) + 1):
            first, what = wrong[begin]
            if index == len(wrong) or wrong[index] != (first + index - begin, what):
                self._name(queue, first, first + index - begin, what)
                begin = index

    def _name(self, queue: ConsumeQueue, first: int, last: int, what: str) -> None:
        """Name units of one file."""
        count = self._ranges[queue] = self._ranges.get(queue, 0) + 1
        if count > RANGES:
            self._more[queue] = self._more.get(queue, 0) + last - first
            return
        path, within = self._table.files.place(queue, first)
        self._report.name("queue", path, within, (last - first) * UNIT_SIZE, f"{what}, units: {last - first}")

    def _close(self, queue: ConsumeQueue) -> None:
        """Name units that are missing, as others lie behind them."""
        if queue in self._absent:
            self._name_absent(queue, *self._absent.pop(queue))

    def _name_absent(self, queue: ConsumeQueue, start: int, end: int) -> None:
        for first, last in self._by_file(start, end):
            there = self._table.files.place(queue, first)[0].exists()
            self._name(queue, first, last, "missing" if there else "missing, and the file")

    # ------------------------------------------------------------------ what else is there

    def finish(self) -> None:
        """Judge what was not written, then look at everything that is in the folders."""
        for queue, (start, end) in self._absent.items():
            known = self._noted_end(queue)
            if self._notes.mark is None or start < known:
                self._name_absent(queue, start, end if self._notes.mark is None else min(end, known))
            if self._notes.mark is not None:
                self._report.unsaved += end - max(start, known)
        self._absent.clear()
        for topic in subfolders(self._table.files.root):
            for folder in subfolders(topic):
                if folder.name.isascii() and folder.name.isdigit() and int(folder.name) <= MAX_QUEUE_ID:
                    self._look_at(topic.name, int(folder.name), folder)
                else:
                    self._report.remarks.append(f"{folder} is no folder of a queue")
        for queue, count in self._more.items():
            folder = self._table.files.folder(queue.topic, queue.queue_id)
            what = f"more than {RANGES} ranges, units in the others: {count}"
            self._report.name("queue", folder, 0, count * UNIT_SIZE, what)
        if self._other_times:
            self._report.remarks.append(
                f"{self._other_times} delayed messages have another time than messageDelayLevel says"
            )
        self._report.lost.sort(key=lambda lost: (lost.topic, lost.queue_id, lost.start))
        self._report.bounds = {(each.topic, each.queue_id): (each.min_offset, each.max_offset) for each in self._table}

    def _noted_end(self, queue: ConsumeQueue) -> int:
        """Return up to where the files of a queue were noted to be on disk."""
        bounds = self._notes.bounds
        if bounds.confirm_offset < 0:
            return 0
        return unpack_rows(bounds.rows.get(queue.topic, b"")).get(queue.queue_id, (0, 0))[1]

    def _look_at(self, topic: str, queue_id: int, folder: Path) -> None:
        queue = self._table.find(topic, queue_id)
        is_known = queue is not None
        if queue is None:
            queue = ConsumeQueue(topic, queue_id, self._table.files)
        starts = []
        for entry in entries(folder):
            if not is_log_name(entry.name):
                self._report.remarks.append(f"{entry.path} is no file of a queue")
                continue
            self._report.file_count += 1
            start, length = int(entry.name), entry.stat().st_size
            if start % self._file_bytes:
                self._report.name("queue", Path(entry.path), 0, length, "no file of a queue begins there")
                continue
            if length != self._file_bytes:
                what = f"the file has {length} bytes and not {self._file_bytes}"
                position = min(length, self._file_bytes)
                self._report.name("queue", Path(entry.path), position, abs(self._file_bytes - length), what)
            starts.append(start // UNIT_SIZE)
        # Messages of the topic before it are in no queue. What lies before the log was deleted, unless it was named.
        begin = self._notes.bounds.begin_offset
        if not self._report.is_named(begin):
            begin = self._log.min_offset
        begin = max(begin, self._notes.bounds.deleted_before.get(topic, 0))
        starts.sort()
        if starts and is_known and starts[0] < queue.min_offset:
            self._look_before(queue, starts[0], begin)
        for start in starts:
            self._look_behind(queue, max(start, queue.max_offset), start, -1 if is_known else begin)

    def _look_before(self, queue: ConsumeQueue, start: int, begin: int) -> None:
        """Look at units before the first one of a queue: they lead to before the begin of the log."""
        try:
            first = self._table.files.first_at(queue, start, queue.min_offset, begin)
        except DamagedUnit:
            first = start
        except OSError:
            return  # a file that is too short or missing was named, or is of no use any more
        for begin_units, end_units in self._by_file(first, queue.min_offset):
            self._judge(queue, begin_units, self._read(queue, begin_units, end_units), begin)

    def _look_behind(self, queue: ConsumeQueue, first: int, start: int, begin: int) -> None:
        """Look at units of the file that begins at ``start`` which lie behind the end of the queue."""
        path, within = self._table.files.place(queue, first)
        if first >= start + self._file_bytes // UNIT_SIZE:
            return
        try:
            with self._files.opened(path) as fd:
                for written, end in written_ranges(fd, within, self._file_bytes):
                    end += -end % UNIT_SIZE
                    for at in range(written - written % UNIT_SIZE, end, CHUNK_BYTES):
                        data = self._files.read(fd, min(CHUNK_BYTES, end - at), at)
                        data += bytes(-len(data) % UNIT_SIZE)
                        if data != bytes(len(data)):
                            self._judge(queue, start + at // UNIT_SIZE, data, begin)
        except OSError as error:
            self._report.name("queue", path, within, 0, f"it cannot be read: {error.strerror}")

    def _judge(self, queue: ConsumeQueue, first: int, units: bytes, begin: int) -> None:
        """Judge units that the log does not ask for.

        begin  what leads to before it is of no use any more; -1: it is damage
        """
        wrong: list[tuple[int, str]] = []
        for index in range(len(units) // UNIT_SIZE):
            place, size, tags_code = unit(units, index)
            if (place, size, tags_code) == (0, 0, 0) or (begin >= 0 and is_blank(place, size)) or 0 <= place < begin:
                continue
            if self._report.is_named(place) and not is_blank(place, size):
                self._report.lose(queue, first + index, first + index + 1)
                continue
            ahead = place >= self._report.log_end
            wrong.append((first + index, "leads behind the end of the log" if ahead else "leads to no message"))
        self._name_each(queue, wrong)
