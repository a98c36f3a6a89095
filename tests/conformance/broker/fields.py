"""Every request of a broker with a field more and a field less, and what Apache's answered to each.

A request is varied one thing at a time: an unknown field more in its header, in either form, and in each object of its
body; each field missing, and null; numbers of the header as JSON numbers, and those of the body as texts.

``tests/vectors/fields.json`` has the answers of Apache's 5.5.0; ``python -m tests.conformance.broker.fields`` asks it
again and writes them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rocketcore.codes import SerializeType
from tests.conformance.broker.connection import (
    BORN,
    BrokerAddress,
    Connection,
    batch_body,
    consumer,
    group_config,
    heartbeat_body,
    pull_fields,
    send_fields,
    subscription,
    topic_fields,
)
from tests.conformance.peer import Peer
from tests.fixtures.brokers import start_broker
from tests.fixtures.vectors import FOLDER
from tests.reference.routes import broker_routes

RECORDED = FOLDER / "fields.json"
MORE = {"aFieldOfTomorrow": "x"}
TOPIC, GROUP, BROKER = "fields-T", "fields-G", "broker-a"

_LEFT_OUT = "a field that is missing, where"
_NULL = "34, 41, 42: a list that is null"
OTHERWISE: dict[int, dict[str, tuple[int, str]]] = {
    15: {" queueId": (1, _LEFT_OUT), " commitOffset": (1, _LEFT_OUT)},
    21: {" topicSeq": (0, "21, 201 without topicSeq")},
    34: {"DataSet is null": (0, _NULL)},
    41: {"mqSet is null": (0, _NULL)},
    42: {"mqSet is null": (0, _NULL)},
    201: {" groupSeq": (0, "21, 201 without topicSeq")},
    303: {" group": (1, "303 without group")},
    314: {" destGroup": (29, "314 to a group")},
    324: {" topic": (1, _LEFT_OUT)},
    325: {" b": (1, _LEFT_OUT)},
    200050: {" topic": (1, _LEFT_OUT)},
    200053: dict.fromkeys(("it is", "more", "numbers", " consumerGroup"), (208, "200053 for a message that was ack")),
    200151: {"acks[].r": (0, "200151: a part that does not say")},
}
"""Where ours answers otherwise: by code and the end of what was changed, its code, and the begin of the page's row."""
ALONE = {34}
"""Asked over connections of their own: Apache's fails for good over one that sent a heartbeat without a client's id."""


class Asked(NamedTuple):
    """One request; a body that is no bytes is sent as JSON."""

    fields: Mapping[str, Any]
    body: Any = b""


class Varied(NamedTuple):
    """A request with one thing changed, which ``name`` says."""

    name: str
    asked: Asked
    binary: bool = False


