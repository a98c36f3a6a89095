"""A command in a receive buffer: its head at once, everything else when it is asked for.

Most requests are answered from the typed fields of their header alone. ``read_fields`` fills those of any header class
from the bytes, by a table that the class compiles once; the map of the ext fields, with a text for each name and value,
is only made for who wants the map.

Usual here is a header whose declared fields come once each, and whose numbers parse. The rest is left to
``Header.from_ext_fields``, which gives the same values for the usual and words all errors.

RocketMQ  remoting/protocol/RemotingCommand.java ``decodeCommandCustomHeader`` 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_rows, give_back
from rocketcore._fast.command cimport Text, is_text, next_binary_entry, next_json_entry, rc_get_decimal, text_str
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
    LANGUAGE,
    OPAQUE,
    SERIALIZE_TYPE,
    STATUS,
    VERSION,
    ext_in,
    row_in,
)
from rocketcore._fast.status cimport OK
from rocketcore._fast.text cimport is_true

from rocketcore._fast.command import read


cdef enum:
    FIELDS_MAX = 64  # one bit each says which were seen

cdef enum Kind:
    INT
    LONG
    BOOL
    TEXT
    OTHER

_KINDS = {"int": <int>INT, "Long": <int>LONG, "bool": <int>BOOL, "str": <int>TEXT}


# One declared field; ``name`` belongs to the table's ``_wire_names``.
cdef struct Field:
    const char* name
    Py_ssize_t length
    int kind


cdef class FieldTable:
    """The fields of one header class.

    fields      (wire name, attribute, kind, required) of each, at most 64: kind is "int" (32 bits), "Long" (64),
                "bool", "str" or anything else, which only the general reader reads
    stand_ins   values of those that a peer may leave out though they are required
    """

    cdef Field* _fields
    cdef int _count
    cdef uint64_t _required
    cdef tuple _wire_names
    cdef tuple _attributes
    cdef dict _stand_ins

    def __init__(self, tuple fields not None, dict stand_ins not None):
        if len(fields) > FIELDS_MAX:
            raise ValueError(f"{len(fields)} fields, at most {FIELDS_MAX} fit a table")
        if self._fields != NULL:
            raise TypeError("a table is filled once")
        self._fields = <Field*>PyMem_Calloc(max(len(fields), 1), sizeof(Field))
        if self._fields == NULL:
            raise MemoryError
        self._wire_names = tuple([wire_name.encode() for wire_name, _, _, _ in fields])
        self._attributes = tuple([attribute for _, attribute, _, _ in fields])
        self._stand_ins = stand_ins
        for index, (_, attribute, kind, required) in enumerate(fields):
            self._fields[index].name = <bytes>self._wire_names[index]
            self._fields[index].length = len(<bytes>self._wire_names[index])
            self._fields[index].kind = _KINDS.get(kind, <int>OTHER)
            if required and attribute not in stand_ins:
                self._required |= <uint64_t>1 << <int>index
        self._count = <int>len(fields)

    def __dealloc__(self):
        PyMem_Free(self._fields)


cdef class Received:
    """A command whose remark, ext fields and body may still be in the bytes that were received.

    All of those are kept alive until ``detach`` or ``drop``.
    """

    cdef public int32_t code
    cdef public int32_t language
    cdef public int32_t version
    cdef public int32_t opaque
    cdef public int32_t flag
    cdef public int32_t serialize_type
    cdef object _remark
    cdef object _ext_fields
    cdef object _body
    cdef bytes _data  # None where nothing is unread
    cdef bint _texts_unread
    cdef Py_ssize_t _header_start
    cdef Py_ssize_t _header_length
    cdef Py_ssize_t _ext_start
    cdef Py_ssize_t _ext_end
    cdef Py_ssize_t _body_start
    cdef Py_ssize_t _body_length

    @property
    def remark(self):
        if self._texts_unread:
            self._read_texts()
        return self._remark

    @remark.setter
    def remark(self, value):
        if self._texts_unread:
            self._read_texts()
        self._remark = value

    @property
    def ext_fields(self):
        if self._texts_unread:
            self._read_texts()
        return self._ext_fields

    @ext_fields.setter
    def ext_fields(self, value):
        if self._texts_unread:
            self._read_texts()
        self._ext_fields = value

    @property
    def body(self):
        if self._body is None:
            if self._data is None:
                return b""
            self._body = self._data[self._body_start:self._body_start + self._body_length]
            # What is unread from here on is the header, and a long body need not be in memory twice.
            self._body_start = self._header_start + self._header_length
            self._body_length = 0
            self.detach()
        return self._body

    @body.setter
    def body(self, value):
        self._body = value

    def view_body(self):
        """Return the body as a memoryview, without a copy; it keeps alive all bytes that came with the command."""
        if self._body is None and self._data is not None:
            return memoryview(self._data)[self._body_start:self._body_start + self._body_length]
        return memoryview(self.body)

    cdef int _read_texts(self) except -1:
        """Make what ``ext_fields`` and ``remark`` are; from then on the map says what the header is."""
        _, _, _, _, _, self._remark, self._ext_fields = read(
            self._data, self._header_start, self._header_length, self.serialize_type
        )
        self._texts_unread = False
        return 0

    def detach(self):
        """Keep no more of the received bytes alive than twice what is unread of the command."""
        cdef Py_ssize_t start = self._header_start, end = self._body_start + self._body_length
        if self._data is None or 2 * (end - start) >= len(self._data):
            return
        self._data = self._data[start:end]
        self._header_start = 0
        self._ext_start -= start
        self._ext_end -= start
        self._body_start -= start

    def drop(self):
        """Let go of the received bytes; what was not read of remark, ext fields and body is None, None and empty."""
        self._texts_unread = False
        if self._body is None:
            self._body = b""
        self._data = None


def take(type kind not None, bytes data not None, rows, heads, Py_ssize_t index, general):
    """Return the command of one row, as an instance of ``kind`` that was not initialised.

    kind        a subclass of ``Received``
    rows, heads what ``read_frames`` filled from ``data``; not kept
    general     (header, position) → what ``command.read`` returns; for the JSON that this one does not read
    raises      DecodeError for a broken header, IndexError for a row that is not there, ValueError for one that is not
                of this data
    """
    cdef Borrowed held
    cdef const int64_t* row
    cdef const int64_t* head
    cdef Py_ssize_t length = len(data), start, end
    cdef Received command = kind.__new__(kind)
    held.count = 0
    try:
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        if index < 0 or index >= frames.shape[0] or index >= table.shape[0]:
            raise IndexError(f"row {index}, but the tables have {frames.shape[0]} and {table.shape[0]}")
        row = <const int64_t*>frames.buf + index * FRAME_COLUMNS
        head = <const int64_t*>table.buf + index * HEAD_COLUMNS
        if not row_in(row, length) or row[HEADER_START] + row[HEADER_LENGTH] > row[BODY_START]:
            raise ValueError(f"row {index} is not within the {length} bytes of data")
        start = row[HEADER_START]
        end = start + row[HEADER_LENGTH]
        command.serialize_type = <int32_t>row[SERIALIZE_TYPE]
        command._data = data
        command._header_start = command._ext_start = command._ext_end = start
        command._header_length = row[HEADER_LENGTH]
        command._body_start = row[BODY_START]
        command._body_length = row[BODY_LENGTH]
        if head[STATUS] == 0:
            if head[EXT_END] != 0:
                if not ext_in(row, head):
                    raise ValueError(f"the ext fields of row {index} are not within its header")
                command._ext_start = head[EXT_START]
                command._ext_end = head[EXT_END]
            command.code = <int32_t>head[CODE]
            command.language = <int32_t>head[LANGUAGE]
            command.version = <int32_t>head[VERSION]
            command.opaque = <int32_t>head[OPAQUE]
            command.flag = <int32_t>head[FLAG]
            command._texts_unread = True
            return command
    finally:
        give_back(&held)
    values = read(data, start, end - start, command.serialize_type) or general(data[start:end], start)
    (
        command.code, command.language, command.version, command.opaque, command.flag,
        command._remark, command._ext_fields,
    ) = values
    return command


cdef inline int find_field(FieldTable table, const Text* key, int first) noexcept:
    """Which field a key names, −1 for none; they are tried from ``first`` on, as most writers keep an order."""
    cdef Py_ssize_t length = key.end - key.start
    cdef int index = first
    cdef const Field* field
    for _ in range(table._count):
        if index >= table._count:
            index = 0
        field = &table._fields[index]
        if field.length == length and memcmp(field.name, key.start, length) == 0:
            return index
        index += 1
    return -1


cdef inline object value_of(int kind, const Text* text):
    """The value that a text is, None where the general reader has to say."""
    cdef int64_t number
    cdef Py_ssize_t length = text.end - text.start
    if kind == TEXT:
        return text_str(text)
    if text.escaped or kind == OTHER:
        return None
    if kind == BOOL:
        return is_true(text.start, length)
    if kind == INT:
        return number if rc_get_decimal(text.start, text.end, INT32_MIN, INT32_MAX, &number) else None
    return number if rc_get_decimal(text.start, text.end, INT64_MIN, INT64_MAX, &number) else None


def read_fields(Received command not None, FieldTable table not None):
    """Return the values of a header's fields by attribute; None where the ext fields have to be read as a map.

    A field that is absent is not in it, unless it has a stand-in. Fields that the table does not know are passed over.
    """
    cdef const uint8_t* data
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* header_end
    cdef Text key, text
    cdef int index = -1, first
    cdef uint64_t seen = 0
    cdef bint binary = command.serialize_type == BINARY
    cdef dict values
    cdef object value
    if not command._texts_unread:
        return None
    values = table._stand_ins.copy()
    data = command._data
    at = data + command._ext_start
    end = data + command._ext_end
    header_end = data + command._header_start + command._header_length
    while at < end:
        if binary:
            if next_binary_entry(&at, header_end, &key, &text) != OK:
                return None
        elif next_json_entry(&at, end, &key, &text) != 1 or key.escaped:
            return None
        first = index + 1
        index = find_field(table, &key, first)
        if index < 0:
            index = first - 1
            continue
        if seen >> index & 1:
            return None
        seen |= <uint64_t>1 << index
        if binary and text.start == text.end:
            # Java's null: as if it were not there.
            if table._required >> index & 1:
                return None
            continue
        value = value_of(table._fields[index].kind, &text)
        if value is None:
            return None
        values[<str>table._attributes[index]] = value
    return values if seen & table._required == table._required else None


def set_apart(bytes data not None, rows, heads, Py_ssize_t index, bytes first not None, bytes second not None):
    """Return a request without two numbers that change from one to the next, and what changes with each.

    What is decided of one request holds for every other with the same rest: its code and version, and its ext fields
    but for the values of ``first`` and ``second``, byte for byte.

    rows, heads  what ``read_frames`` filled from ``data``; not kept
    returns      (rest, first number, second number, opaque, serialize type); None for a request that has to be looked
                 at as a whole: it is one-way or unusual, has a body, or lacks one of the numbers or has it twice
    raises       IndexError for a row that is not there, ValueError for one that is not of this data
    """
    cdef Borrowed held
    cdef const int64_t* row
    cdef const int64_t* head
    cdef Py_ssize_t length = len(data)
    held.count = 0
    try:
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        if index < 0 or index >= frames.shape[0] or index >= table.shape[0]:
            raise IndexError(f"row {index}, but the tables have {frames.shape[0]} and {table.shape[0]}")
        row = <const int64_t*>frames.buf + index * FRAME_COLUMNS
        head = <const int64_t*>table.buf + index * HEAD_COLUMNS
        if not row_in(row, length) or (head[EXT_END] != 0 and not ext_in(row, head)):
            raise ValueError(f"row {index} is not within the {length} bytes of data")
        return rest_of(data, row, head, first, second)
    finally:
        give_back(&held)


cdef object rest_of(const uint8_t* data, const int64_t* row, const int64_t* head, bytes first, bytes second):
    cdef const uint8_t* start = data + head[EXT_START]
    cdef const uint8_t* end = data + head[EXT_END]
    cdef const uint8_t* header_end = data + row[HEADER_START] + row[HEADER_LENGTH]
    cdef const uint8_t* at = start
    cdef const uint8_t* cuts[4]
    cdef int64_t numbers[2]
    cdef int32_t kept[2]
    cdef Text key, text
    cdef bint binary = row[SERIALIZE_TYPE] == BINARY
    cdef int which, cut, found = 0
    cdef bytes rest
    cdef uint8_t* out
    if head[STATUS] != 0 or head[FLAG] != 0 or head[EXT_END] == 0 or row[BODY_LENGTH] != 0:
        return None
    while at < end:
        if binary:
            if next_binary_entry(&at, header_end, &key, &text) != OK:
                return None
        elif next_json_entry(&at, end, &key, &text) != 1 or key.escaped:
            return None
        if is_text(&key, <const char*>first, len(first)):
            which = 0
        elif is_text(&key, <const char*>second, len(second)):
            which = 1
        else:
            continue
        if found >> which & 1 or not rc_get_decimal(text.start, text.end, INT64_MIN, INT64_MAX, &numbers[which]):
            return None
        cut = 2 if found else 0  # cuts lie in the order in which the fields came
        cuts[cut], cuts[cut + 1] = text.start - (4 if binary else 0), text.end  # with the length word before it
        found |= 1 << which
    if found != 3:
        return None
    kept[0], kept[1] = <int32_t>head[CODE], <int32_t>head[VERSION]
    rest = PyBytes_FromStringAndSize(NULL, sizeof(kept) + (end - start) - (cuts[1] - cuts[0]) - (cuts[3] - cuts[2]))
    out = <uint8_t*>PyBytes_AS_STRING(rest)
    memcpy(out, kept, sizeof(kept))
    out += sizeof(kept)
    memcpy(out, start, cuts[0] - start)
    out += cuts[0] - start
    memcpy(out, cuts[1], cuts[2] - cuts[1])
    out += cuts[2] - cuts[1]
    memcpy(out, cuts[3], end - cuts[3])
    return rest, numbers[0], numbers[1], head[OPAQUE], row[SERIALIZE_TYPE]
