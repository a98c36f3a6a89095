"""Client ids and UNIQ_KEYs."""

from __future__ import annotations

import ipaddress
import os
import re
import threading
from datetime import datetime
from typing import Any

import pytest

from rocketcore.addresses import outward_ip
from rocketcore.ids import UniqKeys, client_id, new_uniq_key, uniq_key_of
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("record", family("ids.jsonl", "unique/"), ids=name_of)
def test_uniq_key_has_javas_layout(record: dict[str, Any]) -> None:
    given = record["input"]
    address = ipaddress.ip_address(given["ip"]).packed
    key = uniq_key_of(address, given["pid"], given["hash"], given["timeDifference"], given["counter"])
    assert key == record["expected"]


@pytest.mark.parametrize("record", family("ids.jsonl", "unique-backwards/"), ids=name_of)
def test_a_clock_shortly_before_the_month_counts_as_its_start(record: dict[str, Any]) -> None:
    key = uniq_key_of(bytes(4), 1, 2, record["input"]["timeDifference"], 3)
    assert (key[20:28] == "00000000") == record["expected"]["zero"]


def test_ids_differ_when_the_counter_comes_round_within_a_millisecond() -> None:
    keys = UniqKeys("10.0.0.9", pid=1, process_number=2, clock=lambda: 1_700_000_000.0)
    made = [keys.next() for _ in range(200_000)]
    assert len(set(made)) == len(made)
    assert {len(key) for key in made} == {32}


def test_the_time_part_counts_from_the_start_of_the_month() -> None:
    now = datetime(2026, 3, 2, 0, 0, 1).timestamp()
    key = UniqKeys("10.0.0.9", pid=0x1234, process_number=0xABCD, clock=lambda: now).next()
    assert key[:20] == "0A00000912340000ABCD"
    assert int(key[20:28], 16) == (24 * 3600 + 1) * 1000


def test_a_new_month_begins_again_and_a_clock_set_back_does_not_repeat() -> None:
    times = iter([datetime(2026, 12, 31, 23, 59, 59).timestamp()])
    current = [next(times)]
    keys = UniqKeys("10.0.0.9", pid=1, process_number=2, clock=lambda: current[0])
    before = keys.next()
    current[0] = datetime(2027, 1, 1, 0, 0, 2).timestamp()
    after = keys.next()
    assert int(before[20:28], 16) > 30 * 24 * 3600 * 1000
    assert int(after[20:28], 16) == 2000
    current[0] -= 1.0
    assert int(keys.next()[20:28], 16) >= 2000


def test_threads_never_share_an_id() -> None:
    keys = UniqKeys("10.0.0.9")
    made: list[list[str]] = [[] for _ in range(4)]

    def work(own: list[str]) -> None:
        own.extend(keys.next() for _ in range(5000))

    threads = [threading.Thread(target=work, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key for own in made for key in own}) == 20_000


def test_a_thread_that_was_held_up_repeats_no_id() -> None:
    held_up: list[str] = []
    made: list[str] = []
    running = False

    def clock() -> float:
        # The first id is held up between its number and its stamp, until its counter comes round.
        nonlocal running
        if not running:
            running = True
            made.extend(keys.next() for _ in range(0x10001))
        return 1_700_000_000.0

    keys = UniqKeys("10.0.0.9", pid=1, process_number=2, clock=clock)
    held_up.append(keys.next())
    assert len({*made, *held_up}) == 0x10002


def test_a_forked_child_makes_other_ids() -> None:
    new_uniq_key()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, new_uniq_key().encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        child = stream.read()
    os.waitpid(pid, 0)
    assert child[:20] != new_uniq_key()[:20]


def test_client_id_is_unique_unless_it_is_named() -> None:
    first, second = client_id(), client_id()
    assert first != second
    assert re.fullmatch(rf"{re.escape(outward_ip())}@{os.getpid()}#\d+", first)
    assert client_id("DEFAULT", "unit") == f"{outward_ip()}@DEFAULT@unit"
