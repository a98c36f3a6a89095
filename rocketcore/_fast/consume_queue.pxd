"""The scan of a consume queue's units within the limits of a pull, for the kernels that answer pulls."""

from libc.stdint cimport int64_t, uint8_t

from rocketcore._fast.status cimport Status

cpdef enum:
    UNIT_SIZE = 20

# The columns of the rows that a scan fills.
cpdef enum:
    PHYSICAL_OFFSET
    SIZE
    INDEX
    OUT_COLUMNS


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


# Scans ``length`` units as ``scan_units`` says; the status tells what is wrong with the unit that was not examined.
cdef Status scan(
    const uint8_t* units, Py_ssize_t length, const int64_t[::1] codes, const int64_t[::1] known, const Limits* limits,
    int64_t* out, Py_ssize_t capacity, Py_ssize_t* matched, Py_ssize_t* examined,
) noexcept
