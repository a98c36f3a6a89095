"""TLS and PROXY preambles over loopback sockets, on both event loops, with both clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode
from rocketcore.errors import ConfigError, ConnectError, ConnectionLost, RequestTimeout, TransportError
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.server.server import RemotingServer
from rocketcore.transport.tls.server_settings import ServerTls
from rocketcore.transport.tls.session import TlsSession
from rocketcore.transport.tls.settings import TlsConfig
from tests.fixtures.tls import CLIENT_CERTIFICATE, FOLDER, client_tls, server_tls
from tests.integration.remoting_server import (
    ECHO,
    NEVER,
    TIMEOUT,
    add_handler,
    eventually,
    run_threads,
)
from tests.integration.tls_server import TlsServer, ask, connected, echo_blocking, run

# Modes


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
def test_modes(mode: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """wire.md 6.17: who is served and who is not, by both clients."""
    with TlsServer(loop_factory, tls=server_tls(mode)) as server:

        async def ask_asyncio(client: RemotingClient) -> None:
            request = RemotingCommand.request(ECHO, body=b"x")
            assert (await client.invoke(server.address, request, TIMEOUT)).body == b"x"

        for tls, served in ((False, mode != "enforcing"), (client_tls(), mode != "disabled")):
            if served:
                assert echo_blocking(server.address, tls=tls) == b"x"
                run(loop_factory, ask_asyncio, tls=tls)
            else:
                with pytest.raises(TransportError):
                    echo_blocking(server.address, tls=tls)
                with pytest.raises(TransportError):
                    run(loop_factory, ask_asyncio, tls=tls)
        eventually(lambda: server.channels() == 0)


def test_a_permissive_server_without_certificate_serves_plain_connections_only() -> None:
    with TlsServer(tls=server_tls(cert_file=None, key_file=None)) as server:
        assert echo_blocking(server.address) == b"x"
        closed = r"PUT_KV_CONFIG at .*: the server closed the connection during the TLS handshake"
        with pytest.raises(ConnectError, match=closed):
            echo_blocking(server.address, tls=client_tls())


def test_a_permissive_server_with_damaged_files_serves_plain_connections_until_they_are_mended(tmp_path: Path) -> None:
    certificate = tmp_path / "server.crt"
    certificate.write_text("no certificate")
    tls = server_tls(cert_file=certificate)
    with TlsServer(tls=tls, clock=(clock := TurnedClock())) as server:
        assert echo_blocking(server.address) == b"x"
        with pytest.raises(ConnectError):
            echo_blocking(server.address, tls=client_tls())
        shutil.copy(FOLDER / "server.crt", certificate)
        clock.ahead += 2
        assert echo_blocking(server.address, tls=client_tls()) == b"x"


def test_an_enforcing_server_with_damaged_files_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "server.crt").write_text("no certificate")
    server = RemotingServer(tls=server_tls("enforcing", cert_file=tmp_path / "server.crt"))

    async def start() -> None:
        with pytest.raises(ConfigError, match="the server's TLS files cannot be used"):
            await server.start()

    asyncio.run(start())


# Traffic


def test_much_traffic_in_both_directions(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    bodies = [os.urandom(size) for size in (0, 1, 16_384, 100_000, 4 << 20, 15 << 20)]
    with TlsServer(loop_factory, tls=server_tls("enforcing")) as server:

        async def scenario(client: RemotingClient) -> None:
            requests = [RemotingCommand.request(ECHO, body=b"%d" % n * (n % 50)) for n in range(2000)]
            answers = await asyncio.gather(*(client.invoke(server.address, request, 30) for request in requests))
            assert [answer.body for answer in answers] == [request.body for request in requests]
            answers = await asyncio.gather(
                *(client.invoke(server.address, RemotingCommand.request(ECHO, body=body), 30) for body in bodies)
            )
            assert [answer.body for answer in answers] == bodies

        run(loop_factory, scenario, tls=client_tls())
        with BlockingRemotingClient(tls=client_tls()) as client:
            for body in bodies:
                assert client.invoke(server.address, RemotingCommand.request(ECHO, body=body), 30).body == body


def test_threads_share_one_tls_connection() -> None:
    failures: list[object] = []
    with TlsServer(tls=server_tls()) as server, BlockingRemotingClient(tls=client_tls()) as client:

        def work(number: int) -> None:
            try:
                for turn in range(50):
                    body = b"%d-%d" % (number, turn) * (turn % 7 * 5000 + 1)
                    if client.invoke(server.address, RemotingCommand.request(ECHO, body=body), 30).body != body:
                        failures.append((number, turn))
            except TransportError as error:
                failures.append(error)

        run_threads([threading.Thread(target=work, args=(number,)) for number in range(16)])
        assert failures == []
        assert server.channels() == 1


def test_pipelining_from_one_thread_does_not_deadlock() -> None:
    """Both socket buffers fill while nobody waits for an answer: records are sent in parts, and read meanwhile."""
    body = os.urandom(200_000)
    with TlsServer(tls=server_tls()) as server, BlockingRemotingClient(tls=client_tls()) as client:
        channel = client.connect(server.address)
        pending = [channel.invoke_nowait(RemotingCommand.request(ECHO, body=body), 30) for _ in range(150)]
        assert all(channel.wait(each).body == body for each in pending)


def test_a_blocking_client_keeps_its_connection_after_a_deadline() -> None:
    with TlsServer(tls=server_tls()) as server, BlockingRemotingClient(tls=client_tls()) as client:
        channel = client.connect(server.address)
        with pytest.raises(RequestTimeout):
            client.invoke(server.address, RemotingCommand.request(NEVER), 0.05)
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
        assert client.connect(server.address) is channel


def test_a_server_that_does_not_read_cannot_break_the_stream() -> None:
    """A request that was not sent whole ends the connection: half a record is out."""
    with socket.create_server(("127.0.0.1", 0)) as listener, BlockingRemotingClient(tls=client_tls()) as client:
        address = "{}:{}".format(*listener.getsockname())
        release = threading.Event()

        def serve() -> None:
            sock, _ = listener.accept()
            context = server_tls().context()
            with context.wrap_socket(sock, server_side=True):
                release.wait(TIMEOUT)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            channel = client.connect(address, TIMEOUT)
            with pytest.raises(TransportError):
                client.invoke(address, RemotingCommand.request(ECHO, body=bytes(15 << 20)), 0.3)
            assert channel.closed
        finally:
            release.set()
            thread.join(TIMEOUT)


def test_a_child_process_makes_a_tls_connection_of_its_own() -> None:
    """The parent's session is left alone: a record of the child's in it would end it."""
    with TlsServer(tls=server_tls()) as server, BlockingRemotingClient(tls=client_tls()) as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        pid = os.fork()
        if pid == 0:
            try:
                answer = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"child"), TIMEOUT)
                client.close()
                os._exit(0 if answer.body == b"child" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        channel = client.connect(server.address)
        parent = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"parent"), TIMEOUT)
        assert parent.body == b"parent"
        assert client.connect(server.address) is channel


def test_the_end_of_a_session_ends_the_connection_though_the_socket_stays_open() -> None:
    """A server says that nothing follows, and closes its socket only later: the next request needs a new one."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:
        address = "{}:{}".format(*listener.getsockname())

        def serve() -> None:
            for number in (b"0", b"1"):
                sock = kept.enter_context(listener.accept()[0])
                session = TlsSession(server_tls().context(), server_side=True)
                decoder = FrameDecoder()
                commands: list[RemotingCommand] = []
                while not commands:
                    commands = decoder.feed(session.receive(sock.recv(65536)))
                    sock.sendall(session.take_outgoing())
                session.send(RemotingCommand.response(commands[0], body=number).encode())
                session.close()
                sock.sendall(session.take_outgoing())

        thread = threading.Thread(target=serve)
        thread.start()
        with BlockingRemotingClient(tls=client_tls()) as client:
            channel = client.connect(address)
            assert client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT).body == b"0"
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match="the server closed the connection"):
                client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)
            assert time.monotonic() - began < TIMEOUT / 2
            assert channel.closed
            assert client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT).body == b"1"
        thread.join(TIMEOUT)


