"""Every request of a broker, with everything in it that can be wrong: each is answered, and nothing else is harmed.

What is wrong is made from the rows themselves: each field of a header in turn, by its type, and each value of a body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.naming import is_legal
from rocketcore.transport.routes import Route
from tests.conformance.broker.connection import (
    BrokerAddress,
    Connection,
    batch_body,
    consumer,
    group_config,
    heartbeat_body,
    subscription,
    topic_fields,
)
from tests.fixtures.brokers import start_broker
from tests.reference.routes import broker_routes, example

LONG = "x" * 40_000
"""Within what a header may be, longer than any name and than the properties of a message."""
NOT_NAMES = [
    "",
    " ",
    "nobody",
    "a b",
    "../../etc/passwd",
    "a\u0001\u0002\u202e",
    "\ud800",
    "%RETRY%",
    "SCHEDULE_TOPIC_XXXX",
    LONG,
]
NOT_NUMBERS = ["", "x", "1e3", "1.5", "99999999999999999999"]
INTS = ["-1", "99", "2147483647", "-2147483648", *NOT_NUMBERS]
LONGS = ["-1", "9223372036854775807", "-9223372036854775808", *NOT_NUMBERS]
WRONG = {"str": NOT_NAMES, "int": INTS, "Long": LONGS, "bool": ["", "x"]}
PROPERTIES = [
    "\u0001", "\u0002\u0002", "a", "a\u0001", "UNIQ_KEY\u0001\u0002", "DELAY\u0001x\u0002",
    "DELAY\u000199999999999\u0002", "TRAN_MSG\u0001true\u0002", "TIMER_DELIVER_MS\u0001x\u0002",
    "TIMER_DELAY_SEC\u0001-1\u0002", "__CRC32#\u00011\u0002", "REPLY_TO_CLIENT\u0001nobody\u0002",
    "\ud800\u0001x\u0002",
]  # fmt: skip
WAITS = {"pollTime", "suspendTimeoutMillis"}
"""How long a client wants to wait: that is obeyed."""
UNDECIDED = {"commitOrRollback"}
"""Without an outcome 37 is not answered."""
BODIES = [b"", b"{", b"null", b"[]", b"{}", b"7", b'""', b"\xff\xfe", b"\0" * 64, b"[" * 5000]
VALUES: list[Any] = [None, -1, 1 << 40, "", "a b", LONG, [], {}, [None], True]
BATCH = batch_body((b"one", {"UNIQ_KEY": "A"}), (b"two", {"UNIQ_KEY": "B", "TAGS": "t"}))


class Asked(NamedTuple):
    """One request."""

    fields: dict[str, str]
    body: bytes


def named(topic: str, group: str) -> dict[str, str]:
    """Ext fields by name, as they are meant."""
    groups = ("group", "consumerGroup", "producerGroup", "groupName", "srcGroup", "destGroup", "compareGroup", "a")
    return {
        **dict.fromkeys(groups, group), "topic": topic, "b": topic, "defaultTopic": "TBW102", "c": "TBW102", "d": "4",
        "topicFilterType": "SINGLE_TAG", "perm": "6", "readQueueNums": "4", "writeQueueNums": "4", "queueId": "0",
        "e": "0", "i": "TAGS\u0001a\u0002UNIQ_KEY\u00010A\u0002", "properties": "TAGS\u0001a\u0002", "m": "false",
        "clientID": "c", "clientId": "c", "commitOrRollback": "8", "subscription": "*", "expressionType": "TAG",
        "maxMsgNums": "32", "invisibleTime": "1000", "extraInfo": "0 1 1000 0 0 broker-a 0 0", "offset": "0",
    }  # fmt: skip


def bodies(code: int, topic: str, group: str) -> bytes:
    """The body of a request, as it is meant."""
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 1}
    queues = {"consumerGroup": group, "clientId": "c", "mqSet": [{"topic": topic, "brokerName": "b", "queueId": 0}]}
    ack = {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1000, "b": "AQ=="}
    config = {
        name: int(value) if value.isdecimal() else value == "true" if value in ("true", "false") else value
        for name, value in topic_fields(topic).items()
    }
    said: dict[int, Any] = {
        18: {"topicConfigList": [config | {"topicName": topic}]},
        34: json.loads(heartbeat_body("c", [consumer(group, topic, tags="a || b")], ["p"])),
        41: queues,
        42: queues,
        46: {"clientId": "c", "group": group, "subscriptionData": subscription(topic, "a > 1", kind="SQL92")},
        200: group_config(group),
        225: {"groupConfigList": [group_config(group)]},
        400: {**mode, "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING"},
        401: mode,
        200151: {"brokerName": "broker-a", "acks": [ack]},
    }
    if code in said:
        return json.dumps(said[code]).encode()
    return {25: b"traceOn=true\n", 320: BATCH}.get(code, b"hello")


def wrong(code: int, route: Route, topic: str, group: str) -> Iterator[Asked]:
    """Return requests of a code with one thing wrong in each, and first one that is right but comes at no time."""
    body, right = bodies(code, topic, group), example(route, named(topic, group))
    yield Asked(right, body)
    yield from (Asked(right, each) for each in BODIES)
    for field in route.header.FIELDS if route.header is not None else ():
        name = field.wire_name
        yield Asked({each: value for each, value in right.items() if each != name}, body)
        if name in UNDECIDED:
            continue
        values = PROPERTIES if name in ("i", "properties") else WRONG.get(field.kind, NOT_NAMES)
        for value in values:
            if name not in WAITS or not value.isdecimal():
                yield Asked({**right, name: value}, body)
    if body.startswith(b"{"):
        for changed in changes(json.loads(body)):
            yield Asked(right, json.dumps(changed).encode())
    elif len(body) > 1:
        yield from (Asked(right, body[:length]) for length in range(1, len(body), 5))
        yield from (Asked(right, body[:at] + b"\xff" + body[at + 1 :]) for at in range(0, len(body), 3))
    if code in (10, 310, 320):
        yield Asked(right | {"m": "true", "batch": "true"}, b"\0\0\0\x01")


def changes(value: Any) -> Iterator[Any]:
    """Return a JSON value with each part of it missing or another in turn."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield {other: kept for other, kept in value.items() if other != name}
            yield from ({**value, name: changed} for changed in (*VALUES, *changes(each)))
    elif isinstance(value, list) and value:
        yield from ([changed, *value[1:]] for changed in (*VALUES, *changes(value[0])))


