"""Tests that use one JVM or one pair of servers run in one process, whatever file they are in."""

from __future__ import annotations

import pytest

from tests.fixtures.shares import share_of, turn_of


@pytest.mark.parametrize(
    ("test", "share"),
    [
        ("tests/spark/test_batch.py::test_rows_there_and_back", "spark"),
        ("tests/integration/test_readme.py::test_spark", "spark"),
        ("tests/interop/test_our_clients.py::test_asyncio_clients", "apache"),
        ("tests/interop/test_java_clients.py::test_java_pull_consumer[5.5.0]", "apache"),
        ("tests/interop/test_spark_parts.py::test_there_and_back[5.5.0-hash]", "apache"),
        ("tests/conformance/test_routes.py::test_x[a::b]", "name servers"),
        ("tests/interop/test_stores.py::test_x", "tests/interop/test_stores.py"),
        ("tests/unit/test_ids.py::test_x[a::b@c]", "tests/unit/test_ids.py"),
    ],
)
def test_shares(test: str, share: str) -> None:
    assert share_of(test) == share


def test_what_starts_a_jvm_begins_first_and_what_wants_to_be_alone_last() -> None:
    alone = "tests/integration/console/test_scale.py"
    shares = [alone, "tests/unit/test_ids.py", "tests/interop/test_stores.py", "name servers", "apache", "spark"]
    assert sorted(shares, key=turn_of) == shares[::-1]
