from libc.stdint cimport int64_t


cdef class Decided:
    cdef readonly object header
    cdef readonly object wanted
    cdef object _group
    cdef object _topic
    cdef object _queue_id
    cdef object _place
    cdef dict _resets  # by place
    cdef object _commit
    cdef object _note_pull
    cdef object _gets
    cdef dict _subscriptions
    cdef object _subscription
    cdef dict _pulled  # how far the group was handed messages, by queue
    cdef object _tally
    cdef list _counts  # of the queue in it

    cpdef bint holds(self) except -1
    cpdef note(self, int64_t commit_offset, int64_t next_offset, Py_ssize_t messages, Py_ssize_t size)
