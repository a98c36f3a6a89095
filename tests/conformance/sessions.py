"""Random sessions with a name server: what is asked, over which connection, from a seed.

Names are drawn from small alphabets, so that brokers meet at addresses, ids and topics. They end in ``SERIAL``, which
whoever plays a session puts a number in place of: no session finds what another left.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from rocketcore.codes import Version
from tests.conformance.peer import compressed_body, data_version, old_body, plain_body, topic_config

SERIAL = "000000"
"""As long as what takes its place: bodies say the lengths of their parts."""

CLUSTERS = [f"{name}.{SERIAL}" for name in ("east", "west")]
BROKERS = [f"{name}.{SERIAL}" for name in ("alpha", "beta", "gamma")]
ADDRESSES = {name: [f"10.9.{number}.{port}:10911" for port in range(3)] for number, name in enumerate(BROKERS)}
TOPICS = [
    f"{name}.{SERIAL}" for name in ("plain", "ordered", "%RETRY%group", "TBW102", "rmq_sys_SYNC_BROKER_MEMBER_x", "ünï")
]
ORDER = "ORDER_TOPIC_CONFIG"
NAMESPACES = [f"settings.{SERIAL}", ORDER]
KEYS = [*TOPICS[1:3], f"key.{SERIAL}"]
ZONES = ["North", "south"]
CONNECTIONS = sum(map(len, ADDRESSES.values()))
"""A connection for each address, as brokers have; some registrations come over another's."""

CALLERS = [Version.V3_4_9, Version.V4_9_3, Version.V4_9_7, Version.V5_0_0, Version.V5_5_0]
TABLE_ALONE = Version.V3_0_11 - 1
"""A sender whose body is the table of topics alone."""
SETTINGS = {
    "orderMessageEnable": "false", "returnOrderTopicConfigToBroker": "true", "supportActingMaster": "false",
    "enableTopicList": "true", "enableAllTopicList": "true", "deleteTopicWithBrokerRegistration": "false",
    "waitSecondsForService": "45",
}  # fmt: skip
"""What sessions change, as it is at first. Of notices to brokers there is a test in ``test_liveness``."""


@dataclass(frozen=True)
class Request:
    """A request before its names are made unique.

    compress  the body is to be deflated
    checked   the body's checksum is to be said
    """

    code: int
    fields: Mapping[str, str] | None
    body: bytes = b""
    connection: int = 0
    version: int = Version.V5_5_0
    compress: bool = False
    checked: bool = False

    def __str__(self) -> str:
        how = [f"over {self.connection}, version {self.version}"]
        how += ["compressed"] if self.compress else []
        how += ["with its checksum"] if self.checked else []
        return f"{self.code} {self.fields} {self.body.decode(errors='backslashreplace')!r} {', '.join(how)}"

    def played_as(self, serial: str) -> tuple[dict[str, Any], bytes]:
        """Return the header, without its opaque, and the body."""
        body = self.body.replace(SERIAL.encode(), serial.encode())
        body = zlib.compress(body) if self.compress else body
        header: dict[str, Any] = {"code": self.code, "language": "JAVA", "version": int(self.version), "flag": 0}
        if self.fields is not None:
            header["extFields"] = {name: value.replace(SERIAL, serial) for name, value in self.fields.items()}
            if self.checked:
                header["extFields"]["bodyCrc32"] = str(zlib.crc32(body) & 0x7FFFFFFF)
        return header, body


@dataclass(frozen=True)
class Close:
    """The end of a connection; the next request over it comes over a new one."""

    connection: int


Step = Close | tuple[Request, ...]
"""Requests in one step are sent before any answer is read."""


