"""A thousand topics and groups, two hundred clients: a page is there within a second and asks no more than of a few."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcore import addresses
from rocketcore.admin.client import Admin
from rocketcore.codes import RequestCode
from rocketcore.console.app import create_app
from rocketcore.console.console import MOST_REQUESTS
from rocketcore.console.settings import ConsoleSettings
from rocketcore.local import LocalCluster
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from rocketcore.protocol.command import RemotingCommand
from tests.integration.console.conftest import ORIGIN, Browser, TestClient
from tests.integration.console.test_pages import requests_of

COUNT = 1000
QUEUES = 8
CLIENTS = 200


def fill(folder: Path) -> None:
    """Write what a broker keeps of as many topics as groups, each of which has consumed one topic."""
    folder.mkdir(parents=True)
    topics = {
        f"topic-{number:04}": {"topicName": f"topic-{number:04}", "readQueueNums": QUEUES, "writeQueueNums": QUEUES,
                               "perm": 6, "topicFilterType": "SINGLE_TAG"}
        for number in range(COUNT)
    }  # fmt: skip
    groups = {f"group-{number:04}": {"groupName": f"group-{number:04}"} for number in range(COUNT)}
    offsets = {f"topic-{n:04}@group-{n:04}": {str(queue): 0 for queue in range(QUEUES)} for n in range(COUNT)}
    for name, table, values in (
        ("topics", "topicConfigTable", topics),
        ("subscriptionGroup", "subscriptionGroupTable", groups),
        ("consumerOffset", "offsetTable", offsets),
    ):
        (folder / f"{name}.json").write_text(json.dumps({table: values}), "utf-8")


def connect(address: str, number: int) -> socket.socket:
    """Be a client: half of them produce, half consume, all of the latter in one group."""
    data = HeartbeatData(f"10.0.0.{number}@{number}", [ProducerData(f"producers-{number % 10}")], [])
    if number % 2:
        subscription = SubscriptionData.build("topic-0007", "*", "TAG")
        consumer = ConsumerData(
            "group-0007", ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, subscription_data_set=[subscription]
        )
        data = HeartbeatData(data.client_id, [], [consumer])
    host, port = addresses.split(address)
    connected = socket.create_connection((host, port))
    connected.sendall(bytes(RemotingCommand.request(RequestCode.HEART_BEAT, body=data.encode()).encode()))
    assert connected.recv(1)
    return connected


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    store = tmp_path_factory.mktemp("large")
    fill(store / "broker-a" / "config")
    with LocalCluster(store) as running, contextlib.ExitStack() as stack:
        for number in range(CLIENTS):
            stack.enter_context(connect(running.broker_addresses[0], number))
        yield running


@pytest.mark.alone
def test_each_page_of_a_thousand_is_there_within_a_second(large: LocalCluster) -> None:
    with TestClient(create_app(ConsoleSettings(namesrv=large.namesrv)), base_url=ORIGIN) as client:
        browser = Browser(client)
        for address in ("/", "/topics", "/topics?sort=-messages&page=3", "/topics?q=99", "/groups?sort=-lag",
                        "/dead-letters", "/clients?group=group-0007", "/brokers", "/broker?name=broker-a", "/rates",
                        "/topic?name=topic-0007&tab=groups", "/topic?name=topic-0007&tab=queues",
                        "/topic?name=topic-0007&tab=config", "/topic/delete?name=topic-0007", "/group?name=group-0007",
                        "/group?name=group-0007&tab=members", "/group/reset?name=group-0007", "/metrics"):  # fmt: skip
            for _ in range(3):  # one compiles the template, one may fall together with a sample
                began = time.process_time()  # of broker and console together, however busy the machine is
                page = browser.get(address)
                if (took := time.process_time() - began) < 1:
                    break
            assert page.status_code == 200
            assert address == "/metrics" or requests_of(page.text) <= MOST_REQUESTS, address
            assert took < 1, (address, took)
        assert f"of {COUNT // 50}" in browser.get("/topics").text
        assert len(browser.api("/topics")) == COUNT
        assert {row["lag"] for row in browser.api("/groups")} == {0}
        assert len(browser.api("/clients?group=group-0007")) == CLIENTS
        group = browser.api("/group?name=group-0007")
        assert (len(group["members"]), group["members_asked"]) == (CLIENTS // 2, 0)  # none of them answers


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
