"""Our clients under the load that ``java/Load.java`` puts on the Java client; prints the same JSON line.

    python -m bench.peers.load sync|async|nowait|batch|push|pull --ns 127.0.0.1:9876 --topic t [--threads N]
        [--size 1024] [--warmup 1] [--seconds 3] [--window 1000] [--batch 32] [--count N]

``async`` is the asyncio producer with a window of sends in flight, ``nowait`` the auto-batching producer. Compression
and retries are off, so that a failure counts as one. Latency is of each send, or of each poll for ``pull``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable

import rocketcore as rmq
from rocketcore import aio


class Meter:
    """Counts operations and their latencies between the end of the warm-up and the end of the run."""

    def __init__(self, warmup: float, seconds: float) -> None:
        self.start = time.perf_counter() + warmup
        self.end = self.start + seconds
        self.latencies: list[float] = []
        self.messages = 0
        self.errors: dict[str, int] = {}
        self._cpu = 0.0
        self._timer = threading.Timer(warmup, self._mark)
        self._timer.daemon = True
        self._timer.start()

    def _mark(self) -> None:
        self._cpu = cpu_seconds()

    def running(self) -> bool:
        return time.perf_counter() < self.end

    def done(self, since: float, messages: int) -> None:
        now = time.perf_counter()
        if self.start <= now < self.end:
            self.latencies.append(now - since)
            self.messages += messages

    def failed(self, error: object) -> None:
        name = type(error).__name__ if isinstance(error, BaseException) else str(error)
        self.errors[name] = self.errors.get(name, 0) + 1

    def report(self, arguments: argparse.Namespace, cpu: float, seconds: float) -> dict[str, object]:
        ordered = sorted(self.latencies)
        used = cpu - self._cpu

        def percentile(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6, 1) if ordered else 0.0

        return {
            "mode": f"rocketcore-{arguments.mode}",
            "threads": arguments.threads,
            "window": arguments.window,
            "batch": arguments.batch,
            "size": arguments.size,
            "seconds": round(seconds, 3),
            "ops": len(ordered),
            "ops_s": round(len(ordered) / seconds),
            "msgs": self.messages,
            "msgs_s": round(self.messages / seconds),
            "lat_us": {
                "p50": percentile(0.5),
                "p90": percentile(0.9),
                "p99": percentile(0.99),
                "p999": percentile(0.999),
                "max": percentile(1.0),
            },
            "errors": self.errors,
            "cpu_self_s": round(used, 3),
            "client_us_per_msg": round(used * 1e6 / self.messages, 2) if self.messages else 0.0,
            "rss_self_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def body_of(size: int) -> bytes:
    return bytes(97 + (k * 7 + k // 26) % 26 for k in range(size))


def producer_options() -> dict[str, object]:
    return {"group": "load-producer", "retries": 0, "timeout": 10.0, "compress_over_bytes": sys.maxsize}


def run_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def sync(arguments: argparse.Namespace, meter: Meter) -> None:
    body = body_of(arguments.size)
    with rmq.Producer(arguments.ns, **producer_options()) as producer:

        def work() -> None:
            while meter.running():
                since = time.perf_counter()
                try:
                    if producer.send(arguments.topic, body).status is not rmq.SendStatus.SEND_OK:
                        meter.failed("not SEND_OK")
                    meter.done(since, 1)
                except rmq.RocketError as error:
                    meter.failed(error)

        run_threads(arguments.threads, work)


def batch(arguments: argparse.Namespace, meter: Meter) -> None:
    body = body_of(arguments.size)
    with rmq.Producer(arguments.ns, **producer_options()) as producer:

        def work() -> None:
            while meter.running():
                messages = [rmq.Message(arguments.topic, body) for _ in range(arguments.batch)]
                since = time.perf_counter()
                try:
                    producer.send_batch(messages)
                    meter.done(since, arguments.batch)
                except rmq.RocketError as error:
                    meter.failed(error)

        run_threads(arguments.threads, work)


def nowait(arguments: argparse.Namespace, meter: Meter) -> None:
    body = body_of(arguments.size)
    free = threading.Semaphore(arguments.window)
    with rmq.Producer(arguments.ns, **producer_options()) as producer:

        def work() -> None:
            while meter.running():
                free.acquire()
                since = time.perf_counter()

                def settled(future: object, since: float = since) -> None:
                    free.release()
                    error = future.exception()  # type: ignore[attr-defined]
                    if error is None:
                        meter.done(since, 1)
                    else:
                        meter.failed(error)

                producer.send_nowait(rmq.Message(arguments.topic, body)).add_done_callback(settled)

        run_threads(arguments.threads, work)
        producer.flush()


def asynchronous(arguments: argparse.Namespace, meter: Meter) -> None:
    body = body_of(arguments.size)

    async def run() -> None:
        async with aio.Producer(arguments.ns, **producer_options()) as producer:

            async def caller() -> None:
                while meter.running():
                    since = time.perf_counter()
                    try:
                        await producer.send(arguments.topic, body)
                        meter.done(since, 1)
                    except rmq.RocketError as error:
                        meter.failed(error)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(arguments.window):
                    tasks.create_task(caller())

    import uvloop

    uvloop.run(run())


def push(arguments: argparse.Namespace, meter: Meter) -> None:
    """Time from message ``--skip`` to message ``--count`` of a preloaded topic."""
    finished = threading.Event()
    lock = threading.Lock()  # guards the three below
    seen = 0
    started = ended = 0.0
    consumer = rmq.PushConsumer(
        arguments.ns, group=f"load-{time.time_ns()}", threads=arguments.threads, start_from="first"
    )

    @consumer.subscribe(arguments.topic)
    def handle(message: rmq.ReceivedMessage) -> None:
        nonlocal seen, started, ended
        with lock:
            seen += 1
            if seen == arguments.skip:
                started = time.perf_counter()
                meter._mark()
            elif seen == arguments.count:
                ended = time.perf_counter()
                finished.set()

    with consumer:
        if not finished.wait(90):
            meter.failed(f"only {seen} of {arguments.count}")
            ended = time.perf_counter()
        meter.messages = arguments.count - arguments.skip
        print(json.dumps(meter.report(arguments, cpu_seconds(), ended - started)), flush=True)


def pull(arguments: argparse.Namespace, meter: Meter) -> None:
    with rmq.PullConsumer(
        arguments.ns, group=f"load-{time.time_ns()}", start_from="first", max_messages=arguments.batch
    ) as consumer:
        consumer.subscribe(arguments.topic)
        while meter.running():
            since = time.perf_counter()
            messages = consumer.poll(timeout=0.5)
            if messages:
                meter.done(since, len(messages))
            else:
                for queue in consumer.assignment():
                    consumer.seek(queue, "first")


MODES = {"sync": sync, "batch": batch, "nowait": nowait, "async": asynchronous, "push": push, "pull": pull}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--ns", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="bench")
    for name, default in (("threads", 1), ("size", 1024), ("window", 1000), ("batch", 32), ("count", 0), ("skip", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    meter = Meter(arguments.warmup, arguments.seconds)
    MODES[arguments.mode](arguments, meter)
    if arguments.mode != "push":
        print(json.dumps(meter.report(arguments, cpu_seconds(), arguments.seconds)), flush=True)
    return 1 if meter.errors else 0


if __name__ == "__main__":
    sys.exit(main())
