"""The pytest plugin as a stranger has it: in a pytest of its own, with and without the plugins that run coroutines."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

BODY = """
    import asyncio
    import threading

    import pytest
    import rocketcore as rmq
    {imports}

    TASKS = []

    def on_order(message):
        assert threading.current_thread() is not threading.main_thread()

    async def later(message):
        await asyncio.sleep(0)

    def fails(message):
        raise ValueError("no such order")

    {mark}
    async def test_orders(aio_rocketmq):
        seen = aio_rocketmq.consumer("orders", handler=on_order)
        await aio_rocketmq.producer().send("orders", b"x")
        assert [message.body for message in await seen.wait_for(1, timeout=20)] == [b"x"]
        TASKS.append((seen.consumer, asyncio.get_running_loop()))

    {mark}
    async def test_the_first_ones_clients_are_closed(aio_rocketmq):
        [(consumer, loop)] = TASKS
        assert loop.is_closed() or loop is asyncio.get_running_loop() or not loop.is_running()
        with pytest.raises(rmq.RocketError):
            await consumer.start()

    class TestOfAClass:
        {mark}
        async def test_a_coroutine_handler(self, aio_rocketmq):
            topic = aio_rocketmq.topic()
            seen = aio_rocketmq.consumer(topic, handler=later)
            await aio_rocketmq.producer().send_batch([rmq.Message(topic, str(i)) for i in range(5)])
            assert len(await aio_rocketmq.drain(topic, expect=5)) == 5
            await seen.wait_for(5, timeout=20)
            pull = aio_rocketmq.pull_consumer(topic)
            got = []
            while len(got) < 5:
                got += await pull.poll(5.0)
            await aio_rocketmq.wait_until(lambda: len(seen.messages) == 5)

    {mark}
    async def test_what_is_missing_is_said(aio_rocketmq):
        topic = aio_rocketmq.topic()
        seen = aio_rocketmq.consumer(topic, handler=fails)
        await aio_rocketmq.producer().send(topic, b"x")
        await aio_rocketmq.wait_until(lambda: seen._error is not None, 20)
        with pytest.raises(AssertionError, match="has handled 0 messages after 0.1 s, 1 were expected.*no such order"):
            await seen.wait_for(1, timeout=0.1)

    @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
    {mark}
    async def test_what_a_test_raises_is_raised(aio_rocketmq):
        aio_rocketmq.consumer("orders", handler=later)
        1 / 0
"""

SYNC = """
    import pytest
    import rocketcore as rmq
    from rocketcore.testing import wait_until

    def on_order(message):
        if message.body == b"bad":
            raise ValueError("no such order")

    def test_seen(rocketmq):
        seen = rocketmq.consumer("orders", handler=on_order)
        rocketmq.producer().send("orders", b"x")
        [message] = seen.wait_for(1, timeout=20)
        assert message.body == b"x"
        rocketmq.producer().send("orders", b"bad")
        rocketmq.wait_until(lambda: seen._error is not None, 20)
        with pytest.raises(AssertionError, match="has handled 1 messages after 0.1 s, 2 were expected.*no such order"):
            seen.wait_for(2, timeout=0.1)
        with pytest.raises(AssertionError, match="an empty shop did not hold within 0.05 s"):
            wait_until(lambda: not seen.messages, 0.05, "an empty shop")

    def test_without_a_handler_it_is_a_consumer(rocketmq):
        topic = rocketmq.topic()
        rocketmq.producer().send(topic, b"x")
        for message in rocketmq.consumer(topic):
            assert message.body == b"x"
            break

    def test_a_named_topic_stays_as_it_is(rocketmq):
        assert rocketmq.topic(3, name="named") == rocketmq.topic(3, name="named") == "named"
        with pytest.raises(rmq.TopicExists):
            rocketmq.topic(2, name="named")
"""

REFUSED = """
    def test_plain(aio_rocketmq):
        pass
"""


def run(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    path = folder / "test_example.py"
    path.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *arguments,
            path,
        ],
        cwd=folder,
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("runner", ["nobody", "anyio", "pytest_asyncio"])
def test_coroutine_tests(tmp_path: Path, runner: str) -> None:
    if runner != "nobody" and importlib.util.find_spec(runner) is None:
        pytest.skip(f"needs {runner}")
    mark = {"nobody": "", "anyio": '@pytest.mark.anyio("asyncio")', "pytest_asyncio": "@pytest.mark.asyncio"}[runner]
    imports = "anyio_backend = pytest.fixture(lambda: 'asyncio')" if runner == "anyio" else ""
    others = () if runner == "anyio" else ("-p", "no:anyio")
    code, said = run(tmp_path, BODY.format(mark=mark, imports=imports), *others)
    assert "4 passed, 1 xfailed" in said, said
    assert code == 0


def test_plain_tests(tmp_path: Path) -> None:
    """One is told which fixture it wants."""
    code, said = run(tmp_path, SYNC + REFUSED)
    assert "3 passed, 1 error" in said, said
    assert code == 1
    assert "aio_rocketmq is for tests that are coroutine functions; others have rocketmq" in said
