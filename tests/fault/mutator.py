"""Damage to the files of a store: what disks, file systems and people do to them, drawn by a seeded source."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fault.image import LOG, Image

SECTOR = 512
PAGE = 4096
LONGEST_EXTENSION = 5000

Mutation = Callable[[Image, Image, str, random.Random], str]
"""Changes one file of the first image, may take from the older second one; returns what was done, in words."""


def mutate(image: Image, older: Image, rng: random.Random) -> list[str]:
    """Damage ``image`` in one to four places; returns what was done."""
    count = rng.choices((1, 2, 3, 4), (14, 3, 2, 1))[0]
    return [rng.choice(MUTATIONS)(image, older, _pick_file(image, rng), rng) for _ in range(count) if image.files]


def _pick_file(image: Image, rng: random.Random) -> str:
    """Draw a file; log, queues, index, settings and notes get their share whatever their number."""
    names = sorted(image.files)
    kinds = {
        "log": [name for name in names if name.startswith(LOG)],
        "queues": [name for name in names if name.startswith("consumequeue/")],
        "index": [name for name in names if name.startswith("index/")],
        "settings": [name for name in names if name.startswith("config/")],
        "notes": [name for name in names if "/" not in name],
    }
    there = {kind: files for kind, files in kinds.items() if files}
    weights = {"log": 10, "queues": 4, "index": 3, "settings": 3, "notes": 4}
    kind = rng.choices(list(there), [weights[kind] for kind in there])[0]
    return rng.choice(there[kind])


def _place(content: bytes, rng: random.Random) -> int:
    """Draw a byte of a file, mostly one that was written, often one of the last of them."""
    written = len(content.rstrip(b"\0")) or len(content)
    if not written:
        return 0
    which = rng.random()
    if which < 0.1:
        return rng.randrange(len(content))
    if which < 0.35:
        return max(0, written - 1 - int(rng.expovariate(1 / 300)))
    return rng.randrange(written)


def _replace(image: Image, name: str, start: int, data: bytes) -> str:
    content = image.files[name]
    data = data[: max(0, len(content) - start)]
    image.files[name] = content[:start] + data + content[start + len(data) :]
    return f"{name} [{start}, {start + len(data)})"


def _flip(image: Image, _: Image, name: str, rng: random.Random, count: int = 1) -> str:
    places = []
    for _ in range(count):  # type: ignore[assignment]
        content = image.files[name]
        if content:
            at, bit = _place(content, rng), rng.randrange(8)
            _replace(image, name, at, bytes([content[at] ^ 1 << bit]))
            places.append(f"{at}.{bit}")
    return f"flip {name} at {' '.join(places)}"


def _flip_several(image: Image, older: Image, name: str, rng: random.Random) -> str:
    return _flip(image, older, name, rng, rng.randint(2, 8))


def _aligned(content: bytes, rng: random.Random) -> tuple[int, int]:
    size = rng.choice((SECTOR, PAGE))
    start = _place(content, rng) // size * size
    return start, size * rng.choice((1, 1, 1, 2, 5))


def _zero(image: Image, _: Image, name: str, rng: random.Random) -> str:
    start, size = _aligned(image.files[name], rng)
    return "zero " + _replace(image, name, start, bytes(size))


def _lose_tail(image: Image, _: Image, name: str, rng: random.Random) -> str:
    """The last page that was written never reached the disk."""
    content = image.files[name]
    written = len(content.rstrip(b"\0"))
    start = max(0, written - 1) // PAGE * PAGE
    return "lose the last page of " + _replace(image, name, start, bytes(PAGE))


def _overwrite_by_older(image: Image, older: Image, name: str, rng: random.Random) -> str:
    start, size = _aligned(image.files[name], rng)
    old = older.files.get(name, b"")[start : start + size].ljust(size, b"\0")
    return "older content in " + _replace(image, name, start, old)


def _garbage(image: Image, _: Image, name: str, rng: random.Random) -> str:
    start = _place(image.files[name], rng)
    return "garbage in " + _replace(image, name, start, rng.randbytes(rng.choice((1, 4, 20, 200, SECTOR, PAGE))))


def _truncate(image: Image, _: Image, name: str, rng: random.Random) -> str:
    content = image.files[name]
    length = rng.choice((0, _place(content, rng), _place(content, rng)))
    image.files[name] = content[:length]
    return f"truncate {name} to {length}"


def _extend(image: Image, _: Image, name: str, rng: random.Random) -> str:
    size = rng.randint(1, LONGEST_EXTENSION)
    image.files[name] += rng.choice((bytes(size), rng.randbytes(size)))
    return f"extend {name} by {size}"


def _lose(image: Image, _: Image, name: str, rng: random.Random) -> str:
    del image.files[name]
    return f"lose {name}"


def _rename(image: Image, _: Image, name: str, rng: random.Random) -> str:
    target = name + rng.choice((".old", "~", ".tmp", "0"))
    image.files[target] = image.files.pop(name)
    return f"rename {name} to {target}"


def _older_file(image: Image, older: Image, name: str, rng: random.Random) -> str:
    if name not in older.files:
        return _lose(image, older, name, rng)
    image.files[name] = older.files[name]
    return f"older {name}"


MUTATIONS: list[Mutation] = [
    _flip,
    _flip,
    _flip,
    _flip_several,
    _zero,
    _zero,
    _lose_tail,
    _overwrite_by_older,
    _garbage,
    _truncate,
    _extend,
    _lose,
    _rename,
    _older_file,
]
