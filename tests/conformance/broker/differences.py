"""Where ours answers otherwise than Apache's on purpose: the one list that tests take their expectations from.

Each names the row of docs/compatibility.md that says why; ``test_differences.py`` checks that it is there.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tests.conformance.broker.connection import Connection


class Difference(NamedTuple):
    """What both do, and how the row of the page begins."""

    apache: Any
    ours: Any
    row: str


APACHES_FIELDS = {"topicSysFlag", "groupSysFlag"}
"""Of answers to pulls: "11, 361: topicSysFlag and groupSysFlag"."""

DIFFERENCES = {
    "the offset behind the end of an empty queue": Difference("2", "0", "200050 of an empty queue"),
    "popped again in order beside what was acknowledged": Difference(
        [b"1", b"2", b"3"], [b"1", b"3"], "200050 in order, of what was handed out and whose time is over"
    ),
    "a look at what was handed out in order": Difference([b"x"], [], "200050, 200052, 200053 of a group that pops"),
    "popped in order before a deletion": Difference([], [b"x"], "200050 in order after the group or the topic"),
    "a subscription that a pull brought": Difference(True, False, "208, 321, 345: subscriptions that pulls"),
    "the pull offset of a topic made anew": Difference(1, 0, "208: a topic that was deleted and made anew"),
    "the prepared offset of what was delayed": Difference(True, False, "the prepared transaction offset"),
    "a message for a time comes before it": Difference(True, False, "a message for a time: when it comes"),
    "messages of a commit that comes twice": Difference(2, 1, "37 that comes again with the same outcome"),
    "a rollback after a commit": Difference(0, 1, "37 that says the opposite of the first"),
    "half messages of what is given back": Difference(1, 0, "10, 310 to `%RETRY%…`: a message that was"),
    "a send with bits of a transaction": Difference(0, 13, "10, 310: sysFlag with bits of a transaction"),
    "200053 of what was acknowledged": Difference(0, 208, "200053 for a message that was acknowledged"),
    "messages popped after a commit of 0": Difference(2, 0, "200050 after an offset before what was popped"),
    "215 for what is no name": Difference(0, 29, "215 for a name that no topic can have"),
    "IS_SUB_CHANGE of short heartbeats": Difference(
        ["false", "false", "true", "false"], ["true"] * 4, "34 with a fingerprint: IS_SUB_CHANGE"
    ),
    "offsets of all topics are copied": Difference(22, 0, "314 without a topic"),
    "36 where the retry topic has no queue": Difference(0, 16, "36 of a group whose retry topic has no queue"),
    "33 for a deleted topic": Difference(0, 1, "12, 33, 36: messages of deleted topics"),
    "a group is there after 207": Difference(True, False, "207 without cleanOffset"),
    "25 with a name that is not live": Difference(0, 16, "25 with a name that is not live"),
    "a group gave up a topic": Difference(True, False, "300: a group that gave up the topic"),
    "system flags of a pull": Difference(APACHES_FIELDS, set(), "11, 361: topicSysFlag and groupSysFlag"),
    "remark of 23": Difference(True, False, "11, 361, 200050: the remark of 23"),
    "SQL92 that does not compile": Difference(0, 23, "11, 361: an SQL92 expression that does not compile"),
    "a pull's commit after a reset": Difference("3", "1", "11, 361 that commits an offset after a reset"),
    "25 with a value that does not parse": Difference(0, 29, "25 with a value that does not parse"),
    "200 without a body": Difference(0, 1, "200 without a body"),
    "303 without a group": Difference(0, 1, "303 without group"),
    "305 names the topic of a container": Difference(True, False, "305: the topic"),
    "45 has all levels": Difference(False, True, "45: delay levels"),
    "queues that CONSISTENT_HASH gives one client": Difference(
        None, [(0, "PULL"), (1, "PULL")], "400 with the strategy CONSISTENT_HASH"
    ),
    "the delay of a group without offsets is its age": Difference(True, False, "303: delayTime"),
    "the pull offset of 317": Difference(0, 1, "317: pullOffset"),
    "the slowest group after filterGroups named it": Difference(3, 1, "308 with `filterGroups`"),
    "the version of a client in remarks": Difference("V3_0_3_SNAPSHOT", "20", "remarks: the version of a client"),
    "times of 303 as texts": Difference(True, False, "303: times as texts"),
    "what 43 has beside the offsets": Difference({"groupTopicMap", "pullOffsetTable"}, set(), "43: groupTopicMap"),
    "send without a body": Difference(1, 13, "310: a message without a body"),
}

BROKER = re.compile(r"\bthe broker\[[\d.:]+\]")
"""In remarks: "remarks: the broker's address"."""

NOTHING_SET = "not set any response code"
"""A remark of successes that ours leaves out: "remarks of a success"."""
THROWN = "…"
"""Stands for the remark of an answer with code 1 that is what Java threw, where ours says what is wrong."""


def expected(broker: Connection, name: str) -> Any:
    """Return what this make does."""
    difference = DIFFERENCES[name]
    return difference.apache if broker.apache else difference.ours


def find_difference(ours: Any, apaches: Any, path: str = "") -> str | None:
    """Return where two answers of a random session differ, but for what docs/compatibility.md allows; None nowhere."""
    if ours == apaches:
        return None
    if isinstance(ours, dict) and isinstance(apaches, dict):
        ours, apaches = _without_allowed(ours, apaches)
        for name in sorted(ours.keys() | apaches.keys(), key=str):
            found = find_difference(ours.get(name), apaches.get(name), f"{path}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(ours, list | tuple) and isinstance(apaches, list | tuple) and len(ours) == len(apaches):
        for number, (left, right) in enumerate(zip(ours, apaches, strict=True)):
            found = find_difference(left, right, f"{path}[{number}]")
            if found is not None:
                return found
        return None
    return f"{path}\n  ours    {ours!r:.2000}\n  apache  {apaches!r:.2000}"


def _without_allowed(ours: dict[str, Any], apaches: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    ours, apaches = dict(ours), dict(apaches)
    if ours.get("code") == apaches.get("code") == 1 and apaches["remark"] == THROWN and ours["remark"]:
        return {"code": 1}, {"code": 1}
    if ours.get("remark") and apaches.get("remark") and ours["remark"].startswith(f"{apaches['remark']}: "):
        ours["remark"] = apaches["remark"]
    if all(str(each.get("remark")).endswith("is not exist!") for each in (ours, apaches)):
        return {}, {}
    if str(apaches.get("restNum")).startswith("-") and ours.get("restNum") == "0":
        ours["restNum"] = apaches["restNum"]
    if set(ours.get("groupList", ())) < set(apaches.get("groupList", ())):
        ours["groupList"] = apaches["groupList"]
    if apaches.get("filterData") == "null" and ours.get("filterData") is None:
        del apaches["filterData"]
        ours.pop("filterData", None)
    if "subscriptionData" not in ours:
        apaches.pop("subscriptionData", None)
    return ours, apaches
