"""The consumer groups of this broker (Java: ``SubscriptionGroupManager``, 5.5.0).

File  ``config/subscriptionGroup.json``: ``{"dataVersion", "forbiddenTable": {group: {topic: bits}},
      "subscriptionGroupTable": {name: SubscriptionGroupConfig}}``, saved at every change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rocketcore.broker.state.attributes import GROUP_ATTRIBUTES, altered
from rocketcore.broker.state.json_file import JsonFile, drop_misfits
from rocketcore.broker.state.topic_config import check_queue_count
from rocketcore.codes import GROUP_MAX_LENGTH, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, Permission, ResponseCode
from rocketcore.errors import BrokerError, BrokerSystemError, InvalidParameter
from rocketcore.naming import is_legal, is_legal_group, is_legal_topic
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.topic import DataVersion
from rocketcore.service import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

CAPACITY = 250_000
"""Groups that are kept."""
FORBIDDEN_CAPACITY = 100_000
"""Pairs of group and topic of which the group may not read the topic."""


class SubscriptionGroups:
    """Group settings by name; ``table`` is read only. ``on_change`` is called after each change.

    on_delete  is called, too, after each deletion
    """

    def __init__(
        self,
        file: JsonFile,
        on_change: Callable[[], None],
        *,
        auto_create: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.file = file
        self._on_change = on_change
        self.on_delete: Callable[[], None] = lambda: None
        self._auto_create = auto_create
        self._clock = clock
        self.table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.data_version = DataVersion()

    def load(self) -> None:
        """Read the file, then add the groups that every broker has."""
        saved = self.file.load(_parse)
        if saved is not None:
            self.data_version = saved.data_version
            self.table = saved.subscription_group_table
            self._forbidden = saved.forbidden_table or {}
        for name in SYSTEM_GROUPS:
            self.table.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings; an unknown one is created where the configuration allows it, else None."""
        found = self.table.get(group)
        if found is not None:
            return found
        if not (self._auto_create() or group.startswith(SYSTEM_GROUP_PREFIX)) or not is_legal_group(group):
            return None
        if len(self.table) >= CAPACITY:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self.table[group] = created
        self._changed()
        return created

    def exists(self, group: str) -> bool:
        """Whether the group has settings; never creates it."""
        return group in self.table

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether an admin took the group's right to read the topic."""
        return bool(self._forbidden) and bool(self._forbidden.get(group, {}).get(topic, 0) & Permission.READ)

    def forbid(self, group: str, topic: str, is_forbidden: bool) -> None:
        """Take a group's right to read a topic, or give it back.

        raises  BrokerError for an unknown group, a name that no topic can have, and where there is no room
        """
        if group not in self.table:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
        pairs = sum(map(len, self._forbidden.values()))
        if is_forbidden and pairs >= FORBIDDEN_CAPACITY and topic not in self._forbidden.get(group, ()):
            raise _full(f"{FORBIDDEN_CAPACITY} topics are forbidden to groups")
        if is_forbidden and not is_legal_topic(topic):
            raise InvalidParameter(InvalidParameter.response_code, f"no topic can be called {topic!r}")
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) & ~Permission.READ | (Permission.READ if is_forbidden else 0)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._changed()

    def check(self, group: SubscriptionGroupConfig) -> None:
        """Refuse what an admin cannot create; raises InvalidParameter for the name or the number of retry queues."""
        name = group.group_name
        if not name or not name.strip():
            raise InvalidParameter(InvalidParameter.response_code, "The specified group is blank.")
        if len(name) > GROUP_MAX_LENGTH:
            raise InvalidParameter(
                InvalidParameter.response_code,
                f"The specified group: {name}, is longer than group max length: {GROUP_MAX_LENGTH}",
            )
        if not is_legal(name):
            raise InvalidParameter(
                InvalidParameter.response_code,
                f"The specified group: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            )
        check_queue_count(f"retry topic of group[{name}]", group.retry_queue_nums)

    def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a group for an admin; its attributes are by signed name (``attributes.py``).

        raises  InvalidParameter for the name or the number of retry queues, BrokerSystemError for the attributes
        """
        self.check(group)
        name = group.group_name
        found = self.table.get(name)
        if found is None and len(self.table) >= CAPACITY:
            raise _full(f"{CAPACITY} groups are there")
        current = (found.attributes or {}) if found is not None else {}
        changes = (group.attributes or {}).items()
        attributes = altered(current, changes, GROUP_ATTRIBUTES, is_new=found is None)
        self.table[name] = replace(group, attributes=attributes)
        self._changed()

    def delete(self, group: str) -> None:
        """Forget a group; an unknown one is no error."""
        if self.table.pop(group, None) is not None:
            self._forbidden.pop(group, None)
            self._changed()
            self.on_delete()

    def wrapper(self) -> SubscriptionGroupWrapper:
        """All groups with their version, as request 201 answers them."""
        return SubscriptionGroupWrapper(
            subscription_group_table=dict(self.table), forbidden_table=self._forbidden, data_version=self.data_version
        )

    def encode(self) -> bytes:
        """The table as the file holds it."""
        return self.wrapper().encode()

    def _changed(self) -> None:
        self.data_version.next_version(self._clock.time_millis())
        self._on_change()


def _parse(text: dict[str, Any]) -> SubscriptionGroupWrapper:
    for name, misfits in drop_misfits(SubscriptionGroupConfig, text.get("subscriptionGroupTable")):
        logger.warning("group takes defaults for numbers that do not fit group=%s numbers=%s", name, misfits)
    return SubscriptionGroupWrapper.from_json(text)


def _full(what: str) -> BrokerError:
    return BrokerSystemError(BrokerSystemError.response_code, f"{what}, no more are kept")
