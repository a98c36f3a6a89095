"""Stored messages and client batches: scan to columns, encode, lay out in the log's write buffer, message ids.

layout    the stored message is in record.pxd; a batch element is totalSize i32 · magic i32 (0) · bodyCRC i32 (0) ·
          flag i32 · body i32 + n · properties i16 + n, big-endian, elements back to back
limits    properties ≤ 32,767 bytes, the checksum counts; a topic above 127 bytes makes a V2 record; the CRC of the body
          is without its sign bit
RocketMQ  common/message/MessageDecoder.java, store/MessageExtEncoder.java (5.5.0)
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from rocketcore._fast.header cimport (
    SEND_BATCH,
    SEND_BODY_LENGTH,
    SEND_BODY_START,
    SEND_BORN_TIMESTAMP,
    SEND_COLUMNS,
    SEND_MESSAGE_FLAG,
    SEND_PROPERTIES_LENGTH,
    SEND_PROPERTIES_START,
    SEND_QUEUE_ID,
    SEND_RECONSUME_TIMES,
    SEND_STATUS,
    SEND_SYS_FLAG,
    SEND_TOPIC_LENGTH,
    SEND_TOPIC_START,
)
from rocketcore._fast.record cimport (
    BODY_CRC,
    BODY_LENGTH,
    BODY_START,
    BORN_HOST,
    BORN_HOST_V6,
    BORN_TIMESTAMP,
    CHECKSUM_SIZE,
    FLAG,
    INNER_BATCH,
    MAGIC,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    NEED_UNWRAP,
    PHYSICAL_OFFSET,
    POSITION,
    PREPARED_OFFSET,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    STORE_HOST,
    STORE_HOST_V6,
    STORE_TIMESTAMP,
    STORED_COLUMNS,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_LENGTH,
    TOPIC_MAX_V1,
    TOPIC_START,
    TOTAL_SIZE,
    TRANSACTION_MASK,
    body_crc,
    check_body,
    check_record,
    find_tags_code,
    named,
    put_checksum,
    rc_crc32,
    rc_fits,
    rc_get_i16,
    rc_get_i32,
    rc_get_i64,
    rc_java_hash_utf8,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_16,
    rc_put_32,
    rc_put_64,
    rc_put_bytes,
    rc_put_u8,
    rc_read_properties,
    read_record,
    record_size,
)
from rocketcore._fast.status cimport BODY_PAST_RECORD, OK, PROPERTIES_PAST_RECORD, RECORD_PAST_END, Status, fail
from rocketcore._fast.table cimport take_bytes, take_range, take_rows, take_values

from rocketcore.errors import DecodeError

cdef enum:
    BATCH_FIXED_SIZE = 22
    PROPERTIES_MAX = 32767
    TOPIC_MAX = 32767
    # Work of about two microseconds, for which giving the GIL away and asking for it back is worth while.
    NOGIL_BYTES = 65536

cdef enum:
    BATCH_FLAG
    BATCH_BODY_START
    BATCH_BODY_LENGTH
    BATCH_PROPERTIES_START
    BATCH_PROPERTIES_LENGTH
    BATCH_SIZE
    BATCH_COLUMNS

cdef enum:
    RESULT_POSITION
    RESULT_SIZE
    RESULT_TAGS_CODE
    RESULT_STATUS
    RESULT_QUEUE_OFFSET
    RESULT_UNIQ_KEY_START
    RESULT_UNIQ_KEY_LENGTH
    RESULT_WAIT
    RESULT_COLUMNS

cdef enum PutStatus:
    PUT_OK
    PUT_GENERAL
    PUT_OTHER_TOPIC
    PUT_BAD_QUEUE
    PUT_BODY_TOO_LONG
    PUT_PROPERTIES_TOO_LONG
    PUT_NO_ROOM

globals().update({
    "COLUMNS": <int>STORED_COLUMNS,
    "POSITION": <int>POSITION,
    "TOTAL_SIZE": <int>TOTAL_SIZE,
    "MAGIC": <int>MAGIC,
    "BODY_CRC": <int>BODY_CRC,
    "QUEUE_ID": <int>QUEUE_ID,
    "FLAG": <int>FLAG,
    "QUEUE_OFFSET": <int>QUEUE_OFFSET,
    "PHYSICAL_OFFSET": <int>PHYSICAL_OFFSET,
    "SYS_FLAG": <int>SYS_FLAG,
    "BORN_TIMESTAMP": <int>BORN_TIMESTAMP,
    "BORN_HOST": <int>BORN_HOST,
    "STORE_TIMESTAMP": <int>STORE_TIMESTAMP,
    "STORE_HOST": <int>STORE_HOST,
    "RECONSUME_TIMES": <int>RECONSUME_TIMES,
    "PREPARED_OFFSET": <int>PREPARED_OFFSET,
    "BODY_START": <int>BODY_START,
    "BODY_LENGTH": <int>BODY_LENGTH,
    "TOPIC_START": <int>TOPIC_START,
    "TOPIC_LENGTH": <int>TOPIC_LENGTH,
    "PROPERTIES_START": <int>PROPERTIES_START,
    "PROPERTIES_LENGTH": <int>PROPERTIES_LENGTH,
    "TAGS_CODE": <int>TAGS_CODE,
    "BATCH_COLUMNS": <int>BATCH_COLUMNS,
    "BATCH_FLAG": <int>BATCH_FLAG,
    "BATCH_BODY_START": <int>BATCH_BODY_START,
    "BATCH_BODY_LENGTH": <int>BATCH_BODY_LENGTH,
    "BATCH_PROPERTIES_START": <int>BATCH_PROPERTIES_START,
    "BATCH_PROPERTIES_LENGTH": <int>BATCH_PROPERTIES_LENGTH,
    "BATCH_SIZE": <int>BATCH_SIZE,
    "RESULT_COLUMNS": <int>RESULT_COLUMNS,
    "RESULT_POSITION": <int>RESULT_POSITION,
    "RESULT_SIZE": <int>RESULT_SIZE,
    "RESULT_TAGS_CODE": <int>RESULT_TAGS_CODE,
    "RESULT_STATUS": <int>RESULT_STATUS,
    "RESULT_QUEUE_OFFSET": <int>RESULT_QUEUE_OFFSET,
    "RESULT_UNIQ_KEY_START": <int>RESULT_UNIQ_KEY_START,
    "RESULT_UNIQ_KEY_LENGTH": <int>RESULT_UNIQ_KEY_LENGTH,
    "RESULT_WAIT": <int>RESULT_WAIT,
    "PUT_OK": <int>PUT_OK,
    "PUT_GENERAL": <int>PUT_GENERAL,
    "PUT_OTHER_TOPIC": <int>PUT_OTHER_TOPIC,
    "PUT_BAD_QUEUE": <int>PUT_BAD_QUEUE,
    "PUT_BODY_TOO_LONG": <int>PUT_BODY_TOO_LONG,
    "PUT_PROPERTIES_TOO_LONG": <int>PUT_PROPERTIES_TOO_LONG,
    "PUT_NO_ROOM": <int>PUT_NO_ROOM,
    "CHECKSUM_SIZE": <int>CHECKSUM_SIZE,
    "MAGIC_V1": <int>MAGIC_V1,
    "MAGIC_V2": <int>MAGIC_V2,
    "MAGIC_FILLER": <int>MAGIC_FILLER,
})


# ---------------------------------------------------------------------------------------------------------- scanning


cdef Status scan_stored_loop(
    const uint8_t* data, int64_t start, int64_t end, int64_t* rows, Py_ssize_t capacity, bint check_crc, bint tags,
    bint whole, bint sealed, Py_ssize_t* count, int64_t* position,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t found = 0
    cdef int64_t at = start
    cdef int64_t* row = rows
    while found < capacity and at < end:
        status = read_record(data, at, end, row)
        if status == OK and whole:
            status = check_record(data, row, &sealed)
        elif status == OK and check_crc:
            status = check_body(data, row)
        if status != OK:
            break
        row[TAGS_CODE] = 0
        if tags:
            row[TAGS_CODE] = find_tags_code(data + row[PROPERTIES_START], row[PROPERTIES_LENGTH])
        at += row[TOTAL_SIZE]
        row += STORED_COLUMNS
        found += 1
    count[0] = found
    position[0] = at
    return status


def scan_stored(
    data, Py_ssize_t start, Py_ssize_t end, rows, bint check_crc=False, bint tags=False, bint whole=False,
    bint sealed=False,
):
    """Find the stored messages in ``data[start:end]``, back to back as a pull reply or a log segment holds them.

    data       bytes-like, read only, not kept
    rows       int64[k, 22], filled from row 0 with the columns named in this module; BORN_HOST, STORE_HOST and the
               …_START columns are positions in ``data``. The scan stops when the table is full
    check_crc  compare each body with its CRC
    tags       fill TAGS_CODE (Java hash of the TAGS property); otherwise the column is 0
    whole      for those who read the log itself: compare each record with its checksum, and where it has none its body
               with its CRC. For a client the checksum is a property like others: on the way to it a record may change
    sealed     with ``whole``: the records have checksums (``commit_log.walk``)
    returns    (count, position): rows filled, and the first byte not consumed
    raises     DecodeError, BadMagic or BadChecksum if the *first* record is bad or cut short; good records before a bad
               one are returned and the error comes with the next call, from ``position``
    RocketMQ   common/message/MessageDecoder.java (decodes)
    """
    cdef Py_buffer source, table
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    take_bytes(data, &source)
    try:
        take_range(&source, start, end)
        take_rows(rows, &table, STORED_COLUMNS, True)
        try:
            if end - start < NOGIL_BYTES:
                status = scan_stored_loop(
                    <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], check_crc, tags,
                    whole, sealed, &count, &position,
                )
            else:
                with nogil:
                    status = scan_stored_loop(
                        <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], check_crc, tags,
                        whole, sealed, &count, &position,
                    )
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    if count == 0 and status != OK:
        raise fail(status, position)
    return count, position


def tags_code(properties):
    """Return the consume-queue code of a property text: Java's hash of the TAGS value as int32, 0 without one."""
    cdef Py_buffer source
    take_bytes(properties, &source)
    try:
        return find_tags_code(<const uint8_t*>source.buf, source.len)
    finally:
        PyBuffer_Release(&source)


