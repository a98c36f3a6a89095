"""Setting requests apart, for kernels that answer them."""

from libc.stdint cimport int64_t, uint8_t

# What ``set_apart`` returns, of rows that ``read_loop`` filled from ``data``.
cdef object rest_of(const uint8_t* data, const int64_t* row, const int64_t* head, bytes first, bytes second)
