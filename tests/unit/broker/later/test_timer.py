"""Messages for a time: when each comes, that it comes once, how one is taken back."""

from __future__ import annotations

import errno
import json
import random
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.later.timer_schedule import delete_key, schedule
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import MessageStore, PutStatus, StoreConfig, StoredMessage
from rocketcore.broker.store.timed import asked_time, timer_due
from rocketcore.codes import TIMER_TOPIC
from rocketcore.errors import BrokerError, StoreCorrupted
from rocketcore.service import ManualClock
from tests.unit.broker.fakes import FakeStore


class Scene:
    """A timer over a fake store."""

    def __init__(self, folder: Path, *, store: FakeStore | None = None, clock: ManualClock | None = None) -> None:
        self.folder = folder
        self.clock = clock or ManualClock()
        self.store = store or FakeStore(self.clock)
        self.puts: list[tuple[str, int, int]] = []
        self.timer = TimerService(
            cast(MessageStore, self.store),
            JsonFile(folder / "timerOffset.json"),
            on_put=lambda *put: self.puts.append(put),
            is_gone=lambda topic, _: topic == "Deleted",
            clock=self.clock,
        )
        self.timer.load()

    def again(self) -> Scene:
        """What a start finds."""
        return Scene(self.folder, store=self.store, clock=self.clock)

    def send(self, body: bytes, *, topic: str = "T", **properties: str) -> dict[str, str]:
        """Put a message as admission does, and announce it; returns its properties."""
        self.put(body, topic=topic, properties=properties)
        self.arrive()
        return properties

    def put(self, body: bytes, *, topic: str = "T", properties: dict[str, str]) -> None:
        message = self.timer.schedule(StoredMessage(topic=topic, queue_id=2, body=body), properties)
        message.properties = encode_properties(properties)
        result = self.store.put(message)
        assert result.status is PutStatus.PUT_OK
        if message.topic == TIMER_TOPIC:
            self.timer.was_put(result, properties)

    def arrive(self) -> None:
        """Have what was put on disk, and announced."""
        self.store.flush()
        self.timer.message_arrived(0, self.store.max_offset(TIMER_TOPIC, 0))

    def at(self, millis: int) -> str:
        return str(self.clock.time_millis() + millis)

    def turn(self, seconds: float, *, flush: bool = True) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.timer.deliver_due()
            while flush and self.store.waits:
                self.store.flush()

    def save(self) -> None:
        self.timer.take_changes()
        self.timer.file.save(self.timer.encode_file())

    def records(self, topic: str = "T") -> list[StoredRecord]:
        return list(RecordReader(50_000).read(b"".join(self.store.records(topic, 2))))

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [bytes(record.message.body) for record in self.records(topic)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# ---------------------------------------------------------------------- what asks for a time

NOW = 1_700_000_000_500


@pytest.mark.parametrize(
    ("properties", "out"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + 5_000)}, 1_700_000_005_000),
        ({"TIMER_DELIVER_MS": "1700000005000"}, 1_700_000_004_000),
        ({"TIMER_DELAY_MS": "1"}, 1_700_000_000_000),
        ({"TIMER_DELAY_MS": "500"}, 1_700_000_000_000),
        ({"TIMER_DELAY_MS": "501"}, 1_700_000_001_000),
        ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "x", "TIMER_DELIVER_MS": "x"}, 1_700_000_003_000),
        ({"TIMER_DELAY_MS": "3000", "TIMER_DELIVER_MS": "x"}, 1_700_000_003_000),
        ({"TIMER_DELAY_SEC": "10"}, 1_700_000_010_000),
    ],
)
def test_a_time_is_rounded_to_the_second_before_it(properties: dict[str, str], out: int) -> None:
    asked = dict(properties)
    waiting = schedule(StoredMessage(topic="T", queue_id=2, body=b"x"), properties, NOW, 10)
    assert waiting is not None
    assert (waiting.topic, waiting.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert properties == {**asked, "TIMER_OUT_MS": str(out), "REAL_TOPIC": "T", "REAL_QID": "2"}
    due = timer_due(properties, NOW)
    assert due == max(asked_time(asked, NOW) or 0, out + 2)


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("T", {"TIMER_DELIVER_MS": str(NOW)}),
        ("T", {"TIMER_DELIVER_MS": "-1"}),
        ("T", {"TIMER_DELAY_SEC": "0"}),
        ("T", {"TIMER_DELAY_MS": "-5"}),
        ("T", {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"}),
        (TIMER_TOPIC, {"TIMER_DELAY_SEC": "5"}),
        ("T", {}),
    ],
)
def test_what_is_over_or_was_scheduled_is_stored_at_once(topic: str, properties: dict[str, str]) -> None:
    assert schedule(StoredMessage(topic=topic, queue_id=2, body=b"x"), properties, NOW, 10) is None
    assert "REAL_TOPIC" not in properties


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELAY_SEC": ""},
        {"TIMER_DELAY_SEC": " 1"},
        {"TIMER_DELAY_SEC": "1_0"},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELAY_SEC": "9" * 19},
        {"TIMER_DELAY_SEC": "11"},
        {"TIMER_DELAY_MS": "10001"},
        {"TIMER_DELIVER_MS": str(NOW + 10_001)},
        {"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "T+id"},
    ],
)
def test_no_time_and_one_that_is_too_far_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(
        BrokerError, match="should not be bigger than the max delay 10000ms; or if set del msg"
    ) as error:
        schedule(StoredMessage(topic="T", queue_id=2, body=b"x"), properties, NOW, 10)
    assert error.value.code == 13


