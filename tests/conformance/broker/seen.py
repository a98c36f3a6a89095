"""What a broker answered in a session, as far as all brokers must say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.conformance.broker.connection import BORN, Answer, properties_of
from tests.conformance.broker.differences import APACHES_FIELDS, BROKER, NOTHING_SET, THROWN
from tests.reference.message import Stored

MADE_UP = ("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "1ST_POP_TIME", "POP_CK", "TIMER_DELIVER_MS")
"""Properties with times of the play."""
DELAYED = {"DELAY", "TIMER_OUT_MS"}
"""Properties of messages that ours delivers with the place where they waited: "the prepared transaction offset"."""
SYSTEM_TOPICS = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
SET = re.compile(r"(?<=not in set: \[).*(?=\]$)")
ADDRESS = re.compile(r"/?\d+\.\d+\.\d+\.\d+:\d+")
EXCEPTION = re.compile(r"[\w.]+(Exception|Error)\b")
"""Begins a remark of Apache's with code 1: what Java threw, where ours says what is wrong."""


class Seen:
    """The names of one session, and its answers without what is of this session or broker alone.

    ids  number of a message → its offset message id, those of deleted topics too
    """

    def __init__(self, serial: str) -> None:
        self._serial = serial
        self._ids: dict[int, str] = {}

    def _topic(self, topic: int | None) -> str:
        return f"T{topic}-{self._serial}" if topic is not None else f"nobody-{self._serial}"

    def _group(self, group: int | None) -> str:
        return f"G{group}-{self._serial}" if group is not None else f"nogroup-{self._serial}"

    def _client_id(self, client: int) -> str:
        return f"C{client}-{self._serial}"

    def _said(self, message: Mapping[str, Any], more: Mapping[str, str] | None = None) -> dict[str, str]:
        said = {"UNIQ_KEY": f"id-{message['number']}-{self._serial}", "TAGS": message["tags"], "KEYS": message["keys"]}
        return {name: value for name, value in {**said, **(more or {})}.items() if value}

    def _body(self, message: Mapping[str, Any]) -> bytes:
        return (b"m%d " % message["number"]).ljust(message["size"], b".")

    def _plain(self, value: Any) -> Any:
        """Leave out what is of this session or broker alone."""
        if isinstance(value, str):
            value = BROKER.sub("the broker[…]", value.replace(self._serial, "#"))
            return ADDRESS.sub("host", value)
        if isinstance(value, dict):
            return {self._plain(name): self._plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        return value

    def _seen(self, answer: Answer, *without: str, body: Any = None) -> Any:
        """An answer as all brokers give it; ``without`` names fields that are of one broker."""
        fields = {
            name: "…" if name in without else self._plain(each)
            for name, each in answer.fields.items()
            if name not in APACHES_FIELDS
        }
        remark = self._plain(answer.remark or None)
        if answer.code == 1 and remark:
            remark = THROWN if EXCEPTION.match(remark) else remark
        if remark:
            remark = SET.sub(lambda found: " ".join(sorted(found[0].split(", "))), remark)
        if remark == NOTHING_SET:
            remark = None
        if body is None:
            body = answer.body
        return {"code": answer.code, "remark": remark, "fields": fields, "body": body}

    def _seen_records(self, answer: Answer, *without: str) -> Any:
        return self._seen(answer, *without, body=[self._record(record) for record in answer.records])

    def _record(self, record: Stored) -> Any:
        said = {name: "…" if name in MADE_UP else self._plain(value) for name, value in properties_of(record).items()}
        if (origin := said.get("ORIGIN_MESSAGE_ID")) is not None:
            said["ORIGIN_MESSAGE_ID"] = self._number_of(origin)
        topic = self._plain(record.topic.decode())
        offset = "…" if topic in SYSTEM_TOPICS else record.queue_offset
        prepared = "…" if said.keys() & DELAYED else self._number_at(record.prepared_offset)
        return {
            "topic": topic, "queue": (record.queue_id, offset),
            "flags": (record.flag, record.sys_flag), "born": record.born_timestamp == BORN,
            "reconsumed": record.reconsume_times, "prepared": prepared,
            "body": (len(record.body), record.body[:10]), "said": said,
        }  # fmt: skip

    def _number_of(self, msg_id: str) -> Any:
        return next((number for number, each in self._ids.items() if each == msg_id), f"? {msg_id}")

    def _number_at(self, physical_offset: int) -> Any:
        if not physical_offset:
            return 0
        return next((number for number, each in self._ids.items() if int(each[16:32], 16) == physical_offset), "?")

    def _seen_json(self, answer: Answer) -> Any:
        return self._seen(answer, body=self._plain(read(answer.body)) if answer.body else "")

    # Clients


def read(body: bytes) -> Any:
    """Read JSON, also Java's with objects as keys."""
    from rocketcore.protocol import fastjson

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key if isinstance(key, str) else str(key): plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return plain(fastjson.loads(body))


def place_and_start(item: str) -> tuple[tuple[str, str], str]:
    marker, queue, rest = item.split(" ")
    return (marker, queue), rest
