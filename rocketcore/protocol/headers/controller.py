"""Headers of the controller, of replication and of the broker container [5.x]."""

from __future__ import annotations

from rocketcore.protocol.schema import Header, Long, wire


class AlterSyncStateSetRequestHeader(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001)."""

    invoke_time: Long = wire(absent=0)
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: int | None = None


class AlterSyncStateSetResponseHeader(Header):
    """Answer to CONTROLLER_ALTER_SYNC_STATE_SET (1001)."""

    new_sync_state_set_epoch: int = 0


class ElectMasterRequestHeader(Header):
    """CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: str
    broker_name: str
    invoke_time: Long = wire(absent=0)
    broker_id: Long = -1
    designate_elect: bool = False


class ElectMasterResponseHeader(Header):
    """Answer to CONTROLLER_ELECT_MASTER (1002)."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class RegisterBrokerToControllerRequestHeader(Header):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long = 0


class RegisterBrokerToControllerResponseHeader(Header):
    """Answer to CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class GetReplicaInfoRequestHeader(Header):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str | None = None


class GetReplicaInfoResponseHeader(Header):
    """Answer to CONTROLLER_GET_REPLICA_INFO (1004)."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: int | None = None


class GetMetaDataResponseHeader(Header):
    """Answer to CONTROLLER_GET_METADATA_INFO (1005)."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    leader: bool = wire("isLeader", default=False)
    peers: str | None = None


class GetNextBrokerIdRequestHeader(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


class ApplyBrokerIdRequestHeader(Header):
    """CONTROLLER_APPLY_BROKER_ID (1013)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Long | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_APPLY_BROKER_ID (1013)."""

    cluster_name: str | None = None
    broker_name: str | None = None


class CleanControllerBrokerDataRequestHeader(Header):
    """CLEAN_BROKER_DATA (1011)."""

    broker_name: str
    invoke_time: Long = wire(absent=0)
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    clean_living_broker: bool = wire("isCleanLivingBroker", default=False)


class NotifyBrokerRoleChangedRequestHeader(Header):
    """NOTIFY_BROKER_ROLE_CHANGED (1008)."""

    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    master_broker_id: Long | None = None


class ExchangeHAInfoRequestHeader(Header):
    """EXCHANGE_BROKER_HA_INFO (906)."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class ExchangeHAInfoResponseHeader(Header):
    """Answer to EXCHANGE_BROKER_HA_INFO (906)."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Long


class AddBrokerRequestHeader(Header):
    """ADD_BROKER (902)."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(Header):
    """REMOVE_BROKER (903)."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long


class BrokerCloseChannelRequest(Header):
    """BROKER_CLOSE_CHANNEL_REQUEST (1014)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None


class BrokerCloseChannelResponse(Header):
    """Answer to BROKER_CLOSE_CHANNEL_REQUEST (1014)."""


class CheckNotActiveBrokerRequest(Header):
    """CHECK_NOT_ACTIVE_BROKER_REQUEST (1015)."""

    check_time_millis: Long = wire(absent=0)


class CheckNotActiveBrokerResponse(Header):
    """Answer to CHECK_NOT_ACTIVE_BROKER_REQUEST (1015)."""


class GetBrokerLiveInfoRequest(Header):
    """GET_BROKER_LIVE_INFO_REQUEST (1016)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None


class GetBrokerLiveInfoResponse(Header):
    """Answer to GET_BROKER_LIVE_INFO_REQUEST (1016)."""


class GetSyncStateDataRequest(Header):
    """GET_SYNC_STATE_DATA_REQUEST (1017)."""

    invoke_time: Long = wire(absent=0)


class RaftBrokerHeartBeatEventRequest(Header):
    """RAFT_BROKER_HEART_BEAT_EVENT_REQUEST (1018)."""

    cluster_name_identity_info: str | None = None
    broker_name_identity_info: str | None = None
    broker_id_identity_info: Long | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    heartbeat_timeout_millis: Long | None = None
    broker_id: Long | None = None
    last_update_timestamp: Long | None = None
    epoch: int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    election_priority: int | None = None


class RaftBrokerHeartBeatEventResponse(Header):
    """Answer to RAFT_BROKER_HEART_BEAT_EVENT_REQUEST (1018)."""
