"""Stored messages to Arrow column buffers, without a Python object per message.

In       messages as a pull reply holds them (layout: ``record.pxd``)
Out      buffers for ``pyarrow.Array.from_buffers``: int32 offsets, LSB-first validity, data; UTF-8 that is not valid is
         replaced as Java's decoder does, so that strings are strings
RocketMQ common/message/MessageDecoder.java (decodes)

Over 600 lines because seventeen columns of four kinds are one table: each step walks all that are wanted.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, check_range, give_back
from rocketcore._fast.growing cimport APPENDED, NO_MEMORY, TOO_MUCH, Bytes, append_bytes, append_text, ensure, reserve
from rocketcore._fast.message_id cimport put_id
from rocketcore._fast.record cimport (
    BODY_LENGTH,
    BODY_START,
    BORN_HOST,
    BORN_HOST_V6,
    BORN_TIMESTAMP,
    FLAG,
    PHYSICAL_OFFSET,
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
    TOPIC_LENGTH,
    TOPIC_START,
    TOTAL_SIZE,
    check_body,
    named,
    rc_get_i32,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_put_u8,
    rc_read_properties,
    read_record,
)
from rocketcore._fast.status cimport OK, Status, fail


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_decimal(uint8_t* at, int64_t value)

cdef extern from "rc_unpack.h" nogil:
    ctypedef struct rc_unpacker:
        pass
    int RC_PACKED_KIND, RC_UNPACKED, RC_UNPACK_FULL
    void rc_open_libraries()
    int rc_unpack_begin(rc_unpacker* unpacker, int kind, const uint8_t* data, size_t length)
    int rc_unpack_some(rc_unpacker* unpacker, uint8_t* out, size_t room, size_t* written)
    void rc_unpack_end(rc_unpacker* unpacker)

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* source, char* target, uint32_t size)
    int AF_INET6

cdef enum:
    # Text: offsets and data, the first ones perhaps null.
    TAGS
    KEYS
    NULLABLE_COLUMNS
    TOPIC = NULLABLE_COLUMNS
    MSG_ID
    BODY
    TEXT_BORN_HOST
    TEXT_STORE_HOST
    MAP_KEYS
    MAP_ITEMS
    TEXT_COLUMNS
    # Numbers of 32 bits.
    NUMBER_QUEUE_ID = TEXT_COLUMNS
    NUMBER_FLAG
    NUMBER_SYS_FLAG
    NUMBER_RECONSUME_TIMES
    NUMBER_STORE_SIZE
    NARROW_COLUMNS
    # Numbers of 64 bits.
    NUMBER_QUEUE_OFFSET = NARROW_COLUMNS
    NUMBER_BORN_TIMESTAMP
    NUMBER_STORE_TIMESTAMP
    NUMBER_COMMIT_LOG_OFFSET
    WIDE_COLUMNS
    COLUMN_COUNT = WIDE_COLUMNS

cdef enum:
    PACKED_FLAG = 1
    UNPACKED_MAX = 4 << 20  # codes.MAX_MESSAGE_BYTES
    FEW_PAIRS = 32

rc_open_libraries()

_PLACES = {
    "topic": TOPIC,
    "queueId": NUMBER_QUEUE_ID,
    "queueOffset": NUMBER_QUEUE_OFFSET,
    "msgId": MSG_ID,
    "tags": TAGS,
    "keys": KEYS,
    "body": BODY,
    "bornTimestamp": NUMBER_BORN_TIMESTAMP,
    "storeTimestamp": NUMBER_STORE_TIMESTAMP,
    "properties": MAP_KEYS,
    "bornHost": TEXT_BORN_HOST,
    "storeHost": TEXT_STORE_HOST,
    "flag": NUMBER_FLAG,
    "sysFlag": NUMBER_SYS_FLAG,
    "reconsumeTimes": NUMBER_RECONSUME_TIMES,
    "commitLogOffset": NUMBER_COMMIT_LOG_OFFSET,
    "storeSize": NUMBER_STORE_SIZE,
}

COLUMNS = tuple(_PLACES)

cdef enum:
    # What became of a message, beside what becomes of a text of it.
    LIMIT = NO_MEMORY + 1
    PACKED  # a compressed body is next, which is not unpacked here
    FULL
    ORDER
    # Below 0: a Status, the record is bad.


cdef struct Column:
    bint wanted
    bint has_null
    Bytes data
    Bytes offsets
    Bytes validity


cdef struct Place:
    const uint8_t* name
    int64_t name_length
    int64_t index


cdef struct Table:
    Column columns[COLUMN_COUNT]
    Bytes map_offsets
    Bytes pairs  # rc_property[], those of the row at hand
    Bytes places  # Place[], of pairs of that row
    Bytes unpacked  # body of the row at hand
    rc_unpacker unpacker
    int64_t rows
    int64_t row_capacity
    int64_t entry_capacity
    int64_t last_queue_offset
    int64_t gathered  # bytes of the messages, unpacked; bodies only if they are wanted
    bint wants_properties


cdef int grow_rows(Table* table) noexcept nogil:
    """Double the room for rows in everything that has a fixed size per row."""
    cdef int64_t rows = 2 * table.row_capacity if table.row_capacity else 1024
    cdef int i
    cdef Column* column
    for i in range(COLUMN_COUNT):
        column = &table.columns[i]
        if not column.wanted or i == MAP_KEYS or i == MAP_ITEMS:
            continue
        if i >= TEXT_COLUMNS:
            if ensure(&column.data, rows * (4 if i < NARROW_COLUMNS else 8)):
                return NO_MEMORY
        else:
            if ensure(&column.offsets, 4 * (rows + 1)):
                return NO_MEMORY
            if i < NULLABLE_COLUMNS and ensure(&column.validity, rows >> 3):
                return NO_MEMORY
    if table.columns[MAP_KEYS].wanted and ensure(&table.map_offsets, 4 * (rows + 1)):
        return NO_MEMORY
    table.row_capacity = rows
    return APPENDED


cdef int grow_entries(Table* table, int64_t entries) noexcept nogil:
    if entries < 2 * table.entry_capacity:
        entries = 2 * table.entry_capacity
    if (
        ensure(&table.columns[MAP_KEYS].offsets, 4 * (entries + 1))
        or ensure(&table.columns[MAP_ITEMS].offsets, 4 * (entries + 1))
    ):
        return NO_MEMORY
    table.entry_capacity = entries
    return APPENDED


cdef int append_host(Bytes* buffer, const uint8_t* host, bint v6) noexcept nogil:
    """Append ``ip:port``, an IPv6 address in brackets."""
    cdef uint8_t* at
    cdef uint8_t* begin
    cdef int i, outcome = reserve(buffer, 64)
    if outcome:
        return outcome
    begin = at = buffer.data + buffer.length
    if v6:
        at = rc_put_u8(at, 91)
        inet_ntop(AF_INET6, host, <char*>at, 46)
        while at[0] != 0:
            at += 1
        at = rc_put_u8(at, 93)
        host += 16
    else:
        for i in range(4):
            if i:
                at = rc_put_u8(at, 46)
            at = rc_put_decimal(at, host[i])
        host += 4
    at = rc_put_u8(at, 58)
    at = rc_put_decimal(at, <uint32_t>rc_get_i32(host))
    buffer.length += at - begin
    return APPENDED


cdef int append_id(Bytes* buffer, const uint8_t* data, const int64_t* record) noexcept nogil:
    """Append the offset message id, for a message without UNIQ_KEY: hex of host, port and physical offset."""
    cdef int64_t width = 20 if record[SYS_FLAG] & STORE_HOST_V6 else 8
    cdef int outcome = reserve(buffer, 2 * width + 16)
    if outcome:
        return outcome
    put_id(buffer.data + buffer.length, data + record[STORE_HOST], width, record[PHYSICAL_OFFSET])
    buffer.length += 2 * width + 16
    return APPENDED


cdef inline int64_t micros_of(int64_t millis) noexcept nogil:
    """Milliseconds as Arrow's timestamp[us]; what does not fit becomes the nearest that does."""
    if millis > INT64_MAX // 1000:
        return INT64_MAX
    if millis < INT64_MIN // 1000:
        return INT64_MIN
    return millis * 1000


