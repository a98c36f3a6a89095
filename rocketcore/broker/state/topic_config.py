"""The topics of this broker (Java: ``TopicConfigManager``, 5.5.0).

File  ``config/topics.json``: ``{"dataVersion", "topicConfigTable": {name: TopicConfig}}``, saved at every change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state.attributes import TOPIC_ATTRIBUTES, altered, read_changes
from rocketcore.broker.state.json_file import JsonFile, drop_misfits
from rocketcore.codes import (
    AUTO_CREATE_TOPIC,
    DLQ_TOPIC_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Permission,
)
from rocketcore.errors import BrokerSystemError, InvalidParameter
from rocketcore.naming import is_legal, is_system_topic, topic_limit
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.topic import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from rocketcore.service import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

CAPACITY = 250_000
"""Topics that are kept: no name server takes a registration with more."""

_READ_WRITE = int(Permission.READ | Permission.WRITE)
_SCHEDULE_QUEUES = 18
_REVIVE_QUEUES = 8
_REGISTRATION = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":%b,"mappingDataVersion":%b,'
    b'"topicConfigTable":%b,"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)


def check_topic_name(topic: str) -> None:
    """Refuse a name as the broker does; raises InvalidParameter (Java: ``TopicValidator.validateTopic``)."""
    if not topic or not topic.strip():
        raise InvalidParameter(InvalidParameter.response_code, "The specified topic is blank.")
    if not is_legal(topic):
        raise InvalidParameter(
            InvalidParameter.response_code,
            f"The specified topic: {topic}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    limit = topic_limit(topic)
    if len(topic) > limit:
        raise InvalidParameter(
            InvalidParameter.response_code, f"The specified topic: {topic}, is longer than topic max length: {limit}"
        )


MOST_QUEUES = 4096
"""Of a topic, where a request makes it: each look at all of a topic's queues takes milliseconds. A store that has more
is served."""


def check_queue_count(what: str, count: int, most: int = MOST_QUEUES) -> None:
    """Refuse more queues than a request may make; raises InvalidParameter."""
    if count > most:
        raise InvalidParameter(
            InvalidParameter.response_code, f"The {what} has {count} queues, at most {most} are possible."
        )


class TopicConfigs:
    """Topic settings by name, in ``table``, which is read only.

    on_change  is called with the changed topics after each change; empty: all
    on_delete  is called, too, after each deletion
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: JsonFile,
        on_change: Callable[[Collection[TopicConfig]], None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config = config
        self.file = file
        self._on_change = on_change
        self.on_delete: Callable[[], None] = lambda: None
        self._clock = clock
        self.table: dict[str, TopicConfig] = {}
        self._texts: dict[str, bytes] = {}
        self.system_topics: set[str] = set()
        self._mended: set[str] = set()
        self.data_version = DataVersion()

    def load(self) -> None:
        """Read the file, then add the topics that every broker has; nothing is announced."""
        saved = self.file.load(self._parse)
        if saved is not None:
            self.data_version, self.table = saved.data_version, saved.topic_config_table
        for topic in self._initial_topics():
            self.system_topics.add(topic.topic_name)
            self.table.setdefault(topic.topic_name, topic)
        if not self._config.auto_create_topic_enable:
            self.close_auto_creation()

    def _parse(self, text: dict[str, Any]) -> TopicConfigSerializeWrapper:
        """A number that no name server takes would keep the broker out of all of them: the default takes its place."""
        self._mended.clear()
        for name, misfits in drop_misfits(TopicConfig, text.get("topicConfigTable")):
            logger.warning("topic takes defaults for numbers that do not fit topic=%s numbers=%s", name, misfits)
            self._mended.add(name)
        return TopicConfigSerializeWrapper.from_json(text)

    def _initial_topics(self) -> Iterable[TopicConfig]:
        config = self._config
        if config.auto_create_topic_enable:
            perm = _READ_WRITE | int(Permission.INHERIT)
            yield _topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, perm)
        yield _topic("SELF_TEST_TOPIC", 1)
        yield _topic("BenchmarkTest", 1024)
        inherit = int(Permission.INHERIT)
        yield _topic(config.broker_cluster_name, 16, inherit | (_READ_WRITE if config.cluster_topic_enable else 0))
        yield _topic(config.broker_name, 1, inherit | (_READ_WRITE if config.broker_topic_enable else 0))
        yield _topic("OFFSET_MOVED_EVENT", 1)
        yield _topic(SCHEDULE_TOPIC, _SCHEDULE_QUEUES)
        yield _topic(TRANS_HALF_TOPIC, 1)
        yield _topic(TRANS_OP_HALF_TOPIC, 1)
        yield _topic(REVIVE_TOPIC_PREFIX + config.broker_cluster_name, _REVIVE_QUEUES)
        yield _topic(TIMER_TOPIC, 1)
        if config.trace_topic_enable:
            yield _topic(config.msg_trace_topic_name, 1)
        yield _topic(config.broker_cluster_name + REPLY_TOPIC_SUFFIX, 1)

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def close_auto_creation(self) -> None:
        """Take the inherit bit off the topic that auto-creation copies; it stays off until a restart."""
        default = self.table.get(AUTO_CREATE_TOPIC)
        if default is not None and default.perm & Permission.INHERIT:
            self.table[AUTO_CREATE_TOPIC] = replace(default, perm=_READ_WRITE)
            self._texts.pop(AUTO_CREATE_TOPIC, None)

    def create_for_send(
        self, topic: str, default_topic: str, queue_count: int, *, auto_create: bool, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create a topic for its first message by copying ``default_topic``; None where that is not allowed.

        raises  BrokerSystemError where there is no room for it, as ``ensure`` and ``update`` do
        """
        found = self.table.get(topic)
        if found is not None:
            return found
        if not auto_create and default_topic == AUTO_CREATE_TOPIC:
            self.close_auto_creation()
        default = self.table.get(default_topic)
        if default is None or not default.perm & Permission.INHERIT:
            return None
        queues = max(0, min(queue_count, default.write_queue_nums))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=default.perm & ~int(Permission.INHERIT),
            topic_filter_type=default.topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )
        self._add(created)
        return created

    def ensure(self, topic: str, queues: int, *, order: bool = False) -> TopicConfig:
        """Return a topic that the broker itself needs (retry, dead letters); create it where it is missing."""
        found = self.table.get(topic)
        if found is not None:
            return found
        created = replace(_topic(topic, queues), order=order)
        self._add(created)
        return created

    def restore(self, queue_counts: Mapping[str, int]) -> None:
        """Give messages a topic again whose settings were lost, or not saved yet at a crash.

        queue_counts  by topic, so many queues have messages. The topic may have had more: it gets what one that is
                      created by its first message would have, as producers that know of more queues would be refused
        """
        for name, count in queue_counts.items():
            found = self.table.get(name)
            if found is None:
                if not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
                    count = max(count, self._config.default_topic_queue_nums)
                logger.warning("topic restored from its queues topic=%s queues=%d", name, count)
                self._put(_topic(name, count))
            elif (self.file.is_older or name in self._mended) and found.read_queue_nums < count:
                logger.warning("topic has more queues than its settings say topic=%s queues=%d", name, count)
                write_queues = max(count, found.write_queue_nums)
                self._put(replace(found, read_queue_nums=count, write_queue_nums=write_queues))

    def check(self, topic: TopicConfig) -> None:
        """Refuse what an admin cannot create; raises InvalidParameter for the name or the number of queues."""
        check_topic_name(topic.topic_name)
        if is_system_topic(topic.topic_name) or topic.topic_name in self.system_topics:
            raise InvalidParameter(
                InvalidParameter.response_code, f"The topic[{topic.topic_name}] is conflict with system topic."
            )
        known = self.table.get(topic.topic_name)
        most = MOST_QUEUES if known is None else max(MOST_QUEUES, known.read_queue_nums, known.write_queue_nums)
        check_queue_count(f"topic[{topic.topic_name}]", max(topic.read_queue_nums, topic.write_queue_nums), most)

    def update(self, topic: TopicConfig, attributes: str = "") -> bool:
        """Create or change a topic for an admin; False if that changes nothing.

        attributes  ``+key=value,-key``
        raises      InvalidParameter for the name or the number of queues, BrokerSystemError for the attributes
        """
        self.check(topic)
        found = self.table.get(topic.topic_name)
        current = found.attributes if found is not None else {}
        after = altered(current, read_changes(attributes).items(), TOPIC_ATTRIBUTES, is_new=found is None)
        changed = replace(topic, attributes=after)
        if changed == found:
            return False
        self._add(changed)
        return True

    def delete(self, topics: Iterable[str]) -> None:
        """Forget topics; unknown names are no error."""
        removed = []
        for topic in topics:
            removed.append(self.table.pop(topic, None))
            self._texts.pop(topic, None)
        if any(removed):
            self._changed(())
            self.on_delete()

    def set_order_topics(self, names: Iterable[str]) -> None:
        """Adopt the name server's list of ordered topics (Java: ``updateOrderTopicConfig``)."""
        ordered = set(names)
        if not ordered:
            return
        changes = [
            replace(topic, order=topic.topic_name in ordered)
            for topic in self.table.values()
            if topic.order != (topic.topic_name in ordered)
        ]
        if changes:
            for topic in changes:
                self.table[topic.topic_name] = topic
                self._texts.pop(topic.topic_name, None)
            self._changed(changes)

    def touch(self) -> None:
        """Bump the version and announce every topic, after a change that concerns all of them."""
        self._changed(())

    def wrapper(self) -> TopicConfigAndMappingSerializeWrapper:
        """All topics with their version, as requests 21 and 103 carry them."""
        return TopicConfigAndMappingSerializeWrapper(
            topic_config_table=dict(self.table), data_version=self.data_version.copy()
        )

    def encode(self) -> bytes:
        """The table as the file holds it."""
        return b'{"dataVersion":%b,"topicConfigTable":%b}' % (self.data_version.encode(), self._table_text())

    def registration(self, changed: Mapping[str, TopicConfig], permission: int) -> bytes:
        """The body of REGISTER_BROKER.

        changed     the topics to announce; empty: all
        permission  what the broker as a whole allows; topics are announced with no more
        """
        restricted = permission & _READ_WRITE != _READ_WRITE
        if not changed and not restricted:
            return _REGISTRATION % (self.data_version.encode(), DataVersion().encode(), self._table_text())
        wrapper = self.wrapper()
        wrapper.topic_config_table = {
            name: replace(topic, perm=topic.perm & permission) if restricted else topic
            for name, topic in (changed or self.table).items()
        }
        return RegisterBrokerBody(wrapper).encode()

    def _table_text(self) -> bytes:
        """The JSON of the table. That of each topic is kept: with 10,000 topics making it anew takes half a second."""
        texts = self._texts
        for name, topic in self.table.items():
            if name not in texts:
                texts[name] = b"%b:%b" % (fastjson.dumps(name), topic.encode())
        return b"{%b}" % b",".join(texts.values())

    def _add(self, topic: TopicConfig) -> None:
        if topic.topic_name not in self.table and len(self.table) >= CAPACITY:
            raise BrokerSystemError(
                BrokerSystemError.response_code, f"{CAPACITY} topics are there, no more are kept: {topic.topic_name}"
            )
        self._put(topic)

    def _put(self, topic: TopicConfig) -> None:
        self.table[topic.topic_name] = topic
        self._texts.pop(topic.topic_name, None)
        self._changed((topic,))

    def _changed(self, topics: Collection[TopicConfig]) -> None:
        self.data_version.next_version(self._clock.time_millis())
        self._on_change(topics)


def _topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
