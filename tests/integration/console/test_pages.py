"""Every page of the console, as a browser without JavaScript sees it, and the JSON behind it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

import rocketcore as rmq
from rocketcore import addresses
from rocketcore.admin.client import Admin
from rocketcore.codes import RequestCode
from rocketcore.console.app import create_app
from rocketcore.console.console import MOST_REQUESTS
from rocketcore.console.settings import ConsoleSettings
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.topic import RegisterBrokerBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import RegisterBrokerRequestHeader
from tests.fixtures.commands import rocket_command
from tests.fixtures.promtool import check_metrics
from tests.integration.console.conftest import ORIGIN, Browser, TestClient


def requests_of(page: str) -> int:
    """Return how many requests to the cluster a page says that it made."""
    found = re.search(r'class="cost">(\d+) request', page)
    assert found is not None
    return int(found[1])


@pytest.fixture
def filled(cluster: LocalCluster, make_topic: Callable[..., str], group: str) -> tuple[str, str]:
    """A topic with five messages, and a group that has consumed none of them."""
    topic = make_topic(2)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for number in range(5):
            producer.send(topic, f'{{"id": {number}}}'.encode(), tag="paid", keys=f"key-{number}")
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
        for queue in admin.queues(topic):
            admin.update_consumer_offset(group, queue, 0)
    return topic, group


def test_every_page_shows_what_there_is(browser: Browser, filled: tuple[str, str]) -> None:
    topic, group = filled
    pages = {
        "/": "Overview",
        f"/topics?q={topic}": topic,
        f"/topic?name={topic}": "key-3",
        f"/topic?name={topic}&tab=tail": "topic/tail?name=",
        f"/topic?name={topic}&tab=queues": "broker-b",
        f"/topic?name={topic}&tab=groups": group,
        f"/topic?name={topic}&tab=route": "DefaultCluster",
        f"/topic?name={topic}&tab=config": "Change it on every broker",
        f"/topic?name={topic}&tab=publish": "textarea",
        "/topic/new": "Queues on each broker",
        f"/topic/delete?name={topic}": "5 in 4 queues",
        f"/search?topic={topic}&q=key-2": "key-2",
        f"/search?topic={topic}&q=tag:paid": "key-4",
        f"/search?topic={topic}&q=@1h": "key-0",
        f"/search?topic={topic}&q=no-such-key": "Nothing was found",
        f"/groups?q={group}": topic,
        f"/group?name={group}": "broker-a/0",
        f"/group?name={group}&tab=members": "No member of this group is connected",
        f"/group?name={group}&tab=config": "16",
        f"/group/reset?name={group}&topic={topic}&to=latest": "5 messages skipped",
        "/dead-letters": "Dead letters",
        f"/dead-letters/group?name={group}": "no dead letters",
        "/clients": "Clients",
        "/brokers": "broker-b",
        "/broker?name=broker-a": "bootTimestamp",
        "/broker?name=broker-a&tab=config": "flushDiskType",
        "/rates?step=10": "Send p50 / p99",
    }  # fmt: skip
    for address, text in pages.items():
        answer = browser.get(address)
        assert answer.status_code == 200, (address, answer.text)
        shown = answer.text.replace("<wbr>", "")
        assert text in re.sub(r"\s+", " ", shown), (address, text)
        assert requests_of(shown) <= MOST_REQUESTS, address


def test_a_message_is_shown_whole(browser: Browser, filled: tuple[str, str]) -> None:
    topic, group = filled
    [row] = browser.api(f"/search?topic={topic}&q=key-2")
    place = f"topic={topic}&broker={row['broker']}&queue={row['queue_id']}&offset={row['offset']}"
    page = browser.get(f"/message?{place}").text
    for text in ("key-2", row["msg_id"], "&#34;id&#34;: 2", "7b 22 69 64", "not yet", "UNIQ_KEY"):
        assert text in page, text
    body = browser.get(f"/message/body?{place}")
    assert body.content == b'{"id": 2}'
    assert body.headers["content-type"] == "application/octet-stream"
    assert "attachment" in body.headers["content-disposition"]
    by_id = browser.get(f"/message?topic={topic}&id={row['msg_id']}")
    assert by_id.status_code == 200
    assert browser.api(f"/message?{place}")["groups"] == [
        {"group": group, "state": "not_yet", "group_offset": 0, "failed": 0, "members": 0,
         "messages_before": row["offset"]}
    ]  # fmt: skip


def test_queues_have_the_time_that_they_keep_and_where_a_group_is(browser: Browser, filled: tuple[str, str]) -> None:
    topic, group = filled
    queues = browser.get(f"/topic?name={topic}&tab=queues").text
    kept = sum(row["messages"] > 0 for row in browser.api(f"/topic?name={topic}&tab=queues"))
    assert queues.count('class="fill"') == kept
    page = browser.get(f"/group?name={group}").text
    assert page.count('class="mark"') == kept
    assert page.count('<rect class="cell') == 4
    assert "overtaken" not in page


def test_settings_that_differ_from_their_default_are_marked(browser: Browser) -> None:
    changed = browser.api("/broker?name=broker-a")["changed"]
    assert (changed["listenPort"], changed["brokerName"] == "broker-a") == ("10911", False)
    assert "brokerPermission" not in changed
    only = browser.get("/broker?name=broker-a&tab=config&settings=changed").text
    whole = browser.get("/broker?name=broker-a&tab=config").text
    assert only.count('<span class="pill warn">changed</span>') == only.count('<th scope="row"') == len(changed)
    assert whole.count('<th scope="row"') > len(changed)
    assert browser.get("/broker?name=broker-a&settings=some").status_code == 400


def test_topics_have_their_rates_without_a_request_for_each(
    browser: Browser, cluster: LocalCluster, filled: tuple[str, str]
) -> None:
    topic, _ = filled
    console = browser.client.app.state.console.first  # type: ignore[attr-defined]
    portal = browser.client.portal
    assert portal is not None

    def look() -> None:
        console.topic_rates.add_survey(portal.call(console.admin.survey_groups))

    look()
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for _ in range(20):
            producer.send(topic, b"x")
    look()
    [row] = [row for row in browser.api("/topics") if row["topic"] == topic]
    assert row["in_tps"] > 0
    assert row["out_tps"] == 0
    page = browser.get(f"/topics?q={topic}&sort=-in_tps").text
    assert requests_of(page) <= 2 + 3 * 2 + 2  # the view, settings and offsets of two brokers, one count
    assert page.count(" msg/s</td>") == 2
    above = browser.get(f"/topic?name={topic}&tab=config").text
    assert f"<dt>In</dt><dd>{row['in_tps']:,.1f} msg/s</dd>" in above
    assert ">25</dd>" in above


def test_what_is_not_there_is_said(browser: Browser) -> None:
    for address, status in {
        "/topic?name=no-such-topic": 404,
        "/group?name=no-such-group": 404,
        "/broker?name=no-such-broker": 404,
        "/nothing": 404,
        "/topic": 400,
        "/topics?sort=perm": 400,
        "/topics?page=x": 400,
        "/search?q=key-1": 400,
        "/search?topic=T&q=@yesterday": 400,
    }.items():
        answer = browser.get(address)
        assert answer.status_code == status, address
        assert "That did not work" in answer.text
    error = browser.get("/api/v1/topic?name=no-such-topic")
    assert (error.status_code, error.json()["error"]["code"]) == (404, "TOPIC_NOT_EXIST")


def test_json_has_the_shapes_of_the_command(
    browser: Browser,
    filled: tuple[str, str],
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, group = filled
    rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)

    def printed(*arguments: str) -> Any:
        code, out, err = rocket(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    assert browser.api(f"/topic?name={topic}&tab=queues") == printed("topic", "describe", topic)
    assert browser.api(f"/topic?name={topic}&tab=route") == printed("topic", "route", topic)
    by_command = printed("group", "describe", group)
    by_console = browser.api(f"/group?name={group}")
    assert (by_console.pop("owners"), by_console.pop("members_asked")) == ({}, 0)
    for document in (by_command, by_console):
        document["lag_seconds"] = None
        for queue in document["queues"]:
            queue["lag_seconds"] = None
    assert by_console == by_command


def test_health_and_metrics(browser: Browser, filled: tuple[str, str]) -> None:
    topic, group = filled
    assert browser.get("/livez").text == browser.get("/readyz").text == "ok\n"
    text = browser.get("/metrics").text
    assert f'rocketmq_consumer_lag_messages{{topic="{topic}",consumer_group="{group}"}} 5' in text.splitlines()
    check_metrics(text)
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type == "gauge"


def test_a_cluster_that_is_silent_is_an_error_in_time(silent_address: str) -> None:
    settings = ConsoleSettings(namesrv=silent_address, timeout=1.0)
    with TestClient(create_app(settings), base_url=ORIGIN) as client:
        check_silent(Browser(client))


def test_of_a_cluster_that_is_half_dead_the_other_half_is_shown(silent_address: str) -> None:
    """A master is registered and silent: every list comes in time, and names it."""
    header = RegisterBrokerRequestHeader(
        broker_name="broker-dead",
        broker_addr=silent_address,
        cluster_name="DefaultCluster",
        ha_server_addr="",
        broker_id=0,
    )
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, RegisterBrokerBody().encode())
    with LocalCluster() as half, socket.create_connection(addresses.split(half.namesrv)) as connection:
        with Admin(half.namesrv) as admin:
            admin.create_topic("alive", 1)
        connection.sendall(bytes(command.encode()))
        assert connection.recv(1)
        settings = ConsoleSettings(namesrv=half.namesrv, timeout=0.6)
        with TestClient(create_app(settings), base_url=ORIGIN) as client:
            browser = Browser(client)
            for address in ("/", "/topics", "/groups", "/brokers"):
                began = time.monotonic()
                page = browser.get(address)
                assert time.monotonic() - began < 3
                assert page.status_code == 200, (address, page.text)
                assert "broker-dead" in page.text.replace("<wbr>", ""), address
            assert "alive" in browser.get("/topics").text
            states = {row["broker"]: row["state"] for row in browser.api("/brokers")}
            assert states == {"broker-a": "up", "broker-dead": "unreachable"}


def check_silent(browser: Browser) -> None:
    began = time.monotonic()
    page = browser.get("/topics")
    assert time.monotonic() - began < 3
    assert page.status_code in (502, 504)
    assert browser.get("/readyz").status_code == 503
    assert browser.get("/livez").status_code == 200


@pytest.mark.parametrize(("accept", "text"), [("zh-CN,zh;q=0.9,en;q=0.8", "主题"), ("de,en;q=0.5", "Topics")])
def test_the_language_is_the_browsers(browser: Browser, accept: str, text: str) -> None:
    assert text in browser.get("/topics", **{"Accept-Language": accept}).text


def test_preferences_are_kept_in_cookies_and_lead_back(browser: Browser) -> None:
    answer = browser.get(f"/preferences?language=zh&theme=dark&back={quote('/groups?kind=all')}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups?kind=all")
    page = browser.get("/groups").text
    assert 'lang="zh" data-theme="dark"' in page
    for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        assert browser.get(f"/preferences?theme=dark&back={quote(elsewhere)}").status_code == 400
