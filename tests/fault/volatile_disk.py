"""A disk that keeps, at a power cut, what was synced, and of the rest what it likes: pages, lengths, names.

It watches the calls of one process on a real folder, which always shows what the process sees. Beside it the disk keeps
what is durable, and makes an ``Image`` of what could be found after a cut:

content  a sync makes a file's bytes of that moment durable. Of what was written since, any sectors may be there
names    a sync of a folder makes its names durable. Of what was created, renamed and removed in it since, in order, the
         first few may be there: a journal goes on in order
errors   after a failed sync the kernel takes the pages for clean: they are not on the disk, whatever a later sync says,
         until they are written again
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fault.image import Image
from tests.fault.system_calls import Call

SECTOR = 512
PAGE = 4096
FOLDER = -1

_Names = dict[str, int]
"""Path below the root → number of its file, or FOLDER."""

_Change = dict[str, int | None]
"""One step of a folder: what a name leads to after it; None: it is gone."""


class VolatileDisk:
    """Give ``perform`` every call on the folder, one at a time. The folder is empty, or what it holds is durable."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._names: _Names = {}
        self._durable_names: _Names = {}
        self._pending: dict[str, list[_Change]] = {}
        self._durable: dict[int, bytes] = {}
        self._last: dict[int, bytes] = {}
        self._refused: dict[int, set[int]] = {}
        for folder, folders, names in os.walk(self._root):
            for name in folders:
                self._names[self._relative(os.path.join(folder, name))] = FOLDER
            for name in names:
                path = os.path.join(folder, name)
                number = self._names[self._relative(path)] = os.stat(path).st_ino
                self._durable[number] = _read(path)
        self._durable_names.update(self._names)

    def perform(self, call: Call, function: Callable[[], Any]) -> Any:
        """Make the call and note what it changed."""
        before = _read(call.path) if call.name == "sync" else b""
        if call.name == "unlink" or call.name == "rename":
            self._keep_last(call.target or call.path)
        try:
            result = function()
        except OSError:
            if call.name == "sync":
                self.sync_failed(call)
            raise
        match call.name:
            case "open" if call.creates:
                self._change(call.path, os.stat(call.path).st_ino)
            case "mkdir":
                self._change(call.path, FOLDER)
            case "link":
                self._change(call.target, os.stat(call.target).st_ino)
            case "unlink":
                self._change(call.path, None)
            case "rename":
                self._rename(call)
            case "write":
                self._dirty_again(call)
            case "sync":
                self._synced(call, before)
            case "sync_folder":
                self._folder_synced(self._relative(call.path))
        return result

    def sync_failed(self, call: Call) -> None:
        """What was to be synced is lost, though the page cache shows it."""
        number, now = os.fstat(call.fd).st_ino, _read(call.path)
        durable = self._durable.get(number, b"")
        self._refused.setdefault(number, set()).update(_differing(durable, now))

    def _dirty_again(self, call: Call) -> None:
        """A write makes the whole of its pages dirty."""
        refused = self._refused.get(os.fstat(call.fd).st_ino)
        if refused:
            first, last = call.position // PAGE * PAGE, call.position + len(call.data)
            refused -= {at for at in refused if call.position < 0 or (first <= at < -(-last // PAGE) * PAGE)}

    def cut_power(self, rng: random.Random) -> Image:
        """Return what a start after a power cut at this moment could find."""
        names = dict(self._durable_names)
        for folder in sorted(self._pending):
            changes = self._pending[folder]
            for change in changes[: rng.randint(0, len(changes))]:
                for name, number in change.items():
                    if number is None:
                        names.pop(name, None)
                    else:
                        names[name] = number
        image = Image(folders={"."})
        for name in sorted(names):
            if _reachable(name, names):
                if names[name] == FOLDER:
                    image.folders.add(name)
                else:
                    image.files[name] = self._content(names[name], rng)
        return image

    def _content(self, number: int, rng: random.Random) -> bytes:
        durable = self._durable.get(number, b"")
        now = self._current(number)
        mode = rng.random()
        if mode < 0.3:
            return durable
        length = len(now) if len(now) == len(durable) or rng.random() < 0.7 else len(durable)
        mixed = bytearray(durable[:length].ljust(length, b"\0"))
        refused = self._refused.get(number, ())
        for at in _differing(durable, now):
            part = now[at : at + SECTOR]
            if at < length and at not in refused and (mode < 0.5 or rng.random() < 0.5):
                mixed[at : at + len(part)] = part
        return bytes(mixed[:length])

    def _current(self, number: int) -> bytes:
        for name, other in self._names.items():
            if other == number:
                return _read(os.path.join(self._root, name))
        return self._last.get(number, b"")

    # ------------------------------------------------------------------ notes

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def _change(self, path: str, number: int | None) -> None:
        self._note(path, {self._relative(path): number})

    def _note(self, path: str, change: _Change) -> None:
        for name, number in change.items():
            if number is None:
                self._names.pop(name, None)
            else:
                self._names[name] = number
        self._pending.setdefault(self._relative(os.path.dirname(path)), []).append(change)

    def _rename(self, call: Call) -> None:
        source, target = self._relative(call.path), self._relative(call.target)
        self._note(call.target, {source: None, target: self._names[source]})

    def _keep_last(self, path: str) -> None:
        number = self._names.get(self._relative(path), FOLDER)
        if number != FOLDER and os.path.exists(path):
            self._last[number] = _read(path)

    def _synced(self, call: Call, content: bytes) -> None:
        number = os.fstat(call.fd).st_ino
        refused = self._refused.get(number, ())
        kept = bytearray(content)
        durable = self._durable.get(number, b"").ljust(len(content), b"\0")
        for at in refused:
            kept[at : at + SECTOR] = durable[at : at + SECTOR]
        self._durable[number] = bytes(kept)

    def _folder_synced(self, folder: str) -> None:
        self._pending.pop(folder, None)
        for names, other in ((self._durable_names, self._names), (self._names, self._durable_names)):
            for name in [name for name in names if os.path.dirname(name) == ("" if folder == "." else folder)]:
                if names is self._durable_names and name not in other:
                    del names[name]
                elif names is self._names:
                    other[name] = names[name]


def _reachable(name: str, names: _Names) -> bool:
    folder = os.path.dirname(name)
    while folder:
        if names.get(folder) != FOLDER:
            return False
        folder = os.path.dirname(folder)
    return True


def _differing(old: bytes, new: bytes) -> list[int]:
    """Positions of the sectors of ``new`` that are not in ``old``."""
    zeros = bytes(SECTOR)
    return [
        at
        for at in range(0, len(new), SECTOR)
        if new[at : at + SECTOR] != (old[at : at + SECTOR] or zeros[: len(new) - at])
    ]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, IsADirectoryError):
        return b""
