"""``python -m bench.slow_disk_broker broker start …``: the ``rocket`` command, on a disk that takes its time.

Each sync takes ``SYNC_MILLIS`` milliseconds (environment) longer than the machine's own: a volume of a cloud, or one
that turns.
"""

from __future__ import annotations

import os
import time

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.cli.main import main

if __name__ == "__main__":
    seconds = float(os.environ["SYNC_MILLIS"]) / 1000
    sync = FileSystem.sync

    def late(files: FileSystem, fd: int) -> None:
        sync(files, fd)
        time.sleep(seconds)

    # The command makes the store's files itself: a file system of one's own cannot be handed to it.
    FileSystem.sync = late  # type: ignore[method-assign]
    # Nor does the kernel that writes the log make the system's calls itself.
    FileSystem.direct = False  # type: ignore[assignment, method-assign]
    main()