def test_no_more_wait_than_there_is_memory_for(scene: Scene) -> None:
    scene.store.config = StoreConfig(timer_max_pending_messages=2)
    scene.send(b"1", TIMER_DELAY_SEC="5")
    scene.send(b"2", TIMER_DELAY_SEC="5")
    with pytest.raises(BrokerError, match="flow control, 2 messages wait already") as error:
        scene.send(b"3", TIMER_DELAY_SEC="5")
    assert error.value.code == 1
    scene.turn(6)
    scene.send(b"3", TIMER_DELAY_SEC="5")


def test_a_broker_without_timers_delivers_what_waits(scene: Scene) -> None:
    scene.send(b"1", TIMER_DELAY_SEC="5")
    scene.store.config = StoreConfig(timer_wheel_enable=False)
    with pytest.raises(BrokerError, match="timerWheelEnable is false") as error:
        scene.send(b"2", TIMER_DELAY_SEC="5")
    assert error.value.code == 1
    again = scene.again()
    again.turn(6)
    assert again.bodies() == [b"1"]


# ---------------------------------------------------------------------- when they come


def test_a_message_comes_when_it_is_time_and_not_before(scene: Scene) -> None:
    scene.send(b"at", TIMER_DELIVER_MS=scene.at(1_950))
    scene.send(b"delay", TIMER_DELAY_MS="950")
    scene.send(b"now", TIMER_DELIVER_MS=scene.at(0))
    scene.turn(0.9)
    assert scene.bodies() == [b"now"]
    scene.turn(0.1)
    assert scene.bodies() == [b"now", b"delay"]
    scene.turn(0.9)
    assert scene.bodies() == [b"now", b"delay"]
    scene.turn(0.1)
    assert scene.bodies() == [b"now", b"delay", b"at"]
    assert scene.puts[-1] == ("T", 1, len(scene.store.records("T", 2)[-1]), 1, 2)  # type: ignore[comparison-overlap]


def test_what_is_delivered_says_how_it_waited(scene: Scene) -> None:
    began = scene.clock.time_millis()
    asked = scene.send(b"x", TIMER_DELAY_SEC="2", UNIQ_KEY="id", TAGS="a")
    scene.turn(2.1)
    [record] = scene.records()
    properties = decode_properties(record.message.properties)
    assert {name: properties[name] for name in asked} == asked
    assert properties["TIMER_ENQUEUE_MS"] == str(began)
    assert properties["TIMER_DEQUEUE_MS"] == str(record.store_timestamp)


def test_properties_without_room_are_delivered_as_they_are(scene: Scene) -> None:
    scene.send(b"x", TIMER_DELAY_SEC="2", a="x" * 32_600)
    scene.turn(2.1)
    [record] = scene.records()
    assert "TIMER_DEQUEUE_MS" not in decode_properties(record.message.properties)


def test_many_come_in_the_order_of_their_times(scene: Scene) -> None:
    times = random.Random(7).sample(range(1, 60_000), 2_500)
    for millis in times:
        scene.send(b"%d" % millis, TIMER_DELIVER_MS=scene.at(millis))
    scene.turn(61)
    assert [int(body) for body in scene.bodies()] == sorted(times)
    assert len(scene.timer) == 0


