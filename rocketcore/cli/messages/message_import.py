"""``rocket message import``: the messages of a file to a topic.

After each part (``--part-bytes``) whose messages are all acknowledged the notes beside the file say how far it is, and
run the same command again to continue there. What was sent beyond the notes is sent again with the same ids, so that it
can be found.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import click
import msgspec

from rocketcore.cli.messages.export_files import FORMATS, require_pyarrow
from rocketcore.cli.messages.import_files import (
    Checksum,
    ColumnSource,
    DamagedFile,
    LineSource,
    Piece,
    Source,
    form_of_content,
    open_columns,
)
from rocketcore.cli.messages.piped import Leaving, as_it_comes
from rocketcore.cli.messages.resume import ProgressFile, check_same
from rocketcore.cli.messages.watch import Watch
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import current, named_values
from rocketcore.cli.shell.progress_bar import ProgressBar
from rocketcore.cli.shell.render import counted, counted_are, progress, show_object, tell
from rocketcore.errors import MessageIllegal, RouteNotFound, TopicNotExist
from rocketcore.files.faults import unpacking_errors
from rocketcore.files.text import HEAD_BYTES, kind_of, suffixes_of, unpacked
from rocketcore.message import Message
from rocketcore.naming import check_send_topic
from rocketcore.printable import error_text, printable

if TYPE_CHECKING:
    from rocketcore.client.arrow_delivery import SendSummary
    from rocketcore.client.loop_client import LoopClient

__all__ = ["import_messages"]

_KIND: Final = "rocket message import 1"
PART_BYTES: Final = 16 << 20
PART_SECONDS: Final = 1.0
"""A slow import is noted at least as often."""

FORMS: Final = (*FORMATS, "csv")
_TEXTS: Final = ("csv", "jsonl")
_READ_BYTES: Final = 1 << 20
_WRITE_ID: Final = re.compile("[0-9A-F]{16}")


class _State(msgspec.Struct, forbid_unknown_fields=True):
    """How far an import is.

    asked         what the command line said, and how long the file is and of when, where it must not change
    write_id      first half of the ids of its messages, in hex
    rows          messages that are acknowledged
    length, crc32 what was read of a file that may grow
    """

    asked: dict[str, Any]
    namesrv: list[str]
    write_id: str
    rows: int = 0
    length: int = 0
    crc32: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be; what is noted is no more than text that somebody may have changed."""
        if not _WRITE_ID.fullmatch(self.write_id):
            raise ValueError(f"{self.write_id!r} is not the first half of an id")
        if self.rows < 0 or self.length < 0:
            raise ValueError(f"{self.rows} messages in {self.length} bytes are sent")


class _Sends(Protocol):
    """What ``RecordBatchSender`` and ``LineSender`` have in common."""

    summary: SendSummary

    async def send(self, payload: Any) -> None: ...
    async def finish(self) -> SendSummary: ...
    async def abandon(self) -> None: ...


@command(
    help="Send the messages of a file, parquet, arrow, csv or jsonl (also .gz, .zst), to a topic; - reads stdin.\n\n"
    "If an import was interrupted, run the same command again. It continues after the last message that it knows to "
    "be stored."
)
@click.argument("file", type=click.Path(), metavar="FILE|-")
@click.option("--topic", required=True, metavar="TOPIC", help="Topic to send to.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="File format. Default: from the first bytes of the file; csv from its name.",
)
@click.option("--column", "columns", multiple=True, metavar="ROLE=NAME",
              help="Use this column as body, tags, keys, properties, shardingKey, flag or msgId. You can repeat this "
                   "option. Default: the columns with these names.")  # fmt: skip
@click.option("-t", "--tag", help="Tag of all messages, instead of their own.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, help="Number of queues of a new topic.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Send at most N messages per second."
)
@click.option("--group", default="rocket-import", show_default=True, help="Producer group.")
@click.option("--part-bytes", type=click.IntRange(1), default=PART_BYTES, show_default=True, metavar="BYTES",
              help="How much to send before progress is saved.")  # fmt: skip
