"""The fixed fields at the begin of a record, for those who look at nothing else of it (``_fast/record.pxd``)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from rocketcore.codes import MessageSysFlag

__all__ = ["HEAD_BYTES", "RecordHead"]

HEAD_BYTES = 88
"""What there is of them with IPv6 hosts, as far as the store timestamp. The shortest record is longer."""

_FIELDS = Struct(">i8xi4xqqi")
_STORE_TIMESTAMP = Struct(">q")
_STORE_TIMESTAMP_AT = 56
_BORN_HOST_V6, _V6_EXTRA = int(MessageSysFlag.BORN_HOST_V6), 12


class RecordHead(NamedTuple):
    """Nothing of it is checked."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int

    @classmethod
    def read(cls, record: bytes | None) -> RecordHead | None:
        """Read the first bytes of a record; None where they are less than ``HEAD_BYTES``."""
        if record is None or len(record) < HEAD_BYTES:
            return None
        *fields, sys_flag = _FIELDS.unpack_from(record)
        at = _STORE_TIMESTAMP_AT + (_V6_EXTRA if sys_flag & _BORN_HOST_V6 else 0)
        return cls(*fields, *_STORE_TIMESTAMP.unpack_from(record, at))
