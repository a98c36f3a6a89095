"""What a kernel borrows from its caller for one call: bytes-like objects and tables of int64 rows, given back together.

``Py_buffer`` instead of a typed memoryview: taking a buffer of bytes costs about 8 ns and not 60, and a chunk of one
frame pays for it several times.

    cdef Borrowed held
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        table = borrow_rows(&held, rows, COLUMNS, False)
        …
    finally:
        give_back(&held)
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

cdef enum:
    BORROWED_MAX = 8
    # Work of about two microseconds, for which giving the GIL away and asking for it back is worth while.
    NOGIL_BYTES = 65536


# ``count`` is 0 before the first is borrowed, and counts only what has to be given back.
cdef struct Borrowed:
    Py_buffer views[BORROWED_MAX]
    int count


cdef inline Py_buffer* borrow(Borrowed* held, object source, int flags) except NULL:
    """Borrow a buffer; it is valid until ``give_back``."""
    cdef Py_buffer* view = &held.views[held.count]
    if held.count == BORROWED_MAX:
        raise RuntimeError(f"more than {BORROWED_MAX} buffers borrowed for one call")
    PyObject_GetBuffer(source, view, flags)
    held.count += 1
    return view


cdef inline void give_back(Borrowed* held) noexcept:
    while held.count:
        held.count -= 1
        PyBuffer_Release(&held.views[held.count])


cdef inline Py_buffer* borrow_bytes(Borrowed* held, object data) except NULL:
    """Borrow any contiguous bytes-like object for reading."""
    return borrow(held, data, PyBUF_SIMPLE)


cdef inline Py_buffer* borrow_room(Borrowed* held, object target) except NULL:
    """Borrow a contiguous bytes-like object for writing."""
    return borrow(held, target, PyBUF_SIMPLE | PyBUF_WRITABLE)


cdef inline bint is_int64(const Py_buffer* view) noexcept:
    cdef char kind
    if view.itemsize != sizeof(int64_t) or view.format == NULL:
        return False
    kind = view.format[0]
    if kind == c"<" or kind == c"=" or kind == c"@":
        kind = view.format[1]
    return kind == c"q" or kind == c"l"


cdef inline Py_buffer* borrow_rows(Borrowed* held, object table, Py_ssize_t columns, bint writable) except NULL:
    """Borrow an int64[k, columns] table; ``<int64_t*>view.buf`` is row 0, ``view.shape[0]`` the number of rows."""
    cdef Py_buffer* view = borrow(held, table, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
    if view.ndim != 2 or view.shape[1] != columns or not is_int64(view):
        raise ValueError(f"expected a C-contiguous int64 table with {columns} columns")
    return view


cdef inline Py_buffer* borrow_values(Borrowed* held, object values) except NULL:
    """Borrow a writable int64[k] array."""
    cdef Py_buffer* view = borrow(held, values, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
    if view.ndim != 1 or not is_int64(view):
        raise ValueError("expected a contiguous int64 array")
    return view


cdef inline int check_range(const Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Check that ``start ≤ end`` lies in the buffer."""
    if start < 0 or end < start or end > view.len:
        raise ValueError(f"range {start}:{end} is not within the {view.len} bytes of data")
    return 0


cdef inline bint outside(int64_t start, int64_t length, int64_t total) noexcept nogil:
    """Whether a row's range is not within ``total`` bytes."""
    return start < 0 or length < 0 or start > total or length > total - start
