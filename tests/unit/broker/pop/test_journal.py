"""The journal of popped messages: what a start makes of it, whatever the log lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from rocketcore.broker.pop import journal as pop_journal
from rocketcore.broker.pop.journal import PopJournal
from rocketcore.broker.pop.state import Entry, PopState
from rocketcore.broker.state.json_file import JsonFile, StateWriter
from rocketcore.broker.store import MessageStore, PutStatus, StoredMessage
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.reading.lookups import Lookups
from rocketcore.service import ManualClock
from tests.integration.broker_client import store_config

TOPIC = "rmq_sys_REVIVE_LOG_C"
KEY = ["T", "g", 0]
POPPED: Entry = ["pop", *KEY, 0, [0, 1, 2], 3, 1_700_000_000_000, 60_000]


@dataclass(slots=True)
class Life:
    """One start of a store and its journal."""

    store: MessageStore
    state: PopState
    journal: PopJournal

    async def stored(self) -> None:
        done = asyncio.Event()
        self.store.wait(self.store.max_physical_offset, lambda _: done.set())
        await done.wait()

    def left(self) -> set[int]:
        queue = self.state.find("T", "g", 0)
        return set() if queue is None else set(queue.in_flight)


@asynccontextmanager
async def life(folder: Path, clock: ManualClock) -> AsyncIterator[Life]:
    store = MessageStore(store_config(folder), clock=clock)
    store.load()
    writer = StateWriter()
    state = PopState(clock)
    journal = PopJournal(store, state, TOPIC, JsonFile(folder / "popState.json"), writer, clock=clock)
    journal.load()
    await store.start()
    try:
        journal.settle()
        yield Life(store, state, journal)
    finally:
        await writer.close()
        await store.stop()


def test_a_start_reads_what_was_put(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            one.journal.put(["ack", *KEY, [1]])
            one.journal.put(["hide", *KEY, 2, 1_700_000_000_001, 90_000, True])
            one.journal.put(["next", "U", "g", 3, 7], ["pop", "V", "g", 0, 4, [4], 5, 1_700_000_000_000, 1000])
            one.journal.put(["drop", "V", ""])
        async with life(tmp_path, clock) as one:
            assert one.left() == {0, 2}
            hidden = one.state.delivery("T", "g", 0, 2, 1_700_000_000_001)
            assert hidden is not None
            assert (hidden.invisible, hidden.due, hidden.suspended) == (90_000, 90.0, True)
            assert one.state.in_flight == 2
            queue, dropped = one.state.find("U", "g", 3), one.state.find("V", "g", 0)
            assert queue is not None
            assert (queue.next, dropped) == (7, None)

    asyncio.run(main())


def test_a_start_reads_what_was_saved_and_what_came_since(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        order: Entry = ["order", "O", "g", 0, [5, 6], [0, 1], 7, 1_700_000_000_000, 1000, "attempt"]
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            one.journal.put(order)
            assert one.journal.needed_from() is None  # nothing of it is visible yet
            await one.stored()
            assert one.journal.needed_from() == 0
            await one.journal.save()
            one.journal.put(["ack", *KEY, [0]])
            await one.journal.save()
            await one.stored()
            assert one.journal.needed_from() == one.store.place(TOPIC, 0, 2)
            one.journal.put(["ack", *KEY, [1]])
        async with life(tmp_path, clock) as one:
            assert one.left() == {2}
            queue = one.state.find("O", "g", 0)
            assert queue is not None
            assert (queue.next, queue.ordered, set(queue.in_flight)) == (7, True, {5, 6})
            assert queue.in_flight[5].counts == {5: 0, 6: 1}
            assert queue.in_flight[5].attempt_id == "attempt"

    asyncio.run(main())


def test_a_table_that_changes_while_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any step of the saving: what came before a queue was looked at, and what came after it."""

    async def main(change_at: int) -> None:
        clock, folder, steps = ManualClock(), tmp_path / str(change_at), 0
        folder.mkdir()
        queues: list[list[object]] = [["T", f"g{number}", 0] for number in range(6)]

        async def step() -> None:
            nonlocal steps
            steps += 1
            if steps == change_at:
                for number, key in enumerate(queues[:5]):
                    one.journal.put(["ack", *key, [0]], ["hide", *key, 1, 1_700_000_000_001, 90_000, False])
                    one.journal.put(["pop", *key, 3, [3 + number], 9, 1_700_000_000_002, 60_000])
                one.journal.put(["drop", "", "g5"])
                one.journal.put(["pop", "T", "new", 0, 0, [0], 1, 1_700_000_000_003, 60_000])
                one.journal.put(["drop", "", "g4"])
                one.journal.put(["pop", *queues[4], 7, [7], 8, 1_700_000_000_004, 60_000])

        async with life(folder, clock) as one:
            for key in queues:
                one.journal.put(["order", *key, [0, 1, 2], [0, 0, 1], 3, 1_700_000_000_000, 60_000, "attempt"])
            await one.stored()
            one.journal._step = step
            await one.journal.save()
            assert steps >= change_at
            expected = list(one.state.entries())
            await one.stored()
        async with life(folder, clock) as one:
            assert sorted(one.state.entries()) == sorted(expected)
            assert one.state.in_flight == sum(len(queue.in_flight) for queue in one.state.queues.values())

    monkeypatch.setattr(pop_journal, "_ENTRIES_AT_ONCE", 2)
    for change_at in range(1, 8):
        asyncio.run(main(change_at))


