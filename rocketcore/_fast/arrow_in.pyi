from typing import Protocol, TypeAlias, final

import numpy
import numpy.typing
from typing_extensions import Buffer

_Int64Array: TypeAlias = Buffer | numpy.typing.NDArray[numpy.int64]

class _ArrowColumn(Protocol):
    """What pyarrow.Array is: an exporter of the Arrow PyCapsule Interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

@final
class BatchEncoder:
    def __init__(
        self,
        *,
        write_id: int,
        partition: int,
        tags: bytes = b"",
        keys: bytes = b"",
        properties: bytes = b"",
        max_body: int = 4194304,
    ) -> None: ...
    def encode(
        self,
        out: Buffer,
        max_bytes: int,
        first: int,
        last: int,
        row_base: int,
        *,
        body: _ArrowColumn,
        rows: _Int64Array | None = None,
        tags: _ArrowColumn | None = None,
        keys: _ArrowColumn | None = None,
        properties: _ArrowColumn | None = None,
        msg_id: _ArrowColumn | None = None,
        flag: _ArrowColumn | None = None,
        used: int = 0,
    ) -> tuple[int, int]: ...

def check_property_texts(column: _ArrowColumn, reserved: tuple[bytes, ...], row_base: int) -> None: ...
