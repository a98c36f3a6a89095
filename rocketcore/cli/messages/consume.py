"""``rocket consume`` as a member of a group, and ``rocket tail`` without one."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from rocketcore.cli.messages.forms import FORMAT_HELP, compile_format, message_line, message_object
from rocketcore.cli.messages.watch import Missing, Watch, require_topics
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PARTLY, EXIT_TIMEOUT, CommandFailed
from rocketcore.cli.shell.options import current, end_signals_tell, or_form
from rocketcore.cli.shell.render import check_stream_form, counted, print_line, progress, show_line, tell, timestamp
from rocketcore.cli.shell.times import DURATION, parse_time
from rocketcore.codes import TOOLS_GROUP
from rocketcore.errors import ClientClosed
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore import Admin, MessageQueue, PushConsumer, ReceivedMessage

__all__ = ["consume", "parse_range", "tail"]

POLL_SECONDS = 0.2

STALLED_SECONDS = 30.0
"""For how long a cluster that answers may bring nothing of what is there; a pull that fails is tried each second."""

_format = click.option("-f", "--format", "line_format", help=FORMAT_HELP)
_count = click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many messages.")
_tag = click.option("-t", "--tag", help='Only messages with these tags, for example "a || b".')
_sql = click.option("--sql", help="Only messages that match this SQL92 expression.")


@command(help="Consume topics as a member of a group: print each message, then acknowledge it.")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-g", "--group", required=True, help="Consumer group. Its offsets move.")
@_tag
@_sql
@click.option("--from", "start_from", type=click.Choice(["first", "last"]), default="last", show_default=True,
              help="Where a group without offsets begins. With last, a queue that still has its first message begins "
                  "there.")  # fmt: skip
@click.option("--ack", type=click.Choice(["auto", "none"]), default="auto", show_default=True,
              help="With none, acknowledge nothing: the group receives all messages again.")  # fmt: skip
@click.option(
    "--exec",
    "program",
    metavar="CMD",
    help="Run this command for each message, with the body on stdin. "
    "If it exits with a code other than 0, the message is "
    "delivered again.",
)
@_count
@click.option("--timeout", type=DURATION, metavar="TIME",
              help="Stop after this time. If -n messages did not arrive, the exit code is 124.")  # fmt: skip
@_format
def consume(
    topics: tuple[str, ...],
    group: str,
    tag: str | None,
    sql: str | None,
    start_from: Any,
    ack: str,
    program: str | None,
    count: int | None,
    timeout: float | None,
    line_format: str | None,
) -> int:
    from rocketcore import PushConsumer

    settings = current()
    show = _printer(line_format)
    arguments = _program(program)
    end = None if timeout is None else time.monotonic() + timeout
    require_topics(topics, settings.shorter(timeout))
    left = None if end is None else max(0.0, end - time.monotonic())
    consumed = failed = 0
    enough = False  # for whoever reads stdout
    missing = Missing({})
    with (
        PushConsumer(
            settings.namesrv, group=group, start_from=start_from, tls=settings.tls, **settings.credentials
        ) as consumer,
        _Ending(consumer, left) as ending,
        Watch.of(topics, settings, left) as watch,
    ):
        consumer.gaps.tell(missing.note)
        for topic in topics:
            consumer.subscribe(topic, tag=tag, sql=sql)
        for message in consumer:
            watch.heard()
            missing.reached(message.queue, message.offset)
            with ending.message_in_hand:
                if ending.asked:
                    break
                if arguments is not None and not _done(arguments, message):
                    message.retry()
                    failed += 1
                elif show(message):
                    if ack == "auto":
                        message.ack()
                    consumed += 1
                else:
                    enough = True
            if enough or consumed + failed == count or ending.asked:
                break
    again = f", {failed} to be delivered again" if failed else ""
    if not enough:
        progress(f"{counted(consumed, 'message')} consumed by group {group}{again}")
    if ending.interrupted:
        return EXIT_INTERRUPTED
    if failed:
        raise CommandFailed(
            "EXEC_FAILED",
            f"{program} failed for {failed} of {counted(consumed + failed, 'message')}: they will be delivered again",
            exit_code=EXIT_PARTLY if consumed else EXIT_FAILED,
        )
    if enough:
        missing.check(whole=False)
        return 0
    if watch.trouble is not None and (count is None or consumed < count):
        raise watch.trouble
    if count is not None and consumed < count:
        raise CommandFailed("TIMEOUT", f"{consumed} of {count} messages came in {timeout:g} s", exit_code=EXIT_TIMEOUT)
    missing.check(whole=count is None)
    return 0


def _program(text: str | None) -> list[str] | None:
    """Return the words of ``--exec``; raises BadParameter where there is no such program: no message is taken then."""
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--exec") from error
    if not words or shutil.which(words[0]) is None:
        raise click.BadParameter(f"program not found: {text!r}", param_hint="--exec")
    return words


def _done(words: list[str], message: ReceivedMessage) -> bool:
    """Run the program with the body on its stdin; whether it took the message, which is named on stderr if not.

    In a process group of its own: Ctrl-C is for this command, which waits for the program, and not for the program.
    """
    code = subprocess.run(words, input=message.body, check=False, process_group=0).returncode
    if code:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        tell(printable(f"message {message.msg_id} will be delivered again: {words[0]} ended with {ended}"))
    return code == 0


class _Ending:
    """Closes a consumer after a time, or on Ctrl-C, SIGTERM and SIGHUP, beside the loop over its messages.

    The loop ends after the message in hand, which is acknowledged before the offsets are stored; leaving the context
    waits for that.

    asked            the loop is to end
    message_in_hand  held while a message is shown and acknowledged
    """

    def __init__(self, consumer: PushConsumer, timeout: float | None) -> None:
        self.interrupted = False
        self.asked = False
        self.message_in_hand = threading.Lock()
        self._consumer = consumer
        self._closing: list[threading.Thread] = []
        self._timer = threading.Timer(timeout, self._close) if timeout is not None else None

    def __enter__(self) -> _Ending:
        self._told = end_signals_tell(self._interrupt)
        self._told.__enter__()
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """End; a consumer that was closed before its loop had begun has no messages, and that is no error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        for thread in self._closing:
            thread.join()
        self._told.__exit__(None, None, None)
        return self.asked and isinstance(error, ClientClosed)

    def _close(self) -> None:
        self.asked = True
        with self.message_in_hand:
            self._consumer.close()

    def _interrupt(self, number: int, frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self._closing.append(threading.Thread(target=self._close, name="consume-close", daemon=True))
        self._closing[0].start()


class Range(NamedTuple):
    """Which messages of a queue: from where, and up to where (exclusive; None: without end)."""

    start: int
    end: int | None


class _Edge(NamedTuple):
    """Where a range begins or ends: so many from the start or the end of a queue, an offset, or milliseconds."""

    kind: Literal["start", "end", "offset", "time"]
    number: int

    def offset(self, minimum: int, maximum: int, at_time: Callable[[int], int]) -> int:
        """Return the offset that is meant in a queue."""
        if self.kind == "time":
            return at_time(self.number)
        return self.number + {"start": minimum, "end": maximum, "offset": 0}[self.kind]


def parse_range(text: str, now_millis: int) -> Callable[[int, int, Callable[[int], int]], Range]:
    """Return the function that gives the range in a queue with these bounds; raises ValueError.

    ``start`` ``end`` ``N`` ``+N`` (after the first N) ``-N`` (the last N) ``A:B`` ``@TIME`` ``@TIME:@TIME``
    ``@TIME:end``.
    The function takes minimum, maximum, and what finds the offset at a time.
    """
    first, separator, last = _split_range(text)
    begin = _parse_edge(first or "start", now_millis)
    stop = _parse_edge(last or "end", now_millis) if separator else None
    if stop is not None:
        _check_order(text, begin, stop)

    def bounds(minimum: int, maximum: int, at_time: Callable[[int], int]) -> Range:
        start = max(minimum, min(maximum, begin.offset(minimum, maximum, at_time)))
        if stop is None:
            return Range(start, None)
        return Range(start, max(start, min(maximum, stop.offset(minimum, maximum, at_time))))

    return bounds


def _check_order(text: str, begin: _Edge, stop: _Edge) -> None:
    """Raise ValueError for a range that begins after its end, whatever a queue holds."""
    if begin.kind == stop.kind and begin.number > stop.number:
        said = f" ({timestamp(begin.number)} and {timestamp(stop.number)})" if begin.kind == "time" else ""
        raise ValueError(f"{text!r} begins after its end{said}")
    if (begin, stop) == (_Edge("end", 0), _Edge("start", 0)):
        raise ValueError(f"{text!r} begins after its end")


def _split_range(text: str) -> tuple[str, str, str]:
    """Split at the colon between two edges, which a time may hold as well."""
    if text.startswith("@"):
        match = re.fullmatch(r"(@.*?)(:)(@.*|start|end)", text)
        return (match[1], match[2], match[3]) if match else (text, "", "")
    return text.partition(":")


def _parse_edge(text: str, now_millis: int) -> _Edge:
    if text == "start":
        return _Edge("start", 0)
    if text == "end":
        return _Edge("end", 0)
    if text.startswith("@"):
        return _Edge("time", parse_time(text[1:], now_millis))
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"{text!r} is not an offset: start, end, N, +N, -N, A:B, @TIME or @TIME:@TIME")
    return _Edge("end" if text.startswith("-") else "start" if text.startswith("+") else "offset", int(text))


