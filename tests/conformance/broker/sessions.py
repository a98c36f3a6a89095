"""Random sessions with a broker: what is asked, from a seed.

A step says its messages by number, places by "topic 0, queue 1", and nothing that a broker makes up: a player
(``player.py``) puts in what its broker answered before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

TOPICS = GROUPS = CLIENTS = range(2)
QUEUES = 3
"""Of a topic; the last is for what comes later: delayed messages and those of a time that is over."""
LATE = QUEUES - 1
TAGS = ["", "red", "blue", "Aa", "BB"]
"""The last two have one hash."""
KEYS = ["", "k1", "k2", "k1 k2", "k1  k3"]
FILTERS = ["*", "*", "*", "red", "blue || red", "Aa", "||", "", "none", " ", "|| ||", " red ||", None, None]
LEVELS = [1, 1, 17, 18, 99]
INVISIBLE = 600_000
"""Milliseconds: what is popped does not come again within a session."""


@dataclass(frozen=True)
class Step:
    """One request, or several that belong together; ``player.py`` has a method for each kind."""

    kind: str
    what: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind} " + ", ".join(f"{name}={value!r}" for name, value in self.what.items())


class Generator:
    """Makes the steps of one session; how often it does what is drawn once for the session."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        draw = self._random.choice
        self._numbers = 0
        self._subscription_version = 0
        """Grows, as those of clients whose clocks agree: which counts of others differs (docs/compatibility.md)."""
        self._ordered = {(group, topic): self._often(0.2) for group in GROUPS for topic in TOPICS}
        self._halves: list[int] = []
        self._timed: list[int] = []
        kinds: list[tuple[Callable[[], Step], int]] = [
            (self._send, 10), (self._batch, draw([0, 3])), (self._delayed, draw([0, 0, 1])),
            (self._half, draw([0, 3])), (self._finish, draw([0, 3])), (self._pull, 10), (self._held, draw([0, 1])),
            (self._commit, 3), (self._committed, 3), (self._bounds, 3), (self._search, draw([0, 2])),
            (self._reset, draw([0, 1])), (self._clone, draw([0, 0, 1])), (self._heartbeat, draw([0, 3])),
            (self._unregister, draw([0, 1])), (self._close, draw([0, 1])), (self._members, 2),
            (self._lock, draw([0, 3])), (self._unlock, draw([0, 1])), (self._back, draw([0, 3])),
            (self._pop, draw([0, 5])), (self._ack, draw([0, 4])), (self._invisible, draw([0, 2])),
            (self._peek, draw([0, 2])), (self._timed_send, draw([0, 3])), (self._recall, draw([0, 2])),
            (self._query, draw([0, 3])), (self._view, 1),
            (self._make_topic, draw([0, 1])), (self._delete_topic, draw([0, 0, 1])),
            (self._make_group, draw([0, 1])), (self._delete_group, draw([0, 0, 1])), (self._configs, 1),
            (self._figures, draw([0, 2])), (self._units, draw([0, 1])),
        ]  # fmt: skip
        self._kinds = [kind for kind, _ in kinds]
        self._weights = [weight for _, weight in kinds]

    def steps(self, count: int) -> list[Step]:
        return [kind() for kind in self._random.choices(self._kinds, self._weights, k=count)]

    def _often(self, probability: float) -> bool:
        return self._random.random() < probability

    def _topic(self) -> int:
        return self._random.choice(TOPICS)

    def _group(self) -> int:
        return self._random.choice(GROUPS)

    def _queue(self) -> int:
        """A queue that nothing is put into later, rarely one that is not there."""
        return self._random.choice([-1, QUEUES, 99]) if self._often(0.03) else self._random.randrange(LATE)

    def _any_queue(self) -> int:
        return self._random.choice([-1, QUEUES, 99]) if self._often(0.05) else self._random.randrange(QUEUES)

    def _new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _old_number(self) -> int:
        return self._random.randint(1, max(self._numbers, 1))

    def _message(self) -> dict[str, Any]:
        draw = self._random.choice
        return {
            "number": self._new_number(), "topic": self._topic(), "tags": draw(TAGS), "keys": draw(KEYS),
            "size": draw([1, 1, 1, 50, 3000, 70_000]),
        }  # fmt: skip

    def _send(self) -> Step:
        draw = self._random.choice
        queue = self._queue()
        said = draw([{}, {}, {"a": "1"}, {"WAIT": "false"}, {"b": "ü", "c": " "}, {"DELAY": draw(["0", "-1", "x"])}])
        return Step(
            "send",
            {
                **self._message(), "queue": 0 if queue == -1 else queue, "said": said,
                "sys_flag": draw([0, 0, 0, 1, 2, 0x100]), "reconsumed": draw([None, None, None, 0, 3]),
                "long": self._often(0.2),
            },
        )  # fmt: skip

    def _batch(self) -> Step:
        draw = self._random.choice
        elements = [self._message() for _ in range(draw([1, 2, 3, 5]))]
        return Step(
            "batch",
            {
                "elements": elements,
                "topic": elements[0]["topic"],
                "queue": abs(self._queue()),
                "said": draw([{}, {}, {}, {"a": "1"}, {"DELAY": "1"}, {"TRAN_MSG": "true"}]),
            },
        )

    def _delayed(self) -> Step:
        return Step("delayed", {**self._message(), "level": self._random.choice(LEVELS)})

    def _half(self) -> Step:
        message = self._message()
        self._halves.append(message["number"])
        return Step("half", {**message, "queue": abs(self._queue())})

    def _finish(self) -> Step:
        number = self._halves.pop() if self._halves and self._often(0.9) else self._old_number()
        wrong = self._random.choice(["", "", "", "", "producer group", "queue offset", "log offset"])
        return Step("finish", {"number": number, "outcome": self._random.choice([8, 8, 12, 5]), "wrong": wrong})

    def _pull(self) -> Step:
        draw = self._random.choice
        return Step(
            "pull",
            {
                "client": draw(CLIENTS), "group": self._group(), "topic": self._topic(), "queue": self._any_queue(),
                "offset": draw([0, 0, 0, 1, 2, 3, 5, 8, 100, -1]), "count": draw([32, 32, 1, 2, 3, 0, -1, 1000]),
                "tags": draw(FILTERS), "commit": draw([None, None, None, 0, 1, 2, 5]),
                "version": draw([0, 0, 1, 2, 99]), "lite": self._often(0.15),
            },
        )  # fmt: skip

    def _held(self) -> Step:
        message = self._message()
        return Step(
            "held",
            {
                **message,
                "group": self._group(),
                "queue": self._random.randrange(LATE),
                "filter": self._random.choice(["*", message["tags"] or "*"]),
            },
        )

    def _commit(self) -> Step:
        draw = self._random.choice
        return Step(
            "commit",
            {
                "group": draw([0, 0, 1, 1, None]),
                "topic": draw([0, 0, 1, 1, None]),
                "queue": self._any_queue(),
                "offset": draw([0, 1, 2, 3, 7, 100, -1]),
            },
        )

    def _committed(self) -> Step:
        draw = self._random.choice
        return Step(
            "committed",
            {
                "group": draw([0, 0, 1, 1, None]),
                "topic": draw([0, 0, 1, 1, None]),
                "queue": self._any_queue(),
                "zero": draw([None, "true", "false"]),
            },
        )

    def _bounds(self) -> Step:
        return Step("bounds", {"topic": self._random.choice([0, 0, 1, 1, None]), "queue": self._any_queue()})

    def _search(self) -> Step:
        draw = self._random.choice
        return Step(
            "search",
            {
                "topic": self._topic(),
                "queue": self._any_queue(),
                "place": draw([-1, 0, 1, 2, 5, 99]),
                "shift": draw([-1, 0, 0, 1]),
                "boundary": draw([None, "LOWER", "UPPER"]),
            },
        )

    def _reset(self) -> Step:
        draw = self._random.choice
        return Step(
            "reset",
            {
                "group": self._group(),
                "topic": self._topic(),
                "queue": draw([-1, 0, 1]),
                "offset": draw([None, 0, 1, 2, -1, 100]),
                "time": draw([-1, 0, 1 << 50]),
            },
        )

    def _clone(self) -> Step:
        return Step("clone", {"source": self._group(), "target": self._group(), "topic": self._topic()})

    def _heartbeat(self) -> Step:
        draw = self._random.choice
        self._subscription_version += 1
        groups = {
            group: {
                "topics": {topic: draw(["*", "red", "blue || red"]) for topic in TOPICS if self._often(0.7)},
                "version": self._subscription_version, "model": draw(["CLUSTERING", "CLUSTERING", "BROADCASTING"]),
            }
            for group in GROUPS
            if self._often(0.6)
        }  # fmt: skip
        return Step("heartbeat", {"client": draw(CLIENTS), "groups": groups, "producers": draw([[], ["producers"]])})

    def _unregister(self) -> Step:
        return Step("unregister", {"client": self._random.choice(CLIENTS), "group": self._random.choice([None, 0, 1])})

    def _close(self) -> Step:
        return Step("close", {"client": self._random.choice(CLIENTS)})

    def _members(self) -> Step:
        return Step("members", {"group": self._group(), "topic": self._topic()})

    def _lock(self) -> Step:
        return Step("lock", self._queues())

    def _unlock(self) -> Step:
        return Step("unlock", self._queues())

    def _queues(self) -> dict[str, Any]:
        places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES) if self._often(0.4)]
        return {"client": self._random.choice(CLIENTS), "group": self._group(), "places": places}

    def _back(self) -> Step:
        draw = self._random.choice
        return Step(
            "back",
            {
                "number": self._old_number(),
                "group": self._group(),
                "level": draw([-1, 1, 1, 17]),
                "maximum": draw([None, 0, 1, 16]),
            },
        )

    def _pop(self) -> Step:
        draw = self._random.choice
        group, topic = self._group(), self._topic()
        tags = ["*"] if self._ordered[group, topic] else ["*", "*", "*", "red"]
        return Step(
            "pop",
            {
                "group": group,
                "topic": topic,
                "queue": draw([0, 0, 0, 1, 1, 1, 7]),
                "count": draw([1, 1, 2, 3, 32, 33]),
                "first": draw([0, 0, 1]),
                "tags": draw(tags),
                "order": self._ordered[group, topic],
            },
        )

    def _ack(self) -> Step:
        return Step("ack", {"number": self._old_number(), "group": self._group(), "many": self._often(0.2)})

    def _invisible(self) -> Step:
        return Step("invisible", {"number": self._old_number(), "group": self._group()})

    def _peek(self) -> Step:
        draw = self._random.choice
        return Step(
            "peek",
            {
                "group": self._group(),
                "topic": self._topic(),
                "queue": draw([0, 1, 0, 1, 7]),
                "count": draw([1, 2, 32, 33]),
            },
        )

    def _timed_send(self) -> Step:
        draw = self._random.choice
        message = self._message()
        self._timed.append(message["number"])
        name, value = draw(
            [
                ("TIMER_DELAY_SEC", "3600"), ("TIMER_DELAY_MS", "7200000"), ("TIMER_DELIVER_MS", "+3600000"),
                ("TIMER_DELIVER_MS", "+3600000"), ("TIMER_DELIVER_MS", "1"), ("TIMER_DELAY_SEC", "x"),
                ("TIMER_DELAY_SEC", "300000"), ("TIMER_DELAY_MS", "-5"),
            ]
        )  # fmt: skip
        return Step("timed", {**message, "name": name, "value": value})

    def _recall(self) -> Step:
        number = self._random.choice(self._timed) if self._timed and self._often(0.9) else self._old_number()
        return Step("recall", {"number": number, "topic": self._random.choice([None, None, None, 0, 1])})

    def _query(self) -> Step:
        draw = self._random.choice
        return Step(
            "query",
            {
                "topic": self._topic(),
                "key": draw(["k1", "k2", "k3", "nobody", None]),
                "number": self._old_number(),
                "kind": draw([None, None, "K", "T"]),
                "maximum": draw([32, 1, 2, 64]),
            },
        )

    def _view(self) -> Step:
        return Step("view", {"number": self._old_number(), "shift": self._random.choice([0, 0, 0, 1 << 40])})

    def _make_topic(self) -> Step:
        draw = self._random.choice
        return Step(
            "make_topic",
            {
                "topic": self._topic(),
                "readers": draw([QUEUES, QUEUES, 5, 2]),
                "writers": draw([QUEUES, QUEUES, 5, 2]),
                "perm": draw([6, 6, 6, 4, 2]),
                "order": draw(["false", "false", "true"]),
                "attributes": draw([None, None, "+message.type=NORMAL", "+message.type=x", "+y=1", "-message.type"]),
            },
        )

    def _delete_topic(self) -> Step:
        return Step("delete_topic", {"topic": self._topic()})

    def _make_group(self) -> Step:
        draw = self._random.choice
        settings = draw(
            [
                {},
                {"consumeEnable": False},
                {"retryMaxTimes": 1},
                {"retryQueueNums": 0},
                {"consumeBroadcastEnable": False},
            ]
        )
        return Step("make_group", {"group": self._group(), "settings": settings})

    def _delete_group(self) -> Step:
        return Step("delete_group", {"group": self._group(), "clean": "true"})

    def _configs(self) -> Step:
        return Step("configs", {"topic": self._topic(), "group": self._group()})

    def _figures(self) -> Step:
        return Step("figures", {"topic": self._topic(), "group": self._group()})

    def _units(self) -> Step:
        return Step(
            "units",
            {
                "topic": self._topic(),
                "queue": self._any_queue(),
                "index": self._random.choice([0, 1, 5]),
                "count": self._random.choice([1, 3, 100]),
            },
        )