@click.option("--progress", "notes", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="File for the progress. Default: beside the input file.")  # fmt: skip
@click.option("--restart", is_flag=True, help="Start again, with new ids.")
@click.option("--dry-run", is_flag=True, help="Show the plan and send nothing.")
def import_messages(
    file: str,
    topic: str,
    form: str | None,
    columns: tuple[str, ...],
    tag: str | None,
    create: bool,
    queues: int,
    rate: float | None,
    group: str,
    part_bytes: int,
    notes: Path | None,
    restart: bool,
    dry_run: bool,
) -> None:
    check_send_topic(topic)
    if tag is not None:
        Message(topic, b"", tag=tag)  # raises for a tag that none may have
    given = named_values(columns, "--column")
    with contextlib.ExitStack() as stack:
        opened = sys.stdin.buffer if file == "-" else _opened(file, stack)
        pipe = file == "-" or not stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
        if pipe and notes is not None:
            raise click.UsageError("--progress needs a file: an import from a pipe cannot be continued")
        if pipe:
            opened = as_it_comes(None if file == "-" else opened)
        opened, compression = unpacked(opened)
        form = form or _form(opened, file)
        if compression is not None and form not in _TEXTS:
            raise click.BadParameter(f"{printable(file)}: it is {form}, compressed with {compression}: unpack it first",
                                     param_hint="FILE")  # fmt: skip
        if form == "jsonl" and given:
            raise click.UsageError("--column needs parquet or arrow: a line of jsonl names its fields itself")
        if form == "parquet" and pipe:
            raise click.UsageError(
                "parquet cannot be read from a pipe: give a file, or send arrow or jsonl through the pipe"
            )
        if form != "jsonl":
            require_pyarrow(form)
        record: ProgressFile[_State] | None = None
        if not (pipe or dry_run):
            path = notes or Path(f"{file}.{topic.replace('%', '_')}.progress")
            record = _locked(path, stack)
        work = _Import(file, opened, form, topic, given, tag, record, pipe=pipe)
        work.begin(restart=restart)
        if dry_run:
            work.show_plan(create, queues)
            return
        work.run(_Pace(rate, part_bytes), group, create, queues)


def _opened(name: str, stack: contextlib.ExitStack) -> BinaryIO:
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise click.BadParameter(f"{name}: {error.strerror}", param_hint="FILE") from error


def _form(file: BinaryIO, name: str) -> str:
    try:
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]  # type: ignore[attr-defined]
    except unpacking_errors() as error:
        raise CommandFailed("DAMAGED", f"{printable(name)}: it cannot be read: {error_text(error)}") from error
    form = form_of_content(head)
    if form == "jsonl" and suffixes_of(Path(name))[0] == ".csv" and not head.lstrip().startswith(b"{"):
        return "csv"
    if form == "jsonl" and (found := kind_of(head)) is not None:
        raise click.BadParameter(f"{printable(name)}: it looks like {found}, and none of {', '.join(FORMS)}",
                                 param_hint="FILE")  # fmt: skip
    return form


def _locked(path: Path, stack: contextlib.ExitStack) -> ProgressFile[_State]:
    try:
        return stack.enter_context(ProgressFile(path, _KIND, _State))
    except OSError as error:
        raise _not_noted(path, error, "give another file with --progress FILE") from error


def _not_noted(path: Path, error: OSError, hint: str) -> CommandFailed:
    return CommandFailed("OS_ERROR", f"cannot save the progress in {path}: {error.strerror}", hint)


class _Pace:
    """How fast messages go, and how often that is noted."""

    def __init__(self, rate: float | None, part_bytes: int) -> None:
        self._rate = rate
        self._part_bytes = part_bytes
        self._began = self._noted = time.monotonic()
        self._sent = 0
        self._bytes_noted = 0

    @property
    def most(self) -> int | None:
        """Messages of a piece: a tenth of a second's."""
        return None if self._rate is None else max(1, round(self._rate / 10))

    def keep(self, rows: int, leaving: Leaving) -> None:
        """Wait until it is time for messages, or to leave."""
        if self._rate is not None:
            leaving.sleep(self._began + self._sent / self._rate - time.monotonic())
        self._sent += rows

    def is_due(self, sent_bytes: int) -> bool:
        """Say whether it is time for a note; then it counts as made."""
        now = time.monotonic()
        if sent_bytes - self._bytes_noted < self._part_bytes and now - self._noted < PART_SECONDS:
            return False
        self._bytes_noted, self._noted = sent_bytes, now
        return True