@command(help="Watch topics without a group: no offset moves, and other consumers still get every message.")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-o", "--offsets", metavar="OFFSETS", multiple=True, callback=or_form,
              help="Where to begin in each queue: start, end, N, +N, -N (the last N), A:B, @TIME or @TIME:@TIME. "
                   "Default: end. The name of an output format, such as json, means --output.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Begin this long ago, or at this time, for example 10m.")
@_tag
@_sql
@click.option("--grep", metavar="RE", help="Only messages whose body contains a match of this regular expression.")
@_count
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop when all existing messages are printed.")
@_format
def tail(
    topics: tuple[str, ...],
    offsets: str | None,
    since: str | None,
    tag: str | None,
    sql: str | None,
    grep: str | None,
    count: int | None,
    exit_at_end: bool,
    line_format: str | None,
) -> None:
    from rocketcore import PullConsumer

    settings = current()
    show = _printer(line_format)
    if offsets is not None and since is not None:
        raise click.UsageError("--offsets and --since exclude each other")
    try:
        bounds = parse_range(f"@{since}" if since is not None else offsets or "end", round(time.time() * 1000))
        pattern = re.compile(grep.encode()) if grep else None
    except (ValueError, re.error) as error:
        raise click.UsageError(str(error)) from error
    with open_admin() as admin:
        ranges = {queue: span for topic in topics for queue, span in _ranges(admin, topic, bounds, exit_at_end).items()}
    ends = {queue: span.end for queue, span in ranges.items() if span.end is not None}
    open_ended = len(ends) < len(ranges)
    left = {queue for queue, end in ends.items() if ranges[queue].start < end}
    if not left and not open_ended:
        return
    shown = 0
    missing = Missing(ranges)
    with (
        PullConsumer(
            settings.namesrv, group=TOOLS_GROUP, start_from="first", tls=settings.tls, **settings.credentials
        ) as consumer,
        Watch.of(topics, settings) as watch,
    ):
        consumer.gaps.tell(missing.note)
        wanted = [queue for queue in ranges if queue in left or queue not in ends]
        consumer.assign(wanted, tag=tag, sql=sql)
        for queue in wanted:
            consumer.seek(queue, ranges[queue].start)
        before: dict[MessageQueue, int] = {}
        moved_at = time.monotonic()
        while left or open_ended:
            for message in consumer.poll(POLL_SECONDS):
                watch.heard()
                missing.reached(message.queue, message.offset)
                end = ends.get(message.queue)
                if (end is not None and message.offset >= end) or (pattern and not pattern.search(message.body)):
                    continue
                shown += 1
                if not show(message) or shown == count:
                    missing.check(whole=False)
                    return
            positions = {queue: consumer.position(queue) for queue in left}
            left = {queue for queue, position in positions.items() if position < ends[queue]}
            now = time.monotonic()
            if open_ended or positions != before or watch.trouble is not None:
                before, moved_at = positions, now
            elif now - moved_at > STALLED_SECONDS:
                raise _unreadable(positions)
    missing.check(whole=True)


