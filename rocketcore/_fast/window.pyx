"""What a consumer that reads on is answered from: units of its queue, and where their messages lie in the log.

To look a queue up, to read its units and to ask whether the messages are in memory costs more than to find those of one
pull; so it is done for many pulls at a time. Whoever makes windows forgets them when that may not hold any more.

RocketMQ  store/DefaultMessageStore.java (getMessage), 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from rocketcore._fast.consume_queue cimport OUT_COLUMNS, PHYSICAL_OFFSET, SIZE, UNIT_SIZE, is_full, scan
from rocketcore._fast.record cimport rc_get_i32, rc_get_i64
from rocketcore._fast.status cimport OK


cdef class Window:
    """Units of a queue that follow one another, with all that says which of them one pull is answered with.

    queue      with ``min_offset``, ``max_offset``, ``begins_later`` and ``known_codes``, looked at for each pull
    units      uint8[20 * n]; a copy is kept of what can change
    first      queue offset of the first of them
    most       how many of them one answer may examine
    limits     of one answer, as ``consume_queue.scan_units`` has them: messages, bytes; below ``disk_before`` of the
               log messages, bytes
    codes      tag codes that are wanted, sorted; None: all
    believes   every tag code of a unit, not only those that the queue is known to have
    log        the file of the log, as a memoryview, in which messages are found, from ``log_start`` on; ``sealed`` if
               its records have checksums
    readable   physical offsets, from and to: messages of these units that lie between are in memory
    raises     ValueError for units that are not whole, or none
    """

    def __init__(
        self, queue, units, int64_t first, int64_t most, tuple limits not None, int64_t disk_before, codes,
        bint believes, log, int64_t log_start, bint sealed, tuple readable not None,
    ):
        self._queue = queue
        self._units = bytes(units)
        self._first = first
        self._most = most
        self._limits.max_count, self._limits.max_bytes = limits[:2]
        self._limits.disk_max_count, self._limits.disk_max_bytes = limits[2:]
        self._limits.disk_before = disk_before
        self._codes = codes
        self._believes = believes
        self.log = log
        self.log_start = log_start
        self.sealed = sealed
        self._readable_from, self._readable_to = readable
        self.queue_id = queue.queue_id
        if PyBytes_GET_SIZE(self._units) % UNIT_SIZE or first < 0 or most < 1 or log_start < 0:
            raise ValueError(f"{len(units)} bytes of units from {first}, {most} examined, log from {log_start}")

    cdef Py_ssize_t find(
        self, int64_t queue_offset, bint is_new, int64_t* rows, Py_ssize_t capacity, Py_ssize_t* examined
    ) except -1:
        """Fill rows as ``scan_units`` does, for a pull from ``queue_offset`` on.

        is_new    the window was made for this very pull: its units are all that there are, or it may examine
        examined  how many units the pull is over with
        returns   how many messages it is answered with; 0 where there are none, or another window has to say so
        """
        cdef const uint8_t* units = <const uint8_t*>PyBytes_AS_STRING(self._units)
        cdef const uint8_t* behind
        cdef const int64_t[::1] known = None
        cdef Py_ssize_t count = PyBytes_GET_SIZE(self._units) // UNIT_SIZE, matched = 0, _
        cdef int64_t taken = 0, offset
        cdef int64_t* row = rows
        self.least, self.greatest = self._queue.min_offset, self._queue.max_offset
        if queue_offset < max(self._first, self.least) or self._queue.begins_later:
            return 0
        count = min(self._first + count, self.greatest) - queue_offset
        if count <= 0:
            return 0
        count = min(count, self._most)
        units += (queue_offset - self._first) * UNIT_SIZE
        if self._codes is not None and not self._believes:
            known = self._queue.known_codes
        if scan(
            units, count, self._codes, known, &self._limits, rows, capacity, &matched, examined
        ) != OK and examined[0] == 0:
            return 0
        for _ in range(matched):
            offset = row[PHYSICAL_OFFSET]
            if offset < self._readable_from or offset + row[SIZE] > self._readable_to:
                return 0
            taken += row[SIZE]
            row += OUT_COLUMNS
        if is_new or examined[0] == self._most:
            return matched
        if examined[0] == count:
            return 0  # more may follow
        behind = units + examined[0] * UNIT_SIZE
        return matched if is_full(&self._limits, matched, taken, rc_get_i64(behind), rc_get_i32(behind + 8)) else 0
