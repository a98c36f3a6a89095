"""Ready answers against the frames that the general encoder makes."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from rocketcore.codes import LanguageCode, RemotingFlag

if sys.platform != "linux":
    pytest.skip("part of the reactor, which is Linux only", allow_module_level=True)

from rocketcore._fast import command
from rocketcore._fast.answers import ReadyAnswers
from rocketcore._fast.reactor import Responder
from tests.reference import frame as reference_frame

BODIES = {b"orders": b'{"a":1}', "Ünï-主".encode(): b"x" * 5000, b'quo"ted': b"", b"": b"of the empty name"}
JSON, BINARY = 0, 1


def answers(**changes: Any) -> ReadyAnswers:
    settings: dict[str, Any] = {"code": 105, "field": b"topic", "without": b"zone", "answers": BODIES, "version": 479}
    return ReadyAnswers(**(settings | changes))


def question(topic: str | None = "orders", opaque: int = 1, kind: int = JSON, **changes: Any) -> bytes:
    fields = {} if topic is None else {"topic": topic}
    values: dict[str, Any] = {"code": 105, "flag": 0, "version": 401, "body": b"", "fields": {}} | changes
    fields |= values["fields"]
    return command.encode_frame(
        values["code"], 0, values["version"], opaque, values["flag"], None, fields, values["body"], kind
    )


def answer(body: bytes, opaque: int = 1, kind: int = JSON) -> bytes:
    return command.encode_frame(0, LanguageCode.PYTHON, 479, opaque, RemotingFlag.RESPONSE, None, None, body, kind)


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("opaque", [0, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("topic", ["orders", "Ünï-主", 'quo"ted'])
def test_an_answer_is_what_the_encoder_makes(kind: int, opaque: int, topic: str) -> None:
    extra = {"acceptStandardJsonOnly": "true", "ns": "x"}
    asked = question(topic, opaque, kind, fields=extra, body=b"ignored")
    assert answers().answer(asked) == answer(BODIES[topic.encode()], opaque, kind)


def test_the_empty_name_is_a_name_in_json_and_absent_in_binary() -> None:
    assert answers().answer(question("")) == answer(b"of the empty name")
    assert answers().answer(question("", kind=BINARY)) is None


def test_names_are_compared_without_their_escapes_and_the_last_of_two_counts() -> None:
    head = b'{"code":105,"opaque":1,"extFields":{"topic":"unknown","\\u0074opic":"ord\\u0065rs"%s}}'
    assert answers().answer(reference_frame.frame(head % b"", b"", JSON)) == answer(BODIES[b"orders"])
    assert answers().answer(reference_frame.frame(head % b',"z\\u006fne":""', b"", JSON)) is None


def test_many_questions_are_answered_in_their_order() -> None:
    kinds = [JSON, BINARY, JSON]
    asked = b"".join(question("orders", opaque, kinds[opaque % 3]) for opaque in range(256))
    expected = b"".join(answer(BODIES[b"orders"], opaque, kinds[opaque % 3]) for opaque in range(256))
    ready = answers()
    assert ready.answer(asked) == expected
    assert ready.answer(memoryview(asked)) == expected
    assert ready.answer(asked + question("orders", 256)) is None, "more than fit one call of the system"


@pytest.mark.parametrize(
    "unusual",
    [
        question("unknown"),
        question(None),
        question("orders", fields={"zone": "z"}),
        question("orders", code=106),
        question("orders", flag=RemotingFlag.ONEWAY),
        question("orders", flag=RemotingFlag.RESPONSE),
        question("orders")[:-1],
        b"\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x08\x02\x00\x00\x00abcd",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{}",
    ],
)
def test_whatever_else_is_there_all_is_left_alone(unusual: bytes) -> None:
    ready = answers()
    good = question("orders")
    for data in (unusual, good + unusual, unusual + good if len(unusual) > 8 else unusual):
        assert ready.answer(data) is None
    assert ready.answer(good) == answer(BODIES[b"orders"]), "and nothing of it stays behind"


def test_nothing_is_answered_while_it_is_switched_off() -> None:
    ready = answers()
    ready.enabled = False
    assert ready.answer(question()) is None
    ready.enabled = True
    assert ready.answer(question()) is not None


def test_the_table_is_looked_at_anew_each_time() -> None:
    table: dict[bytes, bytes] = {}
    ready = answers(answers=table)
    assert ready.answer(question()) is None
    table[b"orders"] = b"now"
    assert ready.answer(question()) == answer(b"now")
    del table[b"orders"]
    assert ready.answer(question()) is None


def test_a_body_is_held_until_the_next_call() -> None:
    body = bytes(1000)
    ready = answers(answers={b"orders": body})
    unused = sys.getrefcount(body)
    ready.answer(question() * 3)
    assert sys.getrefcount(body) == unused + 3
    ready.answer(question() + question("unknown"))
    assert sys.getrefcount(body) == unused + 1
    ready.answer(b"")
    assert sys.getrefcount(body) == unused
    ready.answer(question())
    del ready
    gc.collect()
    assert sys.getrefcount(body) == unused - 1, "nor does its table hold it any more"


def test_a_table_that_is_cleared_while_an_answer_is_built() -> None:
    """As by a finalizer: whatever allocates may collect garbage. The body is large so that freed means unmapped."""
    table = {b"orders": b"x" * (40 << 20)}
    expected = answer(table[b"orders"])
    ready = answers(answers=table)
    asked = question()

    def clear(phase: str, info: dict[str, int]) -> None:
        table.clear()

    thresholds = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(clear)
    gc.set_threshold(1)
    try:
        answered = ready.answer(asked)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(clear)
    assert answered == expected


def test_a_frame_above_the_limit_is_left_alone() -> None:
    asked = question(body=b"x" * 1000)
    assert answers(limit=len(asked)).answer(asked) is not None
    assert answers(limit=len(asked) - 1).answer(asked) is None


def test_a_responder_of_no_kind_leaves_all_alone() -> None:
    assert Responder().answer(question()) is None


def test_a_table_with_other_values_than_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="expected bytes, not str"):
        answers(answers={b"orders": "text"}).answer(question())
