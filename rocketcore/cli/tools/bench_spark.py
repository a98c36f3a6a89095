"""``rocket bench spark``: what the Spark sink and source reach on this machine, beside ones that do nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import statistics
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from rocketcore.cli.messages.resume import uninterrupted
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import CommandFailed
from rocketcore.cli.shell.options import Settings, current
from rocketcore.cli.shell.render import Column, progress, show_rows, tell
from rocketcore.errors import ConfigError, RocketError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketcore.spark.workloads import Pair, Workload

__all__ = ["bench_spark", "connection_options"]

_MIB = 1 << 20
_COLUMNS = (
    "direction",
    Column("rows_per_second", "ROWS/S"),
    Column("mib_per_second", "MIB/S"),
    Column("spark_us_per_row", "SPARK µs/ROW"),
    Column("broker_us_per_row", "BROKER µs/ROW"),
    Column("ceiling_rows_per_second", "CEILING ROWS/S"),
    Column("ceiling_us_per_row", "CEILING µs/ROW"),
    "share",
    "best_share",
)


@command(
    help="Write rows to a topic with Spark and read them back. In turn, run the same job with an empty sink and "
    "source. If you name no cluster, the command starts a broker of its own."
)
@click.option("--rows", type=click.IntRange(1), default=1_000_000, show_default=True, help="Rows per job.")
@click.option(
    "--size", type=click.IntRange(1, 4 << 20), default=1024, show_default=True, help="Size of a body in bytes."
)
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True,
              help="Queues of the topics on each broker, and tasks per job.")  # fmt: skip
@click.option("--cores", type=click.IntRange(1), default=2, show_default=True, help="Cores for Spark.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds to measure.")
@click.option("--warm", type=click.IntRange(0), default=3, show_default=True,
              help="Rounds before the measured ones, while the JVM gets faster.")  # fmt: skip
def bench_spark(rows: int, size: int, queues: int, cores: int, rounds: int, warm: int) -> None:
    from rocketcore.spark.workloads import alternate

    settings = current()
    _require_spark()
    with _interruptible(), contextlib.ExitStack() as stack:
        own = not settings.names_cluster
        if own:
            _start_cluster(stack, settings)
        topics = stack.enter_context(_topics(queues, deleted=not own))
        brokers = _brokers_here()
        progress("starting Spark")
        session = stack.enter_context(_session(cores, rows * size))
        options = connection_options(settings)
        found = []
        for direction, topic in topics.items():
            progress(f"{direction}: {rows} rows of {size} bytes, {rounds} rounds")
            chosen = {**options, "topic": topic}
            with _explain_failure(), _workload(session, direction, chosen, rows, size, queues) as workload:
                pairs = list(alternate(workload, rounds, brokers, warm_rounds=warm))
            found.append({"benchmark": "spark", "direction": direction, **_figures(pairs, size)})
    show_rows(found, _COLUMNS, wide=("rows", "size_bytes", "rounds", "share_of_best"))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interruption be one: the JVM and the broker end by the same Ctrl-C, and tidying up fails without them."""
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise before from None
            before = before.__context__
        raise


def _start_cluster(stack: contextlib.ExitStack, settings: Settings) -> None:
    from rocketcore.local import LocalCluster

    cluster = stack.enter_context(LocalCluster(in_process=False))
    settings.namesrv_option = cluster.namesrv
    progress(f"no cluster is named: a broker of its own, messages in {cluster.store}, deleted at the end")


@contextlib.contextmanager
def _topics(queues: int, *, deleted: bool) -> Iterator[dict[str, str]]:
    """Topics of this run alone: direction → name.

    deleted  whether they are at its end; what it failed with is told all the same
    """
    run = secrets.token_hex(4)
    topics = {direction: f"rocket-bench-spark-{direction}-{run}" for direction in ("sink", "source")}
    made: list[str] = []
    try:
        for topic in topics.values():
            with open_admin() as admin:
                admin.create_topic(topic, queues)
            made.append(topic)
        yield topics
    except BaseException:
        if deleted:
            try:
                _delete(made)
            except RocketError as error:
                tell(f"topics {', '.join(made)} stay: {error}")
        raise
    if deleted:
        _delete(made)


def _delete(topics: Iterable[str]) -> None:
    with open_admin() as admin:
        for topic in topics:
            admin.delete_topic(topic)


