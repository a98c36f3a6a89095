"""The metrics of a broker under RocketMQ's names (Java: ``BrokerMetricsManager``, 5.5.0).

What is counted anyway is written down when someone asks. A scrape is made in slices, between which the event loop
serves others, and has a bound of samples and of time for what has to be read from the log. ``docs/operations.md`` has
the table.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.cooperative import CooperativeWork
from rocketcore.broker.pop.state import PopState
from rocketcore.broker.runtime_info import earliest_time
from rocketcore.broker.stat_items import StatItem
from rocketcore.broker.state.client_table import ClientChannel
from rocketcore.broker.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    PUT_TIMES,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from rocketcore.broker.store.message_store import MessageStore
from rocketcore.codes import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX, Version
from rocketcore.errors import RocketError
from rocketcore.naming import is_system_topic
from rocketcore.protocol.exposition import Family, Kind, label_text, sample_lead
from rocketcore.service import Clock

__all__ = ["BrokerMetrics"]

MOST_SAMPLES: Final = 50_000
"""Of topics and groups in one scrape; how many more there would be is a metric of its own."""
READ_SECONDS: Final = 5.0
"""For the store times that latencies are made of; what is not read by then is left out."""
_SAMPLES_A_STEP: Final = 16
"""Of counters, which take less than a microsecond each."""
_QUEUES_A_STEP: Final = 64

_TOPIC_COUNTERS: Final = {
    TOPIC_PUT_NUMS: ("rocketmq_messages_in_total", "Messages that were stored"),
    TOPIC_PUT_SIZE: ("rocketmq_throughput_in_total", "Bytes of the messages that were stored"),
}
_GROUP_COUNTERS: Final = {
    GROUP_GET_NUMS: ("rocketmq_messages_out_total", "Messages that groups were handed"),
    GROUP_GET_SIZE: ("rocketmq_throughput_out_total", "Bytes of the messages that groups were handed"),
    SNDBCK_PUT_NUMS: ("rocketcore_messages_sent_back_total", "Messages that groups gave back, to get them again"),
}
_DEAD_LETTERS: Final = (
    "rocketmq_send_to_dlq_messages_total", "Messages that were given up on and became dead letters"
)  # fmt: skip
_LAGS: Final = (
    ("rocketmq_consumer_lag_messages", "Messages that a group has not consumed"),
    ("rocketmq_consumer_ready_messages", "Messages that a group was not handed yet"),
    ("rocketmq_consumer_inflight_messages", "Messages that a group was handed and has not consumed"),
    ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest message that a group has not consumed"),
)

_Counters: TypeAlias = list[tuple[tuple[str, str], StatItem]]
_Samples: TypeAlias = dict[tuple[str, str], list[tuple[str, StatItem]]]
"""Samples by name and text of their family: the line up to its value, and what counts it."""


class _Sheet:
    """The families of one scrape."""

    def __init__(self, clock: Clock, cooperative: CooperativeWork, node: str) -> None:
        self.cooperative = cooperative
        self.node = node
        self.left_out = 0
        self.reads_end = clock.monotonic() + READ_SECONDS
        self._families: dict[str, Family] = {}
        self._samples = 0

    def gauge(self, name: str, text: str, value: float, labels: str = "") -> None:
        self.family(name, "gauge", text).add(value, self._labels(labels))

    def counter(self, name: str, text: str, value: float, labels: str = "") -> None:
        self.family(name, "counter", text).add(value, self._labels(labels))

    def lead(self, name: str, labels: str) -> str:
        """Return the line of a sample of this node up to its value."""
        return sample_lead(name, self._labels(labels))

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], counts: list[int], total: float) -> None:
        self.family(name, "histogram", text).add_histogram(bounds, counts, total, self.node)

    def has_room(self, samples: int) -> bool:
        """Take room for samples of a topic or group; False, and counted, where there is none."""
        if self._samples + samples > MOST_SAMPLES:
            self.left_out += samples
            return False
        self._samples += samples
        return True

    def room_for(self, samples: int) -> int:
        """Take room for as many of some samples as there is; the others are counted."""
        room = min(samples, MOST_SAMPLES - self._samples)
        self._samples += room
        self.left_out += samples - room
        return room

    async def encode(self) -> list[bytes]:
        parts = []
        for family in self._families.values():
            for part in family.encode():
                parts.append(part)
                await self.cooperative.step()
        return parts

    def _labels(self, labels: str) -> str:
        return f"{self.node},{labels}" if labels else self.node

    def family(self, name: str, kind: Kind, text: str) -> Family:
        """Return the samples of one name."""
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(name, kind, text)
        return family


class BrokerMetrics:
    """Makes the metrics of one broker.

    waiting_timers  how many messages wait for their time
    """

    def __init__(
        self, context: BrokerContext, store: MessageStore, pops: PopState, waiting_timers: Callable[[], int]
    ) -> None:
        self._context = context
        self._store = store
        self._pops = pops
        self._waiting_timers = waiting_timers
        self._scraping = asyncio.Lock()
        # Most of a sample is always the same, and most of what a scrape would do anew.
        self._counters: _Counters = []
        self._counter_leads: dict[tuple[str, str], str] = {}
        self._samples: _Samples = {}
        self._lag_leads: dict[tuple[str, str], tuple[str, ...]] = {}

    async def encode(self) -> list[bytes]:
        """Return the text in parts. One scrape is made at a time."""
        config = self._context.config
        node = {"cluster": config.broker_cluster_name, "node_type": "broker", "node_id": config.broker_name}
        async with self._scraping:
            sheet = _Sheet(self._context.clock, self._context.cooperative, label_text(node))
            self._add_broker(sheet)
            await self._add_store(sheet)
            await self._add_clients(sheet)
            await self._add_counters(sheet)
            await self._add_lags(sheet)
            sheet.gauge("rocketcore_metrics_left_out", "Samples beyond the bound of one scrape", sheet.left_out)
            return await sheet.encode()

    def _add_broker(self, sheet: _Sheet) -> None:
        context, stats = self._context, self._context.stats
        gauge, counter = sheet.gauge, sheet.counter
        gauge("rocketmq_broker_permission", "4 read + 2 write", context.config.broker_permission)
        gauge("rocketmq_topic_number", "Topics that the broker has", len(context.topics.table))
        gauge("rocketmq_consumer_group_number", "Consumer groups that the broker has", len(context.groups.table))
        text = "Requests that wait for the disk; no others wait, as one event loop serves them all"
        gauge("rocketmq_processor_watermark", text, self._store.stats.waiting_puts, 'processor="send"')
        gauge("rocketmq_processor_watermark", text, self._store.reads.waiting_reads, 'processor="pull"')
        gauge("rocketmq_timing_messages", "Messages that wait for their time", self._waiting_timers())
        counter("rocketcore_slow_requests_total", "Requests that took slowRequestMillis or longer", context.slow.count)
        counter("rocketcore_put_failures_total", "Sends that the store refused", stats.totals.put_failures)
        times = stats.put_times
        sheet.histogram(
            "rocketcore_put_latency_seconds", "From a send to its message being durable",
            PUT_TIMES, times.counts, round(times.total, 6),
        )  # fmt: skip

    async def _add_store(self, sheet: _Sheet) -> None:
        store, labels = self._store, 'storage_type="local",storage_medium="disk"'
        gauge = sheet.gauge
        usage = await asyncio.to_thread(shutil.disk_usage, store.config.root)
        gauge("rocketmq_storage_size_bytes", "Bytes used on the disk of the store", usage.total - usage.free, labels)
        behind = store.max_physical_offset - store.synced_offset
        gauge("rocketmq_storage_flush_behind_bytes", "Bytes that are not on disk yet", behind, labels)
        text = "Bytes that consumers cannot see yet"
        gauge("rocketmq_storage_dispatch_behind_bytes", text, store.stats.dispatch_behind, labels)
        size = store.max_physical_offset - store.min_physical_offset
        gauge("rocketcore_storage_log_bytes", "Bytes of the commit log that are kept", size)
        earliest = await self._time_of(sheet, partial(earliest_time, store, self))
        if earliest > 0:
            age = max(0, self._context.clock.time_millis() - earliest)
            gauge("rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message", age, labels)
        counter = sheet.counter
        counter(
            "rocketcore_damaged_messages_total", "Messages found damaged, and left out", store.stats.damaged_records
        )
        counter("rocketcore_log_read_errors_total", "Reads of the log that the disk failed", store.stats.read_errors)
        counter(
            "rocketcore_cold_reads_total",
            "Ranges read from the disk for consumers, of the log or a queue",
            store.reads.cold_reads,
        )

    async def _add_clients(self, sheet: _Sheet) -> None:
        context = self._context
        producers: Counter[str] = Counter()
        for group in context.producers.groups():
            await _count_clients(producers, group.clients.values(), "", sheet.cooperative)
        consumers: Counter[str] = Counter()
        for consumer in context.consumers.groups():
            mode = "" if consumer.consume_type is None else consumer.consume_type.value.lower()
            system = _truth(_is_system(consumer.name))
            lead = {"consumer_group": consumer.name, "consume_mode": mode, "is_system": system}
            await _count_clients(consumers, consumer.clients.values(), label_text(lead) + ",", sheet.cooperative)
        for name, text, counts in (
            ("rocketmq_producer_connections", "Connections of producers", producers),
            ("rocketmq_consumer_connections", "Connections of consumers", consumers),
        ):
            for labels, count in counts.items():
                if sheet.has_room(1):
                    sheet.gauge(name, text, count, labels)
                await sheet.cooperative.step()

    async def _add_counters(self, sheet: _Sheet) -> None:
        """What was counted of each topic and group: most of a scrape."""
        counters = self._context.stats.counters()
        if counters != self._counters:
            self._samples = await self._samples_of(counters, sheet)
            self._counters = counters
        for (name, text), samples in self._samples.items():
            add_lines = sheet.family(name, "counter", text).add_lines
            for start in range(0, len(samples), _SAMPLES_A_STEP):
                piece = samples[start : start + _SAMPLES_A_STEP]
                room = sheet.room_for(len(piece))
                add_lines("".join([f"{lead}{item.value}\n" for lead, item in piece[:room]]))
                await sheet.cooperative.step()

    async def _samples_of(self, counters: _Counters, sheet: _Sheet) -> _Samples:
        """Return the samples of counters; they hold until others are counted."""
        found: _Samples = {}
        before, self._counter_leads = self._counter_leads, {}
        for number, (place, item) in enumerate(counters):
            if not number % _SAMPLES_A_STEP:
                await sheet.cooperative.step()
            name, key = place
            family = _TOPIC_COUNTERS.get(name) or _GROUP_COUNTERS.get(name)
            if family is None:
                continue
            lead = before.get(place)
            if lead is None:
                labels = _topic_labels(key) if name in _TOPIC_COUNTERS else _group_labels(key)
                lead = sheet.lead(family[0], labels)
            self._counter_leads[place] = lead
            found.setdefault(family, []).append((lead, item))
            if name == TOPIC_PUT_NUMS and key.startswith(DLQ_TOPIC_PREFIX):
                group = key.removeprefix(DLQ_TOPIC_PREFIX)
                labels = label_text({"topic": key, "consumer_group": group, "is_system": _truth(_is_system(group))})
                found.setdefault(_DEAD_LETTERS, []).append((sheet.lead(_DEAD_LETTERS[0], labels), item))
        return found

    async def _add_lags(self, sheet: _Sheet) -> None:
        """Where each group is in each topic that it has offsets in."""
        context = self._context
        lines = [sheet.family(name, "gauge", text).add_lines for name, text in _LAGS]
        leads = self._lag_leads
        if len(leads) > MOST_SAMPLES:  # some of groups that are gone
            leads.clear()
        async for place in context.places():
            topic, group = place
            config = context.topics.find(topic)
            if config is None or not sheet.has_room(len(_LAGS)):
                continue
            known = leads.get(place)
            if known is None:
                is_retry = _truth(topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)))
                labels = label_text({**_pair(topic, group), "is_retry": is_retry})
                known = leads[place] = tuple(sheet.lead(name, labels) for name, _ in _LAGS)
            for add_lines, lead, value in zip(
                lines, known, await self._lag(sheet, topic, group, config.read_queue_nums), strict=True
            ):
                if value is not None:
                    add_lines(f"{lead}{value}\n")

    async def _lag(self, sheet: _Sheet, topic: str, group: str, queues: int) -> tuple[int, int, int, int | None]:
        """Return the values of ``_LAGS``; no age where it cannot be read."""
        context, cooperative = self._context, sheet.cooperative
        lag = ready = in_flight = 0
        waiting: list[tuple[int, int]] = []
        committed, pulled = context.offsets.progress(group, topic)
        pops = self._pops.queues
        for queue_id, (begin, end) in enumerate(self._store.bounds(topic, queues)):
            if queue_id and not queue_id % _QUEUES_A_STEP:
                await cooperative.step()
            done = committed.get(queue_id, 0)
            done = done if begin < done <= end else begin  # behind the end: the queue began anew
            handed = pulled.get(queue_id, 0)
            handed = handed if handed > done else done
            if done == handed == end and not pops:  # of most queues there is nothing to say
                continue
            first_open = done
            if pops and (popped := pops.get((topic, group, queue_id))) is not None:
                unacknowledged = popped.in_flight
                handed = max(handed, popped.next)
                in_flight += len(unacknowledged)
                if not popped.ordered:  # whose committed offset is behind what was handed out
                    lag += len(unacknowledged)
                first_open = min(done, min(unacknowledged, default=done))
            else:
                in_flight += handed - done
            if handed < end:
                ready += end - handed
            if done < end:
                lag += end - done
            if first_open < end:
                waiting.append((queue_id, first_open))
        first: int | None = None
        for queue_id, offset in waiting:
            read = partial(self._store.reads.read, self, self._store.store_time, topic, queue_id, offset)
            stored = await self._time_of(sheet, read)
            if stored <= 0:
                return lag, ready, in_flight, None
            first = stored if first is None else min(first, stored)
            await cooperative.step()
        return lag, ready, in_flight, 0 if first is None else max(0, context.clock.time_millis() - first)

    async def _time_of(self, sheet: _Sheet, read: Callable[[], Awaitable[int]]) -> int:
        """Return a time that is read from the log; -1 where it cannot be read, or not in time."""
        left = sheet.reads_end - self._context.clock.monotonic()
        if left <= 0:
            return -1
        try:
            async with asyncio.timeout(left):
                return await read()
        except (RocketError, OSError, TimeoutError):
            return -1


async def _count_clients(
    counts: Counter[str], clients: Iterable[ClientChannel], lead: str, cooperative: CooperativeWork
) -> None:
    for client in list(clients):
        language = "" if client.language is None else client.language.name.lower()
        try:
            version = Version(client.version).name.lower()
        except ValueError:
            version = str(client.version)
        labels = {"language": language, "version": version, "protocol_type": "remoting"}
        counts[lead + label_text(labels)] += 1
        await cooperative.step()


def _topic_labels(topic: str) -> str:
    return label_text({"topic": topic, "is_system": _truth(is_system_topic(topic))})


def _group_labels(key: str) -> str:
    """Return the labels of a group's counter, by ``topic@group``."""
    topic, _, group = key.rpartition("@")
    return label_text(_pair(topic, group))


def _pair(topic: str, group: str) -> dict[str, str]:
    return {
        "topic": topic,
        "consumer_group": group,
        "is_system": _truth(is_system_topic(topic) or _is_system(group)),
    }


def _is_system(group: str) -> bool:
    return group.upper().startswith(SYSTEM_GROUP_PREFIX)


def _truth(value: bool) -> str:
    return "true" if value else "false"
