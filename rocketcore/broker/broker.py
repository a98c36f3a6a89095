"""Broker: one server with its store, its state and its registrations; wiring and lifecycle only.

Java: ``BrokerController``, ``BrokerStartup`` (5.5.0). Start: store (lock, recover), state files, listen, register.
Stop: sign off, answer what is held, stop listening, flush, save.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rocketcore.addresses import host_field, join
from rocketcore.broker.admission import Admission
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.hosts import advertised_ip
from rocketcore.broker.later.delay import DelayService
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.outer_api import OuterApi
from rocketcore.broker.pop.ack import PopAckProcessor
from rocketcore.broker.pop.journal import PopJournal
from rocketcore.broker.pop.processor import PopProcessor
from rocketcore.broker.pop.service import PopService
from rocketcore.broker.pop.state import PopState
from rocketcore.broker.processors.absent import AbsentProcessor
from rocketcore.broker.processors.acknowledge import Acknowledger
from rocketcore.broker.processors.admin import AdminProcessor
from rocketcore.broker.processors.assignment import AssignmentProcessor
from rocketcore.broker.processors.cleaning import CleaningProcessor
from rocketcore.broker.processors.client import ClientProcessor
from rocketcore.broker.processors.consumer import ConsumerProcessor
from rocketcore.broker.processors.pull import PullProcessor
from rocketcore.broker.processors.query import QueryProcessor
from rocketcore.broker.processors.recall import RecallProcessor
from rocketcore.broker.processors.relay import RelayProcessor
from rocketcore.broker.processors.reply import ReplyProcessor
from rocketcore.broker.processors.reset import ResetProcessor
from rocketcore.broker.processors.send import SendProcessor
from rocketcore.broker.processors.send_back import SendBackProcessor
from rocketcore.broker.processors.statistics import StatisticsProcessor
from rocketcore.broker.runtime_info import RuntimeInfo
from rocketcore.broker.state.client_table import ConsumerGroup, ConsumerTable, ProducerTable
from rocketcore.broker.state.consumer_filter import ConsumerFilters
from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import JsonFile, StateWriter
from rocketcore.broker.state.live_settings import LiveSettings
from rocketcore.broker.state.queue_locks import QueueLocks
from rocketcore.broker.state.request_mode import RequestModes
from rocketcore.broker.state.subscription_group import SubscriptionGroups
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.stats import SNAPSHOT_SECONDS, BrokerStats
from rocketcore.broker.store import MessageStore, StoreConfig
from rocketcore.broker.transactions.check import TransactionCheck
from rocketcore.broker.transactions.processor import TransactionProcessor
from rocketcore.broker.transactions.service import TransactionService
from rocketcore.codes import REVIVE_TOPIC_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from rocketcore.errors import ConfigError
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.transport.audit import audited
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.lookup import host_of
from rocketcore.transport.monitoring import RUNNING, STOPPING, Monitoring
from rocketcore.transport.server.server import RemotingServer
from rocketcore.transport.slow_requests import SlowRequests
from rocketcore.transport.tls.server_settings import ServerTls
from rocketcore.transport.tls.settings import TlsOption

if TYPE_CHECKING:
    from rocketcore.broker.metrics import BrokerMetrics

logger = logging.getLogger(__name__)

_SAVE_FILTERS_SECONDS = 10.0
_EXPIRE_SECONDS = 10.0
_VIP_PORT = -2
"""Where Java clients with vipChannelEnabled send, seen from the port that they are told."""
_DRAIN_SECONDS = 5.0


class Broker:
    """A broker: build it, ``await start()``, ``await stop()``; or ``async with``. A stopped one is not started again.

    ``address`` is what clients are told, ``ip:port``; known once the broker has started.

    tls         of its port; client_tls of its connections to name servers
    hooks       see every request that clients send
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        tls: ServerTls | None = None,
        client_tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if config.broker_id != 0:
            raise ConfigError(f"brokerId {config.broker_id}: only masters (0) are supported")
        self._store_config = store_config
        folder = Path(store_config.root) / "config"
        self._live = LiveSettings(JsonFile(folder / "liveSettings.json"), clock)
        config = self._live.load(config)
        store_config = self._live.load_store(store_config)
        self._topics = TopicConfigs(config, JsonFile(folder / "topics.json"), self._topics_changed, clock=clock)
        self._groups = SubscriptionGroups(
            JsonFile(folder / "subscriptionGroup.json"),
            self._groups_changed,
            auto_create=lambda: self._context.config.auto_create_subscription_group,
            clock=clock,
        )
        expire_after = config.channel_expired_timeout / 1000
        self._store = MessageStore(store_config, clock=clock, on_arrival=self._message_arrived)
        self._context = BrokerContext(
            config=config,
            clock=clock,
            writer=StateWriter(),
            topics=self._topics,
            groups=self._groups,
            offsets=ConsumerOffsets(JsonFile(folder / "consumerOffset.json"), clock),
            filters=ConsumerFilters(JsonFile(folder / "consumerFilter.json"), clock),
            consumers=ConsumerTable(self._group_changed, expire_after=expire_after, clock=clock),
            producers=ProducerTable(expire_after=expire_after, clock=clock),
            locks=QueueLocks(clock),
            stats=BrokerStats(clock, config.broker_cluster_name),
            store=self._store,
            address="",
            started_millis=clock.time_millis(),
            slow=SlowRequests(config.slow_request_millis, clock),
        )
        context = self._context
        for table in (self._topics, self._groups, context.offsets):
            table.on_delete = partial(context.writer.save, table.file, table.encode, both=True)
        levels = store_config.delay_levels
        self._acknowledger = Acknowledger(
            self._store,
            config.region_id,
            lambda: context.config.trace_on,
            on_stored=context.stats.put_times.add,
            slow=context.slow,
            clock=clock,
        )
        self._timer = TimerService(
            self._store,
            JsonFile(folder / "timerOffset.json"),
            on_put=context.stats.count_put,
            is_gone=self._is_gone,
            totals=context.stats.totals,
            clock=clock,
        )
        self._admission = Admission(self._store, context.stats, self._topics, self._timer)
        self._transactions = TransactionService(context, self._admission, self._is_gone)
        self._check = TransactionCheck(context, self._admission, self._transactions, self._is_gone)
        self._send = SendProcessor(context, self._acknowledger, self._admission, self._transactions.prepare)
        self._pull = PullProcessor(context)
        context.on_settings = self._pull.settings_changed
        self._delay = DelayService(
            self._store,
            levels,
            JsonFile(folder / "delayOffset.json"),
            on_put=context.stats.count_put,
            is_gone=self._is_gone,
            clock=clock,
        )
        self._store.keep_from(self._delay.needed_from)
        self._store.keep_from(self._transactions.needed_from)
        pop_state = PopState(clock)
        journal = PopJournal(
            self._store,
            pop_state,
            REVIVE_TOPIC_PREFIX + config.broker_cluster_name,
            JsonFile(folder / "popState.json"),
            context.writer,
            clock=clock,
            step=context.cooperative.step,
        )
        self._pop = PopService(context, self._admission, journal, pop_state)
        self._modes = RequestModes(JsonFile(folder / "messageRequestMode.json"))
        self._pop_processor = PopProcessor(context, self._pop)
        self._store.keep_from(self._pop.needed_from)
        self._store.keep_from(self._timer.needed_from)
        self._listeners: dict[str, Callable[[int, int], None]] = {
            SCHEDULE_TOPIC: self._delay.message_arrived,
            TIMER_TOPIC: self._timer.message_arrived,
        }
        self._server = RemotingServer(
            config.bind_address,
            config.listen_port,
            second_port=_VIP_PORT if config.vip_channel_enable else 0,
            name="broker",
            tls=tls,
            connections=config,
            hooks=hooks,
            slow=context.slow,
            clock=clock,
        )
        self._monitoring = Monitoring(config, self._metrics, self._not_ready)
        self._uses_tls = bool(client_tls)
        self._client = RemotingClient(name="broker-out", tls=client_tls, clock=clock)
        self._outer: OuterApi | None = None
        self._broker_metrics: BrokerMetrics | None = None
        self._running = contextlib.AsyncExitStack()

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self._context.config

    @property
    def address(self) -> str:
        return self._context.address

    def ready(self) -> dict[str, object]:
        """What a program that has started the broker wants to know."""
        config = self._context.config
        asked = len(config.name_servers)
        return {
            "address": self.address,
            "broker": config.broker_name,
            "cluster": config.broker_cluster_name,
            "store": str(self._store_config.root.absolute()),
            "name_servers": {"asked": asked, "registered_at": 0 if self._outer is None else self._outer.registered},
            **self._monitoring.ready(),
        }

    async def _metrics(self) -> list[bytes]:
        from rocketcore.broker.metrics import BrokerMetrics

        if self._broker_metrics is None:
            self._broker_metrics = BrokerMetrics(self._context, self._store, self._pop.state, lambda: len(self._timer))
        return await self._broker_metrics.encode()

    def _not_ready(self) -> str:
        """Why the broker is not ready for clients; empty where it is."""
        if self._store.refusal:
            return f"the store takes no messages: {self._store.refusal}"
        asked = len(self._context.config.name_servers)
        if asked and (self._outer is None or not self._outer.registered):
            return f"registered at none of {asked} name servers"
        return ""

    @property
    def port(self) -> int:
        return self._server.port

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store, listen, register; return when requests are served and each name server was asked.

        raises  StoreLocked, StoreCorrupted, StoreFull, OSError; nothing is left running then
        """
        try:
            await self._start()
        except BaseException:
            await self._running.aclose()
            raise

    async def _start(self) -> None:
        context, stack = self._context, self._running
        await self._monitoring.start()
        stack.push_async_callback(self._monitoring.stop)
        stack.push_async_callback(context.writer.close)
        await self._load_store()
        stack.push_async_callback(self._store.stop)
        self._name_missing_log()
        self._topics.load()
        self._groups.load()
        context.offsets.load()
        self._modes.load()
        context.filters.load()
        self._delay.load()
        self._pop.load()
        self._timer.load()
        if self._transactions.load():
            self._save_offsets()
            await context.writer.flushed()
        self._restore_topics()
        await self._store.start()
        self._pop.journal.settle()
        stack.push_async_callback(self._save_state)

        self._register_handlers()
        with host_of("bindAddress", context.config.bind_address):
            await self._server.start()
        stack.push_async_callback(self._server.stop, drain=self._drain)
        ip = await advertised_ip(context.config.broker_ip1, context.config.bind_address)
        self._store.store_host = host_field(ip, self._server.port)
        context.address = join(ip, self._server.port)

        for task in self._periodic_tasks():
            task.start()
            stack.push_async_callback(task.stop)
        self._pop.start()
        stack.push_async_callback(self._pop.stop)
        self._delay.start()
        stack.push_async_callback(self._delay.stop)
        self._timer.start()
        stack.push_async_callback(self._timer.stop)
        self._pull.long_poll.start()
        stack.push_async_callback(self._pull.long_poll.stop)
        self._pop_processor.poll.start()
        stack.push_async_callback(self._pop_processor.poll.stop)
        stack.push_async_callback(self._client.close)
        self._outer = OuterApi(self._client, lambda: context.config, context.address, self._topics, context.clock)
        context.rival = self._outer.rival
        stack.push_async_callback(self._outer.stop)
        await self._outer.start()
        self._monitoring.phase = RUNNING
        logger.info("broker started name=%s address=%s", context.config.broker_name, context.address)

    async def _load_store(self) -> None:
        """Recover on a thread. A start that is cancelled waits for its end: it cannot be stopped, and has the lock."""
        loading = asyncio.create_task(asyncio.to_thread(self._store.load), name="broker-load")
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.wait([loading])
            if not loading.cancelled() and loading.exception() is None:
                await self._store.stop()
            raise

    def _name_missing_log(self) -> None:
        """Say that a log which holds nothing held messages: the folder was lost, or is another one than before."""
        store = self._store
        if store.recovery.end_offset > store.min_physical_offset:
            return
        ends = [end for end in (store.max_offset(*queue) for queue in store.queues()) if end]
        if ends:
            logger.error(
                "commit log missing path=%s queues=%d messages=%d last_offset=%d: the queues go on where they ended",
                self._store_config.commit_log_folder, len(ends), sum(ends), max(ends) - 1,
            )  # fmt: skip

    async def stop(self) -> None:
        """Sign off, finish what is in progress, save everything; idempotent."""
        self._monitoring.phase = STOPPING
        await self._running.aclose()
        logger.info("broker stopped name=%s", self._context.config.broker_name)

    def _restore_topics(self) -> None:
        queue_counts: dict[str, int] = {}
        for topic, queue_id in self._store.queues():
            queue_counts[topic] = max(queue_counts.get(topic, 0), queue_id + 1)
        self._topics.restore(queue_counts)

    def _register_handlers(self) -> None:
        context, server = self._context, self._server
        server.register_responder(self._pull.answers)
        runtime_info = RuntimeInfo(context, self._store_config, self._delay, self._timer, self._transactions)
        processors = (
            self._send,
            self._pull,
            self._pop_processor,
            PopAckProcessor(context, self._pop),
            SendBackProcessor(context, self._admission),
            TransactionProcessor(context, self._admission, self._transactions),
            ReplyProcessor(context, self._send, self._acknowledger, self._admission),
            RecallProcessor(context, self._admission),
            ClientProcessor(context),
            ConsumerProcessor(context),
            ResetProcessor(context, self._offsets_reset, self._resets_stored),
            RelayProcessor(context),
            AssignmentProcessor(context, self._modes, self._route),
            AdminProcessor(
                context,
                self._store_config,
                runtime_info,
                self._live,
                delay_offsets=self._delay.encode,
                stored=self._pop.stored,
                uses_tls=self._uses_tls,
            ),
            StatisticsProcessor(context),
            CleaningProcessor(context),
            AbsentProcessor(context, self._live),
            QueryProcessor(context, self._store_config.default_query_max_num),
        )
        for processor in processors:
            server.add_routes(audited(processor.routes()))
        server.on_close(self._channel_closed)

    def _periodic_tasks(self) -> Iterable[PeriodicTask]:
        config = self._context.config
        yield PeriodicTask("broker-save-offsets", self._save_offsets, config.flush_consumer_offset_interval / 1000)
        yield PeriodicTask("broker-save-filters", self._save_filters, _SAVE_FILTERS_SECONDS)
        yield PeriodicTask("broker-save-delays", self._save_delays, config.flush_delay_offset_interval / 1000)
        # A changed interval counts from the round after, as in Java.
        yield PeriodicTask(
            "broker-check-transactions",
            self._check.round,
            lambda: self._context.config.transaction_check_interval / 1000,
            initial_delay=0.0,
        )
        yield PeriodicTask("broker-expire", self._expire, _EXPIRE_SECONDS)
        yield PeriodicTask("broker-stats", self._context.stats.snapshot, SNAPSHOT_SECONDS)

    # Events

    def _message_arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        self._pull.long_poll.message_arrived(topic, queue_id, max_offset, tags_code)
        self._pop_processor.poll.message_arrived(topic, queue_id, tags_code)
        listener = self._listeners.get(topic)
        if listener is not None:
            listener(queue_id, max_offset)

    def _offsets_reset(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        for queue_id in queue_ids:
            self._pull.long_poll.offset_reset(topic, group, queue_id)
        self._pop_processor.poll.offset_reset(topic, group)

    async def _resets_stored(self) -> None:
        """Wait until nothing takes back the resets that were made: their offsets, and what POP knows of them."""
        offsets = self._context.offsets
        self._context.writer.save(offsets.file, offsets.encode)
        await asyncio.gather(self._context.writer.flushed(), self._pop.stored(self._pop.journal.end_offset))

    async def _route(self, topic: str) -> TopicRouteData | None:
        return None if self._outer is None else await self._outer.route(topic)

    def _is_gone(self, topic: str, physical_offset: int) -> bool:
        """Whether a topic is deleted, with what was stored for it at a place in the log."""
        return self._topics.find(topic) is None and self._store.is_deleted(topic, physical_offset)

    def _topics_changed(self, topics: Collection[TopicConfig]) -> None:
        self._context.writer.save(self._topics.file, self._topics.encode)
        self._send.topics_changed()
        if not topics:
            self._pull.long_poll.topics_deleted(self._topics.find)
        self._pull.settings_changed()
        for topic in topics:
            self._pop_processor.poll.topic_changed(topic.topic_name)
        if self._outer is not None:
            self._outer.topics_changed(topics)

    def _groups_changed(self) -> None:
        self._context.writer.save(self._groups.file, self._groups.encode)
        self._pull.settings_changed()

    def _group_changed(self, group: ConsumerGroup) -> None:
        if not group.clients:
            self._context.filters.unregister(group.name)
        self._context.notify_group(group)

    def _channel_closed(self, channel: Channel) -> None:
        self._pull.long_poll.channel_closed(channel)
        self._pop_processor.poll.channel_closed(channel)
        self._store.reads.forget(channel)
        for group, client_id in self._context.consumers.channel_closed(channel):
            self._context.locks.connection_lost(group, client_id)
        self._context.producers.channel_closed(channel)

    # Background work

    def _expire(self) -> None:
        context = self._context
        for channel in {*context.consumers.expire(), *context.producers.expire()}:
            logger.info("client expired remote=%s", channel.remote_address)
            channel.close()
        context.locks.expire()

    def _save_offsets(self) -> None:
        offsets = self._context.offsets
        self._transactions.settle()
        if offsets.take_changes():
            self._context.writer.save(offsets.file, offsets.encode)

    def _save_filters(self) -> None:
        filters = self._context.filters
        if filters.take_changes():
            self._context.writer.save(filters.file, filters.encode)

    def _save_delays(self) -> None:
        if self._delay.take_changes():
            self._context.writer.save(self._delay.file, self._delay.encode_file)
        if self._timer.take_changes():
            self._context.writer.save(self._timer.file, self._timer.encode_file)

    async def _save_state(self) -> None:
        """Write what is only in memory; called when no request can change it any more."""
        self._save_offsets()
        self._save_filters()
        self._save_delays()
        await self._pop.journal.save()

    async def _drain(self) -> None:
        """Wait until what is stored is durable, so that its senders get their answers before the connections close."""
        durable = asyncio.Event()
        self._store.wait(self._store.max_physical_offset, lambda _: durable.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await durable.wait()
