from collections.abc import Callable
from typing import TypeVar

_Known = TypeVar("_Known")
_Numbers = TypeVar("_Numbers")

def read_topic_table(
    body: bytes,
    numbers: Callable[[int, int, int, int], _Numbers],
    known: dict[str, _Known] | None = None,
    same: Callable[[_Known, _Numbers], bool] | None = None,
) -> tuple[dict[str, _Numbers], int, int] | None: ...
def read_topic_texts(
    data: bytes,
    position: int,
    count: int,
    numbers: Callable[[int, int, int, int], _Numbers],
    known: dict[str, _Known] | None = None,
    same: Callable[[_Known, _Numbers], bool] | None = None,
) -> tuple[dict[str, _Numbers], int, int]: ...
def moves(known: dict[str, _Known], topics: dict[str, _Numbers]) -> set[tuple[_Known | None, _Numbers]]: ...
def move(
    known: dict[str, _Known],
    topics: dict[str, _Numbers],
    target: dict[tuple[_Known | None, _Numbers], _Known],
) -> list[str]: ...
