"""Arrow columns to the elements of client batches, without a Python object per row.

In       anything that exports the Arrow PyCapsule Interface (pyarrow.Array and others): string, binary, their large
         forms, int32 and int64. Offsets and validity are read as the Arrow columnar format states them
Out      elements as ``batch.encode_batch`` writes them, one behind the other in a caller's buffer
RocketMQ common/message/MessageDecoder.java (encodeMessages)
"""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, INT32_MIN, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcmp, memset, strchr

from rocketcore._fast.batch cimport ELEMENT_FIXED_SIZE, put_element_head
from rocketcore._fast.buffers cimport Borrowed, borrow, borrow_room, give_back, is_int64
from rocketcore._fast.message_id cimport put_hex
from rocketcore._fast.record cimport PROPERTIES_MAX, rc_put_16, rc_put_32, rc_put_bytes, rc_put_u8

from rocketcore.errors import MessageIllegal

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

cdef enum:
    NAME_SIZE = 9  # UNIQ_KEY U+0001
    KEY_SIZE = 32
    UNIQ_SIZE = NAME_SIZE + KEY_SIZE + 1
    COUNTER_DIGITS = 8
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
    ROW_BODY_TOO_LONG: "the body is larger than {2} bytes, the most that a message may have",
    ROW_TAGS: "tags hold a separator character (U+0001 or U+0002)",
    ROW_KEYS: "keys hold a separator character (U+0001 or U+0002)",
    ROW_MSG_ID: "the message id holds a separator character (U+0001 or U+0002)",
    ROW_FLAG: "the flag is no int32",
    ROW_PROPERTIES_TOO_LONG: f"the properties are longer than {PROPERTIES_MAX} bytes",
    ROW_NO_ROOM: "the message takes {} bytes in a request, {} are allowed",
}


# An Arrow column of texts, with ``narrow`` or ``wide`` offsets into ``data``, or of such numbers; ``length`` 0: absent.
cdef struct Column:
    const uint8_t* validity
    const int32_t* narrow
    const int64_t* wide
    const uint8_t* data
    int64_t offset
    int64_t length


cdef struct Slice:
    const uint8_t* start
    int64_t length  # -1: null


cdef struct RowSource:
    Column body
    Column tags
    Column keys
    Column properties
    Column msg_id
    Column flag
    const int64_t* rows
    int64_t row_base
    int64_t max_body
    const uint8_t* template
    int64_t template_length


cdef inline bint is_null(const uint8_t* validity, int64_t at) noexcept nogil:
    return validity != NULL and not (validity[at >> 3] >> (at & 7)) & 1


cdef inline RowStatus text_at(const Column* column, int64_t row, Slice* found) noexcept nogil:
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


cdef inline RowStatus put_row(
    const RowSource* source, int64_t index, uint8_t* out, int64_t room, int64_t* size
) noexcept nogil:
    """Write the batch element of one row if it fits in ``room`` bytes; ``size`` is set in either case."""
    cdef int64_t row = source.rows[index] if source.rows != NULL else index
    cdef int64_t number = source.row_base + row
    cdef int64_t properties_length, flag = 0
    cdef Slice body, tags, keys, properties, msg_id
    cdef RowStatus status
    cdef bint open_end = False
    cdef uint8_t counter[4]
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
    at = put_element_head(out, size[0], <int32_t>flag, body.length)
    at = rc_put_bytes(at, body.start, body.length)
    at = rc_put_16(at, <uint16_t>properties_length)
    if msg_id.length > 0:
        at = put_property(at, b"UNIQ_KEY\x01", NAME_SIZE, &msg_id)
    else:
        # A length that the compiler knows: two moves in place of a call.
        at = rc_put_bytes(at, source.template, UNIQ_SIZE)
        rc_put_32(counter, <uint32_t>number)
        put_hex(at - 1 - COUNTER_DIGITS, counter, 4)
    if source.template_length > UNIQ_SIZE:
        at = rc_put_bytes(at, source.template + UNIQ_SIZE, source.template_length - UNIQ_SIZE)
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
    RowStatus* status, int64_t* used,
) noexcept nogil:
    """``used`` is what ``out`` holds; where not even one row has room in all of it, what that row would take."""
    cdef int64_t index = first, size = 0, held = used[0]
    status[0] = ROW_OK
    while index < last and (held == 0 or held < max_bytes):
        status[0] = put_row(
            source, index, out + held, (capacity if held == 0 or capacity < max_bytes else max_bytes) - held, &size
        )
        if status[0] != ROW_OK:
            break
        held += size
        index += 1
    if status[0] == ROW_NO_ROOM:
        if held == 0:
            held = size
        else:
            status[0] = ROW_OK
    used[0] = held
    return index - first


