"""Sending: retries, deadlines, queues, what is in the request."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import outgoing_batch
from rocketcore.client.send_command import SendTarget
from rocketcore.client.sender import Sender
from rocketcore.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from rocketcore.errors import (
    BrokerError,
    ClientClosed,
    ConfigError,
    ConnectError,
    ConnectionLost,
    DecodeError,
    MessageIllegal,
    MessageRefused,
    RequestTimeout,
    RocketError,
    RouteNotFound,
)
from rocketcore.message import Message, MessageQueue, SendStatus
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.compression import decompress
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from rocketcore.service import ManualClock
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, Outcome, decoded, route, stored

ONE = {"T": route("a")}
TWO = {"T": route("a", "b")}


def producer(remoting: FakeRemoting, config: ProducerConfig | None = None) -> Sender:
    config = config or ProducerConfig(group="pg")
    runtime = ManualRuntime(remoting.clock)
    return Sender(config, ClientInstance(config, remoting, runtime, clock=remoting.clock), remoting.clock)


def failing(*outcomes: Callable[[RemotingCommand], Outcome]) -> Callable[[str, RemotingCommand], Outcome]:
    """Serve the first requests by the given outcomes, the rest well."""
    left = list(outcomes)
    return lambda address, request: left.pop(0)(request) if left else stored(request)


def refusal(code: int) -> Callable[[RemotingCommand], Outcome]:
    return lambda request: RemotingCommand.response(request, code, "no")


def error(kind: type[RocketError]) -> Callable[[RemotingCommand], Outcome]:
    return lambda request: kind("failed")


def header(request: RemotingCommand) -> SendMessageRequestHeaderV2:
    return request.header(SendMessageRequestHeaderV2)


def test_what_is_sent_is_what_the_header_declares() -> None:
    remoting = FakeRemoting(ONE)
    result = run_sync(producer(remoting).send("T", "hällo", tag="x", keys=["k1", "k2"], properties={"p": 'q"\\'}))
    [(address, request)] = remoting.asked
    assert (address, request.code, request.body) == ("a:1", RequestCode.SEND_MESSAGE_V2, "hällo".encode())
    expected = SendMessageRequestHeaderV2(
        producer_group="pg",
        topic="T",
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=result.queue.queue_id,
        sys_flag=0,
        born_timestamp=remoting.clock.time_millis(),
        flag=0,
        properties=f'p\x01q"\\\x02TAGS\x01x\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01{result.msg_id}\x02WAIT\x01true\x02',
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="a",
    )
    assert header(request) == expected
    assert request.ext_fields == expected.to_ext_fields()
    assert (result.status, result.offset, result.queue.broker) == (SendStatus.SEND_OK, 7, "a")


def test_a_signed_producer_sends_the_same_fields() -> None:
    plain, signed = FakeRemoting(ONE), FakeRemoting(ONE)
    message = Message("T", b"x", tag="t")
    run_sync(producer(plain).send(message))
    run_sync(producer(signed, ProducerConfig(group="pg", access_key="me", secret_key="secret")).send(message))
    fields = [dict(each.asked[0][1].ext_fields or {}) for each in (plain, signed)]
    for each in fields:
        each.pop("i")
        each.pop("e")
    assert fields[0] == fields[1]


@pytest.mark.parametrize(("kind", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_the_shorter_of_two_bodies_is_sent(kind: str, flag: int) -> None:
    """What compression would make longer leaves as it is, without a flag."""
    remoting = FakeRemoting(ONE)
    sender = producer(remoting, ProducerConfig(group="pg", compression=kind))
    long, random_bytes = b"a" * 8192, random.Random(7).randbytes(8192)
    run_sync(sender.send("T", long))
    run_sync(sender.send("T", random_bytes))
    (_, compressed), (_, plain) = remoting.asked
    assert header(compressed).sys_flag == flag
    assert len(compressed.body) < 200
    assert decompress(bytes(compressed.body), flag) == long
    assert (header(plain).sys_flag, plain.body) == (0, random_bytes)


def test_queues_take_turns_and_every_id_is_new() -> None:
    remoting = FakeRemoting(TWO)
    sender = producer(remoting)
    results = [run_sync(sender.send("T", b"x")) for _ in range(8)]
    assert len({result.msg_id for result in results}) == 8
    assert [results[i].queue for i in range(4)] == [results[i + 4].queue for i in range(4)]
    assert len({result.queue for result in results}) == 4
    assert remoting.route_requests == 1


@pytest.mark.parametrize(
    "failure",
    [
        error(ConnectError),
        error(ConnectionLost),
        error(RequestTimeout),
        refusal(ResponseCode.SYSTEM_ERROR),
        refusal(ResponseCode.SYSTEM_BUSY),
        refusal(ResponseCode.SERVICE_NOT_AVAILABLE),
        refusal(ResponseCode.NO_PERMISSION),
        refusal(ResponseCode.TOPIC_NOT_EXIST),
        refusal(204),
        refusal(205),
        refusal(ResponseCode.GO_AWAY),
    ],
)
def test_a_failure_is_tried_again_at_another_broker_with_the_same_id(
    failure: Callable[[RemotingCommand], Outcome],
) -> None:
    remoting = FakeRemoting(TWO, failing(failure))
    result = run_sync(producer(remoting).send("T", b"x"))
    assert result.status is SendStatus.SEND_OK
    (first, one), (second, other) = remoting.asked
    assert first != second
    assert header(one).properties == header(other).properties
    assert one.opaque != other.opaque


@pytest.mark.parametrize("code", [13, 26, 29, 3, 4711])
def test_other_refusals_are_raised_at_once(code: int) -> None:
    remoting = FakeRemoting(TWO, failing(refusal(code)))
    with pytest.raises(BrokerError) as caught:
        run_sync(producer(remoting).send("T", b"x"))
    assert (caught.value.code, len(remoting.asked)) == (code, 1)
    assert "'T'" in str(caught.value)


def test_attempts_are_one_and_the_retries() -> None:
    remoting = FakeRemoting(TWO, lambda address, request: ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        run_sync(producer(remoting, ProducerConfig(retries=4)).send("T", b"x"))
    assert len(remoting.asked) == 5


def test_where_nothing_was_sent_it_is_tried_until_the_time_is_up() -> None:
    remoting = FakeRemoting(TWO, lambda address, request: ConnectError(f"SEND_MESSAGE_V2 at {address}: refused"))
    with pytest.raises(ConnectError, match=r"^send to topic 'T': \d+ attempts: [ab] \([ab]:1\) refused$"):
        run_sync(producer(remoting, ProducerConfig(retries=0)).send("T", b"x", timeout=5.0))
    assert 4.0 < remoting.clock.monotonic() <= 5.0
    assert 8 <= len(remoting.asked) <= 40
    one, other = [address for address, _ in remoting.asked[:2]]
    assert one != other


def test_a_broker_that_is_back_in_time_gets_the_message() -> None:
    def serve(address: str, request: RemotingCommand) -> Outcome:
        return ConnectError("down") if remoting.clock.monotonic() < 2.0 else stored(request)

    remoting = FakeRemoting(ONE, serve)
    assert run_sync(producer(remoting).send("T", b"x", message_group="g")).status is SendStatus.SEND_OK


def test_between_attempts_at_the_same_broker_is_a_pause() -> None:
    remoting = FakeRemoting(ONE, failing(refusal(ResponseCode.SYSTEM_BUSY), refusal(ResponseCode.SYSTEM_BUSY)))
    assert run_sync(producer(remoting).send("T", b"x")).status is SendStatus.SEND_OK
    assert remoting.clock.monotonic() > 0.05


def test_all_brokers_are_tried_before_one_is_tried_again() -> None:
    remoting = FakeRemoting({"T": route("a", "b", "c")}, lambda address, request: ConnectionLost("gone"))
    with pytest.raises(ConnectionLost, match="send to topic 'T': 3 attempts: "):
        run_sync(producer(remoting).send("T", b"x"))
    assert {address for address, _ in remoting.asked} == {"a:1", "b:1", "c:1"}
    assert remoting.clock.monotonic() == 0.0


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "3"])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    remoting = FakeRemoting(ONE)
    with pytest.raises(ConfigError, match="timeout must be seconds above 0"):
        run_sync(producer(remoting).send("T", b"x", timeout=timeout))
    with pytest.raises(ConfigError, match="timeout must be seconds above 0"):
        run_sync(producer(remoting).send_batch([Message("T", b"x")], timeout=timeout))
    assert not remoting.asked


def test_one_deadline_for_all_attempts() -> None:
    clock = ManualClock()

    def slow(address: str, request: RemotingCommand) -> Outcome:
        clock.advance(1.0)
        return RequestTimeout("late")

    remoting = FakeRemoting({"T": route("a", "b", "c")}, slow, clock)
    with pytest.raises(RequestTimeout, match=r"2\.5 s"):
        run_sync(producer(remoting, ProducerConfig(retries=9)).send("T", b"x", timeout=2.5))
    assert remoting.timeouts == pytest.approx([2.5 / 3, 0.75, 0.5])


def test_the_time_that_name_servers_take_is_not_added_to_the_deadline() -> None:
    clock = ManualClock()

    class Names(FakeRemoting):
        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and self.asked:
                clock.advance(timeout)
                raise RequestTimeout("hanging")
            return await super().invoke(address, command, timeout)

        def close_channel(self, address: str) -> None:
            assert address == "127.0.0.1:9876"

    remoting = Names(TWO, failing(*[error(ConnectionLost)] * 3), clock)
    with pytest.raises(ConnectionLost):
        run_sync(producer(remoting, ProducerConfig(retries=1)).send("T", b"x", timeout=4.0))
    assert remoting.timeouts == [2.0, 2.0]
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize(
    ("brokers", "settings", "timeout", "shares"),
    [
        ("ab", {}, 3.0, [1.5, 1.5]),  # the third attempt has no time, as the second took what was left
        ("abc", {}, 3.0, [1.0, 1.0, 1.0]),
        ("abcde", {"retries": 2}, 3.0, [1.0, 1.0, 1.0]),
        ("abcde", {"retries": 1}, 3.0, [1.5, 1.5]),
        ("ab", {"retries": 0}, 3.0, [3.0]),
        ("a", {}, 3.0, [3.0]),  # a slow broker is not asked a second time while it works
        ("abc", {}, 0.15, [0.1, 0.05]),
        ("abc", {"attempt_timeout": 0.5}, 3.0, [0.5, 0.5, 2.0]),
        ("a", {"attempt_timeout": 0.5}, 0.8, [0.5, 0.25]),
        ("ab", {"attempt_timeout": 9.0}, 3.0, [3.0]),
    ],
)
@pytest.mark.parametrize("what", ["send", "send_batch", "half"])
def test_an_attempt_leaves_time_for_those_that_may_follow(
    brokers: str, settings: dict[str, Any], timeout: float, shares: list[float], what: str
) -> None:
    clock = ManualClock()

    class Hanging(FakeRemoting):
        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            answer = await super().invoke(address, command, timeout)
            if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
                clock.advance(timeout)
                raise RequestTimeout("hangs")
            return answer

    remoting = Hanging({"T": route(*brokers)}, clock=clock)
    sender, message = producer(remoting, replace(ProducerConfig(), **settings)), Message("T", b"x")
    calls = {
        "send": partial(sender.send, message),
        "send_batch": partial(sender.send_batch, [message]),
        "half": partial(sender.send_half, message, queue=None),
    }
    with pytest.raises(RequestTimeout):
        run_sync(calls[what](timeout=timeout))  # type: ignore[operator]
    assert remoting.timeouts == pytest.approx(shares, abs=0.06)  # a pause is drawn by lot


@pytest.mark.parametrize("arguments", [{"queue": MessageQueue("T", "a", 1)}, {"message_group": "g"}])
def test_a_chosen_queue_gets_one_attempt(arguments: dict[str, object]) -> None:
    remoting = FakeRemoting(TWO, lambda address, request: ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        run_sync(producer(remoting).send("T", b"x", **arguments))  # type: ignore[call-overload]
    assert len(remoting.asked) == 1


def test_a_message_group_keeps_its_queue_and_is_stored_with_the_message() -> None:
    remoting = FakeRemoting({"T": route("a", "b", queues=8)})
    sender = producer(remoting)
    queues = {run_sync(sender.send("T", b"x", message_group="order-42")).queue for _ in range(5)}
    assert len(queues) == 1
    assert "__SHARDINGKEY\x01order-42\x02" in (header(remoting.asked[0][1]).properties or "")


def test_a_queue_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RouteNotFound, match="queue_id=9"):
        run_sync(producer(FakeRemoting(ONE)).send("T", b"x", queue=MessageQueue("T", "a", 9)))


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE), (12, SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
def test_a_status_that_is_not_ok_is_a_result(code: int, status: SendStatus) -> None:
    remoting = FakeRemoting(TWO, failing(lambda request: stored(request, code)))
    result = run_sync(producer(remoting).send("T", b"x"))
    assert result.status is status
    assert not result
    assert len(remoting.asked) == 1


def test_on_request_a_status_that_is_not_ok_is_tried_again() -> None:
    remoting = FakeRemoting(TWO, failing(lambda request: stored(request, 12)))
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    assert run_sync(producer(remoting, config).send("T", b"x")).status is SendStatus.SEND_OK
    remoting = FakeRemoting(TWO, lambda address, request: stored(request, 12))
    assert run_sync(producer(remoting, config).send("T", b"x")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(remoting.asked) == 3


def test_an_answer_without_the_offset_is_an_error_of_the_peer() -> None:
    remoting = FakeRemoting(ONE, lambda address, request: RemotingCommand.response(request))
    with pytest.raises(DecodeError, match="queueId"):
        run_sync(producer(remoting).send("T", b"x"))


def test_an_unknown_topic_is_sent_to_where_the_default_topic_is() -> None:
    remoting = FakeRemoting({AUTO_CREATE_TOPIC: route("a", queues=8, perm=7)})
    sender = producer(remoting)
    queues = {run_sync(sender.send("New", b"x")).queue.queue_id for _ in range(8)}
    assert queues == {0, 1, 2, 3}
    assert header(remoting.asked[0][1]).default_topic_queue_nums == 4


def test_without_a_route_the_error_names_the_topic() -> None:
    with pytest.raises(RouteNotFound, match="'New'"):
        run_sync(producer(FakeRemoting({})).send("New", b"x"))
    with pytest.raises(RouteNotFound, match="writable"):
        run_sync(producer(FakeRemoting({"T": route("a", perm=4)})).send("T", b"x"))


def test_a_route_without_a_writable_queue_is_asked_for_at_each_send() -> None:
    remoting = FakeRemoting({"T": route("a", perm=4)})
    sender = producer(remoting)
    for requests in (1, 2):
        with pytest.raises(RouteNotFound, match="writable"):
            run_sync(sender.send("T", b"x"))
        assert remoting.route_requests == requests
    remoting.routes["T"] = route("a")
    assert run_sync(sender.send("T", b"x")).queue.broker == "a"
    run_sync(sender.send("T", b"x"))
    assert remoting.route_requests == 3


def test_a_lost_connection_asks_for_the_route_again() -> None:
    remoting = FakeRemoting({"T": route("a")})

    def serve(address: str, request: RemotingCommand) -> Outcome:
        if address == "a:1":
            remoting.routes["T"] = route("b")
            return ConnectError("gone")
        return stored(request)

    remoting.serve = serve
    assert run_sync(producer(remoting).send("T", b"x")).queue.broker == "b"
    assert remoting.route_requests == 2


def test_latency_fault_tolerance_avoids_a_broker_that_failed() -> None:
    remoting = FakeRemoting(TWO, lambda address, request: ConnectError("x") if address == "a:1" else stored(request))
    sender = producer(remoting, ProducerConfig(latency_fault_tolerance=True))
    for _ in range(12):
        run_sync(sender.send("T", b"x"))
    assert sum(address == "a:1" for address, _ in remoting.asked) <= 1


@pytest.mark.parametrize("size", [4095, 4096, 100_000])
def test_large_bodies_are_compressed(size: int) -> None:
    remoting = FakeRemoting(ONE)
    run_sync(producer(remoting).send("T", b"x" * size))
    [(_, request)] = remoting.asked
    if size < 4096:
        assert (header(request).sys_flag, len(request.body)) == (0, size)
    else:
        assert header(request).sys_flag == 0x301
        assert zlib.decompress(request.body) == b"x" * size


def test_a_body_that_does_not_shrink_is_sent_as_it_is() -> None:
    remoting = FakeRemoting(ONE)
    body = random.Random(1).randbytes(1 << 22)
    run_sync(producer(remoting).send("T", body))
    [(_, request)] = remoting.asked
    assert (header(request).sys_flag, request.body) == (0, body)


def test_one_way_is_written_and_forgotten() -> None:
    remoting = FakeRemoting(ONE)
    run_sync(producer(remoting).send_oneway(Message("T", b"x", tag="t")))
    [(address, request)] = remoting.asked
    assert (address, request.is_oneway, request.code) == ("a:1", True, RequestCode.SEND_MESSAGE_V2)


def test_a_batch_has_one_queue_and_an_id_per_message() -> None:
    remoting = FakeRemoting(TWO)
    result = run_sync(producer(remoting).send_batch([Message("T", b"1", tag="t"), Message("T", b"22")]))
    [(_, request)] = remoting.asked
    assert (request.code, header(request).batch) == (RequestCode.SEND_BATCH_MESSAGE, True)
    assert header(request).properties == "WAIT\x01true\x02"
    first, second = result.msg_ids
    assert (result.msg_id, result[0].msg_id, result[0].msg_ids) == (first, first, (first, second))
    properties = f"TAGS\x01t\x02UNIQ_KEY\x01{first}\x02WAIT\x01true\x02".encode()
    assert request.body[:20] == (22 + 1 + len(properties)).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big")
    assert request.body[20:21] == b"1"
    assert properties in request.body
    assert second.encode() in request.body


@pytest.mark.parametrize(
    "batch",
    [
        [Message("T", b"1", delay_level=1)],
        [Message("T", b"1"), Message("U", b"2"), Message("U", b"3", delay=1)],
        [Message("%RETRY%g", b"1")],
    ],
)
def test_what_cannot_be_one_batch_is_refused(batch: list[Message]) -> None:
    with pytest.raises(MessageIllegal):
        run_sync(producer(FakeRemoting(ONE)).send_batch(batch))


@pytest.mark.parametrize(
    ("topic", "body"), [("T", b""), ("no spaces", b"x"), ("SCHEDULE_TOPIC_XXXX", b"x"), ("T", b"x" * 5_000_000)]
)
def test_an_illegal_message_is_not_sent(topic: str, body: bytes) -> None:
    remoting = FakeRemoting(ONE)
    with pytest.raises(MessageIllegal):
        run_sync(producer(remoting).send(topic, body))
    assert not remoting.asked


def test_properties_that_no_broker_takes_are_refused_before_sending() -> None:
    with pytest.raises(MessageIllegal, match="32767"):
        run_sync(producer(FakeRemoting(ONE)).send("T", b"x", properties={"p": "ü" * 16_400}))


def test_contradictory_arguments_are_refused() -> None:
    sender = producer(FakeRemoting(ONE))
    with pytest.raises(ConfigError):
        run_sync(sender.send(Message("T", b"x"), b"y"))  # type: ignore[call-overload]
    with pytest.raises(ConfigError):
        run_sync(sender.send("T"))  # type: ignore[call-overload]


def test_the_brokers_words_are_in_the_error() -> None:
    remoting = FakeRemoting(ONE, failing(refusal(ResponseCode.MESSAGE_ILLEGAL)))
    with pytest.raises(MessageRefused, match=r"send to topic 'T' \(1 attempt\) to a at a:1: MESSAGE_ILLEGAL"):
        run_sync(producer(remoting).send("T", b"x"))


def test_a_closed_producer_refuses() -> None:
    sender = producer(FakeRemoting(ONE))
    sender.refuse()
    with pytest.raises(ClientClosed):
        run_sync(sender.send("T", b"x"))


def test_name_servers_are_asked_in_turn() -> None:
    config = ProducerConfig(namesrv=("n1:1", "n2:1"))
    asked = []

    class Names(FakeRemoting):
        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            if address.startswith("n"):
                asked.append(address)
                if address == "n1:1":
                    raise ConnectError("down")
            return await super().invoke(address, command, timeout)

    remoting = Names({"T": route("a"), "U": route("a")})
    sender = producer(remoting, config)
    run_sync(sender.send("T", b"x"))
    run_sync(sender.send("U", b"x"))
    assert asked[-1] == "n2:1"
    assert asked.count("n1:1") <= 1


@pytest.mark.parametrize("signed", [False, True])
def test_a_long_batch_is_sent_from_where_it_lies(signed: bool) -> None:
    target = SendTarget(MessageQueue("T", "a", 1), "a:1", 0, "g", 4, plain=signed)
    body = memoryview(bytes(100_000)).toreadonly()
    request = target.request(outgoing_batch(body, ()), 1)
    head, last = request.pieces()
    assert last is body
    assert head + bytes(body) == request.encode()  # type: ignore[operator]


def test_the_ids_of_a_batch_are_asked_for_by_those_who_have_some() -> None:
    """The template's bytes are those of the header, and a request that is signed says the same."""
    for ids, said in (((), 1), (("A", "B"), None)):
        plain, signed = (
            decoded(
                SendTarget(MessageQueue("T", "a", 1), "a:1", 0, "g", 4, plain=signs).request(
                    outgoing_batch(b"body", ids), 1
                )
            )
            for signs in (False, True)
        )
        assert header(plain) == header(signed)
        assert list(plain.ext_fields or {}) == list(signed.ext_fields or {})
        assert header(plain).rc_first_id == said
