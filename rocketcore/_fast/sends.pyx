"""Send requests: headers into rows, what a message asks for beyond storing, and the put of those that ask nothing.

A broker stores most messages as they come: the property text that was sent, and behind it what every message gets.
``read_asks`` decides which those are. ``put_records`` lays them out many at a time, the broker's fast path; the slow
path takes any one request and acts on what ``examine`` says that it asks for. No other place reads these properties to
decide what becomes of a send.

RocketMQ  broker/processor/SendMessageProcessor.java, store/MessageExtEncoder.java (5.5.0)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from rocketcore._fast.buffers cimport (
    NOGIL_BYTES,
    Borrowed,
    borrow_bytes,
    borrow_room,
    borrow_rows,
    borrow_values,
    check_range,
    give_back,
    outside,
)
from rocketcore._fast.command cimport (
    RESPONSE,
    Text,
    is_text,
    next_binary_entry,
    next_json_entry,
    rc_get_decimal,
    rc_is_utf8,
)
from rocketcore._fast.frame cimport (
    BINARY,
    BODY_LENGTH,
    BODY_START,
    CODE,
    EXT_END,
    EXT_START,
    FLAG,
    FRAME_COLUMNS,
    HEAD_COLUMNS,
    HEADER_LENGTH,
    HEADER_START,
    OPAQUE,
    SERIALIZE_TYPE,
    STATUS,
    ext_in,
    row_in,
)
from rocketcore._fast.record cimport (
    BORN_HOST_V6,
    INNER_BATCH,
    PROPERTIES_MAX,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Fields,
    Properties,
    joined_length,
    named,
    plain_properties,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_bytes,
    rc_read_properties,
    record_size,
    shared_fields,
    write_record,
)
from rocketcore._fast.status cimport OK
from rocketcore._fast.text cimport is_true


cdef extern from "rc_json.h" nogil:
    uint8_t* rc_json_unescape(uint8_t* out, const uint8_t* at, const uint8_t* end)

cdef enum:
    SEND_MESSAGE_V2 = 310
    # The required fields in the mask of those seen: a … h.
    SEND_REQUIRED = 0xff
    COMPARED_MAX = 64  # names of one text that are compared with each other

# One row a request; positions in data, those of the properties in scratch.
cpdef enum:
    SEND_STATUS
    SEND_OPAQUE
    SEND_FLAG_BITS
    SEND_SERIALIZE_TYPE
    SEND_QUEUE_ID
    SEND_SYS_FLAG
    SEND_BORN_TIMESTAMP
    SEND_MESSAGE_FLAG
    SEND_RECONSUME_TIMES
    SEND_TOPIC_START
    SEND_TOPIC_LENGTH
    SEND_PROPERTIES_START
    SEND_PROPERTIES_LENGTH
    SEND_BODY_START
    SEND_BODY_LENGTH
    SEND_COLUMNS

# Where a message was put, and what its answer and its unit in the consume queue say.
cpdef enum:
    RESULT_POSITION
    RESULT_SIZE
    RESULT_QUEUE_OFFSET
    RESULT_UNIQ_KEY_START
    RESULT_UNIQ_KEY_LENGTH
    RESULT_WAIT
    RESULT_COLUMNS

# What a message asks for, one bit each.
cpdef enum:
    ASKS_NO_WAIT = 1  # an answer before the flush
    ASKS_DELAY = 2  # a level: DELAY
    ASKS_TIMER = 4  # a time: TIMER_…
    ASKS_TRANSACTION = 8  # to be a part of one, by its flags or TRAN_MSG
    ASKS_INNER_BATCH = 16  # to be counted as many, by its flags or INNER_NUM
    ASKS_POP_CHECKPOINT = 32  # to be taken for the broker's own: POP_CK
    ASKS_KEY = 64  # a UNIQ_KEY
    ASKS_REWRITE = 128  # that its property text is not stored as it came


cdef inline bint read_send(
    const uint8_t* data, const int64_t* row, const int64_t* head, int64_t* out, Text* properties
) noexcept nogil:
    """Fill a send row except its properties; False if the request needs the slow path."""
    cdef const uint8_t* at = data + head[EXT_START]
    cdef const uint8_t* end = data + head[EXT_END]
    cdef const uint8_t* header_end = data + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value
    cdef bint binary = row[SERIALIZE_TYPE] == BINARY, check = False, known
    cdef int seen = 0
    cdef int64_t unused
    cdef uint8_t letter
    out[SEND_RECONSUME_TIMES] = 0
    properties.start = properties.end = NULL
    properties.escaped = False
    if binary:
        # All of it at once, length words included: only where one has its top bit set is each text checked.
        check = not rc_is_utf8(at, end - at)
    while at < end:
        if binary:
            if next_binary_entry(&at, header_end, &key, &value) != OK:
                return False
            if check and not rc_is_utf8(value.start, value.end - value.start):
                return False
        elif next_json_entry(&at, end, &key, &value) != 1:
            return False
        if key.end - key.start != 1:
            if is_text(&key, "bname", 5):
                continue
            return False
        letter = key.start[0]
        if letter == c"i":
            properties[0] = value
            continue
        if value.escaped or value.start == value.end:
            return False
        if letter == c"a" or letter == c"c" or letter == c"n":
            known = True
        elif letter == c"b":
            out[SEND_TOPIC_START] = value.start - data
            out[SEND_TOPIC_LENGTH] = value.end - value.start
            known = True
        elif letter == c"d" or letter == c"l":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &unused)
        elif letter == c"e":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_QUEUE_ID])
        elif letter == c"f":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_SYS_FLAG])
        elif letter == c"g":
            known = rc_get_decimal(value.start, value.end, INT64_MIN, INT64_MAX, &out[SEND_BORN_TIMESTAMP])
        elif letter == c"h":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_MESSAGE_FLAG])
        elif letter == c"j":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_RECONSUME_TIMES])
        else:
            known = (letter == c"k" or letter == c"m") and is_text(&value, "false", 5)
        if not known:
            return False
        if letter <= c"h":
            seen |= 1 << (letter - c"a")
    out[SEND_OPAQUE] = head[OPAQUE]
    out[SEND_FLAG_BITS] = head[FLAG]
    out[SEND_SERIALIZE_TYPE] = row[SERIALIZE_TYPE]
    out[SEND_BODY_START] = row[BODY_START]
    out[SEND_BODY_LENGTH] = row[BODY_LENGTH]
    return seen == SEND_REQUIRED


cdef Py_ssize_t scan_loop(
    const uint8_t* data, const int64_t* row, const int64_t* head, Py_ssize_t count, int64_t* out, uint8_t* scratch,
    Py_ssize_t room,
) noexcept nogil:
    cdef Py_ssize_t done = 0, used = 0, length
    cdef Text properties
    cdef bint usual
    cdef uint8_t* stop
    while done < count:
        usual = (
            head[STATUS] == 0
            and head[CODE] == SEND_MESSAGE_V2
            and not head[FLAG] & RESPONSE
            and ext_in(row, head)
            and read_send(data, row, head, out, &properties)
        )
        if usual:
            length = properties.end - properties.start
            if length > room - used:
                if used != 0:
                    break
                usual = False  # larger than the whole scratch: it would never fit
            else:
                if properties.escaped:
                    stop = rc_json_unescape(scratch + used, properties.start, properties.end)
                else:
                    stop = rc_put_bytes(scratch + used, properties.start, length)
                out[SEND_PROPERTIES_START] = used
                out[SEND_PROPERTIES_LENGTH] = stop - (scratch + used)
                used = stop - scratch
        out[SEND_STATUS] = 0 if usual else 1
        row += FRAME_COLUMNS
        head += HEAD_COLUMNS
        out += SEND_COLUMNS
        done += 1
    return done


def scan_send(data, rows, heads, Py_ssize_t first, Py_ssize_t last, out, scratch):
    """Read the headers of SEND_MESSAGE_V2 requests (310) into typed columns.

    data      bytes-like of which ``rows`` and ``heads`` were read
    first     first row and the one after the last
    out       int64[k, 15], row 0 is for ``first``: the SEND_… columns. TOPIC and BODY are ranges of ``data``,
              PROPERTIES of ``scratch``. FLAG_BITS is the command's flag, MESSAGE_FLAG field h
    scratch   writable bytes-like that takes the property texts, from its start
    returns   rows done: it stops when ``out`` or ``scratch`` is full
    status    0 the row is filled: required fields present, numbers in range, text valid UTF-8. 1 use the slow path: the
              header is unusual or lacks a field, has one this reader does not know, unit mode, a batch, a number that
              does not parse, or properties longer than ``scratch``
    raises    ValueError for tables of another shape or rows outside ``data``
    RocketMQ  remoting/protocol/header/SendMessageRequestHeaderV2.java ``decode``
    """
    cdef Borrowed held
    cdef Py_ssize_t i
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        target = borrow_rows(&held, out, SEND_COLUMNS, True)
        room = borrow_room(&held, scratch)
        if first < 0 or last < first or last > frames.shape[0] or last > table.shape[0]:
            raise ValueError(f"rows {first}:{last}, but there are {frames.shape[0]} and {table.shape[0]}")
        for i in range(first, last):
            if not row_in(<const int64_t*>frames.buf + i * FRAME_COLUMNS, source.len):
                raise ValueError(f"row {i} is not within the {source.len} bytes of data")
        return scan_loop(
            <const uint8_t*>source.buf, <const int64_t*>frames.buf + first * FRAME_COLUMNS,
            <const int64_t*>table.buf + first * HEAD_COLUMNS, min(last - first, target.shape[0]),
            <int64_t*>target.buf, <uint8_t*>room.buf, room.len,
        )
    finally:
        give_back(&held)


cdef inline int asked_by_name(const uint8_t* name, int64_t length) noexcept nogil:
    """What a property asks for whatever its value. Called for most of every message: the length decides first."""
    if length == 5:
        return ASKS_DELAY if memcmp(name, b"DELAY", 5) == 0 else 0
    if length == 6:
        return ASKS_POP_CHECKPOINT if memcmp(name, b"POP_CK", 6) == 0 else 0
    if length == 8:
        # Of another record, it must not be stored.
        return ASKS_REWRITE if memcmp(name, b"__CRC32#", 8) == 0 else 0
    if length == 9:
        return ASKS_INNER_BATCH if memcmp(name, b"INNER_NUM", 9) == 0 else 0
    if length == 14:
        return ASKS_TIMER if memcmp(name, b"TIMER_DELAY_MS", 14) == 0 else 0
    if length == 15:
        return ASKS_TIMER if memcmp(name, b"TIMER_DELAY_SEC", 15) == 0 else 0
    if length == 16:
        return ASKS_TIMER if memcmp(name, b"TIMER_DELIVER_MS", 16) == 0 else 0
    return 0


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


# Property text that the broker adds to that of every message, and the ``name_bits`` of it.
cdef struct Extra:
    const uint8_t* text
    int64_t length
    uint64_t names


cdef inline Extra extra_of(bytes properties) noexcept:
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(properties)
    return Extra(text, PyBytes_GET_SIZE(properties), name_bits(text, PyBytes_GET_SIZE(properties)))


cdef inline int read_asks(
    const uint8_t* text, int64_t length, int64_t sys_flag, const Extra* extra, rc_property* key
) noexcept nogil:
    """The decision about a message: all that it asks for, as a mask of ASKS_….

    Of a name that comes twice the last pair counts. Such a text is not stored as it came, nor one with a pair that is
    none, or with a name that the broker adds. Whether a long one is such a text is for the slow path's map to find out.

    key  becomes the pair of UNIQ_KEY; its value is NULL where there is none
    """
    cdef rc_property_reader reader = rc_read_properties(text, length)
    cdef rc_property found
    cdef uint64_t bit, names = extra.names
    cdef const uint8_t* next_name = text
    cdef bint waits = True, prepared = False
    cdef int64_t pairs = 0 if length <= PROPERTIES_MAX else COMPARED_MAX
    cdef int asks = ASKS_KEY
    key.value = NULL
    while rc_next_property(&reader, &found):
        if found.name != next_name:
            asks |= ASKS_REWRITE
        next_name = found.value + found.value_length + 1
        pairs += 1
        bit = name_bit(&found)
        # Each comparison reads the text again, so that they are only made where they cannot add up.
        if pairs > COMPARED_MAX or names & bit and (
            has_name_of(text, found.name - text, &found) or has_name_of(extra.text, extra.length, &found)
        ):
            asks |= ASKS_REWRITE
        names |= bit
        if named(&found, b"WAIT", 4):
            waits = is_true(found.value, found.value_length)
        elif named(&found, b"UNIQ_KEY", 8):
            key[0] = found
            asks &= ~ASKS_KEY
        elif named(&found, b"TRAN_MSG", 8):
            prepared = is_true(found.value, found.value_length)
        else:
            asks |= asked_by_name(found.name, found.name_length)
    if next_name < text + length:
        asks |= ASKS_REWRITE
    if not waits:
        asks |= ASKS_NO_WAIT
    if prepared or sys_flag & TRANSACTION_MASK:
        asks |= ASKS_TRANSACTION
    if sys_flag & INNER_BATCH:
        asks |= ASKS_INNER_BATCH
    return asks


def examine(properties, int64_t sys_flag, bytes extra_properties not None):
    """Return what a message asks for beyond being stored as it is, a mask of ASKS_…; 0 for most.

    properties        property text as it was sent
    extra_properties  as for ``put_records``
    NO_WAIT           WAIT is there and not "true", in whatever case (Message.java, isWaitStoreMsgOK)
    TRANSACTION       TRAN_MSG is "true", in whatever case, or a bit of the transaction type is set in ``sys_flag``
    INNER_BATCH       INNER_NUM is there, or its bit is set
    REWRITE           a name comes twice or is among the extra ones, a pair has no name or value, there is a checksum,
                      or there are more than 64 pairs or 32,767 bytes
    """
    cdef Extra extra = extra_of(extra_properties)
    cdef rc_property key
    cdef Borrowed held
    held.count = 0
    try:
        text = borrow_bytes(&held, properties)
        return read_asks(<const uint8_t*>text.buf, text.len, sys_flag, &extra, &key)
    finally:
        give_back(&held)


def asked_by(str name not None):
    """Return what a property of this name asks for whatever its value, one of ASKS_… or 0."""
    cdef bytes text = name.encode(errors="replace")
    return asked_by_name(<const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


# Where the rows of a put point to, and what bounds them.
cdef struct Sources:
    const uint8_t* data
    int64_t data_length
    const uint8_t* scratch
    int64_t scratch_length
    int64_t* next_offsets
    int64_t queue_count
    int64_t max_body
    Extra extra


cdef enum Outcome:
    STORED
    NOT_STORED  # it is for the slow path, or of another topic
    NO_ROOM


cdef Outcome put_row(
    uint8_t* out, int64_t* position, int64_t limit, int64_t base_offset, const Sources* sources, Fields* fields,
    const int64_t* row, int64_t* result,
) noexcept nogil:
    cdef int64_t queue_id = row[SEND_QUEUE_ID], body_length = row[SEND_BODY_LENGTH], size, stored_length
    cdef const uint8_t* text
    cdef Properties properties
    cdef rc_property key
    cdef int asks
    if (
        row[SEND_STATUS] != 0 or body_length == 0 or body_length > sources.max_body
        or queue_id < 0 or queue_id >= sources.queue_count
        or outside(row[SEND_BODY_START], body_length, sources.data_length)
        or outside(row[SEND_TOPIC_START], row[SEND_TOPIC_LENGTH], sources.data_length)
        or outside(row[SEND_PROPERTIES_START], row[SEND_PROPERTIES_LENGTH], sources.scratch_length)
        or row[SEND_TOPIC_LENGTH] != fields.topic_length
        or memcmp(sources.data + row[SEND_TOPIC_START], fields.topic, fields.topic_length) != 0
    ):
        return NOT_STORED
    text = sources.scratch + row[SEND_PROPERTIES_START]
    properties = plain_properties(text, row[SEND_PROPERTIES_LENGTH])
    stored_length = joined_length(fields, &properties)
    if stored_length > PROPERTIES_MAX:
        return NOT_STORED
    asks = read_asks(text, row[SEND_PROPERTIES_LENGTH], row[SEND_SYS_FLAG], &sources.extra, &key)
    if asks & ~ASKS_NO_WAIT:
        return NOT_STORED
    fields.sys_flag = (fields.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)) | (
        row[SEND_SYS_FLAG] & ~<int64_t>(BORN_HOST_V6 | STORE_HOST_V6)
    )
    size = record_size(fields.topic_length, body_length, stored_length, fields.sys_flag)
    if size > limit - position[0]:
        return NO_ROOM
    fields.queue_id = <int32_t>queue_id
    fields.born_timestamp = row[SEND_BORN_TIMESTAMP]
    fields.reconsume_times = <int32_t>row[SEND_RECONSUME_TIMES]
    write_record(
        out + position[0], fields, size, <int32_t>row[SEND_MESSAGE_FLAG], sources.next_offsets[queue_id],
        base_offset + position[0], sources.data + row[SEND_BODY_START], body_length, &properties,
    )
    result[RESULT_POSITION] = position[0]
    result[RESULT_SIZE] = size
    result[RESULT_QUEUE_OFFSET] = sources.next_offsets[queue_id]
    result[RESULT_UNIQ_KEY_START] = key.value - sources.scratch
    result[RESULT_UNIQ_KEY_LENGTH] = key.value_length
    result[RESULT_WAIT] = not asks & ASKS_NO_WAIT
    sources.next_offsets[queue_id] += 1
    position[0] += size
    return STORED


cdef Py_ssize_t put_rows(
    uint8_t* out, int64_t position, int64_t limit, int64_t base_offset, const Sources* sources, Fields* fields,
    const int64_t* row, Py_ssize_t count, int64_t* result,
) noexcept nogil:
    cdef Py_ssize_t done = 0
    cdef Outcome outcome
    while done < count:
        outcome = put_row(out, &position, limit, base_offset, sources, fields, row, result)
        if outcome != STORED:
            return -1 if outcome == NO_ROOM and done == 0 else done
        row += SEND_COLUMNS
        result += RESULT_COLUMNS
        done += 1
    return done


def put_records(
    out, Py_ssize_t position, Py_ssize_t limit, int64_t physical_offset, data, scratch, send_rows, Py_ssize_t first,
    Py_ssize_t last, *, bytes topic not None, next_offsets, bytes born_host not None, bytes store_host not None,
    int64_t store_timestamp, bytes extra_properties not None, int64_t max_body, results, bint checksum=False,
):
    """Lay out the messages of many send requests in the log's write buffer, as far as they ask for nothing more.

    out               writable buffer; records go to ``out[position:limit]``, nothing else is touched. The caller cuts
                      ``limit`` so that a filler still fits the file
    physical_offset   log position of ``out[0]``
    data, scratch     the buffers that ``send_rows`` points into
    send_rows         int64[n, SEND_COLUMNS] of ``scan_send``; rows first … last - 1 are taken
    topic             the topic of these messages; a row of another one ends them
    next_offsets      int64[queues], the next queue offset of each queue of the topic; advanced in place
    extra_properties  property text added to every message (CLUSTER, MSG_REGION, TRACE_ON); a missing separator before
                      it is put in
    max_body          longest body in bytes
    checksum          as in ``record.put_stored``
    results           int64[n, 6], row i belongs to send row i: RESULT_POSITION (in ``out``) RESULT_SIZE
                      RESULT_QUEUE_OFFSET RESULT_UNIQ_KEY_START, RESULT_UNIQ_KEY_LENGTH (in ``scratch``) RESULT_WAIT (0
                      if the sender does not wait for the flush)
    returns           rows stored, counted from ``first``. The row behind them is for the caller: of another topic, an
                      unusual header, no body or too long a one, a queue that is not there, properties too long with
                      what is added, or anything that ``examine`` tells but NO_WAIT. -1 if no row was stored because the
                      first does not fit before ``limit``
    RocketMQ          store/CommitLog.java (asyncPutMessage), store/MessageExtEncoder.java
    """
    cdef Fields fields = shared_fields(topic, born_host, store_host, store_timestamp, 0, checksum)
    cdef Sources sources
    cdef Borrowed held
    cdef const int64_t* row
    cdef int64_t* result
    sources.extra = extra_of(extra_properties)
    sources.max_body = max_body
    fields.extra = sources.extra.text
    fields.extra_length = sources.extra.length
    held.count = 0
    try:
        target = borrow_room(&held, out)
        check_range(target, position, limit)
        source = borrow_bytes(&held, data)
        side = borrow_bytes(&held, scratch)
        table = borrow_rows(&held, send_rows, SEND_COLUMNS, False)
        answers = borrow_rows(&held, results, RESULT_COLUMNS, True)
        offsets = borrow_values(&held, next_offsets)
        if first < 0 or last < first or last > table.shape[0] or last > answers.shape[0]:
            raise ValueError(f"rows {first}:{last} are not within send_rows and results")
        sources.data, sources.data_length = <const uint8_t*>source.buf, source.len
        sources.scratch, sources.scratch_length = <const uint8_t*>side.buf, side.len
        sources.next_offsets, sources.queue_count = <int64_t*>offsets.buf, offsets.shape[0]
        row = <const int64_t*>table.buf + first * SEND_COLUMNS
        result = <int64_t*>answers.buf + first * RESULT_COLUMNS
        if source.len < NOGIL_BYTES:
            return put_rows(
                <uint8_t*>target.buf, position, limit, physical_offset, &sources, &fields, row, last - first, result
            )
        with nogil:
            first = put_rows(
                <uint8_t*>target.buf, position, limit, physical_offset, &sources, &fields, row, last - first, result
            )
        return first
    finally:
        give_back(&held)
