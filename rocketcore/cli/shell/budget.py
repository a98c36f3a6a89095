"""The admin client of one command, whose calls share ``--timeout``."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from rocketcore.admin.client import Admin
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import Credentials
from rocketcore.client.addresses import NameServers
from rocketcore.transport.tls.settings import TlsOption

__all__ = ["CommandAdmin"]

T = TypeVar("T")

_LEAST: Final = 0.001
"""Seconds for a call where none are left: it fails as late, and says what was asked."""


class CommandAdmin(Admin):
    """An ``Admin`` whose calls have one time-out together.

    Each gets an equal part of what those before it left, so that a server that is silent in one call takes no time from
    the next. Only calls use time up: a person who is asked between two of them may take theirs.

    calls    how many there will be; those beyond get all that is left
    partial  answers may lack what brokers know that do not answer; ``check_whole`` says so
    """

    def __init__(
        self,
        namesrv: NameServers,
        *,
        timeout: float,
        tls: TlsOption,
        calls: int,
        credentials: Credentials,
        partial: bool = False,
    ) -> None:
        super().__init__(namesrv, timeout=timeout, tls=tls, **credentials)
        if partial:
            self._admin.servers.left_out = {}
        self._left = timeout
        self._calls = calls

    def check_whole(self) -> None:
        """Say, behind a list, whose rows it lacks, by the exit code too."""
        if lacking := self.lacking():
            hint = "rocket cluster describe shows who answers"
            raise CommandFailed("PARTLY_DONE", lacking, hint, exit_code=EXIT_PARTLY)

    def lacking(self) -> str | None:
        """Return whose rows a list lacks, as one sentence; None where it is whole."""
        left_out = self._admin.servers.left_out
        return f"the list lacks what others know: {'; '.join(map(str, left_out.values()))}" if left_out else None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.timeout = max(_LEAST, self._left / max(1, self._calls))
        self._calls -= 1
        began = time.monotonic()
        try:
            return super()._run(coroutine)
        finally:
            self._left -= time.monotonic() - began
