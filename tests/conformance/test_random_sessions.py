"""Random sessions, the same with our name server and with Apache's: every answer and what is known after every step.

A failure says the seed and the shortest session, found by leaving steps out, that still ends in two answers.
``ROCKETCORE_NAMESRV_SESSIONS`` says how many are played, ``ROCKETCORE_NAMESRV_SEED`` the first one's seed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.conformance.peer import RawConnection, data_version, json_frame, read_json
from tests.conformance.sessions import (
    BROKERS,
    CLUSTERS,
    KEYS,
    NAMESPACES,
    ORDER,
    SERIAL,
    SETTINGS,
    TOPICS,
    Close,
    Generator,
    Request,
    Step,
)
from tests.conformance.shortening import shortest
from tests.fixtures.apache import require_java
from tests.fixtures.name_servers import NameServers

pytestmark = pytest.mark.interop

SESSIONS = int(os.environ.get("ROCKETCORE_NAMESRV_SESSIONS", "16"))
FIRST_SEED = int(os.environ.get("ROCKETCORE_NAMESRV_SEED", "0"))
STEPS = 40

CHANGING = (100, 102, 103, 104, 205, 216, 217, 318, 327)
"""Requests after which everything is asked for."""
CONTROL = -1
"""The connection of questions that no session asks."""
UNORDERED = ("queueDatas", "brokerDatas", "topicList", "clusterAddrTable")
"""Lists, or objects of lists, in no order that counts."""
THROWN = re.compile(r"[\w.]+(Exception|Error)\b")
"""Begins a remark of Apache's with code 1: what Java threw, where ours says what is wrong."""


ADDRESS = "10.9.0.0:1"


@dataclass(frozen=True)
class Answer:
    """An answer as far as both servers must give the same."""

    code: int | str
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: Any = None


class Server:
    """One of the two, and a session's connections to it."""

    def __init__(self, address: str, *, apache: bool) -> None:
        self.apache = apache
        self._address = address
        self._connections: dict[int, RawConnection] = {}
        self._opaques = itertools.count(1)

    def send(self, requests: Sequence[Request], serial: str) -> dict[int, Request]:
        """Send requests over the connection of the first; return them by opaque."""
        number = requests[0].connection
        if number not in self._connections:
            self._connections[number] = RawConnection(self._address)
        sent = {}
        frames = []
        for request in requests:
            header, body = request.played_as(serial)
            opaque = next(self._opaques)
            frames.append(json_frame({**header, "opaque": opaque}, body))
            sent[opaque] = request
        self._connections[number].send(b"".join(frames))
        return sent

    def read(self, sent: dict[int, Request]) -> list[Answer]:
        """Return the answers in the order of the requests, whichever comes first."""
        connection = self._connections[next(iter(sent.values())).connection]
        answers: dict[int, Answer] = {}
        try:
            while len(answers) < len(sent):
                header, body = connection.read_frame()
                opaque = header["opaque"]
                answers[opaque] = _answer(sent[opaque], header, body)
        except (ConnectionError, TimeoutError) as error:
            self.close(next(iter(sent.values())).connection)
            return [answers.get(opaque, Answer(type(error).__name__)) for opaque in sent]
        return [answers[opaque] for opaque in sent]

    def ask(self, requests: Sequence[Request], serial: str) -> list[Answer]:
        return self.read(self.send(requests, serial))

    def close(self, connection: int) -> bool:
        """Return whether it was open."""
        opened = self._connections.pop(connection, None)
        if opened is not None:
            opened.__exit__()
        return opened is not None

    def end(self) -> None:
        for connection in list(self._connections):
            self.close(connection)

    def settle(self) -> None:
        """Wait until the unregistrations that were answered are done, in order: Apache queues them.

        One that fails takes those with it that were queued behind it.
        """
        if not self.apache:
            return
        key = _broker("settling", "settling", "10.9.9.9:1")
        self.ask([_control(103, key)], SERIAL)
        self.ask([_control(104, key)], SERIAL)
        deadline = time.monotonic() + 10
        while self.ask([_control(901, key)], SERIAL)[0].body["brokerMemberGroup"]["brokerAddrs"]:
            assert time.monotonic() < deadline
            self.ask([_control(104, key)], SERIAL)
        self.ask([_control(105, {"topic": "settling"})], SERIAL)


