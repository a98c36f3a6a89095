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
from rocketcore._fast.record cimport QUEUE_ID as RECORD_QUEUE_ID
from rocketcore._fast.record cimport QUEUE_OFFSET as RECORD_QUEUE_OFFSET
from rocketcore._fast.record cimport TOTAL_SIZE as RECORD_TOTAL_SIZE
from rocketcore._fast.status cimport OK

cdef extern from *:
    """
    /* Has bytes on their way to the cache; one that is not mapped is left out. */
    static inline void rc_prefetch(const uint8_t* at, int64_t size) {
        const uint8_t* end = at + (size < 4096 ? size : 4096);
        for (; at < end; at += 64)
            __builtin_prefetch(at, 0, 3);
    }
    """
    void rc_prefetch(const uint8_t* at, int64_t size) nogil


# Records that units of a queue lead to, copied out of one file of the log; ``out`` has room for ``gathered_size``.
cdef struct Gather:
    const int64_t* units
    Py_ssize_t count
    const uint8_t* log
    int64_t log_start
    int32_t queue_id
    int64_t queue_offset
    bint sealed
    uint8_t* out
    # Results
    int64_t copied
    Py_ssize_t sound

cdef int64_t gathered_size(
    const int64_t* units, Py_ssize_t count, int64_t log_start, int64_t log_length, Py_ssize_t* within
) noexcept nogil
cdef void gather_readable(Gather* gather, int64_t log_length) noexcept nogil


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


cdef inline bint read_queued(
    const uint8_t* data, int64_t at, int64_t size, int64_t physical_offset, int32_t queue_id, int64_t queue_offset,
    int64_t* record, bint* sealed,
) noexcept nogil:
    """Whether the record at ``at`` is undamaged and the one that a unit of a queue leads to; fills ``record``."""
    return (
        read_record(data, at, at + size, record) == OK
        and record[RECORD_TOTAL_SIZE] == size
        and record[RECORD_QUEUE_ID] == queue_id
        and record[RECORD_QUEUE_OFFSET] == queue_offset
        and record[RECORD_PHYSICAL_OFFSET] == physical_offset
        and check_record(data, record, sealed) == OK
    )
