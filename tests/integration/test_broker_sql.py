"""SQL92 filters: which expressions the broker takes, what it answers pulls with, what wakes those that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.broker.store import Cold, GetResult
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from tests.integration.broker_client import BrokerClient, running_broker

SQL = "SQL92"
PRICES = ("5", "50", "500", "none")


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], *, enabled: bool = True) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, enable_property_filter=enabled) as client:
            await scenario(client)

    asyncio.run(run())


async def send_prices(client: BrokerClient) -> None:
    for price in PRICES:
        await client.send("T", price.encode(), properties={"price": price, "TAGS": f"t{len(price)}"})
    await client.send("T", b"nothing")


def next_offset(fields: dict[str, str] | None) -> int:
    assert fields is not None
    return int(fields["nextBeginOffset"])


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("kind", "expression", "code", "remark"),
    [
        ("TAG", "a", 0, ""),
        ("TAG", "(((", 0, ""),
        (SQL, "price > 1", 0, ""),
        (SQL, "price > ", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "character 9"),
        (SQL, "", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "character 1"),
        ("OTHER", "a", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "unknown expression type OTHER"),
    ],
)
def test_which_filters_are_served(
    tmp_path: Path, kind: str, expression: str, code: int, remark: str, enabled: bool
) -> None:
    if not enabled and kind != "TAG":
        code, remark = 1, f"The broker does not support consumer to filter message by {kind}"

    async def scenario(client: BrokerClient) -> None:
        body = CheckClientRequestBody("c", "g", SubscriptionData("T", expression, expression_type=kind))
        answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
        assert answer.code == code
        assert remark in (answer.remark or "")

    play(tmp_path, scenario, enabled=enabled)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_an_expression_chooses_on_the_broker(tmp_path: Path, code: RequestCode) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_prices(client)
        for expression, expected in {
            "price >= 50": [b"50", b"500"],  # that of no number is an error, and does not match
            "price IS NULL": [b"nothing"],
            "price IS NOT NULL AND TAGS = 't3' OR price = 5": [b"5", b"500"],
            "price IN ('none', '50')": [b"50", b"none"],
            "UNIQ_KEY STARTSWITH '0'": [b"5", b"50", b"500", b"none", b"nothing"],
        }.items():
            assert await client.bodies("T", tags=expression, kind=SQL, code=code) == expected
            assert await client.bodies("T", tags=expression, kind=SQL, code=code, wide=True) == expected
        assert await client.bodies("T", tags="price >= 50", kind=SQL, max_count=1) == [b"50"]
        unmatched = await client.pull("T", tags="price > 1000", kind=SQL, code=code, hold_millis=20_000)
        assert unmatched.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert next_offset(unmatched.ext_fields) == 5

    play(tmp_path, scenario)


def test_expressions_that_are_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_prices(client)
        for expression in ("price >", ""):
            answer = await client.pull("T", tags=expression, kind=SQL)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert (answer.remark or "").startswith("parse the consumer's subscription failed: SQL92 expression")
        answer = await client.pull("T", tags="a", kind="OTHER")
        assert (answer.code, answer.remark) == (1, "The broker does not support consumer to filter message by OTHER")

    play(tmp_path, scenario)


def test_a_subscription_of_the_heartbeat(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_prices(client)
        await client.heartbeat("T", expression="price < 60", kind=SQL)
        assert await client.bodies("T", tags=None) == [b"5", b"50"]
        await client.heartbeat("T", expression="price < 10", kind=SQL, sub_version=2)
        assert await client.bodies("T", tags=None, sub_version=2) == [b"5"]
        answer = await client.pull("T", tags=None, sub_version=3)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await client.heartbeat("T", expression="price << 10", kind=SQL, sub_version=3)
        answer = await client.pull("T", tags=None, sub_version=3)
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert (answer.remark or "").startswith("The broker's consumer filter data is not exist!")

    play(tmp_path, scenario)


def test_what_a_heartbeat_registered_survives_a_restart(tmp_path: Path) -> None:
    """And a retry topic selects by it, before the next heartbeat, where filterSupportRetry is on."""

    async def run() -> None:
        settings: dict[str, Any] = {"enable_property_filter": True, "filter_support_retry": True}
        async with asyncio.timeout(30):
            async with running_broker(tmp_path, **settings) as client:
                await send_prices(client)
                await client.heartbeat("T", expression="price < 60 XOR 1", kind=SQL)
                assert await client.bodies("T", tags=None) == [b"5", b"50"]
            async with running_broker(tmp_path, **settings) as client:
                for price in PRICES:
                    for topic in ("T", "other's", None):
                        properties = {"price": price} | ({"RETRY_TOPIC": topic} if topic else {})
                        await client.send("%RETRY%readers", f"{topic} {price}".encode(), properties=properties)
                found = await client.bodies("%RETRY%readers", tags="TRUE", kind=SQL)
                every = [f"{topic} {price}".encode() for price in PRICES for topic in ("T", "other's", None)]
                assert found == [body for body in every if body not in (b"T 500", b"T none")]
                assert await client.bodies("%RETRY%readers") == every
                answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"filterSupportRetry=false\n")
                assert answer.code == 0
                assert len(await client.bodies("%RETRY%readers", tags="price = 500", kind=SQL)) == 3

    asyncio.run(run())


def test_the_setting_is_off_until_somebody_turns_it_on(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_prices(client)
        answer = await client.pull("T", tags="price > 1", kind=SQL)
        assert (answer.code, answer.remark) == (1, "The broker does not support consumer to filter message by SQL92")
        changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n")
        assert changed.code == 0
        assert await client.bodies("T", tags="price > 1", kind=SQL) == [b"5", b"50", b"500"]

    play(tmp_path, scenario, enabled=False)


def test_a_held_pull_wakes_for_what_matches(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        polls = client.broker._pull.long_poll
        await client.send("T", b"first")
        held = [
            asyncio.create_task(client.pull("T", 0, 1, tags=f"price = {price}", kind=SQL, hold_millis=20_000))
            for price in (1, 2)
        ]
        await client.pull("T")  # answered after those before it on the connection were taken up
        assert len(polls) == 2
        for price in (3, "x", 4):
            await client.send("T", b"other", properties={"price": f"{price}"})
        assert len(polls) == 2
        await client.send("T", b"two", properties={"price": "2"})
        answer = await held[1]
        assert answer.code == 0
        assert next_offset(answer.ext_fields) == 5
        assert len(polls) == 1
        for price in (3, 1):
            await client.send("T", b"more", properties={"price": f"{price}"})
        answer = await held[0]
        assert answer.code == 0
        assert next_offset(answer.ext_fields) == 7

    play(tmp_path, scenario)


def test_a_look_that_fails_leaves_it_to_the_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs may not be in memory, or not readable: the pull waits for that, or says so."""

    async def scenario(client: BrokerClient) -> None:
        store = client.broker._store
        await client.send("T", b"first")
        held = asyncio.create_task(client.pull("T", 0, 1, tags="price = 1", kind=SQL, hold_millis=20_000))
        await client.pull("T")
        failures: list[OSError | Cold] = [OSError("no page"), Cold(())]
        get = store.get

        def failing(*arguments: Any, **options: Any) -> GetResult:
            if failures:
                raise failures.pop()
            return get(*arguments, **options)

        monkeypatch.setattr(store, "get", failing)
        await client.send("T", b"other")
        answer = await held
        assert not failures
        assert answer.code == 1
        assert "no page" in (answer.remark or "")

    play(tmp_path, scenario)


