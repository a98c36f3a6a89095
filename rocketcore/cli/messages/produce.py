"""``rocket produce``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rocketcore.cli.messages.envelopes import ENVELOPE, read_envelope
from rocketcore.cli.messages.piped import as_it_comes, without_mark
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import current, named_values
from rocketcore.cli.shell.render import check_stream_form, counted, progress, show_line, tell
from rocketcore.cli.shell.times import DURATION, TIME
from rocketcore.errors import BrokerError
from rocketcore.files.faults import TextFault, unpacking_errors
from rocketcore.files.text import unpacked

if TYPE_CHECKING:
    from rocketcore import SendResult

__all__ = ["produce"]

TIMERS_OFF = "timerWheelEnable is false"
"""What a broker says that delivers by levels only."""


@command(
    help="Send messages to a topic.\n\nA BODY is text, @FILE for the content of a file, or - to send each line of "
    "standard input as a message. Without a BODY, the command reads standard input."
)
@click.argument("topic")
@click.argument("bodies", metavar="[BODY | - | @FILE]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-t", "--tag", help="Tag of the messages.")
@click.option("-k", "--key", "keys", multiple=True, help="Key of the messages. You can repeat this option.")
@click.option(
    "-H", "--property", "properties", multiple=True, metavar="K=V", help="A property. You can repeat this option."
)
@click.option("-G", "--message-group", help="Send all messages with this group to one queue, in order.")
@click.option("--delay", type=DURATION, metavar="TIME", help="Deliver after this time, for example 30s.")
@click.option("--at", type=TIME, metavar="TIME", help="Deliver at this time.")
@click.option(
    "--delay-level",
    type=click.IntRange(1),
    metavar="N",
    help="Deliver after the delay of this level. By default level 1 is 1 s, 2 is 5 s, 3 is 10 s, … and 18 is 2 h.",
)
@click.option("--jsonl", is_flag=True, help=f"Read each line as a JSON object: {', '.join(sorted(ENVELOPE))}.")
@click.option("-n", "--count", type=click.IntRange(1), default=1, help="How often to send each body.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Send at most N messages per second."
)
@click.option("--oneway", is_flag=True, help="Do not wait for answers.")
@click.option("--group", default="rocket-produce", show_default=True, help="Producer group.")
@click.option("-q", "--quiet", "quiet", is_flag=True, help="Do not print a line for each message.")
def produce(
    topic: str,
    bodies: tuple[str, ...],
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    message_group: str | None,
    delay: float | None,
    at: int | None,
    delay_level: int | None,
    jsonl: bool,
    count: int,
    rate: float | None,
    oneway: bool,
    group: str,
    quiet: bool,
) -> None:
    from rocketcore import Message, Producer

    settings = current()
    check_stream_form()
    constants = {
        "tag": tag,
        "keys": list(keys) or None,
        "properties": named_values(properties, "--property"),
        "message_group": message_group,
        "delay": delay,
        "deliver_at": _moment(at),
        "delay_level": delay_level,
    }
    sent = not_ok = 0
    began = time.monotonic()
    with Producer(
        settings.namesrv, group=group, timeout=settings.timeout, tls=settings.tls, **settings.credentials
    ) as producer:
        try:
            for fields in _inputs(bodies, jsonl):
                message = Message(topic, **{**constants, **fields})
                for _ in range(count):
                    if rate is not None:
                        time.sleep(max(0.0, began + sent / rate - time.monotonic()))
                    result = None
                    if oneway:
                        producer.send_oneway(message)
                    else:
                        result = producer.send(message)
                        not_ok += not result
                    sent += 1
                    if result is not None and not quiet:
                        quiet = not _show_result(result)
        except (Exception, KeyboardInterrupt) as error:
            if sent:
                tell(f"{counted(sent, 'message')} sent to {topic} before this:")
            if isinstance(error, BrokerError) and TIMERS_OFF in str(error):
                hint = "this broker has no timers: use one of its delay levels with --delay-level"
                raise CommandFailed(error.code_name, str(error), hint) from error
            raise
    progress(f"{counted(sent, 'message')} sent to {topic}")
    if not_ok:
        raise CommandFailed("NOT_OK", f"{not_ok} of {sent} messages are stored, but less safely than requested",
                            "see the status of each message", exit_code=EXIT_PARTLY)  # fmt: skip


def _show_result(result: SendResult) -> bool:
    """Print what became of a message; False when nobody reads it any more, which is no reason to send no more."""
    queue = result.queue
    record = {
        "status": result.status.value,
        "msg_id": result.msg_id,
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.queue_id,
        "offset": result.offset,
    }
    if result.recall_handle is not None:
        record["recall_handle"] = result.recall_handle
    return show_line(
        record,
        f"{result.status.value} {queue.broker}/{queue.queue_id}@{result.offset} {result.msg_id}",
    )


def _inputs(bodies: tuple[str, ...], jsonl: bool) -> Iterator[dict[str, Any]]:
    """Yield the fields of each message."""
    for body in bodies or ("-",):
        if body == "-":
            yield from _unpacked_envelopes(as_it_comes(), "standard input") if jsonl else _bodies(sys.stdin.buffer)
        elif body.startswith("@"):
            yield from _of_file(body[1:], jsonl)
        else:
            raw = body.encode("utf-8", "surrogateescape")
            yield from _envelopes([raw], "BODY") if jsonl else [{"body": raw}]


def _of_file(name: str, jsonl: bool) -> Iterator[dict[str, Any]]:
    try:
        if not jsonl:
            yield {"body": Path(name).read_bytes()}
            return
        with open(name, "rb") as file:
            yield from _unpacked_envelopes(file, name)
    except OSError as error:
        raise _unreadable(name, error) from error


def _unpacked_envelopes(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    try:
        yield from _envelopes(unpacked(file)[0], name)
    except unpacking_errors() as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> click.BadParameter:
    what = (isinstance(error, OSError) and error.strerror) or str(error)
    return click.BadParameter(f"{name}: {what}", param_hint="BODY")


def _bodies(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in without_mark(lines):
        text = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        if text:
            yield {"body": text}


def _envelopes(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            fields = read_envelope(line, number)
        except TextFault as error:
            raise click.BadParameter(f"{name}: {error}", param_hint="--jsonl") from None
        if fields is not None:
            yield fields


def _moment(millis: int | None) -> Any:
    if millis is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(millis / 1000, UTC)
