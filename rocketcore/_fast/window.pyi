from array import array
from typing import Protocol

from typing_extensions import Buffer

class _Queue(Protocol):
    queue_id: int
    min_offset: int
    max_offset: int
    begins_later: bool
    known_codes: array[int] | None

class Window:
    log: Buffer
    def __init__(
        self,
        queue: _Queue,
        units: Buffer,
        first: int,
        most: int,
        limits: tuple[int, int, int, int],
        disk_before: int,
        codes: Buffer | None,
        believes: bool,
        log: Buffer,
        log_start: int,
        sealed: bool,
        readable: tuple[int, int],
    ) -> None: ...
