from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

SEND_STATUS: int
SEND_OPAQUE: int
SEND_FLAG_BITS: int
SEND_SERIALIZE_TYPE: int
SEND_QUEUE_ID: int
SEND_SYS_FLAG: int
SEND_BORN_TIMESTAMP: int
SEND_MESSAGE_FLAG: int
SEND_RECONSUME_TIMES: int
SEND_TOPIC_START: int
SEND_TOPIC_LENGTH: int
SEND_PROPERTIES_START: int
SEND_PROPERTIES_LENGTH: int
SEND_BODY_START: int
SEND_BODY_LENGTH: int
SEND_COLUMNS: int

RESULT_POSITION: int
RESULT_SIZE: int
RESULT_QUEUE_OFFSET: int
RESULT_UNIQ_KEY_START: int
RESULT_UNIQ_KEY_LENGTH: int
RESULT_WAIT: int
RESULT_COLUMNS: int

ASKS_NO_WAIT: int
ASKS_DELAY: int
ASKS_TIMER: int
ASKS_TRANSACTION: int
ASKS_INNER_BATCH: int
ASKS_POP_CHECKPOINT: int
ASKS_KEY: int
ASKS_REWRITE: int

def scan_send(
    data: Buffer, rows: _Int64Array, heads: _Int64Array, first: int, last: int, out: _Int64Array, scratch: Buffer
) -> int: ...
def examine(properties: Buffer, sys_flag: int, extra_properties: bytes) -> int: ...
def asked_by(name: str) -> int: ...
def put_records(
    out: Buffer,
    position: int,
    limit: int,
    physical_offset: int,
    data: Buffer,
    scratch: Buffer,
    send_rows: _Int64Array,
    first: int,
    last: int,
    *,
    topic: bytes,
    next_offsets: _Int64Array,
    born_host: bytes,
    store_host: bytes,
    store_timestamp: int,
    extra_properties: bytes,
    max_body: int,
    results: _Int64Array,
    checksum: bool = False,
) -> int: ...
