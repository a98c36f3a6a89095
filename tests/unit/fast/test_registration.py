"""The topics of a registration: the kernel beside the reference, on good input and on damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast.registration import move, moves, read_topic_table, read_topic_texts
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
    topics, start, end = found
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
    topics, start, end = found
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
    topics, start, end = found
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
    assert found == reference.topics_of_texts(data, position, count)
    return found


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


def test_moves_are_the_distinct_pairs_of_what_is_there_and_what_comes() -> None:
    one, two, new, other = object(), object(), object(), object()
    known = {"a": one, "b": one, "c": two, "gone": two}
    topics = {"a": new, "b": new, "c": new, "d": new, "e": other, "f": new}
    assert moves(known, topics) == {(one, new), (two, new), (None, new), (None, other)}
    assert moves({}, {}) == set()


def both_forms(
    topics: list[tuple[str, Numbers]], known: dict[str, Any] | None = None, same: Any = None
) -> dict[str, Numbers]:
    """Read topics, in this order and perhaps more than once, from both forms of a body."""
    parts = [json.dumps({name: config(name, *four)}, ensure_ascii=False)[1:-1] for name, four in topics]
    body = '{"topicConfigSerializeWrapper":{"topicConfigTable":{' + ",".join(parts) + "}}}"
    found = read_topic_table(body.encode(), Numbers, known, same)
    assert found is not None
    data = texts(*(f"{name} {four.read} {four.write} {four.perm} SINGLE_TAG" for name, four in topics))
    assert read_topic_texts(data, 0, len(topics), Numbers, known, same) == (found[0], len(topics), len(data))
    return found[0]


topic_names = st.one_of(st.sampled_from("abcdefghé"), st.integers(0, 200).map("topic-{}".format))
topic_lists = st.lists(st.tuples(topic_names, st.integers(1, 3).map(lambda read: Numbers(read, 1, 6, 0))))


FOUR = Numbers(4, 4, 6, 0)


@settings(max_examples=300, deadline=None)
@given(before=topic_lists, topics=topic_lists, repeat=st.integers(0, 120))
def test_topics_that_are_the_same_are_left_out(
    before: list[tuple[str, Numbers]], topics: list[tuple[str, Numbers]], repeat: int
) -> None:
    known = dict(before)
    topics = [*topics, *before[: repeat % 7], *topics[:2], *((f"other-{n}", FOUR) for n in range(repeat)), *before]
    found = both_forms(topics, known, lambda old, new: old == new)
    assert found == {name: new for name, new in dict(topics).items() if known.get(name) != new}
    assert both_forms(topics, known) == both_forms(topics) == dict(topics)


def test_names_that_are_known_are_used_again() -> None:
    names = [f"orders-{number}" for number in range(100)]
    known = {name: object() for name in names}
    asked: list[object] = []

    def same(old: object, new: Numbers) -> bool:
        asked.append(old)
        return False

    other = [names[0], "new", *names[1:50], *names[53:]]
    found = read_topic_table(body_of({name: config(name) for name in other}), Numbers, known, same)
    assert found is not None
    assert [name for name in found[0] if id(name) not in set(map(id, known))] == ["new"]
    assert asked == [known[name] for name in other if name != "new"]


def test_what_is_the_same_is_asked_once_for_topics_in_a_row() -> None:
    state, other = object(), object()
    known = {"a": state, "b": state, "c": other, "d": state}
    asked: list[tuple[object, Numbers]] = []

    def same(old: object, new: Numbers) -> bool:
        asked.append((old, new))
        return old is state

    four, five = FOUR, Numbers(5, 5, 6, 0)
    topics = {"a": four, "b": four, "c": four, "d": four, "e": four}
    body = body_of({name: config(name, *numbers) for name, numbers in {**topics, "a": five}.items()})
    assert read_topic_table(body, Numbers, known, same)[0] == {"c": four, "e": four}  # type: ignore[index]
    assert list(dict.fromkeys(asked)) == [(state, five), (state, four), (other, four)]
    assert len(asked) <= 4, "two of them may take each other's place"


def json_of(*topics: str, form: str = '{"perm":6,"readQueueNums":4,"topicName":"%s","writeQueueNums":4}') -> bytes:
    """A table whose topics are written alike, their names as they are."""
    table = ",".join(f'"{name}":{form % name}' for name in topics)
    return ('{"topicConfigSerializeWrapper":{"topicConfigTable":{' + table + "}}}").encode("utf-8", "surrogateescape")


FILLERS = [f"filler-{number}" for number in range(40)]


def always(old: object, new: Numbers) -> bool:
    return True


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\\u0062", "a\x1fb", "", 'a":{"perm":6}', "x" * 0x8000])
@pytest.mark.parametrize("turn", [0, 1, 5])
def test_a_name_that_is_expected_is_read_as_any_other(name: str, turn: int) -> None:
    """What ends a text or begins an escape does so too where the table has a name with the same bytes."""
    known = dict.fromkeys([*FILLERS[:turn], name, *FILLERS[turn:]], 1)
    assert read_topic_table(json_of(*FILLERS), Numbers, known, always) is not None
    assert read_topic_table(json_of(*known), Numbers, known, always) is None


@pytest.mark.parametrize("name", ["a b", " a", "a ", "4", "", "x" * 0x8000])
def test_a_text_ends_its_name_at_a_blank_whatever_is_expected(name: str) -> None:
    known = dict.fromkeys([*FILLERS, name], 1)
    data = texts(*(f"{each} 4 4 6 X" for each in known))
    expected = reference.topics_of_texts(data, 0, len(known)) if len(name) < 0x8000 else ({}, len(FILLERS), 0)
    topics, taken, end = read_topic_texts(data, 0, len(known), Numbers, known, always)
    assert taken == expected[1]
    assert topics.keys() <= expected[0].keys()
    assert end == (len(data) if taken == len(known) else data.index(f"{FILLERS[-1]} ".encode()) + len(FILLERS[-1]) + 8)


@pytest.mark.parametrize("place", [0, 20, 39])
@pytest.mark.parametrize("cut", ["name", "type"])
def test_what_is_not_utf8_is_unusual_wherever_it_is(place: int, cut: str) -> None:
    names = list(FILLERS)
    form = '{"perm":6,"readQueueNums":4,"topicFilterType":"é","topicName":"%s","writeQueueNums":4}'
    known = dict.fromkeys(names, 1)
    assert read_topic_table(json_of(*names, form=form), Numbers, known, always) is not None
    if cut == "name":
        names[place] += "\udcc3"
        body = json_of(*names, form=form)
    else:
        parts = json_of(*names, form=form).split("é".encode())
        body = "é".encode().join(parts[: place + 1]) + b"\xc3" + "é".encode().join(parts[place + 1 :])
    assert read_topic_table(body, Numbers, known, always) is None
    assert read_topic_table(body, Numbers) is None


@pytest.mark.parametrize("text", [b"a:1", b"counter", b"other"])
def test_what_is_not_utf8_around_the_table_is_unusual_too(text: bytes) -> None:
    body = body_of({"T": config("T")})
    assert body.count(text) == 1
    for odd in (b"\xff", b"\xed\xa0\x80", b"\xc3"):
        assert read_topic_table(body.replace(text, text + odd), Numbers) is None
        assert read_topic_table(body.replace(text, text + odd), Numbers, {"T": 1}, always) is None


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
    found = read_topic_table(changed, Numbers, dict.fromkeys(FILLERS, 1), lambda old, new: new == (4, 4, 6, 0))
    assert (None if found is None else found[0]) == expected


def test_a_name_that_begins_with_the_expected_one_is_another() -> None:
    names = ["a", "ab", "abc", *FILLERS, "abcdefghijklmnop", "abcdefghijklmnopq"]
    known = {name: Numbers(number, 4, 6, 0) for number, name in enumerate(names)}
    for order in (names, names[::-1], ["abc", "ab", "a"], ["ab", *names]):
        topics = [(name, Numbers(len(name), 9, 6, 0)) for name in order]
        assert both_forms(topics, known, lambda old, new: False) == dict(topics)
        assert both_forms([(name, known[name]) for name in order], known, lambda old, new: old == new) == {}


@pytest.mark.parametrize(("gone", "looked_up"), [(3, 0), (4, 1), (30, 4), (200, 6)])
def test_topics_that_a_broker_has_no_more_cost_the_others_little(gone: int, looked_up: int) -> None:
    """The names of topics that are found in their turn are the table's own, those of the others are new."""
    names = [f"orders-{number}" for number in range(400)]
    known = dict.fromkeys(names, 1)
    found = both_forms([(name, FOUR) for name in (*names[:50], *names[50 + gone :])], known, lambda old, new: False)
    assert sum(id(name) not in set(map(id, known)) for name in found) == looked_up


