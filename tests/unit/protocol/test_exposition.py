"""The text form of metrics, read by a strict reader."""

from __future__ import annotations

import pytest

from rocketcore.protocol.exposition import Family, Kind, label_text
from tests.reference.exposition import complaints, read_exposition


def text_of(*families: Family) -> str:
    return b"".join(part for family in families for part in family.encode()).decode()


def test_a_family_is_its_help_its_type_and_its_samples() -> None:
    family = Family("rocketmq_topic_number", "gauge", "Topics that the broker has")
    family.add(12, label_text({"cluster": "c", "node_id": "broker-a"}))
    assert text_of(family) == (
        "# HELP rocketmq_topic_number Topics that the broker has\n"
        "# TYPE rocketmq_topic_number gauge\n"
        'rocketmq_topic_number{cluster="c",node_id="broker-a"} 12\n'
    )


@pytest.mark.parametrize("value", ['"', "\\", "\n", 'a\\n"\\', "%RETRY%é", "{a=1}, b", ""])
def test_what_is_special_in_labels_and_help_is_escaped(value: str) -> None:
    family = Family("a", "gauge", value)
    family.add(1.5, label_text({"x": value, "y": "1"}))
    assert read_exposition(text_of(family)) == ({"a": "gauge"}, {("a", frozenset({("x", value), ("y", "1")})): 1.5})


def test_text_that_has_no_bytes_is_replaced() -> None:
    family = Family("a", "gauge", "")
    family.add(1, label_text({"x": "\udcff"}))
    assert b'x="?"' in b"".join(family.encode())


def test_classes_of_a_histogram_add_up() -> None:
    family = Family("t", "histogram", "Times")
    family.add_histogram((0.0, 0.5), [1, 2, 3], 4.5, 'a="b"')
    family.add_histogram((0.0, 0.5), [0, 0, 0], 0, 'a="c"')
    kinds, samples = read_exposition(text_of(family))
    assert kinds == {"t": "histogram"}
    assert samples["t_bucket", frozenset({("a", "b"), ("le", "0.5")})] == 3
    assert samples["t_count", frozenset({("a", "b")})] == 6
    assert samples["t_sum", frozenset({("a", "b")})] == 4.5


def test_a_family_without_samples_is_not_there_and_a_long_one_comes_in_parts() -> None:
    empty, long = Family("a", "gauge", ""), Family("b", "counter", "")
    for number in range(2500):
        long.add(number, f'n="{number}"')
    assert max(map(len, long.encode())) < 5000
    kinds, samples = read_exposition(text_of(empty, long))
    assert (kinds, len(samples)) == ({"b": "counter"}, 2500)


@pytest.mark.parametrize(
    "text",
    [
        "a{} 1", "a{} 1\n", "# HELP a \n# TYPE a gauge\nb{} 1\n", "# HELP a \n# TYPE a gauge\na{} x\n",
        "# HELP a \n# TYPE a gauge\na{} 1\na{} 1\n", '# HELP a \n# TYPE a gauge\na{b="\\x"} 1\n',
        '# HELP a \n# TYPE a gauge\na{b="1",b="2"} 1\n', "# HELP a \n# TYPE a gauge\n\n",
        '# HELP a \n# TYPE a histogram\na_bucket{le="+Inf"} 1\na_sum{} 1\na_count{} 2\n',
    ],
)  # fmt: skip
def test_the_reader_refuses_what_is_not_of_the_form(text: str) -> None:
    with pytest.raises(ValueError):
        read_exposition(text)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("a_total", "gauge", "_total"), ("a", "counter", "_total"), ("a:b", "gauge", "colons"),
        ("aB", "gauge", "capit"), ("a_gauge", "gauge", "type"),
        ("a_milliseconds", "gauge", "base unit seconds"), ("a_count", "gauge", "an end"),
    ],
)  # fmt: skip
def test_names_that_monitors_complain_of(name: str, kind: Kind, said: str) -> None:
    family = Family(name, kind, "x")
    family.add(1, 'a="b"')
    assert [said in each for each in complaints(text_of(family))] == [True]
    plain = Family("rocketcore_reads_total", "counter", "x")
    plain.add(1, 'a="b"')
    assert not complaints(text_of(plain))