def test_ten_thousand_are_due_together(scene: Scene) -> None:
    for number in range(10_000):
        scene.put(b"%d" % number, properties={"TIMER_DELIVER_MS": scene.at(5_000)})
    scene.arrive()
    scene.turn(4.9)
    assert scene.bodies() == []
    scene.turn(0.1, flush=False)
    assert len(scene.bodies()) == 512, "the loop has other things to do"
    while scene.store.waits:
        before = len(scene.bodies())
        scene.store.flush()
        assert len(scene.bodies()) - before <= 512
    assert [int(body) for body in scene.bodies()] == list(range(10_000))


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_delay_lasts_as_long_whatever_becomes_of_the_wall_clock(scene: Scene, jump: int) -> None:
    scene.send(b"delay", TIMER_DELAY_SEC="10")
    scene.turn(5)
    scene.clock.set_wall(scene.clock.time_millis() + jump)
    scene.turn(4.9)
    assert scene.bodies() == []
    scene.turn(0.2)
    assert scene.bodies() == [b"delay"]
    scene.save()
    again = scene.again()
    again.turn(20)
    assert again.bodies() == [b"delay"]


def test_a_time_is_one_of_the_wall_clock(scene: Scene) -> None:
    scene.send(b"one", TIMER_DELIVER_MS=scene.at(3_600_000))
    scene.send(b"two", TIMER_DELIVER_MS=scene.at(3_600_000 + 60_000))
    scene.turn(1)
    assert scene.bodies() == []
    scene.clock.set_wall(scene.clock.time_millis() + 3_600_000)
    scene.turn(0.1)
    assert scene.bodies() == [b"one"]
    scene.clock.set_wall(scene.clock.time_millis() - 3_600_000)
    scene.turn(120)
    assert scene.bodies() == [b"one"]


# ---------------------------------------------------------------------- recall


def recall(scene: Scene, properties: dict[str, str], key: str | None = None) -> None:
    time = str(int(properties["TIMER_OUT_MS"]) + 1)
    key = key or delete_key("T", properties["UNIQ_KEY"])
    scene.send(b"0", TIMER_DEL_UNIQKEY=key, UNIQ_KEY=properties["UNIQ_KEY"], TIMER_DELIVER_MS=time)


@pytest.mark.parametrize("asked", [{"TIMER_DELAY_MS": "5100"}, {"TIMER_DELIVER_MS": "1700000005001"}])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_message_that_is_taken_back_does_not_come(scene: Scene, asked: dict[str, str], restarts: int) -> None:
    gone = scene.send(b"gone", UNIQ_KEY="1", **asked)
    scene.send(b"stays", UNIQ_KEY="2", **asked)
    scene.send(b"other", topic="U", UNIQ_KEY="1", **asked)
    scene.turn(1)
    recall(scene, gone)
    for _ in range(restarts):
        scene.save()
        scene = scene.again()
    scene.turn(5)
    assert (scene.bodies(), scene.bodies("U")) == ([b"stays"], [b"other"])
    assert (scene.timer.recalled, scene.timer.skipped) == (1, 0)


def test_a_recall_counts_in_its_second_alone_and_by_its_key(scene: Scene) -> None:
    first = scene.send(b"first", UNIQ_KEY="1", TIMER_DELAY_MS="2500")
    scene.send(b"later", UNIQ_KEY="1", TIMER_DELAY_MS="3500")
    recall(scene, first)
    recall(scene, first, key="1")
    scene.turn(5)
    assert scene.bodies() == [b"later"]


def test_a_start_between_a_recall_and_its_message_does_not_forget_it(scene: Scene) -> None:
    """The second has begun, so the message that takes the other one back was met; what is saved does not cover it."""
    gone = scene.send(b"gone", UNIQ_KEY="1", TIMER_DELIVER_MS="1700000002900")
    recall(scene, gone)
    scene.turn(2.5)
    scene.save()
    again = scene.again()
    again.turn(2)
    assert again.bodies() == []


def test_a_delay_is_taken_back_though_the_wall_clock_was_set_back(scene: Scene) -> None:
    gone = scene.send(b"gone", UNIQ_KEY="1", TIMER_DELAY_SEC="10")
    recall(scene, gone)
    scene.clock.set_wall(scene.clock.time_millis() - 3_600_000)
    scene.turn(11)
    assert scene.bodies() == []


# ---------------------------------------------------------------------- once


@pytest.mark.parametrize("saved", [True, False])
def test_what_was_delivered_before_a_crash_is_not_delivered_again(scene: Scene, *, saved: bool) -> None:
    for number in range(40):
        scene.send(b"%d" % number, TIMER_DELAY_MS=str(1_000 + number * 10))
    scene.send(b"far", TIMER_DELAY_SEC="100")
    scene.turn(1.2)
    if saved:
        scene.save()
    scene.turn(0.1)
    came = len(scene.bodies())
    assert 0 < came < 40
    again = scene.again()
    assert len(again.timer) == 41 - came
    again.turn(5)
    assert again.bodies() == [b"%d" % number for number in range(40)]


