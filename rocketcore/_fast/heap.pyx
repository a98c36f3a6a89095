"""What a server's process does with memory that it has freed. Only glibc's allocator has these settings; with another
one both calls do nothing.
"""


cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #endif
    static inline void rc_keep_heap(int limit) {
    #ifdef __GLIBC__
        mallopt(M_MMAP_THRESHOLD, limit);
        mallopt(M_TRIM_THRESHOLD, limit);
    #else
        (void)limit;
    #endif
    }
    static inline void rc_trim_heap(void) {
    #ifdef __GLIBC__
        malloc_trim(0);
    #endif
    }
    """
    void rc_keep_heap(int limit) nogil
    void rc_trim_heap() nogil


def keep_heap(int limit=16 << 20):
    """Let the process keep up to ``limit`` bytes that it has freed, for what it needs next.

    By default large blocks go back to the system at once and are faulted in again page by page: for a server that
    receives frame after frame of a megabyte, more work than reading them.
    """
    rc_keep_heap(limit)


def trim_heap():
    """Give all that the process has freed back to the system, as far as whole pages of it are free."""
    with nogil:
        rc_trim_heap()
