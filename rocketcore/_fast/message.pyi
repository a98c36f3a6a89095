from collections.abc import Sequence
from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

COLUMNS: int
POSITION: int
TOTAL_SIZE: int
MAGIC: int
BODY_CRC: int
QUEUE_ID: int
FLAG: int
QUEUE_OFFSET: int
PHYSICAL_OFFSET: int
SYS_FLAG: int
BORN_TIMESTAMP: int
BORN_HOST: int
STORE_TIMESTAMP: int
STORE_HOST: int
RECONSUME_TIMES: int
PREPARED_OFFSET: int
BODY_START: int
BODY_LENGTH: int
TOPIC_START: int
TOPIC_LENGTH: int
PROPERTIES_START: int
PROPERTIES_LENGTH: int
TAGS_CODE: int

BATCH_COLUMNS: int
BATCH_FLAG: int
BATCH_BODY_START: int
BATCH_BODY_LENGTH: int
BATCH_PROPERTIES_START: int
BATCH_PROPERTIES_LENGTH: int
BATCH_SIZE: int

RESULT_COLUMNS: int
RESULT_POSITION: int
RESULT_SIZE: int
RESULT_TAGS_CODE: int
RESULT_STATUS: int
RESULT_QUEUE_OFFSET: int
RESULT_UNIQ_KEY_START: int
RESULT_UNIQ_KEY_LENGTH: int
RESULT_WAIT: int

PUT_OK: int
PUT_GENERAL: int
PUT_OTHER_TOPIC: int
PUT_BAD_QUEUE: int
PUT_BODY_TOO_LONG: int
PUT_PROPERTIES_TOO_LONG: int
PUT_NO_ROOM: int

CHECKSUM_SIZE: int
MAGIC_V1: int
MAGIC_V2: int
MAGIC_FILLER: int

def scan_stored(
    data: Buffer,
    start: int,
    end: int,
    rows: _Int64Array,
    check_crc: bool = False,
    tags: bool = False,
    whole: bool = False,
    sealed: bool = False,
) -> tuple[int, int]: ...
def stored_properties_size(properties: Buffer, checksum: bool) -> int: ...
def stored_size(topic_length: int, body_length: int, properties_length: int, sys_flag: int) -> int: ...
def encode_stored(
    *,
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: Buffer,
    properties: Buffer,
    checksum: bool = False,
) -> bytes: ...
def put_stored(
    out: Buffer,
    position: int,
    *,
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: Buffer,
    properties: Buffer,
    checksum: bool = False,
) -> int: ...
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
def scan_batch(data: Buffer, start: int, end: int, rows: _Int64Array) -> int: ...
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
    extra_properties: bytes,
    results: _Int64Array,
    checksum: bool = False,
) -> int: ...
def tags_code(properties: Buffer) -> int: ...
def waits_for_flush(properties: Buffer) -> bool: ...
def offset_msg_id(store_host: bytes, physical_offset: int) -> bytes: ...
def offset_msg_ids(store_host: bytes, physical_offsets: _Int64Array) -> bytes: ...
def decode_offset_msg_id(msg_id: bytes | str) -> tuple[bytes, int]: ...
