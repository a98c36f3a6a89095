"""The requests of Apache 5.5.0: code, who serves it, header and body types.

A body that is not JSON of one class (messages, properties text, a list) has no name here.
"""

from __future__ import annotations

from enum import Flag, auto
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketcore.codes import RequestCode as Code
from tests.reference.declarations import BODIES, HEADERS

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.base import Body
    from rocketcore.protocol.schema import Header

__all__ = ["REQUESTS", "Request", "Server"]


class Server(Flag):
    """Who serves a request."""

    NAMESERVER = auto()
    BROKER = auto()
    CLIENT = auto()
    CONTROLLER = auto()


class Request(NamedTuple):
    """What belongs to one request code; None where there is no header or no body of one class."""

    code: Code
    served_by: Server
    request_header: type[Header] | None = None
    response_header: type[Header] | None = None
    request_body: str | None = None
    response_body: str | None = None

    @property
    def request_body_type(self) -> type[Body] | None:
        return None if self.request_body is None else BODIES[self.request_body]

    @property
    def response_body_type(self) -> type[Body] | None:
        return None if self.response_body is None else BODIES[self.response_body]


h = SimpleNamespace(**HEADERS)
_N, _B, _C, _K = Server.NAMESERVER, Server.BROKER, Server.CLIENT, Server.CONTROLLER

