"""The topics of a registration: the kernel beside the reference, on good input and on damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast.registration import move, read_topic_table, read_topic_texts
from tests.fixtures.vectors import family, name_of
from tests.reference import registration as reference


class Numbers(NamedTuple):
    read: int
    write: int
    perm: int
    sys_flag: int


def config(name: str, *numbers: int, **more: Any) -> dict[str, Any]:
    read, write, perm, flag = numbers or (8, 8, 6, 0)
    return {
        "attributes": {}, "order": False, "perm": perm, "readQueueNums": read, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": flag, "writeQueueNums": write, **more,
    }  # fmt: skip


def body_of(table: object, **wrapper: object) -> bytes:
    document = {
        "filterServerList": ["a:1"],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "timestamp": 2}, "topicConfigTable": table, "other": [{"}": "]"}, 1.5, None],
            **wrapper,
        },
    }  # fmt: skip
    return json.dumps(document, ensure_ascii=False).encode()


def read(body: bytes) -> dict[str, Numbers] | None:
    """What a caller makes of a body: nothing, where what is around the table is not JSON."""
    found = read_topic_table(body, Numbers)
    if found is None:
        return None
    topics, _, start, end = found
    assert 0 < start < end < len(body)
    try:
        json.loads(body[:start] + b"{}" + body[end:], parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return None
    return topics


@pytest.mark.parametrize("vector", family("bodies.jsonl", "encode/RegisterBrokerBody/"), ids=name_of)
def test_bodies_of_java(vector: dict[str, Any]) -> None:
    body = vector["expected"].encode()
    found = read_topic_table(body, Numbers)
    assert found is not None, "what Java writes is never unusual"
    topics, odd, start, end = found
    assert odd == [name for name in topics if not (name.isascii() and name.isprintable())]
    table = vector["decoded"]["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert topics.keys() == table.keys()
    for name, (read, write, perm, _) in topics.items():
        assert (read, write, perm) == tuple(table[name][key] for key in ("readQueueNums", "writeQueueNums", "perm"))
    assert json.loads(body[start:end]).keys() == table.keys()


def test_the_range_is_the_table_whatever_surrounds_it() -> None:
    table = {"订单": config("订单"), "b": config("b", -1, 2**31 - 1, 4, 3, attributes={"+k": '"}', "l": ""})}
    body = body_of(table, topicQueueMappingInfoMap={"topicConfigTable": {"x": 1}})
    found = read_topic_table(body, Numbers)
    assert found is not None
    topics, odd, start, end = found
    assert odd == ["订单"]
    assert topics == {"订单": (8, 8, 6, 0), "b": (-1, 2**31 - 1, 4, 3)}
    assert json.loads(body[start:end]) == table
    assert read_topic_table(body_of({}), Numbers) is not None


def test_equal_numbers_are_one_object() -> None:
    calls = []

    def numbers(*four: int) -> Numbers:
        calls.append(four)
        return Numbers(*four)

    table = {f"T{i}": config(f"T{i}", 8, 8, 6 if i % 3 else 4, 0) for i in range(90)}
    found = read_topic_table(body_of(table), numbers)
    assert found is not None
    assert sorted(calls) == [(8, 8, 4, 0), (8, 8, 6, 0)]
    assert len({id(each) for each in found[0].values()}) == 2


def test_the_last_topic_of_a_name_wins() -> None:
    first, last = (json.dumps(config("T", number, number, 6, 0)).encode() for number in (1, 2))
    found = read_topic_table(body_of({}).replace(b"{}", b'{"T":%s,"T":%s}' % (first, last)), Numbers)
    assert found is not None
    assert found[0] == {"T": (2, 2, 6, 0)}


@pytest.mark.parametrize("key", ["U", "", "T ", "\\u0054"])
def test_a_topic_under_another_key_than_its_name_is_unusual(key: str) -> None:
    """Topics of one key are one, whatever their names are, and two keys are two topics even with one name."""
    table = json.dumps({"T": config("T")})[:-1] + f', "{key}": {json.dumps(config("T"))}' + "}"
    assert read_topic_table(body_of({}).replace(b"{}", table.encode()), Numbers) is None


@pytest.mark.parametrize("part", ["topicConfigTable", "topicConfigSerializeWrapper", "filterServerList", "other"])
def test_an_escaped_key_around_the_table_is_unusual(part: str) -> None:
    """It may be the name of the table once more, which then is the last and the only one."""
    body = body_of({"T": config("T")}).replace(part[-1:].encode() + b'":', b"\\u%04x" % ord(part[-1]) + b'":')
    assert json.loads(body) == json.loads(body_of({"T": config("T")}))
    assert read_topic_table(body, Numbers) is None


@pytest.mark.parametrize(
    "unusual",
    [
        {"topicName": None}, {"topicName": ""}, {"topicName": 'quote"'}, {"perm": "6"}, {"perm": 6.5}, {"perm": 2**31},
        {"order": 1}, {"attributes": None}, {"attributes": {"k": 1}}, {"topicFilterType": None}, {"$ref": "$"},
    ],
    ids=repr,
)  # fmt: skip
def test_an_unusual_topic_is_left_to_the_general_reader(unusual: dict[str, Any]) -> None:
    assert read(body_of({"T": config("T"), "U": config("U", **unusual)})) is None


@pytest.mark.parametrize("missing", ["topicName", "readQueueNums", "writeQueueNums", "perm"])
def test_a_topic_that_says_too_little_is_unusual(missing: str) -> None:
    short = config("U")
    del short[missing]
    assert read(body_of({"U": short})) is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}", b"[]", b"null", b'{"topicConfigSerializeWrapper":{}}',
        b'{"topicConfigSerializeWrapper":null}', b'{"topicConfigSerializeWrapper":{"topicConfigTable":null}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}},"topicConfigSerializeWrapper":{"topicConfigTable":{}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"topicConfigTable":{}}}',
        b"{'topicConfigSerializeWrapper':{'topicConfigTable':{}}}", b'\xff{"topicConfigSerializeWrapper":{}}',
    ],
)  # fmt: skip
def test_a_body_without_one_table_is_unusual(body: bytes) -> None:
    assert read_topic_table(body, Numbers) is None


def test_an_error_of_the_callers_numbers_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        read_topic_table(body_of({"T": config("T")}), lambda *four: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        read_topic_texts(texts("T 1 1 6 X"), 0, 1, lambda *four: 1 // 0)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
tables = st.dictionaries(names, st.builds(config, names, int32s, int32s, int32s, int32s), max_size=5)


@settings(max_examples=300, deadline=None)
@given(table=tables, data=st.data())
def test_json_damaged_anywhere_reads_as_the_reference_does_or_not_at_all(
    table: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(body_of(table))
    for _ in range(data.draw(st.integers(0, 2))):
        position = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "drop"])):
            case "change":
                body[position] = data.draw(st.sampled_from(b'{}[]":,\\ 0a\x00\xff'))
            case "insert":
                body.insert(position, data.draw(st.sampled_from(b'{}[]":,\\ 0a')))
            case "drop":
                del body[position]
            case "cut":
                del body[position + 1 :]
    found = read(bytes(body))
    if found is not None:
        assert found == reference.topics_of_json(bytes(body))


def texts(*lines: str | bytes) -> bytes:
    encoded = [line.encode() if isinstance(line, str) else line for line in lines]
    return b"".join(struct.pack(">i", len(line)) + line for line in encoded)


def both(data: bytes, position: int, count: int) -> tuple[dict[str, Any], int, int]:
    found = read_topic_texts(data, position, count, Numbers)
    topics, odd, taken, end = found
    assert set(odd) == {name for name in topics if not (name.isascii() and name.isprintable())}
    assert (topics, taken, end) == reference.topics_of_texts(data, position, count)
    return topics, taken, end


def test_texts_of_the_compressed_form() -> None:
    data = texts("T 8 8 6 SINGLE_TAG", '订单 1 -2 4 MULTI_TAG {"+a":"b c"}', "T 3 3 6 X ") + b"rest"
    assert both(data, 0, 3) == ({"T": (3, 3, 6, 0), "订单": (1, -2, 4, 0)}, 3, len(data) - 4)
    assert both(data, 0, 1)[1:] == (1, 22)
    assert both(data, 22, 1)[0] == {"订单": (1, -2, 4, 0)}
    assert both(data, 0, 9)[1] == 3
    assert both(b"", 0, 0) == ({}, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "T 8 8 6", "T", "", " 8 8 6 X", "T 8 8  X", "T 8 8 + X", "T 8 8 6.0 X", "T 8 8 2147483648 X", "T 8 x 6 X",
        b"\xff 8 8 6 X",
    ],
    ids=repr,
)  # fmt: skip
def test_an_odd_text_ends_the_reading_before_it(text: str | bytes) -> None:
    data = texts("T 8 8 6 SINGLE_TAG", text, "U 8 8 6 SINGLE_TAG")
    assert both(data, 0, 3) == ({"T": (8, 8, 6, 0)}, 1, 22)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 19])
def test_a_length_word_beyond_the_data_ends_the_reading(length: int) -> None:
    data = struct.pack(">i", length) + b"T 8 8 6 SINGLE_TAG"
    assert both(data, 0, 5) == ({}, 0, 0)


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_outside_is_the_callers_mistake(position: int) -> None:
    with pytest.raises(ValueError, match="is not within the 4 bytes"):
        read_topic_texts(b"\0\0\0\0", position, 1, Numbers)


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(
        st.one_of(
            st.builds("{} {} {} {} {}".format, names, int32s, int32s, int32s, names),
            st.text("T 0123456789-+{}", max_size=20),
            st.binary(max_size=12),
        ),
        max_size=4,
    ),
    cut=st.integers(0, 8),
)
def test_texts_read_as_the_reference_does(lines: list[str | bytes], cut: int) -> None:
    data = texts(*lines)
    both(data[: len(data) - cut], 0, len(lines))


def test_a_callers_bytes_only() -> None:
    functions: list[Callable[..., object]] = [read_topic_table, read_topic_texts]
    for function, arguments in zip(functions, [(Numbers,), (0, 1, Numbers)], strict=True):
        with pytest.raises(TypeError):
            function(None, *arguments)


def test_topics_written_alike_are_read_as_if_each_stood_alone() -> None:
    def topic(name: str, perm: int = 6, extra: str = "") -> str:
        return f'"{name}":{{"perm":{perm},"readQueueNums":4,{extra}"topicName":"{name}","writeQueueNums":4}}'

    written = [topic("a"), topic("b"), topic("c" * 300), topic("d", 4), topic("e", 4), topic("f", 4, '"order":false,')]
    written += [topic("g"), topic("h").replace("4}", "4 }"), topic("i"), topic("b", 2)]
    body = '{"topicConfigSerializeWrapper":{"topicConfigTable":{' + ",".join(written) + "}}}"
    found = read_topic_table(body.encode(), lambda *numbers: numbers)
    assert found is not None
    perms = {"a": 6, "b": 2, "c" * 300: 6, "d": 4, "e": 4, "f": 4, "g": 6, "h": 6, "i": 6}
    assert found[0] == {name: (4, 4, perm, 0) for name, perm in perms.items()}
    for bad in ('"":', '"x\\u0041":', '"y":'):
        name = bad[1:-2]
        odd = topic(name) if bad != '"y":' else topic(name)[:-1]
        text = body[:-3] + "," + odd + "}}}"
        assert read_topic_table(text.encode(), lambda *numbers: numbers) is None, bad


def both_forms(topics: list[tuple[str, Numbers]]) -> dict[str, Numbers]:
    """Read topics, in this order and perhaps more than once, from both forms of a body."""
    parts = [json.dumps({name: config(name, *four)}, ensure_ascii=False)[1:-1] for name, four in topics]
    body = '{"topicConfigSerializeWrapper":{"topicConfigTable":{' + ",".join(parts) + "}}}"
    found = read_topic_table(body.encode(), Numbers)
    assert found is not None
    data = texts(*(f"{name} {four.read} {four.write} {four.perm} SINGLE_TAG" for name, four in topics))
    assert read_topic_texts(data, 0, len(topics), Numbers) == (*found[:2], len(topics), len(data))
    return found[0]


topic_names = st.one_of(st.sampled_from("abcdefghé"), st.integers(0, 200).map("topic-{}".format))
topic_lists = st.lists(st.tuples(topic_names, st.integers(1, 12).map(lambda read: Numbers(read, 1, 6, 0))), max_size=60)


@settings(max_examples=300, deadline=None)
@given(topics=topic_lists)
def test_both_forms_say_the_same(topics: list[tuple[str, Numbers]]) -> None:
    assert both_forms(topics) == dict(topics)


def test_names_beyond_printable_ascii_are_handed_out_beside() -> None:
    names = ["a", "é", "b\x7f", "~", "%RETRY%a", "\u202e", "é"]
    table = ",".join(f'"{name}":{json.dumps(config(name), ensure_ascii=False)}' for name in names)
    found = read_topic_table(body_of({}).replace(b"{}", b"{%s}" % table.encode()), Numbers)
    assert found is not None
    assert found[1] == ["é", "b\x7f", "\u202e", "é"]
    assert read_topic_texts(texts(*(f"{name} 1 1 6 X" for name in [*names, "\x1f"])), 0, 8, Numbers)[1] == [
        "é", "b\x7f", "\u202e", "é", "\x1f"
    ]  # fmt: skip


def json_of(*topics: str, form: str = '{"perm":6,"readQueueNums":4,"topicName":"%s","writeQueueNums":4}') -> bytes:
    """A table whose topics are written alike, their names as they are."""
    table = ",".join(f'"{name}":{form % name}' for name in topics)
    return ('{"topicConfigSerializeWrapper":{"topicConfigTable":{' + table + "}}}").encode("utf-8", "surrogateescape")


FOUR = Numbers(4, 4, 6, 0)
FILLERS = [f"filler-{number}" for number in range(40)]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\\u0062", "a\x1fb", "", 'a":{"perm":6}', "x" * 0x8000])
@pytest.mark.parametrize("place", [0, 1, 40])
def test_a_name_among_topics_of_one_form_is_read_as_any_other(name: str, place: int) -> None:
    assert read_topic_table(json_of(*FILLERS), Numbers) is not None
    assert read_topic_table(json_of(*FILLERS[:place], name, *FILLERS[place:]), Numbers) is None


@pytest.mark.parametrize("name", ["a b", " a", "a ", "4", "", "x" * 0x8000])
def test_a_text_ends_its_name_at_a_blank(name: str) -> None:
    names = [*FILLERS, name]
    data = texts(*(f"{each} 4 4 6 X" for each in names))
    expected = reference.topics_of_texts(data, 0, len(names)) if len(name) < 0x8000 else None
    topics, _, taken, end = read_topic_texts(data, 0, len(names), Numbers)
    if expected is None:
        assert (topics, taken) == (dict.fromkeys(FILLERS, FOUR), len(FILLERS))
    else:
        assert (topics, taken, end) == expected


@pytest.mark.parametrize("place", [0, 20, 39])
@pytest.mark.parametrize("cut", ["name", "type"])
def test_what_is_not_utf8_is_unusual_wherever_it_is(place: int, cut: str) -> None:
    names = list(FILLERS)
    form = '{"perm":6,"readQueueNums":4,"topicFilterType":"é","topicName":"%s","writeQueueNums":4}'
    assert read_topic_table(json_of(*names, form=form), Numbers) is not None
    if cut == "name":
        names[place] += "\udcc3"
        body = json_of(*names, form=form)
    else:
        parts = json_of(*names, form=form).split("é".encode())
        body = "é".encode().join(parts[: place + 1]) + b"\xc3" + "é".encode().join(parts[place + 1 :])
    assert read_topic_table(body, Numbers) is None


@pytest.mark.parametrize("text", [b"a:1", b"counter", b"other"])
def test_what_is_not_utf8_around_the_table_is_unusual_too(text: bytes) -> None:
    body = body_of({"T": config("T")})
    assert body.count(text) == 1
    for odd in (b"\xff", b"\xed\xa0\x80", b"\xc3"):
        assert read_topic_table(body.replace(text, text + odd), Numbers) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((b'"perm":6', b'"perm":7'), {"filler-20": (4, 4, 7, 0)}),
        ((b'"writeQueueNums":4', b'"writeQueueNums":40'), {"filler-20": (4, 40, 6, 0)}),
        ((b"},", b"} ,"), {}),
        ((b'-20":{', b'-21":{'), None), ((b'"filler-20","w', b'"filler-21","w'), None),
        ((b'"filler-20","w', b'"filler-200","w'), None), ((b'"filler-20":', b'"filler-2":'), None),
        ((b"},", b"}"), None), ((b'"topicName"', b'"topicNane"'), None),
    ],
)  # fmt: skip
def test_a_topic_in_the_middle_is_never_taken_for_what_it_is_not(
    change: tuple[bytes, bytes], expected: dict[str, tuple[int, ...]] | None
) -> None:
    body = json_of(*FILLERS)
    at = body.index(b'"filler-20":')
    changed = body[:at] + body[at:].replace(*change, 1)
    found = read_topic_table(changed, Numbers)
    assert (None if found is None else found[0]) == (
        None if expected is None else {**dict.fromkeys(FILLERS, FOUR), **expected}
    )


def test_a_name_that_begins_with_another_is_another() -> None:
    names = ["a", "ab", "abc", *FILLERS, "abcdefghijklmnop", "abcdefghijklmnopq"]
    for order in (names, names[::-1], ["abc", "ab", "a"], ["ab", *names]):
        topics = [(name, Numbers(len(name), 9, 6, 0)) for name in order]
        assert both_forms(topics) == dict(topics)


@pytest.mark.parametrize("length", [0x7FFF, 0x8000])
def test_longer_names_are_unusual(length: int) -> None:
    name = "x" * length
    taken = length == 0x7FFF
    assert (read_topic_table(body_of({name: config(name)}), Numbers) is not None) is taken
    assert read_topic_texts(texts(f"{name} 1 1 6 X"), 0, 1, Numbers)[2] == taken


@settings(max_examples=300, deadline=None)
@given(
    table=st.dictionaries(topic_names, st.sampled_from("xyz")),
    topics=st.dictionaries(topic_names, st.sampled_from("12")), in_order=st.booleans(),
)  # fmt: skip
def test_topics_move_to_what_their_pair_says(table: dict[str, str], topics: dict[str, str], in_order: bool) -> None:
    asked = []

    def target(old: str | None, new: str) -> str:
        asked.append((old, new))
        return old if old == "x" else f"{old}{new}"

    if in_order:
        topics = {**dict.fromkeys(table, "1"), **topics}
    before = dict(table)
    expected = {
        **table,
        **{name: "x" if before.get(name) == "x" else f"{before.get(name)}{new}" for name, new in topics.items()},
    }
    assert move(table, topics, target) == [name for name in topics if expected[name] != before.get(name)]
    assert table == expected
    assert list(table) == list(expected)
    assert sorted(asked, key=repr) == sorted({(before.get(name), new) for name, new in topics.items()}, key=repr)


def test_the_table_keeps_its_own_names() -> None:
    """Those of a registration are gone with it, whatever it changes: ten brokers do not keep a name ten times."""
    table = dict.fromkeys(FILLERS, 1)
    again = read_topic_table(json_of(*FILLERS), Numbers)
    assert again is not None
    assert len(move(table, again[0], lambda old, new: 2)) == len(FILLERS)
    assert [id(name) for name in table] == [id(name) for name in FILLERS]


def test_no_topic_moves_where_one_has_nothing_to_go_to() -> None:
    def target(old: int | None, new: str) -> int:
        return {(1, "x"): 2}[old, new]  # type: ignore[index]

    table = {"a": 1}
    with pytest.raises(KeyError):
        move(table, {"a": "x", "b": "x"}, target)
    assert table == {"a": 1}


NAMES = ["é", *(f"T{i}" for i in range(10)), "T", "T00"]
SOME_NUMBERS = [Numbers(8, 8, 6, 0), Numbers(4, 4, 6, 0)]


@settings(max_examples=1000)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SOME_NUMBERS)), max_size=20),
    st.lists(st.sampled_from(NAMES), unique=True),
    st.sets(st.sampled_from(NAMES)),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SOME_NUMBERS))),
    st.booleans(),
)
def test_topics_that_are_as_the_table_has_them_are_left_out(
    topics: list[tuple[str, Numbers]],
    in_table: list[str],
    gone: set[str],
    more: list[tuple[str, Numbers]],
    in_order: bool,
) -> None:
    """In whatever order the table has them. Of a name that comes twice the last counts, here too."""
    known = dict.fromkeys(in_table, SOME_NUMBERS[0])
    for name in gone & known.keys():
        del known[name]
    known.update(more)
    if in_order:
        topics = [*known.items(), *topics]
    entries = ",".join(f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(config(name, *numbers))}"
                       for name, numbers in topics)  # fmt: skip
    body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{entries}}}}}}}'.encode()
    asked: list[tuple[Numbers, Numbers]] = []

    def same(old: Numbers, new: Numbers) -> bool:
        asked.append((old, new))
        return old == new

    found = read_topic_table(body, Numbers, known, same)
    whole = read_topic_table(body, Numbers)
    if whole is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == {name: numbers for name, numbers in whole[0].items() if known.get(name) != numbers}
    assert found[2:] == whole[2:]
    assert len(asked) == len(set(asked))
