"""What topics and consumer groups may be called, and how names of ours become names of the wire.

One rule, ``is_legal`` and the two lengths, refused in two voices: a client says ``MessageIllegal`` in its own words
(here), a broker answers Apache's remarks (``broker.state.topic_config``). A name server takes more, as Apache's does:
``nameserver.names``.
"""

from __future__ import annotations

import re
from typing import Final

from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    GROUP_MAX_LENGTH,
    RETRY_TOPIC_MAX_LENGTH,
    RETRY_TOPIC_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_MAX_LENGTH,
)
from rocketcore.errors import MessageIllegal

__all__ = [
    "camel_case",
    "check_group",
    "check_send_topic",
    "check_topic",
    "is_legal",
    "is_legal_group",
    "is_legal_topic",
    "is_system_group",
    "is_system_topic",
    "topic_limit",
    "with_namespace",
    "without_namespace",
]

NAMESPACE_SEPARATOR: Final = "%"
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def camel_case(name: str) -> str:
    """Return the camelCase of a name_with_underscores."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def is_legal(name: str) -> bool:
    """Whether a name has characters, and only those of names (Java: ``TopicValidator.isTopicOrGroupIllegal``)."""
    return _LEGAL.fullmatch(name) is not None


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own, whatever cluster it is of: admins may neither create nor delete it.

    Those that a cluster and its brokers name after themselves are beside these.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether a consumer group is RocketMQ's own, which brokers make and need."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_legal_group(group: str) -> bool:
    """Whether a consumer group may have this name (Java: ``Validators.checkGroup``)."""
    return len(group) <= GROUP_MAX_LENGTH and is_legal(group)


def is_legal_topic(topic: str) -> bool:
    """Whether a topic may have this name (Java: ``TopicValidator.validateTopic``)."""
    return len(topic) <= topic_limit(topic) and is_legal(topic)


def topic_limit(topic: str) -> int:
    """Return how many characters a topic may have: brokers make those of retries and dead letters from group names."""
    is_retry = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return RETRY_TOPIC_MAX_LENGTH if is_retry else TOPIC_MAX_LENGTH


def _parts(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead letter topic, and what is behind it."""
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def with_namespace(name: str, namespace: str) -> str:
    """Return the name on the wire of a topic or group of a namespace (Java: ``NamespaceUtil.wrapNamespace``).

    One that has it already keeps it, as do RocketMQ's own topics and groups.
    """
    if not namespace or not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    prefix, rest = _parts(name)
    if rest.startswith(namespace + NAMESPACE_SEPARATOR):
        return name
    return f"{prefix}{namespace}{NAMESPACE_SEPARATOR}{rest}"


def without_namespace(name: str, namespace: str) -> str:
    """Return the name of a topic or group in its namespace; one of another is left as it is."""
    prefix, rest = _parts(name)
    own = namespace + NAMESPACE_SEPARATOR
    return prefix + rest[len(own) :] if namespace and rest.startswith(own) else name


def check_topic(topic: str) -> None:
    """Refuse a topic name that no broker takes (Java: ``Validators.checkTopic``)."""
    _check("topic", topic, topic_limit(topic))


def check_send_topic(topic: str) -> None:
    """Refuse a topic that cannot be sent to: an illegal name, or one of the broker's own topics."""
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise MessageIllegal(f"topic {topic!r} is reserved: sending to it is forbidden")


def check_group(group: str) -> None:
    """Refuse a group name that no broker takes (Java: ``Validators.checkGroup``)."""
    _check("group", group, GROUP_MAX_LENGTH)


def _check(kind: str, name: str, limit: int) -> None:
    if not name or not name.strip():
        raise MessageIllegal(f"the {kind} name is blank")
    if len(name) > limit:
        raise MessageIllegal(f"the {kind} name {name[:40]!r}… has {len(name)} characters, {limit} are allowed")
    if not _LEGAL.fullmatch(name):
        raise MessageIllegal(f"the {kind} name {name!r} may hold only letters, digits, '%', '|', '_' and '-'")
