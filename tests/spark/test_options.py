"""Options of the source and the sink: names, aliases, values, and what is refused."""

from __future__ import annotations

import json

import pytest

from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.spark.options import (
    SPARK_OPTIONS,
    ConnectionOptions,
    ReadOptions,
    SinkOptions,
    SourceOptions,
    StreamSourceOptions,
    parse_options,
    read_options_class,
)


def source(**options: str) -> SourceOptions:
    return parse_options(SourceOptions, {"topic": "T", **options})


def stream(**options: str) -> StreamSourceOptions:
    return parse_options(StreamSourceOptions, {"topic": "T", **options})


def sink(**options: str) -> SinkOptions:
    return parse_options(SinkOptions, {"topic": "T", **options})


@pytest.mark.parametrize("name", ["nameServer", "nameserver", "NAMESRV", "endpoints"])
def test_names_are_compared_without_case_and_have_aliases(name: str) -> None:
    assert source(**{name: "h:1;i:2"}).name_server == "h:1;i:2"


def test_defaults() -> None:
    options = source()
    assert (options.topics, options.starting_offsets, options.ending_offsets) == (("T",), "earliest", "latest")
    assert (options.fail_on_data_loss, options.tag_expression, options.pull_batch_bytes) == (True, "*", 1 << 20)
    written = sink()
    assert (written.queue_selector, written.batch_bytes, written.max_in_flight) == ("roundrobin", 1 << 20, 4)
    assert (written.send_timeout, written.delivery_timeout, written.write_id) == (10.0, 120.0, None)
    assert (options.request_timeout, options.fetch_timeout) == (10.0, 120.0)


def test_topics_by_list_pattern_or_assignment() -> None:
    assert parse_options(SourceOptions, {"subscribe": "b, a,b"}).topics == ("b", "a")
    assert parse_options(SourceOptions, {"subscribePattern": "a.*"}).topic_pattern == "a.*"
    assigned = parse_options(SourceOptions, {"assign": '{"T": {"broker-a": [1, 0]}}'})
    assert assigned.assignment == (MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512k", 512 << 10), ("1m", 1 << 20), ("2MB", 2 << 20), (" 3 m ", 3 << 20), ("1g", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert source(pullBatchBytes=text).pull_batch_bytes == size


def test_offsets_as_json() -> None:
    options = source(startingOffsets='{"T": {"broker-a": {"0": 23, "1": -2}}}')
    assert options.starting_offsets == {MessageQueue("T", "broker-a", 0): 23, MessageQueue("T", "broker-a", 1): -2}


@pytest.mark.parametrize(
    "text", ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "2023-11-14 22:13:20Z"]
)
def test_times(text: str) -> None:
    assert source(startingTimestamp=text).starting_timestamp == 1_700_000_000_000