class Generator:
    """Makes the steps of one session; how often it does what is drawn once for the session."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._roams = self._random.choice([0.0, 0.0, 0.1])
        self._meets = self._random.choice([0.0, 0.0, 0.1])
        self._damages = self._random.choice([0.0, 0.05, 0.2])
        self._compresses = self._random.choice([0.0, 0.2, 0.8])
        self._acting = self._random.choice([[None], [None, "true", "false"], ["true"], [None, "true"]])
        self._zones = self._random.choice([[None], [None, *ZONES, ""]])
        self._names = self._random.sample(BROKERS, self._random.choice([1, 2, 3]))
        self._registered: list[Request] = []
        self._home = {name: self._random.choice(CLUSTERS) for name in BROKERS}

    def steps(self, count: int) -> list[Step]:
        makers: dict[Callable[[], Step], int] = {
            self._register: 50, self._unregister: 8, self._unregister_many: 2, self._close: 4, self._heartbeat: 2,
            self._data_version: 4, self._permissions: 6, self._delete_topic: 4, self._register_topic: 5,
            self._key_value: 10, self._settings: 3, self._route: 8, self._query: 8, self._unknown: 1,
        }  # fmt: skip
        chosen = self._random.choices(list(makers), list(makers.values()), k=count)
        return [self._damaged(maker()) for maker in chosen]

    def _often(self, chance: float) -> bool:
        return self._random.random() < chance

    def _key(self) -> dict[str, str]:
        """What names a broker in the requests about it."""
        name = self._random.choice(self._names)
        at = self._random.choice(self._names) if self._often(self._meets) else name
        return {
            "brokerName": name, "brokerAddr": self._random.choice(ADDRESSES[at]),
            "clusterName": self._random.choice(CLUSTERS) if self._often(self._roams) else self._home[name],
            "brokerId": self._random.choice("000112"),
        }  # fmt: skip

    def _connection_of(self, key: Mapping[str, str]) -> int:
        if self._often(0.05):
            return self._random.randrange(CONNECTIONS)
        return [address for addresses in ADDRESSES.values() for address in addresses].index(key["brokerAddr"])

    def _version_of_data(self) -> dict[str, int]:
        draw = self._random.choice
        return data_version(draw([1, 1, 2, 3]), state=draw([0, 0, 0, 1]), timestamp=draw([1, 1, 2]))

    def _topic_table(self) -> dict[str, dict[str, Any]]:
        draw = self._random.choice
        names = self._random.sample(TOPICS, draw([0, 1, 2, 2, 3, 4, 6]))
        return {
            name: topic_config(name, queues=draw([1, 4, 8]), perm=draw([6, 6, 6, 4, 2, 0, 7]), sys_flag=draw(range(4)))
            for name in names
        }

    def _mappings(self, name: str, topics: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not self._often(0.2):
            return []
        return [
            {
                "topic": topic, "scope": "__global__", "totalQueues": self._random.choice([4, 8]), "bname": name,
                "epoch": self._random.choice([1, 2]), "dirty": False, "currIdMap": {"0": 0, "3": 1},
            }
            for topic in topics
        ]  # fmt: skip

    def _register(self) -> Step:
        """A registration, or one from before: nearly all of a broker's are the same bytes."""
        if self._registered and self._often(0.5):
            return (self._random.choice(self._registered[-4:]),)
        self._registered.append(self._registration())
        return (self._registered[-1],)

    def _registration(self) -> Request:
        key = self._key()
        fields = {**key, "haServerAddr": key["brokerAddr"].replace("10911", "10912")}
        for name, values in (
            ("enableActingMaster", self._acting), ("__ZONE_NAME", self._zones),
            ("heartbeatTimeoutMillis", [None, "60000", "90000"]),
        ):  # fmt: skip
            value = self._random.choice(values)  # type: ignore[arg-type]
            if value is not None:
                fields[name] = value
        if self._often(0.05):
            del fields["haServerAddr"]
        topics, version = self._topic_table(), self._version_of_data()
        mappings = self._mappings(key["brokerName"], topics)
        filters = self._random.choice([[], [], ["10.8.0.1:1"], ["10.8.0.1:1", "10.8.0.2:1"]])
        sender: int = self._random.choice(CALLERS)
        compress = False
        if self._often(0.05):
            body, sender = b"", self._random.choice([sender, TABLE_ALONE])
        elif self._often(0.05):
            body, sender = old_body(topics, version), TABLE_ALONE
        elif self._often(self._compresses):
            compress = True
            fields["compressed"] = self._random.choice(["true", "true", "TRUE"])
            body = zlib.decompress(
                compressed_body(topics, version, filters, mappings if sender >= Version.V5_0_0 else None)
            )
        else:
            document = json.loads(plain_body(topics, version, filters))
            if mappings:
                table = {mapping["topic"]: mapping for mapping in mappings}
                document["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = table
            if self._often(0.1):
                document["filterServerList"] = None
            body = json.dumps(document, ensure_ascii=self._often(0.5)).encode()
        checked = self._often(0.7)
        if self._often(0.02):
            fields["bodyCrc32"], checked = "1", False
        connection = self._connection_of(key)
        return Request(103, fields, body, connection, sender, compress and bool(body), checked)

    def _unregistration(self) -> Request:
        key = self._key()
        return Request(104, key, connection=self._connection_of(key))

    def _unregister(self) -> Step:
        return (self._unregistration(),)

    def _unregister_many(self) -> Step:
        connection = self._random.randrange(CONNECTIONS)
        return tuple(replace(self._unregistration(), connection=connection) for _ in range(self._random.choice([2, 3])))

    def _close(self) -> Step:
        return Close(self._random.randrange(CONNECTIONS))

    def _heartbeat(self) -> Step:
        key = self._key()
        return (Request(904, {**key, "epoch": "1", "heartbeatTimeoutMills": "60000"}, b"", self._connection_of(key)),)

    def _data_version(self) -> Step:
        body = json.dumps(self._version_of_data()).encode() if self._often(0.9) else b""
        key = self._key()
        return (Request(322, key, body, self._connection_of(key)),)

    def _any(self, code: int, fields: Mapping[str, str] | None, body: bytes = b"") -> Step:
        """A request of a tool, over whatever connection."""
        return (Request(code, fields, body, self._random.randrange(CONNECTIONS), self._random.choice(CALLERS)),)

    def _permissions(self) -> Step:
        return self._any(self._random.choice([205, 327]), {"brokerName": self._random.choice(self._names)})

    def _delete_topic(self) -> Step:
        fields = {"topic": self._random.choice(TOPICS)}
        cluster = self._random.choice([None, "", *CLUSTERS])
        return self._any(216, fields if cluster is None else {**fields, "clusterName": cluster})

    def _register_topic(self) -> Step:
        draw = self._random.choice
        queues = [
            {
                "brokerName": name, "readQueueNums": draw([2, 3]), "writeQueueNums": draw([2, 3]),
                "perm": draw([6, 4]), "topicSysFlag": draw(range(4)),
            }
            for name in self._random.sample(BROKERS, draw([0, 1, 1, 2, 3]))
        ]  # fmt: skip
        body = json.dumps({"queueDatas": queues, "brokerDatas": []}).encode() if self._often(0.95) else b""
        return self._any(217, {"topic": draw(TOPICS)}, body)

    def _key_value(self) -> Step:
        draw = self._random.choice
        code = draw([100, 100, 101, 102, 219])
        fields = {"namespace": draw(NAMESPACES)}
        if code != 219:
            fields["key"] = draw(KEYS)
        if code == 100:
            fields["value"] = draw(["", "alpha:4;beta:4", "ü", "1"])
        return self._any(code, fields)

    def _settings(self) -> Step:
        names = self._random.sample(sorted(SETTINGS), self._random.choice([1, 1, 2]))
        texts = [f"{name}={self._random.choice(['true', 'true', 'false', 'x', ''])}\n" for name in names]
        return self._any(318, None, "".join(texts).encode())

    def _route(self) -> Step:
        fields = {"topic": self._random.choice(TOPICS)}
        for name, values in (
            ("acceptStandardJsonOnly", [None, "true", "false"]), ("__ZONE_MODE", [None, "true", "True", "false"]),
            ("__ZONE_NAME", [None, "north", "South", "", " "]),
        ):  # fmt: skip
            value = self._random.choice(values)
            if value is not None:
                fields[name] = value
        return self._any(105, fields)

    def _query(self) -> Step:
        code = self._random.choice([106, 206, 224, 304, 311, 312, 313, 319, 901])
        key = self._key()
        if code == 224:
            return self._any(code, {"cluster": key["clusterName"]})
        if code == 901:
            return self._any(code, {name: key[name] for name in ("clusterName", "brokerName")})
        return self._any(code, self._random.choice([None, {}]))

    def _unknown(self) -> Step:
        return self._any(self._random.choice([0, 10, 107, 905, -1]), {"topic": self._random.choice(TOPICS)})

    # Damage

    def _damaged(self, step: Step) -> Step:
        if isinstance(step, Close) or len(step) > 1 or not self._often(self._damages):
            return step
        request = step[0]
        if "bodyCrc32" in (request.fields or {}):
            return step  # Of two things that are wrong either may be named.
        damaged = (
            self._with_other_body(request) if request.body and self._often(0.4) else self._with_other_fields(request)
        )
        return step if _differs_anyway(damaged) else (damaged,)

    def _with_other_body(self, request: Request) -> Request:
        cut = request.body[: self._random.randrange(len(request.body))]
        other = self._random.choice([b"[]", b"7", b'"x"', b"{", b"\x00\xff"])
        return replace(request, body=cut if self._often(0.5) else other, checked=False)

    def _with_other_fields(self, request: Request) -> Request:
        fields = dict(request.fields or {})
        if not fields or self._often(0.05):
            return replace(request, fields=self._random.choice([None, {}]))
        name = self._random.choice(sorted(fields))
        if self._often(0.5):
            del fields[name]
        else:
            fields[name] = self._random.choice(["", " ", "x", "-1", "3", "true", "1.5", "+1", " 1", "1_0", "9" * 20])
        return replace(request, fields=fields)


def _differs_anyway(request: Request) -> bool:
    """Whether docs/compatibility.md says that the servers do different things."""
    fields = request.fields or {}
    if request.code == 100:
        return "value" not in fields
    if request.code == 103:
        declared = fields.get("compressed", "").lower() == "true"
        return "brokerName" not in fields or "brokerAddr" not in fields or (request.compress and not declared)
    if request.code == 104:
        return "brokerName" not in fields or re.fullmatch(r"[+-]?\d{1,18}", fields.get("brokerId", "")) is None
    return False
