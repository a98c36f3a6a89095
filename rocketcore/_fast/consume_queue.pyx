"""Consume-queue units: append, scan by tag within the limits of a pull, recover, search by log position.

layout    physical_offset i64 · size i32 · tags_code i64, big-endian, 20 bytes; unit i is at byte 20 · i of its queue.
          A queue that does not begin at 0 is filled before its first unit with blanks {0, 0x7FFFFFFF, 0}
RocketMQ  store/ConsumeQueue.java, 5.5.0
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from rocketcore._fast.record cimport rc_get_i32, rc_get_i64, rc_put_32, rc_put_64
from rocketcore._fast.status cimport OFFSET_NEGATIVE, OK, SIZE_NEGATIVE, Status, fail
from rocketcore._fast.table cimport take_bytes, take_rows

cdef enum:
    UNIT_SIZE = 20

cdef enum:
    PHYSICAL_OFFSET
    SIZE
    INDEX
    OUT_COLUMNS

globals().update({
    "UNIT_SIZE": <int>UNIT_SIZE,
    "PHYSICAL_OFFSET": <int>PHYSICAL_OFFSET,
    "SIZE": <int>SIZE,
    "INDEX": <int>INDEX,
    "OUT_COLUMNS": <int>OUT_COLUMNS,
})


cdef inline uint8_t* write_unit(uint8_t* at, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil:
    at = rc_put_64(at, <uint64_t>physical_offset)
    at = rc_put_32(at, <uint32_t>size)
    return rc_put_64(at, <uint64_t>tags_code)


cdef int take_units(object units, Py_buffer* view) except -1:
    take_bytes(units, view)
    if view.len % UNIT_SIZE:
        PyBuffer_Release(view)
        raise ValueError(f"{view.len} bytes are not a whole number of {UNIT_SIZE}-byte units")
    return 0


cdef int take_target(object out, Py_ssize_t position, Py_ssize_t count, Py_buffer* view) except -1:
    PyObject_GetBuffer(out, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    if position < 0 or count < 0 or position > view.len or count > (view.len - position) // UNIT_SIZE:
        length = view.len
        PyBuffer_Release(view)
        raise ValueError(f"{count} units at {position} do not fit a buffer of {length} bytes")
    return 0


def put_unit(out, Py_ssize_t position, int64_t physical_offset, int32_t size, int64_t tags_code):
    """Write one unit at byte ``position`` of ``out``; returns the position after it.

    raises    ValueError if it does not fit
    RocketMQ  store/ConsumeQueue.java (putMessagePositionInfo)
    """
    cdef Py_buffer target
    take_target(out, position, 1, &target)
    write_unit(<uint8_t*>target.buf + position, physical_offset, size, tags_code)
    PyBuffer_Release(&target)
    return position + UNIT_SIZE


def put_units(
    out, Py_ssize_t position, const int64_t[:] physical_offsets, const int64_t[:] sizes, const int64_t[:] tags_codes
):
    """Write units at byte ``position`` of ``out``; returns the position after the last.

    columns   one-dimensional int64 buffers of one length, of any stride: columns of a table of rows will do
    raises    ValueError if the lengths differ, a size is no int32 or the units do not fit
    """
    cdef Py_buffer target
    cdef Py_ssize_t i, count = physical_offsets.shape[0]
    cdef uint8_t* at
    if sizes.shape[0] != count or tags_codes.shape[0] != count:
        raise ValueError("physical_offsets, sizes and tags_codes need the same length")
    take_target(out, position, count, &target)
    try:
        at = <uint8_t*>target.buf + position
        for i in range(count):
            if sizes[i] < 0 or sizes[i] > INT32_MAX:
                raise ValueError(f"unit {i}: size {sizes[i]} is no message size")
            at = write_unit(at, physical_offsets[i], <int32_t>sizes[i], tags_codes[i])
    finally:
        PyBuffer_Release(&target)
    return position + count * UNIT_SIZE


def put_blank(out, Py_ssize_t position, Py_ssize_t count):
    """Write ``count`` blanks {0, 0x7FFFFFFF, 0} at byte ``position``; returns the position after the last.

    RocketMQ  store/ConsumeQueue.java (fillPreBlank)
    """
    cdef Py_buffer target
    cdef Py_ssize_t _
    cdef uint8_t* at
    take_target(out, position, count, &target)
    at = <uint8_t*>target.buf + position
    for _ in range(count):
        at = write_unit(at, 0, INT32_MAX, 0)
    PyBuffer_Release(&target)
    return position + count * UNIT_SIZE


def unit(units, Py_ssize_t index):
    """Return (physical_offset, size, tags_code) of one unit; raises IndexError outside the buffer."""
    cdef Py_buffer source
    cdef const uint8_t* at
    take_units(units, &source)
    try:
        if index < 0 or index >= source.len // UNIT_SIZE:
            raise IndexError(f"unit {index} of {source.len // UNIT_SIZE}")
        at = <const uint8_t*>source.buf + index * UNIT_SIZE
        return rc_get_i64(at), rc_get_i32(at + 8), rc_get_i64(at + 12)
    finally:
        PyBuffer_Release(&source)


cdef inline bint contains(const int64_t* codes, Py_ssize_t count, int64_t code) noexcept nogil:
    """Search a sorted array; subscriptions have a few tags, so the halves of a long one come first and then a walk."""
    cdef Py_ssize_t middle
    while count > 8:
        middle = count // 2
        if codes[middle] <= code:
            codes += middle
            count -= middle
        else:
            count = middle
    while count > 0:
        if codes[0] == code:
            return True
        codes += 1
        count -= 1
    return False


cdef struct Limits:
    int64_t max_count
    int64_t max_bytes
    int64_t disk_before
    int64_t disk_max_count
    int64_t disk_max_bytes


cdef inline bint is_full(
    const Limits* limits, int64_t count, int64_t taken, int64_t offset, int64_t size
) noexcept nogil:
    """Whether a unit would break a limit; the first message never does."""
    if count == 0:
        return False
    if offset < limits.disk_before:
        return count + 1 > limits.disk_max_count or taken + size > limits.disk_max_bytes
    return count + 1 > limits.max_count or taken + size > limits.max_bytes


cdef Status scan_loop(
    const uint8_t* units, Py_ssize_t length, const int64_t* codes, Py_ssize_t code_count, const Limits* limits,
    int64_t* out, Py_ssize_t capacity, Py_ssize_t* matched, Py_ssize_t* examined,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t i = 0, count = 0
    cdef int64_t taken = 0, offset, size
    cdef const uint8_t* at = units
    while i < length:
        offset = rc_get_i64(at)
        size = rc_get_i32(at + 8)
        if offset < 0:
            status = OFFSET_NEGATIVE
            break
        if size < 0:
            status = SIZE_NEGATIVE
            break
        if is_full(limits, count, taken, offset, size):
            break
        if not (offset == 0 and size == INT32_MAX):
            if codes == NULL or contains(codes, code_count, rc_get_i64(at + 12)):
                if count == capacity:
                    break
                out[PHYSICAL_OFFSET] = offset
                out[SIZE] = size
                out[INDEX] = i
                out += OUT_COLUMNS
                taken += size
                count += 1
        at += UNIT_SIZE
        i += 1
    matched[0] = count
    examined[0] = i
    return status


def scan_units(
    units, const int64_t[::1] codes, int64_t max_count, int64_t max_bytes, out, int64_t disk_before=0,
    int64_t disk_max_count=8, int64_t disk_max_bytes=65536,
):
    """Collect the units of a consume-queue slice that may match a tag, within the limits of one pull.

    units        uint8[20 * n], read only, not kept: the caller cuts it to the units that one call may examine
    codes        sorted int64 array of tag codes (Java hashes, sign-extended); None takes every unit
    max_count    messages; max_bytes their sizes together. The first message is taken whatever its size
    disk_before  units whose physical offset is below it are "on disk": disk_max_count and disk_max_bytes stand in place
                 of the two limits above when one of them is added
    out          int64[k, 3], filled from row 0: PHYSICAL_OFFSET SIZE INDEX; the scan stops when full
    returns      (matched, examined); the unit at which a limit stopped the scan is not examined. As in Java a limit is
                 tested before the tag, so that a unit which would not match can stop the scan. Blanks are skipped
    raises       ValueError if the length is not a multiple of 20; DecodeError on a negative offset or size, if nothing
                 was examined before it
    RocketMQ     store/DefaultMessageStore.java (getMessage, isTheBatchFull)
    """
    cdef Py_buffer source, table
    cdef Py_ssize_t matched = 0, examined = 0
    cdef Status status
    cdef Limits limits
    cdef const int64_t* first_code = NULL
    cdef int64_t none_wanted = 0
    limits = Limits(max_count, max_bytes, disk_before, disk_max_count, disk_max_bytes)
    if codes is not None:
        first_code = &codes[0] if codes.shape[0] else &none_wanted
    take_units(units, &source)
    try:
        take_rows(out, &table, OUT_COLUMNS, True)
        try:
            status = scan_loop(
                <const uint8_t*>source.buf, source.len // UNIT_SIZE, first_code,
                codes.shape[0] if codes is not None else 0, &limits, <int64_t*>table.buf, table.shape[0], &matched,
                &examined,
            )
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    if examined == 0 and status != OK:
        raise fail(status, 0)
    return matched, examined


def recover(units):
    """Return how many leading units are valid: physical offset ≥ 0 and size > 0. Blanks are valid.

    RocketMQ  store/ConsumeQueue.java (recover)
    """
    cdef Py_buffer source
    cdef Py_ssize_t i = 0
    cdef const uint8_t* at
    take_units(units, &source)
    try:
        at = <const uint8_t*>source.buf
        while i < source.len // UNIT_SIZE and rc_get_i64(at) >= 0 and rc_get_i32(at + 8) > 0:
            at += UNIT_SIZE
            i += 1
        return i
    finally:
        PyBuffer_Release(&source)


def first_at_least(units, int64_t physical_offset):
    """Return the index of the first unit at or after a log position, n if there is none.

    units     ascending by physical offset, as a queue is written; blanks sort first. O(log n)
    RocketMQ  store/ConsumeQueue.java (correctMinOffset)
    """
    cdef Py_buffer source
    cdef Py_ssize_t low = 0, high, middle
    take_units(units, &source)
    try:
        high = source.len // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            if rc_get_i64(<const uint8_t*>source.buf + middle * UNIT_SIZE) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low
    finally:
        PyBuffer_Release(&source)
