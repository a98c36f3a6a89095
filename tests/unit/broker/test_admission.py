"""Admission: what becomes of a message that asks for another place or time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rocketcore._fast.consume_queue import unit
from rocketcore._fast.properties import decode_properties
from rocketcore._fast.timer_heap import timer_code_due
from rocketcore.broker.admission import Admission
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.record import RecordReader
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.stats import BrokerStats
from rocketcore.broker.store import MessageStore, PutStatus, StoredMessage
from rocketcore.broker.store.timed import timer_due
from rocketcore.codes import SCHEDULE_TOPIC, TIMER_TOPIC
from rocketcore.service import ManualClock
from tests.fixtures.stores import running_store


class Scene:
    def __init__(self, store: MessageStore, folder: Path) -> None:
        clock = self.clock = ManualClock()
        self.store = store
        self.stats = BrokerStats(clock)
        self.topics = TopicConfigs(BrokerConfig(), JsonFile(folder / "topics.json"), lambda topics: None, clock=clock)
        self.timer = TimerService(
            store,
            JsonFile(folder / "timerOffset.json"),
            on_put=lambda *put: None,
            is_gone=lambda *_: False,
            clock=clock,
        )
        self.admission = Admission(store, self.stats, self.topics, self.timer)

    async def put(self, properties: dict[str, str], body: bytes = b"x") -> PutStatus:
        message = StoredMessage(topic="T", queue_id=2, body=body)
        return await self.admission.stored(self.admission.put(message, properties))

    def stored(self, topic: str, queue_id: int) -> dict[str, str]:
        """The properties of the first message of a queue."""
        [record] = RecordReader(1).read(self.store.get(topic, queue_id, 0, 1).body)
        properties = decode_properties(record.message.properties)
        del properties["__CRC32#"]
        return properties


def run(folder: Path, check: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running_store(folder / "store", clock=ManualClock()) as store:
            await check(Scene(store, folder))

    asyncio.run(main())


def test_one_that_asks_for_nothing_goes_where_it_says(tmp_path: Path) -> None:
    async def check(scene: Scene) -> None:
        assert await scene.put({"TAGS": "a", "DELAY": "0"}) is PutStatus.PUT_OK
        assert scene.stored("T", 2) == {"TAGS": "a", "DELAY": "0"}
        assert scene.stats.totals.put_messages == 1

    run(tmp_path, check)


def test_a_level_goes_before_a_time_and_takes_its_place(tmp_path: Path) -> None:
    async def check(scene: Scene) -> None:
        await scene.put({"DELAY": "3", "TIMER_DELAY_SEC": "5", "TIMER_DELIVER_MS": "1", "TAGS": "a"})
        assert scene.stored(SCHEDULE_TOPIC, 2) == {"DELAY": "3", "TAGS": "a", "REAL_TOPIC": "T", "REAL_QID": "2"}

    run(tmp_path, check)


@pytest.mark.parametrize(
    ("properties", "place"), [({"DELAY": "3"}, (SCHEDULE_TOPIC, 2)), ({"TIMER_DELAY_SEC": "3"}, (TIMER_TOPIC, 0))]
)
def test_a_committed_message_that_waits_is_not_taken_for_a_delivery(
    tmp_path: Path, properties: dict[str, str], place: tuple[str, int]
) -> None:
    """A delivery is known by its prepared transaction offset, which a commit brings, too."""

    async def check(scene: Scene) -> None:
        message = StoredMessage(topic="T", queue_id=2, body=b"x", prepared_transaction_offset=4711)
        result = scene.admission.put(message, properties)
        assert await scene.admission.stored(result) is PutStatus.PUT_OK
        assert scene.stored(*place)["REAL_TOPIC"] == "T"
        for by_level in (False, True):
            assert scene.store.deliveries(0, by_level=by_level) == set()

    run(tmp_path, check)


def test_a_time_waits_in_the_queue_of_the_timer(tmp_path: Path) -> None:
    async def check(scene: Scene) -> None:
        await scene.put({"TIMER_DELAY_MS": "5000", "DELAY": "0"})
        assert scene.store.max_offset(TIMER_TOPIC, 0) == 1
        properties = scene.stored(TIMER_TOPIC, 0)
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "2")
        due = timer_due(properties, scene.clock.time_millis())
        assert due == scene.clock.time_millis() + 5_000
        place, size, code = unit(scene.store.units(TIMER_TOPIC, 0, 0, 1), 0)
        assert timer_code_due(code, place, size) == due

    run(tmp_path, check)


def test_what_the_store_does_not_take_is_counted_and_refused(tmp_path: Path) -> None:
    async def check(scene: Scene) -> None:
        result = scene.admission.put(StoredMessage(topic="T", queue_id=0, body=bytes(5 << 20)), {})
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert "msg body length limit 65536B" in str(scene.admission.refusal(result))
        assert (scene.stats.totals.put_messages, scene.stats.totals.put_failures) == (0, 1)

    run(tmp_path, check)


def test_a_dead_letter_has_a_topic(tmp_path: Path) -> None:
    async def check(scene: Scene) -> None:
        message = StoredMessage(topic="T", queue_id=2, body=b"x")
        scene.admission.make_dead_letter(message, "g")
        assert (message.topic, message.queue_id) == ("%DLQ%g", 0)
        assert scene.topics.find("%DLQ%g") is not None

    run(tmp_path, check)
