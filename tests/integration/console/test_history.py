"""What happened to a message, and its way to one consumer once more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.console.console import MOST_REQUESTS
from rocketcore.console.pages.history import MOST_GROUPS
from rocketcore.local import LocalCluster
from tests.fixtures.waiting import until
from tests.integration.console.conftest import Browser
from tests.integration.console.test_pages import requests_of
from tests.integration.console.test_writes import refused


@dataclass
class Consumed:
    """A message that a connected group has consumed, with what both clients traced of it."""

    message: rmq.ReceivedMessage
    group: str
    client_id: str
    again: threading.Semaphore

    @property
    def place(self) -> str:
        queue = self.message.queue
        return f"topic={queue.topic}&broker={queue.broker}&queue={queue.queue_id}&offset={self.message.offset}"


@pytest.fixture
def consumed(cluster: LocalCluster, make_topic: Callable[..., str], group: str) -> Iterator[Consumed]:
    topic = make_topic(1)
    got: list[rmq.ReceivedMessage] = []
    again = threading.Semaphore(0)

    def handle(message: rmq.ReceivedMessage) -> None:
        got.append(message)
        again.release()

    with rmq.Producer(cluster.namesrv, group="history-shop", trace=True) as producer:
        producer.send(topic, b'{"id": 1}', keys="history-1")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", trace=True) as consumer:
        consumer.subscribe(topic, handler=handle)
        consumer.start()
        assert again.acquire(timeout=30)
        yield Consumed(got[0], group, consumer.client_id, again)


def test_its_page_tells_who_sent_it_and_how_far_each_group_is(browser: Browser, consumed: Consumed) -> None:
    page = browser.get(f"/message?{consumed.place}")
    assert page.status_code == 200
    assert requests_of(page.text) <= MOST_REQUESTS
    text = page.text.replace("<wbr>", "")
    for said in ("history-shop", consumed.group, "born", "stored", "sent"):
        assert said in text, said
    found = browser.api(f"/message?{consumed.place}")
    assert found["traces"][0]["event"] == "sent"
    assert [(each["group"], each["members"]) for each in found["groups"]] == [(consumed.group, 1)]


def test_one_consumer_gets_it_once_more(browser: Browser, consumed: Consumed) -> None:
    shown = f"/message/resend?{consumed.place}&group={consumed.group}"
    page = browser.get(shown).text
    assert f'<option value="{consumed.client_id}">' in page
    answer = browser.send(shown, "/message/resend", {"client": consumed.client_id})
    assert answer.status_code == 200, answer.text
    assert "<b>done</b>" in answer.text
    assert "CR_SUCCESS" in answer.text
    assert consumed.again.acquire(timeout=30)
    refused(browser.send(shown, "/message/resend", {}), 400, "choose the member")
    refused(browser.send(shown, "/message/resend", {"client": "nobody"}), 409, "not connected")
    refused(browser.send(shown, "/message/resend", {"client": "x", "plan": "x.y"}), 403, "look at it again")


def test_many_groups_cost_no_more(
    browser: Browser, cluster: LocalCluster, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        queue = producer.send(topic, b"x").queue
    with Admin(cluster.namesrv) as admin:
        for number in range(MOST_GROUPS + 1):
            admin.create_group(f"{group}-{number}")
            admin.update_consumer_offset(f"{group}-{number}", queue, number % 2)
    place = f"topic={topic}&broker={queue.broker}&queue=0&offset=0"
    assert requests_of(browser.get(f"/message?{place}").text) <= 20
    states = [each["state"] for each in browser.api(f"/message?{place}")["groups"]]
    assert states == ["not_yet", "consumed"] * (MOST_GROUPS // 2) + ["not_yet"]


def test_a_consumers_page_has_what_it_owns_and_what_its_threads_do(browser: Browser, consumed: Consumed) -> None:
    members = browser.get(f"/group?name={consumed.group}&tab=members").text
    assert f"/client?group={consumed.group}&amp;id=" in members
    address = f"/client?group={consumed.group}&id={quote(consumed.client_id)}"
    found = browser.api(address)
    assert {row["topic"] for row in found["queues"]} >= {consumed.message.queue.topic}
    assert found["properties"]["PROP_CONSUME_TYPE"]
    assert found["stack"] is None
    until(lambda: browser.api(f"/group?name={consumed.group}")["queues"])  # the group has stored an offset of each
    by_group = browser.api(f"/group?name={consumed.group}")
    queue = consumed.message.queue
    assert by_group["owners"][f"{queue.topic}/{queue.broker}/{queue.queue_id}"] == [consumed.client_id]
    assert by_group["members_asked"] == 1
    shown = browser.get(f"/group?name={consumed.group}").text
    assert shown.count(f"/client?group={consumed.group}&amp;id=") == len(by_group["queues"])
    page = browser.get(f"{address}&stack=1").text
    assert "TID:" in page
    assert browser.get(f"/client?group={consumed.group}&id=nobody").status_code == 409
