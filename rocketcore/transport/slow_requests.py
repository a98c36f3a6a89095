"""One log line for each request that took too long, and how many there were.

The time of a request begins when what brought it was read from the socket. What one read brought is served in turn:
the time until its turn is ``queued``, from then to its answer ``handling``, and for a send, whose answer waits for the
disk, ``disk``. Requests that are meant to wait, such as a pull that is held, are not slow (``Route.waits``).

RocketMQ logs stores of more than 500 ms (``DefaultMessageStore``).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from rocketcore.protocol.command import request_name
from rocketcore.service import SYSTEM_CLOCK, Clock, Seldom

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["SlowRequests"]

logger = logging.getLogger("rocketcore.slow")

_TELL_SECONDS: Final = 1.0
_TOPICS: Final = ("topic", "b", "originTopic")
_GROUPS: Final = ("consumerGroup", "producerGroup", "a", "group", "groupName")
"""Fields that name them; ``a`` and ``b`` in the short form of a send's header."""


class SlowRequests:
    """Counts the slow requests of one server, and tells of one in a second.

    seconds  what takes at least so long is slow; infinite: nothing is
    ended    monotonic seconds at which the last request was served; the next one's turn begins then
    """

    __slots__ = ("_seldom", "count", "ended", "seconds")

    def __init__(self, millis: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seldom = Seldom(_TELL_SECONDS, clock)
        self.count = 0
        self.ended = 0.0
        self.set_millis(millis)

    def set_millis(self, millis: int) -> None:
        """Change what is slow; 0: nothing."""
        self.seconds = millis / 1000 if millis > 0 else math.inf

    def tell(
        self,
        remote: str,
        request: RemotingCommand,
        queued: float,
        handling: float,
        *,
        requests: int = 1,
    ) -> None:
        """Count requests that came together; ``request`` is the first of them, times are seconds."""
        fields = request.ext_fields or {}
        topic, group = (next(filter(None, map(fields.get, names)), "-") for names in (_TOPICS, _GROUPS))
        self._tell(
            request_name(request.code),
            remote,
            topic,
            group,
            requests,
            f"queued_ms={_millis(queued)} handling",
            handling,
        )

    def tell_send(self, remote: str, topic: str, waited: float, requests: int) -> None:
        """Count sends whose messages were on disk late, whichever of their request codes they had."""
        self._tell("SEND_MESSAGE", remote, topic, "-", requests, "disk", waited)

    def _tell(self, name: str, remote: str, topic: str, group: str, requests: int, what: str, seconds: float) -> None:
        self.count += requests
        unsaid = self._seldom.due()
        if unsaid is not None:
            logger.warning("slow request=%s remote=%s topic=%s group=%s requests=%d %s_ms=%d unsaid=%d",
                           name, remote, topic, group, requests, what, _millis(seconds), unsaid)  # fmt: skip


def _millis(seconds: float) -> int:
    return round(seconds * 1000)
