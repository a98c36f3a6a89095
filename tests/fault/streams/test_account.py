"""The judge of the kill test sees each kind of wrong, and nothing where nothing is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.fault.ledger import Key
from tests.fault.streams.account import Ledger, Place, judge_copy, judge_table, judge_topic
from tests.fault.streams.processes import Progress, progress, table_files

COUNT = 6
Rows = list[list[object]]
"""broker, queue id, queue offset, id, body"""


def sent_messages() -> tuple[Ledger, Rows]:
    """Return what was sent and acknowledged, and the rows of the topic that holds it."""
    ledger, rng = Ledger(), random.Random(1)
    rows: Rows = []
    for queue_id in range(2):
        keys = [(0, queue_id, number) for number in range(COUNT // 2)]
        bodies = [ledger.send(key, rng) for key in keys]
        ledger.acknowledge(keys, "a", queue_id, 10)
        rows += [["a", queue_id, offset, f"id {queue_id} {offset}", body] for offset, body in enumerate(bodies, 10)]
    return ledger, rows


def as_table(rows: Rows) -> pa.Table:
    names = ("brokerName", "queueId", "queueOffset", "msgId", "body")
    return pa.table({name: [row[index] for row in rows] for index, name in enumerate(names)})


def messages_of(ledger: Ledger, rows: Rows) -> dict[Place, Key]:
    verdict, messages = judge_topic(ledger, as_table(rows))
    assert verdict, verdict.examples
    return messages


def spoil_body(rows: Rows) -> None:
    body = rows[1][4]
    assert isinstance(body, bytes)
    rows[1][4] = body[:-1] + bytes([body[-1] ^ 1])


def forge(rows: Rows) -> None:
    rows.append(["a", 1, 99, "id forged", Ledger().send((7, 7, 7), random.Random(1))])


def swap(rows: Rows) -> None:
    rows[0][4], rows[1][4] = rows[1][4], rows[0][4]


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: None, {}),
        (lambda rows: rows.pop(2), {"lost": 1}),
        (swap, {"moved": 2}),
        (forge, {"phantom": 1}),
        (lambda rows: rows.append(["a", 1, 99, "id", rows[0][4]]), {"phantom": 1}),
        (spoil_body, {"corrupt": 1, "lost": 1}),
    ],
)
def test_a_topic(change: Callable[[Rows], object], counts: dict[str, int]) -> None:
    ledger, rows = sent_messages()
    change(rows)
    assert dict(judge_topic(ledger, as_table(rows))[0].counts) == counts


def test_a_message_without_an_answer_may_be_there_or_not() -> None:
    ledger, rows = sent_messages()
    del ledger.acknowledged[(0, 0, 0)], ledger.acknowledged[(0, 0, 1)]
    del rows[0]
    messages = messages_of(ledger, rows)
    assert len(messages) == COUNT - 1
    assert judge_table(messages, as_table(rows))


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: random.Random(1).shuffle(rows), {}),
        (lambda rows: rows.pop(2), {"lost": 1}),
        (lambda rows: rows.append(rows[3]), {"duplicated": 1}),
        (swap, {"phantom": 2}),
        (forge, {"phantom": 1}),
        (spoil_body, {"corrupt": 1}),
    ],
)
def test_a_table(change: Callable[[Rows], object], counts: dict[str, int]) -> None:
    ledger, rows = sent_messages()
    messages = messages_of(ledger, rows)
    change(rows)
    assert dict(judge_table(messages, as_table(rows)).counts) == counts


@pytest.mark.parametrize(
    ("change", "counts", "repeated"),
    [
        (lambda rows: None, {}, 0),
        (lambda rows: rows.extend(rows[1:3]), {}, 2),
        (lambda rows: rows.pop(2), {"lost": 1}, 0),
        (lambda rows: rows.append(["a", 0, 99, "another id", rows[2][4]]), {"renamed": 1}, 1),
        (lambda rows: rows[2].__setitem__(3, rows[1][3]), {"shared": 1}, 0),
        (forge, {"phantom": 1}, 0),
        (spoil_body, {"corrupt": 1, "lost": 1}, 0),
    ],
)
def test_a_copy(change: Callable[[Rows], object], counts: dict[str, int], repeated: int) -> None:
    ledger, rows = sent_messages()
    messages = messages_of(ledger, rows)
    change(rows)
    copies = judge_copy(messages, as_table(rows))
    assert dict(copies.verdict.counts) == counts
    assert copies.repeated == repeated
    assert copies.most == 1 + bool(repeated)


def test_rows_that_changed_places_in_a_second_run_are_seen() -> None:
    """The ids repeat, the rows under them do not: neither is found by its id."""
    ledger, rows = sent_messages()
    messages = messages_of(ledger, rows)
    again = [[*row[:3], other[3], row[4]] for row, other in zip(rows[:2], reversed(rows[:2]), strict=True)]
    assert dict(judge_copy(messages, as_table(rows + again)).verdict.counts) == {"renamed": 2, "shared": 2}


def test_the_log_of_a_table_names_its_files(tmp_path: Path) -> None:
    (log := tmp_path / "_spark_metadata").mkdir()

    def entry(name: str, *files: str) -> None:
        lines = [json.dumps({"path": f"file://{tmp_path}/{file}", "action": "add"}) for file in files]
        (log / name).write_text("\n".join(["v1", *lines]))

    entry("8", "a")
    entry("9.compact", "a", "b")
    entry("10", "c")
    entry(".11.1234.tmp", "not committed")
    assert sorted(path.name for path in table_files(tmp_path)) == ["a", "b", "c"]


def test_how_far_a_query_is(tmp_path: Path) -> None:
    assert progress(tmp_path) == Progress(-1, -1)
    for name in ("offsets/9", "offsets/10", "offsets/.11.crc", "commits/9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert progress(tmp_path) == Progress(planned=10, done=9)
    assert progress(tmp_path).is_inside
