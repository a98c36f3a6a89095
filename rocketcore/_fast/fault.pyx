"""The latency-fault table: which brokers a producer leaves alone for a while, and the queue it takes instead.

State per broker index: the time until which it is not available, and whether it can be reached. A broker the table has
not heard of is available and reachable.

RocketMQ  client/latency/{LatencyFaultToleranceImpl,MQFaultStrategy}.java 5.1.4 and later
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc

from rocketcore._fast.rotation cimport QueueRotation


cdef struct Fault:
    double not_available_until
    bint unreachable


@cython.final
cdef class FaultTable:
    """Faults by broker index.

    capacity  brokers to make room for; the table grows by itself
    times     float seconds of one monotonic clock, the caller's

    Calls may come from several threads: none of them gives the GIL away in between.
    """

    cdef Fault* faults
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t capacity=16):
        if capacity < 0:
            raise ValueError(f"negative capacity {capacity}")
        self.reserve(capacity)

    def __dealloc__(self):
        PyMem_Free(self.faults)

    cdef int reserve(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t i
        cdef Fault* faults
        if count <= self.count:
            return 0
        count = max(count, 2 * self.count)
        faults = <Fault*>PyMem_Realloc(self.faults, count * sizeof(Fault))
        if faults == NULL:
            raise MemoryError
        for i in range(self.count, count):
            faults[i].not_available_until = 0
            faults[i].unreachable = False
        self.faults = faults
        self.count = count
        return 0

    def update(self, int broker, double not_available_until, bint reachable):
        """Note what the last attempt showed.

        not_available_until   the broker is available again from this time on; 0 or any past time for now
        raises                ValueError for a negative broker index
        RocketMQ              LatencyFaultToleranceImpl ``updateFaultItem``
        """
        if broker < 0:
            raise ValueError(f"broker index {broker}")
        self.reserve(<Py_ssize_t>broker + 1)
        self.faults[broker].not_available_until = not_available_until
        self.faults[broker].unreachable = not reachable

    cpdef inline bint is_available(self, int broker, double now) noexcept:
        """Return whether the broker's time of not being available is over."""
        return not 0 <= broker < self.count or now >= self.faults[broker].not_available_until

    cpdef inline bint is_reachable(self, int broker) noexcept:
        """Return whether the last attempt, or the detector, got through."""
        return not 0 <= broker < self.count or not self.faults[broker].unreachable

    def select(self, QueueRotation rotation not None, int last_broker, double now, /):
        """Return the index of the queue to send to.

        The next queue of the rotation that is available and not on the broker of the last attempt; without one, the
        next that is reachable and not there; without one, the next.

        last_broker   broker index, −1 for none
        RocketMQ      MQFaultStrategy ``selectOneMessageQueue``
        """
        cdef Py_ssize_t at, left
        cdef int broker, choice
        # A run of queues of one broker is looked at once: it is chosen or passed over whole.
        for choice in range(2):
            at, left = rotation.position, rotation.count
            while left > 0:
                broker = rotation.brokers[at]
                if broker != last_broker and (
                    self.is_available(broker, now) if choice == 0 else self.is_reachable(broker)
                ):
                    rotation.position = at
                    return rotation.advance()
                left -= step(rotation, &at)
        return rotation.advance()


cdef inline Py_ssize_t step(QueueRotation rotation, Py_ssize_t* at) noexcept:
    """Go to the next queue of another broker; returns how many queues that passes, all where there is no other."""
    cdef Py_ssize_t there = rotation.jumps[at[0]]
    cdef Py_ssize_t passed = there - at[0]
    at[0] = there
    return passed if passed > 0 else passed + rotation.count