def requests() -> dict[int, Asked]:
    """Every request that our broker serves, with all fields that a client of 5.5.0 may send."""
    at = {"topic": TOPIC, "queueId": "0"}
    popped = {"consumerGroup": GROUP, **at}
    receipt = {**popped, "extraInfo": f"0 1 1000 0 0 {BROKER} 0 0", "offset": "0"}  # popped long ago
    member = {"group": GROUP, "topic": TOPIC}
    queues = {
        "consumerGroup": GROUP, "clientId": "c", "onlyThisBroker": False,
        "mqSet": [{"topic": TOPIC, "brokerName": BROKER, "queueId": 0}],
    }  # fmt: skip
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 1}
    ack = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1000, "b": "AQ=="}
    topic = topic_fields(TOPIC)
    config = {
        name: int(value) if value.isdecimal() else value == "true" if value in ("true", "false") else value
        for name, value in topic.items()
        if name != "defaultTopic"
    }
    config["topicName"] = config.pop("topic")
    config["attributes"] = {}  # type: ignore[assignment]
    short = send_fields(TOPIC, j="0", k="false", l="16", m="false", n=BROKER)
    letters = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
        "l": "maxReconsumeTimes", "m": "batch",
    }  # fmt: skip
    long = {letters[name]: value for name, value in short.items() if name in letters}
    reply = "UNIQ_KEY\u00010A\u0002REPLY_TO_CLIENT\u0001nobody\u0002"
    pull = pull_fields(TOPIC, group=GROUP)
    group = group_config(
        GROUP,
        groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
        groupSysFlag=0,
        consumeTimeoutMinute=15,
        attributes={},
    )
    pop = {
        **popped, "maxMsgNums": "32", "invisibleTime": "1000", "pollTime": "0", "bornTime": str(BORN), "initMode": "0",
        "expType": "TAG", "exp": "*", "order": "false", "attemptId": "a",
    }  # fmt: skip
    return {
        10: Asked(long, b"hello"),
        11: Asked(pull),
        12: Asked({"topic": TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(BORN * 2)}),
        14: Asked({**popped, "setZeroIfNotFound": "true"}),
        15: Asked({**popped, "commitOffset": "0"}),
        17: Asked({**topic, "attributes": ""}),
        18: Asked({}, {"topicConfigList": [config]}),
        21: Asked({"topicSeq": "0", "dataVersion": "", "maxTopicNum": "10"}),
        25: Asked({}, b"traceOn=true\n"),
        26: Asked({}),
        28: Asked({}),
        29: Asked({**at, "timestamp": "0", "boundaryType": "LOWER"}),
        30: Asked({**at, "committed": "true"}),
        31: Asked(at),
        32: Asked(at),
        33: Asked({"offset": "0", "topic": TOPIC}),
        34: Asked({}, json.loads(heartbeat_body("d", [consumer("fields-34", TOPIC, tags="a || b")], ["q"]))),
        35: Asked({"clientID": "nobody", "producerGroup": "p", "consumerGroup": GROUP}),
        36: Asked(
            {
                "offset": "0",
                "group": GROUP,
                "delayLevel": "3",
                "originMsgId": "x",
                "originTopic": TOPIC,
                "unitMode": "false",
                "maxReconsumeTimes": "16",
            }
        ),
        37: Asked(
            {
                "producerGroup": "p",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": "8",
                "fromTransactionCheck": "false",
                "msgId": "x",
                "transactionId": "x",
                "topic": TOPIC,
            }
        ),
        38: Asked({"consumerGroup": GROUP}),
        41: Asked({}, queues),
        42: Asked({}, queues),
        43: Asked({}),
        45: Asked({}),
        46: Asked({}, {"clientId": "c", "group": GROUP, "namespace": "", "subscriptionData": subscription(TOPIC)}),
        200: Asked({}, group),
        201: Asked({"groupSeq": "0", "dataVersion": "", "maxGroupNum": "10"}),
        202: Asked({"topic": TOPIC}),
        203: Asked({"consumerGroup": GROUP}),
        204: Asked({"producerGroup": "p"}),
        207: Asked({"groupName": "fields-of-none", "cleanOffset": "false"}),
        208: Asked({"consumerGroup": GROUP, "topic": TOPIC}),
        215: Asked({"topic": "fields-of-none"}),
        222: Asked(
            {"group": "fields-34", "topic": TOPIC, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "0"}
        ),
        223: Asked({"group": "fields-of-none", "topic": TOPIC, "clientAddr": "nobody"}),
        225: Asked({}, {"groupConfigList": [group]}),
        300: Asked({"topic": TOPIC}),
        303: Asked(member),
        305: Asked({}),
        306: Asked({}),
        307: Asked({"consumerGroup": GROUP, "clientId": "nobody", "jstackEnable": "false"}),
        308: Asked({"filterGroups": "", "compareGroup": GROUP, "topic": TOPIC}),
        309: Asked(
            {
                "consumerGroup": GROUP,
                "clientId": "nobody",
                "msgId": "x",
                "brokerName": BROKER,
                "topic": TOPIC,
                "topicSysFlag": "0",
                "groupSysFlag": "0",
            }
        ),
        310: Asked(short, b"hello"),
        314: Asked({"srcGroup": GROUP, "destGroup": "fields-H", "topic": TOPIC, "offline": "true"}),
        315: Asked({"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
        316: Asked({}),
        317: Asked({"isOrder": "false"}),
        320: Asked({**short, "m": "true"}, batch_body((b"one", {"UNIQ_KEY": "A"}), (b"two", {"UNIQ_KEY": "B"}))),
        321: Asked({**at, "index": "0", "count": "10", "consumerGroup": GROUP}),
        323: Asked({"topic": TOPIC, "msgId": "x"}),
        324: Asked({**long, "properties": reply}, b"hello"),
        325: Asked({**short, "i": reply}, b"hello"),
        328: Asked({}),
        329: Asked({}),
        343: Asked({"group": GROUP}),
        345: Asked(member),
        351: Asked({"topic": TOPIC}),
        352: Asked({"group": GROUP}),
        353: Asked({**member, "readable": "true"}),
        361: Asked({**pull, "maxMsgBytes": "1000", "requestSource": "0", "proxyFrowardClientId": "c"}),
        370: Asked({"producerGroup": "p", "topic": TOPIC, "recallHandle": "x"}),
        400: Asked({}, {**queues, "topic": TOPIC, "strategyName": "AVG", "messageModel": "CLUSTERING"}),
        401: Asked({}, mode),
        402: Asked({}),
        907: Asked({}),
        2001: Asked({}, b"fields-G=1000\n"),
        2002: Asked({}, b"fields-G"),
        2003: Asked({}),
        2004: Asked({"READ_AHEAD_MODE": "0"}),
        200050: Asked(pop),
        200051: Asked(receipt),
        200052: Asked({**popped, "maxMsgNums": "1"}),
        200053: Asked({**receipt, "invisibleTime": "1000"}),
        200054: Asked({name: pop[name] for name in pop if name not in ("maxMsgNums", "invisibleTime", "initMode")}),
        200055: Asked(popped),
        200056: Asked({}),
        200151: Asked({}, {"brokerName": BROKER, "acks": [ack]}),
    }


def varied(asked: Asked) -> Iterator[Varied]:
    """A request as it is, and with each thing changed; every name is a field's but for those of attributes."""
    fields, body = asked
    yield Varied("as it is", asked)
    yield Varied("header: one more", Asked({**fields, **MORE}, body))
    yield Varied("binary header: one more", Asked({**fields, **MORE}, body), binary=True)
    yield Varied("header: numbers", Asked({name: _bare(value) for name, value in fields.items()}, body))
    for name in fields:
        yield Varied(f"header: no {name}", Asked({each: fields[each] for each in fields if each != name}, body))
        yield Varied(f"header: {name} is null", Asked({**fields, name: None}, body))
    if isinstance(body, bytes):
        return
    yield Varied("body: numbers as texts", Asked(fields, _texts(body)))
    for name, changed in _changes(body, ""):
        yield Varied(f"body: {name}", Asked(fields, changed))


def _bare(value: str) -> Any:
    return int(value) if value.isdecimal() else value == "true" if value in ("true", "false") else value


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return str(value) if type(value) is int else value


def _changes(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if not path.endswith("attributes"):
            yield f"one more{path and f' in {path}'}", {**value, **MORE}
        for name, each in value.items():
            where = f"{path}.{name}".removeprefix(".")
            yield f"no {where}", {other: kept for other, kept in value.items() if other != name}
            yield f"{where} is null", {**value, name: None}
            yield from ((said, {**value, name: changed}) for said, changed in _changes(each, where))
    elif isinstance(value, list) and value:
        yield from ((said, [changed, *value[1:]]) for said, changed in _changes(value[0], f"{path}[]"))


def prepare(broker: Connection) -> None:
    """Make what the requests are about."""
    broker.topic(TOPIC)
    broker.group(GROUP)
    broker.sent(TOPIC, b"one", b"two", said={"KEYS": "k"})
    assert broker.heartbeat("c", consumer(GROUP, TOPIC), producers=["p"]).code == 0
    asked = json.dumps(requests()[400].body).encode()
    broker.eventually(lambda: broker.ask(400, body=asked).code == 0)  # Apache's learns of the topic's route


def outcomes(connection: Connection, code: int, asked: Asked) -> dict[str, int]:
    """The codes of the answers to a request and all that is made of it, by what was changed."""
    found: dict[str, int] = {}
    broker = connection.broker
    with Peer(broker.address, apache=broker.apache) as peer:
        for name, (fields, body), binary in varied(asked):
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            if binary:
                found[name] = peer.ask(code, fields, sent, kind=SerializeType.ROCKETMQ, timeout=20).code
            elif code in ALONE:
                with Connection(broker) as other:
                    found[name] = other.ask(code, fields, sent).code
            else:
                found[name] = connection.ask(code, fields, sent).code
    return found


def recorded(code: int) -> dict[str, int]:
    """What Apache's answered to a request and all that is made of it."""
    found = dict(json.loads(RECORDED.read_text("ascii"))[str(code)])
    return {each.name: found.get(each.name, found["as it is"]) for each in varied(requests()[code])}  # type: ignore[misc]


def ours(code: int) -> dict[str, int]:
    """What ours is to answer: the same, but for the rows of ``OTHERWISE``."""
    expected = recorded(code)
    for name in expected:
        for part, (answered, _) in OTHERWISE.get(code, {}).items():
            if name.endswith(part) or name.removesuffix(" is null").endswith(part):
                expected[name] = answered
    return expected


def play(broker: BrokerAddress, codes: Mapping[int, Asked]) -> dict[str, dict[str, int]]:
    """What a broker answers to all."""
    found = {}
    for code, asked in codes.items():
        with Connection(broker) as connection:
            prepare(connection)
            found[str(code)] = outcomes(connection, code, asked)
    return found


def short(found: Mapping[str, int]) -> dict[str, int]:
    """Leave out what is answered as the request as it is."""
    usual = found["as it is"]
    return {name: outcome for name, outcome in found.items() if outcome != usual or name == "as it is"}


if __name__ == "__main__":
    assert requests().keys() == broker_routes().keys(), requests().keys() ^ broker_routes().keys()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        answers = play(start_broker(stack, Path(folder), apache=True), requests())
    RECORDED.write_text(json.dumps({code: short(found) for code, found in answers.items()}, indent=1) + "\n", "ascii")
