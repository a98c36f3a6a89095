from typing import TypeAlias

import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

# numpy declares its arrays as buffers from Python 3.12 on only.
_Table: TypeAlias = WriteableBuffer | NDArray[np.int64]

SEND_OPAQUE: int
SEND_FLAG_BITS: int
SEND_QUEUE_ID: int
SEND_SYS_FLAG: int
SEND_BORN_TIMESTAMP: int
SEND_MESSAGE_FLAG: int
SEND_RECONSUME_TIMES: int
SEND_BATCH: int
SEND_MAX_RECONSUME: int
SEND_GROUP_START: int
SEND_GROUP_LENGTH: int
SEND_TOPIC_START: int
SEND_TOPIC_LENGTH: int
SEND_PROPERTIES_START: int
SEND_PROPERTIES_LENGTH: int
SEND_BODY_START: int
SEND_BODY_LENGTH: int
SEND_DEFAULT_TOPIC_START: int
SEND_DEFAULT_TOPIC_LENGTH: int
SEND_DEFAULT_QUEUES: int
SEND_STATUS: int
SEND_CODE: int
SEND_VERSION: int
SEND_SERIALIZE_TYPE: int
SEND_COLUMNS: int

def scan_send(
    data: ReadableBuffer,
    rows: _Table,
    heads: _Table,
    first: int,
    last: int,
    out: _Table,
    scratch: WriteableBuffer,
) -> int: ...
