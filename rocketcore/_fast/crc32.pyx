"""CRC-32 of one body and of a table of ranges: the checksum of stored messages, before its sign bit is cleared.

The numbers are those of ``zlib.crc32`` (IEEE 802.3). The code is in include/rc_hash.h, for other kernels to inline.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, borrow_values, give_back


cdef extern from *:
    """
    #define RC_CRC_EMULATE_WIDE
    #include "rc_hash.h"

    static rc_crc32_function rc_crc32_named(const char *name) {
        if (strcmp(name, "portable") == 0)
            return rc_crc32_portable;
    #if RC_CRC_X86
        if (strcmp(name, "pclmul") == 0 && rc_cpu_has_pclmul())
            return rc_crc32_pclmul;
        if (strcmp(name, "vpclmul") == 0 && rc_cpu_has_vpclmul())
            return rc_crc32_vpclmul;
        if (strcmp(name, "vpclmul-emulated") == 0 && rc_cpu_has_pclmul() && rc_cpu_has_avx512())
            return rc_crc32_emulated;
    #endif
        return NULL;
    }
    """
    ctypedef uint32_t (*rc_crc32_function)(const uint8_t*, size_t, uint32_t) noexcept nogil
    uint32_t rc_crc32(const uint8_t* at, size_t length, uint32_t value) nogil
    rc_crc32_function rc_crc32_chosen
    rc_crc32_function rc_crc32_named(const char* name)


cdef enum:
    # Below this many bytes the sum takes less time than giving the GIL away and taking it back under contention.
    RELEASE_BYTES = 32768


def crc32(data, value=0, /):
    """Return the CRC-32 of bytes, continuing from ``value``.

    data      bytes-like, read only, not kept
    value     CRC-32 of what came before, 0 … 2**32 − 1
    returns   0 … 2**32 − 1, as ``zlib.crc32``; the GIL is released from 32 KiB on
    RocketMQ  common/UtilAll.java ``crc32`` is this ``& 0x7fffffff``
    """
    cdef uint32_t state = value
    cdef Borrowed held
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) < RELEASE_BYTES:
        return rc_crc32(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), state)
    held.count = 0
    try:
        view = borrow_bytes(&held, data)
        if view.len < RELEASE_BYTES:
            return rc_crc32(<const uint8_t*>view.buf, view.len, state)
        with nogil:
            state = rc_crc32(<const uint8_t*>view.buf, view.len, state)
        return state
    finally:
        give_back(&held)


def crc32_ranges(data, ranges, out):
    """Write the CRC-32 of each range of ``data``.

    data      bytes-like, read only, not kept
    ranges    int64[n, 2]: start, length
    out       int64[n], filled with 0 … 2**32 − 1
    raises    ValueError if a range is not within ``data`` or the tables differ in length; nothing is written then
    """
    cdef Borrowed held
    cdef const uint8_t* base
    cdef const int64_t* row
    cdef int64_t* sums
    cdef Py_ssize_t i, count
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        table = borrow_rows(&held, ranges, 2, False)
        results = borrow_values(&held, out)
        count = table.shape[0]
        if results.shape[0] != count:
            raise ValueError(f"{count} ranges but {results.shape[0]} places for their sums")
        base = <const uint8_t*>source.buf
        row = <const int64_t*>table.buf
        sums = <int64_t*>results.buf
        for i in range(count):
            if row[2 * i] < 0 or row[2 * i + 1] < 0 or row[2 * i] > source.len - row[2 * i + 1]:
                raise ValueError(f"range {i} is not within the {source.len} bytes of data")
        with nogil:
            for i in range(count):
                sums[i] = rc_crc32(base + row[2 * i], row[2 * i + 1], 0)
    finally:
        give_back(&held)


NAMES = ("portable", "pclmul", "vpclmul", "vpclmul-emulated")


def available():
    """Return the implementations that this CPU can run, for tests and benchmarks."""
    return [name for name in NAMES if rc_crc32_named(name.encode()) != NULL]


def implementation():
    """Return the name of the implementation in use."""
    for name in NAMES:
        if rc_crc32_named(name.encode()) == rc_crc32_chosen:
            return name
    raise SystemError("the CRC-32 in use has no name")


def crc32_with(str name, data, uint32_t value=0):
    """Return the CRC-32 by one implementation of ``available()``; ValueError for any other name."""
    cdef rc_crc32_function function = rc_crc32_named(name.encode())
    cdef Borrowed held
    if function == NULL:
        raise ValueError(f"no CRC-32 implementation {name!r} here; there are {', '.join(available())}")
    held.count = 0
    try:
        view = borrow_bytes(&held, data)
        return function(<const uint8_t*>view.buf, view.len, value)
    finally:
        give_back(&held)
