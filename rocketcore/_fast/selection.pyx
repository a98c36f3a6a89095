"""Select the messages of a pull by their properties: from units of a queue to records out of the mapped log.

layout    units as in consume_queue.pyx, records as in record.pxd
RocketMQ  store/DefaultMessageStore.java (getMessage, isMatchedByCommitLog), 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, give_back
from rocketcore._fast.commit_log cimport read_queued, rc_prefetch
from rocketcore._fast.growing cimport APPENDED, Bytes, ensure
from rocketcore._fast.mapped cimport guarded
from rocketcore._fast.record cimport FIXED_SIZE, STORED_COLUMNS, rc_get_i32, rc_get_i64
from rocketcore._fast.record cimport PROPERTIES_LENGTH as RECORD_PROPERTIES_LENGTH
from rocketcore._fast.record cimport PROPERTIES_START as RECORD_PROPERTIES_START
from rocketcore._fast.sql_filter cimport NO_MEMORY, TRUE, SqlFilter

cdef enum:
    UNIT_SIZE = 20
    AHEAD = 2  # records whose bytes are on their way while one is looked at
    ROOM = 16384  # bytes of records for which there is room at first

# Why a run stopped.
cdef enum Stop:
    DONE
    UNJUDGED
    LACKS_MEMORY


cdef struct Copy:
    uint8_t* target
    const uint8_t* source
    int64_t length


cdef void copy(void* task) noexcept nogil:
    memcpy((<Copy*>task).target, (<Copy*>task).source, (<Copy*>task).length)


# The part of a segment that may be read now.
cdef struct Window:
    const uint8_t* log
    int64_t log_start
    int64_t begin
    int64_t end
    bint sealed


cdef class Selection:
    """One pull: what is selected from its first unit on, until every unit was looked at or a limit is reached.

    wanted        the filter
    units         uint8[20 * n], kept
    queue_offset  of the first unit
    max_count     messages; max_bytes their sizes together. A limit is tested before the message and never for the first

    examined      units that were looked at
    count         messages that were selected

    ``run`` selects what lies in a range of the log. A unit of which it cannot say by itself what it leads to is the
    caller's, who has ``decide`` on the record, or ``pass_over``.
    """

    cdef SqlFilter wanted
    cdef bytes kept_units
    cdef const uint8_t* units
    cdef int64_t length
    cdef int32_t queue_id
    cdef int64_t queue_offset
    cdef int64_t max_count
    cdef int64_t max_bytes
    cdef Bytes records
    cdef readonly int64_t examined
    cdef readonly int64_t count

    def __cinit__(
        self, SqlFilter wanted not None, units, int32_t queue_id, int64_t queue_offset, int64_t max_count,
        int64_t max_bytes,
    ):
        self.wanted = wanted
        self.kept_units = bytes(units)
        self.units = <const uint8_t*>PyBytes_AS_STRING(self.kept_units)
        self.length = len(self.kept_units) // UNIT_SIZE
        if len(self.kept_units) % UNIT_SIZE:
            raise ValueError(f"{len(self.kept_units)} bytes are not a whole number of {<int>UNIT_SIZE}-byte units")
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.max_count = max_count
        self.max_bytes = max_bytes

    def __dealloc__(self):
        free(self.records.data)

    def run(self, log, int64_t log_start, int64_t begin, int64_t end, bint sealed):
        """Go on from unit ``examined``; the GIL is given away.

        log         bytes-like, a file of the log or nothing, read only, not kept; it may be a read-only map
        log_start   physical offset of ``log[0]``
        begin, end  physical offsets between which records are read
        sealed      the records of this file have checksums (``commit_log.walk``)
        returns     whether it is done. If not, unit ``examined`` does not lead to a sound record of its message there
        raises      MemoryError; ValueError for a range that is not within the file
        """
        cdef Borrowed held
        cdef Window window
        cdef int stop
        held.count = 0
        try:
            source = borrow_bytes(&held, log)
            if begin < log_start or end < begin or end - log_start > source.len:
                raise ValueError(f"{begin} to {end} is not within {source.len} bytes from {log_start}")
            window = Window(<const uint8_t*>source.buf, log_start, begin, end, sealed)
            with nogil:
                stop = self.go(&window)
        finally:
            give_back(&held)
        if stop == LACKS_MEMORY:
            raise MemoryError
        return stop == DONE

    def next(self):
        """Return (physical_offset, size) of unit ``examined``; (-1, 0) where there is none."""
        if self.examined >= self.length:
            return -1, 0
        return self.offset_at(self.examined), self.size_at(self.examined)

    def pass_over(self):
        """Count a unit as looked at that leads to nothing that may be answered."""
        self.check_next()
        self.examined += 1

    def decide(self, bytes record not None, Py_ssize_t properties_start, Py_ssize_t properties_length):
        """Select the record of unit ``examined``, or not; that it is sound is the caller's word."""
        cdef int64_t size = len(record)
        self.check_next()
        if properties_start < 0 or properties_length < 0 or properties_start + properties_length > size:
            raise ValueError(f"{properties_length} bytes at {properties_start} are not within {size}")
        if not self.make_room(size):
            raise MemoryError
        memcpy(self.records.data + self.records.length, PyBytes_AS_STRING(record), size)
        if not self.judge(size, self.records.length + properties_start, properties_length):
            raise MemoryError

    def body(self):
        """Return the selected records back to back."""
        return PyBytes_FromStringAndSize(<char*>self.records.data, self.records.length)

    cdef int check_next(self) except -1:
        if self.examined >= self.length:
            raise IndexError(f"unit {self.examined} of {self.length}")
        return 0

    cdef int64_t offset_at(self, int64_t index) noexcept nogil:
        return rc_get_i64(self.units + UNIT_SIZE * index)

    cdef int64_t size_at(self, int64_t index) noexcept nogil:
        return rc_get_i32(self.units + UNIT_SIZE * index + 8)

    cdef bint make_room(self, int64_t size) noexcept nogil:
        cdef int64_t needed = self.records.length + size
        if needed <= self.records.capacity:
            return True
        return ensure(&self.records, max(needed, 2 * self.records.capacity, ROOM)) == APPENDED

    cdef bint judge(self, int64_t size, int64_t start, int64_t length) noexcept nogil:
        """Ask the filter about a record that lies behind those that were selected; False where memory is lacking."""
        cdef int outcome = self.wanted.match(self.records.data + start, length)
        if outcome == NO_MEMORY:
            return False
        if outcome == TRUE:
            self.records.length += size
            self.count += 1
        self.examined += 1
        return True

    cdef bint is_full(self, int64_t size) noexcept nogil:
        return self.count > 0 and (self.count >= self.max_count or self.records.length + size > self.max_bytes)

    cdef Stop go(self, const Window* window) noexcept nogil:
        cdef int64_t record[STORED_COLUMNS]
        cdef int64_t offset, size, at
        cdef Copy task
        cdef bint sealed
        while self.examined < self.length:
            offset, size = self.offset_at(self.examined), self.size_at(self.examined)
            if self.is_full(size):
                break
            if offset == 0 and size == INT32_MAX:  # a blank
                self.examined += 1
                continue
            if offset < window.begin or size < FIXED_SIZE or offset > window.end - size:
                return UNJUDGED
            self.prefetch(window)
            if not self.make_room(size):
                return LACKS_MEMORY
            # A copy is what is checked, asked and answered, whatever becomes of the page.
            at = self.records.length
            task = Copy(self.records.data + at, window.log + (offset - window.log_start), size)
            if guarded(copy, &task, task.source, size) != NULL:
                return UNJUDGED
            sealed = window.sealed
            if not read_queued(
                self.records.data, at, size, offset, self.queue_id, self.queue_offset + self.examined, record, &sealed
            ):
                return UNJUDGED
            if not self.judge(size, record[RECORD_PROPERTIES_START], record[RECORD_PROPERTIES_LENGTH]):
                return LACKS_MEMORY
        return DONE

    cdef void prefetch(self, const Window* window) noexcept nogil:
        cdef int64_t offset
        if self.examined + AHEAD < self.length:
            offset = self.offset_at(self.examined + AHEAD)
            if window.begin <= offset < window.end:
                rc_prefetch(window.log + (offset - window.log_start), self.size_at(self.examined + AHEAD))