@pytest.mark.parametrize("far", [3, 39])
def test_a_topic_that_comes_again_as_the_table_has_it_is_left_out(far: int) -> None:
    """Whether it was looked up or its turn, before or now."""
    known = dict.fromkeys(FILLERS, 1)
    first, again = (Numbers(number, 4, 6, 0) for number in (9, 4))
    topics = [(FILLERS[far], first), *((name, again) for name in FILLERS)]
    assert both_forms(topics, known, lambda old, new: new == again) == {}
    assert both_forms([*topics, (FILLERS[far], first)], known, lambda old, new: new == again) == {FILLERS[far]: first}


def test_topics_of_many_shapes_are_left_out_too() -> None:
    numbers = [Numbers(1 + number % 11, 4, 6 - number % 3, 0) for number in range(300)]
    topics = [(f"orders-{number}", four) for number, four in enumerate(numbers)]
    known = dict(topics)
    assert both_forms(topics, known, lambda old, new: old == new) == {}
    topics[150] = ("orders-150", FOUR)
    assert both_forms(topics, known, lambda old, new: old == new) == {"orders-150": FOUR}


@settings(max_examples=300, deadline=None)
@given(table=tables, data=st.data())
def test_damage_reads_the_same_beside_a_table_that_knows_the_topics(table: dict[str, Any], data: st.DataObject) -> None:
    names = [*FILLERS[:3], *table, *FILLERS[3:6]]
    known = dict.fromkeys(names, 1)
    body = bytearray(json_of(*names))
    for _ in range(data.draw(st.integers(1, 2))):
        position = data.draw(st.integers(0, len(body) - 1))
        put = data.draw(st.lists(st.sampled_from(b'{}[]":,\\ 0a6\x00\xff'), max_size=1))
        body[position : position + data.draw(st.integers(0, 1))] = bytes(put)
    plain = read_topic_table(bytes(body), Numbers)
    beside = read_topic_table(bytes(body), Numbers, known, lambda old, new: new == FOUR)
    assert (plain is None) == (beside is None)
    if plain is not None and beside is not None:
        assert beside == ({n: f for n, f in plain[0].items() if n not in known or f != FOUR}, *plain[1:])


