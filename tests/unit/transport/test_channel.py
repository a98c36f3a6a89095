"""A channel over a transport that is only a list: what is served, answered, joined, bounded and closed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from rocketcore.codes import LanguageCode, ResponseCode
from rocketcore.errors import ConfigError, ConnectionLost, GroupNotExist
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk
from rocketcore.protocol.headers.nameserver import GetKVConfigRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.exchange import socket_address
from rocketcore.transport.routes import Route, Routes
from tests.unit.transport.fakes import Peer, echo, run


def test_all_answers_of_a_read_leave_in_one_write() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(100, echo)
        requests = [RemotingCommand.request(100, body=b"%d" % n) for n in range(600)]
        peer.receive(*requests)
        assert len(peer.transport.writes) == 1
        assert [(c.opaque, c.body) for c in peer.transport.commands()] == [(r.opaque, r.body) for r in requests]
        assert all(c.is_response for c in peer.transport.commands())

    run(scenario)


def test_runs_of_one_code_go_to_the_run_handler() -> None:
    async def scenario() -> None:
        runs: list[tuple[int, int]] = []

        def chunked(channel: Channel, chunk: Chunk, first: int, last: int) -> list[bytes]:
            runs.append((first, last))
            return [RemotingCommand.response(chunk.command(n), remark="chunk").encode() for n in range(first, last)]

        peer = Peer()
        peer.serve(105, run=chunked)
        peer.serve(100, echo)
        unusual = b'{"code":105,/**/"opaque":77}'
        frame = (4 + len(unusual)).to_bytes(4, "big") + len(unusual).to_bytes(4, "big") + unusual
        parts = [RemotingCommand.request(code).encode() for code in (105, 105, 105, 100, 105)]
        peer.channel.data_received(b"".join(parts) + frame + RemotingCommand.request(105).encode())
        assert runs == [(0, 3), (4, 5), (6, 7)]
        remarks = [command.remark for command in peer.transport.commands()]
        assert remarks == ["chunk", "chunk", "chunk", "echo", "chunk", "echo", "chunk"]
        assert len(peer.transport.writes) == 1

    run(scenario)


def test_a_failing_run_handler_answers_each_row(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def broken(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
            raise ZeroDivisionError("no")

        peer = Peer()
        peer.serve(105, run=broken)
        peer.receive(
            RemotingCommand.request(105), RemotingCommand.request(105, oneway=True), RemotingCommand.request(105)
        )
        answers = [(command.code, command.remark) for command in peer.transport.commands()]
        assert answers == [(ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: no")] * 2

    run(scenario)
    assert "run handler failed" in caplog.text


def test_errors_become_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def raising(error: Exception) -> Any:
            def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                raise error

            return handler

        async def late(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await asyncio.sleep(0)
            raise KeyError("late")

        def too_long(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return RemotingCommand.response(request, body=bytes(17 << 20))

        def no_text(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return RemotingCommand(0, ext_fields={"count": 5})  # type: ignore[dict-item]

        peer = Peer()
        peer.serve(100, raising(GroupNotExist(26, "no group")))
        peer.serve(101, raising(ValueError("bad")))
        peer.serve(102, late)
        peer.serve(103, too_long)
        peer.serve(105, no_text)
        peer.receive(*(RemotingCommand.request(code) for code in (100, 101, 102, 103, 104, 105)))
        await asyncio.gather(*peer.endpoint.tasks)
        await asyncio.sleep(0)
        answers = {command.opaque: (command.code, command.remark or "") for command in peer.transport.commands()}
        texts = [text for _, text in sorted(answers.items())]
        assert texts[0] == (26, "no group")
        assert texts[1] == (1, "ValueError: bad")
        assert texts[2] == (1, "KeyError: 'late'")
        assert texts[3][0] == 1
        assert texts[3][1].startswith("LocalProtocolError: answer: a frame of")
        assert texts[4] == (3, " request type 104 not supported")
        assert texts[5] == (1, "TypeError: expected a str, not 5")

    run(scenario)
    assert "request=GET_KV_CONFIG" in caplog.text


def test_the_header_of_a_row_is_read_before_its_handler() -> None:
    async def scenario() -> None:
        headers: list[GetKVConfigRequestHeader] = []

        def handler(channel: Channel, request: RemotingCommand, header: GetKVConfigRequestHeader) -> RemotingCommand:
            headers.append(header)
            return echo(channel, request)

        peer = Peer()
        peer.endpoint.routes.add([Route(101, handler, GetKVConfigRequestHeader)])
        peer.receive(
            RemotingCommand.request(101, GetKVConfigRequestHeader(namespace="n", key="k")), RemotingCommand.request(101)
        )
        answers = [(command.code, command.remark) for command in peer.transport.commands()]
        assert headers == [GetKVConfigRequestHeader(namespace="n", key="k")]
        assert answers[0] == (0, "echo")
        assert answers[1][0] == ResponseCode.SYSTEM_ERROR
        assert "namespace" in (answers[1][1] or "")

    run(scenario)


def test_a_code_has_one_row() -> None:
    with pytest.raises(ConfigError, match="100 already has a handler"):
        Routes([Route(100, echo), Route(101, echo), Route(100, echo)])


def test_one_way_requests_get_no_answer() -> None:
    async def scenario() -> None:
        peer = Peer()
        seen = []
        peer.serve(100, lambda channel, request: seen.append(request) or echo(channel, request))
        peer.receive(RemotingCommand.request(100, oneway=True), RemotingCommand.request(9999, oneway=True))
        await asyncio.sleep(0)
        assert len(seen) == 1
        assert peer.transport.writes == []

    run(scenario)


def test_the_answer_has_the_opaque_of_the_request_whatever_the_handler_made() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(4711, lambda channel, request: RemotingCommand(0, opaque=1))
        request = RemotingCommand.request(4711)
        request.opaque = 99
        peer.receive(request)
        (answer,) = peer.transport.commands()
        assert (answer.opaque, answer.is_response) == (99, True)

    run(scenario)


def test_a_transport_that_broke_is_left_alone_until_it_says_so() -> None:
    """asyncio's complains of each write between the failure of one and ``connection_lost``."""

    async def scenario() -> None:
        peer = Peer(server=False, write_high_water_bytes=1000)
        peer.transport.ended = "broken"
        answers = [peer.channel.invoke_nowait(RemotingCommand.request(100, body=bytes(2000)), 5) for _ in range(10)]
        assert peer.transport.writes == []
        peer.channel.connection_lost(OSError("broken pipe"))
        for answer in answers:
            with pytest.raises(ConnectionLost, match="broken pipe"):
                await answer

    run(scenario)


