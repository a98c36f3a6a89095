"""``rocket namesrv start`` and ``rocket broker start``: one server in the foreground until a signal."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click

from rocketcore import addresses
from rocketcore.apache_settings import check_settings, protective_variables
from rocketcore.cli.servers.notify import notify
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.failures import EXIT_USAGE, CommandFailed, port_hint
from rocketcore.cli.shell.options import Folder, current, log_file_option, log_to_stderr
from rocketcore.cli.shell.render import run_without_stdout
from rocketcore.config_file import (
    BadSetting,
    PortNotOpened,
    check_properties,
    environment_properties,
    load_config,
    other_variables,
    print_config,
    property_lines,
    read_properties,
    setting_variables,
)
from rocketcore.errors import ConfigError

if TYPE_CHECKING:
    from rocketcore.transport.tls.server_settings import ServerTls
    from rocketcore.transport.tls.settings import TlsOption

__all__ = [
    "Sources",
    "check_bind",
    "config_file_option",
    "insecure_option",
    "metrics_port_option",
    "refuse_tls",
    "serve",
    "start_broker",
    "start_namesrv",
]

logger = logging.getLogger(__name__)


class Server(Protocol):
    """What can be run in the foreground."""

    def ready(self) -> dict[str, object]:
        """What to say when it answers; ``address`` is where."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


config_file_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Read settings from this .properties or TOML file.",
)
_print_config = click.option("-p", "--print", "only_print", is_flag=True, help="Print the effective settings and exit.")
_listen = click.option("--listen", metavar="HOST:PORT", help="Address to listen on; port 0 takes a free port.")
metrics_port_option = click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="HTTP port of /metrics, /livez and /readyz, on metricsAddress; 0 takes a free port. Default: no HTTP port.",
)
insecure_option = click.option("--insecure", is_flag=True, help="Allow an address that other machines can reach.")


@command(
    help="Run a name server in the foreground. It prints a JSON line on stdout when it is ready. SIGTERM stops it."
)
@config_file_option
@_print_config
@_listen
@click.option("--home", type=Folder(), help="Folder for its files.")
@metrics_port_option
@log_file_option
@insecure_option
def start_namesrv(
    config_file: Path | None,
    only_print: bool,
    listen: str | None,
    home: Path | None,
    metrics_port: int | None,
    insecure: bool,
) -> int:
    from rocketcore.nameserver.config import NameServerConfig

    options = _listen_properties(listen)
    if home is not None:
        options["rocketmqHome"] = str(home)
    if metrics_port is not None:
        options["metricsPort"] = str(metrics_port)
    if config_file is not None:
        options["configStorePath"] = str(config_file.absolute())
    sources, (config,), tls, to_others = _load("name server", config_file, options, [NameServerConfig])
    if only_print:
        click.echo(print_config(config, tls), nl=False)
        return 0
    check_bind(config.bind_address, insecure)
    if config.metrics_port >= 0:
        check_bind(config.metrics_address, insecure)

    def make() -> Server:
        from rocketcore.nameserver.server import NameServer

        return NameServer(config, properties=sources.file, tls=tls, client_tls=to_others)

    with sources.named():
        return serve(make)


