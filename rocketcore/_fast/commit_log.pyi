from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

COLUMNS: int
PHYSICAL_OFFSET: int
SIZE: int
TAGS_CODE: int
QUEUE_ID: int
QUEUE_OFFSET: int
STORE_TIMESTAMP: int
TOPIC_START: int
TOPIC_LENGTH: int
SYS_FLAG: int
PROPERTIES_START: int
PROPERTIES_LENGTH: int
DELAY_LEVEL: int
PREPARED_OFFSET: int

END_OF_DATA: int
FILLER: int
END_OF_LOG: int
FULL: int
UNREADABLE: int

FILLER_SIZE: int

def walk(
    data: Buffer,
    start: int,
    end: int,
    base_offset: int,
    rows: _Int64Array,
    check_crc: bool = True,
    sealed: bool = False,
) -> tuple[int, int, int, bool]: ...
def find(data: Buffer, start: int, last: int, base_offset: int, sealed: bool) -> int: ...
def damaged_end(data: Buffer, at: int, base_offset: int, sealed: bool) -> int: ...
def gather(
    units: _Int64Array,
    first: int,
    last: int,
    log: Buffer,
    log_start: int,
    queue_id: int,
    queue_offset: int,
    sealed: bool = False,
) -> tuple[bytes, int]: ...
def encode_filler(left: int) -> bytes: ...