def _require_spark() -> None:
    """Raise CommandFailed where Spark or its Java run-time is missing, before anything is begun."""
    from rocketcore.spark.java import find_java

    if importlib.util.find_spec("pyspark") is None:
        raise CommandFailed("NOT_INSTALLED", "Spark is not installed", "pip install 'rocketcore[spark,java]'")
    try:
        find_java()
    except ConfigError as error:
        raise CommandFailed("NOT_INSTALLED", str(error)) from error


def _brokers_here() -> Collection[int] | None:
    """Return the processes of the brokers, if all of them are on this machine and this user's."""
    from rocketcore.spark.cpu_time import listening_process

    with open_admin() as admin:
        members = admin.cluster_info().broker_addr_table.values()
    found = {listening_process(address) for member in members for address in member.broker_addrs.values()}
    pids = {pid for pid in found if pid is not None}
    return pids if len(pids) == len(found) and os.getpid() not in pids else None


@contextlib.contextmanager
def _session(cores: int, cached_bytes: int) -> Iterator[SparkSession]:
    """A session that ends with the command, unless it was there before."""
    from rocketcore.spark import local_session, register

    memory_mib = 1024 + 3 * cached_bytes // _MIB  # Spark keeps about a half of it for frames
    before = _active_session()
    # Py4J tells every interruption to the root logger, which prints what nobody handles.
    logging.getLogger().addHandler(logging.NullHandler())
    with uninterrupted():  # a JVM that starts while its program ends stays behind
        session = local_session("rocket bench spark", cores=cores, driver_memory=f"{memory_mib}m")
    try:
        register(session)
        yield session
    finally:
        if before is None:
            session.stop()


def _active_session() -> object | None:
    try:
        from pyspark.sql import SparkSession
    except ImportError:  # of which local_session tells
        return None
    return SparkSession.getActiveSession()


def connection_options(settings: Settings) -> dict[str, str]:
    """Return the connection of the command as options of the data source."""
    from rocketcore.transport.tls.settings import TlsConfig

    tls, credentials = settings.tls, settings.credentials
    options = {"nameServer": settings.namesrv}
    if credentials["access_key"]:
        options |= {"accessKey": credentials["access_key"], "secretKey": credentials["secret_key"]}
    if isinstance(tls, TlsConfig):
        files = {"tlsCaFile": tls.ca_file, "tlsCertFile": tls.cert_file, "tlsKeyFile": tls.key_file}
        options |= {name: str(file) for name, file in files.items() if file is not None}
        options |= {"tls": "true", "tlsVerify": str(tls.verify).lower()}
    return options


def _workload(
    session: SparkSession, direction: str, options: dict[str, str], rows: int, size: int, tasks: int
) -> AbstractContextManager[Workload]:
    from rocketcore.spark.workloads import sink, source

    if direction == "sink":
        return sink(session, options, rows, size, tasks)
    return contextlib.nullcontext(source(session, options, rows, size, tasks))


@contextlib.contextmanager
def _explain_failure() -> Iterator[None]:
    """Say in a line why a job failed: Spark tells it in the midst of the stacks of all processes."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        of_ours = [line for line in lines if line.startswith("rocketcore.errors.")]
        why = [*lines[:1], *of_ours][-1]
        raise CommandFailed("SPARK", f"Spark: {why}", "see where with --debug") from error


def _figures(pairs: list[Pair], size: int) -> dict[str, Any]:
    """Return the medians of the rounds; None for what the brokers did not say."""

    def median(name: str) -> float | None:
        values = [getattr(pair, name) for pair in pairs]
        return None if None in values else round(statistics.median(values), 3)

    rate, ceiling_rate = (
        statistics.median(getattr(pair, name) for pair in pairs)
        for name in ("rows_per_second", "ceiling_rows_per_second")
    )
    return {
        "rows": pairs[0].rows,
        "size_bytes": size,
        "rounds": len(pairs),
        "rows_per_second": round(rate),
        "mib_per_second": round(rate * size / _MIB, 2),
        "spark_us_per_row": median("spark_us_per_row"),
        "broker_us_per_row": median("broker_us_per_row"),
        "ceiling_rows_per_second": round(ceiling_rate),
        "ceiling_us_per_row": median("ceiling_us_per_row"),
        "share": median("share"),
        "best_share": median("best_share"),
        "share_of_best": median("share_of_best"),
    }
