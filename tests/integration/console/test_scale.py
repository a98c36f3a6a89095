"""Some hundreds of topics and groups: a page is there within a second, and asks no more than of a few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from rocketcore import aio
from rocketcore.admin.client import Admin
from rocketcore.console.app import create_app
from rocketcore.console.console import MOST_REQUESTS
from rocketcore.console.settings import ConsoleSettings
from rocketcore.local import LocalCluster
from rocketcore.message_queue import MessageQueue
from tests.integration.console.conftest import ORIGIN, Browser, TestClient
from tests.integration.console.test_pages import requests_of

COUNT = 300
QUEUES = 8


@pytest.fixture(scope="module")
def large() -> Iterator[LocalCluster]:
    """As many topics as groups, each of which has consumed one topic."""

    async def fill(namesrv: str) -> None:
        async with aio.Admin(namesrv, timeout=60) as admin:
            for begin in range(0, COUNT, 20):
                numbers = range(begin, begin + 20)
                await asyncio.gather(*(admin.create_topic(f"topic-{number:04}", QUEUES) for number in numbers))
                await asyncio.gather(*(admin.create_group(f"group-{number:04}") for number in numbers))
                await asyncio.gather(
                    *(
                        admin.update_consumer_offset(f"group-{n:04}", MessageQueue(f"topic-{n:04}", "broker-a", q), 0)
                        for n in numbers
                        for q in range(QUEUES)
                    )
                )

    with LocalCluster() as running:
        asyncio.run(fill(running.namesrv))
        yield running


@pytest.mark.alone
def test_a_list_of_hundreds_is_there_within_a_second(large: LocalCluster) -> None:
    with TestClient(create_app(ConsoleSettings(namesrv=large.namesrv)), base_url=ORIGIN) as client:
        browser = Browser(client)
        for address in ("/", "/topics", "/topics?sort=-messages&page=3", "/groups?sort=-lag", "/dead-letters", "/rates",
                        "/topic?name=topic-0007&tab=groups", "/group?name=group-0007"):  # fmt: skip
            browser.get(address)  # which compiles its template
            began = time.perf_counter()
            page = browser.get(address)
            took = time.perf_counter() - began
            assert page.status_code == 200
            assert requests_of(page.text) <= MOST_REQUESTS, address
            assert took < 1, (address, took)
        assert f"of {COUNT // 50}" in browser.get("/topics").text
        assert len(browser.api("/topics")) == COUNT
        assert {row["lag"] for row in browser.api("/groups")} == {0}


def test_the_fast_reader_of_progress_says_what_the_whole_one_says(large: LocalCluster) -> None:
    from rocketcore.admin import survey
    from rocketcore.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper
    from rocketcore.protocol.command import RemotingCommand

    table = {
        MessageQueue("t", "b", number): OffsetWrapper(10 + number, number, number, 5 * number) for number in range(3)
    }
    other = {MessageQueue('odd "name"', "b", 0): OffsetWrapper(4, 1, 1, 0)}
    for tables in ([table], [table, {}], [table, other], []):
        groups = [{"g": [ConsumeStats(each, 1.5) for each in tables]}]
        body = ConsumeStatsList(consume_stats_list=groups).encode()
        command = RemotingCommand.request(0, None, body)
        assert survey._progress_in(command) == survey._read_whole(body)
    with Admin(large.namesrv) as admin:
        assert admin.survey_groups().total("group-0001") == survey.GroupProgress()
