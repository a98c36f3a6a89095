"""Peers that mean harm, against servers as a user starts them: memory stays bounded, all others get right answers.

With sanitizers on, the bounds of memory are left out, and everything else is looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import selectors
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server import server as server_module
from rocketcore.transport.server.listener import open_listener
from tests.conformance.peer import (
    FakeBroker,
    Peer,
    RawConnection,
    compressed_body,
    data_version,
    json_frame,
    plain_body,
    topic_config,
    unique,
)
from tests.fixtures.processes import Processes, RocketProcess
from tests.fixtures.tls import client_tls, server_tls
from tests.fuzz.build import SANITIZED
from tests.integration.remoting_server import ECHO, TestServer

KIB, MIB = 1 << 10, 1 << 20
FRAME_MAX = 16 * MIB
WELCOME = (RequestCode.SEND_MESSAGE, RequestCode.REGISTER_BROKER)
"""Large requests that a broker serves, and a name server."""
TIMEOUT = 20.0


class Witness:
    """An honest client of a process, and what it saw before others did harm.

    ``ask`` returns whatever has to stay the same. ``check`` asks over the connection of before and over a new one.
    """

    def __init__(self, process: RocketProcess, ask: Callable[[Peer], object]) -> None:
        self.process = process
        self._peer = Peer(process.address, apache=False)
        self._ask = ask
        self._expected = ask(self._peer)
        self._memory = resident_bytes(process.pid)
        self._files = open_files(process.pid)

    def check(self, growth: int) -> None:
        """Fail where an answer differs, or where the process holds ``growth`` bytes more than before."""
        assert self._ask(self._peer) == self._expected
        with Peer(self.process.address, apache=False) as newcomer:
            assert self._ask(newcomer) == self._expected
        if not SANITIZED:
            grown = resident_bytes(self.process.pid) - self._memory
            assert grown <= growth, f"{grown / MIB:.1f} MiB more than before"

    def check_peak(self, most: int) -> None:
        """Fail where the process ever held more than ``most`` bytes."""
        if not SANITIZED:
            assert peak_bytes(self.process.pid) < most

    def check_closed(self) -> None:
        """Fail where the process does not let go of the connections that others had."""
        self._peer.eventually(lambda: open_files(self.process.pid) <= self._files, TIMEOUT)

    def close(self) -> None:
        self._peer.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("VmHWM"))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def broker_of_topics() -> Iterator[Callable[[RocketProcess], FakeBroker]]:
    """Registers a broker with three topics at a name server; it stays until the test ends."""
    with contextlib.ExitStack() as stack:

        def register(process: RocketProcess) -> FakeBroker:
            broker = FakeBroker(stack.enter_context(Peer(process.address, apache=False)))
            stack.callback(broker.close)
            return broker.registered(*(f"{broker.name}-{i}" for i in range(3)), filter_servers=["f:1"])

        yield register


@pytest.fixture
def namesrv(processes: Processes, broker_of_topics: Callable[[RocketProcess], FakeBroker]) -> Iterator[Witness]:
    """A name server whose witness looks at everything it shows."""
    process = processes.namesrv()
    broker = broker_of_topics(process)

    def ask(peer: Peer) -> object:
        routes = [peer.json(105, {"topic": f"{broker.name}-{i}"}) for i in range(3)]
        assert all(route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.at} for route in routes)
        return routes, peer.json(106), peer.json(206), peer.json(224, {"cluster": broker.cluster})

    witness = Witness(process, ask)
    yield witness
    witness.close()


@pytest.fixture
def broker(processes: Processes) -> Iterator[Witness]:
    """A broker, whose transport is the same; the witness looks at its settings."""
    process = processes.broker(processes.namesrv().address)

    def ask(peer: Peer) -> object:
        answer = peer.ask(26)
        assert answer.code == 0
        return answer.body

    witness = Witness(process, ask)
    yield witness
    witness.close()


@pytest.fixture(params=["namesrv", "broker"])
def server(request: pytest.FixtureRequest) -> Witness:
    """Each of the two servers, for what happens below their requests."""
    witness: Witness = request.getfixturevalue(request.param)
    return witness


@pytest.mark.skipif(SANITIZED, reason="another allocator, which keeps what it likes")
def test_memory_of_large_frames_is_given_back(server: Witness) -> None:
    """It is kept for the next one only while there is work."""
    before = resident_bytes(server.process.pid)
    with Peer(server.process.address, apache=False) as peer:
        # The one that the server does not know is not received.
        answers = [peer.ask(code, body=bytes(4 * MIB)).code for code in WELCOME]
        assert sorted(answers) == [1, 3]
        assert peak_bytes(server.process.pid) > before + 4 * MIB
        peer.eventually(lambda: resident_bytes(server.process.pid) < before + 3 * MIB, TIMEOUT)


@pytest.fixture
def many_files() -> Iterator[int]:
    """Lets this process and the servers it starts open more than 10,000 files each."""
    wanted = 10_500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.fail(f"this test opens {wanted} files, and RLIMIT_NOFILE allows {hard} at most: raise the hard limit")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Open connections; all are accepted when this returns, because a question over the last is answered."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(contextlib.closing(socket.create_connection((host, int(port)), TIMEOUT)))
            for _ in range(count)
        ]
        question = RawConnection(address, TIMEOUT)
        with question:
            question.send(json_frame({"code": 9999, "opaque": 1}))
            assert question.read_frame()[0]["code"] == 3
        yield opened


def test_ten_thousand_idle_connections(many_files: int, namesrv: Witness) -> None:
    with connections(namesrv.process.address, 10_000):
        assert open_files(namesrv.process.pid) > 10_000
        namesrv.check(growth=10_000 * 8 * KIB)
    namesrv.check_closed()
    namesrv.check(growth=10_000 * 8 * KIB)


@pytest.mark.parametrize("server", ["namesrv"], indirect=True)
def test_a_flood_of_connections_leaves_descriptors_for_files(server: Witness) -> None:
    descriptors = 64
    pid = server.process.pid
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    host, _, port = server.process.address.rpartition(":")
    with Peer(server.process.address, apache=False) as peer, contextlib.ExitStack() as stack:
        assert peer.ask(9999).code == 3, "connected before the flood"
        flood = [stack.enter_context(socket.create_connection((host, int(port)), TIMEOUT)) for _ in range(descriptors)]
        flood[-1].settimeout(TIMEOUT)
        assert flood[-1].recv(1) == b"", "refused: what is left is for files"
        assert open_files(pid) <= descriptors // 2
        assert peer.ask(100, {"namespace": "n", "key": "k", "value": "v"}).code == 0, "saved in a file"
    assert "are kept for files" in server.process.log.read_text()
    server.check_closed()
    server.check(growth=8 * MIB)


def test_a_server_may_open_as_many_files_as_the_system_allows(processes: Processes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files(os.getpid()) + 100, hard))  # this process has some, too
    try:
        process = processes.namesrv()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_flood_of_connections_that_end_at_once(server: Witness) -> None:
    host, _, port = server.process.address.rpartition(":")
    for number in range(2_000):
        flooding = socket.create_connection((host, int(port)), TIMEOUT)
        if number % 2:  # a reset in place of an orderly end
            flooding.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if number % 3 == 0:
            flooding.sendall(b"\0\0\1\0")
        flooding.close()
    server.check_closed()
    server.check(growth=8 * MIB)


BAD_FRAMES = {
    "one byte above the limit": struct.pack(">I", FRAME_MAX - 3) + b"\0" * 64,
    "two gigabytes": struct.pack(">I", 0x7FFFFFFF),
    "negative length": struct.pack(">i", -1) + b"\0" * 64,
    "least length": struct.pack(">i", -(2**31)),
    "shorter than its header word": struct.pack(">I", 3) + b"\0" * 8,
    "header beyond the frame": struct.pack(">II", 64, 0x00FFFFFF) + b" " * 60,
    "unknown header type": struct.pack(">II", 64, 0x7F000010) + b" " * 60,
    "HTTP": b"GET /etc/passwd HTTP/1.1\r\nHost: name-server\r\n\r\n",
    "binary header cut": struct.pack(">II", 8, 0x01000004) + b"\0\1\2\3",
    "binary ext fields beyond the header": struct.pack(">IIhBhiiii", 25, 0x01000015, 105, 0, 0, 1, 0, 0, 0x7FFFFFFF),
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_broken_frame_costs_its_connection_and_nothing_else(namesrv: Witness, frame: bytes) -> None:
    with connections(namesrv.process.address, 50) as attackers:
        for attacker in attackers:
            attacker.sendall(frame)
        assert all(is_closed(attacker) for attacker in attackers)
        namesrv.check(growth=8 * MIB)


def test_broken_frames_at_a_broker(broker: Witness) -> None:
    for frame in BAD_FRAMES.values():
        with connections(broker.process.address, 10) as attackers:
            for attacker in attackers:
                attacker.sendall(frame)
            assert all(is_closed(attacker) for attacker in attackers)
    broker.check(growth=8 * MIB)


def is_closed(attacker: socket.socket) -> bool:
    """Whether the server ends a connection, with an answer before or without."""
    try:
        while attacker.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def begun(announced: int, there: int, code: int) -> bytes:
    """The first bytes of a frame of ``announced`` bytes."""
    header = b'{"code":%d,"opaque":1,"extFields":{}}' % code
    return (struct.pack(">II", announced - 4, len(header)) + header).ljust(there, b"x")


def test_frames_that_are_announced_and_never_sent(server: Witness) -> None:
    """What was announced takes no room, what came does: a kilobyte a connection."""
    with connections(server.process.address, 1_000) as attackers:
        for attacker in attackers:
            attacker.sendall(begun(FRAME_MAX, KIB, WELCOME[0]))
        server.check(growth=16 * MIB)
    server.check_closed()


def test_large_frames_that_are_announced_and_begun(server: Witness) -> None:
    """Room is made for them, and takes memory only as far as it is filled."""
    with connections(server.process.address, 200) as attackers:
        for code, attacker in zip(itertools.cycle(WELCOME), attackers):
            attacker.sendall(begun(MIB, 80 * KIB, code))
        server.check(growth=200 * 160 * KIB)
    server.check_closed()


@pytest.mark.parametrize("announced", [FRAME_MAX, MIB])
def test_incomplete_frames_of_all_connections_together_have_a_limit(announced: int) -> None:
    limits = ChannelLimits(max_partial_bytes=MIB)
    with TestServer(limits=limits) as server, connections(server.address, 64) as attackers:
        for attacker in attackers:
            with contextlib.suppress(ConnectionError):
                attacker.sendall(begun(announced, 64 * KIB, ECHO))
        closed = 0
        while closed < 64 - 16:  # a megabyte is what sixteen of them brought
            closed += sum(is_closed_now(attacker) for attacker in wait_readable(attackers))
            attackers = [attacker for attacker in attackers if attacker.fileno() >= 0]
        assert echoes(server)


@pytest.mark.parametrize("kind", ["reactor", "loop", "tls"])
def test_a_large_request_of_a_code_that_nobody_serves_is_not_held(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered by its header; the rest of it is thrown away, and the next request is served."""
    if kind == "loop":
        monkeypatch.setattr(server_module, "open_listener", partial(open_listener, by_loop=True))
    frame = json_frame({"code": 9999, "opaque": 1}, bytes(FRAME_MAX - 100))
    with TestServer(tls=server_tls()) as server, RawConnection(server.address, TIMEOUT) as peer:
        if kind == "tls":
            peer.wrap(client_tls().context())
        peer.send(frame[: 64 * KIB])
        answer, _ = peer.read_frame()
        assert (answer["code"], answer["opaque"]) == (3, 1)
        for part in (frame[64 * KIB : 8 * MIB], frame[8 * MIB : -1]):
            peer.send(part)
            assert server.call(lambda server: server._endpoint.partial_bytes) == 0
        peer.send(frame[-1:] + json_frame({"code": ECHO, "opaque": 2}, b"next"))
        answer, body = peer.read_frame()
        assert (answer["opaque"], body) == (2, b"next")


