"""Walk a segment of the commit log: the rows that dispatch needs, the end of a file, the end of the log. And copy
the records of a pull out of it.

layout    stored messages (record.pxd) back to back; a record never crosses a file. Where the next one does not fit, a
          filler of left i32 · magic 0xCBD43194 ends the file. Bytes never written are zero
RocketMQ  store/CommitLog.java (checkMessageAndReturnSize, recoverAbnormally), 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, check_range, give_back
from rocketcore._fast.mapped cimport guarded, page_before
from rocketcore._fast.record cimport (
    CHECKSUM_SIZE,
    FIXED_SIZE,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    hash_of_tags,
    is_checksum,
    level_of,
    named,
    rc_get_i32,
    rc_get_i64,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_32,
    rc_read_properties,
    read_fields,
)
from rocketcore._fast.record cimport PREPARED_OFFSET as RECORD_PREPARED_OFFSET
from rocketcore._fast.record cimport PROPERTIES_LENGTH as RECORD_PROPERTIES_LENGTH
from rocketcore._fast.record cimport PROPERTIES_START as RECORD_PROPERTIES_START
from rocketcore._fast.record cimport QUEUE_ID as RECORD_QUEUE_ID
from rocketcore._fast.record cimport QUEUE_OFFSET as RECORD_QUEUE_OFFSET
from rocketcore._fast.record cimport STORE_TIMESTAMP as RECORD_STORE_TIMESTAMP
from rocketcore._fast.record cimport STORED_COLUMNS
from rocketcore._fast.record cimport SYS_FLAG as RECORD_SYS_FLAG
from rocketcore._fast.record cimport TOPIC_LENGTH as RECORD_TOPIC_LENGTH
from rocketcore._fast.record cimport TOPIC_START as RECORD_TOPIC_START
from rocketcore._fast.record cimport TOTAL_SIZE as RECORD_TOTAL_SIZE
from rocketcore._fast.status cimport OK

# The rows that consume_queue.scan_units fills.
cdef enum:
    UNIT_PHYSICAL_OFFSET
    UNIT_SIZE
    UNIT_INDEX
    UNIT_COLUMNS

cdef enum:
    PAGE_SIZE = 4096

cdef inline void read_properties(const uint8_t* data, int64_t* row) noexcept nogil:
    """Fill TAGS_CODE and DELAY_LEVEL; where a name occurs twice the last one counts."""
    cdef rc_property_reader reader = rc_read_properties(data + row[PROPERTIES_START], row[PROPERTIES_LENGTH])
    cdef rc_property found, tags
    tags.value = NULL
    row[DELAY_LEVEL] = 0
    while rc_next_property(&reader, &found):
        if named(&found, b"TAGS", 4):
            tags = found
        elif named(&found, b"DELAY", 5):
            row[DELAY_LEVEL] = level_of(found.value, found.value_length)
    row[TAGS_CODE] = hash_of_tags(&tags)


cdef struct Walk:
    const uint8_t* data
    int64_t start
    int64_t end
    int64_t base_offset
    int64_t* rows
    Py_ssize_t capacity
    bint check_crc
    bint was_sealed
    # Results
    bint sealed
    Py_ssize_t count
    int64_t position
    int outcome


cdef void walk_loop(void* task) noexcept nogil:
    cdef Walk* walk = <Walk*>task
    cdef const uint8_t* data = walk.data
    cdef int64_t record[STORED_COLUMNS]
    cdef int64_t first[STORED_COLUMNS]
    cdef int64_t at = walk.start, end = walk.end, base_offset = walk.base_offset
    cdef int64_t size
    cdef int64_t* row = walk.rows
    cdef int outcome
    cdef Py_ssize_t found = 0
    cdef bint sealed = walk.was_sealed, was_sealed
    while True:
        outcome = what_follows(data, at, end)
        if outcome != FULL:
            break
        if found == walk.capacity:
            break
        was_sealed = sealed
        if not read_own(data, at, end, base_offset, record, walk.check_crc, &sealed):
            outcome = END_OF_LOG
            break
        if found == 1 and sealed and not was_sealed and not read_own(
            data, walk.start, end, base_offset, first, walk.check_crc, &sealed
        ):
            at = walk.start
            found = 0
            outcome = END_OF_LOG
            break
        size = record[RECORD_TOTAL_SIZE]
        row[PHYSICAL_OFFSET] = base_offset + at
        row[SIZE] = size
        row[QUEUE_ID] = record[RECORD_QUEUE_ID]
        row[QUEUE_OFFSET] = record[RECORD_QUEUE_OFFSET]
        row[STORE_TIMESTAMP] = record[RECORD_STORE_TIMESTAMP]
        row[TOPIC_START] = record[RECORD_TOPIC_START]
        row[TOPIC_LENGTH] = record[RECORD_TOPIC_LENGTH]
        row[SYS_FLAG] = record[RECORD_SYS_FLAG]
        row[PROPERTIES_START] = record[RECORD_PROPERTIES_START]
        row[PROPERTIES_LENGTH] = record[RECORD_PROPERTIES_LENGTH]
        row[PREPARED_OFFSET] = record[RECORD_PREPARED_OFFSET]
        read_properties(data, row)
        at += size
        row += COLUMNS
        found += 1
    walk.sealed = sealed
    walk.count = found
    walk.position = at
    walk.outcome = outcome


cdef void walk_readable(Walk* walk) noexcept nogil:
    """Walk; where a page cannot be read, again as if the data ended before it, so that every row is sound."""
    cdef int64_t end = walk.end
    cdef const uint8_t* fault
    while True:
        fault = guarded(walk_loop, walk, walk.data, walk.end)
        if fault == NULL:
            break
        walk.end = max(walk.start, page_before(walk.data, fault))
    if walk.outcome == END_OF_DATA and walk.end < end:
        walk.outcome = UNREADABLE


def walk(data, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, rows, bint check_crc=True, bint sealed=False):
    """Walk the records of ``data[start:end]``, a piece of a log segment that begins at a record.

    data         bytes-like, read only, not kept; it may be a read-only map of the segment
    base_offset  physical offset of ``data[0]``
    rows         int64[k, 13], filled from row 0: PHYSICAL_OFFSET SIZE TAGS_CODE QUEUE_ID QUEUE_OFFSET STORE_TIMESTAMP
                 TOPIC_START TOPIC_LENGTH SYS_FLAG PROPERTIES_START PROPERTIES_LENGTH DELAY_LEVEL PREPARED_OFFSET;
                 …_START are positions in ``data``, TAGS_CODE is Java's hash of TAGS (0 without), DELAY_LEVEL the number
                 in DELAY (0 without), PREPARED_OFFSET the prepared transaction offset
    check_crc    compare records with their checksum, those without one only their bodies with their CRC
    sealed       the records have checksums, as an earlier call found
    returns      (count, position, status, sealed): rows filled, the first byte not consumed, why the walk stopped
                 there, and whether a record with a checksum was met, here or before
                 END_OF_DATA  fewer bytes left than the next record states, or fewer than 8: come back with more, and at
                              the end of the file take it as END_OF_LOG
                 FILLER       the rest of this file is not used, the log goes on in the next one
                 END_OF_LOG   zero bytes, or anything that is not an undamaged record written for this very offset
                 FULL         the table is full and another record or something like it follows
                 UNREADABLE   the next record, or what follows the last one, lies on a page that cannot be read
    RocketMQ     store/CommitLog.java (checkMessageAndReturnSize)

    A record is valid if its magic is known, its fields add up exactly to its size, its PHYSICALOFFSET is where it lies
    and its checksum is right (record.pxd, check_record). Java does not compare the offset; it is what tells a record
    from bytes of an older file. When the second record is the first with a checksum, the one before it is looked at
    again: it has lost its own, or is the last of an older store.
    """
    cdef Borrowed held
    cdef Walk task
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        table = borrow_rows(&held, rows, COLUMNS, True)
        task = Walk(
            <const uint8_t*>source.buf, start, end, base_offset, <int64_t*>table.buf, table.shape[0], check_crc, sealed,
            sealed, 0, start, FULL,
        )
        with nogil:
            walk_readable(&task)
    finally:
        give_back(&held)
    return task.count, task.position, task.outcome, task.sealed


# A search within a segment, for its next record or for the end of a damaged one.
cdef struct Search:
    const uint8_t* data
    int64_t start
    int64_t last
    int64_t end
    int64_t base_offset
    bint sealed
    int64_t found  # the result


cdef void find_loop(void* task) noexcept nogil:
    cdef Search* search = <Search*>task
    cdef const uint8_t* data = search.data
    cdef int64_t record[STORED_COLUMNS]
    cdef const uint8_t* magic
    cdef int64_t at = search.start
    search.found = -1
    while at < search.last:
        # The first byte of both magics, four bytes into a record.
        magic = <const uint8_t*>memchr(data + at + 4, 0xDA, search.last - at)
        if magic == NULL:
            break
        at = magic - data - 4
        # A record knows where it lies: that dismisses almost every stray magic before its fields are read.
        if (
            search.end - at >= FIXED_SIZE and rc_get_i64(data + at + 28) == search.base_offset + at
            and read_own(data, at, search.end, search.base_offset, record, True, &search.sealed)
        ):
            search.found = at
            break
        at += 1


cdef void find_readable(Search* search) noexcept nogil:
    """Find; a page that cannot be read is left out, and so is a record that needs it."""
    cdef Search before
    cdef int64_t page
    cdef const uint8_t* fault
    while search.start < search.last:
        fault = guarded(find_loop, search, search.data, search.end)
        if fault == NULL:
            return
        page = page_before(search.data, fault)
        # Records that end before the page first, then those behind it. The loop reads four bytes behind its last place.
        before = search[0]
        before.last = min(search.last, page - FIXED_SIZE)
        before.end = page
        if page > search.start and guarded(find_loop, &before, before.data, page) == NULL and before.found >= 0:
            search.found = before.found
            return
        search.start = max(search.start, page + PAGE_SIZE)
    search.found = -1


def find(data, Py_ssize_t start, Py_ssize_t last, int64_t base_offset, bint sealed):
    """Find the next undamaged record of a segment after bytes that are none.

    data         bytes-like, the whole segment, read only, not kept
    start, last  the record begins at a position from ``start`` on and before ``last``; it may end behind ``last``
    base_offset  physical offset of ``data[0]``
    sealed       as for ``walk``
    returns      its position, or -1
    """
    cdef Borrowed held
    cdef Search search
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, last)
        # A record is longer than this, and a magic is looked for four bytes behind its begin.
        last = min(last, source.len - FIXED_SIZE)
        search = Search(<const uint8_t*>source.buf, start, last, source.len, base_offset, sealed, -1)
        with nogil:
            find_readable(&search)
    finally:
        give_back(&held)
    return search.found


cdef inline bint ends_at(
    const uint8_t* data, int64_t place, int64_t end, int64_t base_offset, bint sealed
) noexcept nogil:
    """Whether a record plausibly ends at a place: its checksum is before it, or another record or a filler behind."""
    cdef int64_t record[STORED_COLUMNS]
    if is_checksum(data + place - CHECKSUM_SIZE) or place == end:
        return True
    if end - place >= FILLER_SIZE and rc_get_i32(data + place + 4) == MAGIC_FILLER:
        return True
    return read_own(data, place, end, base_offset, record, True, &sealed)


cdef int64_t span_end(
    const uint8_t* data, int64_t at, int64_t end, int64_t base_offset, bint sealed
) noexcept nogil:
    cdef int64_t record[STORED_COLUMNS]
    cdef int64_t by_size, by_fields = -1
    cdef int32_t magic = rc_get_i32(data + at + 4)
    by_size = at + rc_get_i32(data + at)
    if read_fields(data, at, end, MAGIC_V2 if magic == MAGIC_V2 else MAGIC_V1, record) == OK:
        by_fields = record[RECORD_PROPERTIES_START] + record[RECORD_PROPERTIES_LENGTH]
    if by_size <= at + FIXED_SIZE or by_size > end:
        by_size = -1
    if by_size == by_fields:
        return by_size
    # One of them is damaged. Where both lead to a place that may be right, the nearer one costs no record.
    if by_size > 0 and not ends_at(data, by_size, end, base_offset, sealed):
        by_size = -1
    if by_fields > 0 and not ends_at(data, by_fields, end, base_offset, sealed):
        by_fields = -1
    if by_size < 0 or 0 < by_fields < by_size:
        return by_fields
    return by_size


cdef void find_span_end(void* task) noexcept nogil:
    cdef Search* search = <Search*>task
    search.found = span_end(search.data, search.start, search.end, search.base_offset, search.sealed)


def damaged_end(data, Py_ssize_t at, int64_t base_offset, bint sealed):
    """Return where a record ended of which a byte is damaged, as far as its lengths tell.

    data         bytes-like, the whole segment, read only, not kept
    at           where the record begins
    base_offset  physical offset of ``data[0]``
    sealed       as for ``walk``
    returns      the first place where the next record may begin: nothing before it is one, whatever it looks like, as a
                 body may hold bytes that look like a record of the very place where they lie. Its size and the lengths
                 of its fields say the same twice, and one of them was hit at most. Where neither leads to anything,
                 the shortest record is assumed
    """
    cdef Borrowed held
    cdef Search search
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, at, source.len)
        search = Search(<const uint8_t*>source.buf, at, at, source.len, base_offset, sealed, -1)
        if source.len - at > FIXED_SIZE:
            with nogil:
                guarded(find_span_end, &search, search.data, search.end)
        return search.found if search.found > at + FIXED_SIZE else min(at + FIXED_SIZE + 1, source.len)
    finally:
        give_back(&held)


cdef int64_t gathered_size(
    const int64_t* units, Py_ssize_t count, int64_t log_start, int64_t log_length, Py_ssize_t* within
) noexcept nogil:
    """Add up the sizes of the leading units that lie within the file; ``within`` gets their number."""
    cdef int64_t total = 0, offset, size
    cdef Py_ssize_t i = 0
    while i < count:
        offset = units[UNIT_PHYSICAL_OFFSET]
        size = units[UNIT_SIZE]
        if offset < log_start or size < FIXED_SIZE or size > log_length or offset - log_start > log_length - size:
            break
        total += size
        units += UNIT_COLUMNS
        i += 1
    within[0] = i
    return total


cdef enum:
    AHEAD = 2  # records whose bytes are on their way while one is copied


cdef void gather_loop(void* task) noexcept nogil:
    """Copy record by record and check each copy, while it is in the cache, up to the first one that is not sound.

    Records of a queue lie apart, so the next ones are asked for while one is copied: what a processor reads ahead by
    itself does not reach them.
    """
    cdef Gather* gather = <Gather*>task
    cdef const int64_t* units = gather.units
    cdef const int64_t* following
    cdef uint8_t* out = gather.out
    cdef int64_t record[STORED_COLUMNS]
    cdef int64_t at = 0, size
    cdef bint sealed = gather.sealed
    cdef Py_ssize_t i = 0
    while i < gather.count:
        size = units[UNIT_SIZE]
        if i + AHEAD < gather.count:
            following = units + AHEAD * UNIT_COLUMNS
            rc_prefetch(gather.log + (following[UNIT_PHYSICAL_OFFSET] - gather.log_start), following[UNIT_SIZE])
        memcpy(out + at, gather.log + (units[UNIT_PHYSICAL_OFFSET] - gather.log_start), size)
        if not read_queued(
            out, at, size, units[UNIT_PHYSICAL_OFFSET], gather.queue_id, gather.queue_offset + units[UNIT_INDEX],
            record, &sealed,
        ):
            break
        at += size
        units += UNIT_COLUMNS
        i += 1
    gather.copied = at
    gather.sound = i


cdef Py_ssize_t units_before(
    const int64_t* units, Py_ssize_t count, const uint8_t* log, int64_t log_start, const uint8_t* fault
) noexcept nogil:
    """Return how many leading units do not reach the page of ``fault``."""
    cdef int64_t page = log_start + page_before(log, fault)
    cdef int64_t address = log_start + (fault - log)
    cdef Py_ssize_t i = 0
    while i < count and (
        units[UNIT_PHYSICAL_OFFSET] + units[UNIT_SIZE] <= page or units[UNIT_PHYSICAL_OFFSET] > address
    ):
        units += UNIT_COLUMNS
        i += 1
    return i


cdef void gather_readable(Gather* gather, int64_t log_length) noexcept nogil:
    """Gather; where a page cannot be read, again without the first record that needs it and what follows."""
    cdef const uint8_t* fault
    while True:
        fault = guarded(gather_loop, gather, gather.log, log_length)
        if fault == NULL:
            break
        gather.count = units_before(gather.units, gather.count, gather.log, gather.log_start, fault)


def gather(
    units, Py_ssize_t first, Py_ssize_t last, log, int64_t log_start, int32_t queue_id, int64_t queue_offset,
    bint sealed=False,
):
    """Copy the records that units of a queue lead to out of one file of the log, each checked.

    units         int64[k, 3] as ``consume_queue.scan_units`` fills it: PHYSICAL_OFFSET SIZE INDEX; rows ``first`` to
                  ``last`` are wanted
    log           bytes-like, the file, read only, not kept; it may be a read-only map
    log_start     physical offset of ``log[0]``
    queue_offset  queue offset of the unit with INDEX 0
    sealed        the records of this file have checksums (``walk``)
    returns       (records, row): sound records back to back, and the first row that is not among them. That row is
                  ``last``, or one that does not lie within this file, or one whose record is not sound: that does not
                  decode, has another size, queue id, queue offset or physical offset than its unit says, does not have
                  its checksum, or without one its body not its CRC, or that lies on a page that cannot be read
    raises        ValueError for rows that are not in the table or a negative ``log_start``
    RocketMQ      store/DefaultMessageStore.java (getMessage), which copies what the units say and leaves the checks to
                  the consumer
    """
    cdef Borrowed held
    cdef Gather task
    cdef Py_ssize_t within = 0
    cdef int64_t total
    cdef const int64_t* rows
    cdef bytes records
    held.count = 0
    try:
        table = borrow_rows(&held, units, UNIT_COLUMNS, False)
        if first < 0 or last < first or last > table.shape[0] or log_start < 0:
            raise ValueError(f"rows {first} to {last} of {table.shape[0]}, log from {log_start}")
        rows = <const int64_t*>table.buf + first * UNIT_COLUMNS
        source = borrow_bytes(&held, log)
        total = gathered_size(rows, last - first, log_start, source.len, &within)
        records = PyBytes_FromStringAndSize(NULL, total)
        task = Gather(
            rows, within, <const uint8_t*>source.buf, log_start, queue_id, queue_offset, sealed,
            <uint8_t*>PyBytes_AS_STRING(records), 0, 0,
        )
        with nogil:
            gather_readable(&task, source.len)
    finally:
        give_back(&held)
    return records if task.copied == total else records[:task.copied], first + task.sound


def encode_filler(int64_t left):
    """Return the 8 bytes that end a file with ``left`` bytes unused.

    raises    ValueError if ``left`` is below 8 or does not fit an int32
    RocketMQ  store/CommitLog.java (doAppend, END_OF_FILE)
    """
    cdef uint8_t filler[FILLER_SIZE]
    if left < FILLER_SIZE or left > INT32_MAX:
        raise ValueError(f"a filler covers 8 to {INT32_MAX} bytes, got {left}")
    rc_put_32(rc_put_32(filler, <int32_t>left), <int32_t>MAGIC_FILLER)
    return (<char*>filler)[:FILLER_SIZE]
