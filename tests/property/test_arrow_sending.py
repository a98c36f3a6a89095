"""Record batches over real sockets to brokers that lose connections: what is stored is what the rows say.

Bodies are sent from the buffers that they were encoded into, and those are filled again; so what a broker reads late,
in pieces, or after it has refused it, must never be the bytes of another batch.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import uvloop
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings
from rocketcore.client.config import ClientConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.client import RemotingClient
from tests.reference import batch as reference_batch

ATTEMPT_SECONDS = 0.12
WRITE_ID = 0xABCD
LENGTHS = struct.Struct(">II")


class Deed(Enum):
    """What a broker does with a batch."""

    STORE = "store it and answer"
    CUT = "read a part of it and end the connection"
    LOSE = "store it and end the connection in place of an answer"
    STALL = "stop reading in the middle until the client has given up, then store it and answer"
    REFUSE = "refuse it before it is there, then read it slowly"


class Broker:
    """Stores the elements of batches by queue, as the script says."""

    def __init__(self, name: str, script: Iterator[Deed], random: Random) -> None:
        self.name = name
        self.address = ""
        self.stored: list[tuple[int, list[reference_batch.Element]]] = []
        self._script = script
        self._random = random
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        sock.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._connected, sock=sock, limit=1 << 14)
        self.address = "127.0.0.1:{1}".format(*sock.getsockname())

    async def stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._serve_one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, header_size = LENGTHS.unpack(await reader.readexactly(8))
        header = await reader.readexactly(header_size)
        body_size = size - 4 - header_size
        [request] = FrameDecoder().feed(LENGTHS.pack(4 + header_size, header_size) + header)
        response = RemotingCommand.response(request)
        if request.code == RequestCode.GET_MAX_OFFSET:
            response.add_ext_field("offset", "0")
            writer.write(response.encode())
            return
        assert request.code == RequestCode.SEND_BATCH_MESSAGE
        fields = request.ext_fields or {}
        deed = next(self._script, Deed.STORE)
        if deed is Deed.CUT:
            await reader.readexactly(self._random.randrange(body_size))
            raise ConnectionResetError
        if deed is Deed.REFUSE:
            writer.write(RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, "busy").encode())
        begin = self._random.randrange(body_size)
        body = await reader.readexactly(begin)
        if deed is Deed.STALL:
            await asyncio.sleep(2 * ATTEMPT_SECONDS)
        elif deed is Deed.REFUSE:
            await asyncio.sleep(ATTEMPT_SECONDS / 4)
        body += await reader.readexactly(body_size - begin)
        # What was refused is not stored, but it is looked at: it has to be what was sent, too.
        queue_id = -1 if deed is Deed.REFUSE else int(fields["e"])
        self.stored.append((queue_id, reference_batch.decode(body, 0, body_size)))
        if deed is Deed.LOSE:
            raise ConnectionResetError
        if deed is not Deed.REFUSE:
            response.ext_fields = {"msgId": "0" * 32, "queueId": fields["e"], "queueOffset": "0"}
            writer.write(response.encode())


def rows_of(shape: list[tuple[int, int]], seed: int) -> list[list[bytes]]:
    """Bodies of each record batch: so many rows of up to so many bytes, each unlike all others."""
    random, number, batches = Random(seed), 0, []
    for count, longest in shape:
        bodies = []
        for _ in range(count):
            text = b"%d:" % number
            bodies.append(text + bytes([number & 255]) * max(0, random.randrange(longest) - len(text)))
            number += 1
        batches.append(bodies)
    return batches


async def send(
    batches: list[list[bytes]], scripts: list[list[Deed]], batch_bytes: int, max_in_flight: int, keys: int, seed: int
) -> tuple[list[Broker], RecordBatchSender]:
    random = Random(seed)
    brokers = [Broker(name, iter(script), random) for name, script in zip("ab", scripts, strict=True)]
    for broker in brokers:
        await broker.start()
    remoting = RemotingClient(idle_timeout=60)
    instance = ClientInstance(ClientConfig(namesrv=("127.0.0.1:1",)), remoting, ASYNCIO)
    instance.routes.update(
        "T",
        TopicRouteData(
            queue_datas=[QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6) for name in "ab"],
            broker_datas=[
                BrokerData(cluster="c", broker_name=broker.name, broker_addrs={0: broker.address}) for broker in brokers
            ],
        ),
    )
    config = ProducerConfig(namesrv=("127.0.0.1:1",), group="g", retries=0, latency_fault_tolerance=True)
    sender = RecordBatchSender(
        Sender(config, instance),
        SendSettings(
            topic="T",
            write_id=WRITE_ID,
            partition=3,
            ordered=keys > 0,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            timeout=ATTEMPT_SECONDS,
            delivery_timeout=60,
        ),
    )
    try:
        number = 0
        for bodies in batches:
            columns: dict[str, Any] = {"body": pa.array(bodies, pa.binary())}
            if keys:
                columns["shardingKey"] = pa.array(
                    [str((number + index) % keys) for index in range(len(bodies))], pa.string()
                )
            number += len(bodies)
            await sender.send(pa.record_batch(columns))
            assert len(sender._buffers) <= max_in_flight + 2
        await sender.finish()
        # Late bytes of what was given up are still to come.
        await asyncio.sleep(2 * ATTEMPT_SECONDS if any(Deed.STALL in script for script in scripts) else 0)
    finally:
        await sender.abandon()
        await remoting.close()
        for broker in brokers:
            await broker.stop()
    return brokers, sender


DEEDS = st.lists(st.sampled_from(Deed), max_size=4)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])  # to shrink takes many minutes
@given(
    shape=st.lists(st.tuples(st.integers(0, 400), st.sampled_from([2, 100, 3000])), min_size=1, max_size=4),
    scripts=st.lists(DEEDS, min_size=2, max_size=2),
    batch_bytes=st.sampled_from([1000, 70_000, 300_000]),
    max_in_flight=st.integers(1, 5),
    keys=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 1 << 16),
)
def test_stored_rows_are_the_rows(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    shape: list[tuple[int, int]],
    scripts: list[list[Deed]],
    batch_bytes: int,
    max_in_flight: int,
    keys: int,
    seed: int,
) -> None:
    """None is missing, each has the id of its row however often it was stored, and keys keep their queue."""
    batches = rows_of(shape, seed)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        brokers, sender = runner.run(send(batches, scripts, batch_bytes, max_in_flight, keys, seed))
    rows = [body for bodies in batches for body in bodies]
    found: Counter[int] = Counter()
    places: dict[int, set[MessageQueue]] = {}
    for broker in brokers:
        for queue_id, elements in broker.stored:
            for _, body, properties in elements:
                pairs = dict(pair.split(b"\x01") for pair in properties.split(b"\x02") if pair)
                unique = pairs[b"UNIQ_KEY"].decode()
                row = int(unique[24:], 16)
                assert unique[:24] == f"{WRITE_ID:016X}{3:08X}"
                assert body == rows[row]
                if queue_id >= 0:
                    found[row] += 1
                    places.setdefault(row % keys if keys else row, set()).add(MessageQueue("T", broker.name, queue_id))
    assert set(found) == set(range(len(rows)))
    assert sender.summary.rows == len(rows)
    assert found.total() == len(rows) or sender.summary.retries
    if keys:
        assert all(len(queues) == 1 for queues in places.values())