# ---------------------------------------------------------------------------------------------------------- encoding


cdef struct Fields:
    # What every record of one put has in common. The hosts' widths are already in sys_flag.
    const uint8_t* topic
    int64_t topic_length
    const uint8_t* born_host
    const uint8_t* store_host
    const uint8_t* extra
    int64_t extra_length
    int64_t store_timestamp
    int64_t sys_flag
    int64_t born_timestamp
    int64_t prepared_offset
    int32_t queue_id
    int32_t reconsume_times
    bint checksum


cdef struct Text:
    # Property text that came with a message. ``kept`` is its length without checksums of records it was in before,
    # ``open_ended`` says that it lacks its last separator.
    const uint8_t* at
    int64_t length
    int64_t kept
    bint open_ended


cdef inline Text plain_text(const uint8_t* at, int64_t length) noexcept nogil:
    """Property text that is known to hold no checksum."""
    return Text(at, length, length, length != 0 and at[length - 1] != 2)


cdef uint8_t* put_kept(uint8_t* out, const uint8_t* at, int64_t length, int64_t* kept, bint* open_ended) noexcept nogil:
    """Copy property text without its checksum pairs, or only measure what is kept if ``out`` is NULL."""
    cdef const uint8_t* end = at + length
    cdef const uint8_t* stop
    cdef int64_t size
    kept[0] = 0
    open_ended[0] = False
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        size = end - at if stop == NULL else stop + 1 - at
        if size < 9 or memcmp(at, b"__CRC32#\x01", 9) != 0:
            if out != NULL:
                out = rc_put_bytes(out, at, size)
            kept[0] += size
            open_ended[0] = stop == NULL
        at += size
    return out