# Trust


def test_clients_verify_the_server(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    request = RemotingCommand.request(ECHO)
    cases: list[tuple[TlsConfig | bool, str]] = [
        (True, "certificate verify failed: "),
        (client_tls(ca_file=FOLDER / "client.crt"), "certificate verify failed: "),
        (client_tls(server_hostname="rocketmq.example"), "Hostname mismatch, certificate is not valid for 'rocketmq"),
    ]
    with TlsServer(loop_factory, tls=server_tls()) as server:
        for tls, text in cases:
            with pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {server.address}: .*{text}"):
                echo_blocking(server.address, tls=tls)

            async def refused(client: RemotingClient, text: str = text) -> None:
                with pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {server.address}: .*{text}"):
                    await client.invoke(server.address, request, TIMEOUT)

            run(loop_factory, refused, tls=tls)
        assert echo_blocking(server.address, tls=TlsConfig(verify=False)) == b"x"
        unnamed = client_tls(server_hostname="rocketmq.example", check_hostname=False)
        assert echo_blocking(server.address, tls=unnamed) == b"x"
        assert echo_blocking(server.address, tls=client_tls().context()) == b"x"


@pytest.mark.parametrize("client_auth", ["optional", "require"])
def test_servers_verify_clients(client_auth: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    tls = server_tls(client_auth=client_auth, verify_clients=True, ca_file=FOLDER / "ca.crt")
    with TlsServer(loop_factory, tls=tls) as server:
        assert echo_blocking(server.address, tls=client_tls(**CLIENT_CERTIFICATE)) == b"x"
        if client_auth == "optional":
            assert echo_blocking(server.address, tls=client_tls()) == b"x"
        else:
            with pytest.raises(TransportError):
                echo_blocking(server.address, tls=client_tls())

        async def scenario(client: RemotingClient) -> None:
            await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)

        run(loop_factory, scenario, tls=client_tls(**CLIENT_CERTIFICATE))


def test_nothing_older_than_tls_1_2() -> None:
    with TlsServer(tls=server_tls()) as server:
        for version, served in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = TlsConfig(verify=False).context()
            context.set_ciphers("ALL:@SECLEVEL=0")
            if version is ssl.TLSVersion.TLSv1_1:
                with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                    context.minimum_version = context.maximum_version = version
            else:
                context.maximum_version = version
            if served:
                assert echo_blocking(server.address, tls=context) == b"x"
            else:
                with pytest.raises(ConnectError):
                    echo_blocking(server.address, tls=context)


# Reload


class TurnedClock:
    """The machine's clock, some seconds ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time_millis(self) -> int:
        return 0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def subject(address: str) -> tuple[ssl.SSLSocket, str]:
    sock = client_tls().context().wrap_socket(connected(address), server_hostname="localhost")
    certificate = sock.getpeercert()
    assert certificate is not None
    parts: Any = certificate["subject"]
    return sock, dict(pair for part in parts for pair in part)["commonName"]


def test_new_certificates_are_served_while_old_connections_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(FOLDER / "server.crt", certificate)
    shutil.copy(FOLDER / "server.key", key)
    clock = TurnedClock()
    with TlsServer(tls=server_tls(cert_file=certificate, key_file=key), clock=clock) as server:
        old, name = subject(server.address)
        assert name == "server"
        # The certificate first: without its key it cannot be used, so the old ones stay.
        shutil.copy(FOLDER / "other-server.crt", certificate)
        clock.ahead += 2
        between, name = subject(server.address)
        assert name == "server"
        assert "the key is not that of the certificate" in caplog.text
        shutil.copy(FOLDER / "other-server.key", key)
        clock.ahead += 2
        new, name = subject(server.address)
        assert name == "other-server"
        for sock in (old, between, new):
            with sock:
                assert ask(sock, RemotingCommand.request(ECHO, body=b"x")).body == b"x"


# A server that asks another


def registered(broker_id: int, address: str) -> RemotingCommand:
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}'
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, body=body)
    request.ext_fields = {
        "brokerName": "broker-a", "brokerAddr": address, "clusterName": "C", "haServerAddr": "10.0.0.0:10912",
        "brokerId": str(broker_id), "enableActingMaster": "true",
    }  # fmt: skip
    return request


@pytest.mark.parametrize(
    ("tls", "refused"),
    [
        (client_tls(), ""),
        (False, "it does not speak TLS, which this server requires"),
        (True, "certificate verify failed: unable to get local issuer"),
        (client_tls(server_hostname="rocketmq.example"), "certificate verify failed: Hostname mismatch"),
    ],
    ids=["trusting", "plain", "trusting others", "expecting another name"],
)
def test_a_name_server_tells_brokers_over_tls(
    tls: TlsConfig | bool, refused: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a new smallest id, at the port that the broker registered, where it takes nothing but TLS."""
    caplog.set_level("INFO", "rocketcore")

    async def scenario() -> None:
        told: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        broker = RemotingServer(name="broker", tls=server_tls("enforcing"))
        add_handler(broker, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, lambda channel, request: told.put_nowait(request))
        await broker.start()
        config = NameServerConfig(listen_port=0, rocketmq_home=tmp_path, notify_min_broker_id_changed=True)
        name_server = NameServer(config, tls=server_tls("enforcing"), client_tls=tls)
        async with asyncio.timeout(2 * TIMEOUT), name_server, RemotingClient(tls=client_tls()) as client:
            for request in (registered(1, broker.address), registered(0, "10.0.0.0:10911")):
                assert (await client.invoke(name_server.address, request, TIMEOUT)).code == 0
            if refused:
                await asyncio.to_thread(eventually, lambda: refused in caplog.text)
                assert told.empty()
            else:
                notice = await told.get()
                assert notice.is_oneway
                assert notice.ext_fields == {
                    "brokerName": "broker-a", "minBrokerId": "0", "minBrokerAddr": "10.0.0.0:10911",
                    "haBrokerAddr": "10.0.0.0:10912",
                }  # fmt: skip
                assert "notice not sent" not in caplog.text
        await broker.stop()

    asyncio.run(scenario())


def test_a_server_with_a_certificate_of_its_own(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Encrypted, for a client that does not ask who answers; one that does is told that nobody vouches for it."""
    with TlsServer(loop_factory, tls=ServerTls(mode="enforcing", test_mode=True)) as server:
        assert echo_blocking(server.address, tls=TlsConfig(verify=False)) == b"x"
        with pytest.raises(TransportError, match="self-signed certificate"):
            echo_blocking(server.address, tls=True)
