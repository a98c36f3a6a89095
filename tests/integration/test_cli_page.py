"""The examples of docs/cli.md, run again: each prints what the page shows and exits as it says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from rocketcore.cli.main import COMMANDS, Entry, LazyGroup, run
from rocketcore.local import LocalCluster
from tests.fixtures.stores import put, running_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
ADDRESSES = ("127.0.0.1:9876", "127.0.0.1:10911", "127.0.0.1:10921")
"""The name server and the brokers of the page."""
NOBODY = ("127.0.0.1:9877", "127.0.0.1:1")
"""A name server that does not answer: on the page, and in the test."""
WITH_SPARK = "bench spark"


def examples(page: str) -> Iterator[tuple[str, int, str]]:
    """Yield each command with its exit code and what it prints."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for example in re.split(r"^\$ rocket ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = example.partition("\n")
            code = re.search(r"# exits with (\d+)$", command)
            yield command, int(code[1]) if code else 0, printed


def words(text: str) -> list[list[str]]:
    """Return the words of each line: the width of a column depends on addresses."""
    return [line.split() for line in text.strip().splitlines()]


def declared(group: dict[str, Entry | LazyGroup], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each verb with its arguments and its own options."""
    for name, entry in group.items():
        if isinstance(entry, LazyGroup):
            yield from declared(entry.entries, f"{path}{name} ")
            continue
        verb = getattr(import_module(f"rocketcore.cli.{entry.module}"), entry.function)
        context = click.Context(verb)
        arguments = [each.make_metavar(context) for each in verb.params if isinstance(each, click.Argument)]
        # What every verb has is said once; --log-file, too, is done when it is read, and is of servers alone.
        own = [each for each in verb.params if each.expose_value or each.name == "log_file"]
        options = [each for each in own if isinstance(each, click.Option) and not each.hidden]
        assert all(option.help for option in options)
        yield f"{path}{name}", [*arguments, *("/".join([*option.opts, *option.secondary_opts]) for option in options)]


def test_the_page_lists_every_verb_with_its_options() -> None:
    block = re.search(r"## All verbs\n.*?```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    listed = re.sub(r"\n {14}", " ", block[1]).splitlines()
    expected = {verb: re.sub("[{}]", "", " ".join(parts)).split() for verb, parts in declared(COMMANDS)}
    expected["cluster topology"].append("table|wide|json|jsonl|yaml|csv|name|dot|mermaid|svg")
    found = {}
    for line in filter(None, listed):
        verb = max((verb for verb in expected if line.startswith(verb)), key=len)
        found[verb] = line.removeprefix(verb).split()
    assert found == expected


def damaged_store(root: Path) -> None:
    """Make the store of the page: three messages, the second damaged, and the unit of the third."""

    async def fill() -> None:
        index: dict[str, Any] = {"message_index_enable": True, "max_hash_slot_num": 500, "max_index_num": 1000}
        async with running_store(root, **index) as store:
            for number in range(3):
                await put(store, b"%d" % number, topic="orders")

    asyncio.run(fill())
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    for path, position in ((root / "commitlog" / f"{0:020d}", 150), (root / "consumequeue/orders/0" / f"{0:020d}", 45)):
        with path.open("r+b") as file:
            file.seek(position)
            file.write(b"?")


def check(found: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run commands and compare what they print with what the page shows."""
    monkeypatch.setenv("ROCKET_CONTEXT", "")
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: str(folder / "config"))
    monkeypatch.chdir(folder)
    damaged_store(folder / "store")
    with LocalCluster(brokers=2) as cluster:
        real = dict(zip(ADDRESSES, (cluster.namesrv, *cluster.broker_addresses), strict=True)) | dict([NOBODY])
        monkeypatch.setenv("ROCKET_NAMESRV", cluster.namesrv)
        for command, code, shown in found:
            arguments = command
            for ours, theirs in real.items():
                arguments = arguments.replace(ours, theirs)
            with io.StringIO() as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                assert run(shlex.split(arguments, comments=True)) == code, command
                printed = out.getvalue()
            for ours, theirs in real.items():
                printed = re.sub(rf"{re.escape(theirs)}(?!\d)", ours, printed)
            said = words(printed)
            for i, line in enumerate(words(shown)):
                assert len(said) > i, command
                same = [word if wanted != "…" else wanted for word, wanted in zip(said[i], line, strict=True)]
                assert same == line, command
            assert len(said) == len(words(shown)), command


def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [example for example in examples(PAGE.read_text()) if not example[0].startswith(WITH_SPARK)]
    assert len(found) > 20
    check(found, monkeypatch, tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_page_shows_what_spark_does(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [example for example in examples(PAGE.read_text()) if example[0].startswith(WITH_SPARK)]
    assert found
    check(found, monkeypatch, tmp_path)
