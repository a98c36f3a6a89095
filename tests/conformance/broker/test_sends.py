"""Sends, their answers and refusals, and what is stored of them (broker.md §8.2, §8.3, §10, §16.2, §16.3, §17)."""

from __future__ import annotations

import re
import struct

import pytest

from tests.conformance.broker.connection import BORN, LONG_NAMES, Connection, properties_of, send_fields
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique

REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


def test_the_answer_says_where_the_message_is(broker: Connection) -> None:
    topic = broker.topic(queues=4)
    answer = broker.send_message(topic, queue=2, said={"UNIQ_KEY": "0A", "KEYS": "k", "TAGS": "t"})
    host, port = broker.broker.address.split(":")
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    msg_id = answer.fields.pop("msgId")
    assert answer.fields == {"queueId": "2", "queueOffset": "0", "transactionId": "0A", **REGION}
    assert re.fullmatch(r"[0-9A-F]{32}", msg_id)
    assert bytes.fromhex(msg_id)[:8] == bytes(map(int, host.split("."))) + struct.pack(">i", int(port))

    (record,) = broker.pull(topic, queue=2).records
    assert record.physical_offset == int(msg_id[16:], 16)
    assert (record.topic, record.body, record.queue_id, record.queue_offset) == (topic.encode(), b"hello", 2, 0)
    assert (record.flag, record.sys_flag, record.born_timestamp, record.reconsume_times) == (7, 0, BORN, 0)
    assert record.prepared_offset == 0
    client_host, client_port = broker.socket.getsockname()
    assert record.born_host == bytes(map(int, client_host.split("."))) + struct.pack(">i", client_port)
    assert record.store_host == bytes.fromhex(msg_id)[:8]
    assert properties_of(record) == {"UNIQ_KEY": "0A", "KEYS": "k", "TAGS": "t", "CLUSTER": "DefaultCluster", **REGION}


def test_the_long_form(broker: Connection) -> None:
    topic = broker.topic()
    fields = {LONG_NAMES[name]: value for name, value in send_fields(topic, said={"UNIQ_KEY": "0B"}).items()}
    answer = broker.ask(10, fields, b"x")
    assert (answer.code, answer.fields["queueOffset"], answer.fields["transactionId"]) == (0, "0", "0B")
    broker.wait_for_offset(topic, 0, 1)
    assert broker.pull(topic).bodies == [b"x"]


def test_a_message_without_an_id_is_given_one(broker: Connection) -> None:
    topic = broker.topic()
    answer = broker.ask(310, {**send_fields(topic), "i": "a\x011\x02"}, b"x")
    assert re.fullmatch(r"[0-9A-F]{32}|[0-9A-F]{56}", answer.fields["transactionId"])
    broker.wait_for_offset(topic, 0, 1)
    (record,) = broker.pull(topic).records
    assert properties_of(record)["UNIQ_KEY"] == answer.fields["transactionId"]
    assert properties_of(record)["a"] == "1"


@pytest.mark.parametrize("text", ["a\x01b", "a\x01b\x02", "a\x01b\x02c", "a\x01\x02b\x011\x02", "\x01x\x02b\x011\x02"])
def test_property_texts_of_any_form(broker: Connection, text: str) -> None:
    """Pairs without a name, a value or a separator are no properties; the last separator may lack."""
    topic = broker.topic()
    assert broker.ask(310, {**send_fields(topic), "i": text}, b"x").code == 0
    broker.wait_for_offset(topic, 0, 1)
    found = properties_of(broker.pull(topic).records[0])
    mine = {name: value for name, value in found.items() if name in ("a", "b", "c")}
    assert mine == ({"a": "b"} if text.startswith("a\x01b") else {"b": "1"})


def test_properties_of_clients_and_of_brokers(broker: Connection) -> None:
    topic = broker.topic()
    said = {
        "WAIT": "false",
        "POP_CK": "0 1 2 3 4 broker 5 6",
        "CLUSTER": "mine",
        "MSG_REGION": "mine",
        "TRACE_ON": "no",
    }
    broker.sent(topic, b"x", said=said)
    found = properties_of(broker.pull(topic).records[0])
    del found["UNIQ_KEY"]
    assert found == {"WAIT": "false", "CLUSTER": "DefaultCluster", **REGION}


@pytest.mark.parametrize(("queue", "code"), [(3, 0), (4, 29), (99, 29)])
def test_queue_ids(broker: Connection, queue: int, code: int) -> None:
    topic = broker.topic(queues=4)
    answer = broker.send_message(topic, queue=queue)
    assert answer.code == code
    if code:
        host, port = broker.socket.getsockname()
        assert answer.remark == (
            f"request queueId[{queue}] is illegal, TopicConfig [topicName={topic}, readQueueNums=4, writeQueueNums=4, "
            "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] "
            f"Producer: {host}:{port}"
        )
        assert answer.fields == REGION


def test_any_queue(broker: Connection) -> None:
    topic = broker.topic(queues=2)
    assert {broker.send_message(topic, queue=-1).fields["queueId"] for _ in range(40)} == {"0", "1"}


