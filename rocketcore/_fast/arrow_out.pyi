from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, final

from typing_extensions import Buffer

COLUMNS: tuple[str, ...]

@final
class ColumnBuffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

ColumnBuffers: TypeAlias = tuple[ColumnBuffer | None, ...]

@final
class StoredColumns:
    def __init__(
        self,
        columns: Sequence[str],
        unpack: Callable[[memoryview, int], bytes] | None = None,
        column_bytes: int = ...,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def gathered_bytes(self) -> int: ...
    @property
    def last_queue_offset(self) -> int: ...
    @property
    def stopped_by(self) -> Literal["limit", "order", "full"] | None: ...
    def append(
        self,
        data: Buffer,
        start: int,
        end: int,
        limit_offset: int | None = None,
        check_crc: bool = False,
        most: int = ...,
        after_offset: int | None = None,
    ) -> tuple[int, int]: ...
    def finish(self) -> dict[str, ColumnBuffers]: ...
