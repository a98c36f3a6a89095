from collections.abc import Callable, Hashable
from typing import Any

from rocketcore._fast.decided import Decided
from rocketcore._fast.reactor import Responder
from rocketcore._fast.window import Window

class PullAnswers(Responder):
    def __init__(
        self,
        codes: tuple[int, int],
        known: dict[bytes, Decided],
        waiting: dict[Hashable, Any],
        windows: dict[bytes, tuple[Decided, Window]],
        locate: Callable[[Any, int], Window | None],
        most: int,
        version: int,
        limit: int = 16_777_216,
    ) -> None: ...
