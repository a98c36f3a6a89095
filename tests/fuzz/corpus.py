"""Corpora: the inputs of one target in one ``.zip``, which comes out the same for the same inputs.

Each input is named by its digest. What libFuzzer's merge leaves is what covers all that was reached.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
MAX_INPUTS = 300
MAX_BYTES = 300_000
_EPOCH = (1980, 1, 1, 0, 0, 0)


def path_of(target: str) -> Path:
    return FOLDER / f"{target}.zip"


def load(target: str) -> list[bytes]:
    """Return the kept inputs of a target; none where it has no corpus yet."""
    if not path_of(target).exists():
        return []
    with zipfile.ZipFile(path_of(target)) as archive:
        return [archive.read(name) for name in archive.namelist()]


def save(target: str, inputs: Iterable[bytes]) -> int:
    """Keep these inputs; of too many, some of every length. Returns how many."""
    ordered = sorted(set(inputs), key=lambda data: (len(data), data))
    count = min(len(ordered), MAX_INPUTS)
    kept: dict[str, bytes] = {}
    room = MAX_BYTES
    for index in range(count):
        data = ordered[index * len(ordered) // count]
        room -= len(data)
        if room < 0:
            break
        kept[name_of(data)] = data
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(path_of(target), "w") as archive:
        for name, data in sorted(kept.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return len(kept)


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
