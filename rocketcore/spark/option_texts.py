"""The texts of Spark's options: how each kind is read.

Every function takes the text that Spark hands over and raises ValueError with what was expected instead; where a rule
has an error of its own (a topic's name) it raises that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rocketcore.client.config import name_server_list
from rocketcore.codes import RESERVED_PROPERTIES
from rocketcore.message import NAME_SEPARATOR, PROPERTY_SEPARATOR, MessageQueue
from rocketcore.naming import check_group, check_send_topic, check_topic
from rocketcore.printable import shortened

__all__ = [
    "EARLIEST",
    "LAST_MILLIS",
    "LATEST",
    "read_address_map",
    "read_assignment",
    "read_boolean",
    "read_count",
    "read_duration",
    "read_group",
    "read_millis",
    "read_name_servers",
    "read_offsets",
    "read_pattern",
    "read_properties",
    "read_selector",
    "read_size",
    "read_tags",
    "read_text",
    "read_timestamp",
    "read_topic",
    "read_topics",
    "read_write_id",
]

EARLIEST: Final = -2
LATEST: Final = -1
"""How JSON offsets spell the ends of a queue, as Spark's Kafka source does."""

LAST_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Python's times have."""

_NUMBER = re.compile(r"[0-9]{1,18}")
"""What fits 64 bits, whatever it is."""
_SIZE = re.compile(rf"({_NUMBER.pattern})\s*([kmg]?)b?", re.IGNORECASE)
_DURATION = re.compile(rf"({_NUMBER.pattern})\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {"us": 1e-6, "": 1e-3, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false")
    return value


def read_count(text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def read_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("a number of bytes, for example 1048576, 1m or 512k")
    return int(match[1]) * _UNITS[match[2].lower()]


def read_millis(text: str) -> float:
    return read_count(text) / 1000


def read_duration(text: str) -> float:
    """Return the seconds that a time in Spark's spelling has; a number alone is milliseconds."""
    match = _DURATION.fullmatch(text.strip())
    unit = _SECONDS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError("a time, for example 15m, 30s or 500ms")
    return int(match[1]) * unit


def read_timestamp(text: str) -> int:
    """Return epoch milliseconds; a day alone is its midnight in UTC, a time of a day needs its zone."""
    text = text.strip()
    wanted = "milliseconds since 1970, or a time such as 2024-05-01T12:00:00Z"
    if re.fullmatch(r"\d{8,10}", text):  # of the first months of 1970, if it were milliseconds
        raise ValueError(f"{wanted}; seconds want three zeros more, and a day is written 2024-05-01")
    if _NUMBER.fullmatch(text):
        millis = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(wanted) from None
        if moment.tzinfo is None and len(text) > len("2024-05-01"):
            raise ValueError(f"a time zone behind it: Z for UTC, or an offset such as +02:00; or {wanted}")
        millis = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if millis > LAST_MILLIS:
        raise ValueError(wanted)
    return max(0, millis)


def read_text(text: str) -> str:
    if not text.strip():
        raise ValueError("text that is not blank")
    return text.strip()


def read_topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        check_topic(name)
    return names


def read_topic(text: str) -> str:
    check_send_topic(text.strip())
    return text.strip()


def read_group(text: str) -> str:
    check_group(text.strip())
    return text.strip()


def read_pattern(text: str) -> str:
    if not text.strip():
        raise ValueError("a regular expression that is not blank")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _json_object(text: str, wanted: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(wanted)
    return value


def read_assignment(text: str) -> tuple[MessageQueue, ...]:
    wanted = 'a JSON object such as {"T": {"broker-a": [0, 1]}}'
    queues = []
    for topic, brokers in _json_object(text, wanted).items():
        check_topic(topic)
        if not isinstance(brokers, dict):
            raise ValueError(wanted)
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not all(type(number) is int and number >= 0 for number in ids):
                raise ValueError(wanted)
            queues += [MessageQueue(topic, broker, number) for number in ids]
    if not queues:
        raise ValueError(f"{wanted}, with one queue at least")
    return tuple(sorted(set(queues)))


def read_offsets(text: str) -> str | Mapping[MessageQueue, int]:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    wanted = 'earliest, latest, or a JSON object such as {"T": {"broker-a": {"0": 23, "1": -2}}}'
    offsets = {}
    for topic, brokers in _json_object(text, wanted).items():
        if not isinstance(brokers, dict):
            raise ValueError(wanted)
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(wanted)
            for number, offset in queues.items():
                if type(offset) is not int or not EARLIEST <= offset < 1 << 63:
                    raise ValueError(f"{wanted}; -2 is the earliest offset, -1 the latest")
                if not re.fullmatch(r"0|[1-9][0-9]{0,9}", number):
                    raise ValueError(f"{wanted}; {shortened(number, 30)!r} is not a queue")
                offsets[MessageQueue(topic, broker, int(number))] = offset
    return offsets


def read_address_map(text: str) -> Mapping[str, str]:
    wanted = 'a JSON object such as {"172.17.0.3:10911": "localhost:10911"}'
    addresses = _json_object(text, wanted)
    if not all(isinstance(value, str) for value in addresses.values()):
        raise ValueError(wanted)
    return addresses


def read_properties(text: str) -> Mapping[str, str]:
    properties = _json_object(text, 'a JSON object such as {"source": "spark"}')
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise ValueError(f"property names that are not RocketMQ's own; {name} is")
        if not name or not isinstance(value, str) or not value:
            raise ValueError('names and values that are non-empty text, such as {"source": "spark"}')
        if any(separator in name + value for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)):
            raise ValueError("names and values without U+0001 and U+0002")
    return properties


def read_selector(text: str) -> str:
    name = text.strip().lower()
    if name not in ("roundrobin", "hash"):
        raise ValueError("roundrobin or hash")
    return name


def read_tags(text: str) -> str:
    if any(separator in text for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)):
        raise ValueError("a tag without U+0001 and U+0002")
    if "||" in text:
        raise ValueError("one tag: no subscription finds one with '||' in it")
    return read_text(text)


def read_write_id(text: str) -> int:
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text.strip()):
        raise ValueError("up to 16 hexadecimal digits, as write_id() of rocketcore.spark returns them")
    return int(text, 16)


def read_name_servers(text: str) -> str:
    return ";".join(name_server_list(text))
