"""Arrow columns to client batches, and stored messages to Arrow columns, without a Python object per row.

In       anything that exports the Arrow PyCapsule Interface (pyarrow.Array and others): string, binary, their large
         forms, int32 and int64. Offsets and validity are read as the Arrow columnar format states them
Out      column buffers for ``pyarrow.Array.from_buffers``: int32 offsets, LSB-first validity, data; UTF-8 that is not
         valid is replaced as Java's decoder does, so that strings are strings
RocketMQ common/message/MessageDecoder.java (encodeMessages, decodes)
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    UINT32_MAX,
    int32_t,
    int64_t,
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strcmp

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
    rc_put_16,
    rc_put_32,
    rc_put_64,
    rc_put_bytes,
    rc_put_u8,
    rc_read_properties,
    read_record,
)
from rocketcore._fast.status cimport OK, Status, fail
from rocketcore._fast.table cimport is_int64, take_bytes, take_range

from rocketcore.errors import MessageIllegal

cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_decimal(uint8_t* at, int64_t value)

cdef extern from "rc_hash.h" nogil:
    bint rc_is_utf8(const uint8_t* at, size_t length)
    size_t rc_java_utf8(const uint8_t* at, const uint8_t* end, uint32_t* code_point)

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* source, char* target, uint32_t size)
    int AF_INET6

# The Arrow C data interface, as its specification declares it.
cdef extern from *:
    """
    struct rc_arrow_schema {
        const char *format, *name, *metadata;
        int64_t flags, n_children;
        struct rc_arrow_schema **children, *dictionary;
        void (*release)(struct rc_arrow_schema *);
        void *private_data;
    };
    struct rc_arrow_array {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct rc_arrow_array **children, *dictionary;
        void (*release)(struct rc_arrow_array *);
        void *private_data;
    };
    """
    struct rc_arrow_schema:
        const char* format
        void* dictionary
    struct rc_arrow_array:
        int64_t length
        int64_t offset
        int64_t n_buffers
        const void** buffers


# ----------------------------------------------------------------------------------------------- columns to batches

cdef enum:
    ELEMENT_FIXED_SIZE = 22
    PROPERTIES_MAX = 32767
    NAME_SIZE = 9  # UNIQ_KEY U+0001
    KEY_SIZE = 32
    MOST_RESERVED = 128

cdef enum RowStatus:
    ROW_OK
    ROW_POSITION
    ROW_NUMBER
    ROW_OFFSETS
    ROW_BODY_NULL
    ROW_BODY_EMPTY
    ROW_BODY_TOO_LONG
    ROW_TAGS
    ROW_KEYS
    ROW_MSG_ID
    ROW_FLAG
    ROW_PROPERTIES_TOO_LONG
    ROW_NO_ROOM

_ROW_REASONS = {
    ROW_POSITION: "there is no such row in the columns",
    ROW_NUMBER: "row numbers end at 4,294,967,295",
    ROW_OFFSETS: "the offsets of a column run backwards",
    ROW_BODY_NULL: "the body is null",
    ROW_BODY_EMPTY: "the body is empty",
    ROW_BODY_TOO_LONG: "the body is larger than the largest message",
    ROW_TAGS: "tags hold a separator character (U+0001 or U+0002)",
    ROW_KEYS: "keys hold a separator character (U+0001 or U+0002)",
    ROW_MSG_ID: "the message id holds a separator character (U+0001 or U+0002)",
    ROW_FLAG: "the flag is no int32",
    ROW_PROPERTIES_TOO_LONG: f"the properties are longer than {PROPERTIES_MAX} bytes",
    ROW_NO_ROOM: "the message takes {} bytes in a request, {} are allowed",
}


cdef struct Text:
    # A string or binary column; `narrow` or `wide` offsets. With `length` 0 the column is absent.
    const uint8_t* validity
    const int32_t* narrow
    const int64_t* wide
    const uint8_t* data
    int64_t offset
    int64_t length


cdef struct Numbers:
    const uint8_t* validity
    const int32_t* narrow
    const int64_t* wide
    int64_t offset
    int64_t length


cdef struct Slice:
    const uint8_t* start
    int64_t length  # -1: null


cdef struct RowSource:
    Text body
    Text tags
    Text keys
    Text properties
    Text msg_id
    Numbers flag
    const int64_t* rows
    int64_t row_base
    int64_t max_body
    const uint8_t* template
    int64_t template_length


cdef inline bint is_null(const uint8_t* validity, int64_t at) noexcept nogil:
    return validity != NULL and not (validity[at >> 3] >> (at & 7)) & 1


cdef inline RowStatus text_at(const Text* column, int64_t row, Slice* found) noexcept nogil:
    cdef int64_t at = column.offset + row
    cdef int64_t start, end
    found.start = NULL
    found.length = -1
    if column.length == 0 or is_null(column.validity, at):
        return ROW_OK
    if column.narrow != NULL:
        start = column.narrow[at]
        end = column.narrow[at + 1]
    else:
        start = column.wide[at]
        end = column.wide[at + 1]
    if start < 0 or end < start:
        return ROW_OFFSETS
    found.start = column.data + start
    found.length = end - start
    return ROW_OK


cdef inline bint has_separator(const Slice* text) noexcept nogil:
    """No early exit: the loop is for the vector unit, and a separator is an error."""
    cdef uint8_t found = 0
    cdef int64_t i
    for i in range(text.length):
        found |= <uint8_t>(text.start[i] - 1) < 2
    return found != 0


cdef inline uint8_t* put_property(uint8_t* at, const char* name, int64_t length, const Slice* value) noexcept nogil:
    at = rc_put_bytes(at, name, length)
    at = rc_put_bytes(at, value.start, value.length)
    return rc_put_u8(at, 2)


cdef inline uint8_t* put_hex_32(uint8_t* at, uint32_t value) noexcept nogil:
    cdef const char* digits = b"0123456789ABCDEF"
    cdef int shift = 28
    while shift >= 0:
        at[0] = digits[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at


cdef RowStatus put_row(
    const RowSource* source, int64_t index, uint8_t* out, int64_t room, int64_t* size
) noexcept nogil:
    """Write the batch element of one row if it fits in ``room`` bytes; ``size`` is set in either case."""
    cdef int64_t row = source.rows[index] if source.rows != NULL else index
    cdef int64_t number = source.row_base + row
    cdef int64_t properties_length, flag = 0
    cdef Slice body, tags, keys, properties, msg_id
    cdef RowStatus status
    cdef bint open_end = False
    cdef uint8_t* at
    if row < 0 or row >= source.body.length:
        return ROW_POSITION
    if number < 0 or number > UINT32_MAX:
        return ROW_NUMBER
    status = text_at(&source.body, row, &body)
    if status == ROW_OK:
        status = text_at(&source.tags, row, &tags)
    if status == ROW_OK:
        status = text_at(&source.keys, row, &keys)
    if status == ROW_OK:
        status = text_at(&source.properties, row, &properties)
    if status == ROW_OK:
        status = text_at(&source.msg_id, row, &msg_id)
    if status != ROW_OK:
        return status
    if body.length <= 0:
        return ROW_BODY_NULL if body.length < 0 else ROW_BODY_EMPTY
    if body.length > source.max_body:
        return ROW_BODY_TOO_LONG
    properties_length = source.template_length
    if msg_id.length > 0:
        if has_separator(&msg_id):
            return ROW_MSG_ID
        properties_length += msg_id.length - KEY_SIZE
    if tags.length > 0:
        if has_separator(&tags):
            return ROW_TAGS
        properties_length += tags.length + 6
    if keys.length > 0:
        if has_separator(&keys):
            return ROW_KEYS
        properties_length += keys.length + 6
    if properties.length > 0:
        open_end = properties.start[properties.length - 1] != 2
        properties_length += properties.length + open_end
    if properties_length > PROPERTIES_MAX:
        return ROW_PROPERTIES_TOO_LONG
    if source.flag.length != 0 and not is_null(source.flag.validity, source.flag.offset + row):
        if source.flag.narrow != NULL:
            flag = source.flag.narrow[source.flag.offset + row]
        else:
            flag = source.flag.wide[source.flag.offset + row]
        if flag < INT32_MIN or flag > INT32_MAX:
            return ROW_FLAG
    size[0] = ELEMENT_FIXED_SIZE + body.length + properties_length
    if size[0] > room:
        return ROW_NO_ROOM
    at = rc_put_32(out, <uint32_t>size[0])
    at = rc_put_64(at, 0)  # magic and CRC: the broker computes its own
    at = rc_put_32(at, <uint32_t>flag)
    at = rc_put_32(at, <uint32_t>body.length)
    at = rc_put_bytes(at, body.start, body.length)
    at = rc_put_16(at, <uint16_t>properties_length)
    if msg_id.length > 0:
        at = put_property(at, b"UNIQ_KEY\x01", NAME_SIZE, &msg_id)
        at = rc_put_bytes(
            at, source.template + NAME_SIZE + KEY_SIZE + 1, source.template_length - NAME_SIZE - KEY_SIZE - 1
        )
    else:
        put_hex_32(rc_put_bytes(at, source.template, NAME_SIZE + KEY_SIZE - 8), <uint32_t>number)
        at = rc_put_bytes(
            at + NAME_SIZE + KEY_SIZE, source.template + NAME_SIZE + KEY_SIZE,
            source.template_length - NAME_SIZE - KEY_SIZE,
        )
    if tags.length > 0:
        at = put_property(at, b"TAGS\x01", 5, &tags)
    if keys.length > 0:
        at = put_property(at, b"KEYS\x01", 5, &keys)
    if properties.length > 0:
        at = rc_put_bytes(at, properties.start, properties.length)
        if open_end:
            rc_put_u8(at, 2)
    return ROW_OK


cdef int64_t put_rows(
    const RowSource* source, int64_t first, int64_t last, uint8_t* out, int64_t capacity, int64_t max_bytes,
    RowStatus* status, int64_t* written,
) noexcept nogil:
    cdef int64_t index = first, used = 0, size = 0
    status[0] = ROW_OK
    while index < last:
        status[0] = put_row(
            source, index, out + used, (capacity if used == 0 or capacity < max_bytes else max_bytes) - used, &size
        )
        if status[0] != ROW_OK:
            break
        used += size
        index += 1
        if used >= max_bytes:
            break
    # Where not even the first row has room: what it would take, for the error.
    written[0] = size if status[0] == ROW_NO_ROOM and index == first else used
    return index - first


cdef tuple export(object column, rc_arrow_schema** schema, rc_arrow_array** array):
    """Ask for the C form of a column. The capsules own it: keep the tuple while the pointers are used."""
    cdef tuple capsules = column.__arrow_c_array__()
    schema[0] = <rc_arrow_schema*>PyCapsule_GetPointer(capsules[0], "arrow_schema")
    array[0] = <rc_arrow_array*>PyCapsule_GetPointer(capsules[1], "arrow_array")
    if schema[0].dictionary != NULL:
        raise ValueError("a dictionary-encoded column has to be decoded first")
    return capsules


cdef tuple take_text(object column, str name, int64_t length, Text* text):
    """Fill a Text from a column; ``length`` is what it must have, -1 for any. An absent column stays empty."""
    cdef rc_arrow_schema* schema
    cdef rc_arrow_array* array
    cdef tuple capsules
    memset(text, 0, sizeof(Text))
    if column is None:
        return None
    capsules = export(column, &schema, &array)
    if length >= 0 and array.length != length:
        raise ValueError(f"column {name} has {array.length} rows, body has {length}")
    if array.length == 0:
        return capsules
    if strcmp(schema.format, b"u") == 0 or strcmp(schema.format, b"z") == 0:
        text.narrow = <const int32_t*>array.buffers[1]
    elif strcmp(schema.format, b"U") == 0 or strcmp(schema.format, b"Z") == 0:
        text.wide = <const int64_t*>array.buffers[1]
    else:
        raise ValueError(f"column {name} has Arrow format {schema.format.decode()!r}, string or binary is needed")
    text.validity = <const uint8_t*>array.buffers[0]
    text.data = <const uint8_t*>array.buffers[2]
    text.offset = array.offset
    text.length = array.length
    return capsules


cdef tuple take_numbers(object column, str name, int64_t length, Numbers* numbers):
    cdef rc_arrow_schema* schema
    cdef rc_arrow_array* array
    cdef tuple capsules
    memset(numbers, 0, sizeof(Numbers))
    if column is None:
        return None
    capsules = export(column, &schema, &array)
    if array.length != length:
        raise ValueError(f"column {name} has {array.length} rows, body has {length}")
    if strcmp(schema.format, b"i") == 0:
        numbers.narrow = <const int32_t*>array.buffers[1]
    elif strcmp(schema.format, b"l") == 0:
        numbers.wide = <const int64_t*>array.buffers[1]
    else:
        raise ValueError(f"column {name} has Arrow format {schema.format.decode()!r}, int32 or int64 is needed")
    numbers.validity = <const uint8_t*>array.buffers[0]
    numbers.offset = array.offset
    numbers.length = array.length
    return capsules


@cython.auto_pickle(False)
@cython.final
cdef class BatchEncoder:
    """Lays rows out as the elements of client batches (wire format: ``message.encode_batch``).

    write_id, partition  64 and 32 bits: with the row's number (32 bits) they make the UNIQ_KEY, 32 upper-case hex
                         digits, so that the same row sent again has the same id
    tags, keys           of every row, as UTF-8; a column of the same name adds its own where it is not null
    properties           property text added to every row
    wait                 property WAIT, which every element of a batch carries
    max_body             longest body in bytes
    raises               ValueError for constants with separators or numbers out of range
    """

    cdef bytes _template
    cdef int64_t _max_body

    def __init__(
        self, *, write_id, partition, bytes tags not None=b"", bytes keys not None=b"", bytes properties not None=b"",
        bint wait=True, int64_t max_body=4194304,
    ):
        if not 0 <= write_id < 1 << 64 or not 0 <= partition < 1 << 32:
            raise ValueError(f"write id {write_id} has more than 64 bits or partition {partition} more than 32")
        if set(b"\x01\x02") & {*tags, *keys}:
            raise ValueError("tags and keys must not hold U+0001 or U+0002")
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        self._max_body = min(max_body, INT32_MAX - PROPERTIES_MAX - ELEMENT_FIXED_SIZE)
        self._template = b"".join((
            b"UNIQ_KEY\x01%016X%08X00000000\x02" % (write_id, partition),
            b"WAIT\x01true\x02" if wait else b"WAIT\x01false\x02",
            b"TAGS\x01%b\x02" % tags if tags else b"",
            b"KEYS\x01%b\x02" % keys if keys else b"",
            properties,
        ))
        if len(self._template) > PROPERTIES_MAX:
            raise ValueError(f"the constant properties are longer than {PROPERTIES_MAX} bytes")

    def encode(
        self, out, int64_t max_bytes, int64_t first, int64_t last, int64_t row_base, *, body, rows=None, tags=None,
        keys=None, properties=None, msg_id=None, flag=None,
    ):
        """Write the batch elements of rows ``first`` … ``last - 1`` to the start of ``out``.

        out         writable buffer, not kept
        max_bytes   the batch ends before the row that would make it longer; the first row is taken as long as it fits
                    ``out``
        row_base    number of the columns' row 0 among all rows of this writer; it goes into UNIQ_KEY and into errors
        rows        int64 positions in the columns, which ``first`` and ``last`` then count; None: the rows in order
        body        string or binary column, not null, not empty
        tags, keys  string columns; null or empty: none. A row's value stands after the constant one and wins
        properties  string column of property text, taken as it is; a missing last separator is added
        msg_id      string column; its values replace the generated UNIQ_KEY where they are not null
        flag        int32 or int64 column, null is 0
        returns     (rows done, bytes written)
        raises      MessageIllegal naming the row if row ``first`` cannot be sent, ValueError for columns of a wrong
                    type or length. GIL released
        """
        cdef RowSource source
        cdef Py_buffer target, positions
        cdef int64_t done = 0, written = 0, length
        cdef RowStatus status = ROW_OK
        cdef tuple owners
        owners = (take_text(body, "body", -1, &source.body),)
        if owners[0] is None:
            raise ValueError("the column body is needed")
        length = source.body.length
        owners += (
            take_text(tags, "tags", length, &source.tags),
            take_text(keys, "keys", length, &source.keys),
            take_text(properties, "properties", length, &source.properties),
            take_text(msg_id, "msg_id", length, &source.msg_id),
            take_numbers(flag, "flag", length, &source.flag),
        )
        source.rows = NULL
        source.row_base = row_base
        source.max_body = self._max_body
        source.template = <const uint8_t*>PyBytes_AS_STRING(self._template)
        source.template_length = PyBytes_GET_SIZE(self._template)
        PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if rows is not None:
                take_positions(rows, &positions)
                source.rows = <const int64_t*>positions.buf
                length = positions.shape[0]
            try:
                if first < 0 or last < first or last > length:
                    raise ValueError(f"rows {first}:{last} are not within the {length} given")
                with nogil:
                    done = put_rows(
                        &source, first, last, <uint8_t*>target.buf, target.len, max_bytes, &status, &written
                    )
                if done == 0 and status != ROW_OK:
                    row = row_base + (source.rows[first] if source.rows != NULL else first)
                    reason = _ROW_REASONS[status].format(written, target.len)
                    raise MessageIllegal(f"row {row}: {reason}")
            finally:
                if rows is not None:
                    PyBuffer_Release(&positions)
        finally:
            PyBuffer_Release(&target)
        return done, written


# What is wrong with a property text, beside the offsets of its column.
cdef enum TextStatus:
    TEXT_OK
    TEXT_OFFSETS
    TEXT_FORM
    TEXT_NAME
    TEXT_VALUE
    TEXT_RESERVED

_TEXT_REASONS = {
    TEXT_OFFSETS: "the offsets of a column run backwards",
    TEXT_FORM: "the properties are no entries of name, U+0001, value, U+0002; give a map column",
    TEXT_NAME: "a property has no name",
    TEXT_VALUE: "property {!r} has no value",
    TEXT_RESERVED: "property {!r} is reserved by RocketMQ",
}


cdef TextStatus check_entries(
    const Slice* text, const Slice* reserved, Py_ssize_t reserved_count, Slice* name
) noexcept nogil:
    """Look at each entry of a property text; the last separator may be missing. ``name`` is that of a bad entry."""
    cdef const uint8_t* at = text.start
    cdef const uint8_t* end = at + text.length
    cdef const uint8_t* middle
    cdef const uint8_t* stop
    cdef Py_ssize_t i
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        middle = <const uint8_t*>memchr(at, 1, stop - at)
        if middle == NULL or memchr(middle + 1, 1, stop - middle - 1) != NULL:
            return TEXT_FORM
        name.start = at
        name.length = middle - at
        if name.length == 0:
            return TEXT_NAME
        if middle + 1 == stop:
            return TEXT_VALUE
        for i in range(reserved_count):
            if reserved[i].length == name.length and memcmp(reserved[i].start, name.start, name.length) == 0:
                return TEXT_RESERVED
        at = stop + 1
    return TEXT_OK


def check_property_texts(column, tuple reserved not None, int64_t row_base):
    """Refuse property texts that a user wrote and that do not say what they seem to.

    column    string column; null and empty are fine
    reserved  names, as UTF-8, that a user may not set
    row_base  number of the column's row 0, for the error
    raises    MessageIllegal naming the first row at fault, ValueError for a column of another type. GIL released
    """
    cdef Text text
    cdef Slice found, name
    cdef Slice names[MOST_RESERVED]
    cdef Py_ssize_t count = len(reserved), i
    cdef int64_t row = 0
    cdef TextStatus status = TEXT_OK
    cdef tuple owners = take_text(column, "properties", -1, &text)
    if owners is None or count > MOST_RESERVED:
        raise ValueError(f"a column and at most {MOST_RESERVED} names are needed")
    for i in range(count):
        names[i].start = <const uint8_t*>PyBytes_AS_STRING(reserved[i])
        names[i].length = PyBytes_GET_SIZE(reserved[i])
    name.start = NULL
    name.length = 0
    with nogil:
        while row < text.length:
            if text_at(&text, row, &found) != ROW_OK:
                status = TEXT_OFFSETS
            elif found.length > 0:
                status = check_entries(&found, names, count, &name)
            if status != TEXT_OK:
                break
            row += 1
    if status != TEXT_OK:
        shown = name.start[:name.length].decode(errors="replace") if name.length else ""
        raise MessageIllegal(f"row {row_base + row}: {_TEXT_REASONS[status].format(shown)}")


cdef int take_positions(object rows, Py_buffer* view) except -1:
    PyObject_GetBuffer(rows, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    if view.ndim == 1 and is_int64(view):
        return 0
    PyBuffer_Release(view)
    raise ValueError("rows is a contiguous int64 array")


# ----------------------------------------------------------------------------------------------- messages to columns

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

cdef enum Outcome:
    APPENDED = 0
    LIMIT = 1
    TOO_MUCH = 2
    NO_MEMORY = 3
    PACKED = 4  # a compressed body is next
    FULL = 5
    # Below 0: a Status, the record is bad.


cdef struct Bytes:
    uint8_t* data
    int64_t length
    int64_t capacity


cdef struct Column:
    bint wanted
    bint has_null
    Bytes data
    Bytes offsets
    Bytes validity


cdef struct Table:
    Column columns[COLUMN_COUNT]
    Bytes map_offsets
    Bytes pairs  # rc_property[], those of the row at hand
    int64_t rows
    int64_t row_capacity
    int64_t entry_capacity
    int64_t last_queue_offset
    int64_t gathered  # bytes of the messages, unpacked; bodies only if they are wanted
    bint wants_properties


cdef int ensure(Bytes* buffer, int64_t capacity) noexcept nogil:
    cdef uint8_t* data
    if capacity > buffer.capacity:
        data = <uint8_t*>realloc(buffer.data, capacity)
        if data == NULL:
            return NO_MEMORY
        buffer.data = data
        buffer.capacity = capacity
    return APPENDED


cdef inline int reserve(Bytes* buffer, int64_t more) noexcept nogil:
    """Make room for ``more`` bytes of text; Arrow's int32 offsets end a column at 2 GiB."""
    cdef int64_t wanted = buffer.length + more
    if wanted <= buffer.capacity:
        return APPENDED
    if wanted > INT32_MAX:
        return TOO_MUCH
    return ensure(buffer, wanted if wanted > 2 * buffer.capacity else 2 * buffer.capacity)


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


