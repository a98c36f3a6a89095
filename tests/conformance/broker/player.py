"""Plays the steps of a session with one broker, and says what came back as far as all brokers must say the same."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from tests.conformance.broker.connection import (
    LONG_NAMES,
    Answer,
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
from tests.conformance.broker.pop_steps import PopSteps
from tests.conformance.broker.seen import read
from tests.conformance.broker.sessions import GROUPS, LATE, QUEUES, TOPICS, Step
from tests.reference import properties

LONG_LEVEL = 17


class Player(PopSteps):
    """One broker, and a session's connections to it.

    messages  number → offset message id
    """

    def __init__(self, broker: BrokerAddress, serial: str) -> None:
        super().__init__(broker, serial)
        self._broker = broker
        self._clients: dict[int, Connection] = {}
        self._messages: dict[int, str] = {}
        self._topics: dict[int, int] = {}
        self._queue_offsets: dict[int, str] = {}
        self._recalls: dict[int, str] = {}
        self._finished: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._deleted: set[int] = set()
        self._retries: dict[int, bool] = {}
        self._queueless: set[int] = set()
        """Groups whose retry topic may have no queue: Apache's put what failed there, and ours refuse it."""
        self._reset_ones: set[tuple[int | None, int | None]] = set()

    def __enter__(self) -> Self:
        for topic in TOPICS:
            self._make_topic(topic, QUEUES, QUEUES, 6, "false", None)
        for group in GROUPS:
            self._make_group(group, {})
        return self

    def __exit__(self, *_: object) -> None:
        for topic in TOPICS:
            self._control.ask(215, {"topic": self._topic(topic)})
        for group in GROUPS:
            for prefix in ("%RETRY%", "%DLQ%"):
                self._control.ask(215, {"topic": prefix + self._group(group)})
            self._control.ask(207, {"groupName": self._group(group), "cleanOffset": "true"})
        for connection in [self._control, *self._clients.values()]:
            connection.__exit__()

    def play(self, step: Step) -> Any:
        """Return what the broker answered; None where the step is about what is not there."""
        return getattr(self, f"_{step.kind}")(**step.what)

    def sweep(self) -> Any:
        """Everything that a step can change and that costs little."""
        places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
        opaques = [
            self._control.begin(code, {"topic": self._topic(topic), "queueId": str(queue)})
            for code in (30, 31)
            for topic, queue in places
            if queue != LATE
        ]
        opaques += [
            self._control.begin(
                14, {"consumerGroup": self._group(group), "topic": self._topic(topic), "queueId": str(queue)}
            )
            for group in GROUPS
            for topic, queue in places
            if queue != LATE
        ]
        return [self._seen(self._control.end(opaque)) for opaque in opaques]

    def last_look(self) -> Any:
        """Everything that is stored, and all figures."""
        self._wait_for_late()
        found: list[Any] = [self._configs(topic, group) for topic in TOPICS for group in GROUPS]
        found += [self._figures(topic, group) for topic in TOPICS for group in GROUPS]
        found += [self._members(group, topic) for topic in TOPICS for group in GROUPS]
        names = [(self._topic(topic), queue) for topic in TOPICS for queue in range(QUEUES)]
        names += [(prefix + self._group(group), 0) for prefix in ("%RETRY%", "%DLQ%") for group in GROUPS]
        names += [(f"%RETRY%{self._group(group)}_{self._topic(topic)}", 0) for group in GROUPS for topic in TOPICS]
        return found + [(self._plain(name), queue, self._all_of(name, queue)) for name, queue in names]

    # What is the same for all

    def _client(self, client: int) -> Connection:
        if client not in self._clients:
            self._clients[client] = Connection(self._broker)
        return self._clients[client]

    def _settle(self, answer: Answer, topic: int, count: int = 1) -> None:
        """Wait until what was acknowledged can be read."""
        if answer.code == 0:
            queue, offset = int(answer.fields["queueId"]), int(answer.fields["queueOffset"])
            self._control.wait_for_offset(self._topic(topic), queue, offset + count)

    def _wait_for_late(self) -> None:
        """Wait for delayed messages."""
        for topic, count in self._late.items():
            self._control.wait_for_offset(self._topic(topic), LATE, count, 30.0)

    def _note(self, message: Mapping[str, Any], answer: Answer) -> Answer:
        if answer.code == 0:
            number = message["number"]
            self._topics[number] = message["topic"]
            self._ids[number] = self._messages[number] = answer.fields["msgId"]
            self._queue_offsets[number] = answer.fields["queueOffset"]
        return answer

    # Messages

    def _put(self, message: Mapping[str, Any], queue: int, said: Mapping[str, str], **more: Any) -> Answer:
        fields = send_fields(self._topic(message["topic"]), queue=queue, said=self._said(message, said), **more)
        return self._note(message, self._control.ask(310, fields, self._body(message)))

    def _send(
        self, queue: int, said: dict[str, str], sys_flag: int, reconsumed: int | None, long: bool, **message: Any
    ) -> Any:
        more: dict[str, Any] = {} if reconsumed is None else {"j": str(reconsumed)}
        fields = send_fields(
            self._topic(message["topic"]), queue=queue, said=self._said(message, said), sys_flag=sys_flag, **more
        )
        if long:
            fields = {LONG_NAMES[name]: value for name, value in fields.items()}
        answer = self._note(message, self._control.ask(10 if long else 310, fields, self._body(message)))
        if sys_flag & 12 != 12:
            self._settle(answer, message["topic"])
        return self._seen(answer, "msgId")

    def _batch(self, elements: list[dict[str, Any]], topic: int, queue: int, said: dict[str, str]) -> Any:
        body = batch_body(*((self._body(each), self._said(each)) for each in elements))
        fields = send_fields(self._topic(topic), queue=queue, m="true")
        answer = self._control.ask(320, {**fields, "i": properties.encode(said)}, body)
        self._settle(answer, topic, len(elements))
        if answer.code == 0:
            ids = answer.fields["msgId"].split(",")
            assert len(ids) == len(elements)
            self._topics |= {each["number"]: topic for each in elements}
            named = {each["number"]: msg_id for each, msg_id in zip(elements, ids, strict=True)}
            self._messages |= named
            self._ids |= named
        return self._seen(answer, "msgId")

    def _delayed(self, level: int, **message: Any) -> Any:
        answer = self._put(message, LATE, {"DELAY": str(level)})
        if level == 1 and answer.code == 0:
            self._late[message["topic"]] = self._late.get(message["topic"], 0) + 1
        return self._seen(answer, "msgId", "queueOffset")

    def _timed(self, name: str, value: str, **message: Any) -> Any:
        if value.startswith("+"):
            value = str(int(time.time() * 1000) + int(value))
        self._wait_for_late()  # one broker's would come before this message, which may be over, and the other's after
        answer = self._put(message, LATE, {name: value})
        over = "recallHandle" not in answer.fields
        if answer.code == 0 and over:
            self._late[message["topic"]] = self._late.get(message["topic"], 0) + 1
            self._wait_for_late()
        if not over:
            self._recalls[message["number"]] = answer.fields["recallHandle"]
            said = base64.urlsafe_b64decode(answer.fields["recallHandle"]).decode().split()
            answer.fields["recallHandle"] = " ".join([*said[:3], *said[4:]])
        return self._seen(answer, "msgId", "queueOffset")

    def _recall(self, number: int, topic: int | None) -> Any:
        handle = self._recalls.get(number, "nothing")
        said = base64.urlsafe_b64decode(handle).decode().split() if number in self._recalls else ["", "T"]
        answer = self._control.ask(
            370, {"topic": self._topic(topic) if topic is not None else said[1], "recallHandle": handle}
        )
        return self._seen(answer)

    def _half(self, queue: int, **message: Any) -> Any:
        answer = self._put(message, queue, {"TRAN_MSG": "true", "PGROUP": "producers"}, f="4")
        return self._seen(answer, "msgId", "queueOffset")

    def _finish(self, number: int, outcome: int, wrong: str) -> Any:
        if number not in self._messages or number not in self._queue_offsets or number in self._finished:
            return None
        before = self._offsets()
        place = int(self._messages[number][16:32], 16)
        fields = {
            "producerGroup": "others" if wrong == "producer group" else "producers", "msgId": "x",
            "tranStateTableOffset": str(int(self._queue_offsets[number]) + (wrong == "queue offset")),
            "commitLogOffset": str(place + (wrong == "log offset")), "commitOrRollback": str(outcome),
        }  # fmt: skip
        answer = self._control.ask(37, fields)
        if answer.code == 0:
            self._finished[number] = outcome
            if outcome == 8:
                self._control.eventually(lambda: self._offsets() != before)
        return self._seen(answer)

    def _offsets(self) -> list[int]:
        return [self._control.max_offset(self._topic(topic), queue) for topic in TOPICS for queue in range(QUEUES)]

    def _back(self, number: int, group: int, level: int, maximum: int | None) -> Any:
        if number not in self._messages or number in self._finished:
            return None
        if group in self._queueless and self._retries.get(group, True):
            return None
        fields = {
            "offset": str(int(self._messages[number][16:32], 16)), "group": self._group(group),
            "delayLevel": str(level), "originMsgId": self._messages[number], "originTopic": "x", "unitMode": "false",
        }  # fmt: skip
        if maximum is not None:
            fields["maxReconsumeTimes"] = str(maximum)
        names = [prefix + self._group(group) for prefix in ("%DLQ%", "%RETRY%")]
        before = [self._control.max_offset(name) for name in names]
        answer = self._control.ask(36, fields)
        if answer.code == 0 and self._retries[group] and level != LONG_LEVEL:
            self._control.eventually(lambda: [self._control.max_offset(name) for name in names] != before)
        return self._seen(answer)

    # Reading

    def _pull(
        self, client: int, group: int, topic: int, queue: int, offset: int, count: int, tags: str | None,
        commit: int | None, version: int, lite: bool,
    ) -> Any:  # fmt: skip
        self._wait_for_late()
        self._asked.add((group, topic))
        if (group, topic) in self._reset_ones | self._popped:
            commit = None
        fields = pull_fields(
            self._topic(topic), offset, queue=queue, group=self._group(group), tags=tags, count=count, commit=commit,
            subVersion=str(version),
        )  # fmt: skip
        return self._seen_records(self._client(client).ask(361 if lite else 11, fields))

    def _held(self, group: int, queue: int, filter: str, **message: Any) -> Any:
        name = self._topic(message["topic"])
        self._asked.add((group, message["topic"]))
        offset = self._control.max_offset(name, queue)
        hold = pull_fields(name, offset, queue=queue, group=self._group(group), hold=15_000, tags=filter)
        client = self._client(0)
        opaque = client.begin(11, hold)
        client.ask(30, {"topic": name, "queueId": str(queue)})
        answer = self._put(message, queue, {})
        self._settle(answer, message["topic"])
        return self._seen(answer, "msgId"), self._seen_records(client.end(opaque)) if answer.code == 0 else None

    def _all_of(self, name: str, queue: int) -> Any:
        found: list[Any] = []
        while True:
            answer = self._control.pull(name, len(found), queue=queue, group=self._group(0))
            if answer.code != 0:
                return [*found, self._seen(answer)]
            found += [self._record(record) for record in answer.records]

    def _view(self, number: int, shift: int) -> Any:
        if number not in self._messages:
            return None
        offset = int(self._messages[number][16:32], 16) + shift
        answer = self._control.ask(33, {"offset": str(offset)})
        seen = self._seen_records(answer) if answer.code == 0 else self._seen(answer)
        return seen if seen["remark"] is None else {**seen, "remark": seen["remark"].replace(str(offset), "…")}

    def _query(self, topic: int, key: str | None, number: int, kind: str | None, maximum: int) -> Any:
        if topic in self._deleted:
            return None
        fields = {
            "topic": self._topic(topic), "key": key or f"id-{number}-{self._serial}", "maxNum": str(maximum),
            "beginTimestamp": "0", "endTimestamp": str(1 << 60),
        }  # fmt: skip
        if key is None:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        if kind is not None:
            fields["indexType"] = kind
        return self._seen_records(self._control.ask(12, fields), "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset")

    def _units(self, topic: int, queue: int, index: int, count: int) -> Any:
        self._wait_for_late()
        answer = self._control.ask(
            321,
            {
                "topic": self._topic(topic), "queueId": str(queue), "index": str(index), "count": str(count),
                "consumerGroup": self._group(0),
            },
        )  # fmt: skip
        body = answer.json if answer.body else {}
        for unit in body.get("queueData") or []:
            unit["physicOffset"], unit["physicSize"] = "…", "…"
            if (0, topic) in self._asked:
                unit["eval"] = "…"
        for field in ("tagsSet", "codeSet"):
            if body.get("subscriptionData"):
                body["subscriptionData"][field].sort()
        if (0, topic) in self._asked and body:
            body |= {"subscriptionData": "…", "filterData": "…"}
        return self._seen(answer, body=self._plain(body))

    # Offsets

    def _commit(self, group: int | None, topic: int | None, queue: int, offset: int) -> Any:
        if (group, topic) in self._popped:
            return None
        fields = {
            "consumerGroup": self._group(group), "topic": self._topic(topic), "queueId": str(queue),
            "commitOffset": str(offset),
        }  # fmt: skip
        return self._seen(self._control.ask(15, fields))

    def _committed(self, group: int | None, topic: int | None, queue: int, zero: str | None) -> Any:
        fields = {"consumerGroup": self._group(group), "topic": self._topic(topic), "queueId": str(queue)}
        if zero is not None:
            fields["setZeroIfNotFound"] = zero
        return self._seen(self._control.ask(14, fields))

    def _bounds(self, topic: int | None, queue: int) -> Any:
        self._wait_for_late()
        fields = {"topic": self._topic(topic), "queueId": str(queue)}
        answers = [self._control.ask(code, fields) for code in (30, 31, 32)]
        answers.append(self._control.ask(30, {**fields, "committed": "false"}))
        seen = [self._seen(answer) for answer in answers]
        if (stored := seen[2]["fields"].get("timestamp")) is not None:
            seen[2]["fields"]["timestamp"] = min(int(stored), 1)
        return seen

    def _search(self, topic: int, queue: int, place: int, shift: int, boundary: str | None) -> Any:
        """By the time of a message; the answer is compared with what the queue itself says."""
        self._wait_for_late()
        name = self._topic(topic)
        self._asked.add((0, topic))
        times: list[int] = []
        while (answer := self._control.pull(name, len(times), queue=queue, group=self._group(0))).code == 0:
            times += [record.store_timestamp for record in answer.records]
        timestamp = (times[place] if place < len(times) else 1 << 50 if place > 0 else 0) if times else 7
        fields = {"topic": name, "queueId": str(queue), "timestamp": str(timestamp + shift)}
        if boundary is not None:
            fields["boundaryType"] = boundary
        answer = self._control.ask(29, fields)
        seen = self._seen(answer)
        if times and answer.code == 0:
            low = sum(each < timestamp + shift for each in times)
            high = max(sum(each <= timestamp + shift for each in times) - 1, 0)
            right = high if boundary == "UPPER" else low
            seen["fields"]["offset"] = "right" if answer.fields["offset"] == str(right) else (answer.fields, right)
        return seen

    def _reset(self, group: int, topic: int, queue: int, offset: int | None, time: int) -> Any:
        self._wait_for_late()
        self._reset_ones.add((group, topic))
        fields = {
            "group": self._group(group), "topic": self._topic(topic), "timestamp": str(time), "isForce": "true",
            "queueId": str(queue),
        }  # fmt: skip
        if offset is not None:
            fields["offset"] = str(offset)
        return self._seen_json(self._control.ask(222, fields))

    def _clone(self, source: int, target: int, topic: int | None) -> Any:
        if (target, topic) in self._popped or (source, topic) in self._asked:
            return None
        fields = {"srcGroup": self._group(source), "destGroup": self._group(target), "offline": "false"}
        if topic is not None:
            fields["topic"] = self._topic(topic)
        return self._seen(self._control.ask(314, fields))

    def _heartbeat(self, client: int, groups: dict[int, dict[str, Any]], producers: list[str]) -> Any:
        data = []
        for group, said in groups.items():
            one = consumer(self._group(group), model=said["model"])
            one["subscriptionDataSet"] = [
                subscription(self._topic(topic), tags, said["version"]) for topic, tags in said["topics"].items()
            ]
            data.append(one)
        names = [f"{name}-{self._serial}" for name in producers]
        return self._seen(self._client(client).ask(34, body=heartbeat_body(self._client_id(client), data, names)))

    def _unregister(self, client: int, group: int | None) -> Any:
        fields = {"clientID": self._client_id(client), "producerGroup": f"producers-{self._serial}"}
        if group is not None:
            fields["consumerGroup"] = self._group(group)
        return self._seen(self._client(client).ask(35, fields))

    def _close(self, client: int) -> Any:
        if (connection := self._clients.pop(client, None)) is not None:
            connection.__exit__()
            name = self._client_id(client).encode()
            for group in GROUPS:
                self._control.eventually(partial(self._has_left, name, self._group(group)))

    def _has_left(self, name: bytes, group: str) -> bool:
        return name not in self._control.ask(38, {"consumerGroup": group}).body

    def _members(self, group: int, topic: int) -> Any:
        name = {"consumerGroup": self._group(group)}
        members = self._control.ask(38, name)
        found = [self._seen(members, body=sorted(members.json["consumerIdList"]) if members.body else "")]
        found[0]["body"] = self._plain(found[0]["body"])
        connections = self._seen_json(self._control.ask(203, name))
        if isinstance(connections["body"], dict):
            body = connections["body"]
            body["connectionSet"] = sorted(body["connectionSet"], key=lambda each: each["clientId"])
            for each in body["subscriptionTable"].values():
                for field in ("tagsSet", "codeSet"):
                    each[field] = sorted(each[field])
        found.append(connections)
        registered = self._seen_json(self._control.ask(345, {"group": self._group(group), "topic": self._topic(topic)}))
        if isinstance(registered["body"], dict) and "subscriptionData" in registered["body"]:
            for field in ("tagsSet", "codeSet"):
                registered["body"]["subscriptionData"][field].sort()
        found.append(registered)
        for code, fields in ((300, {"topic": self._topic(topic)}), (343, {"group": self._group(group)})):
            answer = self._seen_json(self._control.ask(code, fields))
            if isinstance(answer["body"], dict):
                answer["body"] = {
                    key: sorted(each) if isinstance(each, list) else each for key, each in answer["body"].items()
                }
            found.append(answer)
        return found

    def _lock(self, client: int, group: int, places: list[tuple[int, int]]) -> Any:
        answer = self._control.ask(41, body=self._queues_body(client, group, places))
        body = read(answer.body) if answer.body else {}
        locked = sorted((queue["topic"], queue["queueId"]) for queue in body.get("lockOKMQSet", []))
        return self._seen(answer, body=self._plain([list(each) for each in locked]))

    def _unlock(self, client: int, group: int, places: list[tuple[int, int]]) -> Any:
        return self._seen(self._control.ask(42, body=self._queues_body(client, group, places)))

    def _queues_body(self, client: int, group: int, places: list[tuple[int, int]]) -> bytes:
        queues = [{"topic": self._topic(topic), "brokerName": "broker-a", "queueId": queue} for topic, queue in places]
        body = {"consumerGroup": self._group(group), "clientId": self._client_id(client), "mqSet": queues}
        return json.dumps(body).encode()

    # Topics, groups and figures

    def _make_topic(self, topic: int, readers: int, writers: int, perm: int, order: str, attributes: str | None) -> Any:
        more: dict[str, Any] = {} if attributes is None else {"attributes": attributes}
        fields = topic_fields(self._topic(topic), perm=perm, **more)
        fields |= {"readQueueNums": str(readers), "writeQueueNums": str(writers), "order": order}
        return self._seen(self._control.ask(17, fields))

    def _delete_topic(self, topic: int) -> Any:
        self._wait_for_late()
        self._late.pop(topic, None)
        self._deleted.add(topic)
        self._left |= {each for each in self._ordered if each[1] == topic}
        self._handles = {key: each for key, each in self._handles.items() if each[0] != self._topic(topic)}
        self._messages = {number: each for number, each in self._messages.items() if self._topics[number] != topic}
        return self._seen(self._control.ask(215, {"topic": self._topic(topic)}))

    def _make_group(self, group: int, settings: dict[str, Any]) -> Any:
        self._retries[group] = settings.get("retryQueueNums", 1) > 0
        if not self._retries[group]:
            self._queueless.add(group)
        body = json.dumps(group_config(self._group(group), **settings)).encode()
        return self._seen(self._control.ask(200, body=body))

    def _delete_group(self, group: int, clean: str | None) -> Any:
        fields = {"groupName": self._group(group)} | ({} if clean is None else {"cleanOffset": clean})
        self._retries[group] = True
        self._left |= {each for each in self._ordered if each[0] == group}
        self._handles = {key: each for key, each in self._handles.items() if key[0] != group}
        return self._seen(self._control.ask(207, fields))

    def _configs(self, topic: int, group: int) -> Any:
        return [
            self._seen_json(self._control.ask(351, {"topic": self._topic(topic)})),
            self._seen_json(self._control.ask(352, {"group": self._group(group)})),
        ]

    def _figures(self, topic: int, group: int) -> Any:
        self._wait_for_late()
        answers = [
            self._seen_json(self._control.ask(202, {"topic": self._topic(topic)})),
            self._seen_json(self._control.ask(208, {"consumerGroup": self._group(group)})),
            self._seen_json(self._control.ask(208, {"consumerGroup": self._group(group), "topic": self._topic(topic)})),
        ]
        for answer in answers:
            if isinstance(answer["body"], dict):
                for name in ("consumeTps", "topicPutTps"):
                    answer["body"].pop(name, None)
                queues = answer["body"]["offsetTable"]
                if answer is not answers[0]:
                    asked = [self._plain(self._topic(each)) for _, each in self._asked if _ == group]
                    for name in [name for name in queues if any(f"'{each}'" in name for each in asked)]:
                        del queues[name]
                for queue in answer["body"]["offsetTable"].values():
                    if self._deleted:
                        queue.pop("pullOffset", None)
                    for name in ("lastUpdateTimestamp", "lastTimestamp"):
                        if name in queue:
                            queue[name] = min(queue[name], 1)
        return answers
