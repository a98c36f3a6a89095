"""Small files that are replaced as a whole, and lines with a checksum before them."""

from __future__ import annotations

import zlib
from pathlib import Path

from rocketcore.broker.store.file_system import REPLACE, FileSystem, sync_checked, sync_names, write_checked

__all__ = ["replace_durably", "with_crc", "without_crc"]


def replace_durably(path: Path, data: bytes, files: FileSystem) -> None:
    """Write a small file so that at any crash the path holds the old or the new content, whole."""
    temporary = path.with_name(path.name + ".tmp")
    with files.opened(temporary, REPLACE) as fd:
        write_checked(fd, data, 0, temporary, files)
        sync_checked(fd, temporary, files)
    files.rename(temporary, path)
    sync_names(path.parent, files)


def with_crc(line: bytes) -> bytes:
    """Return a small file's content: the CRC-32 of a line, and the line."""
    return b"%08x\n%b" % (zlib.crc32(line), line)


def without_crc(content: bytes) -> bytes:
    """Return the line of such a content; raises ValueError where its CRC is another."""
    digest, _, line = content.partition(b"\n")
    if digest != b"%08x" % zlib.crc32(line):
        raise ValueError("its checksum is wrong")
    return line
