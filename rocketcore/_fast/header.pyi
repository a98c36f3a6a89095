from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

# numpy declares its arrays as buffers from Python 3.12 on only.
_Table: TypeAlias = WriteableBuffer | NDArray[np.int64]

CODE: int
LANGUAGE: int
VERSION: int
OPAQUE: int
FLAG: int
EXT_START: int
EXT_END: int
STATUS: int
HEAD_COLUMNS: int
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

def read_frames(
    data: ReadableBuffer, start: int, rows: _Table, heads: _Table, limit: int = 16_777_216
) -> tuple[int, int, int]: ...
def read(
    data: ReadableBuffer, header_start: int, header_length: int, serialize_type: int
) -> tuple[int, int, int, int, int, str | None, dict[str, str] | None] | None: ...
def find_ext_of_all(
    data: ReadableBuffer, rows: _Table, heads: _Table, first: int, last: int, name: bytes, without: bytes
) -> list[bytes] | None: ...
def scan_send(
    data: ReadableBuffer,
    rows: _Table,
    heads: _Table,
    first: int,
    last: int,
    out: _Table,
    scratch: WriteableBuffer,
) -> int: ...
def read_pull(data: ReadableBuffer, rows: _Table, heads: _Table, index: int) -> dict[str, Any] | None: ...
def encode_frame(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: Mapping[str, str | None] | None,
    body: ReadableBuffer,
    serialize_type: int,
) -> bytes: ...
def encode_send_response(
    opaque: int,
    version: int,
    queue_id: int,
    queue_offset: int,
    msg_id: bytes,
    transaction_id: bytes | None,
    serialize_type: int,
    region: bytes,
) -> bytes: ...
def encode_pull_response_header(
    code: int,
    opaque: int,
    version: int,
    remark: str | None,
    suggest: int,
    next_begin: int,
    min_offset: int,
    max_offset: int,
    body_length: int,
    serialize_type: int,
) -> bytes: ...
def encode_body_responses(rows: _Table, heads: _Table, first: int, version: int, bodies: list[bytes]) -> bytes: ...
def decode_text(data: ReadableBuffer) -> str: ...
def decode_properties(data: ReadableBuffer) -> dict[str, str]: ...
def encode_properties(properties: Mapping[str, str | None]) -> bytes: ...
def property_value(data: ReadableBuffer, start: int, length: int, name: bytes) -> bytes | None: ...
def java_hash(text: str) -> int: ...
