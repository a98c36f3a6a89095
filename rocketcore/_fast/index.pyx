"""Index files: what of the records of a log is found by key, and the entries that lead there.

layout    header  begin timestamp i64 · end timestamp i64 · begin offset i64 · end offset i64 · slots in use i32 ·
                  entries i32, the unused entry 0 counted; 40 bytes
          slots   i32 each: the newest entry of a chain, 0 for none; a key's slot is its hash modulo their number
          entries key hash i32 · physical offset i64 · seconds since the begin timestamp i32 · the entry before it in
                  the chain i32, 0 for none; 20 bytes. Entry 0 is never used
key       ``topic#key`` for the UNIQ_KEY of a message and for each of its KEYS, ``topic#T#tags`` for its TAGS; its hash
          is Java's ``String.hashCode`` without its sign, 0 for the one number that has no positive counterpart
RocketMQ  store/index/IndexFile.java, IndexService.java, 5.5.0
"""

import errno

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from rocketcore._fast.buffers cimport (
    Borrowed,
    borrow_bytes,
    borrow_room,
    borrow_rows,
    borrow_values,
    check_range,
    give_back,
)
from rocketcore._fast.commit_log cimport END_OF_DATA, END_OF_LOG, FULL, UNREADABLE, read_own, what_follows
from rocketcore._fast.mapped cimport guarded, page_before
from rocketcore._fast.record cimport (
    PHYSICAL_OFFSET,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    STORE_TIMESTAMP,
    STORED_COLUMNS,
    SYS_FLAG,
    TOPIC_LENGTH,
    TOPIC_START,
    TOTAL_SIZE,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    named,
    rc_crc32,
    rc_get_i32,
    rc_get_i64,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_32,
    rc_put_64,
    rc_read_properties,
)
from rocketcore._fast.status cimport CHAIN_BROKEN, OK, Status, fail


cdef extern from "rc_hash.h" nogil:
    uint32_t rc_java_hash_more(uint32_t hash, const uint8_t* text, size_t length)

cpdef enum:
    HEADER_SIZE = 40
    SLOT_SIZE = 4
    ENTRY_SIZE = 20

# One row per entry that a record asks for.
cpdef enum:
    KEY_HASH
    KEY_OFFSET
    KEY_TIMESTAMP
    KEY_COLUMNS

# The header of a file, as an array of int64.
cpdef enum:
    BEGIN_TIMESTAMP
    END_TIMESTAMP
    BEGIN_OFFSET
    END_OFFSET
    USED_SLOTS
    ENTRIES
    HEADER_COLUMNS


# By so much a message may be older than one before it in its file.
cdef enum:
    JITTER_MILLIS = 1000


cdef inline int32_t without_sign(uint32_t value) noexcept nogil:
    cdef int32_t hash = <int32_t>value
    if hash == INT32_MIN:
        return 0
    return -hash if hash < 0 else hash


# ---------------------------------------------------------------------- keys of records

cdef struct Scan:
    const uint8_t* data
    int64_t start
    int64_t end
    int64_t base_offset
    int64_t* rows
    Py_ssize_t capacity
    int64_t done_before  # entries of the first record that an earlier call found
    bint in_order  # records that are older than those before them are for another file
    int64_t earliest
    bint is_first  # the file has no entry yet
    # Results
    Py_ssize_t count
    int64_t position
    int64_t done
    int outcome


# The entries of the record at hand; ``number`` counts those that it asks for, ``first`` those that are to be left out.
cdef struct Keys:
    int64_t* row
    int64_t* end
    int64_t offset
    int64_t timestamp
    int64_t number
    int64_t first


cdef inline bint add_key(Keys* keys, uint32_t hash) noexcept nogil:
    """Add an entry; False where there is no room for it."""
    if keys.number >= keys.first:
        if keys.row == keys.end:
            return False
        keys.row[KEY_HASH] = without_sign(hash)
        keys.row[KEY_OFFSET] = keys.offset
        keys.row[KEY_TIMESTAMP] = keys.timestamp
        keys.row += KEY_COLUMNS
    keys.number += 1
    return True