cdef int collect_pair(Table* table, const rc_property* found) noexcept nogil:
    """Note a pair for the map of this row; a name seen before takes the new value, as the last one wins.

    Only the first few are compared with one another here, the others by ``unite_pairs``.
    """
    cdef rc_property* pairs = <rc_property*>table.pairs.data
    cdef int64_t i, count = table.pairs.length // <int64_t>sizeof(rc_property)
    cdef int outcome
    if count < FEW_PAIRS:
        for i in range(count):
            if pairs[i].name_length == found.name_length and memcmp(pairs[i].name, found.name, found.name_length) == 0:
                pairs[i] = found[0]
                return APPENDED
    outcome = reserve(&table.pairs, sizeof(rc_property))
    if outcome:
        return outcome
    (<rc_property*>(table.pairs.data + table.pairs.length))[0] = found[0]
    table.pairs.length += sizeof(rc_property)
    return APPENDED


cdef int compare_names(const void* one, const void* other) noexcept nogil:
    """Order places of pairs by name, those of one name as they came."""
    cdef const Place* a = <const Place*>one
    cdef const Place* b = <const Place*>other
    cdef int order
    if a.name_length != b.name_length:
        return -1 if a.name_length < b.name_length else 1
    order = memcmp(a.name, b.name, a.name_length)
    return order if order else (1 if a.index > b.index else -1)


