"""A small JSON file in two generations, replaced atomically, that never stops a start.

Layout     ``<name>`` and ``<name>.bak``: one JSON object each. The last member, ``crc32``, is the CRC-32 of every byte
           before its comma; a file without it (one written by Apache RocketMQ) is taken as it is.
Save       ``config_file.replace_file``: after a crash at any step the current name holds a whole generation. After a
           deletion both generations are replaced.
Load       the current file, or ``.bak`` where it is missing, damaged or fails its checksum, or nothing. A damaged one
           is put aside as ``<name>.damaged``: the next save would make it the older generation in place of a good one.
           One that may not be read, for want of a right or a descriptor, ends the start.
Upstream   ``ConfigManager``, ``MixAll.string2File`` (5.5.0), where a damaged ``.bak`` stops the broker.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rocketcore._fast.crc32 import crc32
from rocketcore.config_file import replace_file
from rocketcore.disk import is_passing
from rocketcore.errors import RocketError
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

RETRY_SECONDS = 5.0

_CHECKSUM = re.compile(rb',\s*"crc32":(\d{1,10})\}\s*\Z')


class JsonFile:
    """One file of the configuration folder; ``save`` blocks on the disk, so it runs on a ``StateWriter``.

    is_older  what ``load`` returned is of the older generation: the last change is missing in it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self.is_older = False
        self._last: bytes | None = None
        self._older: bytes | None = None

    def load(self, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what ``parse`` makes of the newest generation that it takes, or None if there is none.

        Damage is logged, never raised: a generation that the disk does not give, is no JSON object, fails its checksum,
        or that ``parse`` refuses (RocketError, ValueError) counts as missing.

        raises  OSError where one may be read the next time: it would count as missing, and be replaced, for good
        """
        for path in (self.path, self.backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                if is_passing(error):
                    raise
                logger.error("state file unreadable path=%s error=%s", path, error)
                self._put_aside(path)
                continue
            try:
                value = parse(read_object(text))
            except (ValueError, RocketError) as error:
                logger.error("state file damaged path=%s bytes=%d error=%s", path, len(text), error)
                self._put_aside(path)
                continue
            self.is_older = path is self.backup
            return value
        return None

    def _put_aside(self, path: Path) -> None:
        try:
            path.replace(path.with_name(path.name + ".damaged"))
        except OSError as error:
            logger.error("damaged state file not put aside path=%s error=%s", path, error)

    def save(self, text: bytes, *, both: bool = False) -> None:
        """Replace the file by a JSON object; unchanged text is not written again, while it is there. Raises OSError.

        both  the older generation as well
        """
        if not self.path.exists():
            self._last = None
        if text != self._last or (both and text != self._older):
            older, self._last = self._last, None
            replace_file(self.path, _with_checksum(text), both=both)
            self._last, self._older = text, text if both else older


def drop_misfits(kind: type[Body], table: Any) -> Iterator[tuple[str, str]]:
    """Take numbers that do not fit their field out of a table of parsed JSON; yields whose they were, and which."""
    for name, value in table.items() if isinstance(table, dict) else ():
        if misfits := kind.drop_misfits(value):
            yield name, ", ".join(misfits)


class StateWriter:
    """Writes state files on one thread, so that no fsync runs on the event loop.

    Changes of a busy moment share a write. Belongs to one event loop. A write that fails, for want of a descriptor or
    of room for example, is logged and tried again after a while, with the next one, for whoever waits in ``flushed``,
    and at the end.
    """

    def __init__(self, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._retry: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="broker-state")
        self._dirty: dict[JsonFile, Callable[[], bytes]] = {}
        self._outdated: set[JsonFile] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: list[asyncio.Future[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def save(self, file: JsonFile, encode: Callable[[], bytes], *, both: bool = False) -> None:
        """Write a file soon; ``encode`` is called then, so the text holds every change made before.

        both  its older generation as well, because something was deleted
        """
        self._dirty[file] = encode
        if both:
            self._outdated.add(file)
        self._begin()

    async def flushed(self) -> None:
        """Wait until every change so far is on disk; raises the error of a write that failed, mostly an OSError."""
        future = asyncio.get_running_loop().create_future()
        if self._dirty:
            self._waiting.append(future)
            self._begin()
        elif self._writing is not None:
            self._writing.append(future)
        else:
            return
        await future

    async def close(self) -> None:
        """Write what is left and end the thread."""
        if self._dirty:
            self._begin()
        if self._task is not None:
            await self._task
        if self._retry is not None:
            self._retry.cancel()
        self._pool.shutdown(wait=True)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="broker-state")

    async def _run(self) -> None:
        while self._dirty:
            batch, self._dirty = self._dirty, {}
            self._writing, self._waiting = self._waiting, []
            outdated, self._outdated = self._outdated, set()
            texts, failures = _each(batch, lambda _, encode: encode())
            save = functools.partial(_save, outdated=outdated)
            failures |= (await asyncio.get_running_loop().run_in_executor(self._pool, _each, texts, save))[1]
            done, self._writing = self._writing, None
            self._outdated |= outdated & failures.keys()
            for future in done:
                if future.done():
                    continue
                if failures:
                    future.set_exception(next(iter(failures.values())))
                else:
                    future.set_result(None)
            changed = bool(self._dirty)
            self._dirty = {**{file: batch[file] for file in failures}, **self._dirty}
            if failures and not changed:
                if self._retry is not None:
                    self._retry.cancel()
                self._retry = asyncio.get_running_loop().call_later(self._retry_seconds, self._begin)
                return


def _save(file: JsonFile, text: bytes, *, outdated: Collection[JsonFile]) -> None:
    file.save(text, both=file in outdated)


def _each(
    batch: Mapping[JsonFile, A], function: Callable[[JsonFile, A], B]
) -> tuple[dict[JsonFile, B], dict[JsonFile, Exception]]:
    """Return what a function makes of each file of a batch, and what it fails with."""
    done: dict[JsonFile, B] = {}
    failures: dict[JsonFile, Exception] = {}
    for file, value in batch.items():
        try:
            done[file] = function(file, value)
        except Exception as error:
            expected = isinstance(error, OSError)
            logger.error("state file not saved path=%s error=%s", file.path, error, exc_info=not expected)
            failures[file] = error
    return done, failures


def read_object(text: bytes) -> dict[str, Any]:
    """Return what a generation of a file holds.

    raises  ValueError for one that is no JSON object or fails its checksum; RocketError
    """
    found = _CHECKSUM.search(text)
    if found is not None and crc32(text[: found.start()]) != int(found[1]):
        raise ValueError("the checksum does not fit")
    # Our own file may be as large as it has to be.
    value = fastjson.loads(text, max_values=sys.maxsize)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _with_checksum(text: bytes) -> bytes:
    head = text.rstrip()
    if not head.endswith(b"}") or head == b"{}":
        raise ValueError("a state file holds a JSON object with at least one member")
    head = head[:-1]
    return b'%b,"crc32":%d}\n' % (head, crc32(head))
