"""Topics: what exists after the start, auto-creation, changes by admins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.topic_config import MOST_QUEUES, TopicConfigs, check_topic_name
from rocketcore.errors import BrokerSystemError, InvalidParameter
from rocketcore.protocol.bodies.topic import RegisterBrokerBody, TopicConfig, TopicFilterType
from rocketcore.service import ManualClock

CONFIG = BrokerConfig(broker_name="broker-a", broker_cluster_name="C")


class Loaded:
    """A loaded topic table and what it announced."""

    def __init__(self, folder: Path, config: BrokerConfig = CONFIG) -> None:
        self.announced: list[list[str]] = []
        self.file = JsonFile(folder / "topics.json")
        self.topics = TopicConfigs(config, self.file, self._changed, clock=ManualClock())
        self.topics.load()

    def _changed(self, topics: Iterable[TopicConfig]) -> None:
        self.announced.append([topic.topic_name for topic in topics])


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path)


def create(loaded: Loaded, topic: str = "T", queues: int = 4, default: str = "TBW102", auto: bool = True) -> object:
    return loaded.topics.create_for_send(topic, default, queues, auto_create=auto)


def test_the_topics_of_every_broker(loaded: Loaded) -> None:
    shapes = {name: (topic.write_queue_nums, topic.perm) for name, topic in loaded.topics.table.items()}
    assert shapes == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 6),
        "rmq_sys_wheel_timer": (1, 6),
        "C_REPLY_TOPIC": (1, 6),
    }
    assert loaded.announced == []


def test_a_first_message_copies_the_default_topic(loaded: Loaded) -> None:
    created = create(loaded)
    assert created == TopicConfig("T", 4, 4, 6)
    assert loaded.announced == [["T"]]
    assert loaded.topics.data_version.counter == 1


def test_auto_creation_never_makes_more_queues_than_the_default_topic_has(loaded: Loaded) -> None:
    created = create(loaded, queues=100)
    assert isinstance(created, TopicConfig)
    assert created.write_queue_nums == 8


@pytest.mark.parametrize("default", ["missing", "SELF_TEST_TOPIC"])
def test_only_an_inheritable_default_topic_is_copied(loaded: Loaded, default: str) -> None:
    assert create(loaded, default=default) is None


def test_auto_creation_that_was_switched_off_stays_off(loaded: Loaded) -> None:
    assert create(loaded, auto=False) is None
    assert create(loaded, auto=True) is None
    found = loaded.topics.find("TBW102")
    assert found is not None
    assert found.perm == 6


def test_without_auto_creation_there_is_no_default_topic(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, replace(CONFIG, auto_create_topic_enable=False))
    assert loaded.topics.find("TBW102") is None


def test_an_admin_creates_and_changes_a_topic(loaded: Loaded) -> None:
    topic = TopicConfig("T", 4, 4, 6, TopicFilterType.SINGLE_TAG)
    assert loaded.topics.update(topic, "+message.type=FIFO")
    assert not loaded.topics.update(topic)
    assert loaded.topics.update(replace(topic, write_queue_nums=8), "-message.type")
    found = loaded.topics.find("T")
    assert found is not None
    assert (found.write_queue_nums, found.attributes) == (8, {})
    assert loaded.announced == [["T"], ["T"]]


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("+colour=red", "unsupported key: colour"),
        ("+message.type=RED", "value is not in set"),
        ("+queue.type=BatchCQ", "value is not in set"),
        ("-message.type=x", "add/alter attribute format is wrong"),
        ("message.type", "delete attribute format is wrong"),
    ],
)
def test_bad_attributes_are_refused(loaded: Loaded, attributes: str, remark: str) -> None:
    with pytest.raises(BrokerSystemError, match=remark):
        loaded.topics.update(TopicConfig("T"), attributes)
    assert loaded.topics.find("T") is None


def test_an_unchangeable_attribute_is_set_only_at_creation(loaded: Loaded) -> None:
    loaded.topics.update(TopicConfig("T"), "+cleanup.policy=DELETE")
    with pytest.raises(BrokerSystemError, match="unchangeable"):
        loaded.topics.update(TopicConfig("T"), "+cleanup.policy=DELETE")


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC", "C", "broker-a"])
def test_system_topics_cannot_be_changed(loaded: Loaded, name: str) -> None:
    with pytest.raises(InvalidParameter, match="conflict with system topic"):
        loaded.topics.update(TopicConfig(name))


@pytest.mark.parametrize(
    ("name", "remark"),
    [("", "blank"), ("  ", "blank"), ("a b", "illegal characters"), ("é", "illegal characters"), ("a" * 128, "longer")],
)
def test_bad_names_are_refused(name: str, remark: str) -> None:
    with pytest.raises(InvalidParameter, match=remark):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a" * 127, "%RETRY%" + "g" * 240, "%DLQ%g", "a|b_c-d%"])
def test_good_names_pass(name: str) -> None:
    check_topic_name(name)


def test_the_table_survives_a_restart(loaded: Loaded, tmp_path: Path) -> None:
    loaded.topics.update(TopicConfig("T", 3, 5, 4, order=True), "+message.type=FIFO")
    loaded.file.save(loaded.topics.encode())
    again = Loaded(tmp_path)
    assert again.topics.find("T") == loaded.topics.find("T")
    assert again.topics.data_version == loaded.topics.data_version


def test_messages_without_a_topic_get_one_again(loaded: Loaded) -> None:
    """Their topic had as many queues at least, and nobody knows how many more: a send to one of those must not fail."""
    create(loaded, "Kept", queues=2)
    loaded.announced.clear()
    loaded.topics.restore({"Kept": 1, "Few": 2, "Many": 20, "%RETRY%g": 1, "%DLQ%g": 1, "TBW102": 1})
    counts = {name: topic.write_queue_nums for name, topic in loaded.topics.table.items()}
    assert (counts["Kept"], counts["Few"], counts["Many"]) == (2, 8, 20)
    assert (counts["%RETRY%g"], counts["%DLQ%g"], counts["TBW102"]) == (1, 1, 8)
    assert loaded.announced == [["Few"], ["Many"], ["%RETRY%g"], ["%DLQ%g"]]


@pytest.mark.parametrize("damaged", [False, True])
def test_an_older_generation_may_have_too_few_queues(tmp_path: Path, *, damaged: bool) -> None:
    """The change that made them is what is lost. Without damage it is an admin who has taken queues away."""
    loaded = Loaded(tmp_path)
    for queues in (4, 6) if damaged else (6, 4):
        loaded.topics.update(TopicConfig("T", queues, queues, 6))
        loaded.file.save(loaded.topics.encode())
    if damaged:
        loaded.file.path.write_bytes(b"{")
    again = Loaded(tmp_path)
    again.topics.restore({"T": 6})
    found = again.topics.find("T")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums) == ((6, 6) if damaged else (4, 4))


def test_order_topics_follow_the_name_server(loaded: Loaded) -> None:
    loaded.topics.update(TopicConfig("T"))
    loaded.topics.set_order_topics(["T"])
    found = loaded.topics.find("T")
    assert found is not None
    assert found.order
    counter = loaded.topics.data_version.counter
    loaded.topics.set_order_topics(["T"])
    loaded.topics.set_order_topics([])
    assert loaded.topics.data_version.counter == counter


def test_deleting_announces_the_whole_table(loaded: Loaded) -> None:
    loaded.topics.update(TopicConfig("T"))
    loaded.topics.delete(["T", "unknown"])
    loaded.topics.delete(["unknown"])
    assert loaded.topics.find("T") is None
    assert loaded.announced == [["T"], []]


def test_a_registration_holds_what_the_protocol_says(loaded: Loaded) -> None:
    for name in ("T", "U", "V"):
        loaded.topics.update(TopicConfig(name, 2, 2, 6), "+message.type=FIFO")
    loaded.topics.registration({}, 6)  # keeps the texts that the changes below must renew
    loaded.topics.update(TopicConfig("T", 5, 5, 6))
    loaded.topics.set_order_topics(["U"])
    loaded.topics.delete(["V"])
    loaded.topics.close_auto_creation()
    expected = RegisterBrokerBody(loaded.topics.wrapper())
    assert RegisterBrokerBody.decode(loaded.topics.registration({}, 6)) == expected


def test_a_registration_of_changes_names_them_only(loaded: Loaded) -> None:
    loaded.topics.update(TopicConfig("T", 5, 5, 6))
    body = RegisterBrokerBody.decode(loaded.topics.registration({"T": loaded.topics.table["T"]}, 6))
    wrapper = body.topic_config_serialize_wrapper
    assert wrapper.topic_config_table == {"T": TopicConfig("T", 5, 5, 6)}
    assert wrapper.data_version == loaded.topics.data_version


def test_topics_are_registered_with_no_more_than_the_broker_allows(loaded: Loaded) -> None:
    body = RegisterBrokerBody.decode(loaded.topics.registration({}, 4))
    table = body.topic_config_serialize_wrapper.topic_config_table
    assert set(table) == set(loaded.topics.table)
    assert {topic.perm for topic in table.values()} == {4}


def test_more_queues_than_a_request_may_make_are_refused(loaded: Loaded) -> None:
    topics = loaded.topics
    assert topics.update(TopicConfig("T", MOST_QUEUES, -1, 99))
    for reads, writes in ((4097, 1), (1, 2**31 - 1)):
        with pytest.raises(InvalidParameter, match=r"topic\[U\] has \d+ queues, at most 4096"):
            topics.update(TopicConfig("U", reads, writes, 6))
    assert topics.find("U") is None
    topics.restore({"Wide": 10_000})  # a store that another broker wrote
    assert topics.update(TopicConfig("Wide", 9_000, 10_000, 4))
    with pytest.raises(InvalidParameter, match=r"topic\[Wide\] has 10001 queues, at most 10000"):
        topics.update(TopicConfig("Wide", 9_000, 10_001, 4))
