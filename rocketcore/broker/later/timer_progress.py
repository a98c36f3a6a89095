"""How far the timer is: what a start has to know so that no message is lost and none comes twice.

Messages come in the order of their times, not in that of their queue, so there is no position in it. What is saved says
instead: of the messages before some offset of the queue, all that were due up to some time are delivered. Of the others
the log tells, by the marks of deliveries, from the first on that this does not cover.

File     ``config/timerOffset.json``: ``{"deliveredUntil", "queueOffset", "firstOffset", "logOffset"}``.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from rocketcore.broker.store.timed import timer_out

__all__ = ["Progress", "Saved", "parse"]

_MAX_SECONDS = 4096


class Saved(NamedTuple):
    """What the file says: of the messages before ``before`` those due at ``until`` or earlier are delivered.

    until       milliseconds since the epoch
    before      queue offset
    first       no message before this queue offset waits
    log_offset  deliveries of all others lie behind it; -1 where that is not known
    """

    until: int = -1
    before: int = 0
    first: int = 0
    log_offset: int = -1

    def encode(self) -> bytes:
        return b'{"deliveredUntil":%d,"queueOffset":%d,"firstOffset":%d,"logOffset":%d}' % self


def parse(text: dict[str, Any]) -> Saved:
    """Read what a file says; raises ValueError."""
    names = "deliveredUntil", "queueOffset", "firstOffset", "logOffset"
    values = [value for name in names if isinstance(value := text.get(name), int)]
    if len(values) < len(names):
        raise ValueError(f"{', '.join(names)} are needed: {text!r}")
    return Saved(*values)


class Progress:
    """What is delivered."""

    def __init__(self) -> None:
        self.saved = Saved()
        self._seconds: dict[int, int] = {}
        """TIMER_OUT_MS → where the log has the first delivery of a message of this second, or of some before it."""

    def begin(self, saved: Saved) -> None:
        """Begin with what a start found."""
        self.saved = saved

    def delivered(self, due: int, physical_offset: int) -> None:
        """Note a delivery: when its message was due, and where it is in the log."""
        self._seconds.setdefault(timer_out(due), physical_offset)
        if len(self._seconds) > _MAX_SECONDS:
            # Of several seconds together where the first delivery is, as of the last of them.
            seconds = sorted(self._seconds.items())
            pairs = itertools.zip_longest(seconds[::2], seconds[1::2], fillvalue=seconds[-1])
            self._seconds = {later[0]: min(earlier[1], later[1]) for earlier, later in pairs}

    def advance(self, until: int, first: int | None, end: int, log_end: int) -> Saved:
        """Return what can be said now, and forget what that makes needless.

        until    the TIMER_OUT_MS of the first message that waits or is not on disk yet, or of now: others come later
        first    the lowest queue offset of such messages
        end      of the queue
        log_end  deliveries that follow lie behind it

        A time that was said is taken back only if all that it was said of is delivered. So where the wall clock was set
        back, or the unit of a message that waits is damaged, this stays as it is: deliveries would be forgotten.
        """
        if until < self.saved.until and first is not None and first < self.saved.before:
            return self.saved
        self._seconds = {out: place for out, place in self._seconds.items() if out >= until}
        log_offset = min(self._seconds.values(), default=log_end)
        self.saved = Saved(until, end, end if first is None else first, log_offset)
        return self.saved