_ROWS: Final = (
    Request(Code.SEND_MESSAGE, _B, h.SendMessageRequestHeader, h.SendMessageResponseHeader),
    Request(Code.PULL_MESSAGE, _B, h.PullMessageRequestHeader, h.PullMessageResponseHeader),
    Request(Code.QUERY_MESSAGE, _B, h.QueryMessageRequestHeader, h.QueryMessageResponseHeader),
    Request(Code.QUERY_CONSUMER_OFFSET, _B, h.QueryConsumerOffsetRequestHeader, h.QueryConsumerOffsetResponseHeader),
    Request(Code.UPDATE_CONSUMER_OFFSET, _B, h.UpdateConsumerOffsetRequestHeader, h.UpdateConsumerOffsetResponseHeader),
    Request(Code.UPDATE_AND_CREATE_TOPIC, _B, h.CreateTopicRequestHeader),
    Request(Code.UPDATE_AND_CREATE_TOPIC_LIST, _B, h.CreateTopicListRequestHeader, None, "CreateTopicListRequestBody"),
    Request(
        Code.GET_ALL_TOPIC_CONFIG,
        _B,
        h.GetAllTopicConfigRequestHeader,
        h.GetAllTopicConfigResponseHeader,
        None,
        "TopicConfigAndMappingSerializeWrapper",
    ),
    Request(Code.UPDATE_BROKER_CONFIG, _B),
    Request(Code.GET_BROKER_CONFIG, _B, None, h.GetBrokerConfigResponseHeader),
    Request(Code.GET_BROKER_RUNTIME_INFO, _B, None, None, None, "KVTable"),
    Request(Code.SEARCH_OFFSET_BY_TIMESTAMP, _B, h.SearchOffsetRequestHeader, h.SearchOffsetResponseHeader),
    Request(Code.GET_MAX_OFFSET, _B, h.GetMaxOffsetRequestHeader, h.GetMaxOffsetResponseHeader),
    Request(Code.GET_MIN_OFFSET, _B, h.GetMinOffsetRequestHeader, h.GetMinOffsetResponseHeader),
    Request(
        Code.GET_EARLIEST_MSG_STORETIME,
        _B,
        h.GetEarliestMsgStoretimeRequestHeader,
        h.GetEarliestMsgStoretimeResponseHeader,
    ),
    Request(Code.VIEW_MESSAGE_BY_ID, _B, h.ViewMessageRequestHeader, h.ViewMessageResponseHeader),
    Request(Code.HEART_BEAT, _B, h.HeartbeatRequestHeader, h.HeartbeatResponseHeader, "HeartbeatData"),
    Request(Code.UNREGISTER_CLIENT, _B, h.UnregisterClientRequestHeader, h.UnregisterClientResponseHeader),
    Request(Code.CONSUMER_SEND_MSG_BACK, _B, h.ConsumerSendMsgBackRequestHeader),
    Request(Code.END_TRANSACTION, _B, h.EndTransactionRequestHeader, h.EndTransactionResponseHeader),
    Request(
        Code.GET_CONSUMER_LIST_BY_GROUP,
        _B,
        h.GetConsumerListByGroupRequestHeader,
        h.GetConsumerListByGroupResponseHeader,
        None,
        "GetConsumerListByGroupResponseBody",
    ),
    Request(Code.CHECK_TRANSACTION_STATE, _C, h.CheckTransactionStateRequestHeader),
    Request(Code.NOTIFY_CONSUMER_IDS_CHANGED, _C, h.NotifyConsumerIdsChangedRequestHeader),
    Request(Code.LOCK_BATCH_MQ, _B, h.LockBatchMqRequestHeader, None, "LockBatchRequestBody", "LockBatchResponseBody"),
    Request(Code.UNLOCK_BATCH_MQ, _B, h.UnlockBatchMqRequestHeader, None, "UnlockBatchRequestBody"),
    Request(Code.GET_ALL_CONSUMER_OFFSET, _B, None, None, None, "ConsumerOffsetSerializeWrapper"),
    Request(Code.GET_ALL_DELAY_OFFSET, _B, None, None, None, "DelayOffsetSerializeWrapper"),
    Request(Code.CHECK_CLIENT_CONFIG, _B, None, None, "CheckClientRequestBody"),
    Request(Code.UPDATE_AND_CREATE_ACL_CONFIG, _B, h.CreateAccessConfigRequestHeader),
    Request(Code.DELETE_ACL_CONFIG, _B, h.DeleteAccessConfigRequestHeader),
    Request(Code.GET_BROKER_CLUSTER_ACL_INFO, _B, None, h.GetBrokerAclConfigResponseHeader),
    Request(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, _B, h.UpdateGlobalWhiteAddrsConfigRequestHeader),
    Request(Code.GET_BROKER_CLUSTER_ACL_CONFIG, _B, None, h.GetBrokerClusterAclConfigResponseHeader),
    Request(Code.GET_TIMER_CHECK_POINT, _B),
    Request(Code.GET_TIMER_METRICS, _B),
    Request(Code.PUT_KV_CONFIG, _N, h.PutKVConfigRequestHeader),
    Request(Code.GET_KV_CONFIG, _N, h.GetKVConfigRequestHeader, h.GetKVConfigResponseHeader),
    Request(Code.DELETE_KV_CONFIG, _N, h.DeleteKVConfigRequestHeader),
    Request(
        Code.REGISTER_BROKER,
        _N,
        h.RegisterBrokerRequestHeader,
        h.RegisterBrokerResponseHeader,
        "RegisterBrokerBody",
        "KVTable",
    ),
    Request(Code.UNREGISTER_BROKER, _N, h.UnRegisterBrokerRequestHeader),
    Request(Code.GET_ROUTEINFO_BY_TOPIC, _N, h.GetRouteInfoRequestHeader, None, None, "TopicRouteData"),
    Request(Code.GET_BROKER_CLUSTER_INFO, _N, None, None, None, "ClusterInfo"),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _B, None, None, "SubscriptionGroupConfig"),
    Request(
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        _B,
        h.GetAllSubscriptionGroupRequestHeader,
        h.GetAllSubscriptionGroupResponseHeader,
        None,
        "SubscriptionGroupWrapper",
    ),
    Request(Code.GET_TOPIC_STATS_INFO, _B, h.GetTopicStatsInfoRequestHeader, None, None, "TopicStatsTable"),
    Request(
        Code.GET_CONSUMER_CONNECTION_LIST,
        _B,
        h.GetConsumerConnectionListRequestHeader,
        None,
        None,
        "ConsumerConnection",
    ),
    Request(
        Code.GET_PRODUCER_CONNECTION_LIST,
        _B,
        h.GetProducerConnectionListRequestHeader,
        None,
        None,
        "ProducerConnection",
    ),
    Request(
        Code.WIPE_WRITE_PERM_OF_BROKER, _N, h.WipeWritePermOfBrokerRequestHeader, h.WipeWritePermOfBrokerResponseHeader
    ),
    Request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, _N, None, None, None, "TopicList"),
    Request(Code.DELETE_SUBSCRIPTIONGROUP, _B, h.DeleteSubscriptionGroupRequestHeader),
    Request(Code.GET_CONSUME_STATS, _B, h.GetConsumeStatsRequestHeader, None, None, "ConsumeStats"),
    Request(Code.DELETE_TOPIC_IN_BROKER, _B, h.DeleteTopicRequestHeader),
    Request(Code.DELETE_TOPIC_IN_NAMESRV, _N, h.DeleteTopicFromNamesrvRequestHeader),
    Request(Code.REGISTER_TOPIC_IN_NAMESRV, _N, h.RegisterTopicRequestHeader, None, "TopicRouteData"),
    Request(Code.GET_KVLIST_BY_NAMESPACE, _N, h.GetKVListByNamespaceRequestHeader, None, None, "KVTable"),
    Request(Code.RESET_CONSUMER_CLIENT_OFFSET, _C, h.ResetOffsetRequestHeader, None, "ResetOffsetBody"),
    Request(
        Code.GET_CONSUMER_STATUS_FROM_CLIENT, _C, h.GetConsumerStatusRequestHeader, None, None, "GetConsumerStatusBody"
    ),
    Request(Code.INVOKE_BROKER_TO_RESET_OFFSET, _B, h.ResetOffsetRequestHeader, None, None, "ResetOffsetBody"),
    Request(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        _B,
        h.GetConsumerStatusRequestHeader,
        None,
        None,
        "GetConsumerStatusBody",
    ),
    Request(Code.GET_TOPICS_BY_CLUSTER, _N, h.GetTopicsByClusterRequestHeader, None, None, "TopicList"),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, _B, None, None, "SubscriptionGroupList"),
    Request(Code.QUERY_TOPIC_CONSUME_BY_WHO, _B, h.QueryTopicConsumeByWhoRequestHeader, None, None, "GroupList"),
    Request(
        Code.QUERY_CONSUME_TIME_SPAN, _B, h.QueryConsumeTimeSpanRequestHeader, None, None, "QueryConsumeTimeSpanBody"
    ),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, _N, None, None, None, "TopicList"),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _B, None, None, None, "TopicList"),
    Request(Code.CLEAN_EXPIRED_CONSUMEQUEUE, _B),
    Request(
        Code.GET_CONSUMER_RUNNING_INFO,
        _B | _C,
        h.GetConsumerRunningInfoRequestHeader,
        None,
        None,
        "ConsumerRunningInfo",
    ),
    Request(Code.QUERY_CORRECTION_OFFSET, _B, h.QueryCorrectionOffsetHeader, None, None, "QueryCorrectionOffsetBody"),
    Request(
        Code.CONSUME_MESSAGE_DIRECTLY,
        _B | _C,
        h.ConsumeMessageDirectlyResultRequestHeader,
        None,
        None,
        "ConsumeMessageDirectlyResult",
    ),
    Request(Code.SEND_MESSAGE_V2, _B, h.SendMessageRequestHeaderV2, h.SendMessageResponseHeader),
    Request(Code.GET_UNIT_TOPIC_LIST, _N, None, None, None, "TopicList"),
    Request(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, _N, None, None, None, "TopicList"),
    Request(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, _N, None, None, None, "TopicList"),
    Request(Code.CLONE_GROUP_OFFSET, _B, h.CloneGroupOffsetRequestHeader),
    Request(Code.VIEW_BROKER_STATS_DATA, _B, h.ViewBrokerStatsDataRequestHeader, None, None, "BrokerStatsData"),
    Request(Code.CLEAN_UNUSED_TOPIC, _B),
    Request(Code.GET_BROKER_CONSUME_STATS, _B, h.GetConsumeStatsInBrokerHeader, None, None, "ConsumeStatsList"),
    Request(Code.UPDATE_NAMESRV_CONFIG, _N),
    Request(Code.GET_NAMESRV_CONFIG, _N),
    Request(Code.SEND_BATCH_MESSAGE, _B, h.SendMessageRequestHeaderV2, h.SendMessageResponseHeader),
    Request(
        Code.QUERY_CONSUME_QUEUE, _B, h.QueryConsumeQueueRequestHeader, None, None, "QueryConsumeQueueResponseBody"
    ),
    Request(
        Code.QUERY_DATA_VERSION,
        _N,
        h.QueryDataVersionRequestHeader,
        h.QueryDataVersionResponseHeader,
        "DataVersion",
        "DataVersion",
    ),
    Request(Code.RESUME_CHECK_HALF_MESSAGE, _B, h.ResumeCheckHalfMessageRequestHeader),
    Request(Code.SEND_REPLY_MESSAGE, _B, h.SendMessageRequestHeader, h.SendMessageResponseHeader),
    Request(Code.SEND_REPLY_MESSAGE_V2, _B, h.SendMessageRequestHeaderV2, h.SendMessageResponseHeader),
    Request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, _C, h.ReplyMessageRequestHeader),
    Request(
        Code.ADD_WRITE_PERM_OF_BROKER, _N, h.AddWritePermOfBrokerRequestHeader, h.AddWritePermOfBrokerResponseHeader
    ),
    Request(Code.GET_ALL_PRODUCER_INFO, _B, h.GetAllProducerInfoRequestHeader, None, None, "ProducerTableInfo"),
    Request(Code.DELETE_EXPIRED_COMMITLOG, _B),
    Request(Code.QUERY_TOPICS_BY_CONSUMER, _B, h.QueryTopicsByConsumerRequestHeader, None, None, "TopicList"),
    Request(
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        _B,
        h.QuerySubscriptionByConsumerRequestHeader,
        None,
        None,
        "QuerySubscriptionResponseBody",
    ),
    Request(Code.GET_TOPIC_CONFIG, _B, h.GetTopicConfigRequestHeader, None, None, "TopicConfigAndQueueMapping"),
    Request(
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        _B,
        h.GetSubscriptionGroupConfigRequestHeader,
        None,
        None,
        "SubscriptionGroupConfig",
    ),
    Request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, _B, h.UpdateGroupForbiddenRequestHeader, None, None, "GroupForbidden"),
    Request(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, _B, h.CheckRocksdbCqWriteProgressRequestHeader),
    Request(Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, _B, h.ExportRocksDBConfigToJsonRequestHeader),
    Request(Code.LITE_PULL_MESSAGE, _B, h.PullMessageRequestHeader, h.PullMessageResponseHeader),
    Request(Code.RECALL_MESSAGE, _B, h.RecallMessageRequestHeader, h.RecallMessageResponseHeader),
    Request(Code.QUERY_ASSIGNMENT, _B, None, None, "QueryAssignmentRequestBody", "QueryAssignmentResponseBody"),
    Request(Code.SET_MESSAGE_REQUEST_MODE, _B, None, None, "SetMessageRequestModeRequestBody"),
    Request(Code.GET_ALL_MESSAGE_REQUEST_MODE, _B),
    Request(Code.UPDATE_AND_CREATE_STATIC_TOPIC, _B, h.CreateTopicRequestHeader, None, "TopicQueueMappingDetail"),
    Request(
        Code.GET_BROKER_MEMBER_GROUP,
        _N,
        h.GetBrokerMemberGroupRequestHeader,
        None,
        None,
        "GetBrokerMemberGroupResponseBody",
    ),
    Request(Code.ADD_BROKER, _B, h.AddBrokerRequestHeader),
    Request(Code.REMOVE_BROKER, _B, h.RemoveBrokerRequestHeader),
    Request(Code.BROKER_HEARTBEAT, _N | _K, h.BrokerHeartbeatRequestHeader),
    Request(Code.NOTIFY_MIN_BROKER_ID_CHANGE, _B, h.NotifyMinBrokerIdChangeRequestHeader),
    Request(Code.EXCHANGE_BROKER_HA_INFO, _B, h.ExchangeHAInfoRequestHeader, h.ExchangeHAInfoResponseHeader),
    Request(Code.GET_BROKER_HA_STATUS, _B, None, None, None, "HARuntimeInfo"),
    Request(Code.RESET_MASTER_FLUSH_OFFSET, _B, h.ResetMasterFlushOffsetHeader),
    Request(
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        _K,
        h.AlterSyncStateSetRequestHeader,
        h.AlterSyncStateSetResponseHeader,
        "SyncStateSet",
        "SyncStateSet",
    ),
    Request(Code.CONTROLLER_ELECT_MASTER, _K, h.ElectMasterRequestHeader, h.ElectMasterResponseHeader),
    Request(
        Code.CONTROLLER_REGISTER_BROKER,
        _K,
        h.RegisterBrokerToControllerRequestHeader,
        h.RegisterBrokerToControllerResponseHeader,
        None,
        "SyncStateSet",
    ),
    Request(
        Code.CONTROLLER_GET_REPLICA_INFO,
        _K,
        h.GetReplicaInfoRequestHeader,
        h.GetReplicaInfoResponseHeader,
        None,
        "SyncStateSet",
    ),
    Request(Code.CONTROLLER_GET_METADATA_INFO, _K, None, h.GetMetaDataResponseHeader),
    Request(Code.CONTROLLER_GET_SYNC_STATE_DATA, _K, None, None, None, "BrokerReplicasInfo"),
    Request(Code.GET_BROKER_EPOCH_CACHE, _B, None, None, None, "EpochEntryCache"),
    Request(Code.NOTIFY_BROKER_ROLE_CHANGED, _B, h.NotifyBrokerRoleChangedRequestHeader, None, "SyncStateSet"),
    Request(Code.UPDATE_CONTROLLER_CONFIG, _K),
    Request(Code.GET_CONTROLLER_CONFIG, _K),
    Request(Code.CLEAN_BROKER_DATA, _K, h.CleanControllerBrokerDataRequestHeader),
    Request(Code.CONTROLLER_GET_NEXT_BROKER_ID, _K, h.GetNextBrokerIdRequestHeader, h.GetNextBrokerIdResponseHeader),
    Request(Code.CONTROLLER_APPLY_BROKER_ID, _K, h.ApplyBrokerIdRequestHeader, h.ApplyBrokerIdResponseHeader),
    Request(Code.BROKER_CLOSE_CHANNEL_REQUEST, _K, h.BrokerCloseChannelRequest, h.BrokerCloseChannelResponse),
    Request(Code.CHECK_NOT_ACTIVE_BROKER_REQUEST, _K, h.CheckNotActiveBrokerRequest, h.CheckNotActiveBrokerResponse),
    Request(Code.GET_BROKER_LIVE_INFO_REQUEST, _K, h.GetBrokerLiveInfoRequest, h.GetBrokerLiveInfoResponse),
    Request(Code.GET_SYNC_STATE_DATA_REQUEST, _K, h.GetSyncStateDataRequest),
    Request(
        Code.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        _K,
        h.RaftBrokerHeartBeatEventRequest,
        h.RaftBrokerHeartBeatEventResponse,
    ),
    Request(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, _B),
    Request(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, _B),
    Request(Code.GET_COLD_DATA_FLOW_CTR_INFO, _B),
    Request(Code.SET_COMMITLOG_READ_MODE, _B),
    Request(Code.AUTH_CREATE_USER, _B, h.CreateUserRequestHeader, None, "UserInfo"),
    Request(Code.AUTH_UPDATE_USER, _B, h.UpdateUserRequestHeader, None, "UserInfo"),
    Request(Code.AUTH_DELETE_USER, _B, h.DeleteUserRequestHeader),
    Request(Code.AUTH_GET_USER, _B, h.GetUserRequestHeader, None, None, "UserInfo"),
    Request(Code.AUTH_LIST_USER, _B, h.ListUsersRequestHeader),
    Request(Code.AUTH_CREATE_ACL, _B, h.CreateAclRequestHeader, None, "AclInfo"),
    Request(Code.AUTH_UPDATE_ACL, _B, h.UpdateAclRequestHeader, None, "AclInfo"),
    Request(Code.AUTH_DELETE_ACL, _B, h.DeleteAclRequestHeader),
    Request(Code.AUTH_GET_ACL, _B, h.GetAclRequestHeader, None, None, "AclInfo"),
    Request(Code.AUTH_LIST_ACL, _B, h.ListAclsRequestHeader),
    Request(Code.SWITCH_TIMER_ENGINE, _B),
    Request(Code.POP_MESSAGE, _B, h.PopMessageRequestHeader, h.PopMessageResponseHeader),
    Request(Code.ACK_MESSAGE, _B, h.AckMessageRequestHeader),
    Request(Code.PEEK_MESSAGE, _B, h.PeekMessageRequestHeader, h.PopMessageResponseHeader),
    Request(
        Code.CHANGE_MESSAGE_INVISIBLETIME, _B, h.ChangeInvisibleTimeRequestHeader, h.ChangeInvisibleTimeResponseHeader
    ),
    Request(Code.NOTIFICATION, _B, h.NotificationRequestHeader, h.NotificationResponseHeader),
    Request(Code.POLLING_INFO, _B, h.PollingInfoRequestHeader, h.PollingInfoResponseHeader),
    Request(Code.POP_ROLLBACK, _B),
    Request(Code.POP_LITE_MESSAGE, _B, h.PopLiteMessageRequestHeader, h.PopLiteMessageResponseHeader),
    Request(Code.LITE_SUBSCRIPTION_CTL, _B, h.LiteSubscriptionCtlRequestHeader),
    Request(Code.NOTIFY_UNSUBSCRIBE_LITE, _C, h.NotifyUnsubscribeLiteRequestHeader),
    Request(Code.GET_BROKER_LITE_INFO, _B),
    Request(Code.GET_PARENT_TOPIC_INFO, _B, h.GetParentTopicInfoRequestHeader),
    Request(Code.GET_LITE_TOPIC_INFO, _B, h.GetLiteTopicInfoRequestHeader),
    Request(Code.GET_LITE_CLIENT_INFO, _B, h.GetLiteClientInfoRequestHeader),
    Request(Code.GET_LITE_GROUP_INFO, _B, h.GetLiteGroupInfoRequestHeader),
    Request(Code.TRIGGER_LITE_DISPATCH, _B, h.TriggerLiteDispatchRequestHeader),
    Request(Code.BATCH_ACK_MESSAGE, _B, None, None, "BatchAckMessageRequestBody"),
)

REQUESTS: Final = {int(row.code): row for row in _ROWS}
"""By request code; a code without a row is answered with REQUEST_CODE_NOT_SUPPORTED."""
