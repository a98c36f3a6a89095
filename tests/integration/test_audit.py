"""One line for each administrative change, with its result; none for questions, sends and commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.codes import RequestCode
from rocketcore.errors import BrokerError
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.audit import AUDITED, audited
from rocketcore.transport.routes import Route

LINE = re.compile(r"request=(\S+) by=(\S+) account=(\S+) about=(.*) result=(\S+)")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    found = [LINE.fullmatch(record.getMessage()) for record in caplog.records if record.name == "rocketcore.audit"]
    assert all(found)
    return [(match[1], match[4], match[5]) for match in found if match]


def test_changes_have_a_line_and_nothing_else_has(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketcore.audit")
    with LocalCluster() as cluster, rmq.Admin(cluster.namesrv) as admin:
        broker = cluster.broker_addresses[0]
        caplog.clear()
        admin.create_topic("Audited", 1)
        admin.create_group("auditors")
        with rmq.Producer(cluster.namesrv, group="p") as producer:
            producer.send("Audited", b"x")
        admin.update_consumer_offset("auditors", MessageQueue("Audited", "broker-a", 0), 1)
        admin.topic_stats("Audited")
        admin.update_broker_config(broker, {"traceOn": "false"})
        with contextlib.suppress(BrokerError):
            admin.update_broker_config(broker, {"listenPort": "1"})
        admin.reset_offsets(admin.plan_reset("auditors", "Audited", "earliest"))
        admin.put_kv("shop", "currency", "EUR")
        admin.delete_topic("Audited")
    assert lines(caplog) == [
        ("UPDATE_AND_CREATE_TOPIC", "topic=Audited", "SUCCESS"),
        ("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "groupName=auditors", "SUCCESS"),
        ("UPDATE_BROKER_CONFIG", "-", "SUCCESS"),
        ("UPDATE_BROKER_CONFIG", "-", "16"),
        ("INVOKE_BROKER_TO_RESET_OFFSET", "topic=Audited group=auditors", "SUCCESS"),
        ("PUT_KV_CONFIG", "namespace=shop key=currency", "SUCCESS"),
        ("DELETE_TOPIC_IN_BROKER", "topic=Audited", "SUCCESS"),
        ("DELETE_TOPIC_IN_NAMESRV", "topic=Audited", "SUCCESS"),
        ("DELETE_KV_CONFIG", "namespace=ORDER_TOPIC_CONFIG key=Audited", "SUCCESS"),
    ]


class Caller:
    remote_address = "10.0.0.9:5000"


def test_what_comes_later_or_fails_has_its_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketcore.audit")
    request = RemotingCommand.request(RequestCode.CLONE_GROUP_OFFSET)
    request.ext_fields = {"srcGroup": "a", "destGroup": "b", "AccessKey": "ann"}

    async def later(channel: object, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request)

    async def fails(channel: object, request: RemotingCommand) -> RemotingCommand:
        raise ValueError("x")

    def refuses(channel: object, request: RemotingCommand) -> RemotingCommand:
        raise BrokerError.of(24, "no such group")

    async def run() -> None:
        for handler in (later, fails, refuses):
            [row] = audited([Route(RequestCode.CLONE_GROUP_OFFSET, handler)])
            with contextlib.suppress(ValueError, BrokerError):
                await row.serve(Caller(), request)

    asyncio.run(run())
    about = "srcGroup=a destGroup=b"
    assert [(each[1], each[2]) for each in lines(caplog)] == [(about, "SUCCESS"), (about, "ValueError"), (about, "24")]
    assert "by=10.0.0.9:5000 account=ann" in caplog.records[-1].getMessage()


def test_rows_of_other_requests_stay_as_they_are() -> None:
    row = Route(RequestCode.SEND_MESSAGE_V2, lambda channel, request: None)
    assert RequestCode.SEND_MESSAGE_V2 not in AUDITED
    assert list(audited([row])) == [row]


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}', "2 changes: groupName=a,b"),
        (
            b'{"topicConfigList":[%s]}' % b",".join(b'{"topicName":"t%d"}' % number for number in range(10)),
            "10 changes: topicName=t0,t1,t2,t3,t4,t5,t6,t7",
        ),
        (b'{"topic":"t","consumerGroup":"g","mode":"POP"}', "topic=t consumerGroup=g"),
        (b'{"groupName":"%s"}' % (b"n" * 100), f"groupName={'n' * 64}… (36 more)"),
        (b'{"topicConfigList":[1, null, {"topicName":["x"]}]}', "3 changes: topicName="),
        (b'{"groupName":{"a":1}}', "-"),
        (b'{"groupName":"%s"}' % (b"n" * 70_000), "70016 bytes"),
        (b'{"groupName":', "-"),
        (b"[1]", "-"),
        (b"traceOn=false", "-"),
        (b"", "-"),
    ],
)
def test_a_change_without_fields_is_named_by_its_body(
    body: bytes, about: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketcore.audit")
    [row] = audited([Route(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, lambda channel, request: None)])
    row.serve(Caller(), RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body))
    assert lines(caplog) == [("UPDATE_AND_CREATE_TOPIC_LIST", about, "SUCCESS")]