cdef inline Text any_text(const uint8_t* at, int64_t length) noexcept nogil:
    """Property text that may hold a checksum: a message that is stored again, or that a client made up so."""
    cdef Text text
    text.at = at
    text.length = length
    put_kept(NULL, at, length, &text.kept, &text.open_ended)
    return text


cdef inline int64_t joined_length(const Fields* fields, const Text* text) noexcept nogil:
    """Bytes of the properties as stored: with ``fields.extra``, the checksum, and the separator before them."""
    cdef int64_t added = fields.extra_length + (CHECKSUM_SIZE if fields.checksum else 0)
    return text.kept + added + (added != 0 and text.open_ended)


cdef inline uint8_t* write_record(
    uint8_t* at, const Fields* fields, int64_t size, int32_t flag, int64_t queue_offset, int64_t physical_offset,
    const uint8_t* body, int64_t body_length, const Text* text,
) noexcept nogil:
    """Write one record of ``size`` bytes, with ``fields.extra`` and the checksum after the properties of ``text``.

    The caller made room for it.
    """
    cdef uint8_t* record = at
    cdef int64_t kept
    cdef bint open_ended
    at = rc_put_32(at, <uint32_t>size)
    at = rc_put_32(at, <uint32_t>(MAGIC_V2 if fields.topic_length > TOPIC_MAX_V1 else MAGIC_V1))
    at = rc_put_32(at, body_crc(body, body_length))
    at = rc_put_32(at, <uint32_t>fields.queue_id)
    at = rc_put_32(at, <uint32_t>flag)
    at = rc_put_64(at, <uint64_t>queue_offset)
    at = rc_put_64(at, <uint64_t>physical_offset)
    at = rc_put_32(at, <uint32_t>fields.sys_flag)
    at = rc_put_64(at, <uint64_t>fields.born_timestamp)
    at = rc_put_bytes(at, fields.born_host, 20 if fields.sys_flag & BORN_HOST_V6 else 8)
    at = rc_put_64(at, <uint64_t>fields.store_timestamp)
    at = rc_put_bytes(at, fields.store_host, 20 if fields.sys_flag & STORE_HOST_V6 else 8)
    at = rc_put_32(at, <uint32_t>fields.reconsume_times)
    at = rc_put_64(at, <uint64_t>fields.prepared_offset)
    at = rc_put_32(at, <uint32_t>body_length)
    at = rc_put_bytes(at, body, body_length)
    if fields.topic_length > TOPIC_MAX_V1:
        at = rc_put_16(at, <uint16_t>fields.topic_length)
    else:
        at = rc_put_u8(at, <uint8_t>fields.topic_length)
    at = rc_put_bytes(at, fields.topic, fields.topic_length)
    at = rc_put_16(at, <uint16_t>joined_length(fields, text))
    if text.kept == text.length:
        at = rc_put_bytes(at, text.at, text.length)
    else:
        at = put_kept(at, text.at, text.length, &kept, &open_ended)
    if text.open_ended and (fields.extra_length or fields.checksum):
        at = rc_put_u8(at, 2)
    at = rc_put_bytes(at, fields.extra, fields.extra_length)
    if fields.checksum:
        at = put_checksum(at, rc_crc32(record, at - record, 0) & 0x7FFFFFFF)
    return at


cdef int fill_hosts(Fields* fields, bytes born_host, bytes store_host) except -1:
    """Point at the hosts and set the address-width bits of ``sys_flag`` by their lengths."""
    cdef Py_ssize_t born_length = PyBytes_GET_SIZE(born_host), store_length = PyBytes_GET_SIZE(store_host)
    if (born_length != 8 and born_length != 20) or (store_length != 8 and store_length != 20):
        raise ValueError(f"hosts are address (4 or 16) and port (4), got {born_length} and {store_length} bytes")
    fields.born_host = <const uint8_t*>PyBytes_AS_STRING(born_host)
    fields.store_host = <const uint8_t*>PyBytes_AS_STRING(store_host)
    fields.sys_flag &= ~<int64_t>(BORN_HOST_V6 | STORE_HOST_V6)
    if born_length == 20:
        fields.sys_flag |= BORN_HOST_V6
    if store_length == 20:
        fields.sys_flag |= STORE_HOST_V6
    return 0


cdef int fill_topic(Fields* fields, bytes topic) except -1:
    fields.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    fields.topic_length = PyBytes_GET_SIZE(topic)
    if fields.topic_length > TOPIC_MAX:
        raise ValueError(f"topic of {fields.topic_length} bytes, {TOPIC_MAX} fit a record")
    return 0


cdef int64_t checked_size(const Fields* fields, int64_t body_length, const Text* text) except -1:
    cdef int64_t properties_length = joined_length(fields, text)
    cdef int64_t size = record_size(fields.topic_length, body_length, properties_length, fields.sys_flag)
    if properties_length > PROPERTIES_MAX:
        raise ValueError(f"properties of {properties_length} bytes, {PROPERTIES_MAX} fit a record")
    if size > INT32_MAX:
        raise ValueError(f"record of {size} bytes, {INT32_MAX} is the largest size it can state")
    return size


def stored_size(int64_t topic_length, int64_t body_length, int64_t properties_length, int64_t sys_flag):
    """Return the bytes of a stored message; the host bits of ``sys_flag`` (0x10, 0x20) count.

    RocketMQ  store/MessageExtEncoder.java (calMsgLength)
    """
    return record_size(topic_length, body_length, properties_length, sys_flag)


def stored_properties_size(properties, bint checksum):
    """Return the bytes that property text takes in a record, an earlier checksum left out and a new one added."""
    cdef Fields fields
    cdef Text text
    cdef Py_buffer source
    fields.extra_length = 0
    fields.checksum = checksum
    take_bytes(properties, &source)
    try:
        text = any_text(<const uint8_t*>source.buf, source.len)
        return joined_length(&fields, &text)
    finally:
        PyBuffer_Release(&source)


