"""Errors as a user of the command line sees them: what, why, what to do, and the exit code."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketcore.cli.shell.options import Settings
from rocketcore.cli.shell.render import json_text, tell
from rocketcore.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    GroupNotExist,
    MessageIllegal,
    NoBrokerRegistered,
    NoPermission,
    NotWritable,
    OffsetsMoved,
    PartlyDone,
    PlanOutdated,
    QueryNotFound,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    ServiceNotAvailable,
    StoreLocked,
    TopicNotExist,
)
from rocketcore.printable import error_text, printable

__all__ = ["CommandFailed", "Failure", "failure_of", "port_hint"]

EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_NOT_ALLOWED, EXIT_UNREACHABLE, EXIT_PARTLY = 1, 2, 3, 4, 5, 6
EXIT_TIMEOUT, EXIT_INTERRUPTED = 124, 130

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write to stdout fails with; files of the store have errors of their own."""

_TLS_HINT = (
    "name its authority with --tls-ca, or skip the check with --tls-insecure; for a server without TLS, leave out --tls"
)


class CommandFailed(Exception):
    """A command found out by itself that it failed."""

    def __init__(self, code: str, what: str, hint: str = "", *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(what)
        self.code = code
        self.hint = hint
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to print: exit code, stable name, what happened, why, what to do about it.

    ``details`` are more members of the JSON object.
    """

    exit_code: int
    code: str
    what: str
    why: str
    hint: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def show(self, settings: Settings) -> None:
        """Print on stderr: lines for people, one JSON object for programs."""
        if settings.output in ("json", "jsonl"):
            message = f"{self.what}: {self.why}" if self.why else self.what
            error = {"code": self.code, "message": message, "hint": self.hint, **self.details}
            tell(json_text({"error": error}, stream=sys.stderr))
            return
        for lead, text in (("error", self.what), ("why", self.why), ("hint", self.hint)):
            if text:
                tell(f"{lead}: {printable(text)}")


# The first row whose class fits decides.
_TABLE: tuple[tuple[type[BaseException], int, str, str], ...] = (
    (ConfigError, EXIT_USAGE, "USAGE", "see --help of {command}"),
    (MessageIllegal, EXIT_USAGE, "MESSAGE_ILLEGAL", "see --help of {command}"),
    (NoBrokerRegistered, EXIT_UNREACHABLE, "NO_BROKER", "start one with: rocket broker start --namesrv …"),
    (NotWritable, EXIT_NOT_ALLOWED, "NOT_WRITABLE", "see its permission at each broker with rocket topic route"),
    (TopicNotExist, EXIT_NOT_FOUND, "TOPIC_NOT_EXIST", "see the topics with rocket topic list"),
    (RouteNotFound, EXIT_NOT_FOUND, "TOPIC_NOT_EXIST", "see the topics with rocket topic list"),
    (
        GroupNotExist,
        EXIT_NOT_FOUND,
        "GROUP_NOT_EXIST",
        "connect a consumer, or create the group with rocket group create",
    ),
    (QueryNotFound, EXIT_NOT_FOUND, "NOT_FOUND", ""),
    (NoPermission, EXIT_NOT_ALLOWED, "NO_PERMISSION", "see the topic's permission with rocket topic route"),
    (
        ConnectError,
        EXIT_UNREACHABLE,
        "UNREACHABLE",
        "see the registered brokers and their addresses with rocket broker list",
    ),
    (ConnectionLost, EXIT_UNREACHABLE, "CONNECTION_LOST", "try again; if the server requires TLS, give --tls"),
    (RequestTimeout, EXIT_TIMEOUT, "TIMEOUT", "allow more time with --timeout"),
    (TimeoutError, EXIT_TIMEOUT, "TIMEOUT", "allow more time with --timeout"),
    (
        OffsetsMoved,
        EXIT_FAILED,
        "OFFSETS_MOVED",
        "nothing was changed: run the command again, or stop the members first",
    ),
    (PlanOutdated, EXIT_FAILED, "PLAN_OUTDATED", "nothing was changed: run the command again and check the new plan"),
    (StoreLocked, EXIT_FAILED, "STORE_LOCKED", "stop the other process, or use another folder"),
)


_BY_TEXT: Final = (
    ("subscription group no permission", "let the group consume again with rocket group update GROUP --consume"),
    ("filter message by SQL92", "enable it with rocket broker config set BROKER enablePropertyFilter true"),
    ("names no registered broker", "give its topic with --topic: an id that a client made needs it"),
    (
        "timer message illegal",
        "a message cannot wait longer than the broker's timerMaxDelaySec (three days by default)",
    ),
)
"""What to do where the code of a refusal says too little: part of the text of Apache's brokers and ours."""


def failure_of(error: BaseException, settings: Settings) -> Failure:
    """Translate an exception that a command let out."""
    what = f"{settings.command} failed"
    if isinstance(error, CommandFailed):
        return Failure(error.exit_code, error.code, str(error), "", error.hint)
    if isinstance(error, PartlyDone):
        failed = {address: str(reason) for address, reason in error.failed.items()}
        return Failure(
            EXIT_PARTLY, "PARTLY_DONE", f"{settings.command} was done in part", str(error),
            "run the command again when all servers answer: finished parts stay done",
            {"done": list(error.done), "failed": failed},
        )  # fmt: skip
    why = error_text(error)
    for kind, exit_code, code, hint in _TABLE:
        if isinstance(error, kind):
            hint = _special_hint(error, settings) or hint.replace("{command}", settings.command)
            return Failure(exit_code, code, what, why, hint)
    if isinstance(error, BrokerError):
        return Failure(EXIT_FAILED, error.code_name, what, why, _special_hint(error, settings))
    if isinstance(error, RocketError):
        code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()  # as RocketMQ's codes are written
        return Failure(EXIT_FAILED, code, what, why, "")
    if isinstance(error, OSError):
        if error.filename is None and error.errno in _FULL:
            why = f"writing its output: {error.strerror}"
        return Failure(EXIT_FAILED, "OS_ERROR", what, why, port_hint(error))
    what_to_do = "report this as a bug, with the output of --debug"
    return Failure(EXIT_FAILED, "INTERNAL", what, f"{type(error).__name__}: {error}", what_to_do)


def port_hint(error: OSError) -> str:
    """Return what to do where a server could not listen; empty where something else failed."""
    return "another process listens there: stop it, or choose another port" if error.errno == errno.EADDRINUSE else ""


def _special_hint(error: BaseException, settings: Settings) -> str:
    """Return what to do in a case that the error's class alone does not tell; empty for none."""
    if _in_handshake(error):
        return _TLS_HINT
    if isinstance(error, NoPermission) and " config " in f"{settings.command} ":
        return "this setting is protected: change it in the server's file and restart the server"
    if isinstance(error, TopicNotExist | RouteNotFound) and " dlq " in f"{settings.command} ":
        return "see the groups with dead letters with rocket dlq list"
    if isinstance(error, ServiceNotAvailable):
        return "rocket doctor shows how full its disk is; rocket broker clean deletes what is old enough"
    for part, hint in _BY_TEXT:
        if part in str(error):
            return hint
    if isinstance(error, ConfigError) and (install := re.search("pip install '[^']+'", str(error))):
        return install[0]
    if isinstance(error, ConnectError):
        try:
            name_servers = settings.namesrv.split(";")
        except ConfigError:
            return ""
        if any(address.strip() in str(error) for address in name_servers):
            odd = any(address.startswith(("0.0.0.0", "http:", "https:")) for address in name_servers)
            return (
                "name servers are given as host:port, this machine's as 127.0.0.1:9876"
                if odd
                else "start one with: rocket up; or name another with --namesrv"
            )
    return ""


def _in_handshake(error: BaseException | None) -> bool:
    """Whether a connection was made and its TLS handshake failed, which is a ConnectionError without a number."""
    while isinstance(error, ConnectError):
        error = error.__cause__
    return isinstance(error, ConnectionError) and error.errno is None
