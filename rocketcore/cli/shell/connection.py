"""The connection of a command to its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from rocketcore.cli.shell.options import Settings, current
from rocketcore.errors import RocketError

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.cli.shell.budget import CommandAdmin

__all__ = ["answered", "open_admin", "open_lists"]

T = TypeVar("T")


def open_admin(calls: int = 1, settings: Settings | None = None) -> Admin:
    """Return an admin client with the settings of the running command, whose ``calls`` share its time-out.

    settings  those of the command, for a thread beside it, which has no context of click's
    """
    return _open(calls, settings or current(), partial=False)


def open_lists(calls: int = 1) -> CommandAdmin:
    """The same for what only shows: lists lack what a broker knows that does not answer, see ``check_whole``."""
    return _open(calls, current(), partial=True)


def _open(calls: int, settings: Settings, *, partial: bool) -> CommandAdmin:
    from rocketcore.cli.shell.budget import CommandAdmin

    return CommandAdmin(
        settings.namesrv, timeout=settings.timeout, tls=settings.tls, calls=calls, credentials=settings.credentials,
        partial=partial,
    )  # fmt: skip


def answered(
    answers: Mapping[str, T | RocketError], telling: type[RocketError] = RocketError
) -> tuple[dict[str, T], dict[str, RocketError]]:
    """Return what servers that were asked side by side said, and the errors of the others.

    raises  the first error, one of the ``telling`` kind if there is, where none answered
    """
    said: dict[str, T] = {}
    failed: dict[str, RocketError] = {}
    for address, answer in answers.items():
        if isinstance(answer, RocketError):
            failed[address] = answer
        else:
            said[address] = answer
    if not said:
        errors = list(failed.values())
        raise next((error for error in errors if isinstance(error, telling)), errors[0])
    return said, failed
