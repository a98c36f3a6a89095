"""The cluster that the settings name, for commands that move many messages."""

from __future__ import annotations

from typing import Final

from rocketcore.cli.shell.options import Settings, current
from rocketcore.client.config import ClientConfig, name_server_list
from rocketcore.client.loop_client import LoopClient

__all__ = ["PATIENCE", "connect", "patience"]

PATIENCE: Final = 120.0
"""Seconds for which such a command waits for a broker that is away, where ``--timeout`` does not say for how long."""


def patience() -> float:
    """Return for how many seconds the running command waits while nothing gets on."""
    given = current().timeout_option
    return PATIENCE if given is None else given


def connect(settings: Settings) -> LoopClient:
    """Return a client, to be closed."""
    config = ClientConfig(
        namesrv=name_server_list(settings.namesrv),
        timeout=settings.timeout,
        tls=settings.tls,
        **settings.credentials,
    )
    return LoopClient(config)