def _answer(request: Request, header: dict[str, Any], body: bytes) -> Answer:
    return Answer(
        header["code"], header.get("remark"), header.get("extFields"), _body_of(request, header["code"], body)
    )


def _is_held(answer: Answer) -> bool:
    """Tell whether ours says of a registration that its id is held; Apache ignores it and answers 0."""
    return answer.code == 1 and (answer.remark or "").endswith("with a later state version")


def _names_no_address(fields: dict[str, str]) -> bool:
    """Tell whether ours refuses a registration because clients could not be sent to its addresses."""
    addresses = [fields.get("brokerAddr", ADDRESS), fields.get("haServerAddr") or ADDRESS]
    return any(re.fullmatch(r"[\w.]+:\d+", address) is None for address in addresses)


def _body_of(request: Request, code: int, body: bytes) -> Any:
    if not body:
        return None
    if request.code == 319 and code == 0:
        settings = dict(line.split("=", 1) for line in body.decode().splitlines())
        return {name: settings.get(name) for name in SETTINGS}
    try:
        found = read_json(body)
    except ValueError:
        return body
    return {name: _ordered(each) if name in UNORDERED else each for name, each in found.items()}


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(each) for name, each in value.items()}
    return sorted(value, key=lambda each: json.dumps(each, sort_keys=True))


@dataclass
class Difference:
    """What two servers answered to the same request, after these steps."""

    steps: list[Step]
    request: Request
    ours: Answer
    apaches: Answer

    def __str__(self) -> str:
        lines = [
            f"{number:3} {', '.join(map(str, step)) if isinstance(step, tuple) else step}"
            for number, step in enumerate(self.steps)
        ]
        return "\n".join([*lines, f"asked   {self.request}", f"ours    {self.ours}", f"apache  {self.apaches}"])


@dataclass
class Known:
    """What ours says is registered, and what the session did that neither server shows.

    keys      (cluster, address) that was registered
    holders   (cluster, address) → the connection of its last registration
    departed  names that left: ours forgot their queue mappings, Apache keeps them
    torn      topics that are not the same kind of unit on all brokers, so that 311 to 313 may say either
    """

    clusters: dict[str, list[str]] = field(default_factory=dict)
    brokers: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[tuple[str, str], None] = field(default_factory=dict)
    holders: dict[tuple[str, str], int] = field(default_factory=dict)
    departed: set[str] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)

    def learn(self, info: dict[str, Any]) -> None:
        self.departed |= self.brokers.keys() - info["brokerAddrTable"].keys()
        self.clusters, self.brokers = info["clusterAddrTable"], info["brokerAddrTable"]

    def learn_flags(self, topic: str, queue_datas: list[dict[str, Any]]) -> None:
        if len({queues["topicSysFlag"] for queues in queue_datas}) > 1:
            self.torn.add(topic)
        else:
            self.torn.discard(topic)

    def learn_key(self, fields: Mapping[str, str], connection: int) -> None:
        if fields.keys() >= {"clusterName", "brokerAddr"}:
            key = fields["clusterName"], fields["brokerAddr"]
            self.keys[key] = None
            self.holders[key] = connection

    def addresses(self) -> set[str]:
        return {address for data in self.brokers.values() for address in data["brokerAddrs"].values()}

    def is_elsewhere(self, cluster: str, address: str) -> bool:
        """Whether something else than one broker of this cluster, and of no other, is at an address, or nothing is."""
        names = [name for name, data in self.brokers.items() if address in data["brokerAddrs"].values()]
        if len(names) != 1 or self.brokers[names[0]]["cluster"] != cluster:
            return True
        return self.leaves_clusters([{"brokerName": names[0], "brokerAddr": address, "clusterName": cluster}])

    def leaves_clusters(self, gone: Sequence[Mapping[str, str]]) -> bool:
        """Whether a name loses its last address, and is in another cluster than the one that is said."""
        for name, data in self.brokers.items():
            gone_here = [fields for fields in gone if fields.get("brokerName") == name]
            left = set(data["brokerAddrs"].values()) - {fields.get("brokerAddr") for fields in gone_here}
            clusters = {cluster for cluster, names in self.clusters.items() if name in names}
            if gone_here and not left and {fields.get("clusterName") for fields in gone_here} != clusters:
                return True
        return False


