"""How administration asks servers: in turn, side by side, all of them; each call within one deadline.

Name servers do not talk to each other. A question goes to the first that answers, a change to every one of them at the
same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from rocketcore.admin.requests import CLUSTER_INFO, Request
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
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.protocol.signing import Signer
    from rocketcore.transport.client import RemotingClient
    from rocketcore.transport.hooks import RpcHook
    from rocketcore.transport.remoting import Remoting
    from rocketcore.transport.tls.settings import TlsOption

__all__ = ["AdminBase", "Question", "first_address", "masters_in", "merged", "no_broker", "signer_of"]

T = TypeVar("T")
K = TypeVar("K", MessageQueue, str)
V = TypeVar("V")

Question: TypeAlias = "Callable[[Remoting, str, float], Awaitable[T]]"
"""A ``Request``, or several with one answer: connections, address, timeout in seconds → answer."""


def signer_of(access_key: str, secret_key: str) -> Signer | None:
    """Return who signs for an account, imported for those who have one."""
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


class AdminBase:
    """The connections of an ``AsyncAdmin``, and its ways to ask.

    left_out  None: a question to several servers fails where one does not answer; a table: it has those, with their
              errors, and the answer is what the others know
    """

    def __init__(
        self,
        namesrv: NameServers = None,
        *,
        timeout: float = 5.0,
        broker_address_map: Mapping[str, str] | None = None,
        tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        access_key: str = "",
        secret_key: str = "",
        remoting: Remoting | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 0 < timeout <= TIMEOUT_MAX:
            raise ConfigError(f"timeout is a number of seconds above 0, got {timeout}")
        if bool(access_key) != bool(secret_key):
            raise ConfigError("access_key and secret_key belong together")
        self._name_servers = tuple(name_server_list(namesrv))
        """The one that is asked first in front; replaced as a whole, since other threads may be going through it."""
        self.timeout = timeout
        """Seconds for a whole call, however many servers it asks; may be changed between calls."""
        self._clock = clock
        self._address_map = dict(broker_address_map or {})
        self._tls = tls
        self._hooks = hooks
        self._signer = signer_of(access_key, secret_key)
        self._remoting: Remoting | None = None if remoting is None else _AskTwice(remoting, clock)
        self._own: RemotingClient | None = None
        self._enter: Callable[[], object] = lambda: None
        """Refuses any event loop but that of the connections."""
        self._closed = False
        self.left_out: dict[str, RocketError] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        own = self._own
        if own is not None:
            self._enter()
            self._own = self._remoting = None
        self._closed = True
        if own is not None:
            await own.close()

    def _connections(self) -> Remoting:
        if self._closed:
            raise ClientClosed("the admin client is closed")
        if self._remoting is None:
            import weakref

            from rocketcore.client.faces.guard import Guard
            from rocketcore.transport.client import RemotingClient

            self._own = RemotingClient(
                tls=self._tls, hooks=self._hooks, signer=self._signer, address_map=self._address_map
            )
            self._remoting = _AskTwice(self._own, self._clock)
            guard = Guard("aio.Admin", self._own)
            self._enter = guard.enter
            weakref.finalize(self, guard.forgotten)
        self._enter()
        return self._remoting

    async def _pause(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def _at_once(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | RocketError]:
        import asyncio

        async def outcome(call: Callable[[], Awaitable[T]]) -> T | RocketError:
            try:
                return await call()
            except RocketError as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(outcome(call)) for call in calls]
        return [task.result() for task in running]

    def _deadline(self) -> Deadline:
        return Deadline(self.timeout, self._clock)

    async def _ask(self, question: Question[T], deadline: Deadline | None = None) -> T:
        """Ask the name servers in turn until one answers; a refusal is an answer.

        raises  what the last one failed with where none answers, in the words of all of them
        """
        deadline = deadline or self._deadline()
        failures: list[TransportError] = []
        addresses = self._name_servers
        for attempt, address in enumerate(addresses):
            share = deadline.remaining() / (len(addresses) - attempt)
            try:
                return await self._put(question, address, share)
            except TransportError as error:
                failures.append(error)
                self._name_servers = (*(other for other in self._name_servers if other != address), address)
        if len(failures) == 1:
            raise failures[0]
        raise type(failures[-1])("; ".join(map(str, failures))) from failures[-1]

    async def _put(self, question: Question[T], address: str, timeout: float) -> T:
        """Ask one server; an answer that cannot be read says whose it is."""
        try:
            return await question(self._connections(), address, timeout)
        except DecodeError as error:
            raise RemoteProtocolError(f"answer of {address}: {error}") from error

    async def _each(
        self, addresses: Iterable[str], question: Question[T], deadline: Deadline | None = None
    ) -> dict[str, T | RocketError]:
        """Ask servers side by side; return each one's answer or error."""
        self._connections()  # what refuses all of them is no answer of each
        within = deadline or self._deadline()
        asked = list(dict.fromkeys(addresses))

        def call(address: str) -> Callable[[], Awaitable[T]]:
            return lambda: self._put(question, address, within.remaining())

        answers = await self._at_once([call(address) for address in asked])
        return dict(zip(asked, answers, strict=True))

    async def _all(self, addresses: Iterable[str], question: Question[T], deadline: Deadline) -> list[T]:
        """Ask servers side by side; return their answers in this order, each server's once.

        raises  as ``_known``
        """
        return list(self._known(await self._each(addresses, question, deadline)).values())

    async def _by_name(self, masters: Mapping[str, str], question: Question[T], deadline: Deadline) -> dict[str, T]:
        """Ask brokers side by side; return the answers by their names. Raises as ``_known``."""
        answers = self._known(await self._each(masters.values(), question, deadline))
        return {name: answers[address] for name, address in masters.items() if address in answers}

    def _share(self, deadline: Deadline, questions: int) -> Deadline:
        """Return the time of the first of so many questions, where one broker's silence is not the end of all."""
        return deadline if self.left_out is None else Deadline(deadline.remaining() / questions, self._clock)

    def _known(self, answers: Mapping[str, T | RocketError]) -> dict[str, T]:
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

    async def _everywhere(
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
        answers = await self._each(self._name_servers if addresses is None else addresses, question, deadline)
        failed = {address: answer for address, answer in answers.items() if isinstance(answer, RocketError)}
        successes = {address: answer for address, answer in answers.items() if not isinstance(answer, RocketError)}
        if not failed:
            return successes
        refusal = next((error for error in failed.values() if not isinstance(error, TransportError)), None)
        reason = refusal or next(iter(failed.values()))
        if successes:
            raise PartlyDone(what or getattr(question, "what", ""), successes, failed) from reason
        raise reason

    async def _route(self, topic: str, deadline: Deadline | None = None) -> TopicRouteData:
        return await self._ask(lambda r, a, t: api.topic_route(r, a, topic, t), deadline)

    async def _at_broker_of(self, queue: MessageQueue, question: Question[T]) -> T:
        deadline = self._deadline()
        route = await self._route(queue.topic, deadline)
        for data in route.broker_datas:
            if data.broker_name == queue.broker and data.broker_addrs:
                return await question(self._connections(), first_address(data), deadline.remaining())
        raise RouteNotFound(f"broker {queue.broker!r} does not serve topic {queue.topic!r}")

    async def _views(self, deadline: Deadline) -> dict[str, ClusterInfo]:
        """Return what each name server knows that answers within half of the time; raises where none does."""
        half = Deadline(deadline.remaining() / 2, self._clock)
        views = await self._each(self._name_servers, CLUSTER_INFO, half)
        known = {address: view for address, view in views.items() if not isinstance(view, RocketError)}
        if not known:
            raise next(view for view in views.values() if isinstance(view, RocketError))
        return known

    async def _masters(self, deadline: Deadline) -> dict[str, str]:
        """Return the masters by broker name, of all name servers: one that has just started does not know each yet."""
        return masters_in((await self._views(deadline)).values())

    async def _ask_masters(self, question: Question[T]) -> list[T]:
        deadline = self._deadline()
        masters = await self._masters(deadline)
        return await self._all(masters.values(), question, deadline)

    async def _change_masters(self, request: Request[None]) -> list[str]:
        """Have every master make a change; return the names of the brokers."""
        deadline = self._deadline()
        masters = await self._masters(deadline)
        await self._everywhere(request, addresses=masters.values(), deadline=deadline)
        return list(masters)


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
    where = f" in cluster {cluster!r}" if cluster is not None else ""
    return RouteNotFound(f"no {what}{kind} is registered{where}")


def merged(tables: Iterable[Mapping[K, V]]) -> dict[K, V]:
    """Return the tables of several servers as one, sorted by key; a later one's value takes the place of an earlier."""
    found = {key: value for table in tables for key, value in table.items()}
    return {key: found[key] for key in sorted(found)}


def first_address(data: BrokerData) -> str:
    """Return the address of a master, or where there is none that of a slave."""
    return data.broker_addrs.get(MASTER_ID) or next(iter(data.broker_addrs.values()))
