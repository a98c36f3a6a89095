"""Brokers without sockets that hand out messages as POP does."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.pop import (
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    QueryAssignmentResponseBody,
)
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from tests.reference.message import Stored, encode
from tests.unit.client.fakes import FakeRemoting, Outcome


class Brokers(FakeRemoting):
    """Brokers that hand out what a test has put there.

    acks      queue offsets that were acknowledged, by broker, a list for each request
    changes   milliseconds for which messages were made invisible, by queue offset
    failures  what the next requests of a code get in place of an answer
    """

    def __init__(self, routes: dict[str, TopicRouteData], clock: ManualClock) -> None:
        super().__init__(routes, self.answer, clock)
        self.stored: dict[str, list[bytes]] = defaultdict(list)
        self.offsets: dict[str, int] = defaultdict(int)
        self.acks: dict[str, list[list[int]]] = defaultdict(list)
        self.changes: dict[int, int] = {}
        self.assignments: list[MessageQueueAssignment] | None = None
        self.failures: dict[int, list[Outcome | int]] = defaultdict(list)
        self.hold: dict[str, asyncio.Event] = {}
        self.silent: set[str] = set()
        self.heard = asyncio.Event()
        self.popping = asyncio.Event()
        self.arrival: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def was_asked(self, code: RequestCode, count: int = 1) -> None:
        """Wait until so many requests of a code have come."""
        while len(self.asked_of(code)) < count:
            self.heard.clear()
            await self.heard.wait()

    def asked_of(self, code: RequestCode) -> list[str]:
        """Return the brokers that had requests of a code."""
        return [address.removesuffix(":1") for address, request in self.asked if request.code == code]

    def put(self, broker: str, body: bytes) -> None:
        self.stored[broker].append(body)
        self.arrival[broker].set()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        broker = address.removesuffix(":1")
        if command.code == RequestCode.POP_MESSAGE and broker in self.hold:
            self.popping.set()
            await self.hold[broker].wait()
        if command.code == RequestCode.POP_MESSAGE and broker in self.silent:
            await asyncio.Event().wait()
        answer = await super().invoke(address, command, timeout)
        if command.code == RequestCode.NOTIFICATION and answer.code == 0:
            while not self.stored[broker]:
                self.arrival[broker].clear()
                await self.arrival[broker].wait()
            answer.ext_fields = {"hasMsg": "true"}
        return answer

    def answer(self, address: str, request: RemotingCommand) -> Outcome:
        self.heard.set()
        broker = address.removesuffix(":1")
        fields = request.ext_fields or {}
        if self.failures[request.code]:
            failure = self.failures[request.code].pop(0)
            return RemotingCommand.response(request, failure, "refused") if isinstance(failure, int) else failure
        if request.code == RequestCode.POP_MESSAGE:
            return self.pop(broker, request, fields)
        if request.code == RequestCode.BATCH_ACK_MESSAGE:
            acks = BatchAckMessageRequestBody.decode(request.body).acks
            self.acks[broker].append(sorted(ack.start_offset + bit for ack in acks for bit in ack.bit_set))
        if request.code == RequestCode.ACK_MESSAGE:
            self.acks[broker].append([int(fields["offset"])])
        response = RemotingCommand.response(request)
        if request.code == RequestCode.QUERY_ASSIGNMENT:
            response.body = QueryAssignmentResponseBody(message_queue_assignments=self.assignments).encode()
        if request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            self.changes[int(fields["offset"])] = int(fields["invisibleTime"])
            response.ext_fields = {"popTime": "7", "invisibleTime": fields["invisibleTime"], "reviveQid": "3"}
        return response

    def pop(self, broker: str, request: RemotingCommand, fields: dict[str, str]) -> RemotingCommand:
        count = min(int(fields["maxMsgNums"]), len(self.stored[broker]))
        if not count:
            return RemotingCommand.response(request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        first = self.offsets[broker]
        self.offsets[broker] += count
        taken, self.stored[broker] = self.stored[broker][:count], self.stored[broker][count:]
        topic = fields["topic"].encode()
        response = RemotingCommand.response(
            request,
            body=b"".join(
                encode(Stored(topic=topic, body=body, queue_offset=first + i, properties=b"TAGS\x01t\x02"))
                for i, body in enumerate(taken)
            ),
        )
        response.ext_fields = {
            "popTime": "1",
            "invisibleTime": fields["invisibleTime"],
            "reviveQid": "2",
            "restNum": "0",
            "startOffsetInfo": f"0 0 {first}",
            "msgOffsetInfo": "0 0 " + ",".join(str(first + i) for i in range(count)),
        }
        return response
