"""What is inside of an object that Spark carries from the driver to its tasks.

As a program: unpickle from standard input where nothing can be reached, and print what came.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
)

from rocketcore.spark import connection

CARRIED = (DataSource, DataSourceReader, DataSourceArrowWriter, DataSourceStreamArrowWriter, InputPartition)


def plain(value: object) -> Any:
    """Return a value as JSON has it; raises TypeError where something is no plain value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return sorted(([plain(key), plain(item)] for key, item in value.items()), key=repr)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        held = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    elif isinstance(value, CARRIED):
        held = vars(value)
    else:
        raise TypeError(f"{type(value)} is no plain value")
    return {"": type(value).__qualname__, **{name: plain(item) for name, item in held.items()}}


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Keep this process from the network, and from what would need it."""
    if event.startswith("socket.") or event in ("_thread.start_new_thread", "_thread.start_joinable_thread"):
        raise PermissionError(f"{event} {arguments}")


if __name__ == "__main__":
    sys.addaudithook(refuse)
    carried = [plain(each) for each in pickle.load(sys.stdin.buffer)]
    assert threading.active_count() == 1
    assert not connection._POOL._connections
    print(json.dumps(carried))
