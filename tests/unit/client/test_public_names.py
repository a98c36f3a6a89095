"""The public names: there, typed, and nothing happens at import."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import typing

import pytest

import rocketcore
from rocketcore import aio


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def test_import_loads_and_starts_nothing() -> None:
    program = """
        import sys, threading
        before = set(sys.modules)
        import rocketcore, rocketcore.aio
        loaded = {name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names}
        print(sorted(loaded), threading.active_count())
    """
    assert python(program) == "['rocketcore', 'rocketcore.aio'] 1"


def test_every_name_is_there() -> None:
    for name in rocketcore.__all__:
        if name != "read_arrow":  # needs pyarrow
            assert getattr(rocketcore, name) is not None, name
    for name in aio.__all__:
        assert getattr(aio, name) is not None, name
    assert set(dir(rocketcore)) == set(rocketcore.__all__)


@pytest.mark.parametrize("module", [rocketcore, aio])
def test_an_unknown_name_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="Consumer2"):
        _ = module.Consumer2  # type: ignore[attr-defined]


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "PullConsumer", "SimpleConsumer", "Admin"])
def test_both_worlds_have_the_same_names_and_no_internals(name: str) -> None:
    of_threads, of_loops = getattr(rocketcore, name), getattr(aio, name)
    attributes = {"config", "timeout"}  # of the objects, in one of the worlds
    assert public(of_loops) - attributes == public(of_threads) - attributes
    for each in public(of_loops):
        assert (inspect.getdoc(getattr(of_loops, each)) or "").strip(), each


@pytest.mark.parametrize("name", ["PushConsumer", "PullConsumer", "SimpleConsumer"])
def test_both_worlds_take_the_same_arguments(name: str) -> None:
    of_threads, of_loops = getattr(rocketcore, name), getattr(aio, name)
    for each in public(of_loops):
        if isinstance(getattr(of_loops, each), property):
            continue
        both = [inspect.signature(getattr(kind, each)).parameters for kind in (of_threads, of_loops)]
        assert list(both[0].values()) == list(both[1].values()), each


def test_aio_is_an_attribute_of_the_package() -> None:
    assert python("import rocketcore as rmq; print(rmq.aio.Producer.__name__)") == "Producer"


@pytest.mark.parametrize(
    "name",
    ["send", "request", "send_oneway", "send_batch", "send_nowait", "send_arrow", "transaction", "flush", "close"],
)
def test_both_producers_take_the_same_arguments(name: str) -> None:
    of_threads, of_loops = getattr(rocketcore.Producer, name), getattr(aio.Producer, name)
    assert inspect.signature(of_threads).parameters == inspect.signature(of_loops).parameters
    assert (of_threads.__doc__ or "").split("\n")[0]
    overloads = [typing.get_overloads(each) for each in (of_threads, of_loops)]
    assert [[inspect.signature(each).parameters for each in both] for both in overloads[:1]] == [
        [inspect.signature(each).parameters for each in both] for both in overloads[1:]
    ]


def test_the_log_has_a_null_handler() -> None:
    assert (
        python("import logging, rocketcore; print(logging.getLogger('rocketcore').handlers)")
        == "[<NullHandler (NOTSET)>]"
    )