def wait_readable(sockets: list[socket.socket]) -> list[socket.socket]:
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select(TIMEOUT)]
    assert ready, "no connection was closed in time"
    return [each for each in sockets if each in ready]


def is_closed_now(attacker: socket.socket) -> bool:
    if not is_closed(attacker):
        return False
    attacker.close()
    return True


def echoes(server: TestServer) -> bool:
    with Peer(server.address, apache=False) as peer:
        return peer.ask(ECHO, body=b"unharmed").body == b"unharmed"


def test_peers_that_send_a_byte_at_a_time_are_closed_at_the_deadline() -> None:
    """Bytes that keep coming do not put the deadline off: it counts from the begin of the frame."""
    limits = ChannelLimits(partial_frame_timeout=0.5)
    frame = json_frame({"code": ECHO, "opaque": 1}, b"x" * 100_000)
    deadline = time.monotonic() + TIMEOUT
    with TestServer(limits=limits) as server, connections(server.address, 500) as slow:
        left, position = set(slow), 0
        for each in slow:
            each.setblocking(False)
        while left:
            assert time.monotonic() < deadline, f"{len(left)} connections are open still"
            assert position < len(frame), "a whole frame went through before the deadline"
            for each in list(left):
                try:
                    each.send(frame[position : position + 1])
                    if each.recv(1) == b"":
                        left.discard(each)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    left.discard(each)
            position += 1
            assert echoes(server)
        with Peer(server.address, apache=False) as peer:
            peer.eventually(lambda: server.channels() == 0)


