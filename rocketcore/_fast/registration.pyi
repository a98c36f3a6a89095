from collections.abc import Callable
from typing import Any, TypeVar

_Known = TypeVar("_Known")
_Numbers = TypeVar("_Numbers")

def read_topic_table(
    body: bytes,
    numbers: Callable[[int, int, int, int], _Numbers],
    known: dict[str, Any] | None = None,
    same: Callable[[Any, _Numbers], bool] | None = None,
) -> tuple[dict[str, _Numbers], list[str], int, int] | None: ...
def read_topic_texts(
    data: bytes,
    position: int,
    count: int,
    numbers: Callable[[int, int, int, int], _Numbers],
    known: dict[str, Any] | None = None,
    same: Callable[[Any, _Numbers], bool] | None = None,
) -> tuple[dict[str, _Numbers], list[str], int, int]: ...
def move(
    table: dict[str, _Known],
    topics: dict[str, _Numbers],
    target: Callable[[_Known | None, _Numbers], _Known],
) -> list[str]: ...
