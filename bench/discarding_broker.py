"""``python -m bench.discarding_broker broker start …``: the ``rocket`` command, with a disk that keeps nothing.

The broker checks, lays out, numbers and answers what it is sent as always, and no byte reaches a file: what is left of
its CPU time is its own, without the memory that a machine has to find for gigabytes of page cache. Nothing can be read
from it, so nothing is indexed either: the index reads what was written.
"""

from __future__ import annotations

import os

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.cli.main import main


def _discard(files: FileSystem, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    pass


if __name__ == "__main__":
    # The command makes the store's files itself: a file system of one's own cannot be handed to it.
    FileSystem.write = _discard  # type: ignore[method-assign]
    # Room on the disk would be full after some hundred rounds.
    FileSystem.allocate = FileSystem.resize  # type: ignore[method-assign]
    # Nor does the kernel that writes the log make the system's call itself.
    FileSystem.direct = False  # type: ignore[assignment, method-assign]
    os.environ["ROCKETCORE_MESSAGE_INDEX_ENABLE"] = "false"
    main()