cdef int unite_pairs(Table* table) noexcept nogil:
    """Leave one pair of each name, where its first was, with the value of its last.

    By sorting: the time grows with n log n whatever the names are, those chosen to meet in a hash table included.
    """
    cdef rc_property* pairs = <rc_property*>table.pairs.data
    cdef int64_t i, kept = 0, first = 0, count = table.pairs.length // <int64_t>sizeof(rc_property)
    cdef Place* places
    if ensure(&table.places, count * sizeof(Place)):
        return NO_MEMORY
    places = <Place*>table.places.data
    for i in range(count):
        places[i].name = pairs[i].name
        places[i].name_length = pairs[i].name_length
        places[i].index = i
    qsort(places, count, sizeof(Place), compare_names)
    for i in range(1, count):
        if (
            places[i].name_length == places[first].name_length
            and memcmp(places[i].name, places[first].name, places[i].name_length) == 0
        ):
            pairs[places[first].index] = pairs[places[i].index]
            pairs[places[i].index].name = NULL
        else:
            first = i
    for i in range(count):
        if pairs[i].name != NULL:
            pairs[kept] = pairs[i]
            kept += 1
    table.pairs.length = kept * sizeof(rc_property)
    return APPENDED


cdef int append_map(Table* table) noexcept nogil:
    cdef rc_property* pairs
    cdef int64_t i, count, entries = (<int32_t*>table.map_offsets.data)[table.rows]
    cdef Column* keys = &table.columns[MAP_KEYS]
    cdef Column* items = &table.columns[MAP_ITEMS]
    cdef int outcome
    if table.pairs.length > FEW_PAIRS * <int64_t>sizeof(rc_property) and unite_pairs(table):
        return NO_MEMORY
    pairs = <rc_property*>table.pairs.data
    count = table.pairs.length // <int64_t>sizeof(rc_property)
    if entries + count > table.entry_capacity and grow_entries(table, entries + count):
        return NO_MEMORY
    for i in range(count):
        outcome = append_text(&keys.data, pairs[i].name, pairs[i].name_length)
        if not outcome:
            outcome = append_text(&items.data, pairs[i].value, pairs[i].value_length)
        if outcome:
            return outcome
        entries += 1
        (<int32_t*>keys.offsets.data)[entries] = <int32_t>keys.data.length
        (<int32_t*>items.offsets.data)[entries] = <int32_t>items.data.length
    (<int32_t*>table.map_offsets.data)[table.rows + 1] = <int32_t>entries
    return APPENDED


cdef inline int append_optional(Table* table, int place, const uint8_t* text, int64_t length) noexcept nogil:
    """Append a value, or null if ``text`` is NULL, and its validity bit, if the column is wanted."""
    cdef Column* column = &table.columns[place]
    cdef uint8_t* byte
    if not column.wanted:
        return APPENDED
    byte = column.validity.data + (table.rows >> 3)
    if table.rows & 7 == 0:
        byte[0] = 0
    if text == NULL:
        column.has_null = True
        return APPENDED
    byte[0] |= <uint8_t>(1 << (table.rows & 7))
    return append_text(&column.data, text, length)


