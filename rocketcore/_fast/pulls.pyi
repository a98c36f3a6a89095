from collections.abc import Callable
from typing import Any, Protocol

from rocketcore._fast.reactor import Responder
from rocketcore._fast.window import Window

class Handed(Protocol):
    def note(self, commit_offset: int, next_offset: int, messages: int, size: int, /) -> None: ...

class PullAnswers(Responder):
    def __init__(
        self,
        codes: tuple[int, int],
        known: dict[bytes, Any],
        holds: Callable[[Any, Any], Handed | None],
        windows: dict[bytes, tuple[Any, Window]],
        locate: Callable[[Any, int], Window | None],
        most: int,
        version: int,
        limit: int = 16_777_216,
    ) -> None: ...