def encode_stored(
    *, bytes topic not None, int32_t queue_id, int32_t flag, int64_t queue_offset, int64_t physical_offset,
    int32_t sys_flag, int64_t born_timestamp, bytes born_host not None, int64_t store_timestamp,
    bytes store_host not None, int32_t reconsume_times, int64_t prepared_offset, body, properties, bint checksum=False,
):
    """Return one stored message as bytes; arguments as in ``put_stored``."""
    cdef Fields fields
    cdef Text kept
    cdef Py_buffer content, text
    cdef int64_t size
    cdef bytes record
    fields = Fields(
        NULL, 0, NULL, NULL, NULL, 0, store_timestamp, sys_flag, born_timestamp, prepared_offset, queue_id,
        reconsume_times, checksum,
    )
    fill_hosts(&fields, born_host, store_host)
    fill_topic(&fields, topic)
    take_bytes(body, &content)
    try:
        take_bytes(properties, &text)
        try:
            kept = any_text(<const uint8_t*>text.buf, text.len)
            size = checked_size(&fields, content.len, &kept)
            record = PyBytes_FromStringAndSize(NULL, size)
            write_record(
                <uint8_t*>PyBytes_AS_STRING(record), &fields, size, flag, queue_offset, physical_offset,
                <const uint8_t*>content.buf, content.len, &kept,
            )
            return record
        finally:
            PyBuffer_Release(&text)
    finally:
        PyBuffer_Release(&content)


def put_stored(
    out, Py_ssize_t position, *, bytes topic not None, int32_t queue_id, int32_t flag, int64_t queue_offset,
    int64_t physical_offset, int32_t sys_flag, int64_t born_timestamp, bytes born_host not None,
    int64_t store_timestamp, bytes store_host not None, int32_t reconsume_times, int64_t prepared_offset, body,
    properties, bint checksum=False,
):
    """Encode one stored message at ``out[position:]``.

    out         writable buffer, not kept; nothing outside the record is touched
    hosts       address (4 or 16 bytes) and port (4 bytes); they decide bits 0x10 and 0x20 of ``sys_flag``
    topic       UTF-8; a V2 record above 127 bytes
    body        bytes as stored (maybe compressed); its CRC is computed here
    properties  property text, at most 32,767 bytes as stored; a checksum of an earlier record in it is left out
    checksum    end the record in a checksum of itself, as a property
    returns     bytes written, or -1 if the record does not fit between ``position`` and the end of ``out``
    raises      ValueError for a topic, properties or a record longer than the format can state
    RocketMQ    store/MessageExtEncoder.java (encode)
    """
    cdef Fields fields
    cdef Text kept
    cdef Py_buffer content, text, target
    cdef int64_t size
    fields = Fields(
        NULL, 0, NULL, NULL, NULL, 0, store_timestamp, sys_flag, born_timestamp, prepared_offset, queue_id,
        reconsume_times, checksum,
    )
    fill_hosts(&fields, born_host, store_host)
    fill_topic(&fields, topic)
    take_bytes(body, &content)
    try:
        take_bytes(properties, &text)
        try:
            kept = any_text(<const uint8_t*>text.buf, text.len)
            size = checked_size(&fields, content.len, &kept)
            PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
            try:
                take_range(&target, position, target.len)
                if size > target.len - position:
                    return -1
                write_record(
                    <uint8_t*>target.buf + position, &fields, size, flag, queue_offset, physical_offset,
                    <const uint8_t*>content.buf, content.len, &kept,
                )
                return size
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&text)
    finally:
        PyBuffer_Release(&content)


# ----------------------------------------------------------------------------------------------------------- batches


cdef Status read_element(const uint8_t* data, int64_t at, int64_t end, int64_t* row) noexcept nogil:
    """Fill one row from the batch element at ``at``; the stated size, magic and CRC are ignored, as brokers do."""
    cdef const uint8_t* p = data + at
    cdef const uint8_t* stop = data + end
    cdef int64_t length
    if end - at < BATCH_FIXED_SIZE:
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


cdef Status scan_batch_loop(
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
    cdef Py_buffer source, table
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    take_bytes(data, &source)
    try:
        take_range(&source, start, end)
        take_rows(rows, &table, BATCH_COLUMNS, True)
        try:
            status = scan_batch_loop(
                <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], &count, &position
            )
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    if status != OK:
        raise fail(status, position)
    return count


cdef inline uint8_t* write_element_head(uint8_t* at, int64_t size, int32_t flag, int64_t body_length) noexcept nogil:
    at = rc_put_32(at, <uint32_t>size)
    at = rc_put_64(at, 0)  # magic and CRC: the broker computes its own
    at = rc_put_32(at, <uint32_t>flag)
    return rc_put_32(at, <uint32_t>body_length)


cdef int64_t buffer_length(object item) except -1:
    cdef Py_buffer view
    cdef int64_t length
    take_bytes(item, &view)
    length = view.len
    PyBuffer_Release(&view)
    return length


cdef inline int64_t length_of(object item) except -1:
    return PyBytes_GET_SIZE(item) if PyBytes_CheckExact(item) else buffer_length(item)


cdef inline uint8_t* append(uint8_t* at, object item, int64_t length) except NULL:
    if PyBytes_CheckExact(item):
        return rc_put_bytes(at, PyBytes_AS_STRING(item), length)
    return append_buffer(at, item, length)


cdef uint8_t* append_buffer(uint8_t* at, object item, int64_t length) except NULL:
    """Copy a bytes-like object that had ``length`` bytes when the sizes were summed up."""
    cdef Py_buffer view
    take_bytes(item, &view)
    try:
        if view.len != length:
            raise ValueError("a buffer changed its size while the batch was encoded")
        return rc_put_bytes(at, view.buf, length)
    finally:
        PyBuffer_Release(&view)


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
        size = BATCH_FIXED_SIZE + length_of(contents[i]) + properties_length
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
        size = BATCH_FIXED_SIZE + body_length + properties_length
        total -= size
        if total < 0:
            raise ValueError("a buffer changed its size while the batch was encoded")
        at = write_element_head(at, size, flag, body_length)
        at = append(at, contents[i], body_length)
        at = rc_put_16(at, <uint16_t>properties_length)
        at = append(at, texts[i], properties_length)
    return batch


