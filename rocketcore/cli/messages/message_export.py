"""``rocket message export``: the messages of a topic as a file.

Which messages is settled when it begins: the range of every queue. Queues are read one after the other into the file,
and after each part of it (``--part-bytes``, or what comes in a while) the notes in ``FILE.progress`` say how far it is,
so that run the same command again to continue there after an interruption, a kill or a full disk: no message is
missing, none is there twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.cli.messages.consume import parse_range
from rocketcore.cli.messages.export_files import (
    FORMATS,
    ArrowFile,
    ExportFile,
    Growing,
    JsonlFile,
    ParquetFile,
    count_messages,
    format_of,
    require_pyarrow,
)
from rocketcore.cli.messages.export_reading import ExportState, Stretch, file_schema, fill
from rocketcore.cli.messages.resume import ProgressFile, check_same, odd_kind, open_own, sync_folder, uninterrupted
from rocketcore.cli.messages.watch import Watch
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import current, or_form
from rocketcore.cli.shell.progress_bar import ProgressBar
from rocketcore.cli.shell.render import counted, counted_are, progress, show_object, tell
from rocketcore.codes import TOOLS_GROUP
from rocketcore.printable import error_text

if TYPE_CHECKING:
    from rocketcore.client.arrow_ranges import QueueRange
    from rocketcore.client.attempts import Retries
    from rocketcore.client.loop_client import LoopClient
    from rocketcore.message_queue import MessageQueue

__all__ = ["export_messages"]

_KIND: Final = "rocket message export 1"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PART_BYTES: Final = 64 << 20
PART_SECONDS: Final = 1.0
"""A slow export is written and noted at least as often, and a pipe has its first messages as soon."""
ROW_GROUP_SECONDS: Final = 10.0
"""As long for parquet: readers like no small row groups."""


@command(
    help="Write the messages of a topic to a file: parquet, arrow or jsonl.\n\nIf an export was interrupted, run the "
    "same command again to continue it."
)
@click.argument("topic")
@click.option("-o", "--output", type=click.Path(), metavar="FILE|-", multiple=True, callback=or_form,
              help="File to write; - is stdout, the default. The name of an output format, such as json, sets the "
                   "format of the summary.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="File format. Default: from the file name.")
@click.option(
    "--offsets",
    metavar="OFFSETS",
    help="Offsets to read in each queue: A:B, N, +N, -N (the last N), "
    "start, @TIME or @TIME:@TIME. Default: all existing messages.",
)
@click.option("--since", metavar="TIME", help="Begin this long ago, or at this time, for example 10m.")
@click.option("--until", metavar="TIME", help="End at this time.")
@click.option("-t", "--tag", help='Only messages with these tags, for example "a || b".')
@click.option(
    "--queue", "queues", multiple=True, metavar="BROKER/ID", help="Only this queue. You can repeat this option."
)
@click.option("--properties/--no-properties", default=True, show_default=True,
              help="Whether to write the properties of each message; jsonl always has them.")  # fmt: skip
@click.option("--hosts", is_flag=True, help="Also write hosts, flags and log positions. Not for jsonl.")
@click.option("--part-bytes", type=click.IntRange(1), default=PART_BYTES, show_default=True, metavar="BYTES",
              help="How much to write before progress is saved: in parquet, a row group.")  # fmt: skip
@click.option("--restart", is_flag=True, help="Start again, and replace existing files.")
def export_messages(
    topic: str,
    output: str | None,
    form: str | None,
    offsets: str | None,
    since: str | None,
    until: str | None,
    tag: str | None,
    queues: tuple[str, ...],
    properties: bool,
    hosts: bool,
    part_bytes: int,
    restart: bool,
) -> None:
    summary_form = current().output
    if output is None and summary_form != "table":
        raise click.UsageError(
            f"-o {summary_form} is the format of the summary, which needs -o FILE; --format sets the format of the "
            "messages"
        )
    output = output or "-"
    if output != "-":
        _require_file(Path(output))
    if offsets is not None and (since is not None or until is not None):
        raise click.UsageError("--offsets and --since or --until exclude each other")
    try:
        form = format_of(output, form)
        text = offsets or _span(since, until)
        bounds = parse_range(text, round(time.time() * 1000))
        wanted = [_queue_name(queue) for queue in queues]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if form == "jsonl":
        if hosts or not properties:
            raise click.UsageError("--hosts and --no-properties need parquet or arrow: jsonl has fixed fields")
    else:
        require_pyarrow(form)
        if output == "-" and sys.stdout.isatty():
            raise click.UsageError(f"{form} cannot be shown on a terminal: give -o FILE, or redirect stdout")
    asked = {
        "topic": topic, "format": form, "range": text, "tag": tag, "queues": sorted(queues),
        "properties": properties, "hosts": hosts,
    }  # fmt: skip

    def plan(client: LoopClient) -> ExportState:
        stretches = _plan(client, topic, bounds, wanted)
        return ExportState(asked, list(client.config.namesrv), round(time.time() * 1000), stretches)

    with contextlib.ExitStack() as stack:
        target: _Target
        if output == "-":
            target = _Stdout(plan)
        else:
            target = stack.enter_context(_File(Path(output), asked, plan, restart=restart))
        target.export(topic, part_bytes)


def _require_file(path: Path) -> None:
    """Raise CommandFailed for what is there and no regular file: it would be replaced, not written to."""
    if what := odd_kind(path):
        raise CommandFailed("NO_FILE", f"{path} is not a regular file: {what}",
                            "write to stdout with -o -, and redirect it with > PLACE")  # fmt: skip


def _span(since: str | None, until: str | None) -> str:
    return f"{'start' if since is None else f'@{since}'}:{'end' if until is None else f'@{until}'}"


def _queue_name(text: str) -> tuple[str, int]:
    broker, _, number = text.rpartition("/")
    if not broker or not number.isdecimal():
        raise ValueError(f"--queue {text!r} is not BROKER/ID, for example broker-a/0")
    return broker, int(number)


def _plan(client: LoopClient, topic: str, bounds: Callable[..., Any], wanted: list[tuple[str, int]]) -> list[Stretch]:
    """Settle what is exported of each queue; raises RouteNotFound, CommandFailed for a queue that is not there."""
    from rocketcore.client.arrow_ranges import find_offsets

    timeout, retries = client.config.timeout, _retries(client)
    held = client.run(_held(client, topic, retries))
    there = {(queue.broker, queue.queue_id) for queue in held}
    if missing := sorted(set(wanted) - there):
        broker, number = missing[0]
        raise CommandFailed("QUEUE_NOT_EXIST", f"topic {topic} has no queue {broker}/{number}",
                            f"rocket topic describe {topic} shows those it has", exit_code=3)  # fmt: skip
    stretches = []
    for queue, whole in held.items():
        if wanted and (queue.broker, queue.queue_id) not in wanted:
            continue

        def at_time(millis: int, whole: QueueRange = whole) -> int:
            position = {whole.queue: datetime.fromtimestamp(millis / 1000, UTC)}
            found = find_offsets(client.instance, {whole.queue: whole}, position, retries, timeout, group=TOOLS_GROUP)
            return client.run(found)[whole.queue]

        span = bounds(whole.start, whole.end, at_time)
        end = whole.end if span.end is None else span.end
        stretches.append(Stretch(queue.broker, queue.queue_id, span.start, max(span.start, end), span.start))
    return stretches


def _retries(client: LoopClient) -> Retries:
    from rocketcore.cli.messages.cluster_client import patience
    from rocketcore.client.attempts import Retries

    return Retries(patience(), client.instance.clock)


async def _held(client: LoopClient, topic: str, retries: Retries) -> dict[MessageQueue, QueueRange]:
    """Return what the queues of a topic hold, in order; brokers that are away are waited for."""
    from rocketcore.client.arrow_ranges import held_ranges
    from rocketcore.client.attempts import newest_route

    timeout = client.config.timeout
    route = await newest_route(client.instance, topic, timeout, retries)
    return await held_ranges(client.instance, sorted(route.subscribe), retries, timeout)


class _Target(ABC):
    """Where an export goes to, and how it gets there."""

    name: str
    _state: ExportState

    def __init__(self, plan: Callable[[LoopClient], ExportState]) -> None:
        self._plan = plan

    @abstractmethod
    def _open(self, client: LoopClient) -> ExportFile:
        """Settle the state and open the file."""

    @abstractmethod
    def _note(self) -> None:
        """Make what was flushed count."""

    @abstractmethod
    def _done(self, summary: dict[str, Any]) -> None:
        """Finish, and tell what was done."""

    def export(self, topic: str, part_bytes: int) -> None:
        """Read and write what is not there yet; raises CommandFailed with what is there in the end."""
        from rocketcore.cli.messages.cluster_client import connect

        settings = current()
        began = time.monotonic()
        with connect(settings) as client:
            with Watch.of([topic], settings):
                file = self._open(client)
            state = self._state
            before = state.rows
            part_seconds = ROW_GROUP_SECONDS if state.asked["format"] == "parquet" else PART_SECONDS
            noted_at = time.monotonic()
            if before and self.name != "-":
                progress(f"continues after {counted(before, 'message')}")
            if not state.complete:
                with ProgressBar(topic, state.total, before) as bar, Watch.of([topic], settings) as watch:
                    for rows in fill(file, state, client, settings, part_bytes):
                        if rows:
                            watch.heard()
                        state.rows += rows
                        bar.show(state.rows)
                        if file.pending >= part_bytes or time.monotonic() - noted_at >= part_seconds:
                            file.flush()
                            self._note()
                            noted_at = time.monotonic()
                    file.finish()
        seconds = time.monotonic() - began
        lost = state.total - state.rows if state.asked["tag"] is None else None  # with a tag nobody can tell
        summary = {
            "topic": topic,
            "file": self.name,
            "format": state.asked["format"],
            "messages": state.rows,
            "bytes": None,
            "queues": len(state.stretches),
            "left_out": lost,
            "resumed_at": before or None,
            "seconds": round(seconds, 3),
        }
        self._done(summary)
        if lost:
            raise CommandFailed(
                "LEFT_OUT", f"{counted(lost, 'message')} left out: damaged at the broker, or deleted",
                "the broker's log names the file and position of each damaged message", exit_code=EXIT_PARTLY,
            )  # fmt: skip

    def _file(self, file: Growing, written: Path | None) -> ExportFile:
        """Return what writes messages into a file; raises ValueError where what is written is not what was noted."""
        state = self._state
        form = state.asked["format"]
        if form == "jsonl":
            return JsonlFile(file, written=written, rows=state.rows)
        schema = file_schema(state)
        if form == "arrow":
            return ArrowFile(file, schema, stream=self.name == "-", written=written, rows=state.rows)
        return ParquetFile(file, schema, written=written, parts=state.parts, rows=state.rows)


class _Stdout(_Target):
    """An export that cannot go on: what stdout leads to is not known."""

    name = "-"

    def _open(self, client: LoopClient) -> ExportFile:
        self._state = self._plan(client)
        sys.stdout.flush()
        return self._file(Growing(sys.stdout.buffer.write), None)

    def _note(self) -> None:
        sys.stdout.flush()

    def _done(self, summary: dict[str, Any]) -> None:
        sys.stdout.flush()
        progress(f"{counted(summary['messages'], 'message')} of {summary['topic']} exported")


class _File(_Target, AbstractContextManager["_File"]):
    """An export into a file."""

    def __init__(
        self, path: Path, asked: dict[str, Any], plan: Callable[[LoopClient], ExportState], *, restart: bool
    ) -> None:
        super().__init__(plan)
        self.name = str(path)
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._asked = asked
        self._restart = restart
        self._notes = ProgressFile(path.with_name(path.name + ".progress"), _KIND, ExportState)
        self._fd = -1
        self._growing = Growing(len)
        self._writer: ExportFile | None = None

    def __enter__(self) -> _File:
        try:
            self._notes.__enter__()
        except OSError as error:
            where = f"nothing can be written in the folder {self._path.parent}: {error.strerror}"
            raise CommandFailed("OS_ERROR", f"{self._path}: {where}") from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._writer = None
        self._growing.end()
        try:
            if self._fd >= 0:
                if error is not None and not self._state.complete:
                    # Of a full disk this gives back what does not count.
                    with contextlib.suppress(OSError):
                        os.ftruncate(self._fd, self._noted_size)
                os.close(self._fd)
        finally:
            self._notes.__exit__()
        full = error if isinstance(error, OSError) and error.errno in _FULL else None
        where = "" if full is None else f"{full.filename or self._partial}: {os.strerror(full.errno or 0)}"
        if full is not None and self._fd < 0:
            raise CommandFailed("DISK_FULL", where, "make room") from error
        if self._fd < 0 or error is None or self._state.complete:
            return
        there = f"{counted_are(self._noted_rows, 'message')} in {self._partial} and stay{'s' * (self._noted_rows == 1)}"
        again = "run the same command again to continue there"
        if full is not None:
            raise CommandFailed("DISK_FULL", f"{where}: {there}", f"make room; {again}") from error
        if not isinstance(error, (click.ClickException, CommandFailed)) or self._noted_rows:
            tell(f"{there}; {again}")

    def _open(self, client: LoopClient) -> ExportFile:
        noted = None if self._restart else self._notes.load()
        if noted is None:
            if self._path.exists() and not self._restart:
                raise CommandFailed("EXISTS", f"{self._path} exists already", "replace it with --restart")
            self._state = self._plan(client)
            self._notes.save(self._state)
        else:
            self._state = noted
            self._check(noted, client)
        state = self._state
        self._noted_size, self._noted_rows = state.size, state.rows
        if state.complete:
            # The last run ended before its notes were removed, perhaps before the file had its name.
            self._check_complete(self._partial if os.path.lexists(self._partial) else self._path)
            return JsonlFile(self._growing)
        self._fd = open_own(self._partial)
        there = os.fstat(self._fd).st_size
        if there < state.size:
            raise self._damaged(self._partial, f"it has {there} bytes, {state.size} were written")
        os.ftruncate(self._fd, state.size)
        os.lseek(self._fd, 0, os.SEEK_END)
        form, written = state.asked["format"], self._partial if state.size else None
        # An Arrow file is written from its beginning once more, see there.
        begin, kept = (0, state.size) if form == "arrow" else (state.size, 0)
        self._growing = Growing(partial(os.write, self._fd), begin, kept)
        try:
            self._writer = self._file(self._growing, written)
        except ValueError as error:
            raise self._damaged(self._partial, str(error)) from error
        return self._writer

    def _check_complete(self, path: Path) -> None:
        """Compare a file that lacks nothing with what is noted of it."""
        state = self._state
        try:
            there = path.lstat().st_size
            if there != state.size:
                raise ValueError(f"it has {there} bytes, {state.size} were written")
            rows = count_messages(path, state.asked["format"])
            if rows != state.rows:
                raise ValueError(f"it has {rows} messages, {state.rows} were written")
        except (ValueError, OSError) as error:
            raise self._damaged(path, error_text(error)) from error

    def _damaged(self, path: Path, why: str) -> CommandFailed:
        return CommandFailed("DAMAGED", f"{path} is not the file that was written: {why}", "start again with --restart")

    def _check(self, noted: ExportState, client: LoopClient) -> None:
        """Refuse to go on with something else, and where the cluster has not what was to be exported."""
        check_same(self._path, noted, self._asked, client.config.namesrv)
        topic = noted.asked["topic"]
        held = client.run(_held(client, topic, _retries(client)))
        for stretch in noted.stretches:
            limits = held.get(stretch.queue(topic))
            if stretch.next < stretch.end and (limits is None or limits.end < stretch.end):
                now = "is gone" if limits is None else f"ends at {limits.end}"
                raise CommandFailed(
                    "CHANGED", f"{stretch.queue(topic)} {now}, and {self._path} should contain it up to {stretch.end}",
                    "if a broker is offline, wait for it; if the topic was deleted and created again, start again "
                    "with --restart",
                )  # fmt: skip

    def _note(self) -> None:
        """Note how far the file is, once it is on disk."""
        os.fdatasync(self._fd)
        state = self._state
        state.size = self._growing.position
        if isinstance(self._writer, ParquetFile):
            state.parts = self._writer.parts
        with uninterrupted():
            self._notes.save(state)
            self._noted_size, self._noted_rows = state.size, state.rows

    def _done(self, summary: dict[str, Any]) -> None:
        state = self._state
        if not state.complete:
            state.complete = True
            try:
                self._note()
            except OSError:
                state.complete = False
                raise
        if self._partial.exists():
            os.replace(self._partial, self._path)
            sync_folder(self._path)
        self._notes.remove()
        show_object({**summary, "bytes": state.size})