def test_a_peer_that_asks_a_broker_for_large_answers_and_takes_none(broker: Witness) -> None:
    """A message of 4 MB, for which it asks forty times in 8 KiB: answers are made as it takes them."""
    with Peer(broker.process.address, apache=False) as peer:
        for group in range(40):
            peer.tell(200, body=b'{"groupName":"g%d"}' % group)
    for kind in ("lookups", "pulls", "pops"):
        ask_and_take_none(broker, kind)


def ask_and_take_none(broker: Witness, kind: str) -> None:
    address, asked = broker.process.address, 40
    with Peer(address, apache=False) as peer, RawConnection(address, TIMEOUT) as greedy:
        send = {
            "a": "p", "b": kind, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
        }  # fmt: skip
        assert peer.ask(310, send, b"first").code == 0
        before = peak_bytes(broker.process.pid)
        place = {"topic": kind, "queueId": "0", "maxMsgNums": "1"}
        pull = place | {"queueOffset": "1", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "9000"}
        pop = place | {"invisibleTime": "9000", "pollTime": "9000", "initMode": "1"}
        for group in range(asked):
            of_group = {"consumerGroup": f"g{group}", "subVersion": "0", "subscription": "*"}
            if kind == "pulls":
                greedy.send(json_frame({"code": 11, "opaque": group, "extFields": pull | of_group}))
            elif kind == "pops":
                assert peer.ask(200050, {**pop, "pollTime": "0", **of_group}).code == 0
                greedy.send(json_frame({"code": 200050, "opaque": group, "extFields": pop | of_group}))
        if kind == "pulls":
            greedy.send(json_frame({"code": 30, "opaque": asked, "extFields": place}))
            assert greedy.read_frame()[0]["opaque"] == asked, "all before it wait"
        elif kind == "pops":
            last = {"consumerGroup": f"g{asked - 1}", **place}
            peer.eventually(lambda: (peer.ask(200055, last).ext_fields or {})["pollingNum"] == "1")
        stored = peer.ask(310, send, bytes(4_000_000))
        assert stored.code == 0
        if kind == "lookups":
            offset = str(int((stored.ext_fields or {})["msgId"][-16:], 16))
            greedy.send(json_frame({"code": 33, "opaque": 1, "extFields": {"offset": offset}}) * asked)
        for _ in range(20):
            assert peer.ask(30, place).code == 0
        broker.check_peak(before + 64 * MIB)
        for _ in range(5):
            assert len(greedy.read_frame()[1]) > 4_000_000


