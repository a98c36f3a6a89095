"""Route questions answered from the receive buffer: the same bytes as by the handlers, and nothing stale."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rocketcore.codes import LanguageCode, RemotingFlag, RequestCode, ResponseCode, SerializeType
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.processor import NameServerProcessor
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import ManualClock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="connections are read in C on Linux only")

TOPICS = [f"topic-{number}" for number in range(20)] + ["Ünïcode-主题", 'quoted"\\'] + ["x" * 200]


class Watching:
    """A hook that changes nothing: a server with a hook sees every request as a command."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        pass

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        pass


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def serving(home: Path, *, hooked: bool = False, **settings: Any) -> AsyncIterator[NameServer]:
    config = NameServerConfig(rocketmq_home=home, listen_port=0, **settings)
    async with NameServer(config, hooks=[Watching()] if hooked else [], clock=ManualClock()) as server:
        yield server


class Line:
    """A plain connection: bytes out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, server: NameServer) -> Line:
        host, _, port = server.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 24))

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.writer.write(command.encode())
        (answer,) = FrameDecoder().feed(await self.frame())
        return answer

    async def frame(self) -> bytes:
        length = await self.reader.readexactly(4)
        return length + await self.reader.readexactly(struct.unpack(">I", length)[0])

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def question(topic: str | None, opaque: int, **changes: Any) -> RemotingCommand:
    command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    command.ext_fields = {} if topic is None else {"topic": topic}
    command.ext_fields |= changes.pop("fields", {})
    command.opaque = opaque
    for name, value in changes.items():
        setattr(command, name, value)
    return command


def registration(topics: list[str], queues: int = 4, counter: int = 1) -> RemotingCommand:
    table = {
        topic: {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0}
        for topic in topics
    }
    body = {
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": counter, "timestamp": 1, "stateVersion": 0},
            "topicConfigTable": table,
        },
        "filterServerList": [],
    }
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, body=json.dumps(body).encode())
    command.ext_fields = {
        "brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }  # fmt: skip
    return command


def stream(seed: int) -> tuple[bytes, int]:
    """Questions of every kind in one stream, and how many answers there are to be."""
    choose = random.Random(seed)
    parts, answers = [], 0
    for opaque in range(300):
        kind = choose.random()
        command = question(choose.choice(TOPICS), opaque)
        command.serialize_type = choose.choice([SerializeType.JSON, SerializeType.ROCKETMQ])
        command.version = choose.choice([401, 453, 479, 505])
        command.language = choose.choice([LanguageCode.JAVA, LanguageCode.PYTHON, LanguageCode.GO])
        if kind < 0.05:
            command.ext_fields = {"topic": "unknown"}
        elif kind < 0.1:
            command.ext_fields = {"topic": "topic-1", "__ZONE_MODE": "true", "__ZONE_NAME": "z"}
        elif kind < 0.13:
            command.ext_fields = None
        elif kind < 0.16:
            command.flag |= RemotingFlag.ONEWAY
            answers -= 1
        elif kind < 0.19:
            command.code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        elif kind < 0.22:
            command.body = b"a body that nobody asked for"
        elif kind < 0.25:
            command.ext_fields = {"topic": "topic-2", "acceptStandardJsonOnly": "true", "ns": "x"}
        parts.append(command.encode())
        answers += 1
    return b"".join(parts), answers


@pytest.mark.parametrize("seed", range(6))
def test_the_bytes_are_those_of_the_handlers_however_the_stream_is_cut(tmp_path: Path, seed: int) -> None:
    async def answered(server: NameServer, cut: random.Random) -> bytes:
        line = await Line.to(server)
        await line.ask(registration(TOPICS))
        data, answers = stream(seed)
        received = []
        for _ in range(2):  # the second time all answers are at hand
            position = 0
            while position < len(data):
                part = data[position : position + cut.choice([1, 7, 100, 1000, 5000, 65536])]
                line.writer.write(part)
                await line.writer.drain()
                position += len(part)
            received += [await line.frame() for _ in range(answers)]
        await line.close()
        return b"".join(received)

    async def scenario() -> None:
        async with serving(tmp_path / "a") as ready, serving(tmp_path / "b", hooked=True) as handled:
            assert await answered(ready, random.Random(seed)) == await answered(handled, random.Random(-seed))

    run(scenario)


def test_no_handler_is_asked_twice_for_one_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    by_handler = NameServerProcessor.route

    def counted(*arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        return by_handler(*arguments)

    monkeypatch.setattr(NameServerProcessor, "route", counted)

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            line = await Line.to(server)
            await line.ask(registration(TOPICS))
            answers = [(await line.ask(question("topic-3", opaque))).body for opaque in range(5)]
            assert len(set(answers)) == 1
            assert seen == 1
            await line.close()

    run(scenario)


def test_a_change_shows_in_the_next_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            line = await Line.to(server)
            await line.ask(registration(TOPICS))
            for queues in range(1, 6):
                await line.ask(registration(TOPICS, queues, counter=1 + queues))
                for opaque in range(2):
                    route = json.loads((await line.ask(question("topic-4", opaque))).body)
                    assert [data["readQueueNums"] for data in route["queueDatas"]] == [queues]
            delete = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV)
            delete.ext_fields = {"topic": "topic-4"}
            await line.ask(delete)
            assert (await line.ask(question("topic-4", 9))).code == ResponseCode.TOPIC_NOT_EXIST
            await line.close()
            line = await Line.to(server)
            assert (await line.ask(question("topic-5", 9))).code == ResponseCode.TOPIC_NOT_EXIST, "its broker left"
            await line.close()

    run(scenario)


def test_a_server_that_does_not_serve_yet_answers_nothing_from_its_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, need_wait_for_service=True) as server:
            line = await Line.to(server)
            await line.ask(registration(TOPICS))
            server.routes.answer(b"topic-1")
            assert (await line.ask(question("topic-1", 1))).remark == "name server not ready"
            clock = server._clock
            assert isinstance(clock, ManualClock)
            clock.advance(46)
            for opaque in range(2, 5):
                assert (await line.ask(question("topic-1", opaque))).code == 0
            await line.close()

    run(scenario)


def test_a_peer_that_does_not_read_stops_being_answered_and_gets_all_in_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            line = await Line.to(server)
            await line.ask(registration(TOPICS))
            size = len((await line.ask(question("topic-1", 0))).encode())
            count = (24 << 20) // size
            asked = b"".join(question("topic-1", opaque).encode() for opaque in range(count))
            writing = asyncio.create_task(write_all(line, asked))
            other = await Line.to(server)
            for opaque in range(50):
                assert (await other.ask(question("topic-2", opaque))).code == 0
            opaques = []
            for _ in range(count):
                (answer,) = FrameDecoder().feed(await line.frame())
                opaques.append(answer.opaque)
            await writing
            assert opaques == list(range(count))
            await line.close()
            await other.close()

    run(scenario)


async def write_all(line: Line, data: bytes) -> None:
    for start in range(0, len(data), 1 << 16):
        line.writer.write(data[start : start + (1 << 16)])
        await line.writer.drain()
