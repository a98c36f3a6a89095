"""Files read at start: damage never stops it, and what is read is written and read again as the same.

input  u8: which file · its content
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from struct import pack

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.subscription_group import SubscriptionGroups
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.broker.store.notes.queue_bounds import MAGIC, QueueBounds, pack_rows
from rocketcore.client.offset_store import load_offsets
from rocketcore.config_file import config_properties, load_config, parse_properties, read_properties, write_properties
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.kv_config import KVConfigManager
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.bodies.group import SubscriptionGroupWrapper
from rocketcore.protocol.bodies.stats import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from rocketcore.protocol.bodies.topic import TopicConfigSerializeWrapper as Topics
from rocketcore.service import ManualClock
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, scratch

FOLDER = scratch()


def run(data: bytes) -> None:
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def key_values(data: bytes) -> None:
    file = FOLDER / "kv.json"
    file.write_bytes(data)
    kv = KVConfigManager(file)
    kv.load()
    namespace = kv.namespace("n")
    kv.put("n", "k", "v")
    again = KVConfigManager(file)
    again.load()
    assert again.namespace("n") == {**(namespace or {}), "k": "v"}
    (FOLDER / "kv.json.bak").unlink(missing_ok=True)


def properties(data: bytes) -> None:
    file = FOLDER / "a.properties"
    file.write_bytes(data)
    settings(file)


def toml(data: bytes) -> None:
    file = FOLDER / "a.toml"
    file.write_bytes(data)
    try:
        tomllib.loads(data.decode())
    except RecursionError:
        return  # of the standard library, on hundreds of brackets in a file of the operator's own
    except ValueError:
        pass
    settings(file)


def settings(file: Path) -> None:
    try:
        found = read_properties(file)
    except ConfigError:
        return
    assert all(isinstance(value, str) for value in found.values())
    for kind in (NameServerConfig, BrokerConfig):
        try:
            config = load_config(kind, found)
        except ConfigError:
            continue
        shown = config_properties(config, reveal=True)
        assert config_properties(load_config(kind, shown), reveal=True) == shown
    if not any(0xD800 <= ord(c) < 0xE000 for pair in found.items() for text in pair for c in text):
        write_properties(file, found)
        assert read_properties(file) == found


def text_of_properties(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_properties(data.decode(errors="surrogateescape"))


def checkpoint(data: bytes) -> None:
    file = FOLDER / "checkpoint"
    file.write_bytes(data)
    found = Checkpoint.read(file, FileSystem())
    if len(data) >= 40:
        assert found.encode()[:40] == data[:40]


def queue_bounds(data: bytes) -> None:
    import zlib

    file = FOLDER / "queuebounds"
    for content in (data, MAGIC + pack(">II", len(data), zlib.crc32(data, zlib.crc32(MAGIC))) + data):
        file.write_bytes(content)
        found = QueueBounds.read(file, FileSystem())
        if found is not None:
            found.write(file, FileSystem())
            assert QueueBounds.read(file, FileSystem()) == replace(found, is_cut=False)


def consumer_offsets(data: bytes) -> None:
    file = FOLDER / "offsets.json"
    file.write_bytes(data)
    for queue, offset in (load_offsets(file) or {}).items():
        assert isinstance(queue, MessageQueue)
        assert isinstance(offset, int)


def state(kind: type[Body]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        file = JsonFile(FOLDER / "state.json")
        file.path.write_bytes(data)
        found = file.load(kind.from_json)
        # What has no value that we know is not written, and read as the default: the second text stays as it is.
        texts: list[bytes] = []
        for _ in range(2):
            if found is None:
                assert not texts
                return
            texts.append(found.encode())
            file.save(texts[-1])
            file = JsonFile(file.path)
            found = file.load(kind.from_json)
        assert found is not None
        assert found.encode() == texts[-1]
        file.backup.unlink(missing_ok=True)

    return read


def table(make: Callable[[JsonFile], TopicConfigs | SubscriptionGroups | ConsumerOffsets]) -> Callable[[bytes], None]:
    """Read as a broker does, which adds what every broker has; what it writes it reads as the same."""

    def read(data: bytes) -> None:
        file = JsonFile(FOLDER / "table.json")
        file.path.write_bytes(data)
        texts: list[bytes] = []
        for _ in range(3):
            loaded = make(JsonFile(file.path))
            loaded.load()
            texts.append(loaded.encode())
            file.save(texts[-1])
        assert texts[1] == texts[2]
        file.backup.unlink(missing_ok=True)

    return read


def topics(file: JsonFile) -> TopicConfigs:
    return TopicConfigs(BrokerConfig(broker_name="b"), file, lambda changed: None, clock=ManualClock())


def groups(file: JsonFile) -> SubscriptionGroups:
    return SubscriptionGroups(file, lambda: None, auto_create=lambda: False, clock=ManualClock())


READERS = (
    key_values, properties, toml, text_of_properties, checkpoint, queue_bounds, state(Topics),
    state(SubscriptionGroupWrapper), state(ConsumerOffsetSerializeWrapper), consumer_offsets, table(topics),
    table(groups), table(lambda file: ConsumerOffsets(file, ManualClock())), state(DelayOffsetSerializeWrapper),
)  # fmt: skip


def seeds() -> Iterable[bytes]:
    yield b"\x00" + b'{"configTable":{"n":{"k":"v"},"ORDER_TOPIC_CONFIG":{"T":"b:4"}}}'
    text = (
        b"# comment\nlistenPort=9876\nbrokerName = b\\u00e9\nnamesrvAddr:a;\\\n  b\n! x\n\tkey\\ with\\=  v\\tw\r\n\\"
    )
    yield b"\x01" + text
    yield b"\x03" + text
    yield b'\x02listenPort = 9876\nbrokerName = "b"\nflushDiskType = "ASYNC_FLUSH"\n[table]\na = 1\n'
    yield b"\x02a = [1, 2.5, true]\nb = 1979-05-27T07:32:00Z\nc = '''x\ny'''\n"
    for record in vectors("layouts.jsonl"):
        if record["name"].startswith("checkpoint/"):
            yield b"\x04" + bytes.fromhex(record["hex"])[:64]
    file = FOLDER / "queuebounds"
    rows = {"T": pack_rows({0: (1, 2)})}
    bounds = QueueBounds(confirm_offset=9, store_timestamp=8, rows=rows, deleted_before={"D": 7})
    bounds.add(file, bounds.write(file, FileSystem()), FileSystem())
    yield b"\x05" + file.read_bytes()
    yield b"\x05" + file.read_bytes()[len(MAGIC) + 8 :]
    yield b'\x09{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:77,"{\\"topic\\":\\"T\\"}":"5"}}'
    kinds = (Topics, SubscriptionGroupWrapper, ConsumerOffsetSerializeWrapper)
    for index, kind in (
        (6, kinds[0]),
        (7, kinds[1]),
        (8, kinds[2]),
        *enumerate(kinds, 10),
        (13, DelayOffsetSerializeWrapper),
    ):
        yield bytes([index]) + kind().encode()
        for record in vectors("bodies.jsonl"):
            if record["class"] == kind.__name__ and isinstance(record.get("expected"), str):
                yield bytes([index]) + record["expected"].encode()[:2000]


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'"configTable":{', b'"confirm":', b'"time":', b'"queues":{', b'"deleted":{', b',"crc32":0}', b"\\u0041",
        b"\\\n", b"listenPort=", b"brokerId=", b"flushDiskType=", b"\x85", b"\xe2\x80\xa8", b"'''", b'"""', b"[[a]]",
        b"null", b"1e5", b"{{", b"\xff", b"\x0c",
    ),
)  # fmt: skip