# ------------------------------------------------------------------------------------------------- the broker's put


cdef inline bint is_true(const uint8_t* text, int64_t length) noexcept nogil:
    """Java's Boolean.parseBoolean."""
    return (
        length == 4 and (text[0] | 32) == 116 and (text[1] | 32) == 114 and (text[2] | 32) == 117
        and (text[3] | 32) == 101
    )


cdef inline bint is_special(const rc_property* found) noexcept nogil:
    """Whether a property asks for more than storing: delays, timers, transactions, light queues, priorities, pops.

    And a checksum of another record, which must not be stored. Called for every property of every message, so the
    length decides first.
    """
    if found.name_length == 5:
        return named(found, b"DELAY", 5)
    if found.name_length == 6:
        return named(found, b"POP_CK", 6)
    if found.name_length == 8:
        return named(found, b"TRAN_MSG", 8) or named(found, b"__CRC32#", 8)
    if found.name_length == 9:
        return named(found, b"INNER_NUM", 9)
    if found.name_length == 12:
        return named(found, b"__LITE_TOPIC", 12)
    if found.name_length == 14:
        return named(found, b"TIMER_DELAY_MS", 14)
    if found.name_length == 15:
        return named(found, b"TIMER_DELAY_SEC", 15)
    if found.name_length == 16:
        return named(found, b"TIMER_DELIVER_MS", 16)
    if found.name_length == 18:
        return named(found, b"_SYS_MSG_PRIORITY_", 18)
    if found.name_length == 20:
        return named(found, b"INNER_MULTI_DISPATCH", 20)
    return False


cdef inline uint64_t name_bit(const rc_property* found) noexcept nogil:
    """One of 64 bits for a property's name: names with different bits differ."""
    return 1ULL << ((found.name_length * 5 + found.name[0] * 9 + found.name[found.name_length - 1]) & 63)


cdef uint64_t name_bits(const uint8_t* properties, int64_t length) noexcept nogil:
    cdef rc_property_reader reader = rc_read_properties(properties, length)
    cdef rc_property found
    cdef uint64_t bits = 0
    while rc_next_property(&reader, &found):
        bits |= name_bit(&found)
    return bits


cdef bint has_name_of(const uint8_t* properties, int64_t length, const rc_property* wanted) noexcept nogil:
    cdef rc_property_reader reader = rc_read_properties(properties, length)
    cdef rc_property found
    while rc_next_property(&reader, &found):
        if named(&found, <const char*>wanted.name, wanted.name_length):
            return True
    return False


cdef inline bint read_put_properties(
    const uint8_t* base, int64_t start, int64_t length, const uint8_t* extra, int64_t extra_length,
    uint64_t extra_names, int64_t* result,
) noexcept nogil:
    """Fill RESULT_TAGS_CODE, RESULT_UNIQ_KEY_… and RESULT_WAIT; of a name that comes twice the last pair counts.

    extra_names  ``name_bits`` of the extra properties, which are stored after the message's own
    returns      False where a property is special, comes twice, or a pair is none and would not be stored
    """
    cdef rc_property_reader reader = rc_read_properties(base + start, length)
    cdef rc_property found
    cdef uint64_t bit, names = extra_names
    cdef const uint8_t* tags = NULL
    cdef const uint8_t* next_name = base + start
    cdef int64_t tags_length = 0
    cdef bint plain = True
    result[RESULT_TAGS_CODE] = 0
    result[RESULT_UNIQ_KEY_START] = -1
    result[RESULT_UNIQ_KEY_LENGTH] = 0
    result[RESULT_WAIT] = 1
    while rc_next_property(&reader, &found):
        if found.name != next_name:
            plain = False
        next_name = found.value + found.value_length + 1
        bit = name_bit(&found)
        if names & bit and (
            has_name_of(base + start, found.name - (base + start), &found)
            or has_name_of(extra, extra_length, &found)
        ):
            plain = False
        names |= bit
        if named(&found, b"TAGS", 4):
            tags = found.value
            tags_length = found.value_length
        elif named(&found, b"WAIT", 4):
            result[RESULT_WAIT] = is_true(found.value, found.value_length)
        elif named(&found, b"UNIQ_KEY", 8):
            result[RESULT_UNIQ_KEY_START] = found.value - base
            result[RESULT_UNIQ_KEY_LENGTH] = found.value_length
        elif is_special(&found):
            plain = False
    if tags != NULL:
        result[RESULT_TAGS_CODE] = rc_java_hash_utf8(tags, tags_length)
    return plain and next_name >= base + start + length


def waits_for_flush(properties):
    """Whether the sender of a message with this property text waits until it is flushed: what RESULT_WAIT says.

    properties  bytes-like; absent WAIT means yes, any value but "true", in whatever case, no
    RocketMQ    common/message/Message.java (isWaitStoreMsgOK)
    """
    cdef Py_buffer source
    cdef int64_t[RESULT_COLUMNS] result
    take_bytes(properties, &source)
    try:
        read_put_properties(<const uint8_t*>source.buf, 0, source.len, NULL, 0, 0, result)
        return result[RESULT_WAIT] != 0
    finally:
        PyBuffer_Release(&source)


cdef struct Sources:
    const uint8_t* data
    int64_t data_length
    const uint8_t* scratch
    int64_t scratch_length
    int64_t* next_offsets
    int64_t queue_count
    int64_t max_body
    uint64_t extra_names


cdef inline bint outside(int64_t start, int64_t length, int64_t total) noexcept nogil:
    return start < 0 or length < 0 or start > total or length > total - start


