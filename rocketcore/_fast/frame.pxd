"""Columns of a frame row, for kernels that read the table ``frame.scan`` filled."""

cdef enum:
    FRAME_START
    HEADER_START
    HEADER_LENGTH
    BODY_START
    BODY_LENGTH
    SERIALIZE_TYPE
    FRAME_COLUMNS
