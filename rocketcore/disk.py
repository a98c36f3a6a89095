"""How full a disk is, by the one rule that brokers delete and refuse by, and that commands show; what it refuses."""

from __future__ import annotations

import errno
import os

__all__ = ["is_passing", "used_ratio"]


def used_ratio(folder: str | os.PathLike[str]) -> float:
    """Return how much of the disk that holds a folder is used, 0 to 1, of what there is for others than root.

    raises    OSError
    RocketMQ  ``UtilAll.getDiskPartitionSpaceUsedPercent``
    """
    disk = os.statvfs(folder)
    used = disk.f_blocks - disk.f_bfree
    return used / max(used + disk.f_bavail, 1)


def is_passing(error: OSError) -> bool:
    """Whether what could not be read may be the next time: the disk is not what refuses it."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