cdef int append_properties(Table* table, const uint8_t* data, const int64_t* record) noexcept nogil:
    """Append what is in the properties: tags, keys, message id, map."""
    cdef rc_property_reader reader = rc_read_properties(data + record[PROPERTIES_START], record[PROPERTIES_LENGTH])
    cdef bint wants_map = table.columns[MAP_KEYS].wanted
    cdef rc_property found, tags, keys, key
    cdef int outcome
    tags.value = keys.value = key.value = NULL
    tags.value_length = keys.value_length = key.value_length = 0
    table.pairs.length = 0
    while rc_next_property(&reader, &found):
        if named(&found, b"TAGS", 4):
            tags = found
        elif named(&found, b"KEYS", 4):
            keys = found
        elif named(&found, b"UNIQ_KEY", 8):
            key = found
        if wants_map:
            outcome = collect_pair(table, &found)
            if outcome:
                return outcome
    outcome = append_optional(table, TAGS, tags.value, tags.value_length)
    if not outcome:
        outcome = append_optional(table, KEYS, keys.value, keys.value_length)
    if not outcome and table.columns[MSG_ID].wanted:
        if key.value != NULL:
            outcome = append_text(&table.columns[MSG_ID].data, key.value, key.value_length)
        else:
            outcome = append_id(&table.columns[MSG_ID].data, data, record)
    if not outcome and wants_map:
        outcome = append_map(table)
    return outcome


cdef int append_texts(
    Table* table, const uint8_t* data, const int64_t* record, const uint8_t* body, int64_t body_length
) noexcept nogil:
    cdef int outcome = APPENDED
    if table.columns[BODY].wanted:
        outcome = append_bytes(&table.columns[BODY].data, body, body_length)
    if not outcome and table.columns[TOPIC].wanted:
        outcome = append_text(&table.columns[TOPIC].data, data + record[TOPIC_START], record[TOPIC_LENGTH])
    if not outcome and table.columns[TEXT_BORN_HOST].wanted:
        outcome = append_host(
            &table.columns[TEXT_BORN_HOST].data, data + record[BORN_HOST], record[SYS_FLAG] & BORN_HOST_V6 != 0
        )
    if not outcome and table.columns[TEXT_STORE_HOST].wanted:
        outcome = append_host(
            &table.columns[TEXT_STORE_HOST].data, data + record[STORE_HOST], record[SYS_FLAG] & STORE_HOST_V6 != 0
        )
    if not outcome and table.wants_properties:
        outcome = append_properties(table, data, record)
    return outcome


cdef inline void put_narrow(Table* table, int place, int64_t value) noexcept nogil:
    if table.columns[place].wanted:
        (<int32_t*>table.columns[place].data.data)[table.rows] = <int32_t>value


cdef inline void put_wide(Table* table, int place, int64_t value) noexcept nogil:
    if table.columns[place].wanted:
        (<int64_t*>table.columns[place].data.data)[table.rows] = value


cdef void rewind(Table* table) noexcept nogil:
    """Forget what a row that was not finished appended."""
    cdef int i
    cdef int64_t entries
    for i in range(MAP_KEYS):
        if table.columns[i].wanted:
            table.columns[i].data.length = (<int32_t*>table.columns[i].offsets.data)[table.rows]
    if table.columns[MAP_KEYS].wanted:
        entries = (<int32_t*>table.map_offsets.data)[table.rows]
        for i in range(MAP_KEYS, TEXT_COLUMNS):
            if table.columns[i].offsets.data != NULL:
                table.columns[i].data.length = (<int32_t*>table.columns[i].offsets.data)[entries]


