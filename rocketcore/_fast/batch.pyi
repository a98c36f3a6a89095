from collections.abc import Sequence
from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

ELEMENT_FIXED_SIZE: int

BATCH_FLAG: int
BATCH_BODY_START: int
BATCH_BODY_LENGTH: int
BATCH_PROPERTIES_START: int
BATCH_PROPERTIES_LENGTH: int
BATCH_SIZE: int
BATCH_COLUMNS: int

PUT_PHYSICAL_OFFSET: int
PUT_SIZE: int
PUT_COLUMNS: int

def scan_batch(data: Buffer, start: int, end: int, rows: _Int64Array) -> int: ...
def longest_properties(batch_rows: _Int64Array, count: int) -> int: ...
def encode_batch(
    bodies: Sequence[Buffer], properties: Sequence[Buffer], flags: Sequence[int] | None = None
) -> bytes: ...
def put_batch(
    out: Buffer,
    position: int,
    limit: int,
    physical_offset: int,
    data: Buffer,
    batch_rows: _Int64Array,
    count: int,
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    results: _Int64Array,
    checksum: bool = False,
) -> int: ...
