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
    broker_id: int = setting(0, "0 for a master", least=0)
    broker_ip1: str = setting(
        "", "address that clients are told; default: the bind address, or the first local one", property="brokerIP1"
    )
    bind_address: str = setting("127.0.0.1", "address to listen on")
    listen_port: int = setting(10911, "port to listen on; 0 takes a free one", least=0, most=65535)
    vip_channel_enable: bool = setting(
        True, "listen at listenPort - 2 too, where Java clients with vipChannelEnabled send"
    )
    broker_permission: int = setting(6, "4 read + 2 write", least=0, most=7)
    default_topic_queue_nums: int = setting(
        8, "queues of a topic that is created by its first message", unit="count", least=1, most=65535
    )
    auto_create_topic_enable: bool = setting(True, "create a topic at its first message")
    auto_create_subscription_group: bool = setting(True, "create a consumer group when it is first used")
    cluster_topic_enable: bool = setting(True, "the topic named like the cluster can be read and written")
    broker_topic_enable: bool = setting(True, "the topic named like the broker can be read and written")
    trace_topic_enable: bool = setting(False, "create the topic of message traces at start")
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "the topic of message traces")
    flush_consumer_offset_interval: int = setting(5_000, "consumer offsets are saved this often", unit="ms", least=1)
    flush_delay_offset_interval: int = setting(
        10_000, "positions of the delay levels are saved this often", unit="ms", least=1
    )
    long_polling_enable: bool = setting(True, "hold a pull that finds nothing as long as the client asks")
    short_polling_time_mills: int = setting(1_000, "how long it is held otherwise", unit="ms", least=1, most=60_000)
    pull_thread_pool_queue_capacity: int = setting(
        100_000, "pulls held at most; more are refused as busy", unit="count", least=1
    )
    use_server_side_reset_offset: bool = setting(
        True, "set a group's offsets here where they are reset; false: tell its clients, as 4.9"
    )
    lite_pull_message_enable: bool = setting(True, "serve lite pull consumers")
    store_reply_message_enable: bool = setting(True, "store replies that are sent on to who asked, too")
    enable_property_filter: bool = setting(False, "select messages by SQL92 expressions on their properties")
    enable_retry_topic_v2: bool = setting(
        False, "what is popped and not acknowledged comes again by %RETRY%group+topic, not %RETRY%group_topic"
    )
    filter_support_retry: bool = setting(
        False, "a subscription of a retry topic by SQL92 selects by the expression of the topic that a message was for"
    )
    notify_consumer_ids_changed_enable: bool = setting(True, "tell a group's clients when one comes or goes")
    channel_expired_timeout: int = setting(
        120_000, "a client without heartbeat for so long is forgotten", unit="ms", least=1
    )
    region_id: str = setting(DEFAULT_REGION, "region stored with messages and told to producers")
    trace_on: bool = setting(True, "tell producers that traces are wanted")
    recall_message_enable: bool = setting(False, "take back a message that waits for its time, for who has its handle")
    allow_recall_when_broker_not_writeable: bool = setting(True, "do so also where brokerPermission forbids to write")
    register_name_server_period: int = setting(30_000, "interval of registrations, 10 to 60 s", unit="ms", least=1)
    register_broker_timeout_mills: int = setting(24_000, "longest wait for one registration", unit="ms", least=1)
    start_accept_send_request_time_stamp: int = setting(
        0, "sends before this time are refused", unit="ms", least=0, most=(1 << 63) - 1
    )
    reject_transaction_message: bool = setting(False, "refuse messages that are part of a transaction")
    transaction_time_out: int = setting(
        6_000, "age at which a producer is asked how a transaction ended", unit="ms", least=1
    )
    transaction_check_interval: int = setting(30_000, "pause between two rounds of questions", unit="ms", least=1)
    transaction_check_max: int = setting(
        15, "questions about one message before it is set aside in TRANS_CHECK_MAX_TIME_TOPIC", unit="count", least=1
    )
    max_pending_connection_bytes: int = setting(
        16 * 1024 * 1024,
        "stored but not yet acknowledged bytes of one connection above which its sends are refused",
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
