"""Consume-queue units: append, scan by tag within the limits of a pull, make them of the rows of a walk over the log.

layout    physical_offset i64 · size i32 · tags_code i64, big-endian, 20 bytes; unit i is at byte 20 · i of its queue.
          A queue that does not begin at 0 is filled before its first unit with blanks {0, 0x7FFFFFFF, 0}
RocketMQ  store/ConsumeQueue.java, 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_room, borrow_rows, give_back, outside
from rocketcore._fast.commit_log cimport COLUMNS as ROW_COLUMNS
from rocketcore._fast.commit_log cimport PHYSICAL_OFFSET as ROW_PHYSICAL_OFFSET
from rocketcore._fast.commit_log cimport QUEUE_ID as ROW_QUEUE_ID
from rocketcore._fast.commit_log cimport QUEUE_OFFSET as ROW_QUEUE_OFFSET
from rocketcore._fast.commit_log cimport SIZE as ROW_SIZE
from rocketcore._fast.commit_log cimport SYS_FLAG as ROW_SYS_FLAG
from rocketcore._fast.commit_log cimport TAGS_CODE as ROW_TAGS_CODE
from rocketcore._fast.commit_log cimport TOPIC_LENGTH as ROW_TOPIC_LENGTH
from rocketcore._fast.commit_log cimport TOPIC_START as ROW_TOPIC_START
from rocketcore._fast.mapped cimport guarded
from rocketcore._fast.record cimport rc_crc32, rc_get_i32, rc_get_i64, rc_put_32, rc_put_64, takes_unit
from rocketcore._fast.status cimport OFFSET_NEGATIVE, OK, SIZE_NEGATIVE, Status, fail

cdef inline uint8_t* write_unit(uint8_t* at, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil:
    at = rc_put_64(at, <uint64_t>physical_offset)
    at = rc_put_32(at, <uint32_t>size)
    return rc_put_64(at, <uint64_t>tags_code)


cdef Py_buffer* borrow_units(Borrowed* held, object units) except NULL:
    cdef Py_buffer* source = borrow_bytes(held, units)
    if source.len % UNIT_SIZE:
        raise ValueError(f"{source.len} bytes are not a whole number of {<int>UNIT_SIZE}-byte units")
    return source


cdef uint8_t* borrow_target(Borrowed* held, object out, Py_ssize_t position, Py_ssize_t count) except NULL:
    """Borrow room for ``count`` units at byte ``position`` of ``out``."""
    cdef Py_buffer* target = borrow_room(held, out)
    if position < 0 or count < 0 or position > target.len or count > (target.len - position) // UNIT_SIZE:
        raise ValueError(f"{count} units at {position} do not fit a buffer of {target.len} bytes")
    return <uint8_t*>target.buf + position


def put_unit(out, Py_ssize_t position, int64_t physical_offset, int32_t size, int64_t tags_code):
    """Write one unit at byte ``position`` of ``out``; returns the position after it.

    raises    ValueError if it does not fit
    RocketMQ  store/ConsumeQueue.java (putMessagePositionInfo)
    """
    cdef Borrowed held
    held.count = 0
    try:
        write_unit(borrow_target(&held, out, position, 1), physical_offset, size, tags_code)
    finally:
        give_back(&held)
    return position + UNIT_SIZE


def put_blank(out, Py_ssize_t position, Py_ssize_t count):
    """Write ``count`` blanks {0, 0x7FFFFFFF, 0} at byte ``position``; returns the position after the last.

    RocketMQ  store/ConsumeQueue.java (fillPreBlank)
    """
    cdef Borrowed held
    cdef Py_ssize_t _
    cdef uint8_t* at
    held.count = 0
    try:
        at = borrow_target(&held, out, position, count)
        for _ in range(count):
            at = write_unit(at, 0, INT32_MAX, 0)
    finally:
        give_back(&held)
    return position + count * UNIT_SIZE


def unit(units, Py_ssize_t index):
    """Return (physical_offset, size, tags_code) of one unit; raises IndexError outside the buffer."""
    cdef Borrowed held
    cdef const uint8_t* at
    held.count = 0
    try:
        source = borrow_units(&held, units)
        if index < 0 or index >= source.len // UNIT_SIZE:
            raise IndexError(f"unit {index} of {source.len // UNIT_SIZE}")
        at = <const uint8_t*>source.buf + index * UNIT_SIZE
        return rc_get_i64(at), rc_get_i32(at + 8), rc_get_i64(at + 12)
    finally:
        give_back(&held)


cdef inline bint contains(const int64_t* codes, Py_ssize_t count, int64_t code) noexcept nogil:
    """Search a sorted array; subscriptions have a few tags, so the halves of a long one come first and then a walk."""
    cdef Py_ssize_t middle
    while count > 8:
        middle = count // 2
        if codes[middle] <= code:
            codes += middle
            count -= middle
        else:
            count = middle
    while count > 0:
        if codes[0] == code:
            return True
        codes += 1
        count -= 1
    return False


cdef Status scan_loop(
    const uint8_t* units, Py_ssize_t length, const int64_t* codes, Py_ssize_t code_count, const int64_t* known,
    Py_ssize_t known_count, const Limits* limits, int64_t* out, Py_ssize_t capacity, Py_ssize_t* matched,
    Py_ssize_t* examined,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t i = 0, count = 0
    cdef int64_t taken = 0, offset, size, code = 0, asked = 0
    cdef bint wanted = codes == NULL or contains(codes, code_count, asked)
    cdef const uint8_t* at = units
    while i < length:
        offset = rc_get_i64(at)
        size = rc_get_i32(at + 8)
        if offset < 0:
            status = OFFSET_NEGATIVE
            break
        if size < 0:
            status = SIZE_NEGATIVE
            break
        if is_full(limits, count, taken, offset, size):
            break
        if not (offset == 0 and size == INT32_MAX):
            code = rc_get_i64(at + 12)
            if codes != NULL and code != asked:  # messages of one tag come in runs
                asked = code
                wanted = contains(codes, code_count, code)
            if wanted:
                if count == capacity:
                    break
                out[PHYSICAL_OFFSET] = offset
                out[SIZE] = size
                out[INDEX] = i
                out += OUT_COLUMNS
                taken += size
                count += 1
            elif known != NULL and not contains(known, known_count, code):
                break
        at += UNIT_SIZE
        i += 1
    matched[0] = count
    examined[0] = i
    return status


cdef Status scan(
    const uint8_t* units, Py_ssize_t length, const int64_t[::1] codes, const int64_t[::1] known, const Limits* limits,
    int64_t* out, Py_ssize_t capacity, Py_ssize_t* matched, Py_ssize_t* examined,
) noexcept:
    cdef const int64_t* first_code = NULL
    cdef const int64_t* first_known = NULL
    cdef Py_ssize_t code_count = 0, known_count = 0
    cdef int64_t none_wanted = 0
    if codes is not None:
        code_count = codes.shape[0]
        first_code = &codes[0] if code_count else &none_wanted
    if known is not None:
        known_count = known.shape[0]
        first_known = &known[0] if known_count else &none_wanted
    return scan_loop(
        units, length, first_code, code_count, first_known, known_count, limits, out, capacity, matched, examined
    )


def scan_units(
    units, const int64_t[::1] codes, int64_t max_count, int64_t max_bytes, out, int64_t disk_before=0,
    int64_t disk_max_count=8, int64_t disk_max_bytes=65536, const int64_t[::1] known=None,
):
    """Collect the units of a consume-queue slice that may match a tag, within the limits of one pull.

    units        uint8[20 * n], read only, not kept: the caller cuts it to the units that one call may examine
    codes        sorted int64 array of tag codes (Java hashes, sign-extended); None takes every unit
    max_count    messages; max_bytes their sizes together. The first message is taken whatever its size
    disk_before  units whose physical offset is below it are "on disk": disk_max_count and disk_max_bytes stand in place
                 of the two limits above when one of them is added
    out          int64[k, 3], filled from row 0: PHYSICAL_OFFSET SIZE INDEX; the scan stops when full
    known        sorted int64 array of tag codes that the queue's messages are known to have. A unit that does not match
                 and whose code is not among them stops the scan and is not examined: its code may be damaged. None
                 believes every code
    returns      (matched, examined); the unit at which a limit stopped the scan is not examined. As in Java a limit is
                 tested before the tag, so that a unit which would not match can stop the scan. Blanks are skipped
    raises       ValueError if the length is not a multiple of 20; DecodeError on a negative offset or size, if nothing
                 was examined before it
    RocketMQ     store/DefaultMessageStore.java (getMessage, isTheBatchFull)
    """
    cdef Borrowed held
    cdef Py_ssize_t matched = 0, examined = 0
    cdef Status status
    cdef Limits limits = Limits(max_count, max_bytes, disk_before, disk_max_count, disk_max_bytes)
    held.count = 0
    try:
        source = borrow_units(&held, units)
        table = borrow_rows(&held, out, OUT_COLUMNS, True)
        status = scan(
            <const uint8_t*>source.buf, source.len // UNIT_SIZE, codes, known, &limits, <int64_t*>table.buf,
            table.shape[0], &matched, &examined,
        )
    finally:
        give_back(&held)
    if examined == 0 and status != OK:
        raise fail(status, 0)
    return matched, examined


def is_queued(int64_t sys_flag):
    """Whether a record gets a unit: prepared and rolled back transaction messages do not."""
    return takes_unit(sys_flag)


cdef struct Followed:
    uint8_t* topic  # NULL: the place is free
    int64_t topic_length
    int64_t queue_id
    int64_t next_offset
    uint8_t* units
    Py_ssize_t length
    Py_ssize_t capacity
    uint32_t hash
    bint is_filled


cdef struct Queues:
    Followed* entries
    Py_ssize_t count  # of places, free ones among them
    Py_ssize_t room
    int32_t* filled  # places that may have units, each once; as many as there is room for
    Py_ssize_t filled_count
    int32_t* unused  # free places
    Py_ssize_t unused_count
    int32_t* slots  # of a hash table: place + 1, 0, or -1 for one that was given up; at most half of them are taken
    Py_ssize_t taken
    uint32_t mask


cdef inline Py_ssize_t find_queue(
    const Queues* queues, const uint8_t* topic, int64_t length, int64_t queue_id, uint32_t value
) noexcept nogil:
    """Return the index of a queue, -1 where it is not followed."""
    cdef uint32_t slot = value & queues.mask
    cdef const Followed* entry
    while queues.slots[slot]:
        if queues.slots[slot] > 0:
            entry = &queues.entries[queues.slots[slot] - 1]
            if (
                entry.hash == value and entry.queue_id == queue_id and entry.topic_length == length
                and memcmp(entry.topic, topic, length) == 0
            ):
                return queues.slots[slot] - 1
        slot = (slot + 1) & queues.mask
    return -1


cdef inline void take_slot(Queues* queues, Py_ssize_t index) noexcept nogil:
    cdef uint32_t slot = queues.entries[index].hash & queues.mask
    while queues.slots[slot] > 0:
        slot = (slot + 1) & queues.mask
    queues.taken += queues.slots[slot] == 0
    queues.slots[slot] = <int32_t>index + 1


cdef inline void give_slot_up(Queues* queues, Py_ssize_t index) noexcept nogil:
    cdef uint32_t slot = queues.entries[index].hash & queues.mask
    while queues.slots[slot] != index + 1:
        slot = (slot + 1) & queues.mask
    queues.slots[slot] = -1


cdef inline bint make_slots(Queues* queues, Py_ssize_t entries) noexcept nogil:
    """Have a table in which a quarter of the slots are taken at most; False where there is no memory."""
    cdef uint32_t mask = 63
    cdef Py_ssize_t index
    cdef int32_t* slots
    while 4 * entries > mask:
        mask = 2 * mask + 1
    slots = <int32_t*>calloc(<size_t>mask + 1, sizeof(int32_t))
    if slots == NULL:
        return False
    free(queues.slots)
    queues.slots = slots
    queues.mask = mask
    queues.taken = 0
    for index in range(queues.count):
        if queues.entries[index].topic != NULL:
            take_slot(queues, index)
    return True


cdef inline bint make_room(Queues* queues, Py_ssize_t room) noexcept nogil:
    """Have room for so many entries; False where there is no memory."""
    cdef void* memory = realloc(queues.filled, room * sizeof(int32_t))
    if memory == NULL:
        return False
    queues.filled = <int32_t*>memory
    memory = realloc(queues.unused, room * sizeof(int32_t))
    if memory == NULL:
        return False
    queues.unused = <int32_t*>memory
    memory = realloc(queues.entries, room * sizeof(Followed))
    if memory == NULL:
        return False
    queues.entries = <Followed*>memory
    queues.room = room
    return True


cdef inline bint grow(Followed* queue) noexcept nogil:
    cdef Py_ssize_t capacity = 2 * queue.capacity if queue.capacity else 16 * UNIT_SIZE
    cdef uint8_t* units = <uint8_t*>realloc(queue.units, capacity)
    if units == NULL:
        return False
    queue.units = units
    queue.capacity = capacity
    return True


cdef struct Collect:
    Queues* queues
    const uint8_t* data
    Py_ssize_t length
    const int64_t* rows
    Py_ssize_t count
    # Results: rows taken, whether there was memory, and whether the topic of the next one is not within the data
    Py_ssize_t done
    bint enough
    bint outside


cdef void collect_loop(void* task) noexcept nogil:
    """Collect up to a row that does not follow; of one whose topic cannot be read nothing is kept."""
    cdef Collect* collect = <Collect*>task
    cdef Queues* queues = collect.queues
    cdef const int64_t* row = collect.rows
    cdef const uint8_t* topic
    cdef Followed* queue
    cdef Py_ssize_t index
    while collect.done < collect.count:
        if outside(row[ROW_TOPIC_START], row[ROW_TOPIC_LENGTH], collect.length):
            collect.outside = True
            return
        topic = collect.data + row[ROW_TOPIC_START]
        index = find_queue(
            queues, topic, row[ROW_TOPIC_LENGTH], row[ROW_QUEUE_ID],
            rc_crc32(topic, row[ROW_TOPIC_LENGTH], <uint32_t>row[ROW_QUEUE_ID]),
        )
        if index < 0 or not takes_unit(row[ROW_SYS_FLAG]):
            return
        queue = &queues.entries[index]
        if queue.next_offset != row[ROW_QUEUE_OFFSET]:
            return
        if queue.length == queue.capacity and not grow(queue):
            collect.enough = False
            return
        write_unit(
            queue.units + queue.length, row[ROW_PHYSICAL_OFFSET], <int32_t>row[ROW_SIZE], row[ROW_TAGS_CODE]
        )
        if not queue.is_filled:
            queue.is_filled = True
            queues.filled[queues.filled_count] = <int32_t>index
            queues.filled_count += 1
        queue.length += UNIT_SIZE
        queue.next_offset += 1
        row += ROW_COLUMNS
        collect.done += 1


cdef class UnitCollector:
    """Units of the messages that a walk over the log finds, by queue.

    A queue takes part once it is followed; its messages must come one after the other from then on. What else there is
    (a queue that is new, a gap, a message that gets no unit) stops ``collect``, for the caller to deal with.
    """

    cdef Queues queues

    def __cinit__(self):
        if not make_slots(&self.queues, 0):
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.queues.count):
            free(self.queues.entries[i].topic)
            free(self.queues.entries[i].units)
        free(self.queues.entries)
        free(self.queues.filled)
        free(self.queues.unused)
        free(self.queues.slots)

    def follow(self, bytes topic, int64_t queue_id, int64_t queue_offset):
        """Take the messages of a queue from ``queue_offset`` on; returns its number, the same until it is forgotten.

        raises  ValueError where units of it were collected and not taken
        """
        cdef Py_ssize_t length = PyBytes_GET_SIZE(topic), index
        cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(topic)
        cdef uint32_t value = rc_crc32(name, length, <uint32_t>queue_id)
        index = find_queue(&self.queues, name, length, queue_id, value)
        if index < 0:
            index = self._add(name, length, queue_id, value)
        elif self.queues.entries[index].length:
            raise ValueError("the queue has units that were not taken")
        self.queues.entries[index].next_offset = queue_offset
        return index

    cdef Py_ssize_t _add(self, const uint8_t* topic, Py_ssize_t length, int64_t queue_id, uint32_t value) except -1:
        cdef Queues* queues = &self.queues
        cdef uint8_t* name
        cdef Py_ssize_t index
        cdef bint is_filled = False
        if queues.unused_count == 0 and queues.count == queues.room and not make_room(queues, 2 * queues.room + 32):
            raise MemoryError
        if 2 * (queues.taken + 1) > queues.mask and not make_slots(queues, queues.count - queues.unused_count + 1):
            raise MemoryError
        name = <uint8_t*>malloc(length + 1)
        if name == NULL:
            raise MemoryError
        memcpy(name, topic, length)
        if queues.unused_count:
            queues.unused_count -= 1
            index = queues.unused[queues.unused_count]
            is_filled = queues.entries[index].is_filled  # as it is among those that may have units
        else:
            index = queues.count
            queues.count += 1
        queues.entries[index] = Followed(name, length, queue_id, 0, NULL, 0, 0, value, is_filled)
        take_slot(queues, index)
        return index

    def forget(self, Py_ssize_t number):
        """Follow a queue no more, and drop units that were not taken; its number may be given to another.

        raises  IndexError for a number that ``follow`` did not return
        """
        cdef Followed* queue = self._entry(number)
        give_slot_up(&self.queues, number)
        free(queue.topic)
        free(queue.units)
        queue.topic = queue.units = NULL
        queue.length = queue.capacity = 0
        self.queues.unused[self.queues.unused_count] = <int32_t>number
        self.queues.unused_count += 1

    cdef Followed* _entry(self, Py_ssize_t number) except NULL:
        if number < 0 or number >= self.queues.count or self.queues.entries[number].topic == NULL:
            raise IndexError(f"queue {number} of {self.queues.count}")
        return &self.queues.entries[number]

    def collect(self, data, rows, Py_ssize_t first, Py_ssize_t last):
        """Make units of rows ``first`` to ``last`` of a walk.

        data     what was walked, as for ``commit_log.walk``
        rows     as ``commit_log.walk`` filled it
        returns  the first row that was not taken: ``last``, or one of a queue that is not followed, or whose place in
                 its queue is another than the next, or that gets no unit, or whose topic cannot be read
        raises   ValueError for rows that are not in the table, or a topic that is not in the data; MemoryError
        """
        cdef Borrowed held
        cdef Collect task
        cdef const int64_t* row
        held.count = 0
        try:
            source = borrow_bytes(&held, data)
            table = borrow_rows(&held, rows, ROW_COLUMNS, False)
            if first < 0 or last < first or last > table.shape[0]:
                raise ValueError(f"rows {first} to {last} of {table.shape[0]}")
            row = <const int64_t*>table.buf + first * ROW_COLUMNS
            task = Collect(
                &self.queues, <const uint8_t*>source.buf, source.len, row, last - first, 0, True, False,
            )
            with nogil:
                guarded(collect_loop, &task, task.data, source.len)
        finally:
            give_back(&held)
        if not task.enough:
            raise MemoryError
        if task.outside:
            raise ValueError(f"the topic of row {first + task.done} is not within the data")
        return first + task.done

    def take(self, Py_ssize_t number):
        """Return the units of a queue that were collected since the last call, and forget them.

        raises  IndexError for a number that ``follow`` did not return
        """
        cdef Followed* queue = self._entry(number)
        cdef bytes units = PyBytes_FromStringAndSize(<char*>queue.units, queue.length)
        free(queue.units)
        queue.units = NULL
        queue.length = queue.capacity = 0
        return units

    def take_all(self):
        """Return number and units of each queue of which units were collected and not taken, and forget the units."""
        cdef Queues* queues = &self.queues
        cdef list taken = []
        cdef int32_t number
        while queues.filled_count:
            number = queues.filled[queues.filled_count - 1]
            if queues.entries[number].length:
                taken.append((number, self.take(number)))
            queues.entries[number].is_filled = False
            queues.filled_count -= 1
        return taken


def tags_codes(units):
    """Return the tags codes of units, each once."""
    cdef Borrowed held
    cdef set found = set()
    cdef Py_ssize_t i
    cdef int64_t code, last = 0
    cdef const uint8_t* at
    held.count = 0
    try:
        source = borrow_units(&held, units)
        at = <const uint8_t*>source.buf
        for i in range(source.len // UNIT_SIZE):
            code = rc_get_i64(at + 12)
            if i == 0 or code != last:
                found.add(code)
                last = code
            at += UNIT_SIZE
    finally:
        give_back(&held)
    return found
