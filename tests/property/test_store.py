"""After a cut or a flipped bit anywhere in the log, a start keeps what is whole and never serves what is not."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rocketcore.broker.store import GetStatus
from rocketcore.broker.store.log.damage import DamagedRange
from rocketcore.errors import StoreCorrupted
from tests.fixtures.stores import SEGMENT_BYTES, crash_copy, put, read_queue, records, running_store

MESSAGES = 150
PLACES = st.integers(0, (1 << 40) - 1)
"""Drawn from a wide range and reduced to the length of the log, so that the draw does not depend on the store."""

SPEED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Written:
    """A store as a crash left it, and where its messages lie."""

    def __init__(self, root: Path, ends: list[int], bodies: list[bytes]) -> None:
        self.root = root
        self.ends = ends
        self.bodies = bodies

    def segment(self, physical_offset: int) -> tuple[Path, int]:
        start = physical_offset - physical_offset % SEGMENT_BYTES
        return Path("commitlog") / f"{start:020d}", physical_offset - start


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("written")
    bodies = [b"%06d" % number + b"\xa5" * (number * 37 % 3000) for number in range(MESSAGES)]
    ends: list[int] = []

    async def run() -> None:
        async with running_store(folder / "live") as store:
            for body in bodies:
                # Properties, so that a record does not end in zeros, which a cut would not change.
                ends.append((await put(store, body, properties=b"K\x01v\x02")).end_offset)
            crash_copy(folder / "live", folder / "crash")

    asyncio.run(run())
    yield Written(folder / "crash", ends, bodies)
    shutil.rmtree(folder)


def found_after(root: Path) -> tuple[list[bytes], list[DamagedRange]]:
    """Start on the files, read the queue, add one message, start again and check that it is there."""

    async def run() -> tuple[list[bytes], list[DamagedRange]]:
        async with running_store(root) as store:
            damaged = store.recovery.damaged
            found = [one["body"] for one in read_queue(store)]
            assert (await put(store, b"after")).queue_offset == store.max_offset("T", 0) - 1
        async with running_store(root) as store:
            assert store.recovery.damaged == []
            assert [one["body"] for one in read_queue(store)] == [*found, b"after"]
        return found, damaged

    return asyncio.run(run())


@SPEED
@given(place=PLACES)
@example(place=98)  # the first record of a log, whose properties have a length and are zeros
def test_torn_tail_at_any_byte(written: Written, place: int) -> None:
    cut = place % (written.ends[-1] + 1)
    whole = [body for body, end in zip(written.bodies, written.ends, strict=True) if end <= cut]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shutil.copytree(written.root, root)
        name, position = written.segment(cut)
        with (root / name).open("r+b") as file:
            file.seek(position)
            file.write(bytes(SEGMENT_BYTES - position))
        for path in (root / "commitlog").iterdir():
            if path.name > name.name:  # a filler is written when the next file is there
                path.write_bytes(bytes(SEGMENT_BYTES))
        found, damaged = found_after(root)
        assert found == whole
        assert damaged == []


@SPEED
@given(place=PLACES, bit=st.integers(0, 7), notes_lost=st.booleans())
def test_a_flipped_bit_is_never_served(written: Written, place: int, bit: int, notes_lost: bool) -> None:
    """It costs the message that it is in, which is named, wherever the last note is; the rest is served."""
    at = place % written.ends[-1]
    hit = sum(end <= at for end in written.ends)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shutil.copytree(written.root, root)
        name, position = written.segment(at)
        with (root / name).open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << bit]))
        if notes_lost:
            (root / "queuebounds").unlink(missing_ok=True)
        found, damaged = found_after(root)
        if found == written.bodies:
            # A filler: its magic is damaged and mended, its length is looked at by nobody.
            assert not any(one.physical_offset < written.ends[-1] and one.length > 3000 + 300 for one in damaged)
            return
        assert found == written.bodies[:hit] + written.bodies[hit + 1 :]
        if hit < MESSAGES - 1:
            assert [one.physical_offset <= at < one.physical_offset + one.length for one in damaged] == [True]


@SPEED
@given(number=st.integers(0, MESSAGES - 1), byte=st.integers(0, 11), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_queue_is_found(written: Written, number: int, byte: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shutil.copytree(written.root, root)

        async def run() -> None:
            async with running_store(root):
                pass
            path = root / "consumequeue" / "T" / "0" / f"{number // 50 * 1000:020d}"
            units = bytearray(path.read_bytes())
            units[number % 50 * 20 + byte] ^= 1 << bit
            path.write_bytes(units)
            async with running_store(root) as store:
                for offset in range(MESSAGES):
                    try:
                        result = store.get("T", 0, offset, 1)
                    except StoreCorrupted:
                        assert offset == number
                        continue
                    if result.status is GetStatus.FOUND:
                        (one,) = records(result.body)
                        assert (one["queue_offset"], one["body"]) == (offset, written.bodies[offset])
            async with running_store(root) as store:
                assert [one["body"] for one in read_queue(store)] == written.bodies

        asyncio.run(run())
