"""Record batches of pull answers."""

from __future__ import annotations

import zlib
from dataclasses import replace

from rocketcore.client.arrow_reader import BatchBuilder
from rocketcore.message import MessageQueue
from tests.reference.message import Stored, encode

QUEUE = MessageQueue("T", "b", 0)


def test_compressed_bodies_are_unpacked_where_there_is_a_body() -> None:
    plain = Stored(topic=b"T", body=b"plain")
    packed = replace(plain, body=zlib.compress(b"packed"), sys_flag=0x301)
    empty = replace(plain, body=b"", sys_flag=0x301)
    answer = b"".join(
        encode(replace(each, queue_offset=at)) for at, each in enumerate([empty, packed, plain, empty, packed])
    )
    builder = BatchBuilder(QUEUE, ("body", "queueOffset"), frozenset())
    assert builder.append(answer, 5) == 5
    assert builder.finish().to_pydict() == {
        "body": [b"", b"packed", b"plain", b"", b"packed"],
        "queueOffset": [0, 1, 2, 3, 4],
    }
