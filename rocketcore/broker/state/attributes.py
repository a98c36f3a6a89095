"""Attributes of topics and groups, and how a request changes them (Java: ``AttributeUtil``, 5.5.0).

A change is by signed name: ``+name`` with its value, or ``-name``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketcore.codes import TOPIC_MAX_LENGTH
from rocketcore.errors import BrokerSystemError

__all__ = ["GROUP_ATTRIBUTES", "TOPIC_ATTRIBUTES", "Attribute", "altered", "read_changes"]

_LONG_MAX = (1 << 63) - 1
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")


class Attribute(NamedTuple):
    """What an attribute may be; with neither of the last two any text that a topic's name has room for.

    is_changeable  also later than with the topic or the group
    values         one of these
    numbers        from the first to the last of these
    """

    is_changeable: bool = True
    values: tuple[str, ...] = ()
    numbers: tuple[int, int] | None = None

    def check(self, value: str) -> None:
        """Raise BrokerSystemError for a value that it cannot have."""
        if self.values and value not in self.values:
            raise _refused(f"value is not in set: [{', '.join(self.values)}]")
        if self.numbers is not None:
            low, high = self.numbers
            if not _WHOLE_NUMBER.fullmatch(value) or not low <= int(value) <= high:
                raise _refused(f"value is not in range({low}, {high})")
        if len(value) > TOPIC_MAX_LENGTH:
            raise _refused(f"value is longer than {TOPIC_MAX_LENGTH} characters")


TOPIC_ATTRIBUTES = {
    "message.type": Attribute(values=_MESSAGE_TYPES),
    "queue.type": Attribute(is_changeable=False, values=("SimpleCQ",)),
    "cleanup.policy": Attribute(is_changeable=False, values=("DELETE",)),
}
"""Batch queues and compaction do not exist here: nobody can ask for them."""

GROUP_ATTRIBUTES = {
    "priority.factor": Attribute(numbers=(0, 100)),
    "lite.bind.topic": Attribute(),
    "lite.sub.model": Attribute(values=("Exclusive", "Shared")),
    "lite.sub.reset.offset.exclusive": Attribute(values=("true", "false")),
    "lite.sub.reset.offset.unsubscribe": Attribute(values=("true", "false")),
    "lite.sub.client.quota": Attribute(numbers=(-1, _LONG_MAX)),
    "lite.sub.client.max.event.cnt": Attribute(numbers=(10, _LONG_MAX)),
}
"""Kept for tools, without effect."""


def read_changes(text: str) -> dict[str, str]:
    """Return what ``+name=value,-name`` asks for; raises BrokerSystemError."""
    changes: dict[str, str] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        signed, equals, value = part.partition("=")
        if equals and signed[:1] != "+":
            raise _refused(f"add/alter attribute format is wrong: {signed}")
        if not equals and signed[:1] != "-":
            raise _refused(f"delete attribute format is wrong: {part}")
        changes[signed] = value
    return changes


def altered(
    current: Mapping[str, str], changes: Iterable[tuple[str, str]], known: Mapping[str, Attribute], *, is_new: bool
) -> dict[str, str]:
    """Return the attributes after these changes; raises BrokerSystemError for one that cannot be.

    known   what there is
    is_new  they are of a topic or a group that was not there
    """
    result = dict(current)
    for signed, value in changes:
        sign, name = signed[:1], signed[1:]
        if not name:
            raise _refused("kv string format wrong.")
        if is_new and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {name}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {name}")
        if sign == "-" and name not in current:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
        if name not in known:
            raise _refused(f"unsupported key: {name}")
        if not known[name].is_changeable and not is_new:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == "+":
            known[name].check(value)
            result[name] = value
        else:
            result.pop(name, None)
    return result


def _refused(remark: str) -> BrokerSystemError:
    return BrokerSystemError(BrokerSystemError.response_code, remark)
