"""Stored messages, plainly: the layout of ``rocketcore/_fast/record.pxd`` with ``struct`` and ``zlib``."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_FILLER = 0xCBD43194


class Bad(Exception):
    """A record that does not decode: the reason and its position."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position


@dataclass(slots=True)
class Stored:
    """One stored message. Hosts are address and port as bytes; ``position`` is where the record begins."""

    topic: bytes
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_timestamp: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0
    magic: int = MAGIC_V1
    body_crc: int = 0
    position: int = 0
    size: int = 0


def encode(message: Stored) -> bytes:
    """Encode a message; the magic follows from the topic's length, the host bits from the hosts."""
    long_topic = len(message.topic) > 127
    sys_flag = message.sys_flag & ~0x30 | (len(message.born_host) == 20) << 4 | (len(message.store_host) == 20) << 5
    rest = b"".join(
        (
            struct.pack(">I", zlib.crc32(message.body) & 0x7FFFFFFF),
            struct.pack(">iiq", message.queue_id, message.flag, message.queue_offset),
            struct.pack(">qi", message.physical_offset, sys_flag),
            struct.pack(">q", message.born_timestamp) + message.born_host,
            struct.pack(">q", message.store_timestamp) + message.store_host,
            struct.pack(">iq", message.reconsume_times, message.prepared_offset),
            struct.pack(">i", len(message.body)) + message.body,
            struct.pack(">h" if long_topic else ">b", len(message.topic)) + message.topic,
            struct.pack(">h", len(message.properties)) + message.properties,
        )
    )
    return struct.pack(">iI", 8 + len(rest), MAGIC_V2 if long_topic else MAGIC_V1) + rest


def put(message: Stored, *, checksum: bool) -> bytes:
    """Encode a message as the store puts it: without checksums of other records, and with one of its own."""
    properties = without_checksums(message.properties)
    if not checksum:
        return encode(replace(message, properties=properties))
    record = encode(replace(message, properties=join_properties(properties, bytes(20))))[:-20]
    return record + checksum_property(zlib.crc32(record) & 0x7FFFFFFF)


def checksum_property(value: int) -> bytes:
    return b"__CRC32#\x01" + f"{value:010d}"[::-1].encode() + b"\x02"


def without_checksums(properties: bytes) -> bytes:
    pairs = re.findall(rb"[^\x02]*\x02|[^\x02]+", properties)
    return b"".join(pair for pair in pairs if not pair.startswith(b"__CRC32#\x01"))


def verdict(record: bytes, stored: Stored, *, sealed: bool) -> str:
    """What a record of the log is: ``sealed`` or ``bare`` (sound, with and without checksum), or ``damaged``."""
    fields = 75 + len(stored.born_host) + len(stored.store_host) + (stored.magic == MAGIC_V2)
    if fields + len(stored.body) + len(stored.topic) + len(stored.properties) != stored.size:
        return "damaged"
    tail = stored.properties[-20:]
    if len(tail) == 20:
        likeness = sum(a == b for a, b in zip(tail[:9] + tail[19:], b"__CRC32#\x01\x02", strict=True))
        if likeness == 10:
            sound = tail == checksum_property(zlib.crc32(record[:-20]) & 0x7FFFFFFF)
            return "sealed" if sound else "damaged"
        if likeness >= (4 if sealed else 8):
            return "damaged"
    if sealed and not is_property_text(stored.properties):
        return "damaged"
    sound = not stored.body or zlib.crc32(stored.body) & 0x7FFFFFFF == stored.body_crc & 0xFFFFFFFF
    return "bare" if sound else "damaged"


def is_property_text(properties: bytes) -> bool:
    """UTF-8 without control characters among the last 20 bytes, but for separators and white space."""
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return not re.search(rb"[\x00\x03-\x08\x0e-\x1f\x7f]", properties[-20:])


def decode(data: bytes, at: int, end: int, *, check_crc: bool = False) -> Stored:
    """Decode the record at ``at``; raises Bad."""
    if end - at < 8:
        raise Bad("past end", at)
    size, magic = struct.unpack_from(">iI", data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise Bad("magic", at)
    if size < 91:
        raise Bad("too short", at)
    if size > end - at:
        raise Bad("past end", at)
    stop = at + size
    crc, queue_id, flag, queue_offset, physical_offset, sys_flag = struct.unpack_from(">iiiqqi", data, at + 8)
    born_width = 20 if sys_flag & 0x10 else 8
    store_width = 20 if sys_flag & 0x20 else 8
    if size < 75 + born_width + store_width:
        raise Bad("too short", at)
    (born_timestamp,) = struct.unpack_from(">q", data, at + 40)
    born_host = data[at + 48 : at + 48 + born_width]
    p = at + 48 + born_width
    (store_timestamp,) = struct.unpack_from(">q", data, p)
    store_host = data[p + 8 : p + 8 + store_width]
    p += 8 + store_width
    reconsume_times, prepared_offset, body_length = struct.unpack_from(">iqi", data, p)
    p += 16
    if not 0 <= body_length <= stop - p:
        raise Bad("body", at)
    body = data[p : p + body_length]
    p += body_length
    width, form = (1, ">b") if magic == MAGIC_V1 else (2, ">h")
    if stop - p < width:
        raise Bad("topic", at)
    (topic_length,) = struct.unpack_from(form, data, p)
    p += width
    if not 0 <= topic_length <= stop - p:
        raise Bad("topic", at)
    topic = data[p : p + topic_length]
    p += topic_length
    if stop - p < 2:
        raise Bad("properties", at)
    (properties_length,) = struct.unpack_from(">h", data, p)
    p += 2
    properties_length = max(properties_length, 0)
    if properties_length > stop - p:
        raise Bad("properties", at)
    properties = data[p : p + properties_length]
    if check_crc and body and zlib.crc32(body) & 0x7FFFFFFF != crc & 0xFFFFFFFF:
        raise Bad("checksum", at)
    return Stored(
        topic=topic, body=body, properties=properties, queue_id=queue_id, flag=flag, queue_offset=queue_offset,
        physical_offset=physical_offset, sys_flag=sys_flag, born_timestamp=born_timestamp, born_host=born_host,
        store_timestamp=store_timestamp, store_host=store_host, reconsume_times=reconsume_times,
        prepared_offset=prepared_offset, magic=magic, body_crc=crc, position=at, size=size,
    )  # fmt: skip


def decode_all(data: bytes, start: int, end: int, *, check_crc: bool = False) -> tuple[list[Stored], Bad | None]:
    """Decode records until the end or a bad one; returns them and what ended it."""
    found = []
    while start < end:
        try:
            found.append(decode(data, start, end, check_crc=check_crc))
        except Bad as bad:
            return found, bad
        start += found[-1].size
    return found, None


def properties_of(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a property text that count: with a name and a value; a value may hold U+0001."""
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            yield name, value


def java_hash(text: str) -> int:
    """Java's ``String.hashCode`` over UTF-16 code units."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tags_code(properties: bytes) -> int:
    """Tag code of a consume-queue unit; 0 without TAGS."""
    tags = dict(properties_of(properties)).get(b"TAGS")
    return 0 if tags is None else java_hash(tags.decode())


def join_properties(properties: bytes, extra: bytes) -> bytes:
    """Append property text as a broker does: with the separator that the first may lack."""
    if properties and extra and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + extra