cdef inline int append_record(
    Table* table, const uint8_t* data, const int64_t* record, const uint8_t* body, int64_t body_length
) noexcept nogil:
    cdef int outcome, i
    if table.rows == table.row_capacity and grow_rows(table):
        return NO_MEMORY
    if table.rows == 0:
        for i in range(MAP_KEYS):
            if table.columns[i].wanted:
                (<int32_t*>table.columns[i].offsets.data)[0] = 0
        if table.columns[MAP_KEYS].wanted:
            if grow_entries(table, 0):
                return NO_MEMORY
            (<int32_t*>table.map_offsets.data)[0] = 0
            (<int32_t*>table.columns[MAP_KEYS].offsets.data)[0] = 0
            (<int32_t*>table.columns[MAP_ITEMS].offsets.data)[0] = 0
    outcome = append_texts(table, data, record, body, body_length)
    if outcome:
        rewind(table)
        return outcome
    put_narrow(table, NUMBER_QUEUE_ID, record[QUEUE_ID])
    put_narrow(table, NUMBER_FLAG, record[FLAG])
    put_narrow(table, NUMBER_SYS_FLAG, record[SYS_FLAG])
    put_narrow(table, NUMBER_RECONSUME_TIMES, record[RECONSUME_TIMES])
    put_narrow(table, NUMBER_STORE_SIZE, record[TOTAL_SIZE])
    put_wide(table, NUMBER_QUEUE_OFFSET, record[QUEUE_OFFSET])
    put_wide(table, NUMBER_BORN_TIMESTAMP, micros_of(record[BORN_TIMESTAMP]))
    put_wide(table, NUMBER_STORE_TIMESTAMP, micros_of(record[STORE_TIMESTAMP]))
    put_wide(table, NUMBER_COMMIT_LOG_OFFSET, record[PHYSICAL_OFFSET])
    table.last_queue_offset = record[QUEUE_OFFSET]
    table.gathered += record[TOTAL_SIZE] - record[BODY_LENGTH]
    if table.columns[BODY].wanted:
        table.gathered += body_length
    table.rows += 1
    for i in range(MAP_KEYS):
        if table.columns[i].wanted:
            (<int32_t*>table.columns[i].offsets.data)[table.rows] = <int32_t>table.columns[i].data.length
    return APPENDED


cdef int append_unpacked(Table* table, const uint8_t* data, const int64_t* record) noexcept nogil:
    """Append a message whose body is compressed; PACKED where that is not sound, too long, or not unpacked here."""
    cdef Bytes* room = &table.unpacked
    cdef size_t written
    cdef int64_t length = 0
    cdef int outcome = rc_unpack_begin(
        &table.unpacker, record[SYS_FLAG] & RC_PACKED_KIND, data + record[BODY_START], record[BODY_LENGTH]
    )
    if outcome != RC_UNPACKED:
        return PACKED
    while True:
        if length == room.capacity:
            if length >= UNPACKED_MAX:
                return PACKED
            if ensure(room, min(<int64_t>UNPACKED_MAX, max(2 * length, 4 * record[BODY_LENGTH], <int64_t>1 << 16))):
                return NO_MEMORY
        outcome = rc_unpack_some(&table.unpacker, room.data + length, room.capacity - length, &written)
        length += written
        if outcome == RC_UNPACKED:
            return append_record(table, data, record, room.data, length)
        if outcome != RC_UNPACK_FULL:
            return PACKED


cdef int append_loop(
    Table* table, const uint8_t* data, int64_t start, int64_t end, bint limited, int64_t limit, bint check_crc,
    int64_t most, bint rising, int64_t after, bint unpack, int64_t* record, int64_t* position,
) noexcept nogil:
    """Append up to ``most`` gathered bytes; with ``unpack`` unpack bodies.

    Stops before one that is not unpacked here, or not sound, or with ``rising`` not behind offset ``after`` and the
    message before it; its message is ``record``.
    """
    cdef int outcome = APPENDED
    cdef Status status
    cdef int64_t at = start
    while at < end:
        if table.gathered >= most:
            outcome = FULL
            break
        status = read_record(data, at, end, record)
        if status == OK and check_crc:
            status = check_body(data, record)
        if status != OK:
            outcome = status
            break
        if limited and record[QUEUE_OFFSET] >= limit:
            outcome = LIMIT
            break
        if rising and record[QUEUE_OFFSET] <= after:
            outcome = ORDER
            break
        # As in Java no body is none to unpack, whatever the flag says.
        if unpack and record[SYS_FLAG] & PACKED_FLAG and record[BODY_LENGTH]:
            outcome = append_unpacked(table, data, record)
        else:
            outcome = append_record(table, data, record, data + record[BODY_START], record[BODY_LENGTH])
        if outcome:
            break
        after = record[QUEUE_OFFSET]
        at += record[TOTAL_SIZE]
    position[0] = at
    return outcome


@cython.auto_pickle(False)
@cython.final
cdef class ColumnBuffer:
    """Memory of one column; it lives as long as someone holds the object or a view of it."""

    cdef uint8_t* _data
    cdef Py_ssize_t _length

    def __dealloc__(self):
        free(self._data)

    def __len__(self):
        return self._length

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self._data, self._length, 1, flags)


