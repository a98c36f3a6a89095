"""The end of ``rocket consume``."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rocketcore.cli.messages.consume import _Ending
from rocketcore.errors import ClientClosed


class Consumer:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_a_consumer_that_is_closed_before_its_loop_begins_is_no_error() -> None:
    consumer: Any = Consumer()
    with _Ending(consumer, 0.0):
        assert consumer.closed.wait(30)
        raise ClientClosed("subscribe: the client was closed meanwhile")


def test_a_consumer_that_is_closed_by_nobody_here_is_one() -> None:
    consumer: Any = Consumer()
    with pytest.raises(ClientClosed), _Ending(consumer, None):
        raise ClientClosed("subscribe: the client was closed meanwhile")