class _Import:
    """One import: its file, its topic, its notes (None: it cannot go on)."""

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        form: str,
        topic: str,
        given: dict[str, str],
        tag: str | None,
        record: ProgressFile[_State] | None,
        *,
        pipe: bool,
    ) -> None:
        from rocketcore.client.config import name_server_list

        self._name = name
        self._shown = printable(name)
        self._file = file
        self._form = form
        self._topic = topic
        self._given = given
        self._tag = tag
        self._record = record
        self._pipe = pipe
        self._goes_on = False
        self._leaving = Leaving()
        asked: dict[str, Any] = {"topic": topic, "format": form, "tag": tag, "columns": given}
        if record is not None and form != "jsonl":
            status = Path(name).stat()
            asked |= {"length": status.st_size, "changed at": status.st_mtime_ns}
        namesrv = list(name_server_list(current().namesrv))
        self._state = _State(asked, namesrv, f"{secrets.randbits(64):016X}")
        self._source: Source[Any]

    def begin(self, *, restart: bool) -> None:
        """Find out where to go on, and open the file; raises CommandFailed where it is not the file of then."""
        noted = None if self._record is None or restart else self._record.load()
        if noted is not None:
            assert self._record is not None
            check_same(self._record.path, noted, self._state.asked, self._state.namesrv)
            self._state, self._goes_on = noted, True
        state = self._state
        lines: int | None
        if self._form == "jsonl":
            with self._named():
                read, behind = _read_again(self._file, state.length)
            lines = behind + 1 if read.length else 0
            if read != Checksum(state.length, state.crc32):
                raise CommandFailed("CHANGED", f"the part of {self._shown} that was sent has changed since",
                                    "start again with --restart")  # fmt: skip
            self._source = LineSource(
                self._file, self._topic, self._tag, read, behind,
                pipe=self._pipe, leaves=lambda: self._leaving.asked,
            )  # fmt: skip
        else:
            with self._named():
                self._source = open_columns(self._file, self._form, self._given, self._tag, pipe=self._pipe)
            lines = self._source.rows
        if self._record is not None and lines is not None and state.rows > lines:
            what = f"{counted_are(state.rows, 'message')} sent, of {lines}"
            raise CommandFailed("DAMAGED", f"the progress in {self._record.path} cannot be used: {what}",
                                "start again with --restart")  # fmt: skip

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Have damage, and what is no message, name the file."""
        try:
            yield
        except DamagedFile as error:
            raise CommandFailed("DAMAGED", f"{self._shown}: {error}") from error
        except MessageIllegal as error:
            raise CommandFailed("MESSAGE_ILLEGAL", f"{self._shown}: {error}", "correct it in the file") from error

    def show_plan(self, create: bool, queues: int) -> None:
        """Say on stderr what would be done."""
        with open_admin() as admin:
            try:
                admin.topic_route(self._topic)
                there = ""
            except (RouteNotFound, TopicNotExist):
                if not create:
                    raise
                there = f", which will be created with {counted(queues, 'queue')} a broker"
        rows = self._source.rows
        count = "messages" if rows is None else counted(rows - self._state.rows, "message")
        tell(f"import {count} of {self._shown} ({self._form}) to topic {self._topic}{there}")
        if isinstance(self._source, ColumnSource):
            named = [role if role == name else f"{name} as {role}" for role, name in self._source.columns.items()]
            tell(f"  columns: {', '.join(named)}")
            if self._source.left_out:
                tell(f"  left out: {', '.join(self._source.left_out)}")

    def run(self, pace: _Pace, group: str, create: bool, queues: int) -> None:
        """Send what is not acknowledged yet."""
        from rocketcore.cli.messages.cluster_client import connect

        settings, state = current(), self._state
        before, began = state.rows, time.monotonic()
        with connect(settings) as client:
            _require_topic(client, self._topic, create, queues)
            self._note(state.rows, Checksum(state.length, state.crc32))
            if before:
                progress(f"continues after {counted(before, 'message')}")
            sends = self._sends(client, group)
            try:
                with (
                    ProgressBar(self._topic, self._source.rows, before) as bar,
                    Watch.of([self._topic], settings) as watch,
                ):

                    def noted() -> None:
                        watch.heard()
                        bar.show(state.rows)

                    with self._named(), self._leaving:
                        self._send_all(client, sends, pace, noted)
            except BaseException:
                self._report_stored(sends.summary)
                raise
            finally:
                client.run(sends.abandon())
        summary = sends.summary
        if self._record is not None:
            self._record.remove()
        show_object(
            {
                "file": self._name,
                "topic": self._topic,
                "format": self._form,
                "messages": state.rows,
                "resumed_at": before or None,
                "bytes": summary.sent_bytes,
                "retries": summary.retries,
                "not_safe": summary.not_safe,
                "write_id": state.write_id,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
        if summary.not_safe:
            raise CommandFailed(
                "NOT_OK", f"{counted(summary.not_safe, 'batch')} stored, but less safely than requested",
                "they are not flushed, or not copied to a slave: see the brokers' logs", exit_code=EXIT_PARTLY,
            )  # fmt: skip

    def _send_all(self, client: LoopClient, sends: _Sends, pace: _Pace, shown: Callable[[], object]) -> None:
        state = self._state
        rows, read = state.rows, Checksum(state.length, state.crc32)

        def note() -> None:
            client.run(sends.finish())
            self._note(rows, read)
            shown()

        try:
            for piece in self._pieces(pace):
                pace.keep(piece.rows, self._leaving)
                client.run(sends.send(piece.payload))
                rows, read = rows + piece.rows, piece.read
                if pace.is_due(sends.summary.sent_bytes):
                    note()
        except Exception:
            # What stands before a bad message is sent, and need not be sent again.
            with contextlib.suppress(Exception):
                note()
            raise
        note()
        if self._leaving.asked:
            raise KeyboardInterrupt

    def _pieces(self, pace: _Pace) -> Iterator[Piece[Any]]:
        """Yield what is to be sent, until a signal comes."""
        if isinstance(self._source, LineSource):
            yield from self._source.pieces(self._state.rows, pace.most)
            return
        pieces = self._source.pieces(self._state.rows, pace.most)
        while not self._leaving.asked:
            self._leaving.at_once = self._pipe  # nothing else ends a read of Arrow's
            piece = next(pieces, None)
            self._leaving.at_once = False
            if piece is None:
                return
            yield piece

    def _note(self, rows: int, read: Checksum) -> None:
        """Note what is stored; where that fails, what was noted before counts."""
        state = self._state
        before = state.rows, state.length, state.crc32
        state.rows, state.length, state.crc32 = rows, read.length, read.crc32
        if self._record is None:
            return
        try:
            self._record.save(state)
        except OSError as error:
            state.rows, state.length, state.crc32 = before
            raise _not_noted(self._record.path, error, "free some space there, or make it writable") from error

    def _sends(self, client: LoopClient, group: str) -> _Sends:
        from rocketcore.cli.messages.cluster_client import patience
        from rocketcore.client.arrow_delivery import body_sender

        timeout = client.config.timeout
        sender = body_sender(client.instance, group, timeout)
        write_id = int(self._state.write_id, 16)
        if self._form == "jsonl":
            from rocketcore.cli.messages.line_sender import LineSender

            return LineSender(
                sender, self._topic, write_id, self._state.rows, timeout=timeout, delivery_timeout=patience()
            )
        from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings

        settings = SendSettings(
            topic=self._topic,
            tag=self._tag,
            write_id=write_id,
            ordered=True,
            create_topics=False,
            timeout=timeout,
            delivery_timeout=patience(),
        )
        sends = RecordBatchSender(sender, settings)
        sends.summary.rows = self._state.rows  # ids, and rows in errors, are counted from here
        return sends

    def _report_stored(self, summary: SendSummary) -> None:
        """Say what is there. Notes of a run that has sent nothing go: they would hold the next one to its word."""
        if not self._goes_on and not summary.sent_bytes:
            if self._record is not None:
                self._record.remove()
            tell(f"nothing of {self._shown} was sent to {self._topic}")
            return
        if self._pipe:
            again = "an import from a pipe cannot be continued"
        else:
            again = "run the same command again to continue there; messages sent after that point keep their ids"
        what = counted_are(self._state.rows, f"message of {self._shown}", f"messages of {self._shown}")
        tell(f"{what} stored in {self._topic}; {again}")


def _require_topic(client: LoopClient, topic: str, create: bool, queues: int) -> None:
    try:
        client.run(client.instance.refresh_topic(topic, timeout=client.config.timeout))
    except RouteNotFound as error:
        if not create or error.retriable:
            raise
        with open_admin() as admin:
            created = admin.create_topic(topic, queues, exist_ok=True).created
        if created:
            progress(f"topic {topic} created")


def _read_again(file: BinaryIO, length: int) -> tuple[Checksum, int]:
    """Read what earlier runs read, to stand behind it; returns how many lines end there as well."""
    read, lines = Checksum(), 0
    while read.length < length:
        try:
            data = file.read(min(_READ_BYTES, length - read.length))
        except unpacking_errors() as error:
            raise DamagedFile(f"it cannot be read behind line {lines}: {error_text(error)}") from error
        if not data:
            break
        read, lines = read.after(data), lines + data.count(b"\n")
    return read, lines
