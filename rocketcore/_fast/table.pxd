"""A caller's table of int64 rows, borrowed for one call.

``Py_buffer`` instead of a typed memoryview: taking a buffer of bytes costs about 8 ns and not 60, and a chunk of one
frame pays for it twice. Every ``take_…`` that succeeded is matched by ``PyBuffer_Release`` in ``finally``.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t


cdef inline bint is_int64(const Py_buffer* view) noexcept:
    cdef char kind
    if view.itemsize != sizeof(int64_t) or view.format == NULL:
        return False
    kind = view.format[0]
    if kind == c"<" or kind == c"=" or kind == c"@":
        kind = view.format[1]
    return kind == c"q" or kind == c"l"


cdef inline int take_rows(object table, Py_buffer* view, Py_ssize_t columns, bint writable) except -1:
    """Take an int64[k, columns] table; ``<int64_t*>view.buf`` is row 0, ``view.shape[0]`` the number of rows."""
    PyObject_GetBuffer(table, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
    if view.ndim == 2 and view.shape[1] == columns and is_int64(view):
        return 0
    PyBuffer_Release(view)
    raise ValueError(f"expected a C-contiguous int64 table with {columns} columns")


cdef inline int take_bytes(object data, Py_buffer* view) except -1:
    """Take any contiguous bytes-like object for reading."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    return 0


cdef inline int take_range(Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Check that start ≤ end lies in the buffer."""
    if start < 0 or end < start or end > view.len:
        raise ValueError(f"range {start}:{end} is not within the {view.len} bytes of data")
    return 0


cdef inline int take_values(object values, Py_buffer* view) except -1:
    """Take a writable int64[k] array."""
    PyObject_GetBuffer(values, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
    if view.ndim == 1 and is_int64(view):
        return 0
    PyBuffer_Release(view)
    raise ValueError("expected a contiguous int64 array")