cdef tuple take_column(object column, str name, bint text, int64_t length, Column* taken):
    """Fill ``taken`` from a column of texts or of numbers; ``length`` is what it must have, -1 for any.

    returns  the capsules, which own what ``taken`` refers to; None for an absent column, which stays empty
    """
    cdef rc_arrow_schema* schema
    cdef rc_arrow_array* array
    cdef tuple capsules
    memset(taken, 0, sizeof(Column))
    if column is None:
        return None
    capsules = column.__arrow_c_array__()
    schema = <rc_arrow_schema*>PyCapsule_GetPointer(capsules[0], "arrow_schema")
    array = <rc_arrow_array*>PyCapsule_GetPointer(capsules[1], "arrow_array")
    if schema.dictionary != NULL:
        raise ValueError("a dictionary-encoded column has to be decoded first")
    if length >= 0 and array.length != length:
        raise ValueError(f"column {name} has {array.length} rows, body has {length}")
    if text and array.length == 0:
        return capsules
    if is_format(schema, b"uz" if text else b"i"):
        taken.narrow = <const int32_t*>array.buffers[1]
    elif is_format(schema, b"UZ" if text else b"l"):
        taken.wide = <const int64_t*>array.buffers[1]
    else:
        needed = "string or binary" if text else "int32 or int64"
        raise ValueError(f"column {name} has Arrow format {schema.format.decode()!r}, {needed} is needed")
    taken.validity = <const uint8_t*>array.buffers[0]
    taken.data = <const uint8_t*>array.buffers[2] if text else NULL
    taken.offset = array.offset
    taken.length = array.length
    return capsules


cdef inline bint is_format(const rc_arrow_schema* schema, const char* letters) noexcept:
    return schema.format[0] != 0 and schema.format[1] == 0 and strchr(letters, schema.format[0]) != NULL


@cython.auto_pickle(False)
@cython.final
cdef class BatchEncoder:
    """Lays rows out as the elements of client batches (wire format: ``batch.encode_batch``).

    write_id, partition  64 and 32 bits: with the row's number (32 bits) they make the UNIQ_KEY, 32 upper-case hex
                         digits, so that the same row sent again has the same id
    tags, keys           of every row, as UTF-8; a column of the same name adds its own where it is not null
    properties           property text added to every row. WAIT is not among them: whether a batch waits for the flush
                         is said by its request, and brokers look at no element's
    max_body             longest body in bytes
    raises               ValueError for constants with separators or numbers out of range
    """

    cdef bytes _template
    cdef int64_t _max_body

    def __init__(
        self, *, write_id, partition, bytes tags not None=b"", bytes keys not None=b"", bytes properties not None=b"",
        int64_t max_body=4194304,
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
            b"TAGS\x01%b\x02" % tags if tags else b"",
            b"KEYS\x01%b\x02" % keys if keys else b"",
            properties,
        ))
        if len(self._template) > PROPERTIES_MAX:
            raise ValueError(f"the constant properties are longer than {PROPERTIES_MAX} bytes")

    def encode(
        self, out, int64_t max_bytes, int64_t first, int64_t last, int64_t row_base, *, body, rows=None, tags=None,
        keys=None, properties=None, msg_id=None, flag=None, int64_t used=0,
    ):
        """Write the batch elements of rows ``first`` … ``last - 1`` into ``out``.

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
        used        bytes of a batch that ``out`` begins with, which these rows continue
        returns     (rows done, bytes of the batch); no row where the batch is too full for the first
        raises      MessageIllegal naming the row if row ``first`` cannot be sent, ValueError for columns of a wrong
                    type or length. GIL released
        """
        cdef RowSource source
        cdef Borrowed held
        cdef int64_t done = 0, length
        cdef RowStatus status = ROW_OK
        cdef tuple owners = (take_column(body, "body", True, -1, &source.body),)
        if owners[0] is None:
            raise ValueError("the column body is needed")
        length = source.body.length
        owners += (
            take_column(tags, "tags", True, length, &source.tags),
            take_column(keys, "keys", True, length, &source.keys),
            take_column(properties, "properties", True, length, &source.properties),
            take_column(msg_id, "msg_id", True, length, &source.msg_id),
            take_column(flag, "flag", False, length, &source.flag),
        )
        source.rows = NULL
        source.row_base = row_base
        source.max_body = self._max_body
        source.template = <const uint8_t*>PyBytes_AS_STRING(self._template)
        source.template_length = PyBytes_GET_SIZE(self._template)
        held.count = 0
        try:
            target = borrow_room(&held, out)
            if rows is not None:
                positions = borrow(&held, rows, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
                if positions.ndim != 1 or not is_int64(positions):
                    raise ValueError("rows is a contiguous int64 array")
                source.rows = <const int64_t*>positions.buf
                length = positions.shape[0]
            if first < 0 or last < first or last > length:
                raise ValueError(f"rows {first}:{last} are not within the {length} given")
            if not 0 <= used <= target.len:
                raise ValueError(f"{used} bytes are used of {target.len}")
            with nogil:
                done = put_rows(&source, first, last, <uint8_t*>target.buf, target.len, max_bytes, &status, &used)
            if done == 0 and status != ROW_OK:
                row = row_base + (source.rows[first] if source.rows != NULL else first)
                reason = _ROW_REASONS[status].format(used, target.len, self._max_body)
                raise MessageIllegal(f"row {row}: {reason}")
        finally:
            give_back(&held)
        return done, used


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
    cdef Column text
    cdef Slice found, name
    cdef Slice names[MOST_RESERVED]
    cdef Py_ssize_t count = len(reserved), i
    cdef int64_t row = 0
    cdef TextStatus status = TEXT_OK
    cdef tuple owners = take_column(column, "properties", True, -1, &text)
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
