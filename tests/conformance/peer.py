"""What a test says to a name server: requests by code and raw ext fields, and brokers that only register."""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

from rocketcore.codes import SerializeType, Version
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.blocking.client import BlockingRemotingClient

NO_TOPIC = (
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)

_ports = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test uses: the servers are shared."""
    return f"{prefix}-{uuid4().hex[:12]}"


def unique_address() -> str:
    """An address nobody listens at and no other test uses."""
    number = next(_ports)
    return f"10.9.{number >> 8}.{number & 255}:10911"


def read_json(body: bytes) -> Any:
    """Read a body in either dialect: Java's plain one leaves integer keys without quotes."""
    return json.loads(re.sub(rb"([{,])(-?\d+):", rb'\1"\2":', body))


class Peer:
    """A client of one name server over one connection."""

    def __init__(self, address: str, *, apache: bool) -> None:
        self.address = address
        self.apache = apache
        self._client = BlockingRemotingClient()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = Version.V5_5_0,
        kind: SerializeType = SerializeType.JSON,
        timeout: float = 10.0,
    ) -> RemotingCommand:
        """Ask and return the answer; no answer in time is an error of the test."""
        request = RemotingCommand.request(code, body=body, serialize_type=kind)
        request.ext_fields = dict(fields) if fields is not None else None
        request.version = version
        answer = self._client.invoke(self.address, request, timeout)
        assert answer.opaque == request.opaque
        assert answer.is_response
        return answer

    def tell(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request."""
        request = RemotingCommand.request(code, body=body, oneway=True)
        request.ext_fields = dict(fields) if fields is not None else None
        self._client.invoke_oneway(self.address, request, 10.0)

    def json(self, code: int, fields: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Return the decoded body of a successful answer.

        Apache's name server walks its tables without a lock, and fails where a broker that goes changes them meanwhile:
        it is asked again.
        """
        for _ in range(10):
            answer = self.ask(code, fields, **options)
            if not (self.apache and "ConcurrentModificationException" in (answer.remark or "")):
                break
        assert answer.code == 0, answer
        return read_json(answer.body)

    def has_route(self, topic: str) -> bool:
        return self.ask(105, {"topic": topic}).code == 0

    def perms(self, topic: str) -> dict[str, int]:
        """The permissions of a topic by broker name."""
        return {queues["brokerName"]: queues["perm"] for queues in self.json(105, {"topic": topic})["queueDatas"]}

    def addresses(self, broker_name: str) -> dict[str, str]:
        """The addresses of a broker name by id, from the cluster information; empty where it is unknown."""
        data = self.json(106)["brokerAddrTable"].get(broker_name)
        return {} if data is None else dict(data["brokerAddrs"])

    def settings(self) -> dict[str, str]:
        answer = self.ask(319)
        assert answer.code == 0
        return dict(line.split("=", 1) for line in answer.body.decode().splitlines())

    @contextmanager
    def setting(self, **properties: str) -> Iterator[None]:
        """Change settings of the running server for a while."""
        before = self.settings()
        self._change(properties)
        try:
            yield
        finally:
            self._change({name: before[name] for name in properties})

    def _change(self, properties: Mapping[str, str]) -> None:
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        assert self.ask(318, body=text.encode()).code == 0

    def eventually(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait for something that the server does in its own time."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s"
            time.sleep(0.02)


def topic_config(name: str, *, queues: int = 8, perm: int = 6, sys_flag: int = 0) -> dict[str, Any]:
    return {
        "topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": sys_flag, "order": False, "attributes": {},
    }  # fmt: skip


def data_version(counter: int = 1, *, state: int = 0, timestamp: int = 1) -> dict[str, int]:
    return {"stateVersion": state, "timestamp": timestamp, "counter": counter}


def plain_body(
    topics: Mapping[str, dict[str, Any]], version: Mapping[str, int], filter_servers: list[str] | None = None
) -> bytes:
    """The body as 5.x and 4.x brokers write it by default."""
    wrapper = {"topicConfigTable": topics, "dataVersion": version}
    return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": filter_servers or []}).encode()


def old_body(topics: Mapping[str, dict[str, Any]], version: Mapping[str, int]) -> bytes:
    """The body of brokers before 3.0.11: the table alone."""
    return json.dumps({"topicConfigTable": topics, "dataVersion": version}).encode()


def compressed_body(
    topics: Mapping[str, dict[str, Any]],
    version: Mapping[str, int],
    filter_servers: list[str] | None = None,
    mappings: list[dict[str, Any]] | None = None,
) -> bytes:
    """The body that ``compressedRegister`` makes; ``mappings`` None leaves the section of 5.x out."""
    parts = [_text(json.dumps(version)), struct.pack(">i", len(topics))]
    for config in topics.values():
        fields = [config[name] for name in ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")]
        parts.append(_text(" ".join(map(str, [*fields, "{}"]))))
    parts.append(_text(json.dumps(filter_servers or [])))
    if mappings is not None:
        parts.append(struct.pack(">i", len(mappings)))
        parts += [_text(json.dumps(mapping)) for mapping in mappings]
    return zlib.compress(b"".join(parts))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


class FakeBroker(Peer):
    """A broker as a name server sees it: a connection, a header and a table of topics. It serves nothing."""

    def __init__(
        self,
        server: Peer,
        *,
        cluster: str | None = None,
        name: str | None = None,
        broker_id: int = 0,
        at: str | None = None,
    ) -> None:
        super().__init__(server.address, apache=server.apache)
        self.cluster = cluster or unique("cluster")
        self.name = name or unique("broker")
        self.broker_id = broker_id
        self.at = at or unique_address()
        self.ha = self.at.replace("10911", "10912")

    def header(self, body: bytes = b"", **fields: str) -> dict[str, str]:
        return {
            "brokerName": self.name, "brokerAddr": self.at, "clusterName": self.cluster, "haServerAddr": self.ha,
            "brokerId": str(self.broker_id), "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), **fields,
        }  # fmt: skip

    def key(self) -> dict[str, str]:
        """What names this broker in the requests about it."""
        return {
            "brokerName": self.name, "brokerAddr": self.at, "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }  # fmt: skip

    def register(
        self,
        *topics: str | dict[str, Any],
        counter: int = 1,
        state: int = 0,
        filter_servers: list[str] | None = None,
        body: bytes | None = None,
        version: int = Version.V5_5_0,
        **fields: str,
    ) -> RemotingCommand:
        """Register topics, by name or by configuration; 5.x refuses a new broker that brings exactly one."""
        if body is None:
            configs = [topic_config(topic) if isinstance(topic, str) else topic for topic in topics]
            body = plain_body(
                {config["topicName"]: config for config in configs}, data_version(counter, state=state), filter_servers
            )
        return self.ask(103, self.header(body, **fields), body, version=version)

    def registered(self, *topics: str | dict[str, Any], **options: Any) -> FakeBroker:
        """Register successfully; returns the broker."""
        answer = self.register(*topics, **options)
        assert answer.code == 0, answer
        return self

    def unregister(self) -> None:
        assert self.ask(104, self.key()).code == 0


class RawConnection:
    """A socket to a name server, for frames that no client makes."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def wrap(self, context: ssl.SSLContext) -> None:
        """Go on with TLS."""
        self._stream.close()
        self.socket = context.wrap_socket(self.socket, server_hostname=self.socket.getpeername()[0])
        self._stream = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> tuple[dict[str, Any], bytes]:
        """Return header and body of the next answer, which must have a JSON header."""
        length, mark = struct.unpack(">II", self._exactly(8))
        assert mark >> 24 == 0, "a JSON header"
        data = self._exactly(length - 4)
        return json.loads(data[: mark & 0xFFFFFF]), data[mark & 0xFFFFFF :]

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the stream; whatever comes before it is dropped."""
        try:
            while self._stream.read1(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise ConnectionError("the peer closed the connection")
        return data


def json_frame(header: Mapping[str, Any] | bytes, body: bytes = b"") -> bytes:
    """A whole frame with a JSON header."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body
