"""The blocking face of administration: the operations of ``AsyncAdmin`` with their names, signatures and docstrings."""

from __future__ import annotations

import asyncio
import inspect
import pickle

import pytest

from rocketcore.admin.client import Admin, AsyncAdmin

OPERATIONS = {
    name
    for name, value in inspect.getmembers(AsyncAdmin, inspect.iscoroutinefunction)
    if not name.startswith("_") and name != "close"
}


def test_both_have_the_same_operations() -> None:
    assert len(OPERATIONS) > 40
    blocking = {name for name, value in inspect.getmembers(Admin, inspect.isfunction) if not name.startswith("_")}
    assert blocking == OPERATIONS | {"close"}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_is_declared_once(name: str) -> None:
    declared, blocking = getattr(AsyncAdmin, name), getattr(Admin, name)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.signature(blocking) == inspect.signature(declared)
    assert inspect.getdoc(blocking) == inspect.getdoc(declared) is not None


def test_an_error_about_arguments_names_the_method_that_was_called() -> None:
    with Admin("n:1") as admin, pytest.raises(TypeError, match=r"^Admin\.topics\(\) got an unexpected"):
        admin.topics(clusters="c")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Admin\.topic_route\(\): topic must be text, got bytes$"):
        Admin("n:1").topic_route(b"T")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Admin\.topics\(\): cluster must be text, got int$"):
        Admin("n:1").topics(cluster=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Admin\.topic_route\(\) missing 1 required"):
        asyncio.run(AsyncAdmin("n:1").topic_route())  # type: ignore[call-arg]


def test_operations_have_the_names_under_which_users_find_them() -> None:
    """A coroutine that is never awaited is told by its name; another process finds what is pickled by it."""
    assert AsyncAdmin.topics.__qualname__ == "AsyncAdmin.topics"
    assert pickle.loads(pickle.dumps(AsyncAdmin.topics)) is AsyncAdmin.topics