@command(
    help="Run a broker in the foreground. It prints a JSON line on stdout when it is ready. SIGTERM drains and "
    "stops it."
)
@config_file_option
@_print_config
@_listen
@click.option("--store", type=Folder(), help="Folder for the messages.")
@click.option("--name", help="Name of the broker.")
@click.option("--cluster", help="Cluster it belongs to.")
@click.option("--id", "broker_id", type=click.IntRange(0), help="Broker id; 0 is a master.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="When the broker counts a message as stored.")
@click.option(
    "--shards",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="Run N brokers, each in a process. All use the same settings, but brokers are named NAME-0, NAME-1, …, use "
    "the folders STORE/NAME-0, …, and each port is ten higher than the last, metrics too.",
)
@click.option("--shard", metavar="NUMBER", type=click.IntRange(0), help="Run only shard I of --shards, counted from 0.")
@click.option("--supervised", is_flag=True, hidden=True, help="Its parent has warned of the settings.")
@metrics_port_option
@click.option(
    "--console",
    "console_at",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value="127.0.0.1:9880",
    help="Also serve the web console of the cluster. Default address: 127.0.0.1:9880. To let other machines reach "
    "it, add --console-auth or --console-readonly.",
)
@click.option("--console-readonly", is_flag=True, help="The console cannot change anything.")
@click.option("--console-auth", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="File of console accounts, see rocket console --add.")  # fmt: skip
@log_file_option
@click.option("--leave-messages", is_flag=True, help="Start even if messages of other shards are then out of reach.")
@insecure_option
def start_broker(
    config_file: Path | None,
    only_print: bool,
    listen: str | None,
    store: Path | None,
    name: str | None,
    cluster: str | None,
    broker_id: int | None,
    flush: str | None,
    shards: int,
    shard: int | None,
    supervised: bool,
    metrics_port: int | None,
    console_at: str | None,
    console_readonly: bool,
    console_auth: Path | None,
    leave_messages: bool,
    insecure: bool,
) -> int:
    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.cli.servers.shards import Shard, check_reach, shards_of

    if shard is not None and shard >= shards:
        raise click.BadParameter(f"{shard} is none of 0 to {shards - 1}", param_hint="--shard")

    options = _listen_properties(listen)
    given = {
        "storePathRootDir": None if store is None else str(store),
        "brokerName": name,
        "brokerClusterName": cluster,
        "brokerId": None if broker_id is None else str(broker_id),
        "flushDiskType": None if flush is None else f"{flush.upper()}_FLUSH",
        "namesrvAddr": current().namesrv_option,
        "metricsPort": None if metrics_port is None else str(metrics_port),
    }
    options.update({key: value for key, value in given.items() if value is not None})
    with _unsaid() if supervised else contextlib.nullcontext():
        loaded = _load("broker", config_file, options, [BrokerConfig, StoreConfig])
    sources, (config, store_config), tls, to_others = loaded
    brokers = [Shard(config, store_config)] if shards == 1 else shards_of(config, store_config, shards)
    if shard is not None:
        brokers = [brokers[shard]]
    if only_print:
        for each in brokers:
            heading = f"## {each.name}\n" if len(brokers) > 1 else ""
            click.echo(heading + print_config(*each, tls), nl=False)
        return 0
    check_bind(config.bind_address, insecure)
    if config.metrics_port >= 0:
        check_bind(config.metrics_address, insecure)
    if not leave_messages:
        check_reach(config, store_config, shards)
    if shard is not None:
        log_to_stderr(brokers[0].name)

    def make() -> Server:
        from rocketcore.broker.broker import Broker

        return Broker(*brokers[0], tls=tls, client_tls=to_others)

    with _console(console_at, console_readonly, console_auth, config.namesrv_addr, to_others) as also:
        if len(brokers) > 1:
            from rocketcore.cli.servers.supervisor import Supervisor

            return Supervisor([each.name for each in brokers], current().arguments, also).run()
        with sources.named():
            return serve(make, also)


@contextlib.contextmanager
def _console(
    at: str | None, readonly: bool, auth: Path | None, namesrv: str, tls: TlsOption
) -> Iterator[dict[str, object]]:
    """Serve the console of a broker's cluster where one is asked for; yield what is said of it."""
    if not at:
        if readonly or auth is not None:
            raise click.UsageError("--console-readonly and --console-auth need --console")
        yield {}
        return
    from rocketcore.cli.servers.console import accounts_of, running_console
    from rocketcore.console.settings import ConsoleSettings

    mine = current()
    settings = ConsoleSettings(
        namesrv=namesrv, listen=at, timeout=mine.timeout, readonly=readonly, accounts=accounts_of(auth), tls=tls,
        **mine.credentials,
    )  # fmt: skip
    with running_console(settings, asked=True) as address:
        yield {"console": f"http://{address}/"}


def _load(
    server: Literal["broker", "name server"], path: Path | None, options: dict[str, str], classes: Sequence[type[Any]]
) -> tuple[Sources, list[Any], ServerTls, TlsOption]:
    """Return where the settings of a server come from, its configurations, its TLS, and that of its connections."""
    from rocketcore.transport.tls.server_settings import TLS_SETTINGS, ServerTls, client_tls, tls_properties

    log_to_stderr()
    refuse_tls()
    declared = [*classes, *TLS_SETTINGS]
    sources = Sources(path, declared, options)
    if server == "broker" and "namesrvAddr" not in sources.properties:
        options["namesrvAddr"] = current().namesrv
    with sources.named():
        check_settings(server, sources.properties, declared, sources.where)
        properties = tls_properties(sources.properties)
        return (
            sources,
            [load_config(cls, sources.properties) for cls in classes],
            load_config(ServerTls, properties),
            client_tls(properties) or False,
        )


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """Log no warning: the parent of this process has read the same settings and said what is wrong with them."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def serve(make: Callable[[], Server], also: Mapping[str, object] | None = None) -> int:
    """Run a server until SIGTERM (0) or SIGINT (130); say on stdout when it answers requests.

    also  what else is said then
    """
    # What a start allocates stays for good: to look through it for garbage takes a fifth of the time until ready, and
    # again with every full collection later.
    gc.disable()
    import asyncio

    import uvloop

    from rocketcore._fast.heap import keep_heap
    from rocketcore.cli.servers.heap import watched_heap
    from rocketcore.cli.shell.log_file import reopen_logs
    from rocketcore.transport.server.listener import raise_descriptor_limit

    run_without_stdout()
    keep_heap()
    raise_descriptor_limit()
    ended_by: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def end(number: int) -> None:
            ended_by.append(number)
            ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        # An operator means to have something read again: certificates are, by themselves.
        loop.add_signal_handler(signal.SIGHUP, reopen_logs)
        try:
            server = make()
            await server.start()
        finally:
            gc.freeze()
            gc.enable()
        try:
            click.echo(json.dumps({"event": "ready", **server.ready(), **(also or {}), "pid": os.getpid()}))
            sys.stdout.flush()
            notify("READY=1")
            async with watched_heap():
                await ended.wait()
        finally:
            notify("STOPPING=1")
            await server.stop()

    uvloop.run(run())
    return 130 if ended_by[0] == signal.SIGINT else 0


def refuse_tls() -> None:
    """Refuse the options of clients' TLS: a server that takes them and serves plainly would keep nothing secret."""
    settings = current()
    if settings.tls_option or settings.tls_insecure or settings.tls_ca or settings.tls_cert or settings.tls_key:
        raise click.UsageError(
            "--tls… options are for clients. For a server, set tls.server.mode, tls.server.certPath and "
            "tls.server.keyPath in the file of -c or in ROCKETCORE_TLS_… variables, see docs/tls.md"
        )


class Sources:
    """Where the settings of a server come from: the file of ``-c``, then the environment, then options.

    classes  declare the settings
    raises   CommandFailed for a file that cannot be read, and for a value that cannot, also where another one wins
    """

    def __init__(self, path: Path | None, classes: Sequence[type[Any]], options: dict[str, str]) -> None:
        self._path = path
        protective = protective_variables()
        of_settings = setting_variables(classes)
        variables = {**protective, **of_settings}
        self._variables = {name: variable for variable, name in variables.items() if variable in os.environ}
        of_protection = {name: os.environ[variable] for variable, name in protective.items()}
        self.environment = {**of_protection, **environment_properties(of_settings)}
        _warn_of_variables(variables)
        self._options = options
        try:
            self.file = {} if path is None else read_properties(path)
        except ConfigError as error:
            raise CommandFailed("BAD_FILE", str(error), exit_code=EXIT_USAGE) from error
        for properties, where in ((self.file, self._line_of), (self.environment, self._variables.__getitem__)):
            with _naming(where):
                for cls in classes:
                    check_properties(cls, properties)

    @property
    def properties(self) -> dict[str, str]:
        return {**self.file, **self.environment, **self._options}

    def where(self, name: str) -> str:
        """Say where the value of a setting stands."""
        if name in self._options:
            return "the command line"
        if name in self.environment:
            return self._variables[name]
        return self._line_of(name)

    def _line_of(self, name: str) -> str:
        if self._path is None or name not in self.file:
            return "another file"
        line = property_lines(self._path).get(name)
        return str(self._path) if line is None else f"{self._path}, line {line}"

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Add the place to the error of a setting."""
        return _naming(self.where)


def _warn_of_variables(known: Mapping[str, str]) -> None:
    """Log the variables that are no setting of any server; one environment may serve several."""
    if not (odd := other_variables(known)):
        return
    from difflib import get_close_matches

    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.nameserver.config import NameServerConfig
    from rocketcore.transport.tls.server_settings import TLS_SETTINGS

    every = setting_variables([BrokerConfig, StoreConfig, NameServerConfig, *TLS_SETTINGS])
    for variable in odd:
        if variable not in every:
            close = get_close_matches(variable.upper(), sorted(every), 1, 0.75)
            nearest = f" nearest={close[0]}" if close else ""
            logger.warning("no setting has such a variable, ignored name=%s%s", variable, nearest)


@contextlib.contextmanager
def _naming(where: Callable[[str], str]) -> Iterator[None]:
    try:
        yield
    except BadSetting as error:
        raise CommandFailed(
            "BAD_SETTING", f"{where(error.name)}: {error}", "correct it or remove it", exit_code=EXIT_USAGE
        ) from error
    except PortNotOpened as error:
        raise CommandFailed("OS_ERROR", f"{where(error.name)}: {error.strerror}", port_hint(error)) from error


def _listen_properties(listen: str | None) -> dict[str, str]:
    if listen is None:
        return {}
    try:
        host, port = addresses.split(listen)
    except ValueError:
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen") from None
    return {"bindAddress": host, "listenPort": str(port)}


def check_bind(address: str, insecure: bool) -> None:
    """Raise ConfigError for an address that other machines reach, unless that is allowed."""
    from rocketcore.transport.networks import is_loopback

    if not insecure and not is_loopback(address):
        raise ConfigError(
            f"{address} can be reached from other machines without authentication: allow it with --insecure"
        )
