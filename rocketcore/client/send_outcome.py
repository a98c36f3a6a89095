"""What a broker's answer to a send says, and a send that is answered without a task that waits for it.

RocketMQ 5.5.0: ``MQClientAPIImpl.processSendResponse``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcore.client.api import SEND_STATUSES
from rocketcore.client.attempts import Attempts
from rocketcore.codes import ResponseCode
from rocketcore.errors import DecodeError, RocketError
from rocketcore.message import MessageQueue, SendResult, SendStatus

if TYPE_CHECKING:
    import asyncio

    from rocketcore.client.publisher import Publishers
    from rocketcore.client.send_command import SendTarget
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["BegunBatch", "send_result"]


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


class BegunBatch:
    """A batch body that is on its way: one attempt, without a task that waits for its end.

    answer  of the broker; fails with a TransportError
    began   monotonic seconds
    """

    __slots__ = ("_publishers", "_target", "_timeout", "answer", "began")

    def __init__(
        self,
        publishers: Publishers,
        target: SendTarget,
        answer: asyncio.Future[RemotingCommand],
        began: float,
        timeout: float,
    ) -> None:
        self._publishers = publishers
        self._target = target
        self.began = began
        self._timeout = timeout
        self.answer = answer

    def result(self) -> SendResult | None:
        """Return the outcome once there is an answer; raises as ``send_encoded_batch`` without retries.

        None: the broker did not look at the body, since it ends; another connection has to be made
        """
        publishers, target = self._publishers, self._target
        try:
            response = self.answer.result()
            if response.code == ResponseCode.GO_AWAY:
                return None
            result = send_result(response, target, "")
        except RocketError as error:
            publishers.failed(target, error)
            attempts = Attempts(target.queue.topic, 0)
            attempts.failed(target, error)
            raise attempts.error(self._timeout) from error.__cause__
        publishers.answered(target, publishers.clock.monotonic() - self.began)
        return result
