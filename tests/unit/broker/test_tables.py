"""Every table that clients can make grow has a bound, and the page says so."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state import client_table, consumer_offset, queue_locks, subscription_group, topic_config
from rocketcore.broker.state.client_table import ProducerTable
from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.queue_locks import QueueLocks
from rocketcore.broker.state.subscription_group import SubscriptionGroups
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.store import StoreConfig
from rocketcore.errors import BrokerError, BrokerSystemError, InvalidParameter
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
CONNECTIONS, HELD, TOPICS, GROUPS, LOG = "serverMaxConnections", "what waits", "topics", "groups", "the log"
TURN = "one turn of the loop, or what came since it ended"
FIXED = "written in the source, or a setting"
BOUNDS = {
    "broker:Broker._listeners": FIXED,
    "processors.absent:AbsentProcessor._thresholds": "_MOST_GROUPS",
    "processors.acknowledge:Acknowledger._pending_bytes": CONNECTIONS,
    "processors.admin:AdminProcessor._shown": FIXED,
    "processors.pull:PullProcessor._decided": "_DECIDED_MAX",
    "processors.reply:ReplyProcessor._owed": CONNECTIONS,
    "processors.reply:ReplyProcessor._under_way": CONNECTIONS,
    "processors.send:SendProcessor._targets": TOPICS,
    "later.delay:DelayService._delivered": "_MOST deliveries of a level under way",
    "later.delay:DelayService._levels": FIXED,
    "later.delay:DelayService._saved": FIXED,
    "later.delivery:InFlight._groups": "_MOST deliveries under way",
    "waiting.long_poll:LongPoll._by_channel": CONNECTIONS,
    "waiting.long_poll:LongPoll._due": HELD,
    "waiting.long_poll:LongPoll._held": "pullThreadPoolQueueCapacity, PER_QUEUE of a queue",
    "waiting.long_poll:LongPoll._passed_by": TURN,
    "waiting.long_poll:LongPoll._ready": HELD,
    "waiting.long_poll:LongPoll._to_search": HELD,
    "waiting.long_poll:LongPoll._unread": HELD,
    "pop.service:PopService._dropped": "what is not synced yet",
    "pop.service:PopService._uncommitted": "what is not synced yet",
    "pop.journal:PopJournal._owed": "messages that come again, one at a time, and topics that were popped",
    "pop.poll:PopPoll._by_channel": CONNECTIONS,
    "pop.poll:PopPoll._due": HELD,
    "pop.poll:PopPoll._held": "poll.CAPACITY, PER_GROUP of one",
    "pop.poll:PopPoll._in_turn": HELD,
    "pop.poll:PopPoll._listening": HELD,
    "pop.poll:PopPoll._looks": "requests in progress, _WIDE_LOOKS of them in topics of many queues",
    "pop.poll:PopPoll._of_topic": TOPICS,
    "pop.poll:PopPoll._ready": HELD,
    "pop.poll:PopPoll._tasks": HELD,
    "pop.poll:PopPoll._unread": HELD,
    "later.timer:TimerService._deadlines": "timerMaxPendingMessages",
    "later.timer:TimerService._delivered": "_MOST deliveries under way",
    "later.timer:TimerService._hand": "what is due in one second",
    "later.timer:TimerService._recalls": "timerMaxPendingMessages",
    "later.timer:TimerService._resting": "_MAX_RESTING",
    "later.timer_progress:Progress._seconds": "_MAX_SECONDS",
    "transactions.service:TransactionService._moved": "what is not synced yet",
    "transactions.service:TransactionService._pending": TURN,
    "transactions.service:TransactionService._stored_before": "half messages that lay there at the start: " + LOG,
    "transactions.service:TransactionService._unwritten": "what is not synced yet",
    "transactions.check:TransactionCheck._not_asked": "one round",
    "stat_items:StatItems._items": "MOST_ITEMS",
    "cooperative:CooperativeWork._waiting": "requests in progress",
    "transactions.arrivals:Arrivals._begins": "arrivals.MOST_SLOTS",
    "transactions.arrivals:Arrivals._times": "arrivals.MOST_SLOTS",
    "state.client_table:ConsumerTable._groups": "PER_CONNECTION",
    "state.client_table:ConsumerTable._groups_of_channel": "PER_CONNECTION",
    "state.client_table:ProducerTable._groups": "PER_CONNECTION",
    "state.client_table:ProducerTable._groups_of_channel": "PER_CONNECTION",
    "state.client_table:ProducerTable._places": "PER_CONNECTION",
    "state.consumer_filter:ConsumerFilters._filters": "MAX_BYTES",
    "state.consumer_offset:ConsumerOffsets._offsets": "consumer_offset.CAPACITY",
    "state.consumer_offset:ConsumerOffsets._pulled": "consumer_offset.CAPACITY",
    "state.consumer_offset:ConsumerOffsets._resets": "consumer_offset.CAPACITY",
    "state.discord:Discord.shared": "MOST_GROUPS",
    "state.discord:Discord.unlike": "MOST_GROUPS",
    "transactions.half_messages:HalfMessages._moved": "half messages that were asked about and are undecided: " + LOG,
    "transactions.half_messages:HalfMessages._outcomes": "REMEMBERED",
    "transactions.half_messages:OpMessages._marks": "one for _OPS_PER_MARK op messages: " + LOG,
    "state.json_file:StateWriter._dirty": FIXED,
    "state.json_file:StateWriter._outdated": FIXED,
    "state.json_file:StateWriter._waiting": "requests that wait for the disk",
    "state.live_settings:LiveSettings._properties": FIXED,
    "pop.state:PopState._due": "service.CAPACITY",
    "pop.state:PopState._of_topic": "the keys of ``queues``",
    "pop.state:PopState.queues": "consumer_offset.CAPACITY: a group that pops has an offset",
    "state.queue_locks:QueueLocks._leases": "queue_locks.CAPACITY",
    "state.request_mode:RequestModes._modes": "request_mode.CAPACITY",
    "state.subscription_group:SubscriptionGroups._forbidden": "FORBIDDEN_CAPACITY",
    "state.subscription_group:SubscriptionGroups.table": "subscription_group.CAPACITY",
    "state.topic_config:TopicConfigs._mended": TOPICS,
    "state.topic_config:TopicConfigs._texts": TOPICS,
    "state.topic_config:TopicConfigs.system_topics": FIXED,
    "state.topic_config:TopicConfigs.table": "topic_config.CAPACITY",
    "stats:BrokerStats._broker_items": FIXED,
    "stats:BrokerStats._fresh_gets": "stats.MOST_TALLIES",
    "stats:BrokerStats._fresh_puts": TOPICS,
    "stats:BrokerStats._gets": "stats.MOST_TALLIES",
    "stats:BrokerStats._puts": TOPICS,
    "stats:BrokerStats._snapshots": "_SNAPSHOTS",
    "stats:PutTimes._counts": FIXED,
    "stats:PutTimes._fresh": "_NEWEST_TIMES",
    "stats:PutTimes._newest": "_NEWEST_TIMES",
}
"""What bounds each table of a broker. Those of the store follow its queues and the files of its log."""


def tables(folder: Path) -> Iterator[str]:
    """Name every container that a broker and its parts hold."""
    broker = Broker(BrokerConfig(), StoreConfig(store_path_root_dir=folder))
    broker._register_handlers()
    seen: set[int] = set()
    handlers = [route.handler for route in broker._server._endpoint.routes.values()]
    found: list[Any] = [broker, *(getattr(handler, "__self__", None) for handler in handlers)]
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        kind = type(each)
        names = [*getattr(each, "__dict__", ())]
        names += [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, dict | set | list | collections.deque):
                yield f"{kind.__module__.removeprefix('rocketcore.broker.')}:{kind.__name__}.{name}"
            elif type(value).__module__.startswith("rocketcore.broker"):
                found.append(value)


def test_every_table_says_what_bounds_it(tmp_path: Path) -> None:
    assert sorted({name for name in tables(tmp_path) if not name.startswith("store.")}) == sorted(BOUNDS)


def topics(folder: Path) -> TopicConfigs:
    return TopicConfigs(BrokerConfig(), JsonFile(folder / "topics.json"), lambda _: None)


def groups(folder: Path) -> SubscriptionGroups:
    return SubscriptionGroups(JsonFile(folder / "groups.json"), lambda: None, auto_create=lambda: True)


def test_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = topics(tmp_path)
    table.load()
    monkeypatch.setattr(topic_config, "CAPACITY", len(table.table) + 1)
    table.ensure("%RETRY%g", 1)
    refused: list[Callable[[], object]] = [
        lambda: table.update(TopicConfig("A")),
        lambda: table.ensure("%RETRY%h", 1),
        lambda: table.create_for_send("B", "TBW102", 4, auto_create=True),
    ]
    for call in refused:
        with pytest.raises(BrokerSystemError, match="topics are there, no more are kept"):
            call()
    assert table.update(TopicConfig("%RETRY%g", read_queue_nums=2)), "what is there may change"
    table.restore({"C": 3})
    assert table.find("C") is not None, "what has messages comes back"


def test_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = groups(tmp_path)
    monkeypatch.setattr(subscription_group, "CAPACITY", 1)
    assert table.find("g") is not None
    assert table.find("h") is None
    with pytest.raises(BrokerSystemError, match="1 groups are there, no more are kept"):
        table.update(SubscriptionGroupConfig("h"))
    table.update(SubscriptionGroupConfig("g", retry_max_times=2))


def test_topics_that_groups_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = groups(tmp_path)
    table.find("g")
    monkeypatch.setattr(subscription_group, "FORBIDDEN_CAPACITY", 1)
    with pytest.raises(InvalidParameter, match="no topic can be called 'a b'"):
        table.forbid("g", "a b", True)
    table.forbid("g", "T", True)
    table.forbid("g", "T", True)
    with pytest.raises(BrokerSystemError, match="1 topics are forbidden to groups"):
        table.forbid("g", "U", True)
    table.forbid("g", "T", False)
    table.forbid("g", "U", True)
    assert table.is_forbidden("g", "U")


def test_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ConsumerOffsets(JsonFile(tmp_path / "offsets.json"))
    monkeypatch.setattr(consumer_offset, "CAPACITY", 2)
    assert table.commit("g", "T", 0, 1)
    assert table.commit("g", "T", -7, 1)
    assert table.commit("g", "T", 0, 2), "what is there may change"
    assert not table.commit("g", "T", 1, 1)
    assert table.find("g", "T", 1) is None
    for call in (lambda: table.reset("g", "T", 1, 0), lambda: table.clone("g", "h", "T")):
        with pytest.raises(BrokerSystemError, match="2 offsets of groups in queues are there"):
            call()
    table.clone("g", "g", "T")
    for queue_id in range(3):
        table.note_pull("g", "T", queue_id, 5)
    assert [table.pull_offset("g", "T", queue_id) for queue_id in range(3)] == [5, 5, 0]
    table.remove_group("g")
    assert table.commit("h", "T", 0, 1)


def test_queue_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = QueueLocks()
    monkeypatch.setattr(queue_locks, "CAPACITY", 2)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    assert locks.lock("g", queues, "c") == queues[:2]
    assert locks.lock("h", queues, "c") == []
    assert locks.lock("g", queues[:2], "c") == queues[:2]
    locks.unlock("g", queues[:1], "c")
    assert locks.lock("h", [MessageQueue("a b", "b", 0), *queues], "c") == queues[:1]
    assert locks.lock("a b", queues, "c") == []


def test_names_of_clients() -> None:
    table = ProducerTable()
    channel: Any = object()
    table.register(channel, "c", None, 513, "g")
    for client_id, group in (("c", "x" * 1025), ("x" * 1025, "g")):
        with pytest.raises(BrokerError, match="at most 1024 characters"):
            table.register(channel, client_id, None, 513, group)
    assert table.channel_of("c") is channel
    table.channel_closed(channel)  # type: ignore[arg-type]
    assert table.groups() == []


def test_the_page_has_the_numbers() -> None:
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith("| more than 250,000 topics")]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d", row.split("|")[1])]
    assert numbers == [
        topic_config.CAPACITY,
        subscription_group.CAPACITY,
        consumer_offset.CAPACITY,
        queue_locks.CAPACITY,
        subscription_group.FORBIDDEN_CAPACITY,
        client_table.LONGEST_NAME,
    ]
