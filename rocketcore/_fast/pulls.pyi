from collections.abc import Callable
from typing import Any

from _typeshed import ReadableBuffer

from rocketcore._fast.reactor import Responder

class PullAnswers(Responder):
    def __init__(
        self,
        codes: tuple[int, int],
        known: dict[bytes, Any],
        locate: Callable[[Any, Any, int], tuple[ReadableBuffer, int, bool, int, int, int, int, int] | None],
        answered: Callable[[Any, int, int, int, int], None],
        rows: memoryview,
        version: int,
        limit: int = 16_777_216,
    ) -> None: ...
