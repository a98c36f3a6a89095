"""Send requests against the oracles: their headers read into rows, and what a message asks for beyond storing."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame
from rocketcore._fast import sends as kernel
from tests.property.test_command import DAMAGE, TEXTS, damage, read_head
from tests.reference import header as reference
from tests.reference import sends as reference_sends

NUMBERS = st.integers(-(2**31), 2**31 - 1).map(str)
ODD = st.sampled_from(["", "x", "1.5", "2147483648", "-9223372036854775809", "true", "false", "TRUE", "\\", "é"])
SEND_FIELDS = {
    **dict.fromkeys("abcn", TEXTS),
    **dict.fromkeys("defhjl", NUMBERS),
    "g": st.integers(-(2**63), 2**63 - 1).map(str),
    "i": st.text(st.sampled_from('ab\x01\x02é"\\😀\n'), max_size=60),
    **dict.fromkeys("km", st.sampled_from(["true", "false"])),
}


@given(
    ext=st.fixed_dictionaries(
        {key: SEND_FIELDS[key] for key in "abcdefgh"}, optional={key: SEND_FIELDS[key] for key in "ijklmn"}
    ),
    odd=st.dictionaries(st.sampled_from(["a", "b", "d", "g", "i", "j", "m", "o", "bname", "ns"]), ODD, max_size=1),
    missing=st.sets(st.sampled_from("abcdefgh"), max_size=1),
    serialize_type=st.integers(0, 1),
    changes=st.just([]) | DAMAGE[0],
    cut=DAMAGE[1],
)
def test_sends(
    ext: dict[str, str],
    odd: dict[str, str],
    missing: set[str],
    serialize_type: int,
    changes: list[tuple[int, int]],
    cut: int,
) -> None:
    """A row that the fast reader fills says what the oracle says; the usual form is never left to the slow path."""
    usual = not odd and not missing and not changes and not cut and "true" not in (ext.get("k"), ext.get("m"))
    usual = usual and all(ext[key] and json.dumps(ext[key], ensure_ascii=False) == f'"{ext[key]}"' for key in "abc")
    usual = usual and (ext.get("n", "x") != "" and '"' not in ext.get("n", "") and "\\" not in ext.get("n", ""))
    usual = usual and ext.get("n", "").isprintable()
    ext = {key: value for key, value in (ext | odd).items() if key not in missing}
    command = reference.Header(310, 0, 407, 5, 0, None, ext)
    data = (reference.write_binary if serialize_type else reference.write_json)(command)
    whole, rows, heads = read_head(damage(data, changes, cut), serialize_type)
    out, scratch = np.zeros((1, kernel.SEND_COLUMNS), np.int64), bytearray(1000)
    assert kernel.scan_send(whole, rows, heads, 0, 1, out, scratch) == 1
    row = out[0]
    if usual:
        assert row[kernel.SEND_STATUS] == 0
    if row[kernel.SEND_STATUS] == 0:
        read = command_kernel.read(whole, *rows[0][[frame.HEADER_START, frame.HEADER_LENGTH, frame.SERIALIZE_TYPE]])
        assert read is not None
        want = reference.read_send(reference.Header(*read))
        assert want is not None
        start, length = row[kernel.SEND_TOPIC_START], row[kernel.SEND_TOPIC_LENGTH]
        assert whole[start : start + length].decode() == want["b"]
        start, length = row[kernel.SEND_PROPERTIES_START], row[kernel.SEND_PROPERTIES_LENGTH]
        assert scratch[start : start + length].decode() == want["i"]
        numbers = {
            "e": kernel.SEND_QUEUE_ID, "f": kernel.SEND_SYS_FLAG, "g": kernel.SEND_BORN_TIMESTAMP,
            "h": kernel.SEND_MESSAGE_FLAG, "j": kernel.SEND_RECONSUME_TIMES,
        }  # fmt: skip
        assert {key: int(row[column]) for key, column in numbers.items()} == {key: int(want[key]) for key in numbers}
        assert not want["k"]
        assert not want["m"]


NAMES = [
    *(b"UNIQ_KEY", b"TAGS", b"KEYS", b"WAIT", b"CLUSTER", b"TRACE_ON", b"DELAY", b"TRAN_MSG", b"POP_CK", b"city", b""),
    *(b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"INNER_NUM", b"__CRC32#", b"_SYS_MSG_PRIORITY_"),
]
VALUES = [b"true", b"TRUE", b"false", b"3", b"-1", b"", b"a\x01b", "Łódź".encode()]
PAIRS = st.tuples(st.sampled_from(NAMES), st.sampled_from([b"\x01", b"\x01", b"\x01", b""]), st.sampled_from(VALUES))
TEXT = st.lists(
    st.tuples(PAIRS.map(b"".join), st.sampled_from([b"\x02", b"\x02", b"\x02", b"", b"\x02\x02"])).map(b"".join)
)


@settings(max_examples=500)
@given(
    TEXT.map(b"".join) | st.binary(max_size=60),
    st.integers(0, 255),
    st.sampled_from([b"", b"CLUSTER\x01c\x02TRACE_ON\x01t"]),
)
def test_what_a_message_asks_for_is_the_references(properties: bytes, sys_flag: int, extra: bytes) -> None:
    found = kernel.examine(properties, sys_flag, extra)
    bits = {name[5:]: getattr(kernel, name) for name in dir(kernel) if name.startswith("ASKS_")}
    assert {name for name, bit in bits.items() if found & bit} == reference_sends.asks(properties, sys_flag, extra)
