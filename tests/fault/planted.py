"""Bugs planted into the store, each one a way in which stores have lost messages: the harness must find every one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocketcore.broker.state import json_file
from rocketcore.broker.store import file_system
from rocketcore.broker.store.keeping import queue_notes
from rocketcore.broker.store.log import commit_log
from rocketcore.broker.store.opening import recovery
from rocketcore.broker.store.writing import committer

__all__ = ["BUGS", "plant"]


@contextlib.contextmanager
def plant(name: str) -> Iterator[None]:
    """The store has the bug as long as this is entered."""
    owner, attribute, make = BUGS[name]
    sound = getattr(owner, attribute)
    setattr(owner, attribute, make(sound))
    try:
        yield
    finally:
        setattr(owner, attribute, sound)


def _acknowledge_early(add_to: Callable[..., None]) -> Callable[..., None]:
    """The group counts as synced when it is written."""

    def planted(group: Any, work: Any, *, sync: bool) -> None:
        add_to(group, work, sync=False)

    return planted


def _cut_behind_damage(find_after: Callable[..., Any]) -> Callable[..., Any]:
    """The first bytes that are no record end the log, whatever follows them."""

    def planted(scan: Any, position: int) -> None:
        return None

    return planted


def _dispatch_early(commit: Callable[..., None]) -> Callable[..., None]:
    """Messages are in their queues, and visible, as soon as they are on their way to the disk."""

    def planted(self: Any) -> None:
        before = self._in_flight
        commit(self)
        if self._in_flight is not None and self._in_flight is not before:
            self._dispatcher.dispatch(self._in_flight.group)
            self._in_flight.group.runs.clear()  # once is enough

    return planted


def _write_in_place(replace_file: Callable[..., None]) -> Callable[..., None]:
    """The file of offsets, like every state file, is written over its last content."""

    def planted(path: Path, data: bytes, *, both: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)

    return planted


def _note_early(write: Callable[..., Any]) -> Callable[..., Any]:
    """The note says that the log is in the queues before it is: it has the queues' ends of the note before."""
    last: dict[int, Any] = {}

    def planted(notes: Any, note: Any) -> None:
        rows = last.get(id(notes), {})
        last[id(notes)] = note.bounds.rows
        note.bounds = replace(note.bounds, rows=rows)
        write(notes, note)

    return planted


def _forget_folders(sync_folder: Callable[..., None]) -> Callable[..., None]:
    """New names are not made durable."""

    def planted(files: Any, path: Path) -> None:
        pass

    return planted


def _sync_again(sync: Callable[..., None]) -> Callable[..., None]:
    """A sync that failed is tried again, and believed."""

    def planted(files: Any, fd: int) -> None:
        try:
            sync(files, fd)
        except OSError:
            sync(files, fd)

    return planted


BUGS: dict[str, tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "ack before fsync": (commit_log.Group, "add_to", _acknowledge_early),
    "wrong truncation": (recovery.LogScan, "_find_after", _cut_behind_damage),
    "dispatch ahead of the durable mark": (committer.Committer, "_commit", _dispatch_early),
    "offset file written in place": (json_file, "replace_file", _write_in_place),
    "note too early": (queue_notes.QueueNotes, "write", _note_early),
    "no folder fsync": (file_system.FileSystem, "sync_folder", _forget_folders),
    "fsync tried again": (file_system.FileSystem, "sync", _sync_again),
}
"""What → whose function is replaced, and by what."""