cdef PutStatus put_row(
    uint8_t* out, int64_t* position, int64_t limit, int64_t base_offset, const Sources* sources, Fields* fields,
    const int64_t* row, int64_t* result,
) noexcept nogil:
    cdef int64_t queue_id = row[SEND_QUEUE_ID], sys_flag = row[SEND_SYS_FLAG]
    cdef int64_t body_length = row[SEND_BODY_LENGTH], properties_length = row[SEND_PROPERTIES_LENGTH]
    cdef int64_t size, stored_length
    cdef Text text
    if (
        row[SEND_STATUS] != 0 or row[SEND_BATCH] != 0 or body_length == 0
        or sys_flag & (TRANSACTION_MASK | NEED_UNWRAP | INNER_BATCH)
        or outside(row[SEND_BODY_START], body_length, sources.data_length)
        or outside(row[SEND_TOPIC_START], row[SEND_TOPIC_LENGTH], sources.data_length)
        or outside(row[SEND_PROPERTIES_START], properties_length, sources.scratch_length)
    ):
        return PUT_GENERAL
    if row[SEND_TOPIC_LENGTH] != fields.topic_length or memcmp(
        sources.data + row[SEND_TOPIC_START], fields.topic, fields.topic_length
    ) != 0:
        return PUT_OTHER_TOPIC
    if queue_id < 0 or queue_id >= sources.queue_count:
        return PUT_BAD_QUEUE
    if body_length > sources.max_body:
        return PUT_BODY_TOO_LONG
    text = plain_text(sources.scratch + row[SEND_PROPERTIES_START], properties_length)
    stored_length = joined_length(fields, &text)
    if stored_length > PROPERTIES_MAX:
        return PUT_PROPERTIES_TOO_LONG
    if not read_put_properties(
        sources.scratch, row[SEND_PROPERTIES_START], properties_length, fields.extra, fields.extra_length,
        sources.extra_names, result,
    ):
        return PUT_GENERAL
    if result[RESULT_UNIQ_KEY_LENGTH] == 0:
        return PUT_GENERAL
    fields.sys_flag = (fields.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)) | (
        sys_flag & ~<int64_t>(BORN_HOST_V6 | STORE_HOST_V6)
    )
    size = record_size(fields.topic_length, body_length, stored_length, fields.sys_flag)
    if size > limit - position[0]:
        return PUT_NO_ROOM
    fields.queue_id = <int32_t>queue_id
    fields.born_timestamp = row[SEND_BORN_TIMESTAMP]
    fields.reconsume_times = <int32_t>row[SEND_RECONSUME_TIMES]
    write_record(
        out + position[0], fields, size, <int32_t>row[SEND_MESSAGE_FLAG], sources.next_offsets[queue_id],
        base_offset + position[0], sources.data + row[SEND_BODY_START], body_length, &text,
    )
    result[RESULT_POSITION] = position[0]
    result[RESULT_SIZE] = size
    result[RESULT_QUEUE_OFFSET] = sources.next_offsets[queue_id]
    sources.next_offsets[queue_id] += 1
    position[0] += size
    return PUT_OK


cdef Py_ssize_t put_rows(
    uint8_t* out, int64_t position, int64_t limit, int64_t base_offset, const Sources* sources, Fields* fields,
    const int64_t* rows, Py_ssize_t first, Py_ssize_t last, int64_t* results,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef PutStatus status
    for i in range(first, last):
        status = put_row(
            out, &position, limit, base_offset, sources, fields, rows + i * SEND_COLUMNS, results + i * RESULT_COLUMNS
        )
        results[i * RESULT_COLUMNS + RESULT_STATUS] = status
        if status != PUT_OK:
            return i - first
    return last - first


def put_records(
    out, Py_ssize_t position, Py_ssize_t limit, int64_t physical_offset, data, scratch, send_rows, Py_ssize_t first,
    Py_ssize_t last, *, bytes topic not None, next_offsets, bytes born_host not None, bytes store_host not None,
    int64_t store_timestamp, bytes extra_properties not None, int64_t max_body, results, bint checksum=False,
):
    """Lay out the messages of many send requests in the log's write buffer: the whole put of plain messages.

    out               writable buffer; records go to ``out[position:limit]``, nothing else is touched. The caller cuts
                      ``limit`` so that a filler still fits the file
    physical_offset   log position of ``out[0]``
    data, scratch     the buffers that ``send_rows`` points into
    send_rows         int64[n, SEND_COLUMNS] of ``header.scan_send``; rows first … last - 1 are taken
    topic             the topic of the run; a row of another topic ends it
    next_offsets      int64[queues], the next queue offset of each queue of the topic; advanced in place
    extra_properties  property text added to every message (CLUSTER, MSG_REGION, TRACE_ON); a missing separator before
                      it is put in
    max_body          longest body in bytes
    checksum          as in ``put_stored``
    results           int64[n, 8], row i belongs to send row i: RESULT_POSITION (in ``out``) RESULT_SIZE
                      RESULT_TAGS_CODE RESULT_STATUS RESULT_QUEUE_OFFSET RESULT_UNIQ_KEY_START, RESULT_UNIQ_KEY_LENGTH
                      (in ``scratch``) RESULT_WAIT (0 if the sender does not wait for the flush)
    returns           rows stored, counted from ``first``. If it is less than ``last - first``, RESULT_STATUS of the
                      next row says why that one was not stored, and it is for the caller to handle:
                      PUT_GENERAL      not plain: unusual header, batch, no body, transaction, no UNIQ_KEY, a
                                       property that comes twice or is among the extra ones, or one that asks for more
                                       than storing (DELAY, timers, TRAN_MSG, POP_CK, …)
                      PUT_OTHER_TOPIC  PUT_BAD_QUEUE  PUT_BODY_TOO_LONG
                      PUT_PROPERTIES_TOO_LONG (the extra ones and the checksum count)
                      PUT_NO_ROOM      the record does not fit before ``limit``
    RocketMQ          store/CommitLog.java (asyncPutMessage), store/MessageExtEncoder.java
    """
    cdef Fields fields
    cdef Sources sources
    cdef Py_buffer target, source, side, table, answers, offsets
    cdef Py_ssize_t done
    fields = Fields(NULL, 0, NULL, NULL, NULL, 0, store_timestamp, 0, 0, 0, 0, 0, checksum)
    fill_hosts(&fields, born_host, store_host)
    fill_topic(&fields, topic)
    fields.extra = <const uint8_t*>PyBytes_AS_STRING(extra_properties)
    fields.extra_length = PyBytes_GET_SIZE(extra_properties)
    PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        take_range(&target, position, limit)
        take_bytes(data, &source)
        try:
            take_bytes(scratch, &side)
            try:
                take_rows(send_rows, &table, SEND_COLUMNS, False)
                try:
                    take_rows(results, &answers, RESULT_COLUMNS, True)
                    try:
                        if first < 0 or last < first or last > table.shape[0] or last > answers.shape[0]:
                            raise ValueError(f"rows {first}:{last} are not within send_rows and results")
                        take_values(next_offsets, &offsets)
                        sources = Sources(
                            <const uint8_t*>source.buf, source.len, <const uint8_t*>side.buf, side.len,
                            <int64_t*>offsets.buf, offsets.shape[0], max_body,
                            name_bits(fields.extra, fields.extra_length),
                        )
                        if source.len < NOGIL_BYTES:
                            done = put_rows(
                                <uint8_t*>target.buf, position, limit, physical_offset, &sources, &fields,
                                <const int64_t*>table.buf, first, last, <int64_t*>answers.buf,
                            )
                        else:
                            with nogil:
                                done = put_rows(
                                    <uint8_t*>target.buf, position, limit, physical_offset, &sources, &fields,
                                    <const int64_t*>table.buf, first, last, <int64_t*>answers.buf,
                                )
                        PyBuffer_Release(&offsets)
                        return done
                    finally:
                        PyBuffer_Release(&answers)
                finally:
                    PyBuffer_Release(&table)
            finally:
                PyBuffer_Release(&side)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)


