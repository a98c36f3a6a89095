"""The folder of a store as a whole: taken, recovered, marked while a store runs on it, and given back."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.keeping.queue_notes import QueueNotes
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.notes.checkpoint import Notes, RunMark
from rocketcore.broker.store.opening.folder_lock import FolderLock
from rocketcore.broker.store.opening.recovery import Recovery, recover
from rocketcore.broker.store.opening.remote_folder import warn_of_remote_folders
from rocketcore.broker.store.queues.queue_table import QueueTable

__all__ = ["Opened", "StoreFolder"]


class Opened(NamedTuple):
    """What was in the folder.

    is_clean    the last run ended in order
    last_alive  the last sign of life of a store there, in milliseconds; 0: none
    """

    recovery: Recovery
    notes: Notes
    is_clean: bool
    last_alive: int


class StoreFolder:
    """Opened and closed once, by one thread."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, queues: QueueTable, notes: QueueNotes, files: FileSystem
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._notes = notes
        self._files = files
        self._lock = FolderLock(config.root, config.commit_log_folder, files)
        self._run_mark = config.root / "abort"

    def take(self) -> None:
        """raises  StoreLocked, OSError"""
        self._lock.acquire()

    def open(self, *, rebuild: bool) -> Opened:
        """Have log and queues be what the folder holds, and mark that a store runs.

        rebuild  build the queues from the log, whatever is noted of them
        raises   StoreCorrupted for files that do not belong together, StoreFull, OSError
        """
        warn_of_remote_folders(self._config, self._files)
        self._files.keep_spare()
        found = self._notes.read()
        recovery = self._recover(found, rebuild)
        self._notes.log_ends_at(recovery.end_offset)
        self._log.run_begins(sealed=self._config.enabled_append_prop_crc)
        last_alive = RunMark.last_alive(self._run_mark, self._files)
        RunMark(self._log.sealed_from).write(self._run_mark, self._files)
        self._queues.begin()
        return Opened(recovery, found, found.mark is None, last_alive)

    def _recover(self, found: Notes, rebuild: bool) -> Recovery:
        log, files = self._log, self._files
        log.sealed_from = found.sealed_from
        outdate = partial(found.bounds.outdate, self._config.root, files)
        mended = log.load(outdate, begin=found.log_begin)
        recovery = recover(self._config, log, self._queues, found, files, believed=not (mended or rebuild))
        if not recovery.rebuilt:
            self._notes.adopted(found.bounds)
        log.open_at(recovery.end_offset)
        if found.mark is not None:
            log.make_sure(found.bounds.confirm_offset, recovery.end_offset)
        return recovery

    def run_ended(self) -> None:
        """Note that all of the run is on disk; raises OSError."""
        RunMark.put_off(self._run_mark, self._files)

    def close(self) -> None:
        """Give the folder back."""
        try:
            self._queues.files.close()
            self._files.drop_spare()
        finally:
            self._lock.release()
