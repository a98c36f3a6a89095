"""A whole connection to a name server: preamble, frames, requests, answers.

Whatever comes, nothing is raised, memory stays within the limits, every answer is a frame, and the answers are the same
bytes however the stream is cut, and whether the connection is read by a protocol or by the reactor.

input  u8: how the stream is cut · u8: form in bits 0 and 1 · form 0: the stream, 1: JSON headers, 2: binary headers,
       joined by two line feeds, each with its body after two carriage returns
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import shutil
import socket
from collections.abc import Callable, Iterable
from typing import Any

from rocketcore.codes import CURRENT_VERSION, RequestCode
from rocketcore.errors import DecodeError
from rocketcore.nameserver.config import NameServerConfig, RunningConfig
from rocketcore.nameserver.housekeeping import Housekeeping
from rocketcore.nameserver.kv_config import KVConfigManager
from rocketcore.nameserver.processor import ZONE_MODE, NameServerProcessor
from rocketcore.nameserver.route_info import RouteInfoManager
from rocketcore.protocol import command
from rocketcore.protocol.bodies.topic import RegisterBrokerBody, TopicConfig, TopicConfigAndMappingSerializeWrapper
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.endpoint import Endpoint
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server.opening import Opening
from rocketcore.transport.server.proxy_protocol import FIRST_BYTES, parse_preamble
from rocketcore.transport.slow_requests import SlowRequests
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, scratch
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference.registration import compressed
from tests.reference.routes import nameserver_routes

FOLDER = scratch()
LIMITS = ChannelLimits(max_frame_bytes=1 << 15, max_partial_bytes=1 << 16)
BODY_LIMIT = 1000
JOINT, BODY = b"\n\n", b"\r\r"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.sent = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 9876)}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.sent += b"".join(list_of_data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Served:
    """A name server without its socket; what ``Opening`` needs of it."""

    name = "fuzz"
    limits = LIMITS
    tls_required = False

    def __init__(self) -> None:
        config = NameServerConfig(rocketmq_home=FOLDER)
        clock = ManualClock()
        kv = KVConfigManager(config.kv_file)
        self.routes = RouteInfoManager(config, clock, lambda topic: kv.get("ORDER_TOPIC_CONFIG", topic))
        housekeeping = Housekeeping(self.routes, 3600)
        processor = NameServerProcessor(
            self.routes, kv, RunningConfig(config, {}), housekeeping, run_in_writer=write_now, serving=lambda: True,
            slow=SlowRequests(),
        )  # fmt: skip
        self.endpoint: Endpoint[Channel] = Endpoint("fuzz", LIMITS, clock=clock, server=True)
        # Short limits, so that long requests are refused by their header; what the reactor answers itself has none.
        question = RequestCode.GET_ROUTEINFO_BY_TOPIC
        rows = (row if row.code == question else row._replace(body_limit=BODY_LIMIT) for row in processor.routes())
        self.endpoint.routes.add(rows)
        self.endpoint.close_callbacks.append(housekeeping.connection_closed)
        self.channel: Channel | None = None

    def takes_preamble(self, opening: Opening) -> bool:
        return True

    def tls_context(self) -> None:
        return None

    def opened(self, opening: Opening) -> bool:
        return True

    def opening_ended(self, opening: Opening) -> None:
        pass

    def make_channel(self, opening: Opening, transport: asyncio.BaseTransport) -> Channel:
        self.channel = Channel(self.endpoint)
        self.channel.remote_address = opening.source
        self.channel.attach(transport)
        return self.channel


async def settle(endpoint: Endpoint[Channel]) -> None:
    """Let everything that was received be answered."""
    for _ in range(4):
        await asyncio.sleep(0)
    while endpoint.tasks:
        await asyncio.wait(endpoint.tasks)
        await asyncio.sleep(0)
    for _ in range(2):
        await asyncio.sleep(0)


async def write_now(function: Callable[[], None]) -> None:
    function()


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    stream = stream_of(data[1] & 3, data[2:])
    if stream:
        check_preamble(stream)
        loop().run_until_complete(serve(stream, data[0]))


_loops: list[asyncio.AbstractEventLoop] = []
FAILURES: list[dict[str, Any]] = []


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all runs: to make one costs more than what is tested."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
        _loops[0].set_exception_handler(lambda _, context: FAILURES.append(context))
        atexit.register(_loops[0].close)
    return _loops[0]


def stream_of(form: int, data: bytes) -> bytes:
    if form == 0:
        return data
    frames = (part.partition(BODY) for part in data.split(JOINT))
    return b"".join(reference_frame.frame(header, body, form >> 1) for header, _, body in frames)


def check_preamble(stream: bytes) -> None:
    """Whatever part of a preamble has come, it is not whole yet, or it is the same as when all of it comes at once."""
    if stream[0] not in FIRST_BYTES:
        return
    try:
        whole = parse_preamble(stream)
    except DecodeError:
        return
    for end in range(1, min(len(stream), 300)):
        part = parse_preamble(stream[:end])
        assert part == (None if whole is None or end < whole.consumed else whole)
    if whole is not None:
        assert 0 < whole.consumed <= len(stream)


async def serve(stream: bytes, cut: int) -> None:
    whole = await by_protocol([stream])
    at = cut % (len(stream) + 1)
    step = cut % 61 + 1
    assert await by_protocol([stream[:at], stream[at:]]) == whole
    assert await by_protocol([stream[i : i + step] for i in range(0, len(stream), step)]) == whole
    assert await by_reactor(stream) == whole
    assert not FAILURES, FAILURES
    answers = FrameDecoder().feed(whole)
    assert all(answer.is_response for answer in answers)


def clean() -> Served:
    """Return a new server without files, which takes 0 for the opaque of commands that have none."""
    shutil.rmtree(FOLDER / "namesrv", ignore_errors=True)
    command._opaque = itertools.repeat(0)  # type: ignore[assignment, misc]
    return Served()


async def by_protocol(parts: list[bytes]) -> bytes:
    server, wire = clean(), Wire()
    wire.protocol = Opening(server, 0.0)
    wire.protocol.connection_made(wire)
    for part in filter(None, parts):
        if wire.closed:
            break
        wire.protocol.data_received(part)
        assert server.endpoint.partial_bytes <= LIMITS.max_frame_bytes or wire.closed
    await settle(server.endpoint)
    wire.protocol.connection_lost(None)
    assert server.endpoint.partial_bytes == 0
    assert not server.endpoint.channels
    return wire.sent


async def by_reactor(stream: bytes) -> bytes:
    from rocketcore._fast.answers import ReadyAnswers
    from rocketcore._fast.reactor import Reactor

    server = clean()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    reactor = Reactor(asyncio.get_running_loop(), server.endpoint.clock.monotonic)
    reactor.responder = ReadyAnswers(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        b"topic",
        ZONE_MODE.encode(),
        server.routes.answers,
        int(CURRENT_VERSION),
        LIMITS.max_frame_bytes,
    )
    try:
        transport = reactor.attach(theirs, Opening(server, 0.0), ("127.0.0.1", 50000))
        ours.sendall(stream)
        await settle(server.endpoint)
        answers = b""
        while True:
            try:
                part = ours.recv(1 << 20)
            except BlockingIOError:
                break
            answers += part
            if not part:
                break
            await settle(server.endpoint)
        transport.abort()
        await settle(server.endpoint)
        return answers
    finally:
        reactor.close()
        ours.close()


def seeds() -> Iterable[bytes]:
    broker = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "haServerAddr": "127.0.0.1:10912",
        "brokerId": "0", "compressed": "false", "bodyCrc32": "0",
    }  # fmt: skip
    topics = {"T": TopicConfig("T", 8, 8, 6), "S": TopicConfig("S", 4, 4, 6)}
    wrapper = TopicConfigAndMappingSerializeWrapper(topic_config_table=topics)
    registration = RegisterBrokerBody(wrapper, [])
    register = request(103, broker) + BODY + registration.encode()
    packed = request(103, broker | {"compressed": "true"}) + BODY + compressed(registration)
    route = request(105, {"topic": "T", "acceptStandardJsonOnly": "true"})
    asked = request(105, {"topic": "T"})
    yield b"\x05\x01" + JOINT.join([register, route, route, asked, request(106, {}), request(104, broker), route])
    yield b"\x40\x01" + JOINT.join([packed, asked, asked, asked])
    put = request(100, {"namespace": "n", "key": "k", "value": "v"})
    yield b"\x11\x01" + JOINT.join(
        [put, request(101, {"namespace": "n", "key": "k"}), request(219, {"namespace": "n"})]
    )
    yield b"\x22\x01" + request(318, {}) + BODY + b"scanNotActiveBrokerInterval=7000\nx=1\n" + JOINT + request(319, {})
    yield b"\x30\x00PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876\r\n" + stream_of(1, register + JOINT + asked)
    yield b"\x0b\x00\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(range(12)) + stream_of(1, asked)
    yield b"\x00\x00\x16\x03\x01\x00\x05hello"
    named = broker | {"topic": "T", "namespace": "n", "key": "k", "value": "v", "cluster": "c"}
    for code in nameserver_routes():
        yield bytes([code & 255, 1]) + register + JOINT + request(code, named) + BODY + registration.encode()
        yield bytes([code & 255, 2]) + request(code, named, binary=True)
    for record in vectors("frames.jsonl"):
        if len(record["hex"]) < 300:
            yield b"\x07\x00" + bytes.fromhex(record["hex"])


def request(code: int, ext: dict[str, str], *, binary: bool = False) -> bytes:
    header = reference.Header(code, 0, 407, code, 0, None, ext)
    return reference.write_binary(header) if binary else reference.write_json(header)


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        JOINT, BODY, b'"code":105', b'"code":103', b'"code":318', b'"flag":1', b'"flag":2', b'"opaque":',
        b'"topic":"T"', b'"brokerName":"b"', b'"brokerId":"', b'"compressed":"true"', b'"version":493',
        b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN\r\n", b"\r\n\r\n\x00\r\nQUIT\n\x21", b"\x16\x03\x01",
        b"__ZONE_MODE", b"acceptStandardJsonOnly",
    ),
    max_length=4096,
)  # fmt: skip