cdef inline Text element_text(const uint8_t* data, const int64_t* row, const int64_t* result) noexcept nogil:
    """The properties of a batch element; only where something is special about them a checksum is looked for."""
    if result[RESULT_STATUS] == PUT_OK:
        return plain_text(data + row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH])
    return any_text(data + row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH])


cdef int64_t measure_elements(
    const uint8_t* data, int64_t length, const Fields* fields, const int64_t* rows, Py_ssize_t count, int64_t* results,
    Py_ssize_t* bad,
) noexcept nogil:
    """Fill the results but for places and queue offsets, and return the bytes of all records.

    RESULT_STATUS is PUT_GENERAL where the properties are not plain, until the element is put.

    returns  -1 at a row outside ``data``, -2 at properties that are too long
    """
    cdef int64_t total = 0, stored_length
    cdef const int64_t* row
    cdef int64_t* result
    cdef Text text
    cdef Py_ssize_t i
    for i in range(count):
        row = rows + i * BATCH_COLUMNS
        result = results + i * RESULT_COLUMNS
        bad[0] = i
        if outside(row[BATCH_BODY_START], row[BATCH_BODY_LENGTH], length) or outside(
            row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH], length
        ):
            return -1
        result[RESULT_STATUS] = PUT_OK
        if not read_put_properties(
            data, row[BATCH_PROPERTIES_START], row[BATCH_PROPERTIES_LENGTH], NULL, 0, 0, result
        ):
            result[RESULT_STATUS] = PUT_GENERAL
        text = element_text(data, row, result)
        stored_length = joined_length(fields, &text)
        if stored_length > PROPERTIES_MAX:
            return -2
        result[RESULT_SIZE] = record_size(
            fields.topic_length, row[BATCH_BODY_LENGTH], stored_length, fields.sys_flag
        )
        total += result[RESULT_SIZE]
    return total


cdef void put_elements(
    uint8_t* out, int64_t position, int64_t base_offset, const uint8_t* data, const Fields* fields,
    const int64_t* rows, Py_ssize_t count, int64_t queue_offset, int64_t* results,
) noexcept nogil:
    cdef const int64_t* row
    cdef int64_t* result
    cdef Text text
    cdef Py_ssize_t i
    for i in range(count):
        row = rows + i * BATCH_COLUMNS
        result = results + i * RESULT_COLUMNS
        text = element_text(data, row, result)
        write_record(
            out + position, fields, result[RESULT_SIZE], <int32_t>row[BATCH_FLAG], queue_offset + i,
            base_offset + position, data + row[BATCH_BODY_START], row[BATCH_BODY_LENGTH], &text,
        )
        result[RESULT_POSITION] = position
        result[RESULT_STATUS] = PUT_OK
        result[RESULT_QUEUE_OFFSET] = queue_offset + i
        position += result[RESULT_SIZE]