class Witness:
    """A client that does nothing wrong, and what it sees of its topic and group."""

    def __init__(self, broker: BrokerAddress) -> None:
        self.topic, self.group = "witness-T", "witness-G"
        self._broker = broker
        self.connection = Connection(broker)

    def begin(self) -> None:
        self.connection.topic(self.topic)
        self.connection.group(self.group, retryMaxTimes=3)
        self.connection.sent(self.topic, b"one", b"two")
        at = {"consumerGroup": self.group, "topic": self.topic, "queueId": "0", "commitOffset": "1"}
        assert self.connection.ask(15, at).code == 0
        self.joined()

    def joined(self) -> None:
        assert self.connection.heartbeat("witness", consumer(self.group, self.topic)).code == 0

    def sees(self, connection: Connection) -> Any:
        """What outlives a kill, and what does not."""
        at = {"consumerGroup": self.group, "topic": self.topic, "queueId": "0", "group": self.group}
        kept = [connection.ask(code, at) for code in (351, 352, 30, 31, 345, 38)]
        return (kept, connection.pull(self.topic).bodies), (connection.ask(14, at), connection.ask(26).body)


def check_names(connection: Connection) -> None:
    """No name is kept that nobody may have."""
    topics, groups = connection.ask(21).json["topicConfigTable"], connection.ask(201).json
    names = {*topics, *groups["subscriptionGroupTable"]}
    for key in connection.ask(43).json["offsetTable"]:
        names.update(key.rsplit("@", 1))
    for group, forbidden in (groups.get("forbiddenTable") or {}).items():
        names |= {group, *forbidden}
    assert [name for name in names if not is_legal(name) or len(name) > 255] == []


ROUTES = broker_routes()


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerAddress, Witness, Path]]:
    """A broker for all codes; at the end it is started again from what they left."""
    folder = tmp_path_factory.mktemp("walked")
    with ExitStack() as stack:
        with ExitStack() as first:
            broker = start_broker(first, folder, apache=False)
            witness = Witness(broker)
            witness.begin()
            seen = witness.sees(witness.connection)
            yield broker, witness, folder / "broker.log"
            assert witness.sees(witness.connection) == seen
            check_names(witness.connection)
            witness.connection.__exit__()
        again = Witness(start_broker(stack, folder, apache=False))
        again.joined()
        with again.connection as connection:
            assert again.sees(connection)[0] == seen[0]
            check_names(connection)


@pytest.mark.parametrize("code", ROUTES, ids=[RequestCode(code).name for code in ROUTES])
def test_bad_requests_are_answered(walked: tuple[BrokerAddress, Witness, Path], code: int) -> None:
    broker, witness, log = walked
    begun = log.stat().st_size
    with Connection(broker) as connection:
        topic, group = connection.topic(), connection.group()
        connection.sent(topic, b"x")
        answers = []
        for asked in wrong(code, ROUTES[code], topic, group):
            answer = connection.end(connection.begin(code, asked.fields, asked.body))
            answers.append(ResponseCode(answer.code))
        assert len(answers) > 10
        assert connection.ask(26).code == 0
    assert witness.connection.ask(30, {"topic": witness.topic, "queueId": "0"}).fields == {"offset": "2"}
    written = log.read_bytes()[begun:].decode()
    assert "Traceback" not in written
    assert " ERROR " not in written
