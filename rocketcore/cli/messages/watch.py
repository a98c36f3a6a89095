"""What a command that waits for messages says when there is nobody left who could send any, or some are damaged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import Settings
from rocketcore.cli.shell.render import counted, tell
from rocketcore.errors import RocketError
from rocketcore.message_queue import MessageQueue
from rocketcore.printable import printable

__all__ = ["Missing", "Watch", "require_topics"]

PROBE_SECONDS: Final = 2.0
"""Between two probes of a cluster from which nothing comes."""


def require_topics(topics: Sequence[str], settings: Settings) -> None:
    """Find the route of each topic; raises TopicNotExist, or the error of name servers that do not answer.

    A consumer waits for whatever is missing; who has typed the names wants to know that it is.
    """
    with open_admin(len(topics), settings) as admin:
        for topic in topics:
            admin.topic_route(topic)


class Watch(AbstractContextManager["Watch"]):
    """Asks the brokers of the topics while no message comes; says on stderr when they go away and when they are back.

    ask    one probe; raises RocketError where a server does not answer
    pause  seconds before each
    """

    def __init__(self, ask: Callable[[], object], settings: Settings, pause: float = PROBE_SECONDS) -> None:
        self._ask = ask
        self._settings = settings
        self._pause = pause
        self._ended = threading.Event()
        self._heard = False
        self._trouble: RocketError | None = None
        self._thread = threading.Thread(target=self._run, name="rocket-watch", daemon=True)

    @classmethod
    def of(cls, topics: Sequence[str], settings: Settings, within: float | None = None) -> Watch:
        """Watch the servers of these topics.

        within  seconds that the command has, if it ends by itself: at their end a probe has shown who answers
        """
        pause = PROBE_SECONDS
        if within is not None and within < pause + settings.timeout:
            pause = min(pause, within / 4)
            settings = settings.shorter(within * 0.7 - pause)

        def ask() -> None:
            with open_admin(len(topics), settings) as admin:
                for topic in topics:
                    admin.topic_stats(topic)

        return cls(ask, settings, pause)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # not joined: a probe may take as long as its time-out

    def heard(self) -> None:
        """Note that a message came: nobody has to be asked."""
        self._heard = True

    @property
    def trouble(self) -> RocketError | None:
        """What the last probe failed with; None where the cluster answers, or a message has come since."""
        return None if self._heard else self._trouble

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            if self._heard:
                self._heard = False
                self._found(None)
            else:
                self.probe()

    def probe(self) -> None:
        """Ask once, and say what has changed."""
        try:
            self._ask()
        except RocketError as error:
            self._found(error)
        else:
            self._found(None)

    def _found(self, error: RocketError | None) -> None:
        known, self._trouble = self._trouble, error
        if (known is None) == (error is None) or self._ended.is_set() or self._settings.quiet:
            return
        if error is None:
            tell("the cluster answers again")
        else:
            tell(f"waiting for the cluster: {printable(' '.join(str(error).split()))}")


class Missing:
    """Messages that brokers left out of their answers, told on stderr as soon as that is known, a line a stretch.

    ranges  the offsets of a queue that the command is about, from and up to (exclusive; None: without end); of a queue
            that is not named all are
    """

    def __init__(self, ranges: Mapping[MessageQueue, tuple[int, int | None]]) -> None:
        self._ranges = ranges
        self._told: dict[MessageQueue, int] = {}
        self._stretches: list[tuple[MessageQueue, int, int]] = []
        self._reached: dict[MessageQueue, int] = {}

    def note(self, queue: MessageQueue, begin: int, end: int) -> None:
        """Take notice of a stretch; called by the consumer, on its thread."""
        start, limit = self._ranges.get(queue, (0, None))
        begin = max(begin, start, self._told.get(queue, 0))  # what is fetched twice is told once
        end = end if limit is None else min(end, limit)
        if begin < end:
            self._told[queue] = end
            self._stretches.append((queue, begin, end))
            span = f"offset {begin} was" if end == begin + 1 else f"offsets {begin} to {end - 1} were"
            where = printable(f"{queue.topic} {queue.broker}/{queue.queue_id}")
            tell(f"{where}: {span} left out by the broker: damaged, or deleted")

    def reached(self, queue: MessageQueue, queue_offset: int) -> None:
        """Note how far the command has come in a queue: a consumer fetches ahead, and what lies there may not count."""
        self._reached[queue] = queue_offset

    def check(self, *, whole: bool) -> None:
        """Raise CommandFailed if messages are missing: of all that was fetched, or only before those that came."""
        count = sum(
            end - begin for queue, begin, end in self._stretches if whole or begin < self._reached.get(queue, begin)
        )
        if count:
            raise CommandFailed(
                "LEFT_OUT", f"{counted(count, 'message')} left out: damaged at the broker, or deleted",
                "the broker's log names the file and position of each damaged message", exit_code=EXIT_PARTLY,
            )  # fmt: skip
