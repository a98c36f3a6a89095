"""Settings of a broker (Java: ``BrokerConfig``, 5.5.0; what concerns files is in ``store.StoreConfig``)."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from rocketcore.codes import DEFAULT_REGION, TRACE_TOPIC
from rocketcore.config_file import BadSetting, setting
from rocketcore.transport.server.admission import ConnectionSettings

LIVE_PROPERTIES = frozenset(
    {
        "allowRecallWhenBrokerNotWriteable",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "defaultTopicQueueNums",
        "enablePropertyFilter",
        "filterSupportRetry",
        "litePullMessageEnable",
        "longPollingEnable",
        "maxPendingConnectionBytes",
        "notifyConsumerIdsChangedEnable",
        "recallMessageEnable",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slowRequestMillis",
        "startAcceptSendRequestTimeStamp",
        "storeReplyMessageEnable",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "useServerSideResetOffset",
    }
)
"""What request 25 changes while the broker runs: never a path, an address or a secret."""

NEXT_START_PROPERTIES = frozenset(
    {
        "accessMessageInMemoryMaxRatio",
        "brokerTopicEnable",
        "channelExpiredTimeout",
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "clusterTopicEnable",
        "defaultQueryMaxNum",
        "deleteCommitLogFilesInterval",
        "deleteFileBatchMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "enableRetryTopicV2",
        "fileReservedTime",
        "flushConsumeQueueThoroughInterval",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "flushDiskType",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "maxFilterMessageSize",
        "maxMessageSize",
        "maxMsgsNumBatch",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "messageIndexEnable",
        "pullThreadPoolQueueCapacity",
        "redeleteHangedFileInterval",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "syncFlushTimeout",
        "timerMaxDelaySec",
        "timerWheelEnable",
        "traceTopicEnable",
    }
)
"""What request 25 changes for the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ConnectionSettings):
    """What a broker is called, where it listens, what it allows."""

    namesrv_addr: str = setting("", "name servers to register with, host:port joined by ';'")
    broker_cluster_name: str = setting("DefaultCluster", "cluster that the broker belongs to")
    broker_name: str = setting(default_factory=socket.gethostname, help="name of the broker; default: the host name")
    broker_id: int = setting(0, "0 is a master", least=0)
    broker_ip1: str = setting(
        "",
        "address that the broker advertises to clients; default: the bind address, or the first local one",
        property="brokerIP1",
    )
    bind_address: str = setting("127.0.0.1", "address to listen on")
    listen_port: int = setting(10911, "port to listen on; 0 takes a free one", least=0, most=65535)
    vip_channel_enable: bool = setting(
        True, "also listen on listenPort - 2, where Java clients with vipChannelEnabled send"
    )
    broker_permission: int = setting(6, "permissions: 4 is read, 2 is write, 6 is both", least=0, most=7)
    default_topic_queue_nums: int = setting(
        8, "number of queues of a topic that its first message creates", unit="count", least=1, most=65535
    )
    auto_create_topic_enable: bool = setting(True, "create a topic when its first message arrives")
    auto_create_subscription_group: bool = setting(True, "create a consumer group when a client first uses it")
    cluster_topic_enable: bool = setting(True, "let clients read and write the topic that has the name of the cluster")
    broker_topic_enable: bool = setting(True, "let clients read and write the topic that has the name of the broker")
    trace_topic_enable: bool = setting(False, "create the topic of message traces at start")
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "the topic of message traces")
    flush_consumer_offset_interval: int = setting(
        5_000, "how often the broker saves consumer offsets", unit="ms", least=1
    )
    flush_delay_offset_interval: int = setting(
        10_000, "how often the broker saves the positions of the delay levels", unit="ms", least=1
    )
    long_polling_enable: bool = setting(True, "hold a pull that finds no message for as long as the client asks")
    short_polling_time_mills: int = setting(
        1_000, "how long the broker holds such a pull if longPollingEnable is false", unit="ms", least=1, most=60_000
    )
    pull_thread_pool_queue_capacity: int = setting(
        100_000, "most pulls that the broker holds; it refuses more as busy", unit="count", least=1
    )
    use_server_side_reset_offset: bool = setting(
        True, "reset a group's offsets at the broker; if false, the broker tells its clients to reset, as 4.9 does"
    )
    lite_pull_message_enable: bool = setting(True, "serve lite pull consumers")
    store_reply_message_enable: bool = setting(
        True, "also store replies that the broker sends on to the requesting client"
    )
    enable_property_filter: bool = setting(False, "select messages by SQL92 expressions on their properties")
    enable_retry_topic_v2: bool = setting(
        False,
        "deliver a popped message without acknowledgement again through %RETRY%group+topic, not %RETRY%group_topic",
    )
    filter_support_retry: bool = setting(
        False, "on a retry topic, apply the SQL92 expression of the original topic of the message"
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, "tell the clients of a group when a client joins or leaves"
    )
    channel_expired_timeout: int = setting(
        120_000, "how long the broker remembers a client without a heartbeat", unit="ms", least=1
    )
    region_id: str = setting(DEFAULT_REGION, "region that the broker stores with messages and tells producers")
    trace_on: bool = setting(True, "tell producers to send traces")
    recall_message_enable: bool = setting(False, "let a client that has the handle of a waiting message take it back")
    allow_recall_when_broker_not_writeable: bool = setting(True, "do so even if brokerPermission forbids writing")
    register_name_server_period: int = setting(30_000, "interval of registrations, 10 to 60 s", unit="ms", least=1)
    register_broker_timeout_mills: int = setting(24_000, "longest wait for one registration", unit="ms", least=1)
    start_accept_send_request_time_stamp: int = setting(
        0, "refuse sends before this time", unit="ms", least=0, most=(1 << 63) - 1
    )
    reject_transaction_message: bool = setting(False, "refuse messages that are part of a transaction")
    transaction_time_out: int = setting(
        6_000, "age of a half message at which the broker first asks its producer for the outcome", unit="ms", least=1
    )
    transaction_check_interval: int = setting(30_000, "pause between two rounds of these checks", unit="ms", least=1)
    transaction_check_max: int = setting(
        15, "checks of one message before the broker moves it to TRANS_CHECK_MAX_TIME_TOPIC", unit="count", least=1
    )
    max_pending_connection_bytes: int = setting(
        16 * 1024 * 1024,
        "bytes of one connection that are stored but not acknowledged; above this, the broker refuses its sends",
        unit="bytes",
        least=1,
    )

    def __post_init__(self) -> None:
        ConnectionSettings.__post_init__(self)
        for name, value in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if not value:
                raise BadSetting(name, "", "it must not be empty")

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers, each once, in the order given."""
        return tuple(dict.fromkeys(part.strip() for part in re.split("[;,]", self.namesrv_addr) if part.strip()))
