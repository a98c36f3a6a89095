"""What the asyncio and the blocking client are made with, and what both do to addresses and requests."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from rocketcore.addresses import split
from rocketcore.errors import ConfigError
from rocketcore.protocol.command import RemotingCommand, request_name
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.tls.settings import ClientTls, TlsOption

__all__ = ["BaseClient", "Signer", "split_address"]

logger = logging.getLogger(__name__)

Signer = Callable[[RemotingCommand], None]
"""Adds to a request's ext fields before it is encoded."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[ipv6]:port``; raises ConfigError for anything else."""
    try:
        host, port = split(address.strip())
    except ValueError:
        port = 0
    if not port or not host.isprintable():
        raise ConfigError(f"{address!r} is not an address of the form host:port")
    return host, port


class BaseClient(ABC):
    """Settings of a client.

    connect_timeout  seconds to connect, handshake included, within the request's own timeout
    idle_timeout     seconds without traffic after which a connection is closed
    tls              connect with TLS: True trusts the system's authorities, ``TlsConfig`` says more
    hooks            see each request and its answer; signer signs each request, after the hooks
    address_map      addresses to connect to in place of those that are asked for
    limits           of one connection; its ``idle_timeout`` wins over the one above
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 3.0,
        idle_timeout: float = 120.0,
        tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        signer: Signer | None = None,
        address_map: Mapping[str, str] | None = None,
        limits: ChannelLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "client",
    ) -> None:
        self.clock = clock
        self.limits = limits or ChannelLimits(idle_timeout=idle_timeout)
        self.name = name
        self._connect_timeout = connect_timeout
        self._tls = ClientTls.of(tls)
        self._hooks = tuple(hooks)
        self._signer = signer
        self._address_map = address_map or {}
        self._closed = False
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make what a client has beside its settings; the last step of its construction."""

    def _target(self, address: str) -> tuple[str, int]:
        """Return host and port to connect to."""
        return split_address(self._address_map.get(address, address))

    def _why_not(self, error: OSError | ValueError, address: str, timeout: float) -> str:
        """Tell in a few words why there is no connection to an address."""
        if isinstance(error, TimeoutError):
            return f"no connection within {timeout:g} s"
        if isinstance(error, OSError):
            return error.strerror or str(error)
        if isinstance(error, ConfigError):  # no address: servers pass on what was registered
            return str(error)
        # A name that no host can have; UnicodeError is among the errors.
        return f"{self._target(address)[0]!r} is no host: {error}"

    def _prepare(self, address: str, command: RemotingCommand) -> None:
        """Let the hooks see a request, then sign what they made of it."""
        for hook in self._hooks:
            hook.before_request(address, command)
        if self._signer is not None:
            self._signer(command)

    def _show(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            what = request_name(command.code)
            logger.debug(
                "answered request=%s address=%s code=%d remark=%s", what, address, response.code, response.remark
            )
        for hook in self._hooks:
            hook.after_response(address, command, response)
