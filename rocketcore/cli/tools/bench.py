"""``rocket bench …``: rates and latencies of this machine against a running cluster, and of the codec without one.

Latency percentiles come from every operation, not from samples. With ``--rocketmq-format`` the lines are those of
RocketMQ's own benchmark programs (``org.apache.rocketmq.example.benchmark``), so that what reads those reads these.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import CommandFailed
from rocketcore.cli.shell.options import current
from rocketcore.cli.shell.render import Column, progress, show_object, show_rows
from rocketcore.codes import TOOLS_GROUP

if TYPE_CHECKING:
    from rocketcore import Producer

__all__ = ["Recorder", "bench_codec", "bench_consume", "bench_produce"]

T = TypeVar("T")

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(slots=True)
class Recorder:
    """Operations of one thread: latencies in seconds, messages, bytes, failures."""

    latencies: array[float] = field(default_factory=lambda: array("d"))
    messages: int = 0
    size_bytes: int = 0
    failed: int = 0

    def add(self, seconds: float, messages: int, size_bytes: int) -> None:
        self.latencies.append(seconds)
        self.messages += messages
        self.size_bytes += size_bytes


def percentiles(latencies: array[float]) -> dict[str, float | None]:
    """Return p50, p90, p99, p99.9 and max in microseconds; None where there was no operation."""
    names = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"]
    if not latencies:
        return dict.fromkeys(names)
    ordered = sorted(latencies)
    last = len(ordered) - 1
    values = [ordered[min(last, int(len(ordered) * share / 100))] for share in PERCENTILES] + [ordered[-1]]
    return {name: round(value * 1e6, 1) for name, value in zip(names, values, strict=True)}


@dataclass(slots=True)
class Result:
    """What a run measured."""

    what: str
    seconds: float
    recorders: list[Recorder]

    def values(self, **more: object) -> dict[str, Any]:
        latencies = array("d")
        for recorder in self.recorders:
            latencies.extend(recorder.latencies)
        messages = sum(recorder.messages for recorder in self.recorders)
        size = sum(recorder.size_bytes for recorder in self.recorders)
        seconds = self.seconds or 1e-9
        return {
            "benchmark": self.what,
            **more,
            "seconds": round(self.seconds, 3),
            "messages": messages,
            "messages_per_second": round(messages / seconds),
            "mib_per_second": round(size / seconds / (1 << 20), 2),
            "failed": sum(recorder.failed for recorder in self.recorders),
            "operations": len(latencies),
            **percentiles(latencies),
        }


def _rocketmq_time() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def _show(values: dict[str, Any], rocketmq_line: str | None) -> None:
    if rocketmq_line is not None:
        click.echo(rocketmq_line)
        return
    titles = {"p50_us": "p50 µs", "p90_us": "p90 µs", "p99_us": "p99 µs", "p99_9_us": "p99.9 µs", "max_us": "max µs"}
    show_object(values, [Column(key, titles.get(key, "")) for key in values])


def _average_millis(recorders: list[Recorder]) -> float:
    operations = sum(len(recorder.latencies) for recorder in recorders)
    return sum(map(sum, (recorder.latencies for recorder in recorders))) * 1000 / max(1, operations)


def _mean(values: array[float]) -> float:
    return sum(values) / max(1, len(values))


_topic = click.option(
    "--topic", default="rocket-bench", show_default=True, help="Topic. The command creates it if needed."
)
_seconds = click.option("--seconds", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True,
                        help="Stop after this time.")  # fmt: skip
_count = click.option("--count", type=click.IntRange(1), help="Stop after this many messages, if that is earlier.")
_rocketmq_format = click.option(
    "--rocketmq-format", is_flag=True, help="Print the same line as RocketMQ's own benchmark."
)


@command(help="Send as fast as possible for a while.")
@_topic
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, help="Number of queues of a new topic.")
@click.option(
    "--size", type=click.IntRange(1, 4 << 20), default=1024, show_default=True, help="Size of a body in bytes."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of threads that send at the same time.",
)
@click.option("--mode", type=click.Choice(["sync", "nowait", "oneway", "batch"]), default="sync", show_default=True,
              help="send, send_nowait, send_oneway or send_batch.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Messages per batch.")
@_count
@_seconds
@_rocketmq_format
def bench_produce(
    topic: str,
    queues: int,
    size: int,
    threads: int,
    mode: str,
    batch: int,
    count: int | None,
    seconds: float,
    rocketmq_format: bool,
) -> None:
    from rocketcore import Message, Producer

    settings = current()
    with open_admin(calls=2) as admin:
        admin.create_topic(topic, queues, exist_ok=True)
    body = b"\0" * size
    recorders = [Recorder() for _ in range(threads)]
    with Producer(
        settings.namesrv, group="rocket-bench", timeout=settings.timeout, retries=0, tls=settings.tls,
        **settings.credentials,
    ) as producer:  # fmt: skip
        producer.send(topic, body)
        progress(f"sending to {topic}: {size} bytes, {mode}, {threads} threads")
        budget = _Budget(count, seconds)
        began = time.perf_counter()
        senders: dict[str, Callable[[Recorder], None]] = {
            "sync": lambda r: _send(budget, r, 1, size, lambda _: body, partial(producer.send, topic)),
            "nowait": lambda r: _send_nowait(budget, r, producer, topic, body),
            "oneway": lambda r: _send(budget, r, 1, size, lambda _: body, partial(producer.send_oneway, topic)),
            "batch": lambda r: _send(
                budget, r, batch, size, lambda count: [Message(topic, body) for _ in range(count)], producer.send_batch
            ),
        }
        _in_threads([partial(senders[mode], recorder) for recorder in recorders])
        producer.flush()
        result = Result("produce", time.perf_counter() - began, recorders)
    values = result.values(mode=mode, threads=threads, size_bytes=size, batch=batch if mode == "batch" else 1)
    line = (
        f"[Complete]: Current Time: {_rocketmq_time()} | Send Total: {values['messages']} | "
        f"Send TPS: {values['messages_per_second']} | Max RT(ms): {round((values['max_us'] or 0) / 1000)} | "
        f"Average RT(ms): {_average_millis(recorders):7.3f} | Send Failed: {values['failed']} | Response Failed: 0"
    )
    _show(values, line if rocketmq_format else None)
    if values["failed"] and not values["messages"]:
        raise CommandFailed(
            "FAILED", "no message was sent", "check with rocket topic route whether the topic is writable"
        )


class _Budget:
    """How much may still be done: messages, shared by threads, and time."""

    def __init__(self, count: int | None, seconds: float) -> None:
        self._left = count
        self._end = time.perf_counter() + seconds
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many messages may be done next; 0 ends the run."""
        if time.perf_counter() >= self._end:
            return 0
        if self._left is None:
            return wanted
        with self._lock:
            granted = min(wanted, self._left)
            self._left -= granted
            return granted


