"""The steps of a session that pop messages, acknowledge them, and change how long they stay away."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.conformance.broker.connection import BrokerAddress, Connection
from tests.conformance.broker.seen import Seen, place_and_start
from tests.conformance.broker.sessions import INVISIBLE

BORN_NOW = "0"
"""A POP that says when it was made, and is looked at half a second later, finds nothing: on a busy machine, any."""


class PopSteps(Seen):
    """Those of one broker.

    handles  (group, number) → the handle of the message's last pop
    """

    def __init__(self, broker: BrokerAddress, serial: str) -> None:
        super().__init__(serial)
        self._control = Connection(broker)
        self._handles: dict[tuple[int, int], tuple[str, str, str, str]] = {}
        self._settled: set[tuple[int, int]] = set()
        """(group, number) of what was acknowledged: of it Apache's say that it stays invisible, and ours do not."""
        self._ordered: set[tuple[int, int]] = set()
        """(group, topic) of POPs in order."""
        self._left: set[tuple[int, int]] = set()
        """Those whose group or topic was deleted then: Apache's hold up what is popped in order, ours do not."""
        self._popped: set[tuple[int | None, int | None]] = set()
        """(group, topic) of POPs: by a commit Apache's go back, and ours do not."""
        self._asked: set[tuple[int, int]] = set()
        """(group, topic) of pulls and POPs that brought a subscription."""

    def _pop(self, group: int, topic: int, queue: int, count: int, first: int, tags: str, order: bool) -> Any:
        fields = {
            "consumerGroup": self._group(group), "topic": self._topic(topic), "queueId": str(queue),
            "maxMsgNums": str(count), "invisibleTime": str(INVISIBLE), "pollTime": "0", "bornTime": BORN_NOW,
            "initMode": str(first), "expType": "TAG", "exp": tags, "order": str(order).lower(),
        }  # fmt: skip
        if order and (group, topic) in self._left:
            return None
        self._asked.add((group, topic))
        self._popped.add((group, topic))
        place = {name: fields[name] for name in ("consumerGroup", "topic", "queueId")}
        before = int(self._control.ask(14, place).fields.get("offset", "0"))
        if before and not self._control.max_offset(self._topic(topic), queue):
            return None
        answer = self._control.pop(fields)
        starts = dict(place_and_start(item) for item in answer.fields.get("startOffsetInfo", "").split(";") if item)
        for record in answer.records:
            said = answer.fields
            marker = "0"
            handle = " ".join(
                [
                    starts.get((marker, str(queue)), "?"), said["popTime"], said["invisibleTime"], said["reviveQid"],
                    marker, "broker-a", str(queue), str(record.queue_offset),
                ]
            )  # fmt: skip
            number = int(record.body[1:].split()[0])
            self._handles[group, number] = (self._topic(topic), str(queue), str(record.queue_offset), handle)
            self._settled.discard((group, number))
        if answer.code in (0, 210) and not order:
            least = most = self._control.max_offset(place["topic"], queue)  # also where it comes from behind the end
            if answer.records:
                least = answer.records[-1].queue_offset + 1
            self._control.eventually(
                lambda: least <= int(self._control.ask(14, place).fields.get("offset", "0")) <= most
            )
        if order:
            self._ordered.add((group, topic))
        return self._seen_records(answer, "popTime", "reviveQid", *(["restNum"] if order else []))

    def _ack(self, number: int, group: int, many: bool) -> Any:
        if (group, number) not in self._handles:
            return None
        topic, queue, offset, handle = self._handles[group, number]
        self._settled.add((group, number))
        if not many:
            fields = {
                "consumerGroup": self._group(group),
                "topic": topic,
                "queueId": queue,
                "extraInfo": handle,
                "offset": offset,
            }
            return self._seen(self._control.ask(200051, fields))
        start, popped, invisible, revive, marker, name, *_ = handle.split()
        bits = base64.b64encode((1 << int(offset) - int(start)).to_bytes(8, "little").rstrip(b"\0")).decode()
        ack = {
            "c": self._group(group), "t": topic, "r": marker, "so": int(start), "q": int(queue), "rq": int(revive),
            "pt": int(popped), "it": int(invisible), "b": bits,
        }  # fmt: skip
        return self._seen(self._control.ask(200151, body=json.dumps({"brokerName": name, "acks": [ack]}).encode()))

    def _invisible(self, number: int, group: int) -> Any:
        if (group, number) not in self._handles or (group, number) in self._settled:
            return None
        topic, queue, offset, handle = self._handles[group, number]
        answer = self._control.ask(
            200053,
            {
                "consumerGroup": self._group(group), "topic": topic, "queueId": queue, "extraInfo": handle,
                "offset": offset, "invisibleTime": str(INVISIBLE),
            },
        )  # fmt: skip
        if answer.code == 0:
            said = answer.fields
            _, _, _, _, marker, name, *_ = handle.split()
            parts = [offset, said["popTime"], said["invisibleTime"], said["reviveQid"], marker, name, queue, offset]
            self._handles[group, number] = (topic, queue, offset, " ".join(parts))
        of_order = any(topic == self._topic(each) for _, each in self._ordered)
        return self._seen(answer, "popTime", "reviveQid", *(["invisibleTime"] if of_order else []))

    def _peek(self, group: int, topic: int, queue: int, count: int) -> Any:
        if (group, topic) in self._ordered:
            return None
        fields = {
            "consumerGroup": self._group(group), "topic": self._topic(topic), "queueId": str(queue),
            "maxMsgNums": str(count),
        }  # fmt: skip
        return self._seen_records(self._control.ask(200052, fields), "popTime")
