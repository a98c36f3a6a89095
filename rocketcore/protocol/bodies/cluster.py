"""Replication and the controller [5.x]."""

from __future__ import annotations

from dataclasses import field

from rocketcore.protocol.bodies.base import Body, body

__all__ = [
    "BrokerReplicasInfo",
    "EpochEntry",
    "EpochEntryCache",
    "HAClientRuntimeInfo",
    "HAConnectionRuntimeInfo",
    "HARuntimeInfo",
    "ReplicaIdentity",
    "ReplicasInfo",
    "SyncStateSet",
]


@body
class HAConnectionRuntimeInfo(Body):
    """A slave as its master sees it; offsets and rates in bytes."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@body
class HAClientRuntimeInfo(Body):
    """A slave's own view of its replication."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    is_activated: bool | None = None


@body
class HARuntimeInfo(Body):
    """Answer to GET_BROKER_HA_STATUS (907)."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


@body
class SyncStateSet(Body):
    """The brokers that are in step with their master."""

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


@body
class ReplicaIdentity(Body):
    """One replica of a broker name."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str = ""
    alive: bool = False


@body
class ReplicasInfo(Body):
    """The replicas of one broker name."""

    master_broker_id: int = 0
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


@body
class BrokerReplicasInfo(Body):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA (1006)."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


@body
class EpochEntry(Body):
    """One term of a master; offsets in the log."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0


@body
class EpochEntryCache(Body):
    """Answer to GET_BROKER_EPOCH_CACHE (1007)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = 0
    epoch_list: list[EpochEntry] | None = None
    max_offset: int = 0
