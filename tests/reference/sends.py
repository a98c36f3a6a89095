"""What a message asks for beyond being stored as it came: the rules of ``_fast/sends.pyx``, one after the other."""

from __future__ import annotations

from tests.reference.message import properties_of

TIMERS = {b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS"}


def asks(properties: bytes, sys_flag: int, extra: bytes) -> set[str]:
    """Return the names of the ASKS_… that hold; of a name that comes twice the last value counts."""
    pairs = list(properties_of(properties))
    names, values = [name for name, _ in pairs], dict(pairs)
    plain = b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
    found = {
        "NO_WAIT": values.get(b"WAIT", b"true").lower() != b"true",
        "DELAY": b"DELAY" in values,
        "TIMER": not TIMERS.isdisjoint(names),
        "TRANSACTION": sys_flag & 0xC != 0 or values.get(b"TRAN_MSG", b"").lower() == b"true",
        "INNER_BATCH": sys_flag & 0x80 != 0 or b"INNER_NUM" in values,
        "POP_CHECKPOINT": b"POP_CK" in values,
        "KEY": b"UNIQ_KEY" not in values,
        "REWRITE": (
            plain not in (properties, properties + b"\x02")
            or len(values) < len(pairs)
            or len(pairs) > 64
            or (len(properties) > 32767 and bool(pairs))
            or b"__CRC32#" in values
            or not values.keys().isdisjoint(dict(properties_of(extra)))
        ),
    }
    return {name for name, holds in found.items() if holds}
