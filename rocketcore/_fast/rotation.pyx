"""Queue rotation: which queue of a topic the next message goes to, passing over one broker.

A rotation belongs to one caller (Java: one thread) and one version of the topic's route. It holds for each queue the
index of its broker, in the order of the route, and where the next queue of another broker is, so that passing over a
broker takes one step however many queues it has.

RocketMQ  client/impl/producer/TopicPublishInfo.java ``selectOneMessageQueue``, client/common/ThreadLocalIndex.java
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t


cdef class QueueRotation:
    """The queues of one topic in turn.

    brokers   index of each queue's broker, 0 …, in the order of the queues
    start     whose turn is first; any int, taken modulo the number of queues (Java: a random counter)
    raises    ValueError without queues or for a negative broker index

    Calls may come from several threads: none of them gives the GIL away in between.
    """

    def __cinit__(self, brokers, start):
        cdef Py_ssize_t i, here, following, count = len(brokers)
        cdef int32_t broker
        if count == 0:
            raise ValueError("a rotation needs at least one queue")
        if count > 0x7fffffff:
            raise ValueError(f"{count} queues are too many")
        self.brokers = <int32_t*>PyMem_Malloc(count * sizeof(int32_t))
        self.jumps = <int32_t*>PyMem_Malloc(count * sizeof(int32_t))
        if self.brokers == NULL or self.jumps == NULL:
            raise MemoryError
        for i in range(count):
            broker = brokers[i]
            if broker < 0:
                raise ValueError(f"queue {i} has broker index {broker}")
            self.brokers[i] = broker
        self.count = count
        self.position = start % count
        for i in range(count):
            self.jumps[i] = <int32_t>i
        # Backwards and twice around: the second time, the last queues see past the end of the table.
        for i in range(2 * count - 1, -1, -1):
            here = i % count
            following = (i + 1) % count
            if self.brokers[following] != self.brokers[here]:
                self.jumps[here] = <int32_t>following
            elif self.jumps[following] != following:
                self.jumps[here] = self.jumps[following]

    def __dealloc__(self):
        PyMem_Free(self.brokers)
        PyMem_Free(self.jumps)

    def __len__(self):
        return self.count

    def next(self):
        """Return the index of the queue whose turn it is."""
        return self.advance()

    def next_skipping(self, int broker, /):
        """Return the index of the next queue that is not on ``broker``; where all are, that of the next one."""
        cdef Py_ssize_t at = self.position
        if self.brokers[at] == broker:
            self.position = self.jumps[at]
        return self.advance()
