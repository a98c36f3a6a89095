"""Client batches: scan to columns, encode, lay out in the log's write buffer. The layout is in batch.pxd.

RocketMQ  common/message/MessageDecoder.java, store/MessageExtEncoder.java (5.5.0)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t

from rocketcore._fast.buffers cimport (
    Borrowed,
    borrow_bytes,
    borrow_room,
    borrow_rows,
    check_range,
    give_back,
    outside,
)
from rocketcore._fast.record cimport (
    PROPERTIES_MAX,
    Fields,
    Properties,
    any_properties,
    joined_length,
    named,
    plain_properties,
    rc_fits,
    rc_get_i16,
    rc_get_i32,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_16,
    rc_put_bytes,
    rc_read_properties,
    record_size,
    shared_fields,
    write_record,
)
from rocketcore._fast.status cimport BODY_PAST_RECORD, OK, PROPERTIES_PAST_RECORD, RECORD_PAST_END, Status, fail


cdef Status read_element(const uint8_t* data, int64_t at, int64_t end, int64_t* row) noexcept nogil:
    """Fill one row from the batch element at ``at``; the stated size, magic and CRC are ignored, as brokers do."""
    cdef const uint8_t* p = data + at
    cdef const uint8_t* stop = data + end
    cdef int64_t length
    if end - at < ELEMENT_FIXED_SIZE:
        return RECORD_PAST_END
    row[BATCH_FLAG] = rc_get_i32(p + 12)
    length = rc_get_i32(p + 16)
    p += 20
    if not rc_fits(p, length, stop):
        return BODY_PAST_RECORD
    row[BATCH_BODY_START] = p - data
    row[BATCH_BODY_LENGTH] = length
    p += length
    if stop - p < 2:
        return PROPERTIES_PAST_RECORD
    length = rc_get_i16(p)
    p += 2
    if not rc_fits(p, length, stop):
        return PROPERTIES_PAST_RECORD
    row[BATCH_PROPERTIES_START] = p - data
    row[BATCH_PROPERTIES_LENGTH] = length
    row[BATCH_SIZE] = p + length - data - at
    return OK


cdef Status scan_loop(
    const uint8_t* data, int64_t start, int64_t end, int64_t* rows, Py_ssize_t capacity, Py_ssize_t* count,
    int64_t* position,
) noexcept nogil:
    cdef int64_t spare[BATCH_COLUMNS]
    cdef int64_t* row
    cdef Status status = OK
    cdef Py_ssize_t found = 0
    cdef int64_t at = start
    while at < end:
        row = rows + found * BATCH_COLUMNS if found < capacity else spare
        status = read_element(data, at, end, row)
        if status != OK:
            break
        at += row[BATCH_SIZE]
        found += 1
    count[0] = found
    position[0] = at
    return status


def scan_batch(data, Py_ssize_t start, Py_ssize_t end, rows):
    """Find the elements of the client batch ``data[start:end]`` and check that they end exactly at ``end``.

    rows      int64[k, 6]: BATCH_FLAG BATCH_BODY_START BATCH_BODY_LENGTH BATCH_PROPERTIES_START
              BATCH_PROPERTIES_LENGTH BATCH_SIZE; ``(end - start) // 22`` rows are always enough
    returns   number of elements, also if it is more than ``k``: then only the first k rows were filled
    raises    DecodeError if any element runs past the end or has a negative length
    RocketMQ  common/message/MessageDecoder.java (decodeMessages), store/MessageExtEncoder.java (batch encode)
    """
    cdef Borrowed held
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        table = borrow_rows(&held, rows, BATCH_COLUMNS, True)
        status = scan_loop(
            <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], &count, &position
        )
    finally:
        give_back(&held)
    if status != OK:
        raise fail(status, position)
    return count


def longest_properties(batch_rows, Py_ssize_t count):
    """Return the length of the longest properties of the first ``count`` rows that ``scan_batch`` filled; 0 of none."""
    cdef Borrowed held
    cdef const int64_t* row
    cdef int64_t longest = 0
    cdef Py_ssize_t i
    held.count = 0
    try:
        table = borrow_rows(&held, batch_rows, BATCH_COLUMNS, False)
        check_count(table, count)
        row = <const int64_t*>table.buf + BATCH_PROPERTIES_LENGTH
        for i in range(count):
            longest = max(longest, row[i * <Py_ssize_t>BATCH_COLUMNS])
        return longest
    finally:
        give_back(&held)


cdef inline int check_count(const Py_buffer* table, Py_ssize_t count) except -1:
    if count < 0 or count > table.shape[0]:
        raise ValueError(f"{count} rows of {table.shape[0]}")
    return 0


cdef inline int64_t length_of(object item) except -1:
    return PyBytes_GET_SIZE(item) if PyBytes_CheckExact(item) else copy_buffer(NULL, item, 0)


cdef inline uint8_t* append(uint8_t* at, object item, int64_t length) except NULL:
    if PyBytes_CheckExact(item):
        return rc_put_bytes(at, PyBytes_AS_STRING(item), length)
    copy_buffer(at, item, length)
    return at + length


cdef int64_t copy_buffer(uint8_t* at, object item, int64_t length) except -1:
    """Return the length of a bytes-like object; unless ``at`` is NULL copy it, if it still has ``length`` bytes."""
    cdef Borrowed held
    held.count = 0
    try:
        source = borrow_bytes(&held, item)
        if at != NULL:
            if source.len != length:
                raise ValueError("a buffer changed its size while the batch was encoded")
            rc_put_bytes(at, source.buf, length)
        return source.len
    finally:
        give_back(&held)


def encode_batch(bodies, properties, flags=None):
    """Return the client batch of these messages, in order.

    bodies      sequence of bytes-like objects
    properties  sequence of property texts, one per body, each at most 32,767 bytes
    flags       application flags, int32, one per body; all 0 if None
    raises      ValueError if the sequences differ in length or an element is longer than its length field can state
    RocketMQ    common/message/MessageDecoder.java (encodeMessages)
    """
    cdef list contents = bodies if type(bodies) is list else list(bodies)
    cdef list texts = properties if type(properties) is list else list(properties)
    cdef list marks = None if flags is None else list(flags)
    cdef Py_ssize_t i, count = len(contents)
    cdef int64_t body_length, properties_length, size, total = 0
    cdef int32_t flag = 0
    cdef uint8_t* at
    cdef bytes batch
    if len(texts) != count or (marks is not None and len(marks) != count):
        raise ValueError("bodies, properties and flags need the same length")
    for i in range(count):
        properties_length = length_of(texts[i])
        if properties_length > PROPERTIES_MAX:
            raise ValueError(f"element {i}: properties of {properties_length} bytes, {PROPERTIES_MAX} are allowed")
        size = ELEMENT_FIXED_SIZE + length_of(contents[i]) + properties_length
        if size > INT32_MAX:
            raise ValueError(f"element {i}: {size} bytes, {INT32_MAX} is the largest size it can state")
        total += size
    batch = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t*>PyBytes_AS_STRING(batch)
    for i in range(count):
        if marks is not None:
            flag = marks[i]
        body_length = length_of(contents[i])
        properties_length = length_of(texts[i])
        size = ELEMENT_FIXED_SIZE + body_length + properties_length
        total -= size
        if total < 0:
            raise ValueError("a buffer changed its size while the batch was encoded")
        at = put_element_head(at, size, flag, body_length)
        at = append(at, contents[i], body_length)
        at = rc_put_16(at, <uint16_t>properties_length)
        at = append(at, texts[i], properties_length)
    return batch


cdef inline Properties read_properties(const uint8_t* text, int64_t length) noexcept nogil:
    """The properties of an element, looked through again only where a checksum may be."""
    cdef rc_property_reader reader = rc_read_properties(text, length)
    cdef rc_property found
    cdef const uint8_t* next_name = text
    cdef bint is_plain = True
    while rc_next_property(&reader, &found):
        if found.name != next_name or named(&found, b"__CRC32#", 8):
            is_plain = False
        next_name = found.value + found.value_length + 1
    if is_plain and next_name >= text + length:
        return plain_properties(text, length)
    return any_properties(text, length)


cdef int64_t measure(
    const uint8_t* data, int64_t length, const Fields* fields, const int64_t* row, Py_ssize_t count, int64_t* result,
    Py_ssize_t* bad,
) noexcept nogil:
    """Fill the results but for the places, and return the bytes of all records.

    returns  -1 at a row outside ``data``, -2 at properties that are too long
    """
    cdef int64_t total = 0, stored_length
    cdef Properties properties
    cdef Py_ssize_t i
    for i in range(count):
        bad[0] = i
        if outside(row[BATCH_BODY_START], row[BATCH_BODY_LENGTH], length) or outside(
            row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH], length
        ):
            return -1
        properties = read_properties(data + row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH])
        stored_length = joined_length(fields, &properties)
        if stored_length > PROPERTIES_MAX:
            return -2
        result[PUT_SIZE] = record_size(fields.topic_length, row[BATCH_BODY_LENGTH], stored_length, fields.sys_flag)
        total += result[PUT_SIZE]
        row += BATCH_COLUMNS
        result += PUT_COLUMNS
    return total


cdef void put_elements(
    uint8_t* out, int64_t physical_offset, const uint8_t* data, const Fields* fields, const int64_t* row,
    Py_ssize_t count, int64_t queue_offset, int64_t* result,
) noexcept nogil:
    cdef Properties properties
    cdef Py_ssize_t i
    for i in range(count):
        properties = plain_properties(data + row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH])
        if result[PUT_SIZE] != record_size(
            fields.topic_length, row[BATCH_BODY_LENGTH], joined_length(fields, &properties), fields.sys_flag
        ):
            properties = any_properties(properties.at, properties.length)  # the measure left a checksum out
        out = write_record(
            out, fields, result[PUT_SIZE], <int32_t>row[BATCH_FLAG], queue_offset + i, physical_offset,
            data + row[BATCH_BODY_START], row[BATCH_BODY_LENGTH], &properties,
        )
        result[PUT_PHYSICAL_OFFSET] = physical_offset
        physical_offset += result[PUT_SIZE]
        row += BATCH_COLUMNS
        result += PUT_COLUMNS


def put_batch(
    out, Py_ssize_t position, Py_ssize_t limit, int64_t physical_offset, data, batch_rows, Py_ssize_t count, *,
    bytes topic not None, int32_t queue_id, int64_t queue_offset, int32_t sys_flag, int64_t born_timestamp,
    bytes born_host not None, int64_t store_timestamp, bytes store_host not None, int32_t reconsume_times, results,
    bint checksum=False,
):
    """Lay out a client batch as stored messages with consecutive queue offsets: all of them, or none.

    out, position, limit, physical_offset   as in ``sends.put_records``
    data, batch_rows  the batch and its first ``count`` rows, as ``scan_batch`` filled them
    queue_offset      of the first element
    checksum          as in ``record.put_stored``. Where an element's properties lack their last separator it is put in;
                      5.5.0 leaves it out, and then neither its readers nor its own check find the checksum
    results           int64[k, 2] with k ≥ count: PUT_PHYSICAL_OFFSET PUT_SIZE of each element
    returns           bytes written, or -1 if they do not fit before ``limit``
    raises            ValueError if an element's properties are longer than 32,767 bytes with what is added
    RocketMQ          store/MessageExtEncoder.java (encode of MessageExtBatch), store/CommitLog.java (asyncPutMessages)
    """
    cdef Fields fields = shared_fields(topic, born_host, store_host, store_timestamp, sys_flag, checksum)
    cdef Borrowed held
    cdef Py_ssize_t bad = 0
    cdef int64_t total
    fields.born_timestamp = born_timestamp
    fields.queue_id = queue_id
    fields.reconsume_times = reconsume_times
    held.count = 0
    try:
        target = borrow_room(&held, out)
        check_range(target, position, limit)
        source = borrow_bytes(&held, data)
        table = borrow_rows(&held, batch_rows, BATCH_COLUMNS, False)
        answers = borrow_rows(&held, results, PUT_COLUMNS, True)
        if count < 0 or count > table.shape[0] or count > answers.shape[0]:
            raise ValueError(f"{count} rows are not within batch_rows and results")
        with nogil:
            total = measure(
                <const uint8_t*>source.buf, source.len, &fields, <const int64_t*>table.buf, count,
                <int64_t*>answers.buf, &bad,
            )
        if total == -1:
            raise ValueError(f"row {bad} of batch_rows points outside the data")
        if total == -2:
            raise ValueError(f"element {bad}: properties longer than {<int>PROPERTIES_MAX} bytes")
        if total > limit - position:
            return -1
        with nogil:
            put_elements(
                <uint8_t*>target.buf + position, physical_offset + position, <const uint8_t*>source.buf, &fields,
                <const int64_t*>table.buf, count, queue_offset, <int64_t*>answers.buf,
            )
        return total
    finally:
        give_back(&held)
