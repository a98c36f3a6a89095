"""Rows to client batches and stored messages to rows, plainly: the oracle of the column kernels."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference.batch import Element
from tests.reference.message import Stored, properties_of


@dataclass(slots=True)
class Row:
    body: bytes | None
    tags: str | None = None
    keys: str | None = None
    properties: str | None = None
    msg_id: str | None = None
    flag: int | None = None


def element(row: Row, constant: bytes, write_id: int, partition: int, number: int) -> Element:
    """Return the batch element of one row; ``constant`` is what stands after UNIQ_KEY in every row."""
    assert row.body
    key = row.msg_id or f"{write_id:016X}{partition:08X}{number:08X}"
    text = b"UNIQ_KEY\x01%b\x02" % key.encode() + constant
    if row.tags:
        text += b"TAGS\x01%b\x02" % row.tags.encode()
    if row.keys:
        text += b"KEYS\x01%b\x02" % row.keys.encode()
    if row.properties:
        text += row.properties.encode()
        if not text.endswith(b"\x02"):
            text += b"\x02"
    return Element(row.flag or 0, row.body, text)


def host_text(host: bytes) -> str:
    address, port = host[:-4], int.from_bytes(host[-4:])
    return f"{ipaddress.IPv4Address(address)}:{port}" if len(host) == 8 else f"[{inet6(address)}]:{port}"


def inet6(address: bytes) -> str:
    """As ``inet_ntop`` writes it; ``ipaddress`` differs for mapped IPv4 addresses."""
    return socket.inet_ntop(socket.AF_INET6, address)


def java_text(data: bytes) -> str:
    """Valid UTF-8 as text; tests with malformed text state the result themselves."""
    return data.decode()


def micros(millis: int) -> int:
    """Milliseconds as microseconds, saturated to 64 bits."""
    return max(-(1 << 63), min((1 << 63) - 1, millis * 1000)) if abs(millis) > (1 << 63) // 1000 else millis * 1000


def row_of(message: Stored) -> dict[str, Any]:
    """One message as the columns of ``StoredColumns``."""
    pairs = {java_text(name): java_text(value) for name, value in properties_of(message.properties)}
    return {
        "topic": java_text(message.topic),
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": pairs.get("UNIQ_KEY")
        or (message.store_host + (message.physical_offset % (1 << 64)).to_bytes(8)).hex().upper(),
        "tags": pairs.get("TAGS"),
        "keys": pairs.get("KEYS"),
        "body": message.body,
        "bornTimestamp": micros(message.born_timestamp),
        "storeTimestamp": micros(message.store_timestamp),
        "properties": sorted(pairs.items()),
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
    }


def columns_of(messages: Sequence[Stored], names: Sequence[str]) -> dict[str, list[Any]]:
    rows = [row_of(message) for message in messages]
    return {name: [row[name] for row in rows] for name in names}


def rising(offsets: Sequence[int], after: int | None, limit: int | None) -> tuple[int, str | None]:
    """Return how many of the offsets are taken, one after the other, and what stops that."""
    for count, offset in enumerate(offsets):
        if limit is not None and offset >= limit:
            return count, "limit"
        if after is not None:
            if offset <= after:
                return count, "order"
            after = offset
    return len(offsets), None
