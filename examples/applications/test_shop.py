"""Tests of code that sends and handles messages: pytest test_shop.py

The fixture ``rocketmq`` comes with rocketcore: a cluster for the session, topics and clients for each test.
"""

from __future__ import annotations

import pytest

import rocketcore as rmq
from rocketcore.testing import TestClients


def place_order(producer: rmq.Producer, topic: str, order_id: str, amount: int) -> None:
    """The code that is tested: in yours, an import."""
    if amount <= 0:
        raise ValueError("an order has an amount")
    producer.send(topic, json={"id": order_id, "amount": amount}, tag="created", keys=order_id)


def test_an_order_is_published(rocketmq: TestClients) -> None:
    topic = rocketmq.topic()
    place_order(rocketmq.producer(), topic, "o-1", 5)
    [message] = rocketmq.drain(topic, expect=1, timeout=10)
    assert (message.tag, message.keys) == ("created", ("o-1",))
    assert message.json() == {"id": "o-1", "amount": 5}


def test_an_order_without_an_amount_is_not(rocketmq: TestClients) -> None:
    topic = rocketmq.topic()
    with pytest.raises(ValueError, match="an order has an amount"):
        place_order(rocketmq.producer(), topic, "o-2", 0)
    assert rocketmq.drain(topic, expect=0, timeout=0.2) == []