class Play:
    """One play of a session against both servers."""

    def __init__(self, ours: Server, apache: Server, serial: str) -> None:
        self._servers = (ours, apache)
        self._serial = serial
        self._known = Known()
        self._played: list[Step] = []

    def run(self, steps: Sequence[Step]) -> Difference | None:
        """Return the first difference; leave nothing behind."""
        try:
            for step in steps:
                if not self._differs_anyway(step):
                    self._played.append(step)
                    found = self._play(step)
                    if found is None and _changes(step):
                        found = self._compare(self._sweep())
                    if found is not None:
                        return found
            return self._compare(self._last_questions())
        finally:
            self._clean()

    def _play(self, step: Step) -> Difference | None:
        if isinstance(step, Close):
            self._close(step.connection)
            return None
        found = self._compare(step)
        if any(request.code == 104 for request in step):
            self._settle()
        return found

    def _compare(self, requests: Sequence[Request]) -> Difference | None:
        sent = [(server, server.send(requests, self._serial)) for server in self._servers]
        all_ours, all_apaches = (server.read(questions) for server, questions in sent)
        for request, ours, apaches in zip(requests, all_ours, all_apaches, strict=True):
            if not self._same(request, ours, apaches):
                return Difference(self._played, request, ours, apaches)
            self._note(request, ours)
        return None

    def _same(self, request: Request, ours: Answer, apaches: Answer) -> bool:
        if ours.code == apaches.code == 1 and THROWN.match(apaches.remark or ""):
            return bool(ours.remark)
        if _is_held(ours):
            return request.code == 103 and apaches.code == 0 and not apaches.fields
        return self._comparable(request.code, ours) == self._comparable(request.code, apaches)

    def _comparable(self, code: int, answer: Answer) -> Answer:
        """Leave out what docs/compatibility.md says of answers that is different, or by chance."""
        if code == 103 and (answer.remark or "").endswith("took its place"):
            answer = replace(answer, remark=None)
        if answer.code != 0 or not isinstance(answer.body, dict):
            return answer
        body = dict(answer.body)
        if code == 105:
            mappings = body.pop("topicQueueMappingByBroker", {})
            body["mappings"] = {name: each for name, each in mappings.items() if name not in self._known.departed}
            at = {
                (data["cluster"], address) for data in body["brokerDatas"] for address in data["brokerAddrs"].values()
            }
            clusters = Counter(address for _, address in at)
            filters = body["filterServerTable"]
            body["filterServerTable"] = {address: each for address, each in filters.items() if clusters[address] == 1}
        elif code == 304 and "brokerAddr" in body:
            body["brokerAddr"] = body["brokerAddr"] in self._known.addresses()
        elif code in (311, 312, 313):
            sure = {topic.replace(SERIAL, self._serial) for topic in TOPICS} - self._known.torn
            body["topicList"] = [topic for topic in body["topicList"] if topic in sure]
        return replace(answer, body=body)

    def _note(self, request: Request, ours: Answer) -> None:
        """Learn from an answer that is the same."""
        if ours.code != 0 and not _is_held(ours):
            return
        if request.code == 106:
            self._known.learn(ours.body)
        elif request.code == 105 and request.connection == CONTROL:
            self._known.learn_flags(self._fields(request)["topic"], ours.body["queueDatas"])
        elif request.code == 103:
            self._known.learn_key(self._fields(request), request.connection)

    def _fields(self, request: Request) -> dict[str, str]:
        return request.played_as(self._serial)[0].get("extFields") or {}

    def _close(self, connection: int) -> None:
        open_ones = [server for server in self._servers if server.close(connection)]
        keys = [key for key, holder in self._known.holders.items() if holder == connection]
        for server in open_ones:
            for cluster, address in keys:
                question = _control(322, {"clusterName": cluster, "brokerAddr": address}, b"{}")
                deadline = time.monotonic() + 10
                while server.ask([question], self._serial)[0].body is not None and time.monotonic() < deadline:
                    pass
        for key in keys:
            del self._known.holders[key]
        self._settle()

    def _settle(self) -> None:
        for server in self._servers:
            server.settle()

    def _differs_anyway(self, step: Step) -> bool:
        """Whether docs/compatibility.md says of this step, now, that the servers do different things.

        They leave different tables behind, from where no answer could be compared.
        """
        if isinstance(step, Close):
            keys = [key for key, holder in self._known.holders.items() if holder == step.connection]
            if len(keys) > 1:
                return True
            return any(self._known.is_elsewhere(*key) for key in keys)
        if any(_names_no_address(self._fields(request)) for request in step if request.code == 103):
            return True
        return self._known.leaves_clusters([self._fields(request) for request in step if request.code == 104])

    def _sweep(self) -> list[Request]:
        """Questions about everything that a step can change."""
        keys = [{"clusterName": cluster, "brokerAddr": address} for cluster, address in self._known.keys]
        version = json.dumps(data_version()).encode()
        return [
            _control(106),
            *(_control(105, {"topic": topic}) for topic in TOPICS),
            _control(206),
            *(_control(322, key, version) for key in keys),
        ]

    def _last_questions(self) -> list[Request]:
        return [
            *(_control(224, {"cluster": cluster}) for cluster in CLUSTERS),
            *(_control(901, {"clusterName": CLUSTERS[0], "brokerName": name}) for name in BROKERS),
            *(_control(code) for code in (304, 311, 312, 313, 319)),
            *(_control(219, {"namespace": namespace}) for namespace in NAMESPACES),
        ]

    def _clean(self) -> None:
        text = "".join(f"{name}={value}\n" for name, value in SETTINGS.items()).encode()
        pairs = [{"namespace": namespace, "key": key} for namespace in NAMESPACES for key in KEYS]
        for server in self._servers:
            server.end()
            server.ask([_control(318, None, text), *(_control(102, pair) for pair in pairs)], self._serial)
            self._unregister_all(server)
            for topic in server.ask([_control(206)], SERIAL)[0].body["topicList"]:
                server.ask([_control(216, {"topic": topic})], SERIAL)
            left = server.ask([_control(106)], SERIAL)[0].body
            assert left == {"brokerAddrTable": {}, "clusterAddrTable": {}}, left

    def _unregister_all(self, server: Server) -> None:
        """Each broker, then each name from each cluster: Apache's names leave the cluster that is said, and no other.

        And what was registered where nobody shows it: the address of one that took another's.
        """
        info = server.ask([_control(106)], SERIAL)[0].body
        names = [(cluster, name) for cluster, all_names in info["clusterAddrTable"].items() for name in all_names]
        addresses = {name: list(data["brokerAddrs"].values()) for name, data in info["brokerAddrTable"].items()}
        for cluster, name in names:
            last = _broker(cluster, name, "10.9.8.8:1")
            if addresses.get(name):
                gone = [_broker(cluster, name, address) for address in addresses[name]]
                server.ask([_control(104, key) for key in gone], SERIAL)
                server.settle()
            server.ask([_control(103, last)], SERIAL)
            server.ask([_control(104, last)], SERIAL)
            server.settle()
        if self._known.keys:
            server.ask([_control(104, _broker(cluster, "", at)) for cluster, at in self._known.keys], SERIAL)
            server.settle()


