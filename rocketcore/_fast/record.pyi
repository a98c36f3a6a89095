from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

STORED_COLUMNS: int
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
CHECKSUM_SIZE: int

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
def delay_level(value: str) -> int: ...
def tags_code(properties: Buffer) -> int: ...
def stored_size(topic_length: int, body_length: int, properties_length: int, sys_flag: int) -> int: ...
def stored_properties_size(properties: Buffer, checksum: bool) -> int: ...
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
