"""How full a disk is, by the one rule that brokers delete and refuse by, and that commands show."""

from __future__ import annotations

import os

__all__ = ["used_ratio"]


def used_ratio(folder: str | os.PathLike[str]) -> float:
    """Return how much of the disk that holds a folder is used, 0 to 1, of what there is for others than root.

    raises    OSError
    RocketMQ  ``UtilAll.getDiskPartitionSpaceUsedPercent``
    """
    disk = os.statvfs(folder)
    used = disk.f_blocks - disk.f_bfree
    return used / max(used + disk.f_bavail, 1)
