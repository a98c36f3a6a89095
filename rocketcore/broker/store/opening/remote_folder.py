"""Folders of a store that are on no disk of this machine: what can be promised there is said once, at the start."""

from __future__ import annotations

import logging

from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem

__all__ = ["warn_of_remote_folders"]

REMOTE_TYPES = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x73757245: "Coda",
}
"""Magic numbers of statfs(2)."""

logger = logging.getLogger(__name__)


def warn_of_remote_folders(config: StoreConfig, files: FileSystem) -> None:
    """Say which folders are on a file system of another machine, or of a process (FUSE), and what that means."""
    found = []
    for folder in dict.fromkeys((config.root, config.commit_log_folder)):
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        name = REMOTE_TYPES.get(files.type(there))
        if name is not None:
            found.append(f"{folder} ({name})")
    if found:
        logger.warning(
            "store not on a local disk path=%s: acknowledged messages are only as durable as its sync. Slow reads "
            "delay all clients. Without file locks, a second broker can open the store",
            ", ".join(found),
        )
