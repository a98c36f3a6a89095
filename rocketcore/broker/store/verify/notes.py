"""The notes of a store, as a start reads them, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index.index_folder import IndexNote
from rocketcore.broker.store.notes.checkpoint import Checkpoint, Notes, RunMark
from rocketcore.broker.store.notes.deleted_topics import DeletedTopics
from rocketcore.broker.store.notes.queue_bounds import QueueBounds
from rocketcore.broker.store.verify.report import Report

__all__ = ["read_notes"]


class _Readable(FileSystem):
    """Files but for those that cannot be read, which were named and count as missing."""

    def __init__(self, files: FileSystem) -> None:
        self.without: set[Path] = set()
        self._files = files

    def read_file(self, path: Path) -> bytes:
        if path in self.without:
            raise FileNotFoundError(path)
        return self._files.read_file(path)


def read_notes(root: Path, files: FileSystem, report: Report) -> Notes:
    """Return what the notes say together; names those that are damaged."""
    readable = _Readable(files)
    for name, fault_of in _FAULTS.items():
        path = root / name
        try:
            content = files.read_file(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            report.name("note", path, 0, 0, f"it cannot be read: {error.strerror}")
            readable.without.add(path)
            continue
        report.file_count += 1
        report.read_bytes += len(content)
        fault = fault_of(content)
        if fault:
            report.name("note", path, 0, len(content), fault)
    notes = Notes.read(root, readable)
    deleted = DeletedTopics(root, readable)
    deleted.read(notes.bounds.deleted_before)
    notes.bounds.deleted_before = dict(deleted.before)
    return notes


def _fault_of_index(content: bytes) -> str:
    try:
        IndexNote.decode(content)
    except ValueError as error:
        return str(error)
    return ""


_FAULTS = {
    "queuebounds": QueueBounds.fault,
    "checkpoint": Checkpoint.fault,
    "deletedtopics": DeletedTopics.fault,
    "abort": RunMark.fault,
    "indexbounds": _fault_of_index,
}
"""Note → what says why its content is not what was written; an empty text where it is."""