cdef inline uint8_t* put_utf8(uint8_t* at, uint32_t code_point) noexcept nogil:
    if code_point < 0x80:
        return rc_put_u8(at, <uint8_t>code_point)
    if code_point < 0x800:
        at = rc_put_u8(at, <uint8_t>(0xC0 | code_point >> 6))
    else:
        if code_point < 0x10000:
            at = rc_put_u8(at, <uint8_t>(0xE0 | code_point >> 12))
        else:
            at = rc_put_u8(at, <uint8_t>(0xF0 | code_point >> 18))
            at = rc_put_u8(at, <uint8_t>(0x80 | (code_point >> 12 & 0x3F)))
        at = rc_put_u8(at, <uint8_t>(0x80 | (code_point >> 6 & 0x3F)))
    return rc_put_u8(at, <uint8_t>(0x80 | (code_point & 0x3F)))


cdef int append_replaced(Bytes* buffer, const uint8_t* text, int64_t length) noexcept nogil:
    """Append text that is not UTF-8, each malformed piece as U+FFFD: up to three bytes for one."""
    cdef const uint8_t* end = text + length
    cdef uint8_t* at
    cdef uint32_t code_point
    cdef int outcome = reserve(buffer, 3 * length)
    if outcome:
        return outcome
    at = buffer.data + buffer.length
    while text < end:
        text += rc_java_utf8(text, end, &code_point)
        at = put_utf8(at, code_point)
    buffer.length = at - buffer.data
    return APPENDED