def test_what_a_crash_took_back_is_delivered_again(scene: Scene) -> None:
    for number in range(5):
        scene.send(b"%d" % number, TIMER_DELAY_MS="1000")
    scene.turn(1.5, flush=False)
    scene.save()
    assert len(scene.bodies()) == 5
    scene.store.crash()
    assert scene.bodies() == []
    again = scene.again()
    again.turn(0.1)
    assert again.bodies() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("seed", range(30))
def test_after_any_crashes_each_came_once_and_none_early(tmp_path: Path, seed: int) -> None:
    """Sends, saves, crashes, settings of the wall clock, in any order."""
    rng = random.Random(seed)
    scene = Scene(tmp_path)
    clock = scene.clock
    not_before: dict[bytes, float] = {}
    jumps = seed % 3 == 0
    for step in range(300):
        for _ in range(rng.randrange(4)):
            body = b"%d-%d" % (step, rng.randrange(1 << 30))
            millis = rng.choice((rng.randrange(3_000), rng.randrange(30_000), 500_000))
            if jumps or rng.random() < 0.5:
                scene.send(body, TIMER_DELAY_MS=str(millis))
            else:
                scene.send(body, TIMER_DELIVER_MS=scene.at(millis))
            not_before[body] = clock.monotonic() + millis / 1000
        scene.turn(rng.choice((0.1, 0.2, 0.5, 2)), flush=rng.random() < 0.8)
        if rng.random() < 0.15:
            scene.save()
        if rng.random() < 0.1:
            scene.store.crash()
            scene = scene.again()
        if jumps and rng.random() < 0.05:
            clock.set_wall(clock.time_millis() + rng.randrange(-20_000, 20_000))
        elif rng.random() < 0.05:
            while scene.store.waits:
                scene.store.flush()
    assert not jumps or set(scene.bodies()) <= set(not_before)
    if not jumps:
        for record in scene.records():
            assert record.store_timestamp >= 1_700_000_000_000 + not_before[bytes(record.message.body)] * 1000 - 1
    scene.turn(600)
    assert Counter(scene.bodies()) == Counter(list(not_before))
    scene.save()
    last = scene.again()
    assert len(last.timer) == 0
    assert last.timer.needed_from() is None


@pytest.mark.parametrize("jump", [0, 3_600_000, -3_600_000])
def test_what_is_saved_moves_on_while_messages_wait(scene: Scene, jump: int) -> None:
    """So that a start does not read the log from the first delivery on."""
    scene.send(b"far", TIMER_DELAY_SEC="100")
    scene.clock.set_wall(scene.clock.time_millis() + jump)
    scene.send(b"near", TIMER_DELAY_SEC="1")
    scene.turn(5)
    scene.save()
    saved = json.loads(scene.timer.file.path.read_bytes())
    assert saved["deliveredUntil"] >= 1_700_000_000_000 + min(jump, 0) + 3_000
    assert (saved["queueOffset"], saved["firstOffset"]) == (2, 0)
    near = scene.records()[0]
    assert (saved["logOffset"] > near.physical_offset) is (jump <= 0)


def test_what_is_saved_says_more_than_there_is(scene: Scene) -> None:
    """After the log lost its end: neither this start nor the next one believes it."""
    scene.send(b"one", TIMER_DELAY_MS="1000")
    scene.send(b"two", TIMER_DELAY_MS="1000")
    end = scene.store.max_physical_offset
    scene.timer.file.save(b'{"deliveredUntil":1,"queueOffset":9,"firstOffset":0,"logOffset":%d}' % (end + 300))
    second = scene.again()
    second.turn(1.5, flush=False)
    assert second.bodies() == [b"one", b"two"]
    scene.store.put(StoredMessage(topic="Other", queue_id=0, body=bytes(1_000)))
    third = scene.again()
    third.turn(1.5)
    assert third.bodies() == [b"one", b"two"]


def test_a_full_disk_at_the_start_holds_back_deliveries_until_that_is_replaced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    scene.send(b"one", TIMER_DELAY_MS="1000")
    scene.timer.file.save(b'{"deliveredUntil":1,"queueOffset":9,"firstOffset":0,"logOffset":0}')
    with monkeypatch.context() as patch:
        patch.setattr("rocketcore.broker.state.json_file.replace_file", full)
        again = scene.again()
        again.turn(1.5)
        assert again.bodies() == []
        assert not again.timer.take_changes(), "the writer's thread would save the file at the same time"
    again.turn(10)
    assert again.bodies() == [b"one"]
    assert again.timer.take_changes()
    assert not again.timer.take_changes()


