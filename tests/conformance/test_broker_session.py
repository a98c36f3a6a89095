"""What a broker of 5.5.0 with default settings says to its name server from start to stop (checklist, item 7)."""

from __future__ import annotations

import json
import zlib

from tests.conformance.peer import (
    FakeBroker,
    Peer,
    RawConnection,
    data_version,
    json_frame,
    plain_body,
    topic_config,
    unique,
)


class JavaBroker(RawConnection):
    """The frames as Java writes them: no answer is awaited before the next request goes out."""

    def __init__(self, server: Peer, identity: FakeBroker) -> None:
        super().__init__(server.address)
        self._identity = identity
        self._opaque = 0

    def say(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> int:
        self._opaque += 1
        header = {
            "code": code, "extFields": fields or {}, "flag": 0, "language": "JAVA", "opaque": self._opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 513,
        }  # fmt: skip
        self.send(json_frame(header, body))
        return self._opaque

    def register(self, *topics: str, counter: int) -> int:
        body = plain_body({topic: topic_config(topic) for topic in topics}, data_version(counter))
        fields = {
            **self._identity.header(), "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), "compressed": "false",
            "enableActingMaster": "false",
        }  # fmt: skip
        return self.say(103, fields, body)

    def answers(self, *opaques: int) -> dict[int, bytes]:
        """Read the answers to these requests, in whatever order they come; all must be successes."""
        found: dict[int, bytes] = {}
        while len(found) < len(opaques):
            header, body = self.read_frame()
            assert header["code"] == 0, header
            assert header["flag"] == 1
            found[header["opaque"]] = body
        assert found.keys() == set(opaques)
        return found


def test_a_broker_from_start_to_stop(name_server: Peer) -> None:
    topics = [unique(name) for name in ("TBW102", "SELF_TEST_TOPIC", "orders")]
    with FakeBroker(name_server) as identity, JavaBroker(name_server, identity) as broker:
        broker.answers(broker.register(*topics, counter=1))
        assert all(name_server.has_route(topic) for topic in topics)

        info = broker.say(106)
        again = broker.register(*topics, counter=1)
        bodies = broker.answers(info, again)
        assert identity.name.encode() in bodies[info]

        made = unique("made")
        broker.answers(broker.register(made, counter=2))
        assert name_server.has_route(made), "a topic that was made comes alone"
        assert all(name_server.has_route(topic) for topic in topics)
        answer = name_server.ask(322, identity.key(), json.dumps(data_version(2)).encode())
        assert answer.ext_fields == {"changed": "false"}

        broker.answers(*(broker.register(*topics, made, counter=2) for _ in range(20)))
        broker.answers(broker.say(104, identity.key()))
        name_server.eventually(lambda: not name_server.has_route(made))
    assert name_server.addresses(identity.name) == {}