def put_batch(
    out, Py_ssize_t position, Py_ssize_t limit, int64_t physical_offset, data, batch_rows, Py_ssize_t count, *,
    bytes topic not None, int32_t queue_id, int64_t queue_offset, int32_t sys_flag, int64_t born_timestamp,
    bytes born_host not None, int64_t store_timestamp, bytes store_host not None, int32_t reconsume_times,
    bytes extra_properties not None, results, bint checksum=False,
):
    """Lay out a client batch as stored messages with consecutive queue offsets: all of them, or none.

    out, position, limit, physical_offset   as in ``put_records``
    data, batch_rows  the batch and its first ``count`` rows, as ``scan_batch`` filled them
    queue_offset      of the first element
    extra_properties  added to every element; empty for what 5.5.0 stores
    checksum          as in ``put_stored``. Where an element's properties lack their last separator it is put in; 5.5.0
                      leaves it out, and then neither its readers nor its own check find the checksum
    results           int64[k, 8] with k ≥ count, columns as in ``put_records``; UNIQ_KEY positions are in ``data``
    returns           bytes written, or -1 if they do not fit before ``limit``
    raises            ValueError if an element's properties are longer than 32,767 bytes with what is added
    RocketMQ          store/MessageExtEncoder.java (encode of MessageExtBatch), store/CommitLog.java (asyncPutMessages)
    """
    cdef Fields fields
    cdef Py_buffer target, source, table, answers
    cdef Py_ssize_t bad = 0
    cdef int64_t total
    fields = Fields(
        NULL, 0, NULL, NULL, NULL, 0, store_timestamp, sys_flag, born_timestamp, 0, queue_id, reconsume_times, checksum
    )
    fill_hosts(&fields, born_host, store_host)
    fill_topic(&fields, topic)
    fields.extra = <const uint8_t*>PyBytes_AS_STRING(extra_properties)
    fields.extra_length = PyBytes_GET_SIZE(extra_properties)
    PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        take_range(&target, position, limit)
        take_bytes(data, &source)
        try:
            take_rows(batch_rows, &table, BATCH_COLUMNS, False)
            try:
                take_rows(results, &answers, RESULT_COLUMNS, True)
                try:
                    if count < 0 or count > table.shape[0] or count > answers.shape[0]:
                        raise ValueError(f"{count} rows are not within batch_rows and results")
                    with nogil:
                        total = measure_elements(
                            <const uint8_t*>source.buf, source.len, &fields, <const int64_t*>table.buf, count,
                            <int64_t*>answers.buf, &bad,
                        )
                    if total == -1:
                        raise ValueError(f"row {bad} of batch_rows points outside the data")
                    if total == -2:
                        raise ValueError(f"element {bad}: properties longer than {PROPERTIES_MAX} bytes")
                    if total > limit - position:
                        return -1
                    with nogil:
                        put_elements(
                            <uint8_t*>target.buf, position, physical_offset, <const uint8_t*>source.buf, &fields,
                            <const int64_t*>table.buf, count, queue_offset, <int64_t*>answers.buf,
                        )
                    return total
                finally:
                    PyBuffer_Release(&answers)
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)


# -------------------------------------------------------------------------------------------------------------- ids


cdef inline uint8_t* put_hex(uint8_t* at, const uint8_t* data, Py_ssize_t length) noexcept nogil:
    cdef const char* digits = b"0123456789ABCDEF"
    cdef Py_ssize_t i
    for i in range(length):
        at[0] = digits[data[i] >> 4]
        at[1] = digits[data[i] & 15]
        at += 2
    return at


cdef inline int hex_value(uint32_t digit) noexcept nogil:
    if 48 <= digit <= 57:
        return digit - 48
    if 65 <= digit <= 70:
        return digit - 55
    if 97 <= digit <= 102:
        return digit - 87
    return -1


cdef int check_host(bytes host) except -1:
    if PyBytes_GET_SIZE(host) != 8 and PyBytes_GET_SIZE(host) != 20:
        raise ValueError(f"a host is 4 or 16 address bytes and 4 of the port, got {PyBytes_GET_SIZE(host)} bytes")
    return 0


def offset_msg_id(bytes store_host not None, int64_t physical_offset):
    """Return the message id of a place in a broker's log: upper-case hex of host, port and offset, 32 or 56 characters.

    RocketMQ  common/message/MessageDecoder.java (createMessageId)
    """
    cdef uint8_t offset[8]
    cdef uint8_t* at
    cdef bytes text
    cdef Py_ssize_t width = PyBytes_GET_SIZE(store_host)
    check_host(store_host)
    rc_put_64(offset, <uint64_t>physical_offset)
    text = PyBytes_FromStringAndSize(NULL, 2 * width + 16)
    at = <uint8_t*>PyBytes_AS_STRING(text)
    at = put_hex(at, <const uint8_t*>PyBytes_AS_STRING(store_host), width)
    put_hex(at, offset, 8)
    return text


def offset_msg_ids(bytes store_host not None, const int64_t[:] physical_offsets):
    """Return the ids of a batch, joined by commas; ``physical_offsets`` is any one-dimensional int64 buffer."""
    cdef uint8_t offset[8]
    cdef uint8_t host[40]
    cdef uint8_t* at
    cdef bytes text
    cdef Py_ssize_t i, width = PyBytes_GET_SIZE(store_host), count = physical_offsets.shape[0]
    check_host(store_host)
    put_hex(host, <const uint8_t*>PyBytes_AS_STRING(store_host), width)
    text = PyBytes_FromStringAndSize(NULL, count * (2 * width + 17) - 1 if count else 0)
    at = <uint8_t*>PyBytes_AS_STRING(text)
    for i in range(count):
        if i:
            at = rc_put_u8(at, 44)
        at = rc_put_bytes(at, host, 2 * width)
        rc_put_64(offset, <uint64_t>physical_offsets[i])
        at = put_hex(at, offset, 8)
    return text


def decode_offset_msg_id(msg_id):
    """Return (store host, physical offset) of an id; the host is 4 or 16 address bytes and 4 of the port.

    msg_id    text or ASCII bytes, 32 or 56 hex digits of either case
    raises    DecodeError for any other length or character, and for a port above 65535
    RocketMQ  common/message/MessageDecoder.java (decodeMessageId)
    """
    cdef str text = msg_id if isinstance(msg_id, str) else (<bytes?>msg_id).decode("latin-1")
    cdef uint8_t raw[28]
    cdef Py_ssize_t i, length = len(text)
    cdef int high, low
    if length != 32 and length != 56:
        raise DecodeError(f"message id of {length} characters, 32 or 56 expected")
    for i in range(length // 2):
        high = hex_value(<uint32_t>text[2 * i])
        low = hex_value(<uint32_t>text[2 * i + 1])
        if high < 0 or low < 0:
            raise DecodeError("message id with a character that is no hex digit", 2 * i if high < 0 else 2 * i + 1)
        raw[i] = <uint8_t>(high << 4 | low)
    if rc_get_i32(raw + length // 2 - 12) & ~0xFFFF:
        raise DecodeError("message id with a port above 65535", length - 24)
    return PyBytes_FromStringAndSize(<char*>raw, length // 2 - 8), rc_get_i64(raw + length // 2 - 8)
