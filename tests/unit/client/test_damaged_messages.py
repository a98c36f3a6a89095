"""One damaged message costs itself: what stands before and behind it is handed out."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest

from rocketcore.admin.messages import messages_in
from rocketcore.client.arrow_batches import BatchBuilder
from rocketcore.client.pop_api import pop_messages
from rocketcore.client.pull import PullConsumer
from rocketcore.codes import MessageSysFlag, ResponseCode
from rocketcore.errors import BadChecksum, BadMagic, DecodeError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import PopMessageRequestHeader
from rocketcore.protocol.message import decode_messages
from tests.reference.message import Stored, encode
from tests.unit.client.fakes import FakeRemoting
from tests.unit.client.test_queue_reader import QUEUE, Broker, pull, run

COUNT = 5
DAMAGED = 2
COMPRESSED = int(MessageSysFlag.COMPRESSED)


def message(offset: int, body: bytes = b"", sys_flag: int = 0, properties: bytes = b"a\x01b") -> bytes:
    body = body or b"body-%d" % offset
    return encode(
        Stored(
            b"T", body, queue_offset=offset, physical_offset=offset * 100, sys_flag=sys_flag,
            body_crc=zlib.crc32(body) & 0x7FFFFFFF, properties=properties,
        )
    )  # fmt: skip


def put(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda record: record[:at] + value + record[at + len(value) :]


KINDS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "a flipped bit in the body": (lambda record: record.replace(b"body-2", b"bodz-2"), True),
    "a wrong checksum": (put(8, b"\0\0\0\1"), True),
    "a body that does not decompress": (lambda _: message(DAMAGED, b"no zlib", COMPRESSED), True),
    "an unknown compression": (lambda _: message(DAMAGED, b"x", COMPRESSED | 7 << 8), True),
    "properties that are no pairs": (lambda _: message(DAMAGED, properties=b"\x02\x02\x01x\x02a\x01b\x02c"), True),
    "properties that are no UTF-8": (lambda _: message(DAMAGED, properties=b"a\x01\xff\xfe"), True),
    "an unknown magic": (put(4, b"\0\0\0\0"), False),
    "a body longer than its record": (put(84, struct.pack(">i", 1 << 20)), False),
    "a negative body length": (put(84, struct.pack(">i", -5)), False),
}
"""What is done to the record, and whether a message is left of it, which is handed out as it is stored."""


def damaged(kind: str) -> Iterator[bytes]:
    for offset in range(COUNT):
        yield KINDS[kind][0](message(offset)) if offset == DAMAGED else message(offset)


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_are_decoded(kind: str) -> None:
    told: list[int] = []
    skipped: list[DecodeError] = []
    messages = decode_messages(
        b"".join(damaged(kind)), "a", unreadable=lambda each, _: told.append(each.offset), skipped=skipped.append
    )
    is_left = KINDS[kind][1]
    assert [each.offset for each in messages] == [each for each in range(COUNT) if is_left or each != DAMAGED]
    assert [each.body for each in messages if each.offset != DAMAGED] == [b"body-%d" % i for i in (0, 1, 3, 4)]
    assert len(skipped) == (not is_left)
    assert told == ([DAMAGED] if is_left and not kind.startswith("properties") else [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_goes_on_behind_it(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        broker = Broker((int(ResponseCode.SUCCESS), COUNT, b"".join(damaged(kind))))
        consumer = PullConsumer(group="G")
        process_queue = await pull(consumer, broker, 0)
        offsets = [each.offset for each in await consumer.poll(5.0)]
        assert offsets == [each for each in range(COUNT) if KINDS[kind][1] or each != DAMAGED]
        assert broker.pulled_at == [0, COUNT]
        assert process_queue.commit_offset == COUNT
        await consumer.close()

    run(body)
    if not kind.startswith("properties"):
        assert any(str(QUEUE) in record.message for record in caplog.records)
        assert ("offset=2 " in caplog.text) == KINDS[kind][1]


@pytest.mark.parametrize("cut", [1, 60])
def test_a_record_that_is_cut_keeps_none_before_it(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.client.queue_reader.PULL_DELAY_ON_ERROR", 0.001)
    first = b"".join(map(message, range(3)))

    async def body() -> None:
        found = int(ResponseCode.SUCCESS)
        broker = Broker((found, 3, first[:-cut]), (found, 3, message(2)))
        consumer = PullConsumer(group="G")
        await pull(consumer, broker, 0)
        assert [each.offset for each in await consumer.poll(5.0)] == [0, 1, 2]
        assert broker.pulled_at == [0, 2, 3]
        await consumer.close()

    run(body)


def test_a_record_that_is_always_cut_is_asked_for_alone_and_then_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rocketcore.client.queue_reader.PULL_DELAY_ON_ERROR", 0.001)

    async def body() -> None:
        found, cut = int(ResponseCode.SUCCESS), message(2)[:-1]
        broker = Broker((found, 3, cut), (found, 3, cut), (found, 3, cut), (found, 4, message(3)))
        consumer = PullConsumer(group="G")
        await pull(consumer, broker, 2)
        assert [each.offset for each in await consumer.poll(5.0)] == [3]
        assert broker.pulled_at == [2, 2, 2, 3, 4]
        counts = [
            (request.ext_fields or {})["maxMsgNums"]
            for _, request in broker.asked
            if "maxMsgNums" in (request.ext_fields or {})
        ]
        assert counts[1:3] == ["1", "1"]
        assert counts[0] == counts[3] != "1"
        await consumer.close()

    run(body)
    assert "damaged message passed over" in caplog.text


@pytest.mark.parametrize(
    ("kind", "error"), [("a flipped bit in the body", BadChecksum), ("an unknown magic", BadMagic)]
)
def test_who_asks_for_one_message_hears_of_its_damage(kind: str, error: type[DecodeError]) -> None:
    with pytest.raises(error):
        decode_messages(b"".join(damaged(kind)), "a")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_popped_beside_it_can_be_acknowledged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        def answer(address: str, request: RemotingCommand) -> RemotingCommand:
            response = RemotingCommand.response(request, body=b"".join(damaged(kind)))
            response.ext_fields = {
                "popTime": "1", "invisibleTime": "2", "reviveQid": "3", "restNum": "0", "startOffsetInfo": "0 0 0",
                "msgOffsetInfo": "0 0 0,1,2,3,4",
            }  # fmt: skip
            return response

        header = PopMessageRequestHeader(
            consumer_group="G", topic="T", queue_id=-1, max_msg_nums=32, invisible_time=2, poll_time=0, born_time=0,
            init_mode=0, order=False, exp_type="TAG", exp="*", bname="a",
        )  # fmt: skip
        popped = await pop_messages(FakeRemoting({}, answer), "a:1", header, "a", 1.0)
        expected = [each for each in range(COUNT) if KINDS[kind][1] or each != DAMAGED]
        assert [(each.message.offset, each.handle.queue_offset) for each in popped] == [(i, i) for i in expected]

    run(body)
    assert kind.startswith("properties") or caplog.records


def rows_of(records: bytes, if_damaged: str | None, batch_bytes: int = 1 << 20, end: int = COUNT) -> dict[int, bytes]:
    builder = BatchBuilder(("queueOffset", "body"), frozenset(), batch_bytes, if_damaged)
    batches = [*builder.append(QUEUE, 0, end, records), builder.finish()]
    assert builder.appended == end
    return {row["queueOffset"]: row["body"] for batch in batches for row in batch.to_pylist()}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("properties")])
@pytest.mark.parametrize("batch_bytes", [1, 250, 1 << 20])
def test_a_table_has_no_damaged_message(kind: str, batch_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    records = b"".join(damaged(kind))
    text = f"{re.escape(str(QUEUE))}: the message at offset {DAMAGED} is damaged: .*"
    with pytest.raises(DecodeError, match=f"{text}; skip it$"):
        rows_of(records, "skip it", batch_bytes)
    with pytest.raises(DecodeError, match=text):
        rows_of(records, "", batch_bytes)
    whole = {offset: b"body-%d" % offset for offset in range(COUNT) if offset != DAMAGED}
    assert rows_of(records, None, batch_bytes) == whole
    assert f"queue={QUEUE} offset={DAMAGED} " in caplog.text
    assert rows_of(records, "", batch_bytes, DAMAGED) == {0: b"body-0", 1: b"body-1"}  # it lies behind the range


def test_a_record_that_is_cut_ends_a_table_whatever_is_asked_for() -> None:
    records = b"".join(map(message, range(COUNT)))
    with pytest.raises(DecodeError, match=r"offset 4 is damaged: .*; it does not tell where the next one begins"):
        rows_of(records[:-1], None)


def test_a_look_at_messages_shows_the_others(caplog: pytest.LogCaptureFixture) -> None:
    bodies = [each.body for each in messages_in(b"".join(damaged("a flipped bit in the body")), "a")]
    assert bodies == [b"body-0", b"body-1", b"bodz-2", b"body-3", b"body-4"]
    assert "offset=2 " in caplog.text
