"""Batches (broker.md §8.4)."""

from __future__ import annotations

import pytest

from tests.conformance.broker.connection import Connection, batch_body, properties_of, send_fields
from tests.reference import properties

TWO = batch_body((b"a", {"UNIQ_KEY": "1", "TAGS": "t"}), (b"b", {"UNIQ_KEY": "2"}))


def test_elements_are_messages(broker: Connection) -> None:
    """Their properties are stored as they were sent."""
    topic = broker.topic(queues=2)
    broker.sent(topic, b"x", queue=1)
    answer = broker.ask(320, send_fields(topic, queue=1, m="true"), TWO)
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("1", "1")
    broker.wait_for_offset(topic, 1, 3)
    records = broker.pull(topic, 1, queue=1).records
    assert [record.physical_offset for record in records] == [
        int(msg_id[16:], 16) for msg_id in answer.fields["msgId"].split(",")
    ]
    assert [(record.body, record.queue_offset, record.flag) for record in records] == [(b"a", 1, 3), (b"b", 2, 3)]
    assert [properties_of(record) for record in records] == [{"UNIQ_KEY": "1", "TAGS": "t"}, {"UNIQ_KEY": "2"}]


def test_what_makes_a_batch_is_the_field(broker: Connection) -> None:
    topic = broker.topic()
    assert broker.ask(310, send_fields(topic, m="true"), TWO).code == 0
    broker.wait_for_offset(topic, 0, 2)
    assert broker.ask(320, send_fields(topic), TWO).code == 0
    broker.wait_for_offset(topic, 0, 3)
    assert broker.pull(topic).bodies == [b"a", b"b", TWO]


@pytest.mark.parametrize("said", [{"DELAY": "1"}, {"DELAY": "x"}])
def test_a_batch_that_waits(broker: Connection, said: dict[str, str]) -> None:
    fields = {**send_fields(broker.topic(), m="true"), "i": properties.encode(said)}
    assert broker.ask(320, fields, TWO).code == (13 if said["DELAY"] == "1" else 1)


def test_a_batch_for_a_retry_topic(broker: Connection) -> None:
    topic = f"%RETRY%{broker.group()}"
    answer = broker.ask(320, send_fields(topic, m="true"), TWO)
    assert (answer.code, answer.remark) == (13, f"batch request does not support retry group {topic}")


@pytest.mark.parametrize("body", [TWO[:-1], TWO + b"\0", b"\0\0\0\0", b""])
def test_a_batch_that_is_damaged(broker: Connection, body: bytes) -> None:
    topic = broker.topic()
    assert broker.ask(320, send_fields(topic, m="true"), body).code == 1
    assert broker.max_offset(topic) == 0
