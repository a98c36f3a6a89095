from collections.abc import Callable
from typing import TypeVar

_Known = TypeVar("_Known")
_Numbers = TypeVar("_Numbers")

def read_topic_table(
    body: bytes, numbers: Callable[[int, int, int, int], _Numbers]
) -> tuple[dict[str, _Numbers], int, int] | None: ...
def read_topic_texts(
    data: bytes, position: int, count: int, numbers: Callable[[int, int, int, int], _Numbers]
) -> tuple[dict[str, _Numbers], int, int]: ...
def moves(known: dict[str, _Known], topics: dict[str, _Numbers]) -> set[tuple[_Known | None, _Numbers]]: ...
