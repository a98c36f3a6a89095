"""Delay levels: when a message comes, where it goes, what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rocketcore._fast.header import decode_properties, encode_properties
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.services.delay import DelayService, schedule
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import MessageStore, PutStatus, StoredMessage
from rocketcore.service import ManualClock
from tests.unit.broker.fakes import FakeStore

LEVELS = (1_000, 5_000, 10_000)


class Scene:
    """A delay service over a fake store."""

    def __init__(self, folder: Path, *, store: FakeStore | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.store = store or FakeStore(self.clock)
        self.puts: list[tuple[str, int, int]] = []
        self.delay = DelayService(
            cast(MessageStore, self.store),
            LEVELS,
            JsonFile(folder / "delayOffset.json"),
            on_put=lambda *put: self.puts.append(put),
            clock=self.clock,
        )
        self.delay.load()

    def store_delayed(self, body: bytes, level: int, *, topic: str = "T", queue_id: int = 2) -> None:
        properties = {"TAGS": "a"}
        message = StoredMessage(topic=topic, queue_id=queue_id, body=body, properties=encode_properties(properties))
        put = schedule(message, properties, level, len(LEVELS))
        assert self.store.put(put).status is PutStatus.PUT_OK
        self.delay.message_arrived(put.queue_id)

    def turn(self, seconds: float, *, flush: bool = True) -> None:
        """Let time pass in ticks of the service."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.delay.deliver_due()
            if flush:
                self.store.flush()

    def delivered(self, topic: str = "T", queue_id: int = 2) -> list[StoredRecord]:
        return list(RecordReader(1_000).read(b"".join(self.store.records(topic, queue_id))))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_scheduling_remembers_the_real_place() -> None:
    message = StoredMessage(topic="T", queue_id=2, body=b"x")
    put = schedule(message, {"TAGS": "a", "DELAY": "99"}, 99, len(LEVELS))
    assert (put.topic, put.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    expected = {"TAGS": "a", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert decode_properties(put.properties) == expected


def test_a_message_comes_when_its_time_is_over_and_not_before(scene: Scene) -> None:
    scene.delay.deliver_due()
    scene.store_delayed(b"one", 1)
    scene.turn(0.9)
    assert scene.delivered() == []
    scene.turn(0.2)
    [record] = scene.delivered()
    assert record.message.body == b"one"
    assert decode_properties(record.message.properties)["TAGS"] == "a"
    assert scene.puts == [("T", 1, len(scene.store.records("T", 2)[0]))]


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
    assert [record.message.body for record in scene.delivered(queue_id=0)] == [b"%d" % n for n in range(1_000)]
    assert scene.delay.positions()[1] == (2_500, 2_500)


def test_what_is_not_durable_is_delivered_again(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"one", 1)
    scene.turn(1.5, flush=False)
    assert len(scene.delivered()) == 1
    assert scene.delay.positions()[1] == (0, 1)
    scene.delay.take_changes()
    scene.delay.file.save(scene.delay.encode())
    again = Scene(tmp_path, store=scene.store, clock=scene.clock)
    again.turn(0.1)
    assert len(again.delivered()) == 2


def test_positions_survive_a_restart(scene: Scene, tmp_path: Path) -> None:
    scene.store_delayed(b"one", 1)
    scene.turn(1.5)
    assert scene.delay.take_changes()
    assert not scene.delay.take_changes()
    scene.delay.file.save(scene.delay.encode())
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


def test_a_failed_write_is_repeated(scene: Scene) -> None:
    scene.store_delayed(b"one", 1)
    scene.turn(1.2, flush=False)
    scene.store.flush(PutStatus.SERVICE_NOT_AVAILABLE)
    scene.turn(0.2)
    assert len(scene.delivered()) == 2
    assert scene.delay.positions()[1] == (1, 1)


def test_a_message_that_nobody_takes_does_not_stop_its_level(scene: Scene) -> None:
    assert scene.store.put(StoredMessage(topic="SCHEDULE_TOPIC_XXXX", queue_id=0, body=b"no place")).count == 1
    scene.store_delayed(b"two", 1)
    scene.turn(1.5)
    assert [record.message.body for record in scene.delivered()] == [b"two"]
    assert scene.delay.positions()[1] == (2, 2)


def test_a_clock_that_goes_back_never_makes_a_message_early(scene: Scene) -> None:
    scene.store_delayed(b"one", 2)
    scene.clock.set_wall(scene.clock.time_millis() - 3_600_000)
    scene.turn(4.8)
    assert scene.delivered() == []
    scene.turn(0.4)
    assert len(scene.delivered()) == 1