def test_a_bad_frame_closes_after_the_answers_before_it() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(100, echo)
        peer.channel.data_received(RemotingCommand.request(100).encode() + b"\x00\x00\x00\x00rest")
        assert len(peer.transport.commands()) == 1
        assert peer.transport.ended == "closed"
        assert peer.channel.closed

    run(scenario)


def chunked(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
    """One piece for the run, each answer with the run's bounds in its remark."""
    remark = f"{first}:{last}"
    return b"".join(RemotingCommand.response(chunk.command(n), remark=remark).encode() for n in range(first, last))


def test_a_read_of_one_run_is_answered_at_once_wherever_it_is_split() -> None:
    async def scenario() -> None:
        requests = [RemotingCommand.request(105, body=b"%d" % n) for n in range(3)]
        frames = b"".join(request.encode() for request in requests)
        for cut in range(1, len(frames)):
            peer = Peer()
            peer.serve(105, run=chunked)
            peer.channel.data_received(frames[:cut])
            peer.channel.data_received(frames[cut:])
            assert [answer.opaque for answer in peer.transport.commands()] == [request.opaque for request in requests]
            assert len(peer.transport.writes) <= 2
            assert peer.endpoint.partial_bytes == 0

    run(scenario)


def test_a_bad_frame_behind_a_run_closes_after_the_run_was_answered() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(105, run=chunked)
        peer.channel.data_received(RemotingCommand.request(105).encode() * 2 + b"\x00\x00\x00\x00rest")
        assert [answer.remark for answer in peer.transport.commands()] == ["0:2", "0:2"]
        assert peer.transport.ended == "closed"

    run(scenario)


def test_what_a_run_handler_writes_itself_goes_before_what_it_returns() -> None:
    async def scenario() -> None:
        def both(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
            channel.write(b"first ")
            return b"second"

        peer = Peer()
        peer.serve(105, run=both)
        peer.receive(RemotingCommand.request(105))
        peer.channel.write(b"planned ")
        peer.receive(RemotingCommand.request(105))
        assert peer.transport.writes == [b"first second", b"planned first second"]
        await asyncio.sleep(0)
        assert len(peer.transport.writes) == 2

    run(scenario)


def test_a_run_handler_that_closes_or_has_no_answer_writes_nothing() -> None:
    async def scenario() -> None:
        def closing(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
            channel.close()
            return b"too late"

        peer = Peer()
        peer.serve(100, run=lambda channel, chunk, first, last: b"")
        peer.serve(105, run=closing)
        peer.receive(RemotingCommand.request(100))
        assert not peer.channel.closed
        peer.receive(RemotingCommand.request(105))
        assert (peer.transport.writes, peer.transport.ended) == ([], "closed")

    run(scenario)


def test_a_bad_header_closes() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.channel.data_received(b"\x00\x00\x00\x06\x00\x00\x00\x02{x")
        assert peer.transport.ended == "closed"

    run(scenario)


def test_a_handler_whose_work_was_cancelled_by_others_is_answered() -> None:
    async def scenario() -> None:
        work: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        async def wait() -> RemotingCommand:
            return await work

        peer = Peer()
        peer.serve(100, lambda channel, request: wait())
        peer.receive(RemotingCommand.request(100))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(*peer.endpoint.tasks)
        await asyncio.sleep(0)
        [answer] = peer.transport.commands()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cancelled" in (answer.remark or "")

    run(scenario)


def test_go_away_for_those_who_understand_it() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(100, run=lambda channel, chunk, first, last: b"not now")
        peer.endpoint.going_away = True
        old = RemotingCommand.request(100)
        old.version = 407
        new = RemotingCommand.request(100)
        silent = RemotingCommand.request(100, oneway=True)
        peer.receive(new, old, silent)
        answers = {command.opaque: command for command in peer.transport.commands()}
        assert (answers[new.opaque].code, answers[new.opaque].remark) == (ResponseCode.GO_AWAY, "please go away")
        assert answers[old.opaque].code == 0
        assert len(answers) == 2
        peer.endpoint.takes_requests = False
        unknown = RemotingCommand.request(9999)
        unknown.version = 407
        unusual = old.encode().replace(b'"PYTHON"', b'"HASKEL"')
        assert unusual != old.encode()
        peer.receive(new, old, unknown)
        peer.channel.data_received(unusual)
        assert [command.code for command in peer.transport.commands()[2:]] == [ResponseCode.GO_AWAY]

    run(scenario)


def test_held_answers_and_attributes() -> None:
    async def scenario() -> None:
        peer = Peer()
        held: list[RemotingCommand] = []
        peer.serve(11, lambda channel, request: held.append(request))
        peer.receive(RemotingCommand.request(11))
        assert peer.transport.writes == []
        peer.channel.send(RemotingCommand.response(held[0], ResponseCode.PULL_NOT_FOUND))
        await asyncio.sleep(0)
        assert peer.transport.commands()[0].code == ResponseCode.PULL_NOT_FOUND
        peer.channel.attributes["group"] = "G"
        assert peer.channel.attributes == {"group": "G"}
        assert "10.0.0.9:50000" in repr(peer.channel)

    run(scenario)


def test_unknown_code_mirrors_the_type_of_the_header() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.receive(RemotingCommand.request(4711, serialize_type=1), RemotingCommand.request(4712))
        binary, text = peer.transport.commands()
        assert (binary.serialize_type, text.serialize_type) == (1, 0)
        assert binary.language == LanguageCode.PYTHON

    run(scenario)


def test_socket_addresses() -> None:
    assert socket_address(("127.0.0.1", 1)) == "127.0.0.1:1"
    assert socket_address(("::1", 1, 0, 0)) == "[::1]:1"
    assert socket_address("") == socket_address(None) == ""


@pytest.mark.parametrize("end", ["lost", "close", "abort"])
def test_nothing_that_came_is_held_after_the_end(end: str) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(9999)
        frame = RemotingCommand.request(9999, body=bytes(10_000)).encode()
        peer.channel.data_received(frame[:60])
        peer.channel.data_received(frame[60:9_000])
        assert peer.endpoint.partial_bytes == 9_000
        if end == "lost":
            peer.channel.connection_lost(None)
        else:
            getattr(peer.channel, end)()
        assert peer.endpoint.partial_bytes == 0
        assert peer.channel._inbound.held_bytes == 0
        peer.channel.part_received(5_000)
        peer.channel.data_received(frame[9_000:])
        assert peer.endpoint.partial_bytes == 0
        assert peer.transport.commands() == []

    run(scenario)


def test_a_closed_channel_is_gone_without_the_garbage_collector() -> None:
    async def scenario() -> None:
        gc.disable()
        try:
            peer = Peer()
            peer.serve(9999)
            future = peer.channel.invoke_nowait(RemotingCommand.request(9999), 30.0)
            peer.receive(RemotingCommand.request(9999, body=b"x"))
            peer.channel.data_received(RemotingCommand.request(9999, body=bytes(10_000)).encode()[:9_000])
            channel = weakref.ref(peer.channel)
            peer.channel.connection_lost(None)
            with pytest.raises(ConnectionLost):
                await future
            del future, peer.channel, peer.transport.protocol  # transports let go of it too
            await asyncio.sleep(0)
            assert channel() is None
        finally:
            gc.enable()

    run(scenario)