cdef inline bint add_keys(
    Keys* keys, const uint8_t* properties, int64_t length, uint32_t topic_hash
) noexcept nogil:
    """Add the entries of a message, in RocketMQ's order; False where there is no room for one of them."""
    cdef rc_property_reader reader = rc_read_properties(properties, length)
    cdef rc_property found, unique, words, tags
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* stop
    unique.value = words.value = tags.value = NULL
    while rc_next_property(&reader, &found):
        if named(&found, b"UNIQ_KEY", 8):
            unique = found
        elif named(&found, b"KEYS", 4):
            words = found
        elif named(&found, b"TAGS", 4):
            tags = found
    if unique.value != NULL:
        if not add_key(keys, rc_java_hash_more(topic_hash, unique.value, unique.value_length)):
            return False
    if words.value != NULL:
        at = words.value
        end = at + words.value_length
        while at < end:
            stop = <const uint8_t*>memchr(at, c" ", end - at)
            if stop == NULL:
                stop = end
            if stop > at and not add_key(keys, rc_java_hash_more(topic_hash, at, stop - at)):
                return False
            at = stop + 1
    if tags.value != NULL:
        topic_hash = rc_java_hash_more(topic_hash, b"T#", 2)
        return add_key(keys, rc_java_hash_more(topic_hash, tags.value, tags.value_length))
    return True


cdef void scan_loop(void* task) noexcept nogil:
    cdef Scan* scan = <Scan*>task
    cdef const uint8_t* data = scan.data
    cdef const uint8_t* topic = NULL
    cdef int64_t record[STORED_COLUMNS]
    cdef int64_t at = scan.start, end = scan.end, topic_length = -1, done = 0
    cdef uint32_t topic_hash = 0
    cdef bint sealed = False, has_room
    cdef int outcome
    cdef int64_t* before
    cdef Keys keys
    keys.row = scan.rows
    keys.end = scan.rows + scan.capacity * KEY_COLUMNS
    keys.first = scan.done_before
    while True:
        outcome = what_follows(data, at, end)
        if outcome != FULL:
            break
        if not read_own(data, at, end, scan.base_offset, record, False, &sealed):
            outcome = END_OF_LOG
            break
        before = keys.row
        if record[SYS_FLAG] & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            if record[TOPIC_LENGTH] != topic_length or memcmp(data + record[TOPIC_START], topic, topic_length) != 0:
                topic = data + record[TOPIC_START]
                topic_length = record[TOPIC_LENGTH]
                topic_hash = rc_java_hash_more(rc_java_hash_more(0, topic, topic_length), b"#", 1)
            keys.offset = record[PHYSICAL_OFFSET]
            keys.timestamp = record[STORE_TIMESTAMP]
            keys.number = 0
            has_room = add_keys(&keys, data + record[PROPERTIES_START], record[PROPERTIES_LENGTH], topic_hash)
            if keys.row != before:
                if scan.in_order:
                    if not scan.is_first and keys.timestamp < scan.earliest:
                        keys.row = before
                        done = keys.first
                        break
                    scan.earliest = max(scan.earliest, keys.timestamp - JITTER_MILLIS)
                    scan.is_first = False
            if not has_room:
                done = keys.number
                break
        keys.first = 0
        at += record[TOTAL_SIZE]
    scan.count = (keys.row - scan.rows) // KEY_COLUMNS
    scan.position = at
    scan.done = done
    scan.outcome = outcome


cdef void scan_readable(Scan* scan) noexcept nogil:
    """Scan; where a page cannot be read, again as if the data ended before it."""
    cdef int64_t end = scan.end
    cdef const uint8_t* fault
    while True:
        fault = guarded(scan_loop, scan, scan.data, scan.end)
        if fault == NULL:
            break
        scan.end = max(scan.start, page_before(scan.data, fault))
    if scan.outcome == END_OF_DATA and scan.end < end:
        scan.outcome = UNREADABLE


def scan_keys(
    data, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, rows, Py_ssize_t limit, int64_t done=0,
    newest_timestamp=None
):
    """Find the entries that the records of ``data[start:end]``, a piece of a log segment, ask for.

    data         bytes-like, read only, not kept; it may be a read-only map of the segment
    base_offset  physical offset of ``data[0]``
    rows         int64[k, 3], filled from row 0: KEY_HASH KEY_OFFSET KEY_TIMESTAMP
    limit        rows to fill at most
    done         entries of the first record to leave out, as an earlier call returned it
    newest_timestamp  of the file that they are for, -1: it has none yet; None: nothing is too old
    returns      (count, position, done, status): rows filled, the begin of the first record that is not done, how many
                 of its entries are among the rows of this call and those before it, and why the scan stopped there:
                 a status of ``commit_log.walk``. FULL: the next record has an entry for which there is no row, or is
                 older than those before it, so that the file would not tell its time: without a row it needs another
    RocketMQ     store/index/IndexService.java (buildIndex)

    Records are not compared with their checksums: they were when they came. Those of transactions that were rolled back
    have no entries.
    """
    cdef Borrowed held
    cdef Scan task
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        table = borrow_rows(&held, rows, KEY_COLUMNS, True)
        if limit < 0 or limit > table.shape[0] or done < 0:
            raise ValueError(f"{limit} of {table.shape[0]} rows, {done} entries done")
        task = Scan(
            <const uint8_t*>source.buf, start, end, base_offset, <int64_t*>table.buf, limit, done,
            newest_timestamp is not None, INT64_MIN, False, 0, start, 0, FULL,
        )
        if newest_timestamp is not None:
            task.is_first = newest_timestamp < 0
            if not task.is_first:
                task.earliest = <int64_t>newest_timestamp - JITTER_MILLIS
        with nogil:
            scan_readable(&task)
    finally:
        give_back(&held)
    return task.count, task.position, task.done, task.outcome


