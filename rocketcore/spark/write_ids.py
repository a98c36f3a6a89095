"""Write ids: what the UNIQ_KEYs of a write's rows begin with.

A UNIQ_KEY of the sink is 32 hexadecimal digits: 16 of the write, 8 of the partition, 8 of the row.
"""

from __future__ import annotations

from hashlib import blake2b

from rocketcore.errors import ConfigError

__all__ = ["write_id"]


def write_id(query: str, batch_id: int) -> str:
    """Return the write id of a batch of a stream, as the option ``writeId`` takes it: the same whenever it is repeated.

    The sink of streams has it by itself. Writes in ``foreachBatch`` are given it; two of one batch differ in ``query``.

    query    id of the query, or a name that no other query has
    raises   ConfigError for another type, an empty query or a negative batch
    returns  16 hexadecimal digits: blake2b of ``query`` in UTF-8 and of ``batch_id`` as 8 bytes, big-endian
    """
    if not isinstance(query, str) or not query:
        raise ConfigError(f"write_id() wants the id or a name of the query, got {query!r}")
    if not isinstance(batch_id, int) or not 0 <= batch_id < 1 << 63:
        raise ConfigError(f"write_id() wants the number of the batch, got {batch_id!r}")
    return blake2b(query.encode() + batch_id.to_bytes(8, "big"), digest_size=8).hexdigest()
