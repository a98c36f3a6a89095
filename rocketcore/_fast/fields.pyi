from collections.abc import Callable
from typing import Any, TypeVar

from _typeshed import ReadableBuffer

_C = TypeVar("_C", bound=Received)

class FieldTable:
    def __init__(self, fields: tuple[tuple[str, str, str, bool], ...], stand_ins: dict[str, Any]) -> None: ...

class Received:
    code: int
    language: int
    version: int
    opaque: int
    flag: int
    serialize_type: int
    remark: str | None
    ext_fields: dict[str, str] | None
    # A body that is sent from where it lies may be set as a memoryview; what was received is bytes.
    @property
    def body(self) -> bytes: ...
    @body.setter
    def body(self, value: bytes | memoryview) -> None: ...
    def view_body(self) -> memoryview: ...
    def detach(self) -> None: ...
    def drop(self) -> None: ...

def take(
    kind: type[_C],
    data: bytes,
    rows: ReadableBuffer,
    heads: ReadableBuffer,
    index: int,
    general: Callable[[bytes, int], tuple[int, int, int, int, int, str | None, dict[str, str] | None]],
) -> _C: ...
def read_fields(command: Received, table: FieldTable) -> dict[str, Any] | None: ...
def set_apart(
    data: bytes, rows: ReadableBuffer, heads: ReadableBuffer, index: int, first: bytes, second: bytes
) -> tuple[bytes, int, int, int, int] | None: ...
