"""What a broker tells of its replication [5.x]."""

from __future__ import annotations

from dataclasses import field

from rocketcore.protocol.bodies.base import Body, body


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
