"""Headers of replication between brokers [5.x]."""

from __future__ import annotations

from rocketcore.protocol.schema import Header, Long


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
