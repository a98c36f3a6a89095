"""What is told of failures that come again and again, with logging configured and without."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from rocketcore import warning
from rocketcore.service import ManualClock
from rocketcore.warning import MOST_KINDS, Recurring, cut_traceback, warn


@pytest.fixture
def unconfigured() -> logging.Logger:
    """A logger as the package's is where nobody has configured logging."""
    logger = logging.Logger("rocketcore.tested")
    logger.addHandler(logging.NullHandler())
    return logger


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _failure() -> ValueError:
    try:
        raise ValueError("bad")
    except ValueError as error:
        return error


def test_the_first_of_a_kind_is_printed_with_its_traceback_then_one_a_second_with_a_count(
    unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    failures = Recurring(unconfigured, clock)
    for number in range(500):
        failures.warn("a", "failed n=%d", number, error=_failure())
    first = capsys.readouterr().err
    assert first.startswith("failed n=0\nTraceback (most recent call last):\n")
    assert first.endswith("ValueError: bad\n")
    assert first.count("failed") == 1
    clock.advance(1.0)
    for number in range(500, 1000):
        failures.warn("a", "failed n=%d", number, error=_failure())
    assert capsys.readouterr().err == "failed n=500 more=499\n"
    failures.tell_rest()
    failures.tell_rest()
    assert capsys.readouterr().err == "499 more like: failed n=0\n"
    clock.advance(1.0)
    failures.warn("a", "failed n=%d", 1000, error=_failure())
    assert capsys.readouterr().err == "failed n=1000\n"


def test_each_kind_has_its_first(unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Recurring(unconfigured, ManualClock())
    for kind in ("a", "b", "a", "b"):
        failures.warn(kind, "failed kind=%s", kind, error=_failure())
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == printed.count("failed") == 2


def test_kinds_without_end_share_a_rate(unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Recurring(unconfigured, ManualClock())
    for kind in range(3 * MOST_KINDS):
        failures.warn(kind, "failed kind=%d", kind)
    failures.tell_rest()
    lines = capsys.readouterr().err.splitlines()
    assert lines[MOST_KINDS:] == [
        f"failed kind={MOST_KINDS}",
        f"{2 * MOST_KINDS - 1} more like: failed kind={MOST_KINDS}",
    ]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_who_has_configured_logging_gets_a_record_of_each_failure(
    unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str], level: int
) -> None:
    records = _Records()
    unconfigured.addHandler(records)
    failures = Recurring(unconfigured, ManualClock())
    for number in range(3):
        failures.warn("a", "failed n=%d", number, error=_failure(), level=level)
    failures.tell_rest()
    assert [record.getMessage() for record in records.records] == ["failed n=0", "failed n=1", "failed n=2"]
    assert {record.levelno for record in records.records} == {level}
    assert all(record.exc_info is not None for record in records.records)
    assert capsys.readouterr().err == ""


def test_below_a_warning_nothing_is_printed(unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    Recurring(unconfigured).warn("a", "failed", level=logging.INFO)
    unconfigured.setLevel(logging.CRITICAL)
    Recurring(unconfigured).warn("a", "failed")
    warn(unconfigured, "failed")
    assert capsys.readouterr().err == ""


def test_an_argument_that_cannot_be_shown_breaks_nothing(
    unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    failures = Recurring(unconfigured)
    failures.warn("a", "failed what=%s", Unprintable())
    failures.warn("a", "failed what=%s", Unprintable())
    failures.tell_rest()
    assert "1 more like: failed what=<Unprintable that cannot be shown>" in capsys.readouterr().err


def test_many_threads_print_one_first(unconfigured: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Recurring(unconfigured, ManualClock())
    begin = threading.Barrier(8)

    def fail() -> None:
        begin.wait()
        for _ in range(100):
            failures.warn("a", "failed")

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures.tell_rest()
    assert capsys.readouterr().err == "failed\n799 more like: failed\n"


def test_a_forked_child_can_warn_though_another_thread_held_the_lock(unconfigured: logging.Logger) -> None:
    held, done = threading.Event(), threading.Event()
    failures = Recurring(unconfigured, ManualClock())
    for _ in range(3):
        failures.warn("a", "failed")

    def hold() -> None:
        with warning._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        failures.warn("b", "failed")
        os._exit(1 if failures.forget_rest() else 0)  # the parent tells of its own
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_traceback_begins_at_the_first_frame_that_is_not_ours() -> None:
    def of_user() -> None:
        raise ValueError("bad")

    names = {"function": of_user}
    code = compile("def ours(): function()", warning.__file__, "exec")
    exec(code, names)
    try:
        names["ours"]()
    except ValueError as error:
        trace = error.__traceback__
    assert trace is not None
    part = cut_traceback(trace.tb_next)
    assert part is not None
    assert part.tb_frame.f_code.co_name == "of_user"
    assert cut_traceback(None) is None


def test_a_traceback_of_our_frames_alone_stays_whole() -> None:
    names: dict[str, object] = {}
    exec(compile("def ours(): raise ValueError", warning.__file__, "exec"), names)
    function = names["ours"]
    assert callable(function)
    try:
        function()
    except ValueError as error:
        trace = error.__traceback__
    assert trace is not None
    assert cut_traceback(trace.tb_next) is trace.tb_next


class _Unshowable(Exception):
    def __repr__(self) -> str:
        raise ZeroDivisionError("no repr")

    __str__ = __repr__


class _Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log server is away")


@pytest.mark.parametrize("by", ["warn", "recurring"])
def test_what_goes_wrong_while_a_failure_is_told_goes_no_further(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger, records = logging.Logger("rocketcore.tested"), _Records()
    logger.addHandler(records)
    logger.addHandler(_Failing())
    if by == "warn":
        warn(logger, "failed n=%d error=%r", 1, _Unshowable())
    else:
        Recurring(logger).warn("a", "failed n=%d error=%r", 1, _Unshowable(), error=_Unshowable())
    assert [each.getMessage() for each in records.records] == ["failed n=1 error='<_Unshowable that cannot be shown>'"]
    printed = capsys.readouterr().err
    assert printed.startswith("not logged: failed n=1 error=")
    assert "OSError: the log server is away" in printed
