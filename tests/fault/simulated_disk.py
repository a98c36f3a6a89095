"""A disk that forgets: a journal of what the store wrote and synced, and what a power cut would take back.

``kill -9`` keeps the page cache, so it cannot show a store that acknowledges too early. The broker under test therefore
writes through ``JournalingFiles``, which notes every write before it is made and every sync after it is done, in a file
that outlives the process. After the kill ``cut_power`` destroys, in the store's files, what was written and not synced.

Run as a program it is the ``rocket`` command on such a disk: ``simulated_disk KIND JOURNAL broker start …``. KIND is

kept    the machine's own disk, by the store's own system calls
honest  one that forgets
early   a planted bug: fdatasync returns at once and the disk catches up later

Each is so small that ``LOG_FILES`` files of the log fill it, so retention deletes the oldest all the time.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
from pathlib import Path

from rocketcore.broker.store import message_store
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.keeping import cleaner

LATE_SECONDS = 0.05
LOG_FILES = 6
CLEAN_PERCENT = 87.0
"""From 85 on the oldest files go, from 90 on sends would be refused."""
FIRST_LOOK_SECONDS = 0.05
"""After a start, before old files are looked for: lives are short here."""


class SmallFiles(FileSystem):
    """What the disk is used is told by the log's files; it is never too full for sends."""

    def used_percent(self, path: Path) -> float:
        folder = path if path.name == "commitlog" else path / "commitlog"
        is_full = sum(name.isdecimal() for name in os.listdir(folder)) >= LOG_FILES
        return CLEAN_PERCENT if is_full else 0.0


class JournalingFiles(SmallFiles):
    """Writes a journal line for each write and each sync: ``W number start end path``, ``S number path``.

    A sync covers the writes of its file whose number is below the one it drew when it began.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._paths: dict[int, Path] = {}
        self._numbers = itertools.count()

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._note(f"R {source}\t{target}\n")

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._note(f"W {next(self._numbers)} {position} {position + len(data)} {self._paths[fd]}\n")
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        number, path = next(self._numbers), self._paths[fd]
        super().sync(fd)
        self._note(f"S {number} {path}\n")

    def _note(self, line: str) -> None:
        os.write(self._journal, line.encode())


class EarlyFiles(JournalingFiles):
    """The planted bug: the log's fdatasync says that it is done and is done some time later."""

    def sync(self, fd: int) -> None:
        path = self._paths[fd]
        if path.parent.name != "commitlog" or path.suffix:
            super().sync(fd)
            return
        number = next(self._numbers)
        timer = threading.Timer(LATE_SECONDS, lambda: self._note(f"S {number} {path}\n"))
        timer.daemon = True
        timer.start()


def cut_power(journal: Path, rng: random.Random) -> int:
    """Take back what was written and never synced: each range whole, from some byte on, or not. Returns ranges hit."""
    unsynced: dict[str, list[tuple[int, int, int]]] = {}
    for line in journal.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "W":
            number, first, last, path = rest.split(" ", 3)
            unsynced.setdefault(path, []).append((int(number), int(first), int(last)))
        elif kind == "S":
            number, path = rest.split(" ", 1)
            unsynced[path] = [one for one in unsynced.get(path, []) if one[0] > int(number)]
        else:
            source, _, target = rest.partition("\t")
            unsynced[target] = unsynced.pop(source, [])
    hit = 0
    for path, ranges in unsynced.items():
        if not os.path.exists(path):
            continue
        with open(path, "r+b") as file:
            for _, start, end in ranges:
                lost_from = rng.choice((start, rng.randint(start, end), end))
                if lost_from < end:
                    file.seek(lost_from)
                    file.write(bytes(end - lost_from))
                    hit += 1
    journal.unlink()
    return hit


def main() -> None:
    kind, journal = sys.argv[1], Path(sys.argv[2])
    files = SmallFiles() if kind == "kept" else {"honest": JournalingFiles, "early": EarlyFiles}[kind](journal)
    cleaner.FIRST_LOOK_SECONDS = FIRST_LOOK_SECONDS  # type: ignore[misc]
    message_store.FileSystem = lambda: files  # type: ignore[assignment, attr-defined]  # every store of this process
    sys.argv[1:3] = []
    from rocketcore.cli.main import main as rocket

    rocket()


if __name__ == "__main__":
    main()
