"""Options that every command takes, before or after its name, and where their defaults come from.

Order: option, environment, the context named in ``config.toml`` under the user's configuration folder, default.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import expanduser  # which leaves a name as it is where Path's raises
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import click

if TYPE_CHECKING:
    from click import ParamType

    from rocketcore.transport.tls.settings import TlsOption
else:

    class ParamType(click.ParamType):
        """Before 8.4 click's own takes no brackets."""

        def __class_getitem__(cls, converted: object) -> type:
            return cls


__all__ = [
    "FORMATS",
    "Folder",
    "ParamType",
    "PipeAware",
    "PipeClosed",
    "Settings",
    "current",
    "end_signals",
    "end_signals_tell",
    "global_options",
    "log_file_option",
    "log_to_stderr",
    "named_values",
    "or_form",
]

FORMATS: Final = ("table", "wide", "json", "jsonl", "yaml", "csv", "name")
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
DEFAULT_TIMEOUT: Final = 5.0
NAMESRV_VARIABLES: Final = ("ROCKET_NAMESRV", "ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class Folder(click.Path):
    """A folder, there or not. Not an empty text, which is a variable that was not set and would be this very folder."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class _Timeout(click.FloatRange):
    """Seconds up to a year: nobody waits longer, and the system's clocks do not count on for ever."""

    def __init__(self) -> None:
        super().__init__(0, 366 * 86400, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


AnyCommand = TypeVar("AnyCommand", bound=click.Command)
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Credentials(TypedDict):
    """Who the command is to brokers with access control, as arguments of every client; empty: nobody."""

    access_key: str
    secret_key: str


@dataclass(slots=True)
class Settings:
    """What the common options of one command line say, ``arguments``; None or empty where they say nothing."""

    arguments: tuple[str, ...] = ()
    namesrv_option: str | None = None
    context_option: str | None = None
    output: str = "table"
    timeout_option: float | None = None
    tls_option: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_insecure: bool = False
    access_key: str | None = None
    quiet: bool = False
    debug: bool = False
    log_format: str = "text"
    log_file: Path | None = None
    command: str = "rocket"

    @property
    def timeout(self) -> float:
        """Seconds for all that a command asks of servers together."""
        return DEFAULT_TIMEOUT if self.timeout_option is None else self.timeout_option

    def shorter(self, seconds: float | None) -> Settings:
        """Return the same with a time-out of at most so many seconds; None: the same."""
        return self if seconds is None else replace(self, timeout_option=max(0.001, min(self.timeout, seconds)))

    @property
    def namesrv(self) -> str:
        """The name servers, joined by ``;``; commas, which other tools want, mean the same.

        raises  ConfigError for an option that is empty: a variable that was not set, hardly the server of this machine
        """
        return self._given_namesrv().replace(",", ";")

    @property
    def names_cluster(self) -> bool:
        """Whether an option, a variable or the context says which cluster is meant."""
        return self._named_namesrv() is not None

    def _given_namesrv(self) -> str:
        return self._named_namesrv() or DEFAULT_NAMESRV

    def _named_namesrv(self) -> str | None:
        if self.namesrv_option is not None:
            if not self.namesrv_option.strip():
                from rocketcore.errors import ConfigError

                raise ConfigError("--namesrv is empty")
            return self.namesrv_option
        asked = self._asked("namesrv")
        if asked:
            return asked
        for variable in NAMESRV_VARIABLES:
            if os.environ.get(variable):
                return os.environ[variable]
        return self.context[1].get("namesrv")

    @property
    def context(self) -> tuple[str | None, dict[str, str]]:
        """The name of the context in use and what it says; None and nothing without one.

        raises  ConfigError where it is not there, or the file cannot be read
        """
        from rocketcore.cli.shell.contexts import chosen_context

        return chosen_context(self.context_option)

    @property
    def _known_context(self) -> dict[str, str]:
        """What the context says of account and TLS; nothing where its file is not for this user to read."""
        from rocketcore.cli.shell.contexts import chosen_context

        return chosen_context(self.context_option, needed=False)[1]

    def _asked(self, name: str) -> str:
        """Return what the context of ``--context`` says, an option like any other; empty without one."""
        return self.context[1].get(name, "") if self.context_option else ""

    @property
    def credentials(self) -> Credentials:
        """The account. Its secret is never on the command line, which others on the machine can read.

        raises  ConfigError for an account without a secret
        """
        from rocketcore.errors import ConfigError

        context = self._known_context
        asked = self.access_key or self._asked("access_key")
        access_key = asked or os.environ.get("ROCKET_ACCESS_KEY") or context.get("access_key", "")
        if not access_key:
            return Credentials(access_key="", secret_key="")
        named = access_key == self._asked("access_key")
        secret_key = "" if named else os.environ.get("ROCKET_SECRET_KEY", "")
        secret_key = secret_key or os.environ.get(context.get("secret_key_env", ""), "")
        if not secret_key and "secret_key_file" in context:
            try:
                secret_key = Path(expanduser(context["secret_key_file"])).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                from rocketcore.printable import error_text

                raise ConfigError(f"secret_key_file of the context: {error_text(error)}") from error
        if not secret_key:
            raise ConfigError(
                f"no secret for access key {access_key!r}: set ROCKET_SECRET_KEY, or secret_key_env or "
                "secret_key_file in the context"
            )
        return Credentials(access_key=access_key, secret_key=secret_key)

    @property
    def tls(self) -> TlsOption:
        """How to connect: plainly, unless an option, an environment variable or the context speaks of TLS."""
        context = self._known_context

        def text(name: str) -> str:
            return self._asked(name) or os.environ.get(f"ROCKET_{name.upper()}") or context.get(name, "")

        def flag(name: str) -> bool:
            return text(name).lower() in ("1", "true", "yes", "on")

        def path(given: Path | None, name: str) -> Path | None:
            return given or (Path(expanduser(text(name))) if text(name) else None)

        ca, cert = path(self.tls_ca, "tls_ca"), path(self.tls_cert, "tls_cert")
        key = path(self.tls_key, "tls_key")
        insecure = self.tls_insecure or flag("tls_insecure")
        if not (self.tls_option or flag("tls") or insecure or ca or cert or key):
            return False
        from rocketcore.transport.tls.settings import TlsConfig

        return TlsConfig(ca_file=ca, cert_file=cert, key_file=key, verify=not insecure)


def end_signals() -> list[signal.Signals]:
    """Return the signals that end a command: what is in hand is finished, connections close.

    SIGHUP is the end of the terminal, which ``nohup`` has a command outlive.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def end_signals_tell(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the signals that end a command call a handler until the end of the context. For the main thread."""
    before = {number: signal.signal(number, handler) for number in end_signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def current() -> Settings:
    """Return the settings of the running command."""
    settings = click.get_current_context().find_root().obj
    if not isinstance(settings, Settings):
        raise TypeError("the command runs without settings")
    return settings


def log_to_stderr(server: str = "") -> None:
    """Write log lines to stderr: state changes, with ``--debug`` everything, with ``--quiet`` only what went wrong.

    With ``--log-file``, which servers have, they go there.

    server  its name, on every line from now on; for one of several that write to one stderr
    raises  OSError for a file that cannot be opened
    """
    import logging

    from rocketcore.printable import JsonFormatter, LineFormatter, printable

    settings = current()
    level = logging.DEBUG if settings.debug else logging.WARNING if settings.quiet else logging.INFO
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if settings.log_file is not None:
        from rocketcore.cli.shell.log_file import LogFile

        handler = LogFile(settings.log_file)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(server))
    else:
        who = printable(server).replace("%", "%%") + " " if server else ""
        handler.setFormatter(LineFormatter(f"%(asctime)s %(levelname)s {who}%(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=bool(server))


def _store(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is None or parameter.name is None:
        return
    if parameter.name == "namesrv" and not value.isprintable():
        raise click.BadParameter(f"invalid address: {value!r}", ctx, parameter)
    settings = ctx.find_root().ensure_object(Settings)
    named = parameter.name in ("namesrv", "context", "timeout", "tls")
    setattr(settings, f"{parameter.name}_option" if named else parameter.name, value)


def _options(taken: set[str]) -> list[click.Option]:
    """Make the common options, without the names that a command has taken for its own."""

    def option(*names: str, **attributes: Any) -> list[click.Option]:
        free = [name for name in names if name not in taken]
        return [click.Option(free, expose_value=False, callback=_store, default=None, **attributes)] if free else []

    return [
        *option("--namesrv", metavar="A[;B]", help="Addresses of the name servers: host:port, joined by ;"),
        *option("--context", metavar="NAME", help="Use this context: a named cluster and account, see rocket context."),
        *option("-o", "--output", type=click.Choice(FORMATS), help="Output format."),
        *option("--timeout", type=_Timeout(), metavar="SECONDS", help="How long to wait for all servers together."),
        *option("--tls", is_flag=True, help="Connect with TLS."),
        *option("--tls-ca", type=_FILE, help="PEM file of authorities to trust instead of the system's."),
        *option("--tls-cert", type=_FILE, help="PEM file of your client certificate."),
        *option(
            "--tls-key", type=_FILE, help="PEM file of its private key, if the certificate file does not contain it."
        ),
        *option("--tls-insecure", is_flag=True, help="Connect with TLS, but do not verify the server's certificate."),
        *option(
            "--access-key", metavar="NAME", help="Account name. Set its secret in ROCKET_SECRET_KEY or in the context."
        ),
        *option("-q", "--quiet", is_flag=True, help="Do not show progress on stderr."),
        *option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines on stderr."),
        *option("--debug", is_flag=True, help="Show tracebacks and debug logs."),
    ]


def global_options(group: AnyCommand) -> AnyCommand:
    """Add the common options to a command."""
    taken = {name for parameter in group.params for name in parameter.opts}
    group.params.extend(_options(taken))
    return group


def log_file_option(function: AnyFunction) -> AnyFunction:
    """Add the option of a server's log file."""
    return click.option(
        "--log-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", expose_value=False,
        callback=_store, help="Append log lines to FILE instead of stderr. SIGHUP reopens the file.",
    )(function)  # fmt: skip


def named_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE, once or more; raises BadParameter."""
    pairs = [text.partition("=") for text in texts]
    if any(not name or not separator for name, separator, _ in pairs):
        raise click.BadParameter("give it as NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in pairs}


def or_form(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the value of an ``-o`` of a command's own, the name of a form taken for what ``-o`` means everywhere else.

    A callback of click for an option that may be repeated. A file of such a name is written ``./json``.
    """
    own = [value for value in values if value not in FORMATS]
    for form in values:
        if form in FORMATS:
            ctx.find_root().ensure_object(Settings).output = form
    if len(own) > 1:
        raise click.BadParameter(f"given more than once: {', '.join(own)}", ctx, parameter)
    return own[0] if own else None


class PipeClosed(Exception):
    """The reader of stdout has gone. Not an OSError: click takes EPIPE into its own hands and exits with 1."""


class PipeAware(click.Command):
    """A command whose help may be read in part."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError as error:
            raise PipeClosed from error