def test_the_log_is_needed_from_the_first_message_that_waits(scene: Scene) -> None:
    assert scene.timer.needed_from() is None
    for number, seconds in enumerate((5, 100, 3)):
        scene.send(b"%d" % number, TIMER_DELAY_SEC=str(seconds))
    places = [scene.store.place(TIMER_TOPIC, 0, number) for number in range(3)]
    assert scene.timer.needed_from() == places[0]
    scene.turn(6, flush=False)
    assert scene.timer.needed_from() == places[0], "it is not on disk yet"
    scene.turn(0.2)
    assert scene.timer.needed_from() == places[1]


# ---------------------------------------------------------------------- what is not as it should be


def test_a_message_that_says_no_time_harms_nothing(scene: Scene) -> None:
    """One of them ends Apache's timer for good."""
    for properties in ({}, {"TIMER_OUT_MS": "never"}, {"TIMER_OUT_MS": "1"}, {"TIMER_OUT_MS": "1", "REAL_TOPIC": "T"}):
        scene.store.put(
            StoredMessage(topic=TIMER_TOPIC, queue_id=0, body=b"x", properties=encode_properties(properties))
        )
    scene.send(b"one", TIMER_DELAY_MS="1000")
    scene.turn(1.1)
    assert scene.bodies() == [b"one"]
    assert scene.timer.skipped == 4
    assert scene.timer.needed_from() is None


def test_a_message_of_a_deleted_topic_is_passed_over(scene: Scene) -> None:
    scene.send(b"gone", topic="Deleted", TIMER_DELAY_MS="1000")
    scene.send(b"one", TIMER_DELAY_MS="1000")
    scene.turn(1.1)
    assert (scene.bodies(), scene.bodies("Deleted"), scene.timer.skipped) == ([b"one"], [], 1)


def test_a_store_that_takes_nothing_is_asked_again(scene: Scene) -> None:
    scene.send(b"one", TIMER_DELAY_MS="1000")
    scene.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    scene.turn(2)
    scene.store.refuse = None
    scene.turn(0.1)
    assert scene.bodies() == [b"one"]


@pytest.mark.parametrize("tags_code", [0, -5, 7_200, 1 << 62])
def test_a_unit_that_says_another_time_makes_no_message_early_or_late(scene: Scene, tags_code: int) -> None:
    """Apache's units say the hash of the tags."""
    scene.store.bad_units[1] = tags_code
    for number in range(3):
        scene.send(b"%d" % number, TIMER_DELIVER_MS=scene.at(10_000 + number * 100))
    scene = scene.again()
    scene.turn(9.9)
    assert scene.bodies() == []
    scene.turn(0.4)
    assert scene.bodies() == [b"0", b"1", b"2"]
    scene.save()
    again = scene.again()
    again.turn(20)
    assert len(again.bodies()) == 3


def test_a_page_that_cannot_be_read_holds_up_its_message_alone(scene: Scene) -> None:
    for number in range(5):
        scene.send(b"%d" % number, TIMER_DELAY_MS="1000")
    scene.store.damaged[TIMER_TOPIC, 0, 2] = OSError(errno.EIO, "bad page")
    scene.turn(5)
    assert scene.bodies() == [b"0", b"1", b"3", b"4"]
    scene.save()
    again = scene.again()
    again.turn(5)
    again.store.damaged.clear()
    again.turn(10)
    assert again.bodies() == [b"0", b"1", b"3", b"4", b"2"]


def test_a_place_that_no_repair_helps_is_passed_over_until_the_next_start(scene: Scene) -> None:
    for number in range(5):
        scene.send(b"%d" % number, TIMER_DELAY_MS="1000")
    scene.store.damaged[TIMER_TOPIC, 0, 2] = StoreCorrupted("it leads elsewhere")
    scene.turn(5)
    assert scene.bodies() == [b"0", b"1", b"3", b"4"]
    assert scene.timer.skipped == 1
    for number in range(5):
        scene.send(b"late-%d" % number, TIMER_DELAY_MS="1000")
    scene.turn(5)
    scene.save()
    scene.store.damaged.clear()
    again = scene.again()
    again.turn(1)
    assert Counter(again.bodies()) == Counter([b"%d" % n for n in range(5)] + [b"late-%d" % n for n in range(5)])
