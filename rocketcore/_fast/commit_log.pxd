"""Reading a segment record by record, inline for every kernel that walks one, and the rows that ``walk`` fills."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from rocketcore._fast.record cimport (
    FIXED_SIZE,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    check_record,
    rc_get_i32,
    read_record,
)
from rocketcore._fast.record cimport PHYSICAL_OFFSET as RECORD_PHYSICAL_OFFSET
from rocketcore._fast.record cimport PROPERTIES_LENGTH as RECORD_PROPERTIES_LENGTH
from rocketcore._fast.record cimport PROPERTIES_START as RECORD_PROPERTIES_START
from rocketcore._fast.record cimport TOTAL_SIZE as RECORD_TOTAL_SIZE
from rocketcore._fast.status cimport OK

# Why a walk stopped.
cpdef enum:
    END_OF_DATA
    FILLER
    END_OF_LOG
    FULL
    UNREADABLE

cpdef enum:
    FILLER_SIZE = 8

cpdef enum:
    PHYSICAL_OFFSET
    SIZE
    TAGS_CODE
    QUEUE_ID
    QUEUE_OFFSET
    STORE_TIMESTAMP
    TOPIC_START
    TOPIC_LENGTH
    SYS_FLAG
    PROPERTIES_START
    PROPERTIES_LENGTH
    DELAY_LEVEL
    PREPARED_OFFSET
    COLUMNS


cdef inline int what_follows(const uint8_t* data, int64_t at, int64_t end) noexcept nogil:
    """Say, by its first eight bytes, what lies at ``at``: FULL for all of a record, or why a walk stops there."""
    cdef int64_t size
    cdef int32_t magic
    if end - at < FILLER_SIZE:
        return END_OF_DATA
    size = rc_get_i32(data + at)
    magic = rc_get_i32(data + at + 4)
    if magic == MAGIC_FILLER:
        return FILLER
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < FIXED_SIZE:
        return END_OF_LOG
    return END_OF_DATA if size > end - at else FULL


cdef inline bint read_own(
    const uint8_t* data, int64_t at, int64_t end, int64_t base_offset, int64_t* record, bint check_crc, bint* sealed
) noexcept nogil:
    """Whether an undamaged record that was written for this very offset begins at ``at``; fills ``record``."""
    if read_record(data, at, end, record) != OK or record[RECORD_PHYSICAL_OFFSET] != base_offset + at:
        return False
    if not check_crc:
        return record[RECORD_PROPERTIES_START] + record[RECORD_PROPERTIES_LENGTH] == at + record[RECORD_TOTAL_SIZE]
    return check_record(data, record, sealed) == OK
