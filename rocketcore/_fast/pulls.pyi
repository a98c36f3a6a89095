from collections.abc import Callable
from typing import Any

from rocketcore._fast.reactor import Responder
from rocketcore._fast.window import Window

class PullAnswers(Responder):
    def __init__(
        self,
        codes: tuple[int, int],
        known: dict[bytes, Any],
        holds: Callable[[Any, Any], bool],
        windows: dict[bytes, tuple[Any, Window]],
        locate: Callable[[Any, int], Window | None],
        answered: Callable[[Any, int, int, int, int], None],
        most: int,
        version: int,
        limit: int = 16_777_216,
    ) -> None: ...
