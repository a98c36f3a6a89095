"""Offsets of streams: as text, shared out between queues, and waited for."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.service import ManualClock
from rocketcore.spark.offsets import Pacing, advance, check_belongs, parse_offsets, print_offsets
from rocketcore.spark.options import StreamSourceOptions, parse_options

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(6)]

queues = st.builds(
    MessageQueue, st.text(min_size=1, max_size=5), st.text("ab:-", min_size=1, max_size=4), st.integers(0, 1000)
)


@given(st.dictionaries(queues, st.integers(0, 1 << 62)))
def test_offsets_come_back_from_their_text(offsets: dict[MessageQueue, int]) -> None:
    text = json.dumps(print_offsets(offsets))
    assert parse_offsets(json.loads(text)) == offsets


@given(st.dictionaries(queues, st.integers(0, 1 << 62)), st.randoms())
def test_the_text_does_not_depend_on_the_order(offsets: dict[MessageQueue, int], random: Random) -> None:
    """Spark compares texts: another order would be a batch of nothing, again and again."""
    items = list(offsets.items())
    random.shuffle(items)
    assert json.dumps(print_offsets(dict(items))) == json.dumps(print_offsets(offsets))


def test_empty_queues_are_named_and_keys_sorted() -> None:
    offsets = {MessageQueue("U", "b", 0): 0, MessageQueue("T", "b", 10): 1, MessageQueue("T", "b", 9): 0}
    assert json.dumps(print_offsets(offsets)) == '{"T": {"b:10": 1, "b:9": 0}, "U": {"b:0": 0}}'


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "[]",
        '{"T": 5}',
        '{"T": {"broker-a": 5}}',
        '{"T": {":0": 5}}',
        '{"T": {"broker-a:x": 5}}',
        '{"T": {"broker-a:-1": 5}}',
        '{"T": {"broker-a:0": -1}}',
        '{"T": {"broker-a:0": true}}',
        '{"T": {"broker-a:0": "5"}}',
        '{"T": {"broker-a:0": 5.0}}',
        '{"T": {"broker-a:0": 5, "broker-a:00": 90}}',
        '{"T": {"broker-a:٣": 5}}',
        '{"T": {"broker-a:0\\n": 5}}',
        '{"T": {"broker-a:2147483648": 5}}',
        f'{{"T": {{"broker-a:{"1" * 5000}": 5}}}}',
        f'{{"T": {{"broker-a:0": {1 << 63}}}}}',
        '{"T": ' * 900 + "5" + "}" * 900,
    ],
)
def test_offsets_of_another_source_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match="it is of another source or damaged; give another checkpointLocation"
    ) as caught:
        parse_offsets(json.loads(text))
    assert len(str(caught.value)) < 500


def test_offsets_that_cannot_be_shown_are_refused() -> None:
    nested: object = 5
    for _ in range(3000):
        nested = {"T": nested}
    for value in (nested, {"T": {"broker-a:0": 10**5000}}):
        with pytest.raises(ConfigError, match="has the offsets of too many levels, or digits, to be shown, expected"):
            parse_offsets(value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "U,V"}, r"read 'T', which option topic \(U, V\) does not include"),
        ({"subscribePattern": "U.*"}, r"read 'T', which option subscribePattern \(U\.\*\) does not include"),
        ({"assign": '{"T": {"broker-a": [1]}}'}, r"read MessageQueue\(topic='T', broker='broker-a', queue_id=0\)"),
    ],
)
def test_the_checkpoint_of_another_topic_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_belongs({QUEUES[0]: 5}, parse_options(StreamSourceOptions, options))


@pytest.mark.parametrize(
    "options", [{"topic": "U,T"}, {"subscribePattern": "T|U"}, {"assign": '{"T": {"broker-a": [0, 1]}}'}]
)
def test_topics_may_be_added(options: dict[str, str]) -> None:
    check_belongs({QUEUES[0]: 5}, parse_options(StreamSourceOptions, options))


def ranges(*counts: int) -> dict[MessageQueue, QueueRange]:
    """Queues with so many messages each, which begin at offset 10, 20, …"""
    return {
        queue: QueueRange(queue, 10 * place, 10 * place + count)
        for place, (queue, count) in enumerate(zip(QUEUES, counts, strict=False), 1)
    }


def shares(waiting: dict[MessageQueue, QueueRange], most: int | None) -> list[int]:
    ends = advance(waiting, most)
    assert ends.keys() == waiting.keys()
    return [ends[queue] - waiting[queue].start for queue in waiting]


def test_a_limit_is_shared_out_in_proportion() -> None:
    assert shares(ranges(100, 300, 0, 600), 100) == [10, 30, 0, 60]
    assert shares(ranges(100, 300), None) == [100, 300]
    assert shares(ranges(100, 300), 400) == [100, 300]
    assert shares(ranges(1, 1_000_000), 10) == [1, 9]


counts = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6)


@given(counts, st.integers(1, 1 << 41))
def test_a_limit_is_used_up_exactly_and_starves_no_queue(counts: list[int], most: int) -> None:
    given_out = shares(ranges(*counts), most)
    assert sum(given_out) == min(most, sum(counts))
    assert all(0 <= share <= count for share, count in zip(given_out, counts, strict=True))
    filled = [share for share, count in zip(given_out, counts, strict=True) if count]
    if most >= len(filled):
        assert all(filled)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(1, 5))
def test_all_is_read_in_the_fewest_batches(counts: list[int], most: int) -> None:
    waiting = ranges(*counts)
    batches = 0
    while any(map(len, waiting.values())):
        waiting = {queue: QueueRange(queue, end, waiting[queue].end) for queue, end in advance(waiting, most).items()}
        batches += 1
    assert batches == -(-sum(counts) // most)


@given(st.integers(2, 6), st.integers(1, 5), st.lists(st.integers(0, 1000), min_size=6, max_size=6))
def test_more_queues_than_messages_take_turns(queue_count: int, most: int, starts: list[int]) -> None:
    waiting = {
        queue: QueueRange(queue, start, 1 << 40) for queue, start in zip(QUEUES[:queue_count], starts, strict=False)
    }
    begin = {queue: there.start for queue, there in waiting.items()}
    rounds = -(-queue_count // min(most, queue_count))
    for _ in range(rounds):
        waiting = {queue: QueueRange(queue, end, 1 << 40) for queue, end in advance(waiting, most).items()}
    assert all(there.start > begin[queue] for queue, there in waiting.items())


def test_a_batch_waits_for_messages_or_for_its_time() -> None:
    clock = ManualClock()
    pacing = Pacing(60.0, clock)
    assert pacing.due(1, 100), "the first does not wait"
    assert not pacing.due(99, 100)
    assert pacing.due(100, 100)
    clock.advance(59)
    assert not pacing.due(1, 100)
    clock.advance(1)
    assert pacing.due(1, 100)
    assert not pacing.due(1, 100), "its time begins anew"
    assert pacing.due(1, None)


def test_without_messages_no_time_passes() -> None:
    clock = ManualClock()
    pacing = Pacing(60.0, clock)
    assert pacing.due(1, 100)
    clock.advance(120)
    assert not pacing.due(0, 100)
    assert pacing.due(1, 100), "it has waited for long enough"
