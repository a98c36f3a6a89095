"""``rocket up``: a cluster in the foreground. ``rocket demo``: the main job on real data."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocketcore.cli.servers.console import console_option, console_port_option, running_console
from rocketcore.cli.servers.notify import notify
from rocketcore.cli.servers.start import (
    Sources,
    check_bind,
    config_file_option,
    insecure_option,
    metrics_port_option,
    refuse_tls,
)
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.options import Folder, end_signals_tell, log_to_stderr
from rocketcore.cli.shell.render import check_stream_form, progress, run_without_stdout, show_line
from rocketcore.config_file import PortNotOpened, property_names
from rocketcore.service import wait_or_signal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["demo", "up"]


_OWN = {
    "namesrvAddr": "its own name server is meant",
    "bindAddress": "--listen sets it",
    "listenPort": "--broker-port sets it",
    "brokerName": "its brokers are broker-a, broker-b, …",
    "brokerId": "its brokers are masters",
    "storePathRootDir": "--store sets it",
    "storePathCommitLog": "--store sets it",
    "rocketmqHome": "--store sets it",
    "kvConfigPath": "--store sets it",
    "configStorePath": "--store sets it",
}
"""Settings that ``up`` takes neither from a file nor from a variable, and why."""


@command(help="Run a name server and brokers on this machine, in the foreground, until Ctrl-C, SIGTERM or the "
              "terminal closes. With several brokers, each is a process; if one dies, all stop.")  # fmt: skip
@click.option("--store", type=Folder(),
              help="Folder for the messages; each broker has a subfolder, such as broker-a. Without it, the messages "
                   "are deleted when the servers stop.")  # fmt: skip
@click.option("--brokers", type=click.IntRange(1, 26), default=1, show_default=True, help="Number of brokers.")
@click.option("--port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="Port of the name server.")
@click.option("--broker-port", type=click.IntRange(0, 65535), default=0,
              help="Port of the first broker; each further port is ten higher. Default: free ports.")  # fmt: skip
@click.option(
    "--listen", metavar="HOST", default="127.0.0.1", show_default=True, help="Address that all servers listen on."
)
@click.option("--cluster", help="Name of the cluster. Default: DefaultCluster.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="When the broker counts a message as stored.")
@console_option
@console_port_option
@metrics_port_option
@config_file_option
@insecure_option
def up(
    store: Path | None,
    brokers: int,
    port: int,
    broker_port: int,
    listen: str,
    cluster: str | None,
    flush: str | None,
    with_console: bool | None,
    console_port: int,
    metrics_port: int | None,
    config_file: Path | None,
    insecure: bool,
) -> int:
    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.local import LocalCluster
    from rocketcore.nameserver.config import NameServerConfig
    from rocketcore.transport.tls.server_settings import TLS_SETTINGS

    run_without_stdout()
    log_to_stderr()
    refuse_tls()
    check_stream_form()
    listen = listen.strip("[]")
    check_bind(listen, insecure)
    given = {
        "bindAddress": listen,
        "brokerClusterName": cluster,
        "flushDiskType": None if flush is None else f"{flush.upper()}_FLUSH",
        "metricsPort": None if metrics_port is None else str(metrics_port),
    }
    sources = Sources(
        config_file,
        [BrokerConfig, StoreConfig, NameServerConfig, *TLS_SETTINGS],
        {name: value for name, value in given.items() if value is not None},
    )
    for name in {**sources.file, **sources.environment}:
        why = "start servers with TLS one by one" if name.startswith("tls.") else _OWN.get(name)
        if why is not None:
            raise click.UsageError(f"{sources.where(name)}: {name} is not for rocket up: {why}")
    of_namesrv, of_brokers = _of_each(sources.properties, NameServerConfig, [BrokerConfig, StoreConfig])
    if int(sources.properties.get("metricsPort", "-1")) >= 0:
        check_bind(sources.properties.get("metricsAddress", "127.0.0.1"), insecure)
    if with_console:
        from rocketcore.console.serve import check_extra

        check_extra()
    ended = threading.Event()
    ended_by: list[int] = []

    def end(number: int, _: object) -> None:
        ended_by.append(number)
        ended.set()

    servers = LocalCluster(
        store,
        brokers=brokers,
        namesrv_port=port,
        broker_port=broker_port,
        listen=listen,
        in_process=brokers == 1,
        properties=of_brokers,
        namesrv_properties=of_namesrv,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(end_signals_tell(end))
        with sources.named(), _metrics_of_namesrv(sources.properties.get("metricsPort")):
            stack.enter_context(servers)
        at = None
        if with_console is not False:
            from rocketcore.console.settings import ConsoleSettings

            settings = ConsoleSettings(namesrv=servers.namesrv, listen=f"127.0.0.1:{console_port}")
            at = stack.enter_context(running_console(settings, asked=with_console is True))
        show_line(
            {
                "event": "ready",
                "address": servers.namesrv,
                "console": None if at is None else f"http://{at}/",
                "brokers": list(servers.broker_addresses),
                "store": str(servers.store),
                "broker_stores": list(map(str, servers.broker_stores)),
                "pid": os.getpid(),
            },
            f"name server {servers.namesrv}, brokers {', '.join(servers.broker_addresses)}"
            + ("" if at is None else f", console http://{at}/"),
        )
        where = ", ".join(map(str, servers.broker_stores))
        progress(f"messages are in {where}" + ("" if store else ", deleted at the end"))
        notify("READY=1")
        try:
            wait_or_signal(ended, servers.check)
        finally:
            notify("STOPPING=1")
    return 130 if ended_by[0] == signal.SIGINT else 0


def _of_each(
    properties: Mapping[str, str], namesrv: type[DataclassInstance], brokers: Sequence[type[DataclassInstance]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the name server and those of brokers, which have all that nobody declares, too.

    The HTTP port of the name server is the one behind the first broker's.
    """
    its_own = property_names(namesrv)
    theirs = {name for cls in brokers for name in property_names(cls)}
    of_namesrv = {name: value for name, value in properties.items() if name in its_own}
    if (port := int(properties.get("metricsPort", "-1"))) > 0:
        of_namesrv["metricsPort"] = str(port + 1)
    return of_namesrv, {name: value for name, value in properties.items() if name in theirs or name not in its_own}


@contextlib.contextmanager
def _metrics_of_namesrv(given: str | None) -> Iterator[None]:
    """Say of a metrics port that nobody gave which one it is made of."""
    try:
        yield
    except PortNotOpened as error:
        if error.name != "metricsPort" or given is None or error.value == given.strip():
            raise
        made = f"the name server has the port behind it, {error.value}: {error.reason}"
        raise PortNotOpened(error.name, given, OSError(error.errno, made)) from error


@command(help="Run the main job: Spark writes a file or the samples to a topic, and consumers check every message.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of your own rows: json, csv, parquet or arrow. It is kept in memory.",
)
def demo(file: str | None) -> int:
    from rocketcore.demo import run

    return run(file)
