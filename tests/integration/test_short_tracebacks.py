"""What a caller of the public interface sees of a mistake: his own lines, and hardly any of ours."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

PACKAGE = str(Path(rmq.__file__).parent)
NOWHERE = "127.0.0.1:1"


def frames(error: BaseException) -> tuple[int, int]:
    """Return how many lines of our files a printed traceback has, causes included, and how many of this file."""
    text = "".join(traceback.format_exception(error))
    return text.count(f'File "{PACKAGE}'), text.count(f'File "{__file__}"')


class Bad:
    def __str__(self) -> str:
        return "bad"


MISTAKES: dict[str, Callable[[Any, Any, Any, str], Any]] = {
    "a body of a wrong type": lambda p, c, a, t: p.send(t, {"id": 1}),
    "a key of a wrong type": lambda p, c, a, t: p.send(t, b"x", keys=[Bad()]),
    "a value that JSON has not": lambda p, c, a, t: p.send(t, json={"at": Bad()}),
    "an empty body": lambda p, c, a, t: p.send(t, b""),
    "a topic that cannot be": lambda p, c, a, t: p.send("no spaces", b"x"),
    "an option that is misspelt": lambda p, c, a, t: p.send(t, b"x", tags="a"),
    "too many arguments": lambda p, c, a, t: p.send(t, b"x", 3),
    "send_nowait of a wrong type": lambda p, c, a, t: p.send_nowait(t, 5),
    "a batch that is none": lambda p, c, a, t: p.send_batch(5),
    "a queue that is not there": lambda p, c, a, t: p.send(t, b"x", queue=rmq.MessageQueue(t, "nobody", 9)),
    "a time-out that is none": lambda p, c, a, t: p.send(t, b"x", timeout=-1),
    "a poll without a subscription": lambda p, c, a, t: c.poll(0.1),
    "a seek in a queue of others": lambda p, c, a, t: c.seek(rmq.MessageQueue(t, "broker-a", 0), 0),
    "a pause of a queue of others": lambda p, c, a, t: c.pause([rmq.MessageQueue(t, "broker-a", 0)]),
    "a commit of nonsense": lambda p, c, a, t: c.commit(5),
    "a subscription by two ways": lambda p, c, a, t: c.subscribe(t, tag="a", sql="b = 1"),
}
ADMIN: dict[str, Callable[[Any, str], Any]] = {
    "a topic that is there": lambda a, t: a.create_topic(t),
    "no queues": lambda a, t: a.create_topic("other", 0),
    "a topic that is not there": lambda a, t: a.update_topic("no-such-topic", 3),
    "a change of nothing": lambda a, t: a.update_topic(t),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "a group that cannot be": lambda module: module.PushConsumer(NOWHERE, group="no spaces"),
    "no group": lambda module: module.PullConsumer(NOWHERE),
    "an option that is not there": lambda module: module.Producer(NOWHERE, groop="g"),
    "a setting of a wrong kind": lambda module: module.Producer(NOWHERE, timeout="3"),
    "an address that is none": lambda module: module.SimpleConsumer("no address", group="g"),
}


def check(error: BaseException) -> None:
    ours, own = frames(error)
    assert ours <= 3, "".join(traceback.format_exception(error))
    assert own >= 1
    assert isinstance(error, (rmq.RocketError, TypeError))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_a_blocking_client(cluster: LocalCluster, make_topic: Callable[..., str], name: str) -> None:
    topic = make_topic()
    with (
        rmq.Producer(cluster.namesrv, group="p") as producer,
        rmq.PullConsumer(cluster.namesrv, group="short-tracebacks") as consumer,
    ):
        try:
            MISTAKES[name](producer, consumer, None, topic)
        except Exception as error:
            check(error)
            return
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_an_asyncio_client(cluster: LocalCluster, make_topic: Callable[..., str], name: str) -> None:
    topic = make_topic()

    async def main() -> None:
        async with (
            aio.Producer(cluster.namesrv, group="p") as producer,
            aio.PullConsumer(cluster.namesrv, group="short-tracebacks") as consumer,
        ):
            try:
                result = MISTAKES[name](producer, consumer, None, topic)
                if isinstance(result, Coroutine):
                    await result
            except Exception as error:
                check(error)
                return
        pytest.fail("nothing was raised")

    asyncio.run(main())


@pytest.mark.parametrize("name", ADMIN)
def test_a_mistake_with_an_admin(cluster: LocalCluster, make_topic: Callable[..., str], name: str) -> None:
    topic = make_topic()
    with rmq.Admin(cluster.namesrv) as admin:
        try:
            ADMIN[name](admin, topic)
        except Exception as error:
            check(error)
            return
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("module", [rmq, aio], ids=["blocking", "aio"])
@pytest.mark.parametrize("name", MADE)
def test_a_client_that_cannot_be_made(module: Any, name: str) -> None:
    try:
        MADE[name](module)
    except Exception as error:
        check(error)
    else:
        pytest.fail("nothing was raised")


def test_a_server_that_is_not_there() -> None:
    with rmq.Producer(NOWHERE, group="p", timeout=0.3) as producer:
        try:
            producer.send("T", b"x")
        except rmq.RocketError as error:
            check(error)
        else:
            pytest.fail("nothing was raised")


def selecting(group: str, queues: Any) -> Any:
    raise TypeError("a mistake of the application")


def test_frames_of_the_application_stay(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    with (
        rmq.Producer(cluster.namesrv, group="p", selector=selecting) as producer,
        pytest.raises(TypeError, match="a mistake of the application") as raised,
    ):
        producer.send(topic, b"x", message_group="g")
    assert "in selecting" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("way", ["environment", "logger"])
def test_the_whole_traceback_is_to_be_had(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if way == "environment":
        monkeypatch.setenv("ROCKETCORE_DEBUG", "1")
    else:
        caplog.set_level(logging.DEBUG, "rocketcore.client.tracebacks")
    with pytest.raises(rmq.ConfigError) as raised:
        rmq.PushConsumer(NOWHERE, group="no spaces", timeout="3")  # type: ignore[arg-type]
    if way == "environment":
        assert frames(raised.value)[0] > 3
    else:
        assert frames(raised.value)[0] <= 3
        assert "check" in caplog.text
