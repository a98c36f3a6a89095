"""Requests and replies (broker.md §17.3)."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.broker.connection import Connection, properties_of, send_fields
from tests.conformance.peer import json_frame, unique

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def test_a_reply_reaches_who_asked(broker: Connection, connect: Callable[[], Connection]) -> None:
    asker, name = connect(), unique("client")
    asker.heartbeat(name, producers=[unique("askers")])
    fields = send_fields(REPLY_TOPIC, said={"REPLY_TO_CLIENT": name, "CORRELATION_ID": "7", "MSG_TYPE": "reply"})
    opaque = broker.begin(325, fields, b"answer")
    pushed = asker.hears(326)
    assert pushed.body == b"answer"
    said = dict(pair.split("\x01") for pair in pushed.fields["properties"].split("\x02") if pair)
    assert said.items() >= {"CORRELATION_ID": "7", "REPLY_TO_CLIENT": name, "MSG_REGION": "DefaultRegion"}.items()
    assert "PUSH_REPLY_TIME" in said
    host, port = broker.socket.getsockname()
    assert pushed.fields["bornHost"] == f"{host}:{port}"
    assert pushed.fields["storeHost"] == broker.broker.address
    assert (pushed.fields["topic"], pushed.fields["queueId"]) == (REPLY_TOPIC, "0")
    asker.send(json_frame({"code": 0, "language": "JAVA", "version": 513, "opaque": asker.last_asked, "flag": 1}))
    answer = broker.end(opaque)
    assert (answer.code, answer.fields["queueId"]) == (0, "0")
    offset = int(answer.fields["queueOffset"])
    broker.wait_for_offset(REPLY_TOPIC, 0, offset + 1)
    record = broker.pull(REPLY_TOPIC, offset).records[0]
    assert (record.body, properties_of(record)["CORRELATION_ID"]) == (b"answer", "7")


def test_nobody_to_reply_to(broker: Connection) -> None:
    name = unique("client")
    answer = broker.ask(325, send_fields(REPLY_TOPIC, said={"REPLY_TO_CLIENT": name}), b"x")
    assert (answer.code, answer.remark) == (1, f"push reply message fail, channel of <{name}> not found.")
    assert answer.fields.keys() >= {"msgId", "queueId", "queueOffset"}
    answer = broker.ask(325, send_fields(REPLY_TOPIC), b"x")
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
