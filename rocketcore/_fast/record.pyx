"""Stored messages: scan to columns, encode, lay out in the log's write buffer. The layout is in record.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from rocketcore._fast.buffers cimport (
    NOGIL_BYTES,
    Borrowed,
    borrow_bytes,
    borrow_room,
    borrow_rows,
    check_range,
    give_back,
)
from rocketcore._fast.status cimport OK, Status, fail


cdef Status scan_loop(
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
    cdef Borrowed held
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        table = borrow_rows(&held, rows, STORED_COLUMNS, True)
        if end - start < NOGIL_BYTES:
            status = scan_loop(
                <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], check_crc, tags, whole,
                sealed, &count, &position,
            )
        else:
            with nogil:
                status = scan_loop(
                    <const uint8_t*>source.buf, start, end, <int64_t*>table.buf, table.shape[0], check_crc, tags,
                    whole, sealed, &count, &position,
                )
    finally:
        give_back(&held)
    if count == 0 and status != OK:
        raise fail(status, position)
    return count, position


def delay_level(str value not None):
    """Return the delay level that a value of the property DELAY is; 0 unless it is a positive int32."""
    cdef bytes text = value.encode(errors="replace")
    return level_of(<const uint8_t*>PyBytes_AS_STRING(text), len(text))


def tags_code(properties):
    """Return the consume-queue code of a property text: Java's hash of the TAGS value as int32, 0 without one."""
    cdef Borrowed held
    held.count = 0
    try:
        text = borrow_bytes(&held, properties)
        return find_tags_code(<const uint8_t*>text.buf, text.len)
    finally:
        give_back(&held)


def stored_size(int64_t topic_length, int64_t body_length, int64_t properties_length, int64_t sys_flag):
    """Return the bytes of a stored message; the host bits of ``sys_flag`` (0x10, 0x20) count.

    RocketMQ  store/MessageExtEncoder.java (calMsgLength)
    """
    return record_size(topic_length, body_length, properties_length, sys_flag)


def stored_properties_size(properties, bint checksum):
    """Return the bytes that property text takes in a record, an earlier checksum left out and a new one added."""
    cdef Fields fields
    cdef Properties kept
    cdef Borrowed held
    fields.extra_length = 0
    fields.checksum = checksum
    held.count = 0
    try:
        text = borrow_bytes(&held, properties)
        kept = any_properties(<const uint8_t*>text.buf, text.len)
        return joined_length(&fields, &kept)
    finally:
        give_back(&held)


def encode_stored(**fields):
    """Return one stored message as bytes; arguments as in ``put_stored``."""
    return put_stored(None, 0, **fields)


def put_stored(
    out, Py_ssize_t position, *, bytes topic not None, int32_t queue_id, int32_t flag, int64_t queue_offset,
    int64_t physical_offset, int32_t sys_flag, int64_t born_timestamp, bytes born_host not None,
    int64_t store_timestamp, bytes store_host not None, int32_t reconsume_times, int64_t prepared_offset, body,
    properties, bint checksum=False,
):
    """Encode one stored message at ``out[position:]``.

    out         writable buffer, not kept; nothing outside the record is touched. For ``encode_stored`` it is None: then
                the record is returned
    hosts       address (4 or 16 bytes) and port (4 bytes); they decide bits 0x10 and 0x20 of ``sys_flag``
    topic       UTF-8; a V2 record above 127 bytes
    body        bytes as stored (maybe compressed); its CRC is computed here
    properties  property text, at most 32,767 bytes as stored; a checksum of an earlier record in it is left out
    checksum    end the record in a checksum of itself, as a property
    returns     bytes written, or -1 if the record does not fit between ``position`` and the end of ``out``
    raises      ValueError for a topic, properties or a record longer than the format can state
    RocketMQ    store/MessageExtEncoder.java (encode)
    """
    cdef Fields fields = shared_fields(topic, born_host, store_host, store_timestamp, sys_flag, checksum)
    cdef Properties kept
    cdef Borrowed held
    cdef int64_t size, properties_length
    cdef bytes record = None
    cdef uint8_t* at
    fields.queue_id = queue_id
    fields.born_timestamp = born_timestamp
    fields.reconsume_times = reconsume_times
    fields.prepared_offset = prepared_offset
    held.count = 0
    try:
        content = borrow_bytes(&held, body)
        text = borrow_bytes(&held, properties)
        kept = any_properties(<const uint8_t*>text.buf, text.len)
        properties_length = joined_length(&fields, &kept)
        if properties_length > PROPERTIES_MAX:
            raise ValueError(f"properties of {properties_length} bytes, {<int>PROPERTIES_MAX} fit a record")
        size = record_size(fields.topic_length, content.len, properties_length, fields.sys_flag)
        if size > INT32_MAX:
            raise ValueError(f"record of {size} bytes, {INT32_MAX} is the largest size it can state")
        if out is None:
            record = PyBytes_FromStringAndSize(NULL, size)
            at = <uint8_t*>PyBytes_AS_STRING(record)
        else:
            target = borrow_room(&held, out)
            check_range(target, position, target.len)
            if size > target.len - position:
                return -1
            at = <uint8_t*>target.buf + position
        write_record(
            at, &fields, size, flag, queue_offset, physical_offset, <const uint8_t*>content.buf, content.len, &kept
        )
        return size if record is None else record
    finally:
        give_back(&held)
