"""GroupConsumer: what push and pull consumers have in common.

It joins the group, learns which queues it owns, has a ``QueueReader`` pull from each of them, and stores offsets. What
happens to the messages that a pull brings is the subclass's part.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl``, ``RebalanceImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rocketcore.client.config import ConsumerConfig, QueueListener, StartFrom, check_seconds
from rocketcore.client.group_check import FIRST_CHECK, GroupCheck
from rocketcore.client.instance import ClientInstance
from rocketcore.client.listeners import is_listener, refuse_in_listener, tell_queues
from rocketcore.client.offset_store import (
    LocalOffsetStore,
    RemoteOffsetStore,
    find_offset,
    local_offset_path,
    offset_of_this_queue,
)
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.queue_reader import QueueReader
from rocketcore.client.rebalance import Rebalancer
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.serving import serve_broker_requests
from rocketcore.client.subscriber import JOIN_GRACE, Subscriber
from rocketcore.client.subscription import Noted
from rocketcore.codes import RETRY_TOPIC_PREFIX
from rocketcore.errors import (
    ClientClosed,
    ClientError,
    ConfigError,
    RequestTimeout,
    RocketError,
    TransportError,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol.allocate import find_strategy
from rocketcore.service import SYSTEM_CLOCK, Backoff, Clock, PeriodicTask
from rocketcore.transport.client import RemotingClient
from rocketcore.warning import warn

__all__ = ["GroupConsumer"]

logger = logging.getLogger(__name__)

UNBALANCED_INTERVAL: Final = 1.0
FIRST_REFRESH: Final = 1.0
STORE_AFTER: Final = 0.1
"""What a program that is killed may lose of its acknowledgements, in seconds."""
LOCK_GRACE: Final = 60.0
STORE_FIRST_TIMEOUT: Final = 1.0
"""What a broker that hangs may delay a rebalance by."""
BROADCAST_INSTANCE_NAME: Final = "DEFAULT"


class GroupConsumer(Subscriber):
    """A member of a consumer group, on one event loop."""

    def __init__(self, config: ConsumerConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, clock)
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._tasks: list[PeriodicTask] = []
        self._backoff = Backoff(UNBALANCED_INTERVAL, max(UNBALANCED_INTERVAL, config.rebalance_interval))
        self._next_try: asyncio.TimerHandle | None = None
        self._store_first = False
        self._store_timer: asyncio.TimerHandle | None = None
        """Has offsets stored soon, as messages are done."""
        self._shared: set[str] = set()
        """Topics whose share of queues this member has had."""
        self._silent: set[str] = set()
        """Brokers that have let this round of taking queues wait in vain."""
        self._untold: set[MessageQueue] = set()
        """Queues that ``on_assign`` is not done with; it is called with those that are being told."""
        self._being_told: set[MessageQueue] = set()
        self._paused = False
        """Whether all is paused, also the queues that come."""

    # Life

    async def start(self) -> None:
        """Join the group and begin to pull; a second call does nothing.

        A call that is cancelled, or fails, has started all the same: the consumer does the rest in the background.
        """
        if self._closed and not self.revoking:
            raise ClientClosed("the consumer is closed")
        if self._started:
            return
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._remoting = RemotingClient(**config.remoting)
        # Broadcast offsets are kept by client id, which therefore has to be the same after a restart.
        name = BROADCAST_INSTANCE_NAME if config.broadcast else ""
        self.instance = ClientInstance(config, self._remoting, ASYNCIO, instance_name=name)
        self.instance.register_consumer(self)
        self.offsets = (
            LocalOffsetStore(local_offset_path(config.offset_store_path, self.client_id, self.group), self.clock)
            if config.broadcast
            else RemoteOffsetStore(self.instance, self.group)
        )
        strategy = find_strategy(config.allocate)
        self._rebalancer = Rebalancer(self.instance, self.group, strategy, broadcast=config.broadcast)
        self._rebalance_lock = asyncio.Lock()
        self.started_at = self.clock.time_millis()
        serve_broker_requests(self._remoting, self)
        self._rebalance_task = PeriodicTask("consumer-rebalance", self._rebalance, config.rebalance_interval)
        self._offsets_task = PeriodicTask("consumer-offsets", self._keep_offsets, config.persist_interval)
        self._tasks = [
            # Our first heartbeat makes brokers create the group's retry topic, one after the other.
            PeriodicTask("consumer-route", self.instance.refresh, config.route_interval, initial_delay=FIRST_REFRESH),
            PeriodicTask("consumer-heartbeat", self.instance.heartbeat, config.heartbeat_interval),
            self._offsets_task,
            PeriodicTask("consumer-group", GroupCheck(self).look, config.heartbeat_interval, initial_delay=FIRST_CHECK),
            self._rebalance_task,
            *self._more_tasks(),
        ]
        self._started = True
        try:
            await self._join()
        finally:
            if not self._closed:
                for task in self._tasks:
                    task.start()

    def _more_tasks(self) -> list[PeriodicTask]:
        return []

    async def _join(self) -> None:
        """Tell the brokers of the subscribed topics of this consumer and take its queues."""
        await super()._join()
        await self._rebalancer.let_others_store(self._subscriptions)
        await self._rebalance()

    async def _until_ready(self) -> None:
        while not self._shared.issuperset(self._subscriptions):
            self.raise_refusal()
            await self._wait_for_news()

    async def close(self) -> None:
        """Finish what is being handled, store the offsets that are to be stored, leave the group.

        A second call waits for the first. A ``PullConsumer`` stores what polls returned with ``auto_commit``, and
        nothing without.
        """
        if self._closed:
            if not self._inside_handler() and not is_listener(self):
                await self._ended.wait()
            return
        if is_listener(self, this_task=True):
            refuse_in_listener(self, "close")
        await self._end()

    async def _leave_group(self) -> None:
        for timer in (self._next_try, self._store_timer):
            if timer is not None:
                timer.cancel()
        async with contextlib.AsyncExitStack() as ends:
            # Also where this is cancelled, nothing may go on by itself.
            ends.callback(self.offsets.close)
            ends.push_async_callback(self._remoting.close)
            ends.push_async_callback(self._stop_handling)
            ends.push_async_callback(self._stop_all_pulling)
            ends.push_async_callback(self._stop_joining)
            for task in self._tasks:
                ends.push_async_callback(task.stop)
            for task in self._tasks:
                await task.stop()
            await self._stop_joining()
            self.revoking = True
            try:
                await self._revoke(list(self._readers))
            finally:
                self.revoking = False
            await self._stop_all_pulling()
            await self._finish()
            await self._finish_replies()
            self.offsets.doubt()
            await self.persist_offsets()
            await self._release(list(self._readers))
            await self.instance.unregister()

    def _check_subscribed(self) -> None:
        if not self._readers:
            super()._check_subscribed()

    async def _stop_all_pulling(self) -> None:
        await self._stop_pulling(list(self._readers.values()))

    def _inside_handler(self) -> bool:
        """Say whether the current task is a handler, whose end a close waits for."""
        return False

    async def _finish(self) -> None:
        """Bring what is being handled to its end."""

    async def _stop_handling(self) -> None:
        """End what is being handled as it is; also after ``_finish``."""

    async def _release(self, queues: list[MessageQueue]) -> None:
        """Give back what was held for queues that are no longer ours."""

    # Subscribing

    def note_subscription(self, topic: str, tag: str | None, sql: str | None) -> Noted:
        refuse_in_listener(self, "subscribe", "on_revoke")
        return super().note_subscription(topic, tag, sql)

    async def unsubscribe(self, topic: str) -> None:
        """End a subscription; the queues of the topic are given up; raises ConfigError in ``on_revoke``."""
        refuse_in_listener(self, "unsubscribe", "on_revoke")
        topic = self.wire_topic(topic)
        self._shared.discard(topic)
        self._refusals.pop(topic, None)
        self._problems.over(f"topic={topic}")
        if self._subscriptions.pop(topic, None) is not None and self._started:
            await self.instance.heartbeat()
            await self._rebalance()

    # Owning queues

    def route_changed(self, topic: str) -> None:
        """Rebalance soon: a topic has other queues than before."""
        self.wake_rebalance()

    def wake_rebalance(self) -> None:
        """Look again who owns which queue, now."""
        if self._tasks:
            self._rebalance_task.wake()

    def group_changed(self) -> None:
        self._store_first = True
        self.offsets.doubt()
        self.wake_rebalance()

    async def _store_offsets_first(self) -> None:
        self._store_first = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_FIRST_TIMEOUT):
                await self.persist_offsets()

    async def _rebalance(self) -> None:
        """Take and give up queues until they are this member's share."""
        if self._store_first:
            await self._store_offsets_first()
        balanced = await self._balance()
        await self._tell_assigned()
        self._news.set()
        if self._next_try is not None:
            self._next_try.cancel()
            self._next_try = None
        if balanced:
            self._backoff.reset()
        elif not self._closed:
            self._next_try = asyncio.get_running_loop().call_later(self._backoff.next(), self.wake_rebalance)

    async def _balance(self) -> bool:
        """Take and give up queues; return whether all topics have their share."""
        async with self._rebalance_lock:
            balanced, changed = True, False
            self._silent.clear()
            await self._find_routes()
            topics = self.topics()
            for topic in sorted(topics):
                known = self.instance.routes.find(topic) is not None
                share = await self._share(topic) if known else None
                if share is None:
                    balanced = False
                    if known and (problem := self._rebalancer.problem) is not None:
                        self.note_problem(f"topic={topic}", problem, JOIN_GRACE)
                    continue
                taken, complete = await self._take_share(topic, share)
                if complete:
                    self._shared.add(topic)
                    self._problems.over(f"topic={topic}")
                changed = changed or taken
                balanced = balanced and complete
            gone = [queue for queue in self._readers if queue.topic not in topics]
            if gone:
                await self._give_up(gone)
        if changed or gone:
            logger.info("queues changed group=%s count=%d", self.group, len(self._readers))
            self.queues_changed()
        return balanced

    def queues_changed(self) -> None:
        """Called when the set of owned queues is another one."""

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of a topic that are this member's; None where that cannot be told."""
        return await self._rebalancer.share(topic)

    async def _take_share(self, topic: str, share: list[MessageQueue]) -> tuple[bool, bool]:
        """Return whether anything changed, and whether all of the share could be taken."""
        wanted = set(share)
        gone = [queue for queue in self._readers if queue.topic == topic and queue not in wanted]
        if gone:
            await self._give_up(gone)
        new = [queue for queue in share if queue not in self._readers]
        allowed = await self._acquire(new)
        if len(allowed) < len(new):
            error = ClientError(
                f"{len(new) - len(allowed)} queues are locked by other members, or not to be locked now"
            )
            self.note_problem(f"topic={topic}", error, LOCK_GRACE)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in new:
            if queue in allowed:
                by_broker.setdefault(queue.broker, []).append(queue)
        # A broker that hangs holds up nobody else's queues. With an exception the others come to their end, too.
        taken = 0
        for result in await asyncio.gather(*map(self._take_of_broker, by_broker.values()), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            taken += result
        return bool(gone or taken), taken == len(new)

    async def _take_of_broker(self, queues: list[MessageQueue]) -> int:
        """Take queues of one broker, as far as it says where they begin; return how many.

        One that has just let us wait in vain is asked again by a later round: each of its topics would wait as long.
        """
        taken, broker = 0, queues[0].broker
        for queue in queues:
            try:
                if broker in self._silent or self.instance.is_silent(broker):
                    raise RequestTimeout(f"broker {broker} does not answer")
                offset = await self.first_offset(queue)
            except RocketError as error:
                self.note_problem(f"topic={queue.topic}", error)
                if isinstance(error, TransportError):
                    self._silent.add(broker)
                    break  # the others would only wait for the same
            else:
                self._own_new(queue, offset)
                taken += 1
        return taken

    async def _acquire(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Return which of some queues may be taken."""
        return set(queues)

    async def _tell_assigned(self) -> None:
        """Tell of queues that have come; they may be sought in then, and nothing of them is handed out before."""
        mine = self._untold - self._being_told
        self._being_told |= mine
        try:
            if new := self._told_of(mine & self._readers.keys()):
                await self._tell("on_assign", self.config.on_assign, new)
        finally:
            self._being_told -= mine
            self._untold -= mine
            for queue in mine & self._readers.keys():
                process_queue = self._readers[queue].process_queue
                process_queue.leaving = False
                self.arrived(process_queue)

    async def _revoke(self, queues: list[MessageQueue]) -> None:
        """Tell of queues that go, and hand nothing of them out any more."""
        if self.config.on_revoke is None:
            return
        process_queues = [self._readers[queue].process_queue for queue in queues]
        try:
            for process_queue in process_queues:
                process_queue.leaving = True
            if told := self._told_of(queues):
                await self._tell("on_revoke", self.config.on_revoke, told)
        finally:
            for process_queue in process_queues:
                process_queue.leaving = False

    def _told_of(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return sorted(queue for queue in queues if queue.topic != self.retry_topic)

    async def _tell(self, what: str, listener: QueueListener | None, queues: list[MessageQueue]) -> None:
        if listener is not None:
            seconds, on_thread = self.config.close_timeout, self.listens_on_threads
            await tell_queues(self, what, listener, queues, self.group, seconds, on_thread=on_thread)

    async def _give_up(self, queues: list[MessageQueue]) -> None:
        await self._revoke(queues)
        try:
            await self._stop_pulling([self._readers[queue] for queue in queues])
            self.offsets.doubt()
            await self._persist(queues)
        finally:
            # Also where this is cancelled: nobody pulls from them any more, so they must not seem to be ours.
            for queue in queues:
                del self._readers[queue]
                self._refusals.pop(queue, None)
                self.offsets.forget(queue)
        await self._release(queues)

    def _own_new(self, queue: MessageQueue, offset: int) -> None:
        """Take a queue that has come."""
        if self.config.on_assign is not None and queue.topic != self.retry_topic:
            self._untold.add(queue)
        self.own(queue, offset)

    def own(self, queue: MessageQueue, offset: int) -> QueueReader:
        """Take a queue and begin to pull at an offset."""
        reader = QueueReader(self, ProcessQueue(queue, offset, self.clock, self.config))
        reader.process_queue.paused = self._paused
        reader.process_queue.leaving = queue in self._untold  # it may be sought in while that is told
        self._readers[queue] = reader
        reader.start()
        return reader

    async def _stop_pulling(self, readers: Iterable[QueueReader]) -> None:
        await asyncio.gather(*[task for reader in readers if (task := reader.drop())], return_exceptions=True)

    async def reset(self, offsets: dict[MessageQueue, int]) -> None:
        async with self._rebalance_lock:
            owned = {queue: offset for queue, offset in offsets.items() if queue in self._readers}
            await self._stop_pulling([self._readers[queue] for queue in owned])
            for queue, offset in owned.items():
                paused = self._readers[queue].process_queue.paused
                self.offsets.update(queue, offset, reset=True)
                self.own(queue, offset).process_queue.paused = paused
            await self.offsets.persist(owned, asked=True)

    def queues(self, *, include_retry: bool = False) -> list[MessageQueue]:
        """Return the queues of subscribed topics that this consumer reads now, sorted.

        include_retry  also those of the group's own retry topic
        """
        own = self.retry_topic if self._has_retry_topic() and not include_retry else None
        return sorted(queue for queue in self._readers if queue.topic != own)

    def process_queues(self) -> list[ProcessQueue]:
        return [reader.process_queue for reader in self._readers.values()]

    # Offsets

    async def first_offset(self, queue: MessageQueue) -> int:
        """Return where to begin in a queue: the group's stored offset, or what ``start_from`` says.

        Brokers say 0 for a group without an offset as long as the first message of the queue is still there and in
        memory, so that a group that begins at the end does not miss what came into a queue while it was new. A time is
        that time, whatever is in memory.
        """
        start: StartFrom = self.config.start_from
        stored = await self.offsets.read(queue, stored_only=isinstance(start, datetime))
        if stored is not None:
            return await offset_of_this_queue(self.instance, self.offsets, queue, stored)
        if queue.topic.startswith(RETRY_TOPIC_PREFIX) and not isinstance(start, datetime):
            return 0
        return await find_offset(self.instance, queue, start)

    def note_offsets(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the offset store how far the given queues are done."""
        for queue in queues:
            self.offsets.update(queue, self._readers[queue].process_queue.commit_offset)

    async def _persist(self, queues: Iterable[MessageQueue]) -> None:
        queues = list(queues)
        self.note_offsets(queues)
        await self.offsets.persist(queues)

    def store_soon(self) -> None:
        """Have the offsets stored ``STORE_AFTER`` seconds after the first message that was done since the last time."""
        if self._store_timer is None and not self._closed:
            self._store_timer = asyncio.get_running_loop().call_later(STORE_AFTER, self._store_now)

    def _store_now(self) -> None:
        self._store_timer = None
        self._offsets_task.wake()

    async def persist_offsets(self) -> None:
        """Store the offsets of all owned queues."""
        await self._persist(self._readers)

    async def _keep_offsets(self) -> float | None:
        self.note_offsets(self._readers)
        return await self.offsets.keep(self._readers)

    def pulled(self, queue: MessageQueue) -> None:
        super().pulled(queue)
        self.offsets.came_back(queue.broker)
        self.store_soon()  # a broker that was killed may have lost what it was told last

    # Readers

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now, sorted; as ``queues``."""
        return self.queues()

    def paused(self) -> list[MessageQueue]:
        """Return which of its queues are paused, sorted."""
        return [queue for queue in self.queues() if self._readers[queue].process_queue.paused]

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull nothing from some queues, and hand nothing of them out; without queues: from all, also from new ones.

        A queue that goes and comes back is paused only where all are.

        raises  ConfigError for a queue that is not owned
        """
        for reader in self._readers_of(queues):
            reader.set_paused(True)
        self._paused = self._paused or queues is None

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with some queues, or with all and with new ones; raises as ``pause``."""
        readers = self._readers_of(queues)
        self._paused = self._paused and queues is not None
        for reader in readers:
            reader.set_paused(False)
        self._news.set()

    def _readers_of(self, queues: Iterable[MessageQueue] | None) -> list[QueueReader]:
        if isinstance(queues, MessageQueue):
            queues = [queues]
        return list(self._readers.values()) if queues is None else [self.reader_of(queue) for queue in list(queues)]

    async def committed(self, queue: MessageQueue) -> int | None:
        if not self.config.broadcast:
            return await super().committed(queue)
        await self.start()
        return await self.offsets.read(self.wire_queue(queue))

    committed.__doc__ = Subscriber.committed.__doc__

    def _positions(self) -> dict[MessageQueue, int | None]:
        return {queue: self._readers[queue].process_queue.commit_offset for queue in self.queues()}

    async def finish_held(self, timeout: float = 30.0) -> bool:
        """Take nothing new, and bring what this member has to its end; False where ``timeout`` seconds were too few."""
        refuse_in_listener(self, "drain")
        check_seconds("drain: timeout", timeout)
        if not self._started or self._closed:
            return True
        self._paused = True  # for what a rebalance under way takes
        await self._rebalance_task.stop()
        for reader in self._readers.values():
            reader.stop_pulling()
        try:
            async with asyncio.timeout(timeout):
                await self._finish_all()
        except TimeoutError:
            warn(logger, "not all was finished within %g s, the rest comes again group=%s", timeout, self.group)
            return False
        return True

    async def _finish_all(self) -> None:
        """Wait until nothing that was read is left to do."""

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take nothing new, finish what is here, store the offsets, and leave the group.

        A ``PushConsumer`` lets its handlers, or your loop over it, finish the messages that it has read ahead. A
        ``PullConsumer`` commits what polls have returned.

        timeout  seconds to finish; the rest then comes again, to this group
        returns  whether all was finished
        """
        refuse_in_listener(self, "drain")
        try:
            return await self.finish_held(timeout)
        finally:
            await self.close()

    def reader_of(self, queue: MessageQueue) -> QueueReader:
        """Return the reader of an owned queue; raises ConfigError for any other."""
        reader = self._readers.get(self.wire_queue(queue) if self.config.namespace else queue)
        if reader is None:
            raise ConfigError(f"{queue} is not among the queues of this consumer")
        return reader