def test_a_peer_that_asks_and_never_reads(namesrv: Witness) -> None:
    """The server stops to read it when its answers pile up; once it reads, every answer is there and in order."""
    topic = str(namesrv._peer.json(206)["topicList"][0])
    question = {"code": 105, "extFields": {"topic": topic}, "version": 479}
    with RawConnection(namesrv.process.address, TIMEOUT) as greedy:
        greedy.socket.setblocking(False)
        frames = b"".join(json_frame({**question, "opaque": opaque}) for opaque in range(1, 20_001))
        sent = send_until_stuck(greedy.socket, frames * 50)
        assert sent < len(frames) * 50, "the server read a hundred megabytes of questions and kept the answers"
        namesrv.check(growth=64 * MIB)
        greedy.socket.settimeout(TIMEOUT)
        expected = namesrv._peer.ask(105, {"topic": topic}).body
        for number in range(count_frames((frames * 50)[:sent])):
            header, body = greedy.read_frame()
            assert (header["code"], header["opaque"]) == (0, number % 20_000 + 1)
            assert body == expected
    namesrv.check(growth=64 * MIB)


def send_until_stuck(sender: socket.socket, data: bytes, patience: float = 2.0) -> int:
    """Write until the other side has not read for a while; returns how many bytes it took."""
    view, sent = memoryview(data), 0
    with selectors.DefaultSelector() as selector:
        selector.register(sender, selectors.EVENT_WRITE)
        while sent < len(data) and selector.select(patience):
            sent += sender.send(view[sent : sent + MIB])
    return sent


