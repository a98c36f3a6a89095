"""Messages that wait for a time, in the order in which they are due: 16 bytes each, in memory of its own.

entry   due i64 (milliseconds of whatever clock the caller has) · queue_offset i64; a binary heap, the first one due
        first, of two that are due together the one that was stored first
code    what a unit says in the place of the tags code: due, 43 bits, below 20 bits that check it, the place and the
        size; so a damaged unit is told from one that says another time
growth  by a quarter, so that the memory is at most a quarter more than the entries; it shrinks when half is free

RocketMQ  store/timer/TimerWheel.java, TimerLog.java, 5.5.0, which keep the same in files
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, give_back
from rocketcore._fast.record cimport rc_get_i32, rc_get_i64

cdef enum:
    UNIT_SIZE = 20
    SMALLEST = 1024
    BLANK_SIZE = 0x7FFFFFFF
    TIME_BITS = 43
    CHECK_BITS = 20

cdef struct Entry:
    int64_t due
    int64_t queue_offset


cdef inline int64_t check_of(int64_t due, int64_t physical_offset, int64_t size) noexcept nogil:
    """Mix the three: every bit of each changes about half of the result's."""
    cdef uint64_t mixed = <uint64_t>due * 0x9E3779B97F4A7C15U ^ <uint64_t>physical_offset * 0xC2B2AE3D27D4EB4FU
    mixed = (mixed ^ mixed >> 29 ^ <uint64_t>size) * 0xBF58476D1CE4E5B9U
    mixed = (mixed ^ mixed >> 32) * 0x94D049BB133111EBU
    return <int64_t>(mixed >> (64 - CHECK_BITS))


cdef inline int64_t due_of(int64_t code, int64_t physical_offset, int64_t size) noexcept nogil:
    """Return when a message is due, -1 where its unit is damaged, or not ours."""
    cdef int64_t due = code & ((<int64_t>1 << TIME_BITS) - 1)
    return due if code >> TIME_BITS == check_of(due, physical_offset, size) and size > 0 else -1


def timer_code(int64_t due, int64_t physical_offset, int32_t size):
    """Return what the unit of a message says in the place of the tags code; raises ValueError for no time."""
    if due < 0 or due >> TIME_BITS:
        raise ValueError(f"{due} is no time of {<int>TIME_BITS} bits")
    return check_of(due, physical_offset, size) << TIME_BITS | due


def timer_code_due(int64_t code, int64_t physical_offset, int32_t size):
    """Return when the message of a unit is due, -1 where the unit is damaged, or not ours."""
    return due_of(code, physical_offset, size)


cdef inline bint is_before(const Entry* a, const Entry* b) noexcept nogil:
    return a.due < b.due or (a.due == b.due and a.queue_offset < b.queue_offset)


cdef void rise(Entry* entries, Py_ssize_t at, Entry entry) noexcept nogil:
    """Put an entry in the free place ``at``, or above."""
    cdef Py_ssize_t parent
    while at:
        parent = (at - 1) >> 1
        if not is_before(&entry, &entries[parent]):
            break
        entries[at] = entries[parent]
        at = parent
    entries[at] = entry


cdef void sink(Entry* entries, Py_ssize_t count, Entry entry) noexcept nogil:
    """Put an entry in the free place 0, or below."""
    cdef Py_ssize_t at = 0, child = 1
    while child < count:
        if child + 1 < count and is_before(&entries[child + 1], &entries[child]):
            child += 1
        if not is_before(&entries[child], &entry):
            break
        entries[at] = entries[child]
        at = child
        child = 2 * at + 1
    entries[at] = entry


cdef class TimerHeap:
    """Queue offsets by the time when they are due. Not for several threads at once."""

    cdef Entry* entries
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    cdef int resize(self, Py_ssize_t capacity) except -1:
        cdef Entry* entries = <Entry*>realloc(self.entries, capacity * sizeof(Entry))
        if entries == NULL:
            raise MemoryError
        self.entries = entries
        self.capacity = capacity
        return 0

    cdef int add(self, int64_t due, int64_t queue_offset) except -1:
        cdef Entry entry
        if self.count == self.capacity:
            self.resize(max(SMALLEST, self.capacity + (self.capacity >> 2)))
        entry.due = due
        entry.queue_offset = queue_offset
        rise(self.entries, self.count, entry)
        self.count += 1
        return 0

    def push(self, int64_t due, int64_t queue_offset):
        """Add a message; raises MemoryError."""
        self.add(due, queue_offset)

    def push_units(
        self, units, int64_t first, int64_t until, int64_t before, int64_t latest, set delivered not None
    ):
        """Add the messages of a slice of their consume queue.

        units      uint8[20 * n], read only, not kept; blanks stand for no message
        first      queue offset of the first
        until      those due at this time or earlier whose queue offset is below ``before`` were delivered
        latest     one that says a later time, or is damaged, counts as due: someone has to look at its message
        delivered  physical offset + 1 of others that were delivered; those found leave the set
        returns    how many are damaged, or blank: their messages may have been delivered; when the last of those found
                   in ``delivered`` was due, -1 without one
        raises     ValueError if the length is not a multiple of 20; MemoryError
        """
        cdef Borrowed held
        cdef Py_buffer* source
        cdef const uint8_t* at
        cdef int64_t physical_offset, size, due, wrong = 0, last_due = -1
        cdef Py_ssize_t index
        held.count = 0
        try:
            source = borrow_bytes(&held, units)
            if source.len % UNIT_SIZE:
                raise ValueError(f"{source.len} bytes are not a whole number of {<int>UNIT_SIZE}-byte units")
            at = <const uint8_t*>source.buf
            for index in range(source.len // UNIT_SIZE):
                physical_offset = rc_get_i64(at)
                size = rc_get_i32(at + 8)
                due = due_of(rc_get_i64(at + 12), physical_offset, size)
                at += UNIT_SIZE
                if due < 0:
                    wrong += 1
                    if physical_offset or size != BLANK_SIZE:
                        self.add(0, first + index)
                elif first + index < before and due <= until:
                    continue
                elif delivered and physical_offset + 1 in delivered:
                    delivered.discard(physical_offset + 1)
                    last_due = max(last_due, due)
                else:
                    self.add(0 if due > latest else due, first + index)
        finally:
            give_back(&held)
        return wrong, last_due

    def pop_due(self, int64_t now, Py_ssize_t limit):
        """Take out and return up to ``limit`` messages that are due, (due, queue offset) each, in their order."""
        cdef list found = []
        cdef Entry* entries = self.entries
        while limit > 0 and self.count and entries[0].due <= now:
            found.append((entries[0].due, entries[0].queue_offset))
            limit -= 1
            self.count -= 1
            if self.count:
                sink(entries, self.count, entries[self.count])
        if self.capacity > 2 * SMALLEST and self.count < self.capacity >> 1:
            self.resize(self.count + (self.count >> 2) + SMALLEST)
        return found

    def first_due(self):
        """Return when the first message is due, None where none waits."""
        return self.entries[0].due if self.count else None

    def lowest_offset(self):
        """Return the lowest queue offset, None where no message waits; looks at all of them."""
        cdef Py_ssize_t index
        cdef int64_t lowest
        if not self.count:
            return None
        with nogil:
            lowest = self.entries[0].queue_offset
            for index in range(1, self.count):
                if self.entries[index].queue_offset < lowest:
                    lowest = self.entries[index].queue_offset
        return lowest
