"""Kernel status codes: a scan loop returns one with the place where it stopped, ``fail`` makes it an exception."""

cdef enum Status:
    OK = 0
    # Frames
    FRAME_TOO_LARGE = -1
    FRAME_TOO_SHORT = -2
    SERIALIZE_TYPE_UNKNOWN = -3
    HEADER_PAST_FRAME = -4
    # Headers
    HEADER_TOO_SHORT = -5
    REMARK_PAST_HEADER = -6
    EXT_PAST_HEADER = -7
    EXT_ENTRY_BROKEN = -8
    EXT_KEY_EMPTY = -9
    # Stored messages, batches, log and queue files
    RECORD_TOO_SHORT = -10
    RECORD_PAST_END = -11
    MAGIC_UNKNOWN = -12
    BODY_PAST_RECORD = -13
    TOPIC_PAST_RECORD = -14
    PROPERTIES_PAST_RECORD = -15
    RECORD_SIZE_WRONG = -16
    CHECKSUM_WRONG = -17
    SIZE_NEGATIVE = -18
    OFFSET_NEGATIVE = -19
    CHAIN_BROKEN = -21
    # Answer of a loop that stops at bytes that are not all there; never an error by itself
    INCOMPLETE = -20


cdef object fail(int status, Py_ssize_t position)
