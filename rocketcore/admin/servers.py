"""How administration asks servers: in turn, side by side, all of them; each call within one deadline.

Name servers do not talk to each other. A question goes to the first that answers, a change to every one of them at the
same time.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from rocketcore.admin.requests import CLUSTER_INFO
from rocketcore.client import api
from rocketcore.client.addresses import NameServers, name_server_list
from rocketcore.codes import MASTER_ID
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    DecodeError,
    NoBrokerRegistered,
    PartlyDone,
    RemoteProtocolError,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from rocketcore.service import Clock, Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.protocol.signing import Signer
    from rocketcore.transport.client import RemotingClient
    from rocketcore.transport.remoting import Remoting

__all__ = [
    "Part",
    "Question",
    "Servers",
    "first_address",
    "masters_in",
    "masters_named",
    "masters_of_route",
    "merged",
    "no_broker",
    "refusal_first",
    "signer_of",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", MessageQueue, str)
V = TypeVar("V")

Question: TypeAlias = "Callable[[Remoting, str, float], Awaitable[T]]"
"""A ``Request``, or several with one answer: connections, address, timeout in seconds → answer."""


def signer_of(access_key: str, secret_key: str) -> Signer | None:
    """Return who signs for an account, imported for those who have one; raises ConfigError for half an account."""
    if bool(access_key) != bool(secret_key):
        raise ConfigError("access_key and secret_key belong together")
    if not access_key:
        return None
    from rocketcore.protocol.signing import Signer

    return Signer(access_key, secret_key)


class _AskTwice:
    """Repeats a request whose connection broke: a server that was restarted breaks the one that was kept open to it.

    No request of administration does more when it is done twice.
    """

    __slots__ = ("_clock", "_remoting")

    def __init__(self, remoting: Remoting, clock: Clock) -> None:
        self._remoting = remoting
        self._clock = clock

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        deadline = Deadline(timeout, self._clock)
        try:
            return await self._remoting.invoke(address, command, timeout)
        except ConnectionLost:
            return await self._remoting.invoke(address, command, deadline.remaining())

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        await self._remoting.invoke_oneway(address, command, timeout)

    def close_channel(self, address: str) -> None:
        self._remoting.close_channel(address)


class Servers:
    """The servers of a cluster, the connections to them, and the ways to ask: every part of administration has them.

    remoting  the connections; None: the first call makes them with ``connect``
    left_out  None: a question to several servers fails where one does not answer; a table: it has those, with their
              errors, and the answer is what the others know
    """

    def __init__(
        self,
        namesrv: NameServers,
        timeout: float,
        clock: Clock,
        remoting: Remoting | None,
        connect: Callable[[], RemotingClient],
    ) -> None:
        if not 0 < timeout <= TIMEOUT_MAX:
            raise ConfigError(f"timeout is a number of seconds above 0, got {timeout}")
        self.name_servers = tuple(name_server_list(namesrv))
        """The one that is asked first in front; replaced as a whole, since other threads may be going through it."""
        self.timeout = timeout
        """Seconds for a whole call, however many servers it asks; may be changed between calls."""
        self.clock = clock
        self._connect = connect
        self._remoting: Remoting | None = None if remoting is None else _AskTwice(remoting, clock)
        self._own: RemotingClient | None = None
        self._enter: Callable[[], object] = lambda: None
        """Refuses any event loop but that of the connections."""
        self._closed = False
        self.left_out: dict[str, RocketError] | None = None

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        own = self._own
        if own is not None:
            self._enter()
            self._own = self._remoting = None
        self._closed = True
        if own is not None:
            await own.close()

    def connections(self) -> Remoting:
        """Return the connections, made by the first call; raises ClientClosed, and as ``Guard.enter``."""
        if self._closed:
            raise ClientClosed("the admin client is closed")
        if self._remoting is None:
            import weakref

            from rocketcore.client.faces.guard import Guard

            self._own = self._connect()
            self._remoting = _AskTwice(self._own, self.clock)
            guard = Guard("aio.Admin", self._own)
            self._enter = guard.enter
            weakref.finalize(self, guard.forgotten)
        self._enter()
        return self._remoting

    async def pause(self, seconds: float) -> None:
        """Wait."""
        import asyncio

        await asyncio.sleep(seconds)

    async def at_once(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | RocketError]:
        """Make calls side by side; return each one's answer or error, in this order."""
        import asyncio

        async def outcome(call: Callable[[], Awaitable[T]]) -> T | RocketError:
            try:
                return await call()
            except RocketError as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(outcome(call)) for call in calls]
        return [task.result() for task in running]

    async def results(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Make calls side by side; return their answers in this order, or raise the first error among them."""
        found: list[T] = []
        for answer in await self.at_once(calls):
            if isinstance(answer, RocketError):
                raise answer
            found.append(answer)
        return found

    def leaving_out(self) -> Self:
        """Return the same servers for one call, whose answer is what those know that answer; see ``left_out``."""
        self.connections()  # which both have then
        own = copy.copy(self)
        if own.left_out is None:
            own.left_out = {}
        return own

    def unanswered(self, masters: Mapping[str, str]) -> dict[str, RocketError]:
        """Return why brokers are left out, by their names."""
        left_out = self.left_out or {}
        found = {name: left_out.get(name) or left_out.get(address) for name, address in masters.items()}
        return {name: error for name, error in found.items() if error is not None}

    def deadline(self) -> Deadline:
        """Return the time of a whole call that begins now."""
        return Deadline(self.timeout, self.clock)

    async def ask(self, question: Question[T], deadline: Deadline | None = None) -> T:
        """Ask the name servers in turn until one answers; a refusal is an answer.

        raises  what the last one failed with where none answers, in the words of all of them
        """
        deadline = deadline or self.deadline()
        failures: list[TransportError] = []
        addresses = self.name_servers
        for attempt, address in enumerate(addresses):
            share = deadline.remaining() / (len(addresses) - attempt)
            try:
                return await self.ask_one(question, address, share)
            except TransportError as error:
                failures.append(error)
                self.name_servers = (*(other for other in self.name_servers if other != address), address)
        if len(failures) == 1:
            raise failures[0]
        raise type(failures[-1])("; ".join(map(str, failures))) from failures[-1]

    async def ask_one(self, question: Question[T], address: str, timeout: float) -> T:
        """Ask one server; an answer that cannot be read says whose it is."""
        try:
            return await question(self.connections(), address, timeout)
        except DecodeError as error:
            raise RemoteProtocolError(f"answer of {address}: {error}") from error

    async def each(
        self, addresses: Iterable[str], question: Question[T], deadline: Deadline | None = None
    ) -> dict[str, T | RocketError]:
        """Ask servers side by side; return each one's answer or error."""
        self.connections()  # what refuses all of them is no answer of each
        within = deadline or self.deadline()
        asked = list(dict.fromkeys(addresses))

        def call(address: str) -> Callable[[], Awaitable[T]]:
            return lambda: self.ask_one(question, address, within.remaining())

        answers = await self.at_once([call(address) for address in asked])
        return dict(zip(asked, answers, strict=True))

    async def paged(
        self, page: Callable[[int], Question[tuple[Mapping[str, T], int | None]]], address: str, deadline: Deadline
    ) -> dict[str, T]:
        """Ask one server for a table in pages.

        page  how many rows are known → the question for those behind them, and how many there are; None: these are all
        """
        result: dict[str, T] = {}
        while True:
            before = len(result)
            rows, total = await self.ask_one(page(before), address, deadline.remaining())
            result.update(rows)
            if total is None or len(result) >= total or len(result) == before:
                return result

    async def all(self, addresses: Iterable[str], question: Question[T], deadline: Deadline) -> list[T]:
        """Ask servers side by side; return their answers in this order, each server's once.

        raises  as ``known``
        """
        return list(self.known(await self.each(addresses, question, deadline)).values())

    async def by_name(self, masters: Mapping[str, str], question: Question[T], deadline: Deadline) -> dict[str, T]:
        """Ask brokers side by side; return the answers by their names. Raises as ``known``."""
        answers = self.known(await self.each(masters.values(), question, deadline))
        return {name: answers[address] for name, address in masters.items() if address in answers}

    def share(self, deadline: Deadline, questions: int) -> Deadline:
        """Return the time of the first of so many questions, where one broker's silence is not the end of all."""
        return deadline if self.left_out is None else Deadline(deadline.remaining() / questions, self.clock)

    def known(self, answers: Mapping[str, T | RocketError]) -> dict[str, T]:
        """Return what servers answered.

        raises  the error of the first one that refuses or does not answer; with ``left_out`` one that does not answer,
                while another does, is a row there, and what is raised is a refusal if there is one
        """
        known = {server: answer for server, answer in answers.items() if not isinstance(answer, RocketError)}
        errors = {server: answer for server, answer in answers.items() if isinstance(answer, RocketError)}
        if self.left_out is not None:
            errors = dict(sorted(errors.items(), key=lambda each: isinstance(each[1], TransportError)))
        for server, error in errors.items():
            if self.left_out is None or not known or not isinstance(error, TransportError):
                raise error
            self.left_out[server] = error
        return known

    async def everywhere(
        self,
        question: Question[T],
        what: str = "",
        addresses: Iterable[str] | None = None,
        deadline: Deadline | None = None,
    ) -> dict[str, T]:
        """Have every name server, or every server of ``addresses``, make a change.

        what    the change in words, where it is no ``Request`` or has other ones
        raises  PartlyDone where some did; where none did, the refusal of one, or else the failure of its connection
        """
        answers = await self.each(self.name_servers if addresses is None else addresses, question, deadline)
        failed = {address: answer for address, answer in answers.items() if isinstance(answer, RocketError)}
        successes = {address: answer for address, answer in answers.items() if not isinstance(answer, RocketError)}
        if not failed:
            return successes
        reason = refusal_first(failed.values())
        if successes:
            raise PartlyDone(what or getattr(question, "what", ""), successes, failed) from reason
        raise reason

    async def route(self, topic: str, deadline: Deadline | None = None) -> TopicRouteData:
        """Return which brokers serve a topic, as the first name server says that answers; raises TopicNotExist."""
        return await self.ask(lambda r, a, t: api.topic_route(r, a, topic, t), deadline)

    async def at_broker_of(self, queue: MessageQueue, question: Question[T]) -> T:
        """Ask the broker of a queue; raises RouteNotFound where it does not serve the topic."""
        deadline = self.deadline()
        route = await self.route(queue.topic, deadline)
        for data in route.broker_datas:
            if data.broker_name == queue.broker and data.broker_addrs:
                return await question(self.connections(), first_address(data), deadline.remaining())
        raise RouteNotFound(f"broker {queue.broker!r} does not serve topic {queue.topic!r}")

    async def masters_of(self, topic: str, deadline: Deadline) -> dict[str, str]:
        """Return the addresses of the masters of a topic by broker name; raises RouteNotFound without any."""
        return masters_of_route(await self.route(topic, deadline), topic)

    async def master_of(self, queue: MessageQueue, deadline: Deadline) -> str:
        """Return the address of the master of a queue; raises RouteNotFound without one."""
        address = (await self.masters_of(queue.topic, deadline)).get(queue.broker)
        if address is None:
            raise RouteNotFound(f"broker {queue.broker!r} has no master with topic {queue.topic!r}")
        return address

    async def views(self, deadline: Deadline) -> dict[str, ClusterInfo]:
        """Return what each name server knows that answers within half of the time; raises where none does."""
        half = Deadline(deadline.remaining() / 2, self.clock)
        views = await self.each(self.name_servers, CLUSTER_INFO, half)
        known = {address: view for address, view in views.items() if not isinstance(view, RocketError)}
        if not known:
            raise next(view for view in views.values() if isinstance(view, RocketError))
        return known

    async def until_shown(
        self, name_servers: Iterable[str], missing: Question[str], what: str, deadline: Deadline
    ) -> None:
        """Wait until name servers show what was done: brokers register it before or soon after they answer.

        missing  what one does not show yet, in words; empty: it shows all
        """
        for address in name_servers:
            while True:
                try:
                    lacking = await self.ask_one(missing, address, deadline.remaining())
                except TransportError as error:  # it did not answer, and hears of it when it does
                    logger.info("name server not asked address=%s error=%s", address, error)
                    break
                if not lacking:
                    break
                if deadline.expired:
                    raise RequestTimeout(f"{what}; {address} does not show {lacking} yet")
                await self.pause(0.02)

    async def masters(
        self, deadline: Deadline, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, str]:
        """Return the masters by broker name, of all name servers: one that has just started does not know each yet.

        raises  as ``masters_in``
        """
        return masters_in((await self.views(deadline)).values(), cluster, broker)

    async def ask_masters(self, question: Question[T]) -> list[T]:
        """Ask every master, side by side. Raises as ``known``."""
        deadline = self.deadline()
        masters = await self.masters(deadline)
        return await self.all(masters.values(), question, deadline)


class Part:
    """Operations of ``AsyncAdmin`` that belong together: coroutines that ask the servers, and no state of their own."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers


def refusal_first(errors: Iterable[RocketError]) -> RocketError:
    """Return the error that says most: a refusal, or where there is none the first failure of a connection."""
    return min(errors, key=lambda error: isinstance(error, TransportError))


def masters_of_route(route: TopicRouteData, topic: str) -> dict[str, str]:
    """Return the addresses of the masters that have a topic, by broker name; raises RouteNotFound without any."""
    found = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
    masters = {name: address for name, address in sorted(found.items()) if address is not None}
    if not masters:
        raise RouteNotFound(f"topic {topic!r} has no master")
    return masters


def masters_named(names: set[str], masters: Mapping[str, str], cluster: str | None = None) -> dict[str, str]:
    """Return the masters of these names; raises RouteNotFound where one is not there."""
    if missing := sorted(names - masters.keys()):
        raise RouteNotFound(f"no master of {', '.join(missing)} is registered{_in_cluster(cluster)}")
    return {name: masters[name] for name in sorted(names)}


def masters_in(views: Iterable[ClusterInfo], cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
    """Return the addresses of masters by broker name; raises RouteNotFound without any.

    It is a NoBrokerRegistered where it does not matter which one is asked for.
    """
    masters: dict[str, str] = {}
    views = list(views)
    for info in views:
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            names = info.cluster_addr_table.get(cluster, [])
        for name in names:
            data = info.broker_addr_table.get(name)
            if data is not None and MASTER_ID in data.broker_addrs and broker in (None, name):
                masters.setdefault(name, data.broker_addrs[MASTER_ID])
    if not any(info.broker_addr_table for info in views):
        raise NoBrokerRegistered("no broker is registered")
    if not masters:
        raise no_broker(broker, cluster, " with a master")
    return dict(sorted(masters.items()))


def no_broker(broker: str | None, cluster: str | None, kind: str = "") -> RouteNotFound:
    """Return the error where no such broker is registered."""
    what = f"broker {broker!r}" if broker is not None else "broker"
    return RouteNotFound(f"no {what}{kind} is registered{_in_cluster(cluster)}")


def _in_cluster(cluster: str | None) -> str:
    return "" if cluster is None else f" in cluster {cluster!r}"


def merged(tables: Iterable[Mapping[K, V]]) -> dict[K, V]:
    """Return the tables of several servers as one, sorted by key; a later one's value takes the place of an earlier."""
    found = {key: value for table in tables for key, value in table.items()}
    return {key: found[key] for key in sorted(found)}


def first_address(data: BrokerData) -> str:
    """Return the address of a master, or where there is none that of a slave."""
    return data.broker_addrs.get(MASTER_ID) or next(iter(data.broker_addrs.values()))
