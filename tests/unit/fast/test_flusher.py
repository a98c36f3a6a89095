"""Works on the flush thread and on the caller's: order, errors, what is told when, and the same by either way."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast.flusher import Flusher, Work
from rocketcore.broker.store.file_system import FileSystem

Errors = list[BaseException | None]


class Counting(FileSystem):
    """Not direct: notes the calls, and the thread that made them; one of them can fail."""

    def __init__(self, fails: int = -1, error: BaseException | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()
        self._fails = fails
        self._error = error

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._note("write", bytes(data), position)
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        self._note("sync")
        super().sync(fd)

    def _note(self, *call: Any) -> None:
        self.threads.add(threading.current_thread().name)
        if len(self.calls) == self._fails and self._error is not None:
            raise self._error
        self.calls.append(call)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


def work_of(files: FileSystem | None, fd: int, *pieces: tuple[bytes, int], path: str = "file") -> Work:
    """Return a work that writes pieces at positions and then syncs."""
    work = Work(files)
    for data, position in pieces:
        work.write(fd, path, data, 0, len(data), position)
    work.sync(fd, path)
    return work


def flushing(scenario: Callable[[Flusher], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a flusher, which is stopped at its end."""

    async def run() -> None:
        flusher = Flusher("flush", asyncio.get_running_loop())
        try:
            async with asyncio.timeout(60):
                await scenario(flusher)
        finally:
            flusher.stop()

    asyncio.run(run())


async def told(flusher: Flusher, work: Work) -> BaseException | None:
    answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    flusher.submit(work, answer.set_result)
    return await answer


@pytest.mark.parametrize("files", [None, FileSystem(), Counting()])
def test_works_are_done_in_order_and_told_on_the_loop(path: Path, files: FileSystem | None) -> None:
    order: list[tuple[int, str]] = []

    async def scenario(flusher: Flusher) -> None:
        with path.open("r+b") as file:
            for number in range(50):
                work = work_of(files, file.fileno(), (b"%02d" % number, 0), (b"%02d" % number, 2 + number * 2))
                flusher.submit(work, lambda error, number=number: order.append((number, str(error))))  # type: ignore[misc]
            assert await told(flusher, Work()) is None

    flushing(scenario)
    assert order == [(number, "None") for number in range(50)]
    assert path.read_bytes() == b"49" + b"".join(b"%02d" % number for number in range(50))


def test_files_that_are_not_direct_are_asked_on_the_flush_thread(path: Path) -> None:
    files = Counting()

    async def scenario(flusher: Flusher) -> None:
        with path.open("r+b") as file:
            assert await told(flusher, work_of(files, file.fileno(), (b"ab", 0), (b"c", 7))) is None

    flushing(scenario)
    assert files.calls == [("write", b"ab", 0), ("write", b"c", 7), ("sync",)]
    assert files.threads == {"flush"}


@pytest.mark.parametrize("way", ["direct", "counted"])
def test_after_an_error_nothing_reaches_the_disk(path: Path, way: str) -> None:
    files = Counting(1, OSError(errno.EIO, "no")) if way == "counted" else None

    async def scenario(flusher: Flusher) -> None:
        with path.open("r+b") as file, path.open("rb") as read_only:
            fd = file.fileno()
            assert await told(flusher, work_of(files and Counting(), fd, (b"sound", 0))) is None
            first = Work(files)
            first.write(fd, "good", b"1", 0, 1, 5)
            first.write(fd if way == "counted" else read_only.fileno(), "bad", b"2", 0, 1, 6)
            first.write(fd, "good", b"3", 0, 1, 7)
            error = await told(flusher, first)
            assert isinstance(error, OSError)
            assert (error.errno, error.filename) == (errno.EIO if way == "counted" else errno.EBADF, "bad")
            again = await told(flusher, work_of(files and Counting(), fd, (b"later", 8)))
            assert again is error
            assert await told(flusher, Work()) is None, "nothing was asked of the disk"

    flushing(scenario)
    assert path.read_bytes() == b"sound1"


def test_what_files_raise_is_told_whatever_it_is(path: Path) -> None:
    failure = RuntimeError("not of the disk")

    async def scenario(flusher: Flusher) -> None:
        with path.open("r+b") as file:
            assert await told(flusher, work_of(Counting(0, failure), file.fileno(), (b"x", 0))) is failure

    flushing(scenario)
    with path.open("r+b") as file, pytest.raises(RuntimeError, match="not of the disk"):
        work_of(Counting(0, failure), file.fileno(), (b"x", 0)).run()


def test_a_stop_does_what_was_submitted_and_tells(path: Path) -> None:
    errors: Errors = []

    async def run() -> None:
        flusher = Flusher("flush", asyncio.get_running_loop())
        with path.open("r+b") as file:
            flusher.submit(work_of(None, file.fileno(), (b"last", 0)), errors.append)
            flusher.stop()
        assert errors == [None]
        flusher.stop()
        assert "flush" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(run())
    assert path.read_bytes() == b"last"


def test_a_listener_that_fails_is_the_loops_to_tell_and_the_next_is_told(path: Path) -> None:
    contexts: list[dict[str, Any]] = []

    async def scenario(flusher: Flusher) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))

        def fails(error: BaseException | None) -> None:
            raise ValueError("listener")

        flusher.submit(Work(), fails)
        assert await told(flusher, Work()) is None

    flushing(scenario)
    assert [str(context["exception"]) for context in contexts] == ["listener"]


def test_a_buffer_is_held_until_its_work_is_done(path: Path) -> None:
    data = bytearray(b"held")

    async def scenario(flusher: Flusher) -> None:
        with path.open("r+b") as file:
            work = Work()
            work.write(file.fileno(), "file", data, 0, 4, 0)
            with pytest.raises(BufferError):
                data.extend(b"x")
            assert await told(flusher, work) is None
        data.extend(b"x")

    flushing(scenario)
    assert path.read_bytes() == b"held"


@pytest.mark.parametrize(("begin", "end", "position"), [(-1, 2, 0), (0, 5, 0), (2, 2, 0), (3, 2, 0), (0, 1, -1)])
def test_a_range_that_is_not_within_its_buffer_is_refused(begin: int, end: int, position: int) -> None:
    work = Work()
    with pytest.raises(ValueError, match="of 4, at position"):
        work.write(0, "file", b"data", begin, end, position)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 2000)), max_size=8),
    limit=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_either_way_leaves_the_same_bytes_and_error(
    pieces: list[tuple[bytes, int]], limit: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where a file may not grow beyond a limit: a write is cut short there, and the next takes nothing."""
    folder = tmp_path_factory.mktemp("ways")
    found = []
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for name, files in (("direct", None), ("counted", Counting())):
            with (folder / name).open("w+b") as file:
                error = None
                if limit is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
                try:
                    work_of(files, file.fileno(), *pieces).run()
                except OSError as caught:
                    error = caught.errno
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
                found.append((error, (folder / name).read_bytes()))
    finally:
        signal.signal(signal.SIGXFSZ, handler)
    assert found[0] == found[1]
    assert (found[0][0] == errno.EFBIG) == (limit is not None and any(at + len(data) > limit for data, at in pieces))


def test_a_thread_that_waits_costs_no_descriptor_when_it_is_stopped() -> None:
    async def run() -> None:
        flusher = Flusher("flush", asyncio.get_running_loop())
        flusher.stop()

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
