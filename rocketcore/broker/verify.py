"""Verify and repair the folder of a broker that does not run: its store, its configuration, and how they fit together.

A repair is a start that believes no queue, and its end: the code that a broker runs. So damage in the log is put aside
and bridged as a start does it, and what follows from the log is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rocketcore.broker.state.json_file import read_object
from rocketcore.broker.store import MessageStore, StoreConfig
from rocketcore.broker.store.verify import Progress, ReadOnlyFiles, Report, verify
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import RocketError
from rocketcore.protocol.bodies.group import SubscriptionGroupWrapper
from rocketcore.protocol.bodies.stats import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from rocketcore.protocol.bodies.topic import TopicConfigSerializeWrapper

__all__ = ["repair_broker", "verify_broker"]

T = TypeVar("T")

_DERIVED = ("log", "queue", "index", "note")
"""Kinds of damage that a start leaves behind."""

_READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "topics.json": TopicConfigSerializeWrapper.from_json,
    "subscriptionGroup.json": SubscriptionGroupWrapper.from_json,
    "consumerOffset.json": ConsumerOffsetSerializeWrapper.from_json,
    "delayOffset.json": DelayOffsetSerializeWrapper.from_json,
}
"""Those that a broker needs; of any other it is enough to be a JSON object."""


def verify_broker(
    config: StoreConfig, *, files: ReadOnlyFiles | None = None, progress: Progress = lambda done, total: None
) -> Report:
    """Look at every file of a broker's folder, and change none; see ``store.verify.verify``."""
    report = verify(config, files=files, progress=progress)
    folder = config.root / "config"
    names = {path.name.removesuffix(".bak") for path in folder.glob("*.json*") if path.name.endswith((".json", ".bak"))}
    values = {name: _newest(folder / name, _READERS.get(name, dict), report) for name in sorted(names)}
    if "topics.json" not in names and report.messages:
        report.name("config", folder / "topics.json", 0, 0, "it is missing: no topic has settings")
    for path in sorted(folder.glob("*.damaged")):
        report.remarks.append(f"{path} was put aside by an earlier start")
    offsets = values.get("consumerOffset.json")
    if isinstance(offsets, ConsumerOffsetSerializeWrapper):
        for key, of_queues in offsets.offset_table.items():
            topic, _, group = key.rpartition("@")
            for queue_id, offset in of_queues.items():
                _check_offset(report, folder / "consumerOffset.json", f"group {group}", topic, queue_id, offset)
    delays = values.get("delayOffset.json")
    if isinstance(delays, DelayOffsetSerializeWrapper):
        path = folder / "delayOffset.json"
        for level, offset in delays.offset_table.items():
            _check_offset(report, path, f"delay level {level}", SCHEDULE_TOPIC, level - 1, offset)
    return report


def _newest(path: Path, parse: Callable[[dict[str, Any]], T], report: Report) -> T | None:
    """Return what the newest sound generation of a file holds; names those that are damaged."""
    newest = None
    for each in (path, path.with_name(path.name + ".bak")):
        try:
            content = each.read_bytes()
        except FileNotFoundError:
            if each is path:
                report.name("config", each, 0, 0, "it is missing: a start takes its .bak, the generation before")
            continue
        except OSError as error:
            report.name("config", each, 0, 0, f"it cannot be read: {error.strerror}")
            continue
        report.file_count += 1
        report.read_bytes += len(content)
        try:
            value = parse(read_object(content))
        except (ValueError, RocketError) as error:
            report.name("config", each, 0, len(content), str(error))
        else:
            newest = value if newest is None else newest
    return newest


def _check_offset(report: Report, path: Path, who: str, topic: str, queue_id: int, offset: int) -> None:
    bounds = report.bounds.get((topic, queue_id))
    if bounds is not None and not 0 <= offset <= bounds[1]:
        what = f"{who} is at {offset} of {topic}/{queue_id}, which ends at {bounds[1]}"
        report.name("offset", path, 0, 0, what)


def repair_broker(config: StoreConfig, found: Report, *, progress: Progress = lambda done, total: None) -> Report:
    """Have what follows from the log made anew, where something of it was found damaged, and verify again.

    found   what ``verify_broker`` said
    raises  as ``verify_broker``; StoreFull, StoreError or OSError where the folder cannot be written
    """
    if not any(damage.kind in _DERIVED for damage in found.damaged):
        return found
    asyncio.run(_rebuild(config, {damage.path for damage in found.damaged if damage.kind == "index"}))
    return verify_broker(config, progress=progress)


async def _rebuild(config: StoreConfig, doubtful: set[Path]) -> None:
    """Start a store that builds its queues, and index files in place of doubtful ones, and stop it."""
    store = MessageStore(config)
    store.load(rebuild=True)
    for path in doubtful:
        path.unlink(missing_ok=True)  # the folder is locked, and the index not read yet
    await store.start()
    await store.stop()