cdef inline int append_bytes(Bytes* buffer, const uint8_t* data, int64_t length) noexcept nogil:
    cdef int outcome = reserve(buffer, length)
    if outcome:
        return outcome
    rc_put_bytes(buffer.data + buffer.length, data, length)
    buffer.length += length
    return APPENDED


cdef inline bint is_ascii(const uint8_t* text, int64_t length) noexcept nogil:
    """Eight bytes at a time, the last eight perhaps twice: texts are short, a loop over their end costs more."""
    cdef uint64_t found = 0, eight
    cdef int64_t i = 0
    if length < 8:
        for i in range(length):
            found |= text[i]
        return found < 0x80
    while i < length - 8:
        memcpy(&eight, text + i, 8)
        found |= eight
        i += 8
    memcpy(&eight, text + length - 8, 8)
    return (found | eight) & <uint64_t>0x8080808080808080 == 0


cdef inline int append_text(Bytes* buffer, const uint8_t* text, int64_t length) noexcept nogil:
    if is_ascii(text, length) or rc_is_utf8(text, length):
        return append_bytes(buffer, text, length)
    return append_replaced(buffer, text, length)


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
    cdef uint8_t* at
    cdef int64_t i
    cdef int outcome = reserve(buffer, 2 * width + 16)
    if outcome:
        return outcome
    at = buffer.data + buffer.length
    for i in range(0, width, 4):
        at = put_hex_32(at, <uint32_t>rc_get_i32(data + record[STORE_HOST] + i))
    at = put_hex_32(at, <uint32_t>(<uint64_t>record[PHYSICAL_OFFSET] >> 32))
    put_hex_32(at, <uint32_t>record[PHYSICAL_OFFSET])
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
    """Note a pair for the map of this row; a name seen before takes the new value, as the last one wins."""
    cdef rc_property* pairs = <rc_property*>table.pairs.data
    cdef int64_t i, count = table.pairs.length // <int64_t>sizeof(rc_property)
    cdef int outcome
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


