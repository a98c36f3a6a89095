from typing import TypeAlias

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

UNIT_SIZE: int
OUT_COLUMNS: int
PHYSICAL_OFFSET: int
SIZE: int
INDEX: int

def put_unit(out: Buffer, position: int, physical_offset: int, size: int, tags_code: int) -> int: ...
def put_blank(out: Buffer, position: int, count: int) -> int: ...
def unit(units: Buffer, index: int) -> tuple[int, int, int]: ...
def scan_units(
    units: Buffer,
    codes: _Int64Array | None,
    max_count: int,
    max_bytes: int,
    out: _Int64Array,
    disk_before: int = 0,
    disk_max_count: int = 8,
    disk_max_bytes: int = 65536,
    known: _Int64Array | None = None,
) -> tuple[int, int]: ...
def is_queued(sys_flag: int) -> bool: ...
def tags_codes(units: Buffer) -> set[int]: ...

class UnitCollector:
    def follow(self, topic: bytes, queue_id: int, queue_offset: int) -> int: ...
    def collect(self, data: Buffer, rows: _Int64Array, first: int, last: int) -> int: ...
    def take(self, number: int) -> bytes: ...
    def take_all(self) -> list[tuple[int, bytes]]: ...
    def forget(self, number: int) -> None: ...
