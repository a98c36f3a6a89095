"""Record batches of pull answers."""

from __future__ import annotations

import zlib
from dataclasses import replace

from rocketcore.client.arrow_batches import BatchBuilder
from tests.reference.message import Stored, encode


def test_compressed_bodies_are_unpacked_where_there_is_a_body() -> None:
    plain = Stored(topic=b"T", body=b"plain")
    packed = replace(plain, body=zlib.compress(b"packed"), sys_flag=0x301)
    empty = replace(plain, body=b"", sys_flag=0x301)
    answer = b"".join(
        encode(replace(each, queue_offset=at)) for at, each in enumerate([empty, packed, plain, empty, packed])
    )
    builder = BatchBuilder("b", ("body", "queueOffset"), frozenset(), 1 << 20)
    assert list(builder.append(answer, 5)) == []
    assert builder.appended == 5
    assert builder.finish().to_pydict() == {
        "body": [b"", b"packed", b"plain", b"", b"packed"],
        "queueOffset": [0, 1, 2, 3, 4],
    }
