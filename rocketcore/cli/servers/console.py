"""``rocket console``: the web console of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocketcore.cli.servers.notify import notify
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.options import Settings, current, end_signals_tell, log_to_stderr
from rocketcore.cli.shell.render import progress, run_without_stdout
from rocketcore.errors import ConfigError
from rocketcore.printable import error_text

if TYPE_CHECKING:
    from rocketcore.console.settings import ClusterSettings, ConsoleSettings

__all__ = ["accounts_of", "console", "console_option", "console_port_option", "running_console"]


@command(help="Serve the web console of a cluster, ours or Apache's, until Ctrl-C or SIGTERM. To let other machines "
              "reach it, add accounts (--auth) or make it read-only (--readonly).")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9880", show_default=True,
              help="Address to listen on; port 0 takes a free port.")  # fmt: skip
@click.option("--readonly", is_flag=True, help="The console cannot change anything.")
@click.option("--auth", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="File of accounts that may log in, each with its role.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME",
              help="Host name by which browsers reach the console, besides addresses and localhost. You can repeat "
                  "this option.")  # fmt: skip
@click.option("--cluster", "named", multiple=True, metavar="NAME=NAMESRV",
              help="A cluster and its name servers, with the account and TLS of this command. You can repeat this "
                   "option: the page has a switch between clusters.")  # fmt: skip
@click.option(
    "--contexts",
    is_flag=True,
    help="Serve all clusters of rocket context, each with its account. The context in use comes first.",
)
@click.option("--add", metavar="NAME", help="Ask for a password, print the line of an account for --auth, and exit.")
@click.option("--viewer", is_flag=True, help="With --add: make a read-only account.")
def console(
    listen: str,
    readonly: bool,
    auth: Path | None,
    hosts: tuple[str, ...],
    named: tuple[str, ...],
    contexts: bool,
    add: str | None,
    viewer: bool,
) -> int:
    from rocketcore.console.serve import address_of, bind, check_extra, server_of
    from rocketcore.console.settings import ConsoleSettings

    if add is not None:
        from rocketcore.console.accounts import account_line

        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(account_line(add, "viewer" if viewer else "admin", password))
        return 0
    run_without_stdout()
    accounts = accounts_of(auth)
    log_to_stderr()
    check_extra()
    mine = current()
    settings = ConsoleSettings(
        namesrv=mine.namesrv, listen=listen, timeout=mine.timeout, readonly=readonly, accounts=accounts, hosts=hosts,
        tls=mine.tls, **mine.credentials, clusters={**(_of_contexts() if contexts else {}), **_of_options(named)},
    )  # fmt: skip
    with contextlib.closing(bind(settings)) as listening:
        address = address_of(listening, settings)
        server = server_of(settings)
        click.echo(json.dumps({"event": "ready", "address": address, "url": f"http://{address}/", "pid": os.getpid()}))
        sys.stdout.flush()
        ended_by: list[int] = []

        def end(number: int, _: object) -> None:
            ended_by.append(number)
            server.should_exit = True  # it may come before the server has handlers of its own

        with end_signals_tell(end):  # the server ends at these by itself, and raises them again for this handler
            notify("READY=1")
            try:
                server.run([listening])
            finally:
                notify("STOPPING=1")
    return 130 if signal.SIGINT in ended_by else 0


def _of_options(named: tuple[str, ...]) -> dict[str, ClusterSettings]:
    """Return the clusters of ``--cluster``."""
    from rocketcore.console.settings import ClusterSettings

    mine = current()
    found = {}
    for each in named:
        name, _, namesrv = each.partition("=")
        if not name or not namesrv.strip():
            raise click.BadParameter(f"{each!r} is not NAME=NAMESRV", param_hint="--cluster")
        found[name] = ClusterSettings(namesrv=namesrv.replace(",", ";"), tls=mine.tls, **mine.credentials)
    return found


def _of_contexts() -> dict[str, ClusterSettings]:
    """Return the clusters of the contexts, first the one in use; raises ConfigError without any."""
    from rocketcore.cli.shell.contexts import ContextFile
    from rocketcore.console.settings import ClusterSettings

    file = ContextFile.opened()
    in_use = current().context[0]
    found = {}
    for name in sorted(file.names, key=lambda name: name != in_use):
        if "namesrv" not in file.context(name):
            raise ConfigError(f"{file.path}: context {name!r} has no cluster: namesrv is missing")
        its = Settings(context_option=name)
        found[name] = ClusterSettings(namesrv=its.namesrv, tls=its.tls, **its.credentials)
    if not found:
        raise ConfigError(f"{file.path} has no contexts: create one with rocket context add")
    return found


def accounts_of(path: Path | None) -> dict[str, tuple[str, str]]:
    """Return the accounts of a file; none without one."""
    if path is None:
        return {}
    from rocketcore.console.accounts import read_accounts

    return read_accounts(path)


console_option = click.option("--console/--no-console", "with_console", default=None,
                              help="Also serve the web console, to this machine only.")  # fmt: skip
console_port_option = click.option("--console-port", type=click.IntRange(0, 65535), default=9880, show_default=True,
                                   help="Port of the web console.")  # fmt: skip


@contextlib.contextmanager
def running_console(settings: ConsoleSettings, *, asked: bool) -> Iterator[str | None]:
    """Serve a console beside servers of this process; yield where, or None.

    asked  False: where it cannot be, for want of the libraries or of the port, the servers run without it
    """
    from rocketcore.console.serve import ConsoleThread

    try:
        running = ConsoleThread(settings)
    except (OSError, ConfigError) as error:
        if asked:
            raise
        progress(f"no console: {error_text(error)}")
        yield None
        return
    running.start()
    try:
        yield running.address
    finally:
        running.stop()
