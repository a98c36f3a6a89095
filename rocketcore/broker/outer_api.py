"""What a broker asks of name servers: to list it, to forget it, and where a topic is (Java: ``BrokerOuterAPI``, 5.5.0).

One task per name server keeps its registration: at once at start, again every period, and after each change of a
topic. A name server forgets a broker whose connection closes, and one that starts again knows none. So a connection
that closes is made again, at once and then every 0.3 s or sooner, and everything is registered anew.
Name servers do not wait for one another: one that is dead, or accepts and never answers, delays none of the others.

A name with several addresses of a kind, as of a headless service, is several name servers: a client may ask any of
them. It is looked up again every period. One address of each kind is one machine, such as ``localhost``; and over TLS a
name is asked as it stands, since that is what a certificate is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rocketcore._fast.crc32 import crc32
from rocketcore.addresses import join, split
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import RequestTimeout, RocketError
from rocketcore.printable import printable
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.bodies.topic import KVTable, TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import (
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketcore.service import SYSTEM_CLOCK, Backoff, Clock
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.lookup import HostLookup

logger = logging.getLogger(__name__)

UNREGISTER_SECONDS = 3.0
ROUTE_SECONDS = 5.0
RIVAL_SECONDS = 120.0
"""How long it counts that another broker has this one's name: each says so when it registers, in turn."""
_ROUTE_TIMEOUT = 3.0
_ROUTES = 1000
"""Routes that are kept."""
_START_SECONDS = 1.0
_RETRY_SECONDS = (0.1, 0.3)
"""First and longest wait before a registration that failed, or did not last, is tried again."""
_LASTING_SECONDS = 1.0
_PERIOD_LIMITS = (10.0, 60.0)


@dataclass(slots=True, eq=False)
class _NameServer:
    name: str
    """As it is configured."""
    address: str
    """What its name stands for: one of its addresses, or itself."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    """Topics that changed since the last registration; empty: register everything."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first registration succeeded or failed."""
    registered: bool = False
    lost: bool = False
    """A connection closed after the last registration was begun."""
    failing: bool = False
    task: asyncio.Task[None] | None = None


