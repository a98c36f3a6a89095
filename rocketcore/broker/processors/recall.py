"""Taking back messages that wait for their time: 370 (Java: ``RecallMessageProcessor``, 5.5.0)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.hosts import born_host
from rocketcore.broker.later.timer_schedule import delete_key
from rocketcore.broker.store import PutStatus, StoredMessage
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError, DecodeError
from rocketcore.message import (
    MSG_REGION,
    REAL_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketcore.protocol.recall import RecallHandle
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_TAG = "_RECALL_TAG_"
_BODY = b"0"
_UNAVAILABLE = "recall failed, broker service not available"


def recall_handle(properties: Mapping[str, str], broker_name: str) -> str | None:
    """Return the handle of a message that was stored; None where it waits for no time, or has no id."""
    out, topic, msg_id = properties.get(TIMER_OUT_MS), properties.get(REAL_TOPIC), properties.get(UNIQ_KEY)
    if out is None or topic is None or msg_id is None:
        return None
    return RecallHandle(topic, broker_name, str(int(out) + 1), msg_id).encode()


class RecallProcessor:
    """Stores the message that takes another one back."""

    def __init__(self, context: BrokerContext, admission: Admission) -> None:
        self._context = context
        self._admission = admission

    def routes(self) -> Iterable[Route]:
        return (Route(RequestCode.RECALL_MESSAGE, self.recall, RecallMessageRequestHeader, Right.PUB),)

    async def recall(
        self, channel: Channel, request: RemotingCommand, header: RecallMessageRequestHeader
    ) -> RemotingCommand:
        try:
            handle = self._checked(header)
            await self._take_back(channel, handle)
        except BrokerError as error:
            response = RemotingCommand.response(request, error.code, error.remark)
        else:
            response = RemotingCommand.response(request, header=RecallMessageResponseHeader(msg_id=handle.msg_id))
        response.add_ext_field(MSG_REGION, self._context.config.region_id)
        return response

    def _checked(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """Return what the handle says; raises BrokerError where it takes nothing back."""
        context = self._context
        config, now = context.config, context.clock.time_millis()
        if not config.recall_message_enable:
            raise BrokerError.of(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden: recallMessageEnable is false"
            )
        writable = context.is_writable or config.allow_recall_when_broker_not_writeable
        if now < config.start_accept_send_request_time_stamp or not writable:
            raise BrokerError.of(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
        if context.topics.find(header.topic) is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except DecodeError as error:
            raise _illegal(str(error)) from None
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker != config.broker_name:
            raise _illegal(_UNAVAILABLE)
        time = handle.time
        left = int(time) - now if time.isascii() and time.isdigit() else 0
        if not 0 < left < context.store.config.timer_max_delay_sec * 1000:
            raise _illegal("recall failed, timestamp invalid")
        return handle

    async def _take_back(self, channel: Channel, handle: RecallHandle) -> None:
        """Store the message that takes another one back, and wait until it is; raises BrokerError."""
        properties = {
            TAGS: _TAG,
            TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.msg_id),
            UNIQ_KEY: handle.msg_id,
            TIMER_DELIVER_MS: handle.time,
        }
        message = StoredMessage(
            topic=handle.topic,
            queue_id=0,
            body=_BODY,
            born_timestamp=self._context.clock.time_millis(),
            born_host=born_host(channel),
        )
        result = self._admission.put(message, properties)
        status = await self._admission.stored(result) if result.status is PutStatus.PUT_OK else result.status
        if status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")


def _illegal(remark: str) -> BrokerError:
    return BrokerError.of(ResponseCode.ILLEGAL_OPERATION, remark)
