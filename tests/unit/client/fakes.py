"""A cluster without sockets: a ``Remoting`` whose answers a test decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketcore.client.runtime import ThreadRuntime
from rocketcore.codes import RemotingFlag, RequestCode, ResponseCode
from rocketcore.errors import RocketError
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import ManualClock

Outcome = RemotingCommand | RocketError


def decoded(request: RemotingCommand) -> RemotingCommand:
    """Return a request as its receiver sees it."""
    [command] = FrameDecoder().feed(request.encode())
    return command


def route(*brokers: str, queues: int = 2, perm: int = 6) -> TopicRouteData:
    """Return a route with brokers that listen at ``<name>:1``."""
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm) for name in brokers
        ],
        broker_datas=[BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1"}) for name in brokers],
    )


class ManualRuntime(ThreadRuntime):
    """Pauses turn a clock, and tell what happens meanwhile."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.events: list[Callable[[], None]] = []
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pauses.append(seconds)
        if self.events:
            self.events.pop(0)()


class FakeRemoting:
    """Answers route questions from ``routes`` and everything else from ``serve``; remembers what was asked."""

    def __init__(
        self,
        routes: Mapping[str, TopicRouteData],
        serve: Callable[[str, RemotingCommand], Outcome] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.routes = dict(routes)
        self.serve = serve or (lambda address, request: answer_heartbeat_or_send(request))
        self.clock = clock or ManualClock()
        self.asked: list[tuple[str, RemotingCommand]] = []
        self.timeouts: list[float] = []
        self.route_requests = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        request = decoded(command)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.route_requests += 1
            data = self.routes.get((request.ext_fields or {})["topic"])
            if data is None:
                return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
            return RemotingCommand.response(request, body=data.encode())
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {"elsewhere": BrokerData(cluster="c", broker_name="elsewhere", broker_addrs={0: "elsewhere:1"})}
            return RemotingCommand.response(request, body=ClusterInfo(broker_addr_table=brokers).encode())
        self.asked.append((address, request))
        self.timeouts.append(timeout)
        outcome = self.serve(address, request)
        if isinstance(outcome, RocketError):
            raise outcome
        return outcome

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        request = decoded(command)
        assert request.flag & RemotingFlag.ONEWAY
        self.asked.append((address, request))

    def close_channel(self, address: str) -> None:
        raise AssertionError("no one closes channels here")


def answer_heartbeat_or_send(request: RemotingCommand) -> RemotingCommand:
    """Return the answer of a broker that is well."""
    return RemotingCommand.response(request) if request.code == RequestCode.HEART_BEAT else stored(request)


def stored(request: RemotingCommand, code: int = 0, offset: int = 7) -> RemotingCommand:
    """Return the answer of a broker that stored the message."""
    response = RemotingCommand.response(request, code, None if code == 0 else "put status")
    fields = request.ext_fields or {}
    response.ext_fields = {
        "msgId": "7F00000100002A9F0000000000000064",
        "queueId": fields["e"],
        "queueOffset": str(offset),
    }
    return response
