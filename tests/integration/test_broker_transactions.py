"""Transactions over the wire: half messages, how they end, who is asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.transactions.service import TransactionService
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.protocol.headers.message import (
    ResumeCheckHalfMessageRequestHeader,
)
from rocketcore.protocol.message import decode_message
from tests.integration.broker_client import unique
from tests.integration.transaction_client import (
    HALF,
    OFTEN,
    OP,
    ROLLBACK,
    UNKNOWN,
    Scene,
    play,
    text_of,
)


def test_a_half_message_is_seen_when_it_is_committed(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.undecided() == "0"
        half = await scene.send(TAGS="a")
        assert await scene.undecided() == "1"
        assert (half.fields["queueId"], half.queue_offset, half.fields["transactionId"]) == ("2", 0, unique(1))
        assert await scene.delivered() == []
        [stored] = await scene.client.records(HALF)
        assert (stored.message.queue_id, stored.message.sys_flag, stored.physical_offset) == (
            0,
            0,
            half.physical_offset,
        )
        assert text_of(stored) == {
            "UNIQ_KEY": unique(1), "TRAN_MSG": "true", "PGROUP": "shop", "TAGS": "a", "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "__transactionId__": unique(1), "REAL_TOPIC": "T",
            "REAL_QID": "2",
        }  # fmt: skip
        answer = await scene.end(half.end())
        assert (answer.code, answer.ext_fields or {}) == (0, {})
        assert await scene.undecided() == "0"
        [record] = await scene.client.records("T", 2, tags="a")
        prepared = decode_message((await scene.client.pull("T", 2)).body).prepared_transaction_offset
        assert (record.message.body, record.message.sys_flag, prepared) == (b"half", 8, half.physical_offset)
        assert text_of(record) == {name: value for name, value in text_of(stored).items() if "REAL" not in name}
        [op] = await scene.client.records(OP)
        assert (op.message.body, text_of(op)) == (b"0", {"TAGS": "d"})

    play(tmp_path, scenario)


def test_one_that_is_rolled_back_is_never_seen(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send()
        assert (await scene.end(half.end(ROLLBACK))).code == 0
        assert await scene.delivered() == []
        assert await scene.client.bodies(OP) == [b"0"]

    play(tmp_path, scenario)


def test_what_ends_together_shares_an_op_message(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        halves = [await scene.send(b"%d" % number) for number in range(20)]
        channel = await scene.client.client.connect(scene.client.broker.address)
        ends = [
            channel.invoke_nowait(RemotingCommand.request(RequestCode.END_TRANSACTION, half.end()), 10)
            for half in halves
        ]
        assert {answer.code for answer in await asyncio.gather(*ends)} == {0}
        assert sorted(await scene.delivered()) == sorted(b"%d" % number for number in range(20))
        bodies = await scene.client.bodies(OP)
        assert len(bodies) < 20
        assert sorted(int(part) for body in bodies for part in body.split(b",")) == list(range(20))

    play(tmp_path, scenario)


def test_a_decision_that_comes_twice_counts_once(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half, other = await scene.send(b"1"), await scene.send(b"2")
        assert [(await scene.end(half.end())).code for _ in range(3)] == [0, 0, 0]
        assert [(await scene.end(other.end(ROLLBACK))).code for _ in range(2)] == [0, 0]
        late = await scene.end(half.end(ROLLBACK))
        assert (late.code, late.remark) == (1, "the transaction was committed before")
        late = await scene.end(other.end())
        assert (late.code, late.remark) == (1, "the transaction was rolled back before")
        assert await scene.delivered() == [b"1"]
        assert await scene.client.bodies(OP) == [b"0", b"1"]

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"producer_group": "other"}, 1, "The producer group wrong"),
        ({"tran_state_table_offset": 7}, 1, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1}, 1, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, 1, "Find prepared transaction message failed"),
        ({"commit_or_rollback": 4}, 1, "commitOrRollback field wrong"),
        ({"commit_or_rollback": -8}, 1, "commitOrRollback field wrong"),
    ],
)
def test_forged_decisions_are_refused(tmp_path: Path, changes: dict[str, Any], code: int, remark: str) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send()
        answer = await scene.end(half.end(**changes))
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer
        assert await scene.delivered() == []
        assert (await scene.end(half.end())).code == 0

    play(tmp_path, scenario)


def test_a_decision_about_a_message_that_is_no_half_one_is_refused(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send()
        await scene.end(half.end())
        [record] = await scene.client.records("T", 2)
        answer = await scene.end(half.end(commit_log_offset=record.physical_offset))
        assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")

    play(tmp_path, scenario)


def test_one_who_does_not_know_gets_no_answer(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send()
        channel = await scene.client.client.connect(scene.client.broker.address)
        unanswered = channel.invoke_nowait(RemotingCommand.request(RequestCode.END_TRANSACTION, half.end(UNKNOWN)), 10)
        assert (await scene.end(half.end())).code == 0
        assert not unanswered.done()
        unanswered.cancel()

    play(tmp_path, scenario)


def test_half_messages_may_be_refused(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        answer = await scene.client.send("T", properties={"TRAN_MSG": "true"}, sys_flag=4)
        assert (answer.code, (answer.remark or "").endswith("sending transaction message is forbidden")) == (16, True)

    play(tmp_path, scenario, reject_transaction_message=True)


def test_a_batch_takes_no_part(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        assert (await scene.client.send_batch("T", [b"a"], sys_flag=4)).code == 13

    play(tmp_path, scenario)


def test_a_committed_message_that_is_sent_again_is_no_half_one(tmp_path: Path) -> None:
    """A consumer sends a failed message to its retry topic by itself where the broker took it back with an error."""

    async def scenario(scene: Scene) -> None:
        answer = await scene.client.send(
            "%RETRY%readers", b"again", properties={"TRAN_MSG": "true", "DELAY": "3"}, reconsume_times=1
        )
        assert answer.code == 0
        assert await scene.client.bodies("SCHEDULE_TOPIC_XXXX", 2) == [b"again"]

    play(tmp_path, scenario)


def test_a_commit_that_asks_for_a_delay_waits_for_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send(DELAY="1")
        assert await scene.client.bodies("SCHEDULE_TOPIC_XXXX", 0) == []
        assert (await scene.end(half.end())).code == 0
        assert await scene.client.bodies("SCHEDULE_TOPIC_XXXX", 0) == [b"half"]
        assert await scene.client.bodies("T", 2, hold_millis=10_000) == [b"half"]

    play(tmp_path, scenario)


def test_a_commit_that_asks_for_a_time_waits_for_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send(TIMER_DELAY_MS="800")
        assert await scene.client.bodies("rmq_sys_wheel_timer", 0) == []
        began = time.time_ns() // 1_000_000
        assert (await scene.end(half.end())).code == 0
        assert await scene.client.bodies("rmq_sys_wheel_timer", 0) == [b"half"]
        [record] = await scene.client.records("T", 2, hold_millis=10_000)
        assert (record.message.body, record.message.sys_flag & 12) == (b"half", 0)
        assert record.store_timestamp >= began + 800

    play(tmp_path, scenario)


def test_a_half_message_that_asks_for_a_time_that_it_cannot_get_is_refused(tmp_path: Path) -> None:
    """At once: its commit would be refused for ever."""

    async def scenario(scene: Scene) -> None:
        properties = {"TRAN_MSG": "true", "PGROUP": "shop", "TIMER_DELAY_MS": "1200"}
        answer = await scene.client.send("T", properties=properties, sys_flag=4)
        assert (answer.code, "timerWheelEnable is false" in (answer.remark or "")) == (1, True)
        assert await scene.client.bodies(HALF) == []

    play(tmp_path, scenario, store={"timer_wheel_enable": False})


def test_a_producer_is_asked_and_its_answer_counts(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register()
        half = await scene.send(KEYS="k")
        header, body = await scene.check()
        message = decode_message(body)
        assert (message.topic, message.queue.queue_id, message.body) == ("T", 2, b"half")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert header.topic == HALF
        assert header.tran_state_table_offset == message.offset > half.queue_offset
        assert header.commit_log_offset == message.physical_offset > half.physical_offset
        assert (header.msg_id, header.transaction_id) == (unique(1), unique(1))
        assert header.offset_msg_id == message.offset_msg_id
        assert header.bname == "broker-a"
        answer = await scene.end(
            half.end(
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                from_transaction_check=True,
            )
        )
        assert (answer.code, await scene.delivered()) == (0, [b"half"])

    play(tmp_path, scenario, **OFTEN)


def test_a_producers_own_decision_ends_the_copy_that_it_was_asked_about(tmp_path: Path) -> None:
    """It was late, and names the place of the first copy."""

    async def scenario(scene: Scene) -> None:
        await scene.register()
        half = await scene.send()
        for _ in range(3):
            header, _ = await scene.check()
        assert [(await scene.end(half.end())).code for _ in range(2)] == [0, 0]
        again = half.end(
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            from_transaction_check=True,
        )
        assert (await scene.end(again)).code == 0
        assert await scene.delivered() == [b"half"]
        open_before = await scene.client.bodies(HALF, 0, 0, max_count=100)
        other = await scene.send(b"other")
        while (await scene.check())[0].msg_id != other.fields["transactionId"]:
            pass
        copies = await scene.client.bodies(HALF, 0, 0, max_count=100)
        assert copies[: len(open_before)] == open_before
        assert set(copies[len(open_before) :]) == {b"other"}

    play(tmp_path, scenario, **OFTEN)


def test_after_so_many_questions_a_message_is_set_aside_and_can_be_brought_back(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register()
        half = await scene.send()
        times = [decode_message((await scene.check())[1]).properties["TRANSACTION_CHECK_TIMES"] for _ in range(3)]
        assert times == ["1", "2", "3"]
        aside = await scene.aside()
        assert text_of(aside[0])["REAL_TOPIC"] == "T"
        assert scene.checks.empty()
        for wrong in (None, "", "nonsense", half.fields["msgId"]):
            refused = await scene.client.ask(
                RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(msg_id=wrong)
            )
            assert refused.code == 1
        header = ResumeCheckHalfMessageRequestHeader(msg_id=aside[0].msg_id)
        assert (await scene.client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == 0
        asked, body = await scene.check()
        assert decode_message(body).properties["TRANSACTION_CHECK_TIMES"] == "1"
        answer = await scene.end(
            half.end(
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                from_transaction_check=True,
            )
        )
        assert (answer.code, await scene.delivered()) == (0, [b"half"])

    play(tmp_path, scenario, **OFTEN, transaction_check_max=3)


def test_a_decision_after_the_last_question_still_counts(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send()
        await scene.aside()
        assert (await scene.end(half.end())).code == 0
        assert await scene.delivered() == [b"half"]

    play(tmp_path, scenario, **OFTEN, transaction_check_max=1)


def test_one_that_asks_for_time_is_not_asked_about_before(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register()
        patient = await scene.send(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        other = await scene.send(b"other")
        for _ in range(2):
            assert (await scene.check())[0].msg_id == other.fields["transactionId"]
        copies = [record for record in await scene.client.records(HALF, 0, 0) if record.message.body == b"patient"]
        assert [text_of(copy).get("TRAN_PREPARED_QUEUE_OFFSET") for copy in copies[:3]] == [None, "0", "0"]
        assert "TRANSACTION_CHECK_TIMES" not in text_of(copies[-1])
        assert (await scene.end(patient.end())).code == 0
        assert await scene.delivered() == [b"patient"]

    play(tmp_path, scenario, **OFTEN)


def test_its_producer_may_not_decide_after_that_time(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        half = await scene.send(CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        await asyncio.sleep(0.01)
        assert (await scene.end(half.end())).code == ResponseCode.ILLEGAL_OPERATION
        assert (await scene.end(half.end(from_transaction_check=True))).code == 0
        assert await scene.delivered() == [b"half"]

    play(tmp_path, scenario)


def test_the_marks_of_the_broker_are_not_taken_from_a_producer(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send()
        await scene.send(TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="15")
        text = text_of((await scene.client.records(HALF))[1])
        assert not {"TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"} & set(text)

    play(tmp_path, scenario)


def test_a_commit_for_a_topic_that_was_deleted(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.client.send("T")  # of a topic without any, nothing is noted
        half = await scene.send()
        header = DeleteTopicRequestHeader(topic="T")
        assert (await scene.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 0
        answer = await scene.end(half.end())
        assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[T] was deleted")

    play(tmp_path, scenario)


def test_messages_of_a_topic_that_was_deleted_are_given_up(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.client.send("T")
        await scene.send()
        assert (
            await scene.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        ).code == 0
        await scene.register()
        await scene.client.broker._transactions._loaded.wait()
        await scene.client.broker._check.round()
        assert await scene.client.bodies(OP, hold_millis=10_000) == [b"0"]
        assert scene.checks.empty()

    play(tmp_path, scenario)


def test_an_undecided_message_costs_nothing_between_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read and one copy a round, however many rounds have been."""

    async def scenario(scene: Scene) -> None:
        await scene.send(b"open")
        done = await scene.send(b"done")
        await scene.end(done.end())
        reads: list[int] = []
        read = TransactionService.read

        async def noted(self: TransactionService, topic: str, queue_offset: int, count: int) -> Any:
            reads.append(count)
            return await read(self, topic, queue_offset, count)

        monkeypatch.setattr(TransactionService, "read", noted)
        for number in range(1, 6):
            await asyncio.sleep(0.005)
            await scene.client.broker._check.round()
            assert reads == [1] * number
        assert len(scene.client.broker._transactions.halves._states) == 1

    play(tmp_path, scenario, transaction_time_out=1)
