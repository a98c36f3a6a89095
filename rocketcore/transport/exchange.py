"""What connections of both worlds, asyncio's and blocking callers', say the same way about requests and answers."""

from __future__ import annotations

import logging
from typing import Any, Final

from rocketcore.addresses import join
from rocketcore.codes import RemotingFlag, ResponseCode
from rocketcore.errors import BrokerError, ConnectionLost, Overloaded, RequestTimeout, RocketError
from rocketcore.protocol.command import RemotingCommand, request_name

__all__ = [
    "answer_frame",
    "failure",
    "failure_text",
    "lost",
    "no_answer",
    "no_time_left",
    "not_sent",
    "not_supported",
    "silent_for",
    "socket_address",
    "too_many",
]

logger = logging.getLogger(__name__)

_RESPONSE: Final = int(RemotingFlag.RESPONSE)


def socket_address(name: Any) -> str:
    """Return ``ip:port`` of a socket's name, empty where it has none of that kind."""
    return join(name[0], name[1]) if isinstance(name, tuple) and len(name) >= 2 else ""


def no_answer(code: int, address: str, timeout: float) -> RequestTimeout:
    """Return the error of a request whose deadline has come."""
    return RequestTimeout(f"{request_name(code)} at {address}: no answer within {round(timeout, 3):g} s")


def not_sent(code: int, address: str, timeout: float, why: str) -> RequestTimeout:
    """Return the error of a request whose deadline came before it could be written."""
    return RequestTimeout(f"{request_name(code)} at {address}: not sent within {timeout:g} s, {why}")


def no_time_left(code: int, address: str) -> RequestTimeout:
    """Return the error of a request that a stopping server sent away too late to ask elsewhere."""
    return RequestTimeout(f"{request_name(code)} at {address}: the server goes away, no time is left")


def lost(code: int, address: str, cause: object) -> ConnectionLost:
    """Return the error of a request whose connection has ended."""
    return ConnectionLost(f"{request_name(code)} at {address}: {cause}")


def too_many(address: str, outstanding: int) -> Overloaded:
    """Return the error of a request that is one more than may be outstanding."""
    return Overloaded(f"{address}: {outstanding} requests are outstanding")


def silent_for(began: float, last_read: float, now: float) -> float:
    """Return how long a peer has been silent that owes an answer since ``began``; 0 where something came meanwhile."""
    return now - began if last_read < began else 0.0


def not_supported(code: int) -> tuple[int, str]:
    """Return code and remark of the answer to a request that nobody serves."""
    return ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"


def failure_text(error: Exception) -> str:
    """Return the remark of the answer to a request whose handler raised."""
    return f"{type(error).__name__}: {error}"


def failure(request: RemotingCommand, error: Exception, endpoint: str, remote: str) -> RemotingCommand:
    """Answer a request whose handler raised; what is no error of ours goes to the log."""
    if isinstance(error, BrokerError):
        return RemotingCommand.response(request, error.code, error.remark)
    if not isinstance(error, RocketError):
        logger.error(
            "request failed endpoint=%s remote=%s request=%s",
            endpoint,
            remote,
            request_name(request.code),
            exc_info=error,
        )
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, failure_text(error))


def answer_frame(request: RemotingCommand, response: RemotingCommand, endpoint: str, remote: str) -> bytes:
    """Return the frame of an answer; where it cannot be encoded, too long or with a field that is no text, of that."""
    response.opaque = request.opaque
    response.flag |= _RESPONSE
    try:
        return response.encode()
    except Exception as error:
        return failure(request, error, endpoint, remote).encode()
