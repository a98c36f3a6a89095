"""What holds for every request: unknown codes, one-way requests, header types, frames, floods."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from rocketcore.codes import SerializeType
from tests.conformance.peer import FakeBroker, Peer, RawConnection, json_frame, unique

NewBroker = Callable[..., FakeBroker]

HEADER = {"code": 106, "language": "JAVA", "version": 513, "opaque": 7, "flag": 0}


def route_question(topic: str, opaque: int, flag: int = 0) -> bytes:
    header = {**HEADER, "code": 105, "opaque": opaque, "flag": flag, "extFields": {"topic": topic}}
    return json_frame(header)


@pytest.mark.parametrize("code", [0, 1, 10, 107, 999, 9999, 2**31 - 1, -1])
def test_an_unknown_code_is_answered(name_server: Peer, code: int) -> None:
    answer = name_server.ask(code, {"any": "field"}, b"any body")
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
    assert name_server.ask(106).code == 0


def test_the_type_of_the_answers_header(name_server: Peer) -> None:
    """Ours and 4.9 answer in the type of the request; 5.x in the one it was started with."""
    for kind in SerializeType:
        expected = SerializeType.JSON if name_server.apache else kind
        for code in (106, 105, 9999, 103):
            assert name_server.ask(code, kind=kind).serialize_type == expected


def test_one_way_requests_act_and_are_not_answered(name_server: Peer) -> None:
    namespace = unique("one-way")
    extra = {"namespace": namespace, "key": "k", "value": "v"}
    frames = [
        json_frame({**HEADER, "code": code, "flag": 2, "opaque": code, "extFields": extra}, b"x")
        for code in (100, 105, 106, 103, 9999, 322)
    ]
    with RawConnection(name_server.address) as connection:
        connection.send(b"".join(frames))
        connection.send(json_frame({**HEADER, "opaque": 1}))
        header, _ = connection.read_frame()
        assert header["opaque"] == 1
        assert header["flag"] == 1
    name_server.eventually(lambda: name_server.ask(101, extra).ext_fields == {"value": "v"})


def test_a_frame_in_single_bytes_and_frames_in_one_piece(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    new_broker().registered(topic, unique("other"))
    with RawConnection(name_server.address) as connection:
        for byte in route_question(topic, 1):
            connection.send(bytes([byte]))
        _, body = connection.read_frame()
        connection.send(b"".join(route_question(topic, opaque) for opaque in range(2, 102)))
        answers = [connection.read_frame() for _ in range(100)]
        assert sorted(header["opaque"] for header, _ in answers) == list(range(2, 102))
        assert {answer for _, answer in answers} == {body}


def test_a_flood_is_answered_whole(name_server: Peer, new_broker: NewBroker) -> None:
    """Where Apache's queue is full it says 2, system busy; ours answers on arrival and has no queue."""
    topic, nothing = unique("topic"), unique("nothing")
    new_broker().registered(topic, unique("other"))
    count = 3000
    expected = {opaque: 0 if opaque % 3 else 17 for opaque in range(count)}
    with RawConnection(name_server.address, timeout=30) as connection:
        frames = [route_question(topic if opaque % 3 else nothing, opaque) for opaque in range(count)]
        for start in range(0, count, 500):
            connection.send(b"".join(frames[start : start + 500]))
        answers = dict(_code_by_opaque(connection) for _ in range(count))
    assert answers.keys() == expected.keys()
    allowed = {2} if name_server.apache else set()
    assert all(code == expected[opaque] or code in allowed for opaque, code in answers.items())


def _code_by_opaque(connection: RawConnection) -> tuple[int, int]:
    header, _ = connection.read_frame()
    return header["opaque"], header["code"]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 16 * 1024 * 1024 + 1) + bytes(20),
        struct.pack(">I", 0xFFFFFFFF) + bytes(20),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["above the limit", "negative", "another protocol"],
)
def test_a_length_that_no_frame_has_closes_its_connection_only(name_server: Peer, data: bytes) -> None:
    with RawConnection(name_server.address) as connection:
        connection.send(data)
        assert connection.is_closed_by_peer()
    assert name_server.ask(106).code == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 8, 100) + b"{}{}",
        struct.pack(">II", 6, 2 | 9 << 24) + b"{}",
        json_frame(b"{broken"),
        json_frame(b"\xff\xfe\x00"),
        json_frame(b"[1,2]"),
        struct.pack(">II", 4, 0),
        struct.pack(">II", 10, 6 | 1 << 24) + b"\0\0\0\0\0\0",
    ],
    ids=["header past the frame", "type 9", "no json", "no text", "a list", "empty", "short binary header"],
)
def test_a_frame_without_a_header_hurts_nobody_else(name_server: Peer, data: bytes) -> None:
    with RawConnection(name_server.address, timeout=2) as connection:
        connection.send(data)
        connection.send(json_frame(HEADER))
        try:
            header, _ = connection.read_frame()
            while header["opaque"] != HEADER["opaque"]:
                header, _ = connection.read_frame()
        except (ConnectionError, TimeoutError):
            pass
    assert name_server.ask(106).code == 0


def test_half_a_frame_keeps_nobody_waiting(name_server: Peer) -> None:
    frame = route_question("t", 1)
    with RawConnection(name_server.address) as slow:
        slow.send(frame[:-1])
        for _ in range(20):
            assert name_server.ask(106).code == 0
        slow.send(frame[-1:])
        assert slow.read_frame()[0]["code"] == 17


def test_a_crowd_that_never_finishes_its_frames_harms_nobody(name_server: Peer) -> None:
    frame = route_question("t", 1)
    with ExitStack() as stack:
        crowd = [stack.enter_context(RawConnection(name_server.address)) for _ in range(400)]
        for number, slow in enumerate(crowd):
            slow.send(frame[: number % len(frame)])
        for _ in range(20):
            assert name_server.ask(106).code == 0
        for number, slow in enumerate(crowd):
            slow.send(frame[number % len(frame) :])
        assert all(slow.read_frame()[0]["code"] == 17 for slow in crowd)


def test_both_directions_may_use_one_opaque(name_server: Peer) -> None:
    """An answer that nobody asked for is dropped."""
    with RawConnection(name_server.address) as connection:
        connection.send(json_frame({**HEADER, "code": 0, "flag": 1}))
        connection.send(json_frame(HEADER))
        header, _ = connection.read_frame()
        assert (header["code"], header["opaque"]) == (0, HEADER["opaque"])
