"""A verification from its begin to its end: lock, notes, log with queues, what is left in the folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rocketcore._fast.record import STORED_COLUMNS, scan_stored
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import entries
from rocketcore.broker.store.log.damage import DamagedRange
from rocketcore.broker.store.log.record_head import HEAD_BYTES, RecordHead
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.opening.folder_lock import FolderLock
from rocketcore.broker.store.opening.recovery import LogScan
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from rocketcore.broker.store.queues.queue_ends import remember_ends
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.verify.files import AuditedLog, ReadOnlyFiles
from rocketcore.broker.store.verify.index import audit_index
from rocketcore.broker.store.verify.notes import read_notes
from rocketcore.broker.store.verify.queues import QueueAudit
from rocketcore.broker.store.verify.read_ahead import ReadAhead
from rocketcore.broker.store.verify.report import PutAside, Report
from rocketcore.errors import DecodeError
from rocketcore.table import Table

__all__ = ["Progress", "verify"]

REPEATS = 1000
"""Messages named one by one because another has their place."""

Progress = Callable[[int, int], None]
"""Bytes of the log that were read, and all that there are."""


def verify(
    config: StoreConfig, *, files: ReadOnlyFiles | None = None, progress: Progress = lambda done, total: None
) -> Report:
    """Look at every file of a store, and change none.

    config    where it is, and which sizes its files have (``files.sized``)
    files     the system calls, for tests
    progress  told now and then how far the log was read
    raises    StoreLocked while a broker has the folder; StoreCorrupted for files of another size or that do not belong
              together; OSError where a folder, or a file of the log, cannot be opened at all
    """
    files = files or ReadOnlyFiles()
    lock = FolderLock(config.root, config.commit_log_folder, files)
    kept_away = lock.share()
    log = AuditedLog(config, files)
    read_ahead = ReadAhead(files)
    try:
        report = Report(config.root)
        notes = read_notes(config.root, files, report)
        log.sealed_from = notes.sealed_from
        log.look(notes.log_begin, report)
        queue_files = QueueFiles(config.root, config.queue_file_bytes, files)
        remember_ends(notes.bounds, queue_files.root, log.min_offset, files)
        table = QueueTable(queue_files)
        audit = QueueAudit(log, table, notes, config.queue_file_bytes, report)
        scan = _LogAudit(config, log, table, notes, audit, report, read_ahead, progress)
        recovery = scan.run()
        report.messages = recovery.messages - recovery.bridges
        report.log_begin, report.log_end = log.min_offset, recovery.end_offset
        report.read_bytes += report.log_end - report.log_begin
        scan.finish()
        audit.finish()
        audit_index(config, log, notes, report)
        _list_put_aside(config.root / "damaged", report)
        if not kept_away:
            lock.share()  # raises where a store began to run meanwhile
        return report
    finally:
        read_ahead.close()
        log.close()
        lock.release()


class _LogAudit(LogScan):
    """The pass of a start that builds all queues, with nothing of it on disk."""

    def __init__(
        self,
        config: StoreConfig,
        log: AuditedLog,
        queues: QueueTable,
        notes: Notes,
        audit: QueueAudit,
        report: Report,
        read_ahead: ReadAhead,
        progress: Progress,
    ) -> None:
        super().__init__(config, log, queues, notes, rebuild=True)
        self._audit = audit
        self._report = report
        self._repeats = 0
        self._record = Table(1, STORED_COLUMNS)
        self._progress = progress
        self._read_ahead = read_ahead

    def walked(self, segment: Segment, position: int) -> None:
        self._read_ahead.at(segment, position)
        self._progress(segment.start + position - self._log.min_offset, self._log.file_end - self._log.min_offset)

    def bridge(self, begin: int, end: int) -> None:
        for segment, first, last in self._log.pieces(begin, end):
            damaged = DamagedRange(segment.path, segment.start + first, last - first)
            self.name(damaged, self._fault(segment, first))

    def end_at(self, end: int) -> None:
        self._read_ahead.close()
        for segment, begin, _, written in self._log.tail(end):
            what = f"{self._fault(segment, begin)}, and no message lies behind it"
            self._report.name_log(segment.path, segment.start + begin, written - begin, what)

    def name(self, damaged: DamagedRange, what: str) -> None:
        self._report.name_log(*damaged, what)

    def begins_later(self, gone: DamagedRange) -> None:
        self._report.gone_from = gone.physical_offset
        self._report.remarks.append(
            f"the log began at {gone.physical_offset} before RocketMQ ran, which deletes old files; it begins at "
            f"{gone.physical_offset + gone.length} now"
        )

    def repeats(self, segment: Segment, queue: ConsumeQueue, physical_offset: int, queue_offset: int) -> None:
        self._repeats += 1
        if self._repeats <= REPEATS:
            head = RecordHead.read(segment.read(physical_offset - segment.start, HEAD_BYTES))
            what = f"another message has its place, offset {queue_offset} of {queue.topic}/{queue.queue_id}"
            self._report.name_log(segment.path, physical_offset, head.size if head else 1, what)

    def save_units(self) -> None:
        for queue in self._queues:
            units = queue.unsaved()
            if units is not None:
                self._audit.compare(units)
                queue.mark_saved(units.end, keep=0)

    def finish(self) -> None:
        """Compare what was not yet, now that all damage is known."""
        self.save_units()
        if self._repeats > REPEATS:
            more = self._repeats - REPEATS
            self._report.remarks.append(f"{more} more messages are left out, as others have their places")

    def _fault(self, segment: Segment, position: int) -> str:
        """Say what is wrong with the bytes at a position of a segment that are no sound record."""
        try:
            head = segment.read(position, min(HEAD_BYTES, segment.size - position))
            if not head.strip(b"\0"):
                return "zeros"
            found = RecordHead.read(head)
            if found is None or not 0 < (size := found.size) <= segment.size - position:
                return "no message"
            record = segment.read(position, size)
        except OSError as error:
            return str(error.strerror or error)
        try:
            scan_stored(record, 0, size, self._record.view, whole=True, sealed=self._sealed)
        except DecodeError as error:
            return f"no message: {error.reason}"
        return f"a message of another place, {found.physical_offset} of the log"


def _list_put_aside(folder: Path, report: Report) -> None:
    for entry in sorted(entries(folder), key=lambda entry: entry.name):
        start = entry.name.partition(".")[0]
        if start.isascii() and start.isdigit() and entry.is_file():
            report.put_aside.append(PutAside(Path(entry.path), int(start), entry.stat().st_size))