def test_what_was_on_its_way_to_the_retry_topic_is_popped_still(tmp_path: Path) -> None:
    """The log was cut behind the entry: its message is not there, and the offset will be another message's."""

    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            one.journal.put(["revive", *KEY, 1, "%RETRY%g_T", 0, 0])
        for _ in range(2):
            async with life(tmp_path, clock) as one:
                assert one.left() == {0, 1, 2}
                one.store.put(StoredMessage(topic="%RETRY%g_T", queue_id=0, body=b"another"))
        async with life(tmp_path, clock) as one:
            one.journal.put(["revive", *KEY, 2, "%RETRY%g_T", 0, one.store.next_offset("%RETRY%g_T", 0)])
            one.store.put(StoredMessage(topic="%RETRY%g_T", queue_id=0, body=b"2"))
        async with life(tmp_path, clock) as one:
            assert one.left() == {0, 1}

    asyncio.run(main())


def test_what_could_not_be_put_is_taken_back_before_anything_else_is(tmp_path: Path) -> None:
    """The disk was full between an entry and its message; then there was room again, and the broker was killed."""

    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            one.journal.put(["revive", *KEY, 1, "%RETRY%g_T", 0, 0])
            one.store._refuse("disk", "full")
            one.journal.take_back(["hide", *KEY, 1, 1_700_000_000_000, 60_000, False])
            one.journal.settle()
            assert one.left() == {0, 1, 2}
            one.store._refuse("disk", "")
            one.journal.put(["ack", *KEY, [0]])
            one.store.put(StoredMessage(topic="%RETRY%g_T", queue_id=0, body=b"another"))
        async with life(tmp_path, clock) as one:
            assert one.left() == {1, 2}

    asyncio.run(main())


