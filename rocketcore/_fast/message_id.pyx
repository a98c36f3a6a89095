"""Message ids that say where a message is: upper-case hex of the broker's host, port and physical offset.

RocketMQ  common/message/MessageDecoder.java (createMessageId)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rocketcore._fast.message_id cimport put_hex, put_id, rc_put_64


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_bytes(uint8_t* at, const void* source, size_t length)


cdef Py_ssize_t id_length(bytes host) except -1:
    if PyBytes_GET_SIZE(host) != 8 and PyBytes_GET_SIZE(host) != 20:
        raise ValueError(f"a host is 4 or 16 address bytes and 4 of the port, got {PyBytes_GET_SIZE(host)} bytes")
    return 2 * PyBytes_GET_SIZE(host) + 16


def offset_msg_id(bytes store_host not None, int64_t physical_offset):
    """Return the id of one message, 32 or 56 characters; ``store_host`` is 4 or 16 address bytes and 4 of the port."""
    cdef bytes text = PyBytes_FromStringAndSize(NULL, id_length(store_host))
    put_id(
        <uint8_t*>PyBytes_AS_STRING(text), <const uint8_t*>PyBytes_AS_STRING(store_host), PyBytes_GET_SIZE(store_host),
        physical_offset,
    )
    return text


def offset_msg_ids(bytes store_host not None, const int64_t[:] physical_offsets):
    """Return the ids of a batch, joined by commas; ``physical_offsets`` is any one-dimensional int64 buffer."""
    cdef Py_ssize_t i, count = physical_offsets.shape[0], length = id_length(store_host)
    cdef bytes text = PyBytes_FromStringAndSize(NULL, count * (length + 1) - 1 if count else 0)
    cdef Py_ssize_t host_digits = length - 16
    cdef uint8_t host[40]
    cdef uint8_t offset[8]
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(text)
    put_hex(host, <const uint8_t*>PyBytes_AS_STRING(store_host), PyBytes_GET_SIZE(store_host))
    for i in range(count):
        if i:
            at[0] = c","
            at += 1
        at = rc_put_bytes(at, host, host_digits)
        rc_put_64(offset, <uint64_t>physical_offsets[i])
        at = put_hex(at, offset, 8)
    return text
