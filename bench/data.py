"""The one seeded source of benchmark inputs: same bytes in every run, on every machine.

Each function makes its input from ``SEED`` and its arguments alone, so that a figure can be had again.
"""

from __future__ import annotations

from random import Random

from rocketcore._fast import record as record_kernel

SEED = 5_500

# Body sizes of the kernel benchmarks, by the name of their group.
SIZES = {"64": 64, "1k": 1024, "64k": 65_536, "1m": 1_048_576}

# Ext fields of a SEND_MESSAGE_V2 request as a Java producer sends it; the one of the specification's example.
SEND_FIELDS = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false", "n": "b-a",
}  # fmt: skip


def random(name: str) -> Random:
    """Return a generator of its own for one input."""
    return Random(f"{SEED}/{name}")


def body(size: int) -> bytes:
    """Return a message body that does not compress."""
    return random(f"body/{size}").randbytes(size)


def bodies(count: int, size: int) -> list[bytes]:
    """Return different bodies of one size."""
    source = random(f"bodies/{count}/{size}")
    return [source.randbytes(size) for _ in range(count)]


def properties() -> dict[str, str]:
    """Return the properties of a usual message."""
    return {"TAGS": "TagA", "UNIQ_KEY": "0A0000090001000000020000000A0003", "WAIT": "true", "KEYS": "order-1"}


def brokers(queues: int, count: int) -> list[int]:
    """Return the broker index of each queue of a topic, as a route lists them: broker by broker."""
    return [queue * count // queues for queue in range(queues)]


def stored_messages(count: int, size: int) -> bytes:
    """Return the body of a pull reply: messages of one queue as a 5.5.0 broker stores them."""
    host = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)
    records = []
    position = 0
    for index, content in enumerate(bodies(count, size)):
        record = record_kernel.encode_stored(
            topic=b"TopicTest", queue_id=1, flag=0, queue_offset=index, physical_offset=position, sys_flag=0,
            born_timestamp=1700000000000 + index, born_host=host, store_timestamp=1700000000001 + index,
            store_host=host,
            reconsume_times=0, prepared_offset=0, body=content, properties=stored_properties(index),
        )  # fmt: skip
        records.append(record)
        position += len(record)
    return b"".join(records)


def stored_properties(index: int) -> bytes:
    """Return the property text of one stored message, about 130 bytes."""
    key = f"UNIQ_KEY\x010A000009000100000002000{index:09X}\x02"
    return f"{key}WAIT\x01true\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02".encode()