@pytest.mark.parametrize("length", [0x7FFF, 0x8000])
def test_longer_names_are_unusual(length: int) -> None:
    name = "x" * length
    taken = length == 0x7FFF
    assert (read_topic_table(body_of({name: config(name)}), Numbers) is not None) is taken
    assert read_topic_texts(texts(f"{name} 1 1 6 X"), 0, 1, Numbers)[1] == taken


def test_a_call_that_fails_ends_the_reading() -> None:
    with pytest.raises(ZeroDivisionError):
        read_topic_table(body_of({"T": config("T")}), Numbers, {"T": 1}, lambda old, new: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        read_topic_texts(texts("T 1 1 6 X"), 0, 1, Numbers, {"T": 1}, lambda old, new: 1 // 0)


@settings(max_examples=300, deadline=None)
@given(
    known=st.dictionaries(topic_names, st.sampled_from("xyz")),
    topics=st.dictionaries(topic_names, st.sampled_from("12")), more=st.integers(0, 100), in_order=st.booleans(),
)  # fmt: skip
def test_topics_move_to_what_their_pair_says(
    known: dict[str, str], topics: dict[str, str], more: int, in_order: bool
) -> None:
    if in_order:
        topics = {**dict.fromkeys(known, "1"), **topics}
    topics |= {f"more-{number}": "2" for number in range(more)}
    target = {(old, new): old if old == "x" else f"{old}{new}" for old in (None, *"xyz") for new in "12"}
    expected = {**known, **{name: target[known.get(name), new] for name, new in topics.items()}}
    changed = [name for name in topics if expected[name] != known.get(name)]
    assert moves(known, topics) == {(known.get(name), new) for name, new in topics.items()}
    assert move(known, topics, target) == changed
    assert known == expected
    assert list(known) == list(expected)


def test_topics_move_only_where_there_is_something_to_go_to() -> None:
    known = {"a": 1}
    with pytest.raises(KeyError):
        move(known, {"a": "x"}, {})
    assert known == {"a": 1}
