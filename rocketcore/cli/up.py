"""``rocket up``: a cluster in the foreground. ``rocket demo``: the main job on real data."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import click

from rocketcore.cli.options import command, end_signals
from rocketcore.cli.render import check_stream_form, progress, show_line
from rocketcore.cli.servers import log_to_stderr, refuse_tls
from rocketcore.service import wait_or_signal

__all__ = ["demo", "up"]


@command(help="Run a name server and brokers here, in the foreground, until Ctrl-C, SIGTERM or the terminal's end.")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path),
              help="Folder that keeps the messages; without it they are deleted at the end.")  # fmt: skip
@click.option("--brokers", type=click.IntRange(1, 26), default=1, show_default=True, help="Number of brokers.")
@click.option("--port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="Port of the name server.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="When a message counts as stored.")
def up(store: Path | None, brokers: int, port: int, flush: str | None) -> int:
    from rocketcore.local import LocalCluster

    log_to_stderr()
    refuse_tls()
    check_stream_form()
    ended = threading.Event()
    ended_by: list[int] = []

    def end(number: int, _: object) -> None:
        ended_by.append(number)
        ended.set()

    for number in end_signals():
        signal.signal(number, end)
    cluster = LocalCluster(
        store, brokers=brokers, namesrv_port=port, flush="sync" if flush == "sync" else "async" if flush else None
    )
    with cluster:
        show_line(
            {
                "event": "ready",
                "address": cluster.namesrv,
                "brokers": list(cluster.broker_addresses),
                "store": str(cluster.store),
                "pid": os.getpid(),
            },
            f"name server {cluster.namesrv}, brokers {', '.join(cluster.broker_addresses)}",
        )
        progress(f"messages are in {cluster.store}" + ("" if store else ", deleted at the end"))
        wait_or_signal(ended)
    return 130 if ended_by[0] == signal.SIGINT else 0


@command(help="Run the main job: Spark writes a file, or the samples, to a topic; consumers check every message.")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Rows of yours: json, csv, parquet, arrow.")
def demo(file: str | None) -> int:
    from rocketcore.demo import run

    return run(file)
