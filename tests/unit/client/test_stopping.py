"""The one handler of a process for SIGINT and SIGTERM."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from rocketcore.client.stopping import Leaving, Stopping, exit_by

WAIT = 30.0
STOPS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[list[object]]:
    """Have the signals do what they do in a new interpreter; in the end they must do so again."""
    before = [
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGTERM, signal.SIG_DFL),
    ]
    try:
        yield [signal.default_int_handler, signal.SIG_DFL]
        assert [signal.getsignal(number) for number in STOPS] == [signal.default_int_handler, signal.SIG_DFL]
    finally:
        for number, handler in zip(STOPS, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("leave", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_first_signal_tells_all_that_are_left(
    number: signal.Signals, leave: tuple[int, ...], defaults: list[object]
) -> None:
    told: list[int] = []
    entries = [Stopping(lambda index=index: told.append(index)) for index in range(3)]  # type: ignore[misc]
    for entry in entries:
        entry.__enter__()
    entries[leave[0]].restore()
    os.kill(os.getpid(), number)
    assert sorted(told) == sorted(leave[1:])
    assert [entry.signal for entry in entries] == [None if index == leave[0] else number for index in range(3)]
    assert [signal.getsignal(each) for each in STOPS] == defaults
    for index in leave[1:]:
        entries[index].restore()


@pytest.mark.parametrize("leave", [(0, 1), (1, 0)])
def test_the_last_to_leave_restores_what_was_before(leave: tuple[int, int], defaults: list[object]) -> None:
    entries = [Stopping(list), Stopping(list)]
    for entry in entries:
        entry.__enter__()
    entries[leave[0]].restore()
    assert [signal.getsignal(number) for number in STOPS] != defaults
    entries[leave[1]].restore()
    assert [signal.getsignal(number) for number in STOPS] == defaults


def test_a_block_is_left_by_the_signal_after_the_one_that_ends_the_work() -> None:
    with Leaving(exit_by) as leaving, Stopping(list) as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (leaving.signal, stopping.signal) == (None, signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_one_that_raises_keeps_no_other_from_being_told() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    told: list[int] = []
    with (
        pytest.raises(ZeroDivisionError),
        Stopping(lambda: told.append(1)),
        Stopping(fail),
        Stopping(lambda: told.append(2)),
    ):
        os.kill(os.getpid(), signal.SIGINT)
    assert sorted(told) == [1, 2]


def test_one_that_was_dropped_on_another_thread_is_told_nothing() -> None:
    told: list[int] = []
    entry = Stopping(lambda: told.append(1)).__enter__()
    thread = threading.Thread(target=entry.restore)
    thread.start()
    thread.join(WAIT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not told
    Stopping(list).__enter__().restore()


def _fork(run: Callable[[], object]) -> int:
    """Return the status of a child by fork() that runs a function."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("kind", [Stopping, Leaving])
@pytest.mark.parametrize("by_thread", [False, True])
def test_a_forked_child_ends_by_sigterm(kind: type[Stopping], by_thread: bool) -> None:
    codes: list[int] = []

    def work() -> None:
        codes.append(_fork(lambda: os.kill(os.getpid(), signal.SIGTERM)))

    with kind(list) as entry:
        if by_thread:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(WAIT)
        else:
            work()
        assert codes == [-signal.SIGTERM]
        assert entry.signal is None
        os.kill(os.getpid(), signal.SIGTERM)  # the parent is still told
        assert entry.signal is signal.SIGTERM


def test_processes_of_multiprocessing_are_terminated() -> None:
    context = multiprocessing.get_context("fork")
    with Stopping(list):
        process = context.Process(target=threading.Event().wait)
        process.start()
        process.terminate()
        process.join(WAIT)
        assert process.exitcode == -signal.SIGTERM
        with context.Pool(2) as pool:
            assert pool.map(len, ["a", "bc"]) == [1, 2]