def test_more_queues_to_read_than_to_write(broker: Connection) -> None:
    topic = broker.topic(queues=4, writeQueueNums="2")
    assert broker.send_message(topic, queue=3).code == 0


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified topic is blank."),
        (" ", "The specified topic is blank."),
        ("a b", "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("ünï", "The specified topic: ünï, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a" * 128, f"The specified topic: {'a' * 128}, is longer than topic max length: 127"),
    ],
)
def test_topics_that_cannot_be(broker: Connection, name: str, remark: str) -> None:
    answer = broker.send_message(name)
    assert (answer.code, answer.remark) == (29, remark)
    assert answer.fields == REGION


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    ],
)  # fmt: skip
def test_topics_of_the_broker(broker: Connection, topic: str) -> None:
    answer = broker.send_message(topic)
    assert (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")


def test_the_timers_topic(broker: Connection) -> None:
    """Apache's takes it, and its timer stops for good."""
    if broker.apache:
        pytest.skip("the broker is shared")
    assert broker.send_message("rmq_sys_wheel_timer", settle=False).code == 16


@pytest.mark.parametrize(("asked", "made"), [("4", 4), ("1", 1), ("99", 8)])
def test_a_first_message_makes_its_topic(broker: Connection, asked: str, made: int) -> None:
    topic = unique("made")
    assert broker.send_message(topic, d=asked).code == 0
    config = broker.ask(351, {"topic": topic, "lo": "false"}).json
    assert {name: config[name] for name in ("readQueueNums", "writeQueueNums", "perm", "topicName")} == {
        "readQueueNums": made, "writeQueueNums": made, "perm": 6, "topicName": topic,
    }  # fmt: skip


@pytest.mark.parametrize("asked", ["0", "-3"])
def test_a_topic_without_queues(broker: Connection, asked: str) -> None:
    topic = unique("made")
    assert broker.send_message(topic, d=asked).code == 29
    assert broker.ask(351, {"topic": topic}).json["writeQueueNums"] == 0


@pytest.mark.parametrize("default", ["", "nobody", "BenchmarkTest"])
def test_a_default_topic_that_is_none(broker: Connection, default: str) -> None:
    topic = unique("made")
    answer = broker.send_message(topic, default=default)
    assert (answer.code, answer.remark) == (17, f"topic[{topic}] not exist, apply first please!{FAQ}")
    assert answer.fields == REGION
    assert broker.ask(351, {"topic": topic}).code == 17


def test_a_topic_that_nobody_may_write_takes_messages(broker: Connection) -> None:
    """Its permission is for who looks for a route."""
    assert broker.send_message(broker.topic(perm=4)).code == 0


@pytest.mark.parametrize(("size", "code"), [(4 << 20, 0), ((4 << 20) + 1, 13)])
def test_the_longest_body(broker: Connection, size: int, code: int) -> None:
    answer = broker.send_message(broker.topic(), bytes(size))
    assert answer.code == code
    if code:
        assert answer.remark == ILLEGAL
        assert answer.fields == REGION


@pytest.mark.parametrize(("size", "code"), [(32_000, 0), (32_768, 13)])
def test_the_longest_properties(broker: Connection, size: int, code: int) -> None:
    answer = broker.send_message(broker.topic(), said={"a": "x" * size})
    assert answer.code == code
    if code:
        assert answer.remark == ILLEGAL


def test_a_message_without_a_body(broker: Connection) -> None:
    assert broker.send_message(broker.topic(), b"").code == expected(broker, "send without a body")


@pytest.mark.parametrize("missing", "abcdefgh")
def test_a_missing_field(broker: Connection, missing: str) -> None:
    fields = send_fields(broker.topic())
    del fields[missing]
    answer = broker.ask(310, fields, b"x")
    assert answer.code == (0 if missing in "acd" else 1)
    assert answer.code == 0 or answer.remark


@pytest.mark.parametrize("field", "defgh")
def test_a_number_that_is_none(broker: Connection, field: str) -> None:
    assert broker.ask(310, {**send_fields(broker.topic()), field: "x"}, b"x").code == 1


def test_a_filter_type_of_many_tags_marks_the_message(broker: Connection) -> None:
    topic = broker.topic(topicFilterType="MULTI_TAG")
    broker.sent(topic, b"x")
    assert broker.pull(topic).records[0].sys_flag == 2


@pytest.mark.parametrize(("reconsumed", "dead"), [(3, False), (16, False), (17, True)])
def test_a_message_that_its_client_sends_back(broker: Connection, reconsumed: int, dead: bool) -> None:
    """As clients do where 36 failed: into the retry topic, or with the dead letters."""
    group = broker.group()
    retry = broker.topic(f"%RETRY%{group}")
    answer = broker.send_message(retry, settle=False, j=str(reconsumed), l="16")
    assert answer.code == 0
    stored = f"%DLQ%{group}" if dead else retry
    broker.wait_for_offset(stored, 0, 1)
    (record,) = broker.pull(stored).records
    assert record.reconsume_times == reconsumed
    assert properties_of(record).get("DELAY") == ("-1" if dead else None)


def test_a_retry_topic_of_a_group_that_is_not_there(broker: Connection) -> None:
    group = unique("a group")
    answer = broker.send_message(f"%RETRY%{group}")
    assert answer.code == 29
    name = "%RETRY%" + "g" * 121
    answer = broker.send_message(name)
    assert (answer.code, answer.remark) == (26, f"subscription group not exist, {'g' * 121} {FAQ}")


def test_a_send_without_an_answer(broker: Connection) -> None:
    topic = broker.topic()
    broker.tell(310, send_fields(topic), b"x")
    broker.wait_for_offset(topic, 0, 1)
    assert broker.pull(topic).bodies == [b"x"]


def test_messages_in_order(broker: Connection) -> None:
    """Sends in a row over one connection are stored in it."""
    topic = broker.topic()
    opaques = [broker.begin(310, send_fields(topic), b"%d" % number) for number in range(30)]
    answers = [broker.end(opaque) for opaque in opaques]
    assert sorted(int(answer.fields["queueOffset"]) for answer in answers) == list(range(30))


def test_an_unknown_request(broker: Connection) -> None:
    answer = broker.ask(99_999)
    assert (answer.code, answer.remark) == (3, " request type 99999 not supported")
