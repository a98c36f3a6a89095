"""Blocking methods that are made of the coroutines that they run."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from rocketcore.client.blocking import blocking, on_loop
from rocketcore.transport.blocking.client import run_sync

T = TypeVar("T")


class Logic:
    async def ask(self, topic: str, *, timeout: float = 1.0) -> str:
        """Ask."""
        if timeout < 0:
            raise TypeError("ask() of the logic itself")
        return f"{topic} {timeout:g}"

    def count(self, most: int) -> int:
        return most + 1


class Face:
    def _logic(self) -> Logic:
        return Logic()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_sync(coroutine)

    ask = blocking(Logic.ask)
    count = on_loop(Logic.count)


def test_arguments_and_results_go_through() -> None:
    assert Face().ask("T", timeout=2) == "T 2"
    assert Face().count(1) == 2
    assert Face.ask.__doc__ == "Ask."


def test_wrong_arguments_are_told_of_the_method_that_was_called() -> None:
    face: Any = Face()
    with pytest.raises(TypeError, match=r"^Face\.ask\(\) missing 1 required positional argument: 'topic'$"):
        face.ask()
    with pytest.raises(TypeError, match=r"^Face\.ask\(\) got an unexpected keyword argument 'time'$"):
        face.ask("T", time=1)
    with pytest.raises(TypeError, match=r"^Face\.count\(\) missing 1 required positional argument: 'most'$"):
        face.count()


def test_errors_of_the_coroutine_are_its_own() -> None:
    with pytest.raises(TypeError, match=r"^ask\(\) of the logic itself$"):
        Face().ask("T", timeout=-1)