def _changes(step: Step) -> bool:
    return isinstance(step, Close) or any(request.code in CHANGING for request in step)


def _control(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Request:
    return Request(code, fields, body, CONTROL)


def _broker(cluster: str, name: str, address: str) -> dict[str, str]:
    return {"clusterName": cluster, "brokerName": name, "brokerAddr": address, "brokerId": "0"}


class Players:
    """Both servers, and a number for each play."""

    def __init__(self, ours: Server, apache: Server) -> None:
        self._ours, self._apache = ours, apache
        self._serials = itertools.count(1)
        for server in (ours, apache):
            entry = {"namespace": ORDER, "key": "k", "value": "v"}
            server.ask([_control(100, entry)], SERIAL)
            server.ask([_control(102, entry)], SERIAL)

    def play(self, steps: Sequence[Step]) -> Difference | None:
        return Play(self._ours, self._apache, f"{next(self._serials):06}").run(steps)


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Players]:
    """Servers of their own: what all topics are, and what a setting is, is compared as well."""
    require_java()
    makes = [NameServers(tmp_path_factory.mktemp("sessions"), apache=apache) for apache in (False, True)]
    try:
        ours, apache = (Server(make.start().address, apache=make.apache) for make in makes)
        yield Players(ours, apache)
        ours.end()
        apache.end()
    finally:
        for make in makes:
            make.end()


def test_random_sessions(players: Players) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SESSIONS):
        difference = players.play(Generator(seed).steps(STEPS))
        if difference is not None:
            pytest.fail(f"seed {seed}\n{shortest(difference, players.play)}", pytrace=False)
