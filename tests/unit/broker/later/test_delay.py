"""Delay levels: when a message comes, where it goes, what is remembered."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import cast

import pytest

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.later.delay import DelayService, schedule
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import MessageStore, PutResult, PutStatus, StoredMessage
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import DecodeError, StoreCorrupted
from rocketcore.service import ManualClock
from tests.unit.broker.fakes import FakeStore

LEVELS = (1_000, 5_000, 10_000)


class Scene:
    """A delay service over a fake store."""

    def __init__(
        self,
        folder: Path,
        *,
        store: FakeStore | None = None,
        clock: ManualClock | None = None,
        levels: tuple[int, ...] = LEVELS,
    ) -> None:
        self.levels = levels
        self.clock = clock or ManualClock()
        self.store = store or FakeStore(self.clock)
        self.puts: list[tuple[str, int, int]] = []
        self.delay = DelayService(
            cast(MessageStore, self.store),
            levels,
            JsonFile(folder / "delayOffset.json"),
            on_put=lambda *put: self.puts.append(put),
            is_gone=lambda topic, _: topic == "Deleted",
            clock=self.clock,
        )
        self.delay.load()

    def store_delayed(self, body: bytes, level: int, *, topic: str = "T", queue_id: int = 2) -> None:
        properties = {"TAGS": "a", "DELAY": str(level)}
        message = schedule(StoredMessage(topic=topic, queue_id=queue_id, body=body), properties, len(self.levels))
        message.properties = encode_properties(properties)
        self.put(message)

    def put(self, message: StoredMessage) -> None:
        """Store a message in the queue of a level and announce it."""
        result = self.store.put(message)
        assert result.status is PutStatus.PUT_OK
        if message.queue_id < len(self.levels):
            due = result.store_timestamp + self.levels[message.queue_id]
            self.store.due[message.queue_id, result.queue_offset] = due
        self.delay.message_arrived(message.queue_id, result.queue_offset + 1)

    def turn(self, seconds: float, *, flush: bool = True) -> None:
        """Let time pass in ticks of the service, with a disk that takes no time."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.delay.deliver_due()
            while flush and self.store.waits:
                self.store.flush()

    def save(self) -> None:
        self.delay.take_changes()
        self.delay.file.save(self.delay.encode_file())

    def bodies(self, topic: str = "T", queue_id: int = 2) -> list[bytes]:
        return [bytes(record.message.body) for record in self.delivered(topic, queue_id)]

    def delivered(self, topic: str = "T", queue_id: int = 2) -> list[StoredRecord]:
        return list(RecordReader(50_000).read(b"".join(self.store.records(topic, queue_id))))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_scheduling_remembers_the_real_place() -> None:
    message = StoredMessage(topic="T", queue_id=2, body=b"x")
    properties = {"TAGS": "a", "DELAY": "99"}
    put = schedule(message, properties, len(LEVELS))
    assert (put.topic, put.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert properties == {"TAGS": "a", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2"}


def test_a_message_comes_when_its_time_is_over_and_not_before(scene: Scene) -> None:
    scene.delay.deliver_due()
    scene.store_delayed(b"one", 1)
    scene.turn(0.9)
    assert scene.delivered() == []
    scene.turn(0.2)
    [record] = scene.delivered()
    assert record.message.body == b"one"
    assert decode_properties(record.message.properties)["TAGS"] == "a"
    assert scene.puts == [("T", 1, len(scene.store.records("T", 2)[0]), 1, 2)]  # type: ignore[comparison-overlap]


def test_levels_do_not_wait_for_one_another(scene: Scene) -> None:
    for level in (3, 2, 1):
        scene.store_delayed(b"%d" % level, level)
    scene.turn(5.5)
    assert [record.message.body for record in scene.delivered()] == [b"1", b"2"]
    scene.turn(5)
    assert [record.message.body for record in scene.delivered()] == [b"1", b"2", b"3"]


def test_many_messages_come_in_order(scene: Scene) -> None:
    for number in range(2_500):
        scene.store_delayed(b"%d" % number, 1, queue_id=0)
    scene.turn(1.5)
    assert scene.bodies(queue_id=0) == [b"%d" % n for n in range(2_500)]
    assert scene.delay.positions()[1] == (2_500, 2_500)


def test_what_was_delivered_before_a_crash_is_not_delivered_again(scene: Scene, tmp_path: Path) -> None:
    """The position in the file is older than the delivery: the log tells."""
    scene.save()
    for number in range(40):
        scene.store_delayed(b"%d" % number, 1)
    scene.turn(1.5, flush=False)
    assert len(scene.delivered()) == 40
    assert scene.delay.positions()[1] == (0, 40)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    assert again.delay.positions()[1] == (40, 40)
    again.turn(2)
    assert len(again.delivered()) == 40


@pytest.mark.parametrize("saved", [True, False])
def test_what_a_crash_took_back_is_delivered_again(scene: Scene, tmp_path: Path, *, saved: bool) -> None:
    for number in range(5):
        scene.store_delayed(b"%d" % number, 1)
    scene.turn(1.5, flush=False)
    if saved:
        scene.save()
    scene.store.lose("T", 2, 2)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    assert again.delay.positions()[1] == (3, 5)
    again.turn(0.1)
    assert again.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_log_that_lost_its_end_is_read_from_the_first_message_that_waits(scene: Scene, tmp_path: Path) -> None:
    """What the file says of the log's end is not believed then, nor by the start after the next crash."""
    scene.store_delayed(b"one", 1)
    scene.store_delayed(b"two", 1)
    text = b'{"dataVersion":{},"offsetTable":{"1":0},"logOffset":%d}' % (scene.store.max_physical_offset + 300)
    scene.delay.file.save(text)
    second = Scene(tmp_path, store=scene.store, clock=scene.clock)
    second.turn(1.5, flush=False)
    scene.store.put(StoredMessage(topic="Other", queue_id=0, body=bytes(1_000)))
    third = Scene(tmp_path, store=scene.store, clock=scene.clock)
    third.turn(1.5)
    assert third.bodies() == [b"one", b"two"]


def test_a_full_disk_at_the_start_holds_back_deliveries_until_the_positions_are_saved(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that speaks of more log than there is would hide what is delivered now from the start after a crash."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    scene.store_delayed(b"one", 1)
    text = b'{"dataVersion":{},"offsetTable":{"1":0},"logOffset":%d}' % (scene.store.max_physical_offset + 300)
    scene.delay.file.save(text)
    with monkeypatch.context() as patch:
        patch.setattr("rocketcore.broker.state.json_file.replace_file", full)
        again = Scene(tmp_path, store=scene.store, clock=scene.clock)
        again.turn(1.5)
        assert again.bodies() == []
        assert not again.delay.take_changes(), "the writer's thread would save the file at the same time"
    again.turn(10)
    assert again.bodies() == [b"one"]
    assert again.delay.take_changes()
    scene.store.put(StoredMessage(topic="Other", queue_id=0, body=bytes(1_000)))
    last = Scene(tmp_path, store=scene.store, clock=scene.clock)
    last.turn(1)
    assert last.bodies() == [b"one"]


def test_a_level_that_lost_its_end_delivers_what_comes_there(scene: Scene, tmp_path: Path) -> None:
    """The position that was saved lies behind the new messages, also for the start after a crash."""
    scene.delay.file.save(b'{"dataVersion":{},"offsetTable":{"1":2},"logOffset":0}')
    second = Scene(tmp_path, store=scene.store, clock=scene.clock)
    second.store_delayed(b"one", 1)
    second.store_delayed(b"two", 1)
    third = Scene(tmp_path, store=scene.store, clock=scene.clock)
    third.turn(2)
    assert third.bodies() == [b"one", b"two"]


def test_a_start_reads_the_log_only_behind_what_was_saved(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"one", 1)
    scene.store_delayed(b"later", 3)
    scene.turn(1.5)
    scene.save()
    Scene(tmp_path, store=scene.store, clock=scene.clock)
    assert scene.store.bytes_walked == 0
    scene.store.put(StoredMessage(topic="Other", queue_id=0, body=bytes(70 << 20)))
    assert scene.delay.take_changes()
    scene.save()
    Scene(tmp_path, store=scene.store, clock=scene.clock)
    assert scene.store.bytes_walked == 0


def test_positions_survive_a_restart(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"one", 1)
    scene.turn(1.5)
    assert scene.delay.take_changes()
    assert not scene.delay.take_changes()
    scene.delay.file.save(scene.delay.encode_file())
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    again.turn(2)
    assert len(again.delivered()) == 1


def test_a_store_that_refuses_is_asked_again(scene: Scene) -> None:
    scene.store_delayed(b"one", 1)
    scene.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    scene.turn(2)
    assert scene.delivered() == []
    scene.store.refuse = None
    scene.turn(0.2)
    assert len(scene.delivered()) == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_what_became_of_a_failed_write_is_for_the_next_start_to_find_out(
    scene: Scene, tmp_path: Path, lost: int
) -> None:
    """It may be in the log: another write would be a second delivery, and so would positions that hide it."""
    scene.store_delayed(b"one", 1)
    scene.turn(1.2, flush=False)
    scene.store.flush(PutStatus.SERVICE_NOT_AVAILABLE)
    scene.turn(0.2)
    assert scene.bodies() == [b"one"]
    assert scene.delay.positions()[1] == (0, 1)
    scene.save()
    if lost:
        scene.store.lose("T", 2, lost)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    again.turn(1.5)
    assert again.bodies() == [b"one"]
    assert again.delay.positions()[1] == (1, 1)


def test_a_message_that_nobody_takes_does_not_stop_its_level(scene: Scene) -> None:
    scene.put(StoredMessage(topic="SCHEDULE_TOPIC_XXXX", queue_id=0, body=b"no place"))
    scene.store_delayed(b"two", 1)
    scene.turn(1.5)
    assert [record.message.body for record in scene.delivered()] == [b"two"]
    assert scene.delay.positions()[1] == (2, 2)
    assert scene.delay.skipped == 1


def test_a_message_of_a_deleted_topic_does_not_bring_it_back(scene: Scene) -> None:
    scene.store_delayed(b"gone", 1, topic="Deleted")
    scene.store_delayed(b"one", 1)
    scene.turn(1.5)
    assert (scene.bodies(), scene.bodies("Deleted")) == ([b"one"], [])
    assert scene.delay.positions()[1] == (2, 2)


def test_a_start_reads_the_log_again_only_for_levels_that_are_behind(scene: Scene, tmp_path: Path) -> None:
    """What the log has of messages before the saved positions is forgotten: it holds back no later position."""
    scene.store_delayed(b"one", 1)
    scene.store_delayed(b"two", 2)
    scene.turn(1.5)
    scene.delay.file.save(b'{"dataVersion":{},"offsetTable":{"1":1,"2":0},"logOffset":0}')
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    walked = scene.store.bytes_walked
    again.save()
    Scene(tmp_path, store=scene.store, clock=scene.clock)
    assert scene.store.bytes_walked == walked
    again.turn(4)
    assert again.bodies() == [b"one", b"two"]


def poison(scene: Scene, queue_offset: int, error: Exception | None = None) -> None:
    """Damage a message of level 1: its topic, or as ``error`` says."""
    if error is not None:
        scene.store.damaged[SCHEDULE_TOPIC, 0, queue_offset] = error
        return
    record = bytearray(scene.store.records(SCHEDULE_TOPIC, 0)[queue_offset])
    record[record.index(SCHEDULE_TOPIC.encode())] |= 0x80
    scene.store.records(SCHEDULE_TOPIC, 0)[queue_offset] = bytes(record)


@pytest.mark.parametrize(
    "error", [None, StoreCorrupted("queue damaged"), DecodeError("no record", 7), ValueError("what nobody thought of")]
)
def test_a_message_that_cannot_be_read_stops_nobody(
    scene: Scene, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        scene.store_delayed(b"%d" % number, 1)
    scene.store_delayed(b"above", 2)
    for queue_offset in (0, 17, 99):
        poison(scene, queue_offset, error)
    scene.turn(5.5)
    expected = [b"%d" % number for number in range(100) if number not in (0, 17, 99)]
    assert scene.bodies() == [*expected, b"above"]
    assert scene.delay.skipped == 3
    messages = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(messages) == 3
    assert "queue=SCHEDULE_TOPIC_XXXX/0 queue_offset=17 " in messages[1]


def test_a_message_behind_damage_of_its_queue_waits_for_the_queue_to_be_whole(scene: Scene, tmp_path: Path) -> None:
    """A start rebuilds the queue from the log, where the message is whole; what came after it does not come again."""
    for number in range(5):
        scene.store_delayed(b"%d" % number, 1)
    poison(scene, 2, StoreCorrupted("queue damaged"))
    scene.turn(1.5)
    assert scene.bodies() == [b"0", b"1", b"3", b"4"]
    assert scene.delay.positions()[1] == (2, 5)
    scene.save()
    still = Scene(tmp_path, store=scene.store, clock=scene.clock)
    still.store_delayed(b"5", 1)
    still.turn(1.5)
    assert still.bodies() == [b"0", b"1", b"3", b"4", b"5"]
    still.save()
    scene.store.damaged.clear()
    healed = Scene(tmp_path, store=scene.store, clock=scene.clock)
    healed.turn(0.2)
    assert healed.bodies() == [b"0", b"1", b"3", b"4", b"5", b"2"]
    assert healed.delay.positions()[1] == (6, 6)


def test_an_error_that_may_heal_rests_its_level_only(scene: Scene) -> None:
    scene.store_delayed(b"one", 1)
    scene.store_delayed(b"two", 2)
    poison(scene, 0, OSError(5, "Input/output error"))
    scene.turn(5.5)
    assert scene.bodies() == [b"two"]
    scene.store.damaged.clear()
    scene.turn(5)
    assert scene.bodies() == [b"two"]
    scene.turn(1)
    assert scene.bodies() == [b"two", b"one"]
    assert scene.delay.skipped == 0


def test_a_put_that_raises_passes_over_its_message_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put = scene.store.put

    def picky(message: StoredMessage) -> PutResult:
        if message.topic == "T" and message.body == b"bad":
            raise KeyError("what nobody thought of")
        return put(message)

    monkeypatch.setattr(scene.store, "put", picky)
    for body in (b"one", b"bad", b"two"):
        scene.store_delayed(body, 1)
    scene.turn(1.5)
    assert scene.bodies() == [b"one", b"two"]
    assert (scene.delay.skipped, scene.delay.positions()[1]) == (1, (3, 3))


def test_statistics_that_fail_neither_stop_nor_repeat_a_delivery(scene: Scene) -> None:
    scene.puts = cast("list[tuple[str, int, int]]", None)
    scene.store_delayed(b"one", 1)
    scene.store_delayed(b"two", 1)
    scene.turn(1.5)
    assert scene.bodies() == [b"one", b"two"]


def test_a_burst_is_on_time(scene: Scene) -> None:
    """What is due is limited by the disk, not by the ticks."""
    for number in range(40_000):
        scene.store_delayed(b"%d" % number, 1, queue_id=0)
    scene.turn(2)
    assert len(scene.store.records("T", 0)) == 40_000
    assert scene.delay.positions()[1] == (40_000, 40_000)


def test_nothing_is_delivered_after_the_stop(scene: Scene) -> None:
    for number in range(5_000):
        scene.store_delayed(b"%d" % number, 1, queue_id=0)
    scene.turn(1.1, flush=False)
    asyncio.run(scene.delay.stop())
    while scene.store.waits:
        scene.store.flush()
    delivered = len(scene.store.records("T", 0))
    assert 0 < delivered < 5_000
    assert scene.delay.positions()[1] == (delivered, 5_000)


def test_a_flush_that_takes_too_long_is_not_a_delivery(scene: Scene) -> None:
    scene.store_delayed(b"one", 1)
    scene.turn(1.2, flush=False)
    scene.store.flush(PutStatus.FLUSH_DISK_TIMEOUT)
    assert scene.delay.positions()[1] == (0, 1)
    scene.turn(1, flush=False)
    assert scene.bodies() == [b"one"]
    scene.store.flush()
    assert scene.delay.positions()[1] == (1, 1)


@pytest.mark.parametrize("jump", [-3_600, -1, 1, 3_600])
def test_messages_come_on_time_whatever_the_wall_clock_does(scene: Scene, jump: int) -> None:
    """One every 100 ms, the clock jumps in the middle, every message comes after its delay and within 200 ms."""
    came: list[int] = []
    for tick in range(300):
        if tick < 200:
            scene.store_delayed(b"%d" % tick, 2)
        if tick == 100:
            scene.clock.set_wall(scene.clock.time_millis() + jump * 1000)
        scene.turn(0.1)
        came += [tick] * (len(scene.store.records("T", 2)) - len(came))
    waited = [(arrived - sent + 1) / 10 for sent, arrived in enumerate(came)]
    assert len(waited) == 200
    assert min(waited) >= 5
    assert max(waited) <= 5.2


@pytest.mark.parametrize(("jump", "wait"), [(-3_600, 5.0), (0, 3.0), (3_600, 0.0)])
def test_messages_that_waited_before_the_start_come_together_after_a_jump(
    scene: Scene, tmp_path: Path, jump: int, wait: float
) -> None:
    """By the wall clock of the start; where that went back they wait their delay once, not one after another."""
    for number in range(50):
        scene.store_delayed(b"%d" % number, 2)
    scene.clock.advance(2)
    scene.clock.set_wall(scene.clock.time_millis() + jump * 1000)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    if wait:
        again.turn(wait - 0.2)
        assert again.bodies() == []
    again.turn(0.4)
    assert len(again.bodies()) == 50


def test_a_level_that_is_no_more_delivers_what_it_has(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"three", 3)
    scene.store_delayed(b"one", 1)
    scene.turn(2)
    scene.save()
    fewer = Scene(tmp_path, store=scene.store, clock=scene.clock, levels=LEVELS[:1])
    assert fewer.delay.positions() == {1: (1, 1), 3: (0, 1)}
    fewer.turn(7.5)
    assert fewer.bodies() == [b"one"]
    fewer.turn(1)
    assert fewer.bodies() == [b"one", b"three"]
    fewer.save()
    more = Scene(tmp_path, store=scene.store, clock=scene.clock, levels=(*LEVELS, 2_000))
    more.store_delayed(b"four", 4)
    more.turn(2.5)
    assert more.bodies() == [b"one", b"three", b"four"]
    assert more.delay.positions() == {1: (1, 1), 2: (0, 0), 3: (1, 1), 4: (1, 1)}


def test_a_level_of_another_length_keeps_the_promise_to_what_it_has(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"one", 2)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock, levels=(1_000, 60_000))
    again.turn(4.8)
    assert again.bodies() == []
    again.turn(0.4)
    assert again.bodies() == [b"one"]


@pytest.mark.parametrize("bit", [45, 55, 62])
def test_a_damaged_time_does_not_hold_back_the_level(scene: Scene, tmp_path: Path, bit: int) -> None:
    """No level makes a message wait for so long; the message behind it would wait as well."""
    scene.store_delayed(b"one", 2)
    scene.store_delayed(b"two", 2)
    scene.store.due[1, 0] ^= 1 << bit
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    again.turn(4.8)
    assert again.bodies() == []
    again.turn(0.4)
    assert again.bodies() == [b"one", b"two"]


def test_a_level_of_days_keeps_its_promise(scene: Scene, tmp_path: Path) -> None:
    days = Scene(tmp_path, store=scene.store, clock=scene.clock, levels=(172_800_000,))
    days.store_delayed(b"one", 1)
    again = Scene(tmp_path, store=scene.store, clock=scene.clock, levels=(172_800_000,))
    scene.clock.advance(172_799)
    again.turn(0.8)
    assert again.bodies() == []
    again.turn(0.4)
    assert again.bodies() == [b"one"]


def test_a_clock_that_goes_back_never_makes_a_message_early(scene: Scene) -> None:
    scene.store_delayed(b"one", 2)
    scene.clock.set_wall(scene.clock.time_millis() - 3_600_000)
    scene.turn(4.8)
    assert scene.delivered() == []
    scene.turn(0.4)
    assert len(scene.delivered()) == 1
