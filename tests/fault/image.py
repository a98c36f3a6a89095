"""All files of a store folder as bytes in memory: taken from one, changed, compared, written to another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.ledger import Span

LOG = "commitlog/"
CHUNK = 512
NEAR = 8


@dataclass(slots=True)
class Image:
    """Path below the store's root → content; ``folders`` also holds those without files."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, root: Path) -> Image:
        """Read the files as they are at this moment; what goes meanwhile is gone, as when a store replaces a note."""
        image = cls()
        for folder, _, names in os.walk(root):
            relative = os.path.relpath(folder, root)
            image.folders.add(relative)
            for name in names:
                with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as file:
                    image.files[os.path.normpath(os.path.join(relative, name))] = file.read()
        return image

    def write(self, root: Path) -> None:
        for folder in sorted(self.folders):
            os.makedirs(root / folder, exist_ok=True)
        for name, content in self.files.items():
            with open(root / name, "wb") as file:
                file.write(content)

    def copy(self) -> Image:
        return Image(dict(self.files), set(self.folders))

    def segments(self) -> Iterator[tuple[str, int, bytes]]:
        """Name, start in the log and content of each file of the log, in order."""
        for name in sorted(self.files):
            if name.startswith(LOG) and name[len(LOG) :].isdigit():
                yield name, int(name[len(LOG) :]), self.files[name]


def touched_log(before: Image, after: Image) -> tuple[list[Span], list[Span]]:
    """Return the bytes of the log that differ, and those of them that are zeros or not there any more."""
    touched: list[Span] = []
    gone: list[Span] = []
    for name, start, old in before.segments():
        new = after.files.get(name, b"")
        for begin, end in _differences(old, new):
            touched.append((start + begin, start + end))
            if not any(new[begin:end]):
                gone.append((start + begin, start + end))
    return touched, gone


def _differences(old: bytes, new: bytes) -> Iterator[Span]:
    """Ranges of ``old`` that read otherwise in ``new``; fewer than NEAR equal bytes do not part two ranges."""
    begin = end = -1
    common = min(len(old), len(new))
    for at in range(0, common, CHUNK):
        if old[at : at + CHUNK] == new[at : at + CHUNK]:
            continue
        for index in range(at, min(at + CHUNK, common)):
            if old[index] == new[index]:
                continue
            if begin >= 0 and index - end >= NEAR:
                yield begin, end
                begin = -1
            if begin < 0:
                begin = index
            end = index + 1
    if begin >= 0:
        yield begin, end
    if common < len(old):
        yield common, len(old)