cdef int append_map(Table* table) noexcept nogil:
    cdef rc_property* pairs = <rc_property*>table.pairs.data
    cdef int64_t i, count = table.pairs.length // <int64_t>sizeof(rc_property)
    cdef int64_t entries = (<int32_t*>table.map_offsets.data)[table.rows]
    cdef Column* keys = &table.columns[MAP_KEYS]
    cdef Column* items = &table.columns[MAP_ITEMS]
    cdef int outcome
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
    """Append a value, or null if ``text`` is NULL, and its validity bit."""
    cdef Column* column = &table.columns[place]
    cdef uint8_t* byte = column.validity.data + (table.rows >> 3)
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
    cdef rc_property found
    cdef Slice tags, keys, key
    cdef int outcome
    tags.start = keys.start = key.start = NULL
    tags.length = keys.length = key.length = 0
    table.pairs.length = 0
    while rc_next_property(&reader, &found):
        if found.name_length == 4:
            if memcmp(found.name, b"TAGS", 4) == 0:
                tags.start = found.value
                tags.length = found.value_length
            elif memcmp(found.name, b"KEYS", 4) == 0:
                keys.start = found.value
                keys.length = found.value_length
        elif named(&found, b"UNIQ_KEY", 8):
            key.start = found.value
            key.length = found.value_length
        if wants_map:
            outcome = collect_pair(table, &found)
            if outcome:
                return outcome
    if table.columns[TAGS].wanted:
        outcome = append_optional(table, TAGS, tags.start, tags.length)
        if outcome:
            return outcome
    if table.columns[KEYS].wanted:
        outcome = append_optional(table, KEYS, keys.start, keys.length)
        if outcome:
            return outcome
    if table.columns[MSG_ID].wanted:
        if key.start != NULL:
            outcome = append_text(&table.columns[MSG_ID].data, key.start, key.length)
        else:
            outcome = append_id(&table.columns[MSG_ID].data, data, record)
        if outcome:
            return outcome
    return append_map(table) if wants_map else APPENDED


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