# What ``finish`` returns for one column: the arguments of ``pyarrow.Array.from_buffers``.
ColumnBuffers = tuple[ColumnBuffer | None, ...]


cdef ColumnBuffer hand_over(Bytes* buffer, int64_t length):
    """Give the memory of a column away; what is left is empty and grows anew."""
    cdef ColumnBuffer owner = ColumnBuffer.__new__(ColumnBuffer)
    if buffer.data == NULL and ensure(buffer, 8):  # nothing was ever written: an array still needs an address
        raise MemoryError
    owner._data = buffer.data
    owner._length = length
    buffer.data = NULL
    buffer.length = buffer.capacity = 0
    return owner


@cython.auto_pickle(False)
@cython.final
cdef class StoredColumns:
    """Gathers stored messages into Arrow column buffers.

    columns   names out of ``COLUMNS``: topic, queueId, queueOffset, msgId (UNIQ_KEY, else the offset id), tags, keys,
              body, bornTimestamp, storeTimestamp (microseconds), properties, bornHost, storeHost, flag, sysFlag,
              reconsumeTimes, commitLogOffset, storeSize. tags and keys may be null, the others never are
    column_bytes  a column with offsets is full before it is longer; at most 2 GiB, where Arrow's int32 offsets end
    unpack    ``(memoryview of a body, sys_flag) -> bytes`` for compressed bodies that the system's libraries do not
              unpack: they are missing, or the body is not sound; None: all stay as they are
    raises    ValueError for an unknown name
    Not for use by several threads at once: ``append`` releases the GIL.
    """

    cdef Table _table
    cdef tuple _names
    cdef object _unpack
    cdef int _stop

    def __init__(self, columns, unpack=None, int64_t column_bytes=INT32_MAX):
        cdef int i
        self._names = tuple(columns)
        self._unpack = unpack
        if not 0 < column_bytes <= INT32_MAX:
            raise ValueError(f"columns of {column_bytes} bytes, 1 to {INT32_MAX} are possible")
        for i in range(COLUMN_COUNT):
            self._table.columns[i].data.limit = column_bytes
        self._table.pairs.limit = INT32_MAX
        unknown = [name for name in self._names if name not in _PLACES]
        if unknown:
            raise ValueError(f"messages have no column {unknown[0]!r}")
        self._table.last_queue_offset = -1
        for name in self._names:
            place = _PLACES[name]
            self._table.columns[<int>place].wanted = True
            if place == MAP_KEYS:
                self._table.columns[MAP_ITEMS].wanted = True
            if place in (TAGS, KEYS, MSG_ID, MAP_KEYS):
                self._table.wants_properties = True

    def __dealloc__(self):
        cdef int i
        for i in range(COLUMN_COUNT):
            free(self._table.columns[i].data.data)
            free(self._table.columns[i].offsets.data)
            free(self._table.columns[i].validity.data)
        free(self._table.map_offsets.data)
        free(self._table.pairs.data)
        free(self._table.places.data)
        free(self._table.unpacked.data)
        rc_unpack_end(&self._table.unpacker)

    @property
    def rows(self):
        """Messages gathered since the last ``finish``."""
        return self._table.rows

    @property
    def gathered_bytes(self):
        """Bytes of the messages gathered since the last ``finish``: as stored, bodies unpacked, and only if wanted."""
        return self._table.gathered

    @property
    def last_queue_offset(self):
        """Queue offset of the last message appended, -1 before the first; ``finish`` does not change it."""
        return self._table.last_queue_offset

    @property
    def stopped_by(self):
        """What made the last ``append`` leave bytes: ``limit``, ``order``, ``full`` (a column), or None of these."""
        return {LIMIT: "limit", ORDER: "order", TOO_MUCH: "full"}.get(self._stop)

    def append(
        self, data, Py_ssize_t start, Py_ssize_t end, limit_offset=None, bint check_crc=False, int64_t most=INT64_MAX,
        after_offset=None,
    ):
        """Append the stored messages in ``data[start:end]``, as a pull reply holds them.

        data          bytes-like, read only, not kept: everything is copied, once
        limit_offset  stop at the first message whose queue offset is at least this; None takes all
        check_crc     compare each body with its CRC
        most          stop when ``gathered_bytes`` has reached this
        after_offset  stop at the first message whose queue offset is not above this and above those before it here;
                      None takes any
        returns       (rows, position): messages appended, and the first byte not consumed. If it is not ``end``,
                      ``most`` was reached, the record there is bad, or ``stopped_by`` says why
        raises        DecodeError, BadMagic or BadChecksum if the *first* record is bad; what ``unpack`` raises, which
                      is then the next record's; MemoryError. GIL released but in ``unpack``
        """
        cdef Borrowed held
        cdef int64_t record[STORED_COLUMNS]
        cdef int64_t position = start, before = self._table.rows, limit = 0, after = 0
        cdef bint limited = limit_offset is not None, rising = after_offset is not None
        cdef int outcome = APPENDED
        if limited:
            limit = limit_offset
        if rising:
            after = after_offset
        held.count = 0
        try:
            source = borrow_bytes(&held, data)
            check_range(source, start, end)
            if self._table.columns[BODY].wanted:
                outcome = reserve(&self._table.columns[BODY].data, end - start)
            while outcome != NO_MEMORY:
                with nogil:
                    outcome = append_loop(
                        &self._table, <const uint8_t*>source.buf, position, end, limited, limit, check_crc, most,
                        rising, after, self._unpack is not None and self._table.columns[BODY].wanted, record, &position,
                    )
                if outcome != PACKED:
                    break
                outcome = self._append_packed(data, <const uint8_t*>source.buf, record)
                if outcome:
                    break
                after = record[QUEUE_OFFSET]
                position += record[TOTAL_SIZE]
        finally:
            give_back(&held)
        self._stop = outcome
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome < 0 and self._table.rows == before:
            raise fail(outcome, position)
        return self._table.rows - before, position

    cdef int _append_packed(self, object data, const uint8_t* at, const int64_t* record) except -1:
        cdef Py_ssize_t start = record[BODY_START]
        cdef bytes body = self._unpack(
            memoryview(data).cast("B")[start:start + record[BODY_LENGTH]], record[SYS_FLAG]
        )
        return append_record(
            &self._table, at, record, <const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
        )

    def finish(self):
        """Return the columns gathered and begin anew.

        returns  name → buffers, in the order of ``pyarrow.Array.from_buffers``: numbers (None, data), timestamps in
                 microseconds; text and body (validity or None, offsets, data); properties (None, offsets, key offsets,
                 key data, item offsets, item data). The buffers own their memory
        """
        cdef dict found = {}
        cdef Table* table = &self._table
        if table.row_capacity == 0 and grow_rows(table):
            raise MemoryError
        for name in self._names:
            if name not in found:
                found[name] = self._take(<int>_PLACES[name])
        table.rows = 0
        table.row_capacity = 0
        table.entry_capacity = 0
        table.gathered = 0
        return found

    cdef tuple _take(self, int place):
        cdef Table* table = &self._table
        cdef Column* column = &table.columns[place]
        cdef int64_t rows = table.rows, entries
        validity = None
        if place == MAP_KEYS:
            if table.entry_capacity == 0 and grow_entries(table, 16):
                raise MemoryError
            if rows == 0:
                (<int32_t*>table.map_offsets.data)[0] = 0
                (<int32_t*>table.columns[MAP_KEYS].offsets.data)[0] = 0
                (<int32_t*>table.columns[MAP_ITEMS].offsets.data)[0] = 0
            entries = (<int32_t*>table.map_offsets.data)[rows]
            return (
                None,
                hand_over(&table.map_offsets, 4 * (rows + 1)),
                hand_over(&column.offsets, 4 * (entries + 1)),
                hand_over(&column.data, column.data.length),
                hand_over(&table.columns[MAP_ITEMS].offsets, 4 * (entries + 1)),
                hand_over(&table.columns[MAP_ITEMS].data, table.columns[MAP_ITEMS].data.length),
            )
        if place >= TEXT_COLUMNS:
            return None, hand_over(&column.data, rows * (4 if place < NARROW_COLUMNS else 8))
        if rows == 0:
            (<int32_t*>column.offsets.data)[0] = 0
        if column.has_null:
            validity = hand_over(&column.validity, (rows + 7) >> 3)
        column.has_null = False
        return validity, hand_over(&column.offsets, 4 * (rows + 1)), hand_over(&column.data, column.data.length)
