"""The files of the index: whether a start would believe them, and what their entries and slots say of each other."""

from __future__ import annotations

from pathlib import Path

from rocketcore._fast.index import END_OFFSET
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index.index_file import IndexFile
from rocketcore.broker.store.index.index_folder import IndexFiles
from rocketcore.broker.store.index.message_index import log_view
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.verify.files import AuditedLog
from rocketcore.broker.store.verify.report import Report
from rocketcore.printable import error_text
from rocketcore.service import SYSTEM_CLOCK

__all__ = ["audit_index"]


def audit_index(config: StoreConfig, log: AuditedLog, notes: Notes, report: Report) -> None:
    """Look at the index of a log that was read."""
    index = IndexFiles(config, log.files, SYSTEM_CLOCK)
    clean = notes.mark is None
    view = log_view(log, report.log_begin, report.log_end)
    try:
        others = index.believe(view, clean=clean, ours=notes.index_is_ours, index_timestamp=notes.index_timestamp)
        report.file_count += len(index.files) + len(others)
        for path in others:
            if not clean:
                report.remarks.append(f"{path} is of a run that was killed; the next start indexes again what it held")
            elif _leads_before(path, report.log_begin, log.files):
                report.remarks.append(f"{path} leads only to what was deleted; the next start removes it")
            else:
                size = log.files.size(path)
                report.name("index", path, 0, size, "no start believes it, and indexes again what it held")
        for file in index.files:
            try:
                position, fault = file.fault()
                if not fault and not file.check():
                    fault = "its checksum is wrong"
            except (OSError, ValueError) as error:
                position, fault = 0, f"it cannot be read: {error_text(error)}"
            report.read_bytes += file.used_bytes
            if fault:
                report.name("index", file.path, position, file.size - position, fault)
    finally:
        index.close()


def _leads_before(path: Path, begin: int, files: FileSystem) -> bool:
    """Whether all that a file says of the log lies before ``begin``."""
    try:
        return IndexFile.read_header(path, files)[END_OFFSET] < begin
    except (OSError, ValueError):
        return False
