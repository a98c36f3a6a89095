from typing import TypeAlias

import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

# numpy declares its arrays as buffers from Python 3.12 on only.
_Table: TypeAlias = WriteableBuffer | NDArray[np.int64]

FRAME_START: int
HEADER_START: int
HEADER_LENGTH: int
BODY_START: int
BODY_LENGTH: int
SERIALIZE_TYPE: int
FRAME_COLUMNS: int

def scan(data: ReadableBuffer, start: int, end: int, rows: _Table, limit: int = 16_777_216) -> tuple[int, int]: ...
