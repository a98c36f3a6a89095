"""The blocking face of administration: the operations of ``AsyncAdmin`` with their names, signatures and docstrings."""

from __future__ import annotations

import asyncio
import inspect

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
    with pytest.raises(TypeError, match=r"^Admin\.topic_route\(\) missing 1 required"):
        asyncio.run(AsyncAdmin("n:1").topic_route())  # type: ignore[call-arg]