def test_more_arrives_than_one_look_reaches(tmp_path: Path) -> None:
    """A held pull is executed then, so that its client asks for the rest."""

    async def scenario(client: BrokerClient) -> None:
        polls = client.broker._pull.long_poll
        await client.send("T", b"first")
        held = asyncio.create_task(client.pull("T", 0, 1, tags="price = 1", kind=SQL, hold_millis=20_000))
        await client.pull("T")  # answered after the one before it on the connection was taken up
        assert len(polls) == 1
        await client.send_batch("T", [b"x"] * 1000)
        answer = await held
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert next_offset(answer.ext_fields) == 801

    play(tmp_path, scenario)


def test_consumers_give_an_expression(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, properties={"enablePropertyFilter": "true"}) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        received: list[str] = []
        with rmq.PushConsumer(cluster.namesrv, group="push", start_from="first") as consumer:
            consumer.subscribe("T", sql="price BETWEEN 10 AND 100 AND region <> 'us'")
            with rmq.Producer(cluster.namesrv, group="p") as producer:
                for number in range(20):
                    properties = {"price": f"{10 * number}", "region": "us" if number % 2 else "eu"}
                    producer.send("T", f"{number}", properties=properties)
            for message in consumer:
                received.append(message.text())
                if len(received) == 5:
                    break
        assert received == ["2", "4", "6", "8", "10"]
        with rmq.PullConsumer(cluster.namesrv, group="pull", start_from="first") as pulling:
            pulling.subscribe("T", sql="price > 175")
            pulling.wait_ready(20.0)
            received = []
            while len(received) < 2:
                received += [message.text() for message in pulling.poll(timeout=10.0)]
            assert received == ["18", "19"]
        refused = rmq.PushConsumer(cluster.namesrv, group="refused")
        refused.subscribe("T", sql="price > (", handler=lambda message: None)
        with pytest.raises(rmq.BrokerError, match=r"SUBSCRIPTION_PARSE_FAILED.*something is missing"):
            refused.run()
        refused.close()
