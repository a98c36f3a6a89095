"""What it means that a handler returns or raises, and what is told of it."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from rocketcore.client.handler import check_handler
from rocketcore.errors import ConfigError
from rocketcore.message import ConsumeResult, ReceivedMessage, RetryLater
from tests.unit.client.consuming import Harness, run

SUCCESS, RETRY = ConsumeResult.SUCCESS, ConsumeResult.RETRY


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


async def _coroutine() -> None: ...


RETURNED: dict[str, tuple[Callable[[], object], ConsumeResult, str]] = {
    "nothing": (lambda: None, SUCCESS, ""),
    "success": (lambda: SUCCESS, SUCCESS, ""),
    "retry": (lambda: RETRY, RETRY, ""),
    "true": (lambda: True, SUCCESS, "value of type bool, which is ignored"),
    "number": (lambda: 0, SUCCESS, "value of type int, which is ignored"),
    "text": (lambda: "", SUCCESS, "value of type str, which is ignored"),
    "list": (lambda: [1], SUCCESS, "value of type list, which is ignored"),
    "coroutine": (_coroutine, SUCCESS, ""),
    "false": (lambda: False, RETRY, "handler returned False, which counts as a failure"),
    "exception": (lambda: ValueError("bad"), RETRY, r"handler returned ValueError\('bad'\), which counts as a failure"),
    "generator": (_generator, RETRY, "handler returned <generator .*, which counts as a failure"),
    "async-generator": (_async_generator, RETRY, "handler returned <async_generator .*, which counts as a failure"),
}


@pytest.mark.parametrize("on_loop", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize("name", RETURNED)
def test_what_a_returned_value_means(name: str, on_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    make, expected, told = RETURNED[name]

    def handle(message: ReceivedMessage) -> Any:
        return make()

    async def handle_on_loop(message: ReceivedMessage) -> Any:
        return make()

    async def body() -> None:
        harness = Harness()
        harness.service.set_handler("T", handle_on_loop if on_loop else handle)
        harness.fill(3)
        await harness.wait(3)
        assert [result for _, result, _ in harness.results] == [expected] * 3
        await harness.service.stop()

    run(body)
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    if not told:
        assert not texts
        return
    assert len(texts) == (1 if expected is SUCCESS else 3)  # a failure is told each time
    assert all(re.search(told, text) for text in texts)
    assert all("topic=T" in text and ("handle_on_loop" if on_loop else "handle") in text for text in texts)


def _asked(message: ReceivedMessage) -> None:
    raise RetryLater(delay=7)


def _from_a_cause(message: ReceivedMessage) -> None:
    try:
        raise KeyError("cause")
    except KeyError as error:
        raise RetryLater(delay=7) from error


def _while_handling(message: ReceivedMessage) -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        raise RetryLater(delay=7)  # noqa: B904


def _from_none(message: ReceivedMessage) -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        raise RetryLater(delay=7) from None


def _wrapped(function: Callable[[ReceivedMessage], None]) -> Callable[[ReceivedMessage], Awaitable[None]]:
    async def handle(message: ReceivedMessage) -> None:
        function(message)

    return handle


@pytest.mark.parametrize("on_loop", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize(
    ("function", "told"), [(_asked, False), (_from_a_cause, True), (_while_handling, True), (_from_none, False)]
)
def test_of_retry_later_its_cause_is_told(
    function: Callable[[ReceivedMessage], None], told: bool, on_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        harness = Harness()
        harness.service.set_handler("T", _wrapped(function) if on_loop else function)
        harness.fill(1)
        await harness.wait(1)
        assert harness.results[0][1:] == (RETRY, 7)
        await harness.service.stop()

    run(body)
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(records) == told
    for record in records:
        assert "handler asked for the message again" in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[0] is KeyError


@pytest.mark.parametrize("on_loop", [False, True], ids=["function", "coroutine"])
def test_the_traceback_of_a_handler_begins_with_the_handler(on_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: ReceivedMessage) -> None:
        raise ValueError("bad")

    async def handle_on_loop(message: ReceivedMessage) -> None:
        raise ValueError("bad")

    async def body() -> None:
        harness = Harness()
        harness.service.set_handler("T", handle_on_loop if on_loop else handle)
        harness.fill(1)
        await harness.wait(1)
        await harness.service.stop()

    run(body)
    [record] = [record for record in caplog.records if "handler failed" in record.getMessage()]
    assert record.exc_info is not None
    assert record.exc_info[2] is not None
    assert record.exc_info[2].tb_frame.f_code.co_name == ("handle_on_loop" if on_loop else "handle")


@pytest.mark.parametrize("handler", [_generator, _async_generator])
def test_a_generator_function_is_refused(handler: object) -> None:
    with pytest.raises(ConfigError, match=f"{handler.__name__}, is a generator function"):  # type: ignore[attr-defined]
        check_handler("orders", handler)


def _failing(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "told", "type_told"),
    [
        (ValueError("bad"), True, ValueError),
        (RetryLater(3), False, None),
        (SystemExit(), False, None),
    ],
)
def test_what_process_lets_go_no_further_is_told(
    error: BaseException, told: bool, type_told: type | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        harness = Harness()
        harness.fill(1)
        [message] = await harness.service.take(1)
        try:
            with message.process():
                _failing(error)
        except SystemExit:
            assert isinstance(error, SystemExit)
        assert [result for _, result, _ in harness.results] == [RETRY]

    run(body)
    records = [record for record in caplog.records if "processing failed" in record.getMessage()]
    assert [record.exc_info[0] for record in records if record.exc_info] == ([type_told] if told else [])


class _Unshowable(Exception):
    def __repr__(self) -> str:
        raise ZeroDivisionError("no repr")

    __str__ = __repr__


class _FailingLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log server is away")


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("failing_log", [False, True])
@pytest.mark.parametrize("on_loop", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize("function", [lambda: _raise(_Unshowable()), _Unshowable], ids=["raises", "returns"])
def test_what_goes_wrong_while_a_failure_is_told_ends_no_thread(
    function: Callable[[], object], on_loop: bool, failing_log: bool
) -> None:
    def handle(message: ReceivedMessage) -> Any:
        return function()

    async def handle_on_loop(message: ReceivedMessage) -> Any:
        return function()

    async def body() -> None:
        harness = Harness()
        harness.service.set_handler("T", handle_on_loop if on_loop else handle)
        harness.fill(30)
        await harness.wait(30)
        assert [result for _, result, _ in harness.results] == [RETRY] * 30
        await harness.service.stop()

    handler, logger = _FailingLog(), logging.getLogger("rocketcore")
    if failing_log:
        logger.addHandler(handler)
    try:
        run(body)
    finally:
        logger.removeHandler(handler)
