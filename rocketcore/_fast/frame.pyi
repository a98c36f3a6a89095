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
CODE: int
LANGUAGE: int
VERSION: int
OPAQUE: int
FLAG: int
EXT_START: int
EXT_END: int
STATUS: int
HEAD_COLUMNS: int

def read_frames(
    data: ReadableBuffer, start: int, rows: _Table, heads: _Table, limit: int = 16_777_216
) -> tuple[int, int, int]: ...