def _send(
    budget: _Budget,
    recorder: Recorder,
    wanted: int,
    size: int,
    prepare: Callable[[int], T],
    send: Callable[[T], object],
) -> None:
    """Send while there is budget, ``wanted`` messages of ``size`` bytes at a time; what is prepared is not timed."""
    from rocketcore import RocketError

    clock = time.perf_counter
    while granted := budget.take(wanted):
        messages = prepare(granted)
        began = clock()
        try:
            send(messages)
        except RocketError:
            recorder.failed += granted
        else:
            recorder.add(clock() - began, granted, granted * size)


def _send_nowait(budget: _Budget, recorder: Recorder, producer: Producer, topic: str, body: bytes) -> None:
    """Send without waiting; the latency of a message ends with its answer."""
    from rocketcore import Message, SendFuture

    clock = time.perf_counter
    lock = threading.Lock()

    def answered(future: SendFuture, began: float) -> None:
        with lock:
            if future.exception() is None:
                recorder.add(clock() - began, 1, len(body))
            else:
                recorder.failed += 1

    while budget.take(1):
        began = clock()
        future = producer.send_nowait(Message(topic, body))
        future.add_done_callback(lambda done, began=began: answered(done, began))  # type: ignore[misc]
    producer.flush()


def _in_threads(functions: list[Callable[[], None]]) -> None:
    """Run each in a thread of its own; an error of one is raised when all have ended."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    # Daemons: after Ctrl-C nobody waits for the rest of their time.
    threads = [
        threading.Thread(target=guarded, args=(function,), name="rocket-bench", daemon=True) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@command(
    help="Read a topic from its first message as fast as possible. No offset moves. The latencies are the times "
    "of polls."
)
@_topic
@click.option("--batch", type=click.IntRange(1, 1024), default=32, show_default=True, help="Messages per pull.")
@_count
@_seconds
@_rocketmq_format
def bench_consume(topic: str, batch: int, count: int | None, seconds: float, rocketmq_format: bool) -> None:
    from rocketcore import PullConsumer

    settings = current()
    with open_admin() as admin:
        stats = admin.topic_stats(topic)
        there = sum(bounds.max_offset - bounds.min_offset for bounds in stats.values())
    wanted = there if count is None else min(count, there)
    progress(f"reading {wanted} messages of {topic}")
    recorder = Recorder()
    born_delays, store_delays = array("d"), array("d")
    clock = time.perf_counter
    with PullConsumer(
        settings.namesrv, group=TOOLS_GROUP, start_from="first", pull_batch_size=batch, tls=settings.tls,
        **settings.credentials,
    ) as consumer:  # fmt: skip
        consumer.assign(stats)
        began = clock()
        while recorder.messages < wanted and clock() - began < seconds:
            asked = clock()
            messages = consumer.poll(0.5, max_messages=min(batch, wanted - recorder.messages))
            if messages:
                recorder.add(clock() - asked, len(messages), sum(len(message.body) for message in messages))
                now = time.time() * 1000
                born_delays.extend(now - message.born_timestamp for message in messages)
                store_delays.extend(now - message.store_timestamp for message in messages)
        result = Result("consume", clock() - began, [recorder])
    values = result.values(batch=batch)
    line = (
        f"Current Time: {_rocketmq_time()} | Consume TPS: {values['messages_per_second']} | "
        f"AVG(B2C) RT(ms): {_mean(born_delays):7.3f} | AVG(S2C) RT(ms): {_mean(store_delays):7.3f} | "
        f"MAX(B2C) RT(ms): {round(max(born_delays, default=0))} | "
        f"MAX(S2C) RT(ms): {round(max(store_delays, default=0))} | Consume Fail: 0"
    )
    _show(values, line if rocketmq_format else None)


@command(help="Encode and decode messages without a network.")
@click.option(
    "--size", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Size of a body in bytes."
)
@click.option("--batch", type=click.IntRange(1, 1024), default=32, show_default=True, help="Messages per batch.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=0.5, show_default=True,
              help="Time for each row.")  # fmt: skip
def bench_codec(size: int, batch: int, seconds: float) -> None:
    rows = []
    for name, messages, function in _codec_cases(size, batch):
        progress(name)
        latencies = _time_calls(function, seconds)
        total = sum(latencies)
        rows.append(
            {
                "case": name,
                "operations": len(latencies),
                "operations_per_second": round(len(latencies) / total),
                "messages_per_second": round(len(latencies) * messages / total),
                **percentiles(latencies),
            }
        )
    show_rows(
        rows,
        [
            "case",
            Column("operations", wide=True),
            Column("operations_per_second", "OPS/S"),
            Column("messages_per_second", "MSGS/S"),
            Column("p50_us", "P50 µs"),
            Column("p90_us", "P90 µs"),
            Column("p99_us", "P99 µs"),
            Column("p99_9_us", "P99.9 µs"),
            Column("max_us", "MAX µs"),
        ],
    )


def _time_calls(function: Callable[[], object], seconds: float) -> array[float]:
    clock = time.perf_counter
    latencies = array("d")
    end = clock() + seconds
    began = clock()
    while began < end:
        function()
        done = clock()
        latencies.append(done - began)
        began = clock()
    return latencies


def _codec_cases(size: int, batch: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield name, messages of one operation, and the operation."""
    from rocketcore._fast.batch import encode_batch
    from rocketcore._fast.crc32 import crc32
    from rocketcore._fast.properties import encode_properties
    from rocketcore._fast.record import encode_stored
    from rocketcore.codes import RequestCode, SerializeType
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.protocol.frame import FrameDecoder
    from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
    from rocketcore.protocol.message import decode_messages

    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    host = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
    properties = encode_properties({"UNIQ_KEY": "C000020226A2C57D72296718981E0000", "TAGS": "bench", "KEYS": "key"})
    stored = b"".join(
        encode_stored(
            topic=b"bench", queue_id=0, flag=0, queue_offset=i, physical_offset=i * size, sys_flag=0,
            born_timestamp=1_700_000_000_000, born_host=host, store_timestamp=1_700_000_000_000, store_host=host,
            reconsume_times=0, prepared_offset=0, body=body, properties=properties,
        )
        for i in range(batch)
    )  # fmt: skip
    header = SendMessageRequestHeaderV2(
        producer_group="bench", topic="bench", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=properties.decode(), reconsume_times=0,
        unit_mode=False, max_reconsume_times=0, batch=False, broker_name="broker-a",
    )  # fmt: skip
    yield f"crc-32 of {size} bytes", 1, lambda: crc32(body)
    yield f"decode {batch} stored messages", batch, lambda: decode_messages(stored, "broker-a")
    yield f"encode a batch of {batch}", batch, lambda: encode_batch([body] * batch, [properties] * batch)
    for kind in SerializeType:
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body, serialize_type=kind)
        frame = request.encode()
        name = kind.name.lower()
        yield f"encode a send request, {name}", 1, request.encode
        decoder = FrameDecoder()
        yield f"decode a send request, {name}", 1, lambda d=decoder, f=frame: d.feed(f)  # type: ignore[misc]
