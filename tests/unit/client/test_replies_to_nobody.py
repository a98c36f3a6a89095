"""A reply whose asker is gone: ordinary, and no warning."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rocketcore.client.replies import Replies
from rocketcore.errors import BrokerError
from rocketcore.message import Message


@pytest.mark.parametrize(
    ("remark", "level", "said"),
    [
        (
            "push reply message fail, channel of <c@1> not found.",
            logging.INFO,
            "no request waits for this reply any more",
        ),
        ("something else", logging.WARNING, "reply not sent"),
    ],
)
def test_the_asker_is_gone(remark: str, level: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    class Refusing:
        async def send(self, reply: Message) -> Any:
            raise BrokerError(1, remark)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        replies = Replies.__new__(Replies)
        replies._sender, replies._group, replies._loop = Refusing(), "g", loop  # type: ignore[assignment]
        replies._tasks, replies._futures = set(), set()
        future = replies.send(Message("T", b"x"))
        await replies.finish(5)
        assert "push" in str(future.exception(0)) or "else" in str(future.exception(0))

    caplog.set_level(logging.INFO, "rocketcore.client.replies")
    asyncio.run(run())
    [record] = [each for each in caplog.records if each.name == "rocketcore.client.replies"]
    assert (record.levelno, said in record.getMessage()) == (level, True)
