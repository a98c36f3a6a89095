"""What a test says to a broker: requests by code and raw ext fields, and what the broker says by itself."""

from __future__ import annotations

import itertools
import json
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance.peer import RawConnection, json_frame, read_json, unique
from tests.reference import batch, properties
from tests.reference.message import Stored, decode_all, java_hash

BORN = 1_700_000_000_000
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
"""Of 10, by the letters of 310."""
VERSION = 513
"""Of 5.5.0; from 121 on a client's maxReconsumeTimes counts."""


@dataclass(frozen=True)
class BrokerAddress:
    """A running broker."""

    address: str
    apache: bool


@dataclass(frozen=True)
class Answer:
    """An answer, or a request of the broker's."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return read_json(self.body)

    @property
    def records(self) -> list[Stored]:
        """The stored messages that the body is made of."""
        found, bad = decode_all(self.body, 0, len(self.body), check_crc=True)
        assert bad is None, bad
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]


def properties_of(record: Stored) -> dict[str, str]:
    """What a record says of its message; without ours of the store, the checksum."""
    found = properties.decode(record.properties.decode())
    found.pop("__CRC32#", None)
    return found


class Connection(RawConnection):
    """A connection to a broker; answers may be waited for in any order, and what the broker asks is kept."""

    def __init__(self, broker: BrokerAddress, timeout: float = 20.0) -> None:
        super().__init__(broker.address, timeout)
        self.broker = broker
        self.apache = broker.apache
        self.told: list[Answer] = []
        self.last_asked = 0
        """Opaque of the broker's last request."""
        self._opaques = itertools.count(1)
        self._answers: dict[int, Answer] = {}

    def begin(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        version: int = VERSION,
    ) -> int:
        """Send a request; ``end`` waits for its answer."""
        opaque = next(self._opaques)
        header: dict[str, Any] = {"code": code, "language": "JAVA", "version": version, "opaque": opaque, "flag": flag}
        if fields is not None:
            header["extFields"] = dict(fields)
        self.send(json_frame(header, body))
        return opaque

    def end(self, opaque: int) -> Answer:
        while opaque not in self._answers:
            self._read_one()
        return self._answers.pop(opaque)

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, version: int = VERSION
    ) -> Answer:
        """Ask and return the answer; Apache's on a busy machine refuses what it has not begun, and is asked again."""
        deadline = time.monotonic() + 20
        while True:
            answer = self.end(self.begin(code, fields, body, version=version))
            if answer.code != 2 or not self.apache or time.monotonic() > deadline:
                return answer

    def pop(self, fields: Mapping[str, str]) -> Answer:
        """Pop, and again where Apache's left out what is there: its queue was locked, as offsets were committed."""
        deadline = time.monotonic() + 5
        while True:
            answer = self.ask(200050, fields)
            is_left_out = answer.code == 210 and int(answer.fields["restNum"]) > 0
            if not is_left_out or not self.apache or fields["order"] == "true" or time.monotonic() > deadline:
                return answer

    def tell(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request."""
        self.begin(code, fields, body, flag=2)

    def hears(self, code: int) -> Answer:
        """Wait for a request of the broker's; those before it are passed over."""
        while True:
            while self.told:
                if (found := self.told.pop(0)).code == code:
                    return found
            self._read_one()

    def is_silent(self, opaque: int, seconds: float) -> bool:
        """Whether no answer comes for a while."""
        deadline = time.monotonic() + seconds
        while opaque not in self._answers:
            if not select.select([self.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return True
            self._read_one()
        return False

    def _read_one(self) -> None:
        header, body = self.read_frame()
        answer = Answer(header["code"], header.get("remark"), header.get("extFields") or {}, body)
        if header["flag"] & 1:
            self._answers[header["opaque"]] = answer
        else:
            self.told.append(answer)
            self.last_asked = header["opaque"]

    # What many tests ask

    def topic(self, name: str | None = None, *, queues: int = 1, perm: int = 6, **attributes: str) -> str:
        """Make a topic."""
        name = name or unique("T")
        assert self.ask(17, topic_fields(name, queues=queues, perm=perm, **attributes)).code == 0
        return name

    def group(self, name: str | None = None, **settings: Any) -> str:
        """Make a consumer group."""
        name = name or unique("G")
        assert self.ask(200, body=json.dumps(group_config(name, **settings)).encode()).code == 0
        return name

    def send_message(self, topic: str, body: bytes = b"hello", *, settle: bool = True, **options: Any) -> Answer:
        """Send; a message that is for its topic at once can be read when this returns."""
        answer = self.ask(310, send_fields(topic, **options), body)
        if settle and answer.code == 0:
            self.wait_for_offset(topic, int(answer.fields["queueId"]), int(answer.fields["queueOffset"]) + 1)
        return answer

    def sent(self, topic: str, *bodies: bytes, **options: Any) -> None:
        for body in bodies:
            answer = self.send_message(topic, body, **options)
            assert answer.code == 0, answer

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        return int(self.ask(30, {"topic": topic, "queueId": str(queue_id)}).fields["offset"])

    def wait_for_offset(self, topic: str, queue_id: int, offset: int, timeout: float = 20.0) -> None:
        """Wait until what was acknowledged is readable: Apache's is so a moment later."""
        self.eventually(lambda: self.max_offset(topic, queue_id) >= offset, timeout)

    def eventually(self, condition: Callable[[], Any], timeout: float = 20.0) -> None:
        """Wait for something that the broker does in its own time."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s, {'Apache' if self.apache else 'ours'}"
            time.sleep(0.01)

    def pull(self, topic: str, offset: int = 0, **options: Any) -> Answer:
        return self.ask(11, pull_fields(topic, offset, **options))

    def heartbeat(self, client_id: str, *groups: dict[str, Any], producers: Sequence[str] = ()) -> Answer:
        return self.ask(34, body=heartbeat_body(client_id, groups, producers))


def topic_fields(topic: str, *, queues: int = 1, perm: int = 6, **more: str) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **more,
    }  # fmt: skip


def group_config(name: str, **settings: Any) -> dict[str, Any]:
    return {
        "groupName": name, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True, **settings,
    }  # fmt: skip


def send_fields(
    topic: str,
    *,
    queue: int = 0,
    said: Mapping[str, str] | None = None,
    default: str = "TBW102",
    default_queues: int = 4,
    sys_flag: int = 0,
    **more: str,
) -> dict[str, str]:
    """Fields of 310 and 320; ``said``: the message's properties, ``more``: by their letters."""
    return {
        "a": "producers", "b": topic, "c": default, "d": str(default_queues), "e": str(queue), "f": str(sys_flag),
        "g": str(BORN), "h": "7", "i": properties.encode({"UNIQ_KEY": unique("id"), **(said or {})}), **more,
    }  # fmt: skip


def batch_body(*elements: tuple[bytes, Mapping[str, str]]) -> bytes:
    return batch.encode([batch.Element(3, body, properties.encode(said).encode()) for body, said in elements])


def pull_fields(
    topic: str,
    offset: int = 0,
    *,
    queue: int = 0,
    group: str = "readers",
    tags: str | None = "*",
    count: int = 32,
    hold: int = 0,
    commit: int | None = None,
    **more: str,
) -> dict[str, str]:
    sys_flag = (commit is not None) | 2 * bool(hold) | 4 * (tags is not None)
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": str(sys_flag), "commitOffset": str(commit or 0),
        "suspendTimeoutMillis": str(hold), "subVersion": "0", "expressionType": "TAG", **more,
    }  # fmt: skip
    if tags is not None:
        fields["subscription"] = tags
    return fields


def consumer(group: str, *topics: str, tags: str = "*", version: int = 1, model: str = "CLUSTERING") -> dict[str, Any]:
    """A group of a heartbeat."""
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [subscription(topic, tags, version) for topic in topics],
    }  # fmt: skip


def subscription(topic: str, tags: str = "*", version: int = 1, kind: str = "TAG") -> dict[str, Any]:
    names = [] if tags == "*" or kind != "TAG" else [name.strip() for name in tags.split("||")]
    return {
        "topic": topic, "subString": tags, "tagsSet": names, "codeSet": [java_hash(name) for name in names],
        "subVersion": version, "expressionType": kind, "classFilterMode": False,
    }  # fmt: skip


def heartbeat_body(client_id: str, groups: Sequence[dict[str, Any]], producers: Sequence[str] = ()) -> bytes:
    return json.dumps(
        {
            "clientID": client_id, "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": list(groups), "heartbeatFingerprint": 0, "withoutSub": False,
        }
    ).encode()  # fmt: skip
