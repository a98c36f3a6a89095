from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

HEADER_SIZE: int
SLOT_SIZE: int
ENTRY_SIZE: int

KEY_HASH: int
KEY_OFFSET: int
KEY_TIMESTAMP: int
KEY_COLUMNS: int

BEGIN_TIMESTAMP: int
END_TIMESTAMP: int
BEGIN_OFFSET: int
END_OFFSET: int
USED_SLOTS: int
ENTRIES: int
HEADER_COLUMNS: int

def scan_keys(
    data: Buffer,
    start: int,
    end: int,
    base_offset: int,
    rows: _Int64Array,
    limit: int,
    done: int = 0,
    newest_timestamp: int | None = None,
) -> tuple[int, int, int, int]: ...
def key_hash(text: Buffer) -> int: ...
def put_entries(rows: _Int64Array, count: int, header: _Int64Array, slots: Buffer, out: Buffer) -> None: ...
def take_back(entries: Buffer, count: int, slots: Buffer) -> None: ...
def checksum(data: Buffer, start: int, end: int) -> int: ...
def restore_slots(data: Buffer, count: int, slots: Buffer) -> tuple[int, int]: ...
def find_offsets(
    data: Buffer,
    slots: Buffer,
    count: int,
    begin_timestamp: int,
    hash: int,
    begin: int,
    end: int,
    out: _Int64Array,
    cursor: int = -1,
    steps: int = ...,
) -> tuple[int, int]: ...