def test_more_is_owed_than_a_record_holds(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.store._refuse("full", "told to")
            for number in range(600):
                one.journal.take_back(["next", "T" * 120 + str(number), "g", 0, number])
            one.journal.settle()
            assert one.store.next_offset(TOPIC, 0) == 0
            one.store._refuse("full", "")
            assert one.journal.put(["next", "T", "g", 0, 1]).status is PutStatus.PUT_OK
            assert one.store.next_offset(TOPIC, 0) == 3
            await one.stored()
            queues = one.state.queues
        async with life(tmp_path, clock) as one:
            assert one.state.queues == queues
            assert len(queues) == 601

    asyncio.run(main())


def test_what_is_noted_beyond_the_end_of_the_log_is_noted_anew(tmp_path: Path) -> None:
    """New records get the offsets that the note counts as read."""

    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            await one.journal.save()
        note = (tmp_path / "popState.json").read_bytes()
        folder = tmp_path / "emptied"
        folder.mkdir()
        (folder / "popState.json").write_bytes(note)
        async with life(folder, clock) as one:
            assert one.left() == {0, 1, 2}
            one.journal.put(["ack", *KEY, [0]])
        async with life(folder, clock) as one:
            assert one.left() == {1, 2}

    asyncio.run(main())


def test_an_entry_of_a_topic_that_was_deleted_later_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.store.put(StoredMessage(topic="T", queue_id=0, body=b"1"))
            one.journal.put(POPPED)
            await one.stored()
            await one.store.delete_topic("T")
        async with life(tmp_path, clock) as one:
            assert one.left() == set()

    asyncio.run(main())


def test_what_was_saved_of_a_topic_is_passed_over_where_it_was_deleted_since(tmp_path: Path) -> None:
    """Whether the log tells of that or not: a power cut may have taken the record."""

    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.store.put(StoredMessage(topic="T", queue_id=0, body=b"1"))
            one.journal.put(POPPED, ["pop", "U", *POPPED[2:]])
            await one.journal.save()
            await one.store.delete_topic("T")
        async with life(tmp_path, clock) as one:
            assert set(one.state.queues) == {("U", "g", 0)}
            # One that is made anew is another: what is saved of it counts, also where its place cannot be read.
            one.store.put(StoredMessage(topic="T", queue_id=0, body=b"2"))
            one.journal.put(POPPED)
            await one.journal.save()
        async with life(tmp_path, clock) as one:
            assert one.left() == {0, 1, 2}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lookups, "place", lambda *_: None)
            async with life(tmp_path, clock) as one:
                assert one.left() == {0, 1, 2}

    asyncio.run(main())


def test_what_was_saved_of_a_deleted_topic_is_passed_over_where_the_journal_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.store.put(StoredMessage(topic="T", queue_id=0, body=b"1"))
            await one.stored()
            await one.store.delete_topic("T")
        text = msgspec.json.encode({"journalOffset": 0, "entries": [POPPED, ["pop", "U", *POPPED[2:]]]})
        (tmp_path / "popState.json").write_bytes(text)
        async with life(tmp_path, clock) as one:
            assert set(one.state.queues) == {("U", "g", 0)}

    asyncio.run(main())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b'"pop"', b"[[]]", b'[["pop"]]', b'[["pop","T","g",0,1]]', b'[["shelve","T","g",0,[1]]]']
)
def test_a_record_of_another_version_ends_no_start(tmp_path: Path, body: bytes) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with life(tmp_path, clock) as one:
            one.journal.put(POPPED)
            one.store.put(StoredMessage(topic=TOPIC, queue_id=0, body=body, properties=b"TAGS\x01rc\x02"))
            one.journal.put(["ack", *KEY, [1]])
        async with life(tmp_path, clock) as one:
            assert one.left() == {0, 2}
            assert one.journal.skipped == (body != b"{}")

    asyncio.run(main())


def test_the_journal_is_needed_while_its_place_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with life(tmp_path, ManualClock()) as one:
            await one.stored()
            one.store.put(StoredMessage(topic="Other", queue_id=0, body=b"first"))
            one.journal.put(POPPED)
            await one.stored()
            place = one.journal.needed_from()
            assert place
            monkeypatch.setattr(ConsumeQueue, "units", unreadable)
            assert one.journal.needed_from() == 0
            monkeypatch.undo()

    def unreadable(*_: object) -> bytes:
        raise OSError(errno.EIO, "the page cannot be read")

    asyncio.run(main())