def _unreadable(positions: dict[MessageQueue, int]) -> CommandFailed:
    where = ", ".join(f"{queue.topic} {queue.broker}/{queue.queue_id}@{at}" for queue, at in sorted(positions.items()))
    return CommandFailed(
        "UNREADABLE", f"received nothing for {STALLED_SECONDS:g} s from {where}",
        "the broker answers, but does not send these messages: check its log", exit_code=EXIT_PARTLY,
    )  # fmt: skip


def _ranges(
    admin: Admin, topic: str, bounds: Callable[[int, int, Callable[[int], int]], Range], to_end: bool
) -> dict[MessageQueue, Range]:
    result = {}
    for queue, offsets in admin.topic_stats(topic).items():
        span = bounds(offsets.min_offset, offsets.max_offset, lambda millis, q=queue: admin.search_offset(q, millis))  # type: ignore[misc]
        if to_end and span.end is None:
            span = Range(span.start, offsets.max_offset)
        result[queue] = span
    return result


def _printer(line_format: str | None) -> Callable[[ReceivedMessage], bool]:
    """Return what prints a message; it returns whether anybody reads that."""
    check_stream_form()
    if line_format is not None:
        if current().output in ("json", "jsonl"):
            raise click.UsageError("--format and -o json exclude each other")
        try:
            text = compile_format(line_format)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--format") from error
        return lambda message: print_line(text(message))
    return lambda message: show_line(message_object(message), message_line(message))
