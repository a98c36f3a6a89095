"""Methods of the blocking clients, made of those that they run: the same arguments and the same documentation.

``send = blocking(Sender.send)`` in a class is a method that runs the coroutine to its end. Type checkers and ``help()``
see the arguments of the coroutine, its overloads too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rocketcore.client.tracebacks import SHORTENED, edge, shortened

__all__ = ["BlockingMethods", "blocking", "constructor", "of_method", "on_loop"]

T = TypeVar("T")
P = ParamSpec("P")


class BlockingMethods(Protocol):
    """What a class needs for methods that are made here."""

    def _logic(self) -> Any:
        """Return the object whose methods are called."""

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of that object to its end."""


def of_method(error: TypeError, kind: type, name: str) -> TypeError:
    """Return an error about arguments that names the method that was called, not the one that it runs."""
    text = str(error)
    place = text.find(f"{name}()")
    return error if place < 0 else TypeError(f"{kind.__name__}.{text[place:]}")


def constructor(function: Callable[P, None]) -> Callable[P, None]:
    """Return an ``__init__`` whose errors about arguments name the class that is made, not that of its settings."""

    @edge
    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            function(*arguments, **options)
        except TypeError as error:
            raise of_method(error, type(arguments[0]), "__init__") from None

    return call


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs the coroutine method of this name, a subclass's own too, to its end."""
    name = method.__name__

    def call(self: BlockingMethods, /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            try:
                coroutine: Coroutine[Any, Any, T] = getattr(self._logic(), name)(*arguments, **options)
            except TypeError as error:
                raise of_method(error, type(self), name) from None
            return self._run(coroutine)
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)

    functools.update_wrapper(call, method)
    return call


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that has the loop call the plain method of this name: what it touches belongs to the loop."""
    name = method.__name__

    def call(self: BlockingMethods, /, *arguments: P.args, **options: P.kwargs) -> T:
        async def on_loop() -> T:
            run = getattr(self._logic(), name)
            try:
                result: T = run(*arguments, **options)
            except TypeError as error:
                raise of_method(error, type(self), name) from None
            return result

        try:
            return self._run(on_loop())
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)

    functools.update_wrapper(call, method)
    return call
