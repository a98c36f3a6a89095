"""Kernel status codes and the one function that turns a status into an exception.

The loops run without the GIL and return a ``Status`` (status.pxd) and a position; only the ``def`` edge raises, and
only through ``fail``, so that every kernel words the same fault the same way.
"""

from rocketcore.errors import BadChecksum, BadMagic, DecodeError, FrameTooLarge

REASONS = {
    FRAME_TOO_LARGE: "frame longer than the limit",
    FRAME_TOO_SHORT: "frame length negative or below 4",
    SERIALIZE_TYPE_UNKNOWN: "unknown header serialize type",
    HEADER_PAST_FRAME: "header longer than its frame",
    HEADER_TOO_SHORT: "binary header shorter than its fixed fields",
    REMARK_PAST_HEADER: "remark length negative or past the end of the header",
    EXT_PAST_HEADER: "ext fields past the end of the header",
    EXT_ENTRY_BROKEN: "ext field entry past the end of the ext fields",
    EXT_KEY_EMPTY: "ext field with an empty key",
    RECORD_TOO_SHORT: "record shorter than its fixed fields",
    RECORD_PAST_END: "record longer than the bytes left",
    MAGIC_UNKNOWN: "unknown magic code",
    BODY_PAST_RECORD: "body length negative or past the end of the record",
    TOPIC_PAST_RECORD: "topic length negative or past the end of the record",
    PROPERTIES_PAST_RECORD: "properties length negative or past the end of the record",
    RECORD_SIZE_WRONG: "record size differs from the size of its fields",
    CHECKSUM_WRONG: "checksum differs from the stored one",
    SIZE_NEGATIVE: "negative size",
    OFFSET_NEGATIVE: "negative offset",
    CHAIN_BROKEN: "index entry of another slot, or that leads to none before it",
    INCOMPLETE: "bytes end inside a record",
}

_CLASSES = {FRAME_TOO_LARGE: FrameTooLarge, MAGIC_UNKNOWN: BadMagic, CHECKSUM_WRONG: BadChecksum}


cdef object fail(int status, Py_ssize_t position):
    """Return the exception for a status; the caller raises it, so that its traceback starts at the edge."""
    return _CLASSES.get(status, DecodeError)(REASONS[status], position)
