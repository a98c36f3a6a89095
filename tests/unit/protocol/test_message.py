"""Stored messages to ``ReceivedMessage``, against Java's decoder."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from rocketcore._fast import record as record_kernel
from rocketcore._fast.batch import encode_batch
from rocketcore._fast.properties import encode_properties
from rocketcore.addresses import host_field, split
from rocketcore.codes import MessageSysFlag
from rocketcore.errors import BadChecksum, BadMagic, DecodeError
from rocketcore.message import Message, MessageQueue, ReceivedMessage
from rocketcore.protocol.message import decode_message, decode_messages
from tests.fixtures.vectors import family, name_of

STORED = [
    record
    for prefix in ("append/", "append-crc/", "encode/")
    for record in family("stored_messages.jsonl", prefix)
    if record.get("decoded")
]


def check(message: ReceivedMessage, java: dict[str, Any]) -> None:
    assert message.queue == MessageQueue(java["topic"], "b", java["queueId"])
    assert message.offset == java["queueOffset"]
    assert message.physical_offset == java["commitLogOffset"]
    assert message.store_size == java["storeSize"]
    assert (message.flag, message.sys_flag, message.body_crc) == (java["flag"], java["sysFlag"], java["bodyCRC"])
    assert (message.born_timestamp, message.store_timestamp) == (java["bornTimestamp"], java["storeTimestamp"])
    assert message.body.hex() == (java["body"] or "")
    assert message.reconsume_times == java["reconsumeTimes"]
    assert message.prepared_transaction_offset == java["preparedTransactionOffset"]
    assert dict(message.properties) == (java["properties"] or {})
    # Java writes an IPv6 address without brackets and shortens nothing.
    for ours, theirs in ((message.born_host, java["bornHost"]), (message.store_host, java["storeHost"])):
        assert host_field(*split(ours)) == host_field(*split(theirs))


@pytest.mark.parametrize("record", STORED, ids=name_of)
def test_what_java_decodes(record: dict[str, Any]) -> None:
    message = decode_message(bytes.fromhex(record["hex"]), "b")
    check(message, record["decoded"])
    if "client" in record:
        assert message.msg_id == record["client"]["msgId"]
        assert message.offset_msg_id == record["client"]["offsetMsgId"]


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "decode/"), ids=name_of)
def test_broken_records(record: dict[str, Any]) -> None:
    data, java = bytes.fromhex(record["hex"]), record["decoded"]
    name = record["name"].split("@")[0]
    if name == "decode/empty":
        assert decode_messages(data, "b") == []
    elif name == "decode/wrong-crc":
        check(decode_message(data, "b", check_crc=False), java)
        with pytest.raises(BadChecksum):
            decode_message(data, "b")
    elif name in ("decode/no-last-separator", "decode/properties-negative"):
        check(decode_message(data, "b"), java)
    elif name == "decode/two-records":
        # Zero bytes follow, at which Java stops without a word.
        messages = decode_messages(data[:204], "b")
        for message, expected in zip(messages, java, strict=True):
            check(message, expected)
        with pytest.raises(BadMagic):
            decode_messages(data, "b")
    else:
        # Java stops at the first broken record; here it is an error.
        with pytest.raises(DecodeError):
            decode_messages(data, "b")


def test_magic_and_count() -> None:
    data = stored()
    with pytest.raises(BadMagic):
        decode_messages(data[:4] + b"\x00\x00\x00\x01" + data[8:], "b")
    with pytest.raises(DecodeError, match="2 messages in place of one"):
        decode_message(data + data)
    with pytest.raises(DecodeError):
        decode_messages(data + data[:30], "b")


def stored(body: bytes = b"hi", topic: str = "T", sys_flag: int = 0, **properties: str) -> bytes:
    return record_kernel.encode_stored(
        topic=topic.encode(),
        queue_id=1,
        flag=0,
        queue_offset=40,
        physical_offset=100,
        sys_flag=sys_flag,
        born_timestamp=1700000000000,
        born_host=host_field("10.0.0.9", 50000),
        store_timestamp=1700000000001,
        store_host=host_field("10.0.0.1", 10911),
        reconsume_times=0,
        prepared_offset=0,
        body=body,
        properties=encode_properties(properties),
    )


def test_more_records_than_one_table_holds() -> None:
    messages = decode_messages(stored() * 200, "b")
    assert len(messages) == 200
    assert messages[0] is not messages[199]
    assert messages[199].body == b"hi"


def test_retried_message_has_the_topic_it_was_sent_to() -> None:
    message = decode_message(stored(topic="%RETRY%G", RETRY_TOPIC="T"), "b")
    assert (message.topic, message.queue.topic) == ("T", "%RETRY%G")
    assert decode_message(stored(topic="%RETRY%G"), "b").topic == "%RETRY%G"
    assert decode_message(stored(topic="U", RETRY_TOPIC="T"), "b").topic == "U"


def test_a_body_that_does_not_decompress_names_the_message() -> None:
    data = stored(b"not zlib", sys_flag=0x301, UNIQ_KEY="KEY")
    with pytest.raises(DecodeError, match=r"message KEY of MessageQueue\(topic='T'"):
        decode_messages(data, "b")


@pytest.mark.parametrize(("body", "sys_flag"), [(b"not zlib", 0x301), (b"no batch", 0xC0), (b"not zlib", 0x3C1)])
def test_an_unreadable_body_is_told_of_and_comes_as_it_is(body: bytes, sys_flag: int) -> None:
    told: list[tuple[bytes, str]] = []
    data = stored(b"first") + stored(body, sys_flag=sys_flag) + stored(b"last")
    messages = decode_messages(data, "b", unreadable=lambda message, error: told.append((message.body, str(error))))
    assert [(message.body, message.sys_flag) for message in messages] == [
        (b"first", 0), (body, sys_flag), (b"last", 0)
    ]  # fmt: skip
    assert [unread for unread, _ in told] == [body]
    with pytest.raises(DecodeError) as caught:
        decode_messages(data, "b")
    assert str(caught.value) == told[0][1]


def test_no_body_is_none_to_decompress() -> None:
    message = decode_message(stored(b"", sys_flag=0x301), "b")
    assert (message.body, message.sys_flag) == (b"", 0x301)


def test_a_topic_that_is_not_utf8_is_decoded_as_in_java() -> None:
    data = stored(topic="TTTx").replace(b"TTTx", b"\xed\xa0\x80x")
    assert decode_message(data, "b").queue.topic == "\ufffdx"


def test_an_inner_batch_is_unwrapped_when_it_is_decompressed() -> None:
    element = b"\x00\x00\x00\x18" + bytes(12) + b"\x00\x00\x00\x02hi\x00\x00"
    data = stored(zlib.compress(element * 2), sys_flag=0x3C1)
    assert [message.body for message in decode_messages(data, "b")] == [b"hi", b"hi"]


@pytest.mark.parametrize("record", family("batches.jsonl", "inner/"), ids=name_of)
def test_inner_batch(record: dict[str, Any]) -> None:
    outer = record["input"]["outer"]
    data = stored(bytes.fromhex(outer["body"]), sys_flag=outer["sysFlag"], INNER_NUM="2", INNER_BASE="40")
    messages = decode_messages(data, "b")
    assert [(m.body.hex(), m.offset, m.flag, m.msg_id, dict(m.properties)) for m in messages] == [
        (java["body"], java["queueOffset"], java["flag"], java["msgId"], java["properties"])
        for java in record["decoded"]
    ]


def forged_batch(count: int, sys_flag: int = 0) -> bytes:
    """Return a message at offset 40 whose body claims to be so many messages."""
    body = encode_batch([b"forged"] * count, [b""] * count)
    flags = int(MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP) | sys_flag
    return stored(zlib.compress(body) if sys_flag else body, sys_flag=flags)


def behind(record: bytes, offset: int) -> bytes:
    """Return a record with another queue offset, which no checksum covers here."""
    return record[:20] + offset.to_bytes(8, "big") + record[28:]


@pytest.mark.parametrize("sys_flag", [0, int(MessageSysFlag.COMPRESSED)], ids=["plain", "compressed"])
@pytest.mark.parametrize("between", [0, 62, 63, 64, 65], ids=lambda count: f"behind {count}")
def test_an_inner_batch_takes_no_offsets_of_the_messages_behind_it(between: int, sys_flag: int) -> None:
    """Consumers would take those for messages that they have already, and not hand them out."""
    sound = stored(b"sound")
    before = b"".join(behind(sound, offset) for offset in range(100 - between, 100))
    data = before + behind(forged_batch(9, sys_flag), 100) + behind(sound, 101) + behind(sound, 102)
    odd: list[ReceivedMessage] = []
    messages = decode_messages(data, "b", max_inflated_bytes=10, unreadable=lambda message, error: odd.append(message))
    assert [message.offset for message in odd] == [100]
    assert [message.offset for message in messages[: between + 1]] == list(range(100 - between, 101))
    with pytest.raises(DecodeError, match="9 messages in one at offset 100, and the next is at 101"):
        decode_messages(data, "b")


def test_an_inner_batch_ends_before_the_next_pull_begins() -> None:
    odd: list[ReceivedMessage] = []
    for end_offset, offsets in ((49, list(range(40, 49))), (48, [40])):
        messages = decode_messages(
            forged_batch(9), "b", end_offset=end_offset, unreadable=lambda message, error: odd.append(message)
        )
        assert [message.offset for message in messages] == offsets
    assert len(odd) == 1


def test_message_properties() -> None:
    message = Message("T", b"x", tag="TagA", keys=["a", "b"], properties={"k": "v"})
    assert encode_properties(message.properties) == b"k\x01v\x02TAGS\x01TagA\x02KEYS\x01a b\x02"