class OuterApi:
    """Registration of one broker with its name servers.

    address      the broker's own, as clients are told
    topics       what is registered; ordered topics are adopted from the name server's answer
    """

    def __init__(
        self,
        client: RemotingClient,
        config: Callable[[], BrokerConfig],
        address: str,
        topics: TopicConfigs,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._config = config
        self._address = address
        self._topics = topics
        self._clock = clock
        self._lookup = HostLookup()
        self._servers: list[_NameServer] = []
        self._watches: list[asyncio.Task[None]] = []
        self._routes: dict[str, tuple[float, TopicRouteData | None]] = {}
        self._adopting = False
        self._rival = ""
        self._rival_until = 0.0
        client.on_close(self._connection_lost)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic, at most ``ROUTE_SECONDS`` old, from the first name server that answers.

        None where it does not know the topic, where none answers and nothing older is known, or where there is none.
        """
        now = self._clock.monotonic()
        until, found = self._routes.get(topic, (0.0, None))
        if until > now:
            return found
        request = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        )
        for address in self._config().name_servers:
            try:
                answer = await self._client.invoke(address, request, _ROUTE_TIMEOUT)
            except RocketError as error:
                logger.info("route not told topic=%s name_server=%s reason=%s", topic, address, error)
                continue
            found = TopicRouteData.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None
            break
        while len(self._routes) >= _ROUTES:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = now + ROUTE_SECONDS, found
        return found

    def rival(self) -> str:
        """Return what a name server said lately of another broker of this one's name and id; "" for nothing."""
        return self._rival if self._clock.monotonic() < self._rival_until else ""

    async def start(self) -> None:
        """Begin to keep the registrations, and wait until each name server was asked once or a second passed."""
        names = self._config().name_servers
        found = [asyncio.create_task(self._find(name), name=f"broker-find-{name}") for name in names]
        self._watches = [
            asyncio.create_task(self._watch(name, first), name=f"broker-watch-{name}")
            for name, first in zip(names, found, strict=True)
        ]
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.gather(*map(asyncio.shield, found))
                await asyncio.gather(*(server.asked.wait() for server in self._servers))
        except TimeoutError:
            logger.warning("name servers have not answered yet name_servers=%s", self._config().namesrv_addr)

    async def _watch(self, name: str, first: asyncio.Task[None]) -> None:
        """Keep up with the addresses of a name."""
        await first
        while True:
            await asyncio.sleep(self._period())
            await self._find(name)

    async def _find(self, name: str) -> None:
        """Look a name up; begin with addresses that are new, and leave those that it has no more."""
        addresses = await self._addresses_of(name)
        known = {server.address: server for server in self._servers if server.name == name}
        if addresses is None:
            addresses = list(known) or [name]
        for address in addresses:
            if address not in known:
                server = _NameServer(name, address)
                self._servers.append(server)
                server.task = asyncio.create_task(self._keep(server), name=f"broker-register-{address}")
        for address in known.keys() - set(addresses):
            gone = known[address]
            self._servers.remove(gone)
            if gone.task is not None:
                gone.task.cancel()
            logger.info("name server left name=%s address=%s", name, address)

    async def _addresses_of(self, name: str) -> list[str] | None:
        """Return what a name stands for, None where that cannot be found out now."""
        if self._client.is_secured:
            return [name]
        try:
            host, port = split(name)
            found = await self._lookup.find_async(host, port)
        except (OSError, ValueError) as error:
            logger.debug("name server not looked up name=%s error=%s", name, error)
            return None
        by_family: dict[int, list[str]] = {}
        for family, _, _, _, target in found:
            ips = by_family.setdefault(family, [])
            if target[0] not in ips:
                ips.append(target[0])
        if max(map(len, by_family.values())) == 1:
            return [name]
        return [join(ip, port) for ips in by_family.values() for ip in ips]

    @property
    def registered(self) -> int:
        """How many of the configured name servers have the registration, at one of their addresses at least."""
        return len({server.name for server in self._servers if server.registered})

    async def stop(self) -> None:
        """Sign off from every name server, all at the same time; end the tasks."""
        tasks = [*self._watches, *(server.task for server in self._servers if server.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(self._unregister, self._servers))
        self._servers = []

    def topics_changed(self, topics: Iterable[TopicConfig] = ()) -> None:
        """Register again now, with these topics only; with none given, with all.

        What a name server itself said is not announced: two that disagree would be registered with for ever.
        """
        if self._adopting:
            return
        changes = {topic.topic_name: topic for topic in topics}
        for server in self._servers:
            if not changes or (server.changed.is_set() and not server.topics):
                server.topics = {}
            else:
                server.topics.update(changes)
            server.changed.set()

    async def _keep(self, server: _NameServer) -> None:
        loop = asyncio.get_running_loop()
        retries = Backoff(*_RETRY_SECONDS)
        while True:
            changes = server.topics if server.registered else {}
            server.topics = {}
            server.changed.clear()
            server.lost = False
            try:
                await self._register(server, changes)
            except Exception as error:
                if not server.failing:
                    expected = isinstance(error, (RocketError, OSError))
                    message = "registration failed name_server=%s error=%s"
                    level = logging.INFO if self._others_may_do(server) else logging.WARNING
                    logger.log(level, message, server.address, error, exc_info=not expected)
                if isinstance(error, RequestTimeout):
                    # What is at the other end may have gone without a word; the next attempt takes a new connection.
                    self._client.close_channel(server.address)
                server.registered, server.failing = False, True
                server.asked.set()
                await asyncio.sleep(retries.next())
            else:
                if not server.registered:
                    logger.info("registered name_server=%s", server.address)
                server.registered, server.failing = not server.lost, False
                server.asked.set()
                began = loop.time()
                await self._wait(server)
                if loop.time() - began >= _LASTING_SECONDS:
                    retries.reset()
                elif server.lost:
                    await asyncio.sleep(retries.next())

    def _others_may_do(self, server: _NameServer) -> bool:
        """Say whether another address of the same name has the registration, or has yet to be asked."""
        others = [other for other in self._servers if other.name == server.name and other is not server]
        return any(other.registered or not other.asked.is_set() for other in others)

    def _period(self) -> float:
        low, high = _PERIOD_LIMITS
        return max(low, min(self._config().register_name_server_period / 1000, high))

    async def _wait(self, server: _NameServer) -> None:
        """Return when it is time to register again: a change, a lost connection, the end of the period."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._period()):
                await server.changed.wait()

    def _connection_lost(self, channel: Channel) -> None:
        """Register everything again: a name server forgets a broker whose connection closed."""
        for server in self._servers:
            if server.address == channel.remote_address:
                server.registered, server.lost = False, True
                server.changed.set()

    async def _register(self, server: _NameServer, changes: dict[str, TopicConfig]) -> None:
        config = self._config()
        body = self._topics.registration(changes, config.broker_permission)
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            # There is no replication yet; name servers and tools want an address all the same.
            ha_server_addr=self._address,
            broker_id=config.broker_id,
            body_crc32=crc32(body) & 0x7FFFFFFF,
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
        response = await self._client.invoke(server.address, request, config.register_broker_timeout_mills / 1000)
        response.raise_for_code(server.address, "REGISTER_BROKER")
        if response.remark:  # ours says so of two brokers that take each other's place in turn; Apache's says nothing
            logger.warning("registered, but name_server=%s remark=%s", server.address, printable(response.remark))
            self._rival = response.remark
            self._rival_until = self._clock.monotonic() + RIVAL_SECONDS
        if response.body:
            self._adopt_order(KVTable.decode(response.body))

    def _adopt_order(self, order_topics: KVTable) -> None:
        self._adopting = True
        try:
            self._topics.set_order_topics(order_topics.table)
        finally:
            self._adopting = False

    async def _unregister(self, server: _NameServer) -> None:
        config = self._config()
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)
        try:
            await self._client.invoke(server.address, request, UNREGISTER_SECONDS)
        except (RocketError, OSError) as error:
            logger.info("sign-off failed name_server=%s error=%s", server.address, error)