cdef int append_loop(
    Table* table, const uint8_t* data, int64_t start, int64_t end, bint limited, int64_t limit, bint check_crc,
    int64_t most, bint unpack, int64_t* record, int64_t* position,
) noexcept nogil:
    """Append up to ``most`` gathered bytes; with ``unpack`` stop before a compressed body, whose message is ``record``.
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
        # As in Java no body is none to unpack, whatever the flag says.
        if unpack and record[SYS_FLAG] & 1 and record[BODY_LENGTH]:
            outcome = PACKED
            break
        outcome = append_record(table, data, record, data + record[BODY_START], record[BODY_LENGTH])
        if outcome:
            break
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
    unpack    ``(memoryview of a body, sys_flag) -> bytes`` for compressed bodies; None: they stay as they are
    raises    ValueError for an unknown name
    Not for use by several threads at once: ``append`` releases the GIL.
    """

    cdef Table _table
    cdef tuple _names
    cdef object _unpack

    def __init__(self, columns, unpack=None):
        self._names = tuple(columns)
        self._unpack = unpack
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

    def append(
        self, data, Py_ssize_t start, Py_ssize_t end, limit_offset=None, bint check_crc=False, int64_t most=INT64_MAX
    ):
        """Append the stored messages in ``data[start:end]``, as a pull reply holds them.

        data          bytes-like, read only, not kept: everything is copied, once
        limit_offset  stop at the first message whose queue offset is at least this; None takes all
        check_crc     compare each body with its CRC
        most          stop when ``gathered_bytes`` has reached this
        returns       (rows, position): messages appended, and the first byte not consumed. If it is not ``end``, a
                      limit was reached, a column is full (2 GiB), or the record there is bad
        raises        DecodeError, BadMagic or BadChecksum if the *first* record is bad; what ``unpack`` raises, which
                      is then the next record's; MemoryError. GIL released but in ``unpack``
        """
        cdef Py_buffer source
        cdef int64_t record[STORED_COLUMNS]
        cdef int64_t position = start, before = self._table.rows, limit = 0
        cdef bint limited = limit_offset is not None
        cdef int outcome = APPENDED
        if limited:
            limit = limit_offset
        take_bytes(data, &source)
        try:
            take_range(&source, start, end)
            if self._table.columns[BODY].wanted:
                outcome = reserve(&self._table.columns[BODY].data, end - start)
            while outcome != NO_MEMORY:
                with nogil:
                    outcome = append_loop(
                        &self._table, <const uint8_t*>source.buf, position, end, limited, limit, check_crc, most,
                        self._unpack is not None and self._table.columns[BODY].wanted, record, &position,
                    )
                if outcome != PACKED:
                    break
                outcome = self._append_packed(data, <const uint8_t*>source.buf, record)
                if outcome:
                    break
                position += record[TOTAL_SIZE]
        finally:
            PyBuffer_Release(&source)
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
