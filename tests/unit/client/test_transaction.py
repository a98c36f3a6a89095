"""Transactions of a producer: what is sent, what a failure means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.sender import Sender
from rocketcore.client.transaction import AsyncTransaction, Transaction
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError, ConnectionLost, RocketError, TransactionAborted
from rocketcore.message import Message, ReceivedMessage, TransactionState
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import EndTransactionRequestHeader
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, Outcome, answer_heartbeat_or_send, route


def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


class Scene:
    """A producer, and a broker that answers ends of transactions as it is told."""

    def __init__(
        self, end: Callable[[RemotingCommand], Outcome] = RemotingCommand.response, send_code: int = 0
    ) -> None:
        self.end = end
        self.send_code = send_code
        self.sent: list[RemotingCommand] = []
        self.heartbeats = 0
        self.remoting = FakeRemoting({"T": route("a")}, self.serve)
        config = ProducerConfig(group="shop", checker=check)
        self.sender = Sender(config, ClientInstance(config, self.remoting, ManualRuntime(self.remoting.clock)))

    def serve(self, address: str, request: RemotingCommand) -> Outcome:
        self.heartbeats += request.code == RequestCode.HEART_BEAT
        if request.code == RequestCode.SEND_MESSAGE_V2:
            self.sent.append(request)
            answer = answer_heartbeat_or_send(request)
            assert isinstance(answer, RemotingCommand)
            answer.code = self.send_code
            answer.ext_fields = {"queueId": "1", "queueOffset": "7", "msgId": "7F00000100002A9F00000000000003E8"}
            return answer
        if request.code == RequestCode.END_TRANSACTION:
            self.sent.append(request)
            return self.end(request)
        if request.code == RequestCode.UNREGISTER_CLIENT:
            return RemotingCommand.response(request)
        return answer_heartbeat_or_send(request)

    def transaction(self) -> Transaction:
        return Transaction(AsyncTransaction(self.sender, Message("T", b"half", tag="t"), None, None))

    def ends(self) -> list[EndTransactionRequestHeader]:
        requests = [each for each in self.sent if each.code == RequestCode.END_TRANSACTION]
        return [each.header(EndTransactionRequestHeader) for each in requests]


def test_what_is_sent() -> None:
    scene = Scene()
    with scene.transaction() as transaction:
        pass
    half, _ = scene.sent
    fields = half.ext_fields or {}
    assert (fields["f"], half.body) == ("4", b"half")
    assert fields["i"].endswith("TRAN_MSG\x01true\x02PGROUP\x01shop\x02")
    [header] = scene.ends()
    assert transaction.result is not None
    assert header == EndTransactionRequestHeader(
        producer_group="shop", topic="T", tran_state_table_offset=7, commit_log_offset=1000, commit_or_rollback=8,
        msg_id=transaction.result.msg_id, transaction_id=transaction.result.msg_id, bname="a",
    )  # fmt: skip


def test_a_half_message_that_is_not_safe_is_rolled_back_and_no_work_begins() -> None:
    scene = Scene(send_code=ResponseCode.FLUSH_DISK_TIMEOUT)
    with pytest.raises(TransactionAborted, match="FLUSH_DISK_TIMEOUT"), scene.transaction():
        pytest.fail("no work begins")
    assert [header.commit_or_rollback for header in scene.ends()] == [12]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ConnectionLost("gone"), False), (BrokerError.of(1, "The producer group wrong", "a:1"), True)],
)
def test_what_an_end_that_fails_means(error: RocketError, *, raised: bool) -> None:
    """A refusal is known; where no answer came, the broker asks."""
    scene = Scene(end=lambda request: error)
    transaction = scene.transaction()
    if raised:
        with pytest.raises(BrokerError, match="group wrong"), transaction:
            pass
    else:
        with transaction:
            pass
    assert (transaction.state, transaction.told) == (TransactionState.COMMIT, False)
    with pytest.raises(ZeroDivisionError), scene.transaction():
        raise ZeroDivisionError
    with pytest.raises(type(error)):
        transaction.commit()
    scene.end = RemotingCommand.response
    transaction.commit()
    assert transaction.told


def test_a_producer_that_is_asked_is_known_before_its_work_begins() -> None:
    scene = Scene()
    with scene.transaction():
        assert scene.heartbeats == 1
        with scene.transaction():
            assert scene.heartbeats == 1


def test_it_is_known_to_all_brokers_from_the_start() -> None:
    """Also where it has sent nothing since it started, and no broker creates topics."""
    scene = Scene()
    run_sync(scene.sender.instance.refresh())
    run_sync(scene.sender.instance.heartbeat())
    told = [address for address, request in scene.remoting.asked if request.code == RequestCode.HEART_BEAT]
    assert told == ["elsewhere:1"]
    run_sync(scene.sender.instance.unregister())
    assert scene.remoting.asked[-1][0] == "elsewhere:1"