def count_frames(data: bytes) -> int:
    position = count = 0
    while position + 4 <= len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        count += position <= len(data)
    return count


def hostile_broker(witness: Witness) -> contextlib.closing[FakeBroker]:
    return contextlib.closing(FakeBroker(Peer(witness.process.address, apache=False)))


def refused(broker: FakeBroker, body: bytes, **fields: Any) -> RemotingCommand:
    answer = broker.register(body=body, **fields)
    assert answer.code == 1, answer
    assert answer.remark
    return answer


def test_a_body_that_inflates_without_end(namesrv: Witness) -> None:
    bomb = zlib.compress(bytes(512 * MIB), 9)
    assert len(bomb) < MIB
    with hostile_broker(namesrv) as broker:
        assert "inflates too far" in str(refused(broker, bomb, compressed="true").remark)
        refused(broker, bomb)
        refused(broker, bomb[: len(bomb) // 2], compressed="true")
    namesrv.check_peak(256 * MIB)
    namesrv.check(growth=64 * MIB)


def numbered_topics(count: int) -> bytes:
    texts = (f"{number:07d} 8 8 6 SINGLE_TAG".encode() for number in range(count))
    version = b'{"counter":1,"timestamp":1}'
    parts = [struct.pack(">i", len(version)), version, struct.pack(">i", count)]
    for text in texts:
        parts += (struct.pack(">i", len(text)), text)
    return zlib.compress(b"".join([*parts, struct.pack(">i", 2), b"[]"]), 1)


def test_more_topics_than_a_registration_may_bring(namesrv: Witness) -> None:
    with hostile_broker(namesrv) as broker:
        remark = refused(broker, numbered_topics(250_001), compressed="true", version=407).remark
        assert "250001 topics" in str(remark)
        namesrv.check_peak(256 * MIB)
        namesrv.check(growth=64 * MIB)


def test_a_great_many_topics_come_and_go_whole(namesrv: Witness) -> None:
    with hostile_broker(namesrv) as broker:
        answer = broker.register(body=numbered_topics(250_000), compressed="true", version=407)
        assert answer.code == 0, answer
        assert len(broker.json(224, {"cluster": broker.cluster})["topicList"]) == 250_000
        assert broker.perms("0249999") == {broker.name: 6}
    namesrv.check_peak(256 * MIB)
    namesrv._peer.eventually(lambda: not namesrv._peer.has_route("0249999"))
    namesrv.check(growth=128 * MIB)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_name_that_no_message_could_carry(namesrv: Witness, compressed: bool) -> None:
    topics = {name: topic_config(name) for name in ("short", "x" * (4 * MIB))}
    body = compressed_body(topics, data_version(), mappings=[]) if compressed else plain_body(topics, data_version())
    with hostile_broker(namesrv) as broker:
        assert "a topic name of 4194304 characters" in str(refused(broker, body, compressed=str(compressed)).remark)
    namesrv.check(growth=64 * MIB)


def test_values_that_fill_the_key_value_table(namesrv: Witness) -> None:
    value = "v" * (400 * KIB)
    with Peer(namesrv.process.address, apache=False) as peer:
        codes = [peer.ask(100, {"namespace": "n", "key": f"k{i}", "value": value}).code for i in range(24)]
        assert codes == [0] * 20 + [1] * 4
        assert peer.json(219, {"namespace": "n"}) == {"table": {f"k{i}": value for i in range(20)}}
        assert peer.ask(101, {"namespace": "n", "key": "k20"}).code == 22
    namesrv.check(growth=96 * MIB)


def damaged_registrations() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Registrations that are right for a long way: body and header fields."""
    topics = {name: topic_config(name) for name in (f"half-{i}" for i in range(1_000))}
    plain = plain_body(topics, data_version())
    broken = plain.replace(b'"half-999", "readQueueNums": 8', b'"half-999", "readQueueNums": {}')
    good = zlib.decompress(compressed_body(topics, data_version()))
    cut_topic = good.replace(b"half-999 8 8 6 SINGLE_TAG {}", b"half-999_8_8_6_SINGLE_TAG_{}")
    bad_number = good.replace(b"half-999 8 8 6 ", b"half-999 8 8 X ")
    assert good not in (cut_topic, bad_number)
    compressed = {"compressed": "true"}
    return {
        "plain, cut": (plain[:-100], {}),
        "plain, last topic broken": (broken, {}),
        "plain, wrong checksum": (plain, {"bodyCrc32": "1"}),
        "plain, version no object": (plain.replace(b'"dataVersion": {', b'"dataVersion": [{'), {}),
        "compressed, cut": (zlib.compress(good)[:-10], compressed),
        "compressed, cut inside": (zlib.compress(good[:-60]), compressed),
        "compressed, last topic of one word": (zlib.compress(cut_topic), compressed),
        "compressed, last number no number": (zlib.compress(bad_number), compressed),
        "compressed, mappings missing": (zlib.compress(good), compressed),
    }  # fmt: skip


DAMAGED = damaged_registrations()


@pytest.mark.parametrize(("body", "fields"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_registration_is_applied_whole_or_not_at_all(namesrv: Witness, body: bytes, fields: dict[str, str]) -> None:
    with hostile_broker(namesrv) as broker:
        refused(broker, body, **fields)
        assert not broker.has_route("half-0")
        assert broker.addresses(broker.name) == {}
        before = broker.registered(unique("a"), unique("b")).json(224, {"cluster": broker.cluster})
        refused(broker, body, **fields)
        assert broker.json(224, {"cluster": broker.cluster}) == before, "what it had registered stays"
    namesrv._peer.eventually(lambda: namesrv._peer.addresses(broker.name) == {})
    namesrv.check(growth=16 * MIB)