def key_hash(text):
    """Return the hash of a whole key, ``topic#key`` in UTF-8."""
    cdef Borrowed held
    held.count = 0
    try:
        source = borrow_bytes(&held, text)
        return without_sign(rc_java_hash_more(0, <const uint8_t*>source.buf, source.len))
    finally:
        give_back(&held)


# ---------------------------------------------------------------------- entries

cdef Py_buffer* borrow_slots(Borrowed* held, object slots, bint writable) except NULL:
    cdef Py_buffer* view = borrow_room(held, slots) if writable else borrow_bytes(held, slots)
    if view.len == 0 or view.len % SLOT_SIZE or view.len // SLOT_SIZE > INT32_MAX:
        raise ValueError(f"{view.len} bytes are no table of slots")
    return view


cdef inline uint8_t* slot_of(const Py_buffer* slots, int32_t hash) noexcept nogil:
    return <uint8_t*>slots.buf + <uint32_t>hash % <uint32_t>(slots.len // SLOT_SIZE) * SLOT_SIZE


cdef inline int32_t seconds_since(int64_t begin, int64_t timestamp) noexcept nogil:
    if begin <= 0 or timestamp <= begin:
        return 0
    return <int32_t>min((timestamp - begin) // 1000, <int64_t>INT32_MAX)


cdef void put_loop(
    const int64_t* row, Py_ssize_t count, int64_t* header, const Py_buffer* slots, uint8_t* at
) noexcept nogil:
    cdef int32_t hash, previous
    cdef uint8_t* slot
    cdef Py_ssize_t _i
    for _i in range(count):
        hash = <int32_t>row[KEY_HASH]
        slot = slot_of(slots, hash)
        previous = rc_get_i32(slot)
        if previous <= 0 or previous > header[ENTRIES]:
            previous = 0
        at = rc_put_32(at, <uint32_t>hash)
        at = rc_put_64(at, <uint64_t>row[KEY_OFFSET])
        at = rc_put_32(at, <uint32_t>seconds_since(header[BEGIN_TIMESTAMP], row[KEY_TIMESTAMP]))
        at = rc_put_32(at, <uint32_t>previous)
        rc_put_32(slot, <uint32_t>header[ENTRIES])
        if header[ENTRIES] <= 1:
            header[BEGIN_OFFSET] = row[KEY_OFFSET]
            header[BEGIN_TIMESTAMP] = row[KEY_TIMESTAMP]
        header[USED_SLOTS] += previous == 0
        header[ENTRIES] += 1
        header[END_OFFSET] = row[KEY_OFFSET]
        header[END_TIMESTAMP] = row[KEY_TIMESTAMP]
        row += KEY_COLUMNS


cdef Py_buffer* borrow_header(Borrowed* held, object header, Py_ssize_t count) except NULL:
    """Borrow a header to which ``count`` entries can be added."""
    cdef Py_buffer* view = borrow_values(held, header)
    cdef const int64_t* values = <const int64_t*>view.buf
    if view.shape[0] != HEADER_COLUMNS or not 1 <= values[ENTRIES] <= INT32_MAX - count:
        raise ValueError("expected a header with the number of entries")
    return view


def put_entries(rows, Py_ssize_t count, header, slots, out):
    """Make entries of the first ``count`` rows of ``scan_keys``, for the file that they come next in.

    header    int64[6]: BEGIN_TIMESTAMP END_TIMESTAMP BEGIN_OFFSET END_OFFSET USED_SLOTS ENTRIES; brought up to date
    slots     the slots of the file, writable; brought up to date
    out       writable buffer, gets the entries, of 20 bytes each
    raises    ValueError for rows that are not in the table, a header without ENTRIES or too small a buffer
    RocketMQ  store/index/IndexFile.java (putKey). The first entry of a file counts its seconds from what the header
              said before, which is the end of the file before it: a reader must not go by them
    """
    cdef Borrowed held
    held.count = 0
    try:
        table = borrow_rows(&held, rows, KEY_COLUMNS, False)
        if count < 0 or count > table.shape[0]:
            raise ValueError(f"{count} of {table.shape[0]} rows")
        values = borrow_header(&held, header, count)
        places = borrow_slots(&held, slots, True)
        target = borrow_room(&held, out)
        if target.len // ENTRY_SIZE < count:
            raise ValueError(f"{count} entries do not fit a buffer of {target.len} bytes")
        with nogil:
            put_loop(<const int64_t*>table.buf, count, <int64_t*>values.buf, places, <uint8_t*>target.buf)
    finally:
        give_back(&held)


def take_back(entries, Py_ssize_t count, slots):
    """Have the slots be as they were before the first ``count`` of ``entries`` were put, which are the newest."""
    cdef Borrowed held
    cdef const uint8_t* first
    cdef const uint8_t* at
    held.count = 0
    try:
        source = borrow_bytes(&held, entries)
        if count < 0 or count > source.len // ENTRY_SIZE:
            raise ValueError(f"{count} entries in {source.len} bytes")
        places = borrow_slots(&held, slots, True)
        first = <const uint8_t*>source.buf
        with nogil:
            at = first + count * ENTRY_SIZE
            while at > first:
                at -= ENTRY_SIZE
                if rc_get_i32(at) >= 0:
                    rc_put_32(slot_of(places, rc_get_i32(at)), <uint32_t>rc_get_i32(at + 16))
    finally:
        give_back(&held)


# ---------------------------------------------------------------------- files

cdef object unreadable(const uint8_t* fault, const uint8_t* data):
    return OSError(errno.EIO, f"the page at byte {fault - data} cannot be read")


cdef struct Sum:
    const uint8_t* data
    int64_t length
    uint32_t value


cdef void sum_up(void* task) noexcept nogil:
    cdef Sum* sum = <Sum*>task
    sum.value = rc_crc32(sum.data, sum.length, sum.value)


def checksum(data, Py_ssize_t start, Py_ssize_t end):
    """Return the CRC-32 of ``data[start:end]``, which may be a map; raises OSError (EIO) when a page cannot be read."""
    cdef Borrowed held
    cdef Sum task
    cdef const uint8_t* fault
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        task = Sum(<const uint8_t*>source.buf + start, end - start, 0)
        with nogil:
            fault = guarded(sum_up, &task, task.data, task.length)
        if fault != NULL:
            raise unreadable(fault, <const uint8_t*>source.buf)
    finally:
        give_back(&held)
    return task.value


cdef struct Restore:
    const uint8_t* entries
    int64_t count
    const Py_buffer* slots
    # Results
    int64_t sound
    int64_t used


cdef void restore_loop(void* task) noexcept nogil:
    cdef Restore* restore = <Restore*>task
    cdef const uint8_t* at = restore.entries
    cdef uint8_t* slot
    cdef int64_t i = 1, used = 0, offset = 0
    cdef int32_t hash, previous
    while i < restore.count:
        at += ENTRY_SIZE
        hash = rc_get_i32(at)
        if hash < 0 or rc_get_i64(at + 4) < offset:
            break
        slot = slot_of(restore.slots, hash)
        previous = rc_get_i32(slot)
        if previous != rc_get_i32(at + 16):
            break
        offset = rc_get_i64(at + 4)
        used += previous == 0
        rc_put_32(slot, <uint32_t>i)
        i += 1
    restore.sound = i
    restore.used = used


cdef int64_t entries_start(const Py_buffer* file, const Py_buffer* slots, int64_t count) except -1:
    """Return where the entries of a file begin; it has ``count`` of them."""
    cdef int64_t start = HEADER_SIZE + slots.len
    if count < 1 or start > file.len or count > (file.len - start) // ENTRY_SIZE:
        raise ValueError(f"{slots.len} bytes of slots and {count} entries in a file of {file.len} bytes")
    return start


def restore_slots(data, int64_t count, slots):
    """Make the slots of a file again from its first ``count`` entries, the unused one counted.

    data     bytes-like, the whole file; it may be a map
    slots    all zero; filled
    returns  (sound, used): how many of the entries follow from those before them, and how many slots are in use
    raises   OSError (EIO) when a page cannot be read; ValueError where the file is too short
    """
    cdef Borrowed held
    cdef Restore task
    cdef const uint8_t* fault
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        places = borrow_slots(&held, slots, True)
        task = Restore(<const uint8_t*>source.buf + entries_start(source, places, count), count, places, 0, 0)
        with nogil:
            fault = guarded(restore_loop, &task, <const uint8_t*>source.buf, source.len)
        if fault != NULL:
            raise unreadable(fault, <const uint8_t*>source.buf)
    finally:
        give_back(&held)
    return task.sound, task.used


cdef struct Chase:
    const uint8_t* entries
    int64_t count
    const Py_buffer* slots
    int32_t hash
    int64_t begin
    int64_t end
    int64_t begin_timestamp
    int64_t* out
    Py_ssize_t capacity
    int64_t steps
    int64_t first
    # Results
    int64_t cursor
    Py_ssize_t found
    Status status


cdef void chase_loop(void* task) noexcept nogil:
    cdef Chase* chase = <Chase*>task
    cdef const uint8_t* at
    cdef int64_t cursor = chase.first, steps = chase.steps, seconds, time
    cdef int32_t hash, previous
    cdef uint32_t slot_count = <uint32_t>(chase.slots.len // SLOT_SIZE)
    cdef Py_ssize_t found = 0
    cdef Status status = OK
    if cursor < 0:
        cursor = rc_get_i32(slot_of(chase.slots, chase.hash))
        if cursor < 0 or cursor >= chase.count:
            status = CHAIN_BROKEN
    while status == OK and cursor > 0 and steps > 0 and found < chase.capacity:
        at = chase.entries + cursor * ENTRY_SIZE
        hash = rc_get_i32(at)
        seconds = rc_get_i32(at + 12)
        previous = rc_get_i32(at + 16)
        if (
            hash < 0 or <uint32_t>hash % slot_count != <uint32_t>chase.hash % slot_count
            or seconds < 0 or previous < 0 or previous >= cursor
        ):
            status = CHAIN_BROKEN
            break
        # A time is that of the begin of its second; the first entry of a file has none that counts.
        time = chase.begin_timestamp + seconds * 1000
        if hash == chase.hash and (cursor == 1 or time <= chase.end):
            chase.out[found] = rc_get_i64(at + 4)
            found += 1
        steps -= 1
        cursor = previous if time + 999 >= chase.begin else 0
    chase.cursor = cursor
    chase.found = found
    chase.status = status


def find_offsets(
    data, slots, int64_t count, int64_t begin_timestamp, int32_t hash, int64_t begin, int64_t end, out,
    int64_t cursor=-1, int64_t steps=INT32_MAX,
):
    """Follow the chain of a key's hash, from the newest entry on; keys that share the hash are found too.

    data             bytes-like, the whole file; it may be a map
    slots            its slots, bytes-like
    count            its entries, the unused one counted; what lies behind them is not looked at
    begin_timestamp  of its header
    begin, end       store times to look for; the file has seconds, so messages of almost a second before are found too
    out              int64[k], gets physical offsets
    cursor           the entry to go on at, as an earlier call returned it; -1 for the begin
    steps            entries to look at, at most
    returns          (found, cursor): offsets in ``out``, and the entry to go on at, 0 where there is none
    raises           DecodeError where the chain is none; OSError (EIO) when a page cannot be read
    RocketMQ         store/index/IndexFile.java (selectPhyOffset), which ends a chain silently where it is none
    """
    cdef Borrowed held
    cdef Chase task
    cdef const uint8_t* fault
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        places = borrow_slots(&held, slots, False)
        offsets = borrow_values(&held, out)
        if hash < 0 or cursor >= count:
            raise ValueError(f"hash {hash}, entry {cursor} of {count}")
        begin_timestamp = min(max(begin_timestamp, 0), INT64_MAX - (<int64_t>INT32_MAX + 1) * 1000)
        task = Chase(
            <const uint8_t*>source.buf + entries_start(source, places, count), count, places, hash, begin, end,
            begin_timestamp, <int64_t*>offsets.buf, offsets.shape[0], steps, cursor, 0, 0, OK,
        )
        with nogil:
            fault = guarded(chase_loop, &task, <const uint8_t*>source.buf, source.len)
        if fault != NULL:
            raise unreadable(fault, <const uint8_t*>source.buf)
    finally:
        give_back(&held)
    if task.status != OK:
        raise fail(task.status, task.cursor)
    return task.found, task.cursor