def test_sink_values() -> None:
    times = {"sendTimeoutMs": "1500", "deliveryTimeoutMs": "9000"}
    options = sink(queueSelector="HASH", writeId="ff", properties='{"a": "b"}', **times)
    assert (options.queue_selector, options.send_timeout, options.delivery_timeout) == ("hash", 1.5, 9.0)
    assert (options.write_id, options.properties) == (255, {"a": "b"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"staringOffsets": "earliest"}, "unknown option staringOffsets; did you mean startingOffsets"),
        ({"zzz": "1"}, "unknown option zzz; there are accessKey, "),
        ({"batchBytes": "1m"}, "option batchBytes belongs to writing"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger belongs to streaming reads"),
        ({"subscribe": "U"}, "options topic and subscribe mean the same"),
        ({"assign": '{"T": {"b": [0]}}'}, "exactly one of the options topic, subscribePattern and assign"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first', expected: earliest, latest, or a JSON"),
        ({"startingOffsets": '{"T": {"b": {"0": -3}}}'}, "-2 is the earliest"),
        ({"startingOffsets": '{"T": {"b": {"x": 1}}}'}, "a JSON object such as"),
        ({"startingOffsets": "latest"}, "startingOffsets=latest reads nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest reads nothing"),
        ({"startingOffsets": '{"T": {"b": {"0": 1}}}', "startingTimestamp": "5"}, "not both"),
        ({"startingTimestamp": "2023-11-14T22:13:20"}, "'2023-11-14T22:13:20', expected: a time zone behind it"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"pullBatchBytes": "0"}, "a number of bytes"),
        ({"minPartitions": "0"}, "a whole number of at least 1"),
        ({"subExpression": "a", "sqlExpression": "b > 1"}, "subExpression or sqlExpression"),
        ({"accessKey": "a"}, "accessKey and secretKey belong together"),
        ({"tlsCaFile": "ca.pem"}, "option tlsCaFile needs tls=true"),
        ({"nameServer": "localhost"}, "'localhost' is not host:port"),
        ({"path": "T"}, "use the option topic"),
        ({"filterPushdown": "true"}, "unknown option filterPushdown"),
        ({"brokerAddressMap": "x"}, "a JSON object such as"),
        ({"groupId": "no good"}, "option groupId: the group name"),
        ({"startingTimestamp": "2030-01-01", "endingTimestamp": "20"}, "startingTimestamp lies behind endingTimestamp"),
        (
            {"startingOffsets": '{"T": {"b": {"0": 7}}}', "endingOffsets": '{"T": {"b": {"0": 6}}}'},
            "startingOffsets lies behind endingOffsets for MessageQueue(topic='T', broker='b', queue_id=0): 7 and 6",
        ),
        ({"startingTimestamp": "1000000000000000000"}, "option startingTimestamp is '1000000000000000000', expected"),
        ({"pullBatchBytes": "2g"}, "pullBatchBytes must be at most 2147483647"),
        ({"arrowBatchBytes": "2g"}, "arrowBatchBytes must be at most 1073741824, got 2147483648"),
        ({"pullBatchBytes": "9" * 5000}, "a number of bytes"),
        ({"minPartitions": "9" * 5000}, "a whole number of at least 1"),
        ({"startingTimestamp": "20991231"}, "a day is written 2024-05-01"),
        ({"endingTimestamp": "1700000000"}, "seconds want three zeros more"),
        ({"startingTimestamp": "2030-01-01", "endingTimestamp": "1969-01-01"}, "lies behind endingTimestamp"),
        ({"subscribePattern": " "}, "a regular expression that is not blank"),
        ({"assign": "{}"}, "with one queue at least"),
        ({"assign": '{"T": {"b": []}}'}, "with one queue at least"),
        ({"startingOffsets": '{"T": {"b": {"00": 1}}}'}, "'00' is not a queue"),
        ({"startingOffsets": '{"T": {"b": {"0": 9223372036854775808}}}'}, "-2 is the earliest"),
    ],
)
def test_source_refuses(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        source(**options)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": "earliest"}, "option startingOffsets belongs to reading"),
        ({"queueSelector": "random"}, "roundrobin or hash"),
        ({"tags": "a||b"}, "no subscription finds one with '||' in it"),
        ({"batchBytes": "5m"}, "batchBytes is at most 4194304"),
        ({"deliveryTimeoutMs": "0"}, "a whole number of at least 1"),
        ({"properties": '{"KEYS": "x"}'}, "property names that are not RocketMQ's own; KEYS is"),
        ({"properties": '{"a": ""}'}, "non-empty text"),
        ({"properties": '{"a": "\\u0001"}'}, "without U+0001"),
        ({"properties": "[]"}, "a JSON object"),
        ({"tags": "a\x02"}, "a tag without"),
        ({"writeId": "xyz"}, "hexadecimal digits"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "option topic: topic 'SCHEDULE_TOPIC_XXXX' is reserved"),
        ({"properties": json.dumps({"a": "x" * 20_000}), "tags": "y" * 13_000}, "options tags and properties: "),
    ],
)
def test_sink_refuses(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sink(**options)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets belongs to batch reads"),
        ({"endingtimestamp": "5"}, "option endingTimestamp belongs to batch reads"),
        ({"batchBytes": "1m"}, "option batchBytes belongs to writing"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number of at least 1"),
        (
            {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            "minOffsetsPerTrigger is 6, more than maxOffsetsPerTrigger, 5",
        ),
        ({"maxTriggerDelay": "15m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "15 parsecs"}, "a time, for example 15m, 30s or 500ms"),
        ({"checkpointLocation": "/tmp"}, "unknown option checkpointLocation"),
        ({"path": "T"}, "use the option topic"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions is more than maxPartitions"),
    ],
)
def test_stream_refuses(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        stream(**options)
    assert reason in str(refused.value)


def test_stream_values() -> None:
    assert stream(startingOffsets="latest").starting_offsets == "latest"
    assert (stream().group_id, stream().group, stream(groupId="G").group) == (None, "SPARK_SOURCE", "G")
    assert (stream().max_offsets_per_trigger, stream(maxOffsetsPerTrigger="7").max_offsets_per_trigger) == (None, 7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900.0), ("15min", 900.0), ("30s", 30.0), ("500ms", 0.5), ("2000", 2.0), ("1 h", 3600.0), ("2D", 172_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_trigger_delay == seconds


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, ReadOptions),
        ({"startingoffsets": "latest"}, ReadOptions),
        ({"endingoffsets": "latest"}, SourceOptions),
        ({"MaxOffsetsPerTrigger": "5"}, StreamSourceOptions),
    ],
)
def test_a_schema_is_asked_for_by_batch_queries_and_by_streams(
    options: dict[str, str], kind: type[ConnectionOptions]
) -> None:
    assert read_options_class(options) is kind


def test_what_spark_adds_to_the_options_of_a_stream() -> None:
    added = {"checkpointLocation": "/tmp/c", "queryName": "q"}
    assert parse_options(SinkOptions, {"topic": "T", **added}, ignored=SPARK_OPTIONS).topic == "T"
    with pytest.raises(ConfigError, match="unknown option checkpointLocation"):
        sink(**added)


def test_times_before_1970_are_the_beginning() -> None:
    assert source(startingTimestamp="0001-01-01T00:00:00+14:00").starting_timestamp == 0


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        source(accessKey="a", secretKey="  ")
    assert "secretKey is …" in str(refused.value)
    assert "s3cret" not in repr(source(accessKey="a", secretKey="s3cret", tls="true", tlsKeyPassword="s3cret"))


def test_the_driver_says_which_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors may have another environment, and would go to another cluster."""
    monkeypatch.setenv("ROCKETMQ_NAMESRV_ADDR", "driver:9876;other:9876")
    assert source().name_server == sink().name_server == "driver:9876;other:9876"
