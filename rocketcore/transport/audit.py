"""One log line for each request that changes a server on behalf of an administrator: who asked what, and the result.

Offsets that consumers commit (15) are no such changes; neither are registrations and heartbeats.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Iterable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError, DecodeError
from rocketcore.printable import shortened
from rocketcore.protocol import fastjson

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.routes import Route

__all__ = ["AUDITED", "audited"]

logger = logging.getLogger("rocketcore.audit")

AUDITED: Final = frozenset(
    {
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    }
)
_SUBJECTS: Final = ("topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup", "brokerName", "namespace",
                    "key", "clientId", "msgId")  # fmt: skip
"""Fields that say what a request is about; values of settings are in the server's own lines."""

_NAMES: Final = ("topic", "topicName", "groupName", "consumerGroup")
_LISTS: Final = (("topicConfigList", "topicName"), ("groupConfigList", "groupName"))
_NAMED_MOST: Final = 8
_NAME_CHARACTERS: Final = 64
"""Of a list of changes, so many are named, with so much of each name: a value in a line of the log is cut."""
_READ_BYTES: Final = 64 << 10
"""The handler reads the body again; a longer one would take the loop milliseconds for its names alone."""


def audited(rows: Iterable[Route]) -> Iterator[Route]:
    """Return the rows of a server, those of administrative changes with a line for each request."""
    for row in rows:
        yield row._replace(handler=_audited(row)) if row.code in AUDITED else row


def _audited(row: Route) -> Any:
    handler, name = row.handler, RequestCode(row.code).name

    @functools.wraps(handler)
    def serve(channel: Any, request: RemotingCommand, *header: Any) -> Any:
        try:
            answer = handler(channel, request, *header)
        except Exception as error:
            _tell(name, channel, request, error)
            raise
        if isawaitable(answer):
            return _finish(name, channel, request, answer)
        _tell(name, channel, request, answer)
        return answer

    return serve


async def _finish(name: str, channel: Any, request: RemotingCommand, answer: Awaitable[Any]) -> Any:
    try:
        done = await answer
    except Exception as error:
        _tell(name, channel, request, error)
        raise
    _tell(name, channel, request, done)
    return done


def _tell(name: str, channel: Any, request: RemotingCommand, outcome: RemotingCommand | Exception | None) -> None:
    fields = request.ext_fields or {}
    about = " ".join(f"{key}={fields[key]}" for key in _SUBJECTS if fields.get(key)) or _named(request.body)
    if isinstance(outcome, Exception) and not isinstance(outcome, BrokerError):
        result = type(outcome).__name__
    else:
        code = ResponseCode.SUCCESS if outcome is None else outcome.code
        result = "SUCCESS" if code == ResponseCode.SUCCESS else str(code)
    logger.info("request=%s by=%s account=%s about=%s result=%s", name, channel.remote_address,
                fields.get("AccessKey", "-"), about or "-", result)  # fmt: skip


def _named(body: bytes | memoryview) -> str:
    """Return what a change is about whose fields do not say it: the names in its body, or in a list of it."""
    if body[:1] != b"{":
        return ""
    if len(body) > _READ_BYTES:
        return f"{len(body)} bytes"
    try:
        value = fastjson.loads(body)
    except DecodeError:
        return ""
    for name, of in _LISTS:
        if isinstance(value.get(name), list):
            rows = value[name]
            named = [row[of] for row in rows[:_NAMED_MOST] if isinstance(row, dict) and isinstance(row.get(of), str)]
            return f"{len(rows)} changes: {of}={','.join(shortened(name, _NAME_CHARACTERS) for name in named)}"
    named = [
        f"{name}={shortened(value[name], _NAME_CHARACTERS)}" for name in _NAMES if isinstance(value.get(name), str)
    ]
    return " ".join(named)
