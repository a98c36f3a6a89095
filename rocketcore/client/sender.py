"""Sender: what every kind of send is made of, whether one waits for its answer or an accumulator sends it.

RocketMQ 5.5.0: ``DefaultMQProducerImpl.sendKernelImpl``, ``MQClientAPIImpl.processSendResponse``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rocketcore.client.api import SEND_STATUSES
from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.publisher import Publishers, TopicPublisher
from rocketcore.client.send_command import SendTarget
from rocketcore.codes import ResponseCode
from rocketcore.errors import DecodeError, RocketError
from rocketcore.message import INT32_MAX, INT32_MIN, Message, MessageQueue, SendResult, SendStatus
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.compression import CompressionType, compress
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["Sender"]

_OFFLOAD_BYTES: Final = 64 * 1024


class Sender:
    """Checks a message, finds where it goes, and makes one attempt, in whichever world ``instance`` lives.

    ``check``, ``find_publisher`` and ``target`` are for any thread.
    """

    def __init__(self, config: ProducerConfig, instance: ClientInstance, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.instance = instance
        self._clock = clock
        self._publishers = Publishers(config, instance, clock)
        self._remoting = instance.remoting
        self._runtime = instance.runtime
        self._compression = CompressionType[config.compression.upper()]
        self._checked_topics: set[str] = set()

    async def publisher(self, topic: str, timeout: float | None = None) -> TopicPublisher:
        """Return the publisher of a topic's newest route; raises RouteNotFound without a writable queue."""
        publisher = self._publishers.find(topic)
        if publisher is not None:
            return publisher
        timeout = self.config.timeout if timeout is None else timeout
        return await self._runtime.ask_instance(self._publishers.get(topic, timeout))

    def find_publisher(self, topic: str) -> TopicPublisher | None:
        """Return the publisher of a topic whose route is known; any thread."""
        return self._publishers.find(topic)

    async def refresh_route(self, topic: str, timeout: float) -> None:
        """Ask for a topic's route again; where no one answers, the known one stays."""
        await self._runtime.ask_instance(self._publishers.refresh(topic, timeout))

    def check(self, message: Message) -> None:
        """Refuse what no broker takes."""
        topic, body, flag = message.topic, message.body, message.flag
        # A message can be changed after it was made: what is sent is checked, by the rules in Message.check.
        if (
            topic not in self._checked_topics
            or type(body) is not bytes
            or not 0 < len(body) <= self.config.max_message_bytes
            or type(flag) is not int
            or not INT32_MIN <= flag <= INT32_MAX
        ):
            message.check(self.config.max_message_bytes)
            self._checked_topics.add(topic)

    async def packed(self, body: bytes) -> tuple[bytes, int]:
        """Return the body to send and its system flag: compressed, if that makes it shorter."""
        kind, level = self._compression, self.config.compression_level
        if len(body) < _OFFLOAD_BYTES:
            short = compress(body, kind, level)
        else:
            short = await self._runtime.offload(compress, body, kind, level)
        return (short, kind.sys_flag) if len(short) < len(body) else (body, 0)

    def target(
        self,
        publisher: TopicPublisher,
        message_group: str | None,
        queue: MessageQueue | None,
        avoid: Collection[int] = (),
        full: Collection[str] = (),
    ) -> SendTarget | None:
        """Return where a message goes: the given queue, its group's, or the next one; None where it has to wait.

        avoid  numbers of brokers that failed; full  addresses of brokers that have enough to do
        """
        if queue is None and message_group is None:
            return self._publishers.next_target(publisher, avoid, full)
        target = self._publishers.fixed_target(publisher, message_group, queue)
        return None if target.broker_number in avoid or target.address in full else target

    async def attempt(
        self,
        target: SendTarget,
        body: bytes,
        properties: str,
        msg_id: str,
        timeout: float,
        *,
        sys_flag: int = 0,
        flag: int = 0,
        batch: bool = False,
    ) -> SendResult:
        """Send once; raises what the transport or the broker says against it."""
        clock, publishers = self._clock, self._publishers
        request = target.request(body, properties, clock.time_millis(), sys_flag=sys_flag, flag=flag, batch=batch)
        started = clock.monotonic() if publishers.timing else 0.0
        try:
            response = await self._remoting.invoke(target.address, request, timeout)
            result = send_result(response, target, msg_id)
        except RocketError as error:
            publishers.failed(target, error)
            raise
        if publishers.timing:
            publishers.answered(target, clock.monotonic() - started)
        return result


def send_result(response: RemotingCommand, target: SendTarget, msg_id: str) -> SendResult:
    """Return the outcome of a send; raises the broker's refusal."""
    code = response.code
    if code == 0:
        status = SendStatus.SEND_OK
    else:
        response.raise_for_code(target.address, f"send to topic {target.queue.topic!r}", SEND_STATUSES)
        status = SEND_STATUSES[ResponseCode(code)]
    fields = response.ext_fields or {}
    try:
        queue_id = int(fields["queueId"])
        offset = int(fields["queueOffset"])
        offset_msg_id = fields["msgId"]
    except (KeyError, ValueError) as error:
        raise DecodeError(f"answer to a send from {target.address}: {error!r} in {fields}") from error
    queue = target.queue
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker, queue_id)
    return SendResult(
        status, msg_id, offset_msg_id, queue, offset, fields.get("transactionId"), fields.get("recallHandle")
    )
