"""What a program may do around each request: read it, add to it, refuse it. RocketMQ: ``RPCHook``."""

from __future__ import annotations

from typing import Protocol

from rocketcore.protocol.command import RemotingCommand

__all__ = ["RpcHook"]


class RpcHook(Protocol):
    """Called around requests, by clients for those that they send, by servers for those that they serve.

    address   whom a client asks, or who asks a server, ``ip:port``

    A client calls ``before_request`` before the signature is computed, so that what a hook adds is signed. An exception
    ends the request: in a client it is the caller's; in a server it becomes the answer, a ``BrokerError`` that of its
    code (``NoPermission``: 16), and the handler never sees the request. Hooks run where the request does, on the loop
    or in the calling thread: they may not wait.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """See a request before it is sent or served."""

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        """See the answer after it came, or before it is sent; not called for one that was held back or never came."""
