"""Command headers, JSON and binary, read straight from bytes into columns and written whole; message property strings.

JSON      {"code":…,"extFields":{…},"flag":…,"language":"…","opaque":…,"remark":"…","serializeTypeCurrentRPC":"JSON",
          "version":…}: keys in any order, standard JSON, ext values texts. Anything else is *unusual* and left to the
          general reader of rocketcore.protocol, which gives the same command for what both can read
binary    code i16 · language u8 · version i16 · opaque i32 · flag i32 · remark i32 + n · ext i32 + n, where ext is
          entries of key i16 + n · value i32 + n
property  name U+0001 value U+0002, the last U+0002 optional; a pair without name or value does not count
RocketMQ  remoting/protocol/{RemotingCommand,RemotingSerializable,RocketMQSerializable}.java 5.5.0,
          common/message/MessageDecoder.java
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport strlen

from rocketcore._fast.command cimport (
    LANGUAGES,
    Head,
    Text,
    is_text,
    next_binary_entry,
    next_json_entry,
    rc_get_decimal,
    rc_is_utf8,
    rc_language_names,
    read_binary,
    read_json,
)
from rocketcore._fast.frame cimport (
    BODY_LENGTH,
    BODY_START,
    FRAME_COLUMNS,
    HEADER_LENGTH,
    HEADER_START,
    SERIALIZE_TYPE,
    split,
)
from rocketcore._fast.record cimport (
    named,
    rc_next_property,
    rc_property,
    rc_property_reader,
    rc_read_properties,
)
from rocketcore._fast.status cimport INCOMPLETE, OK, Status, fail
from rocketcore._fast.table cimport take_bytes, take_range, take_rows

from rocketcore.errors import LocalProtocolError


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_u8(uint8_t* at, uint8_t value)
    uint8_t* rc_put_16(uint8_t* at, uint16_t value)
    uint8_t* rc_put_32(uint8_t* at, uint32_t value)
    uint8_t* rc_put_bytes(uint8_t* at, const void* source, size_t length)
    uint8_t* rc_put_decimal(uint8_t* at, int64_t value)

cdef extern from "rc_hash.h" nogil:
    size_t rc_java_utf8(const uint8_t* at, const uint8_t* end, uint32_t* code_point)

cdef extern from "rc_json.h" nogil:
    uint8_t* rc_json_unescape(uint8_t* out, const uint8_t* at, const uint8_t* end)
    size_t rc_json_escaped_size(const uint8_t* text, size_t length)
    uint8_t* rc_json_escape(uint8_t* out, const uint8_t* text, size_t length)
    uint8_t* rc_put_utf8(uint8_t* out, uint32_t code_point)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    # Bytes as pointers: a resize may move the object, so that no reference may be held while it happens.
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char* source, Py_ssize_t size) except NULL
    char* bytes_start "PyBytes_AS_STRING"(PyObject* of)
    int _PyBytes_Resize(PyObject** of, Py_ssize_t size) except -1


# The C enums own these names in this file, so the Python ints go in by way of the module dict.
globals().update({
    "CODE": <int>CODE,
    "LANGUAGE": <int>LANGUAGE,
    "VERSION": <int>VERSION,
    "OPAQUE": <int>OPAQUE,
    "FLAG": <int>FLAG,
    "EXT_START": <int>EXT_START,
    "EXT_END": <int>EXT_END,
    "STATUS": <int>STATUS,
    "HEAD_COLUMNS": <int>HEAD_COLUMNS,
    "SEND_OPAQUE": <int>SEND_OPAQUE,
    "SEND_FLAG_BITS": <int>SEND_FLAG_BITS,
    "SEND_QUEUE_ID": <int>SEND_QUEUE_ID,
    "SEND_SYS_FLAG": <int>SEND_SYS_FLAG,
    "SEND_BORN_TIMESTAMP": <int>SEND_BORN_TIMESTAMP,
    "SEND_MESSAGE_FLAG": <int>SEND_MESSAGE_FLAG,
    "SEND_RECONSUME_TIMES": <int>SEND_RECONSUME_TIMES,
    "SEND_BATCH": <int>SEND_BATCH,
    "SEND_MAX_RECONSUME": <int>SEND_MAX_RECONSUME,
    "SEND_GROUP_START": <int>SEND_GROUP_START,
    "SEND_GROUP_LENGTH": <int>SEND_GROUP_LENGTH,
    "SEND_TOPIC_START": <int>SEND_TOPIC_START,
    "SEND_TOPIC_LENGTH": <int>SEND_TOPIC_LENGTH,
    "SEND_PROPERTIES_START": <int>SEND_PROPERTIES_START,
    "SEND_PROPERTIES_LENGTH": <int>SEND_PROPERTIES_LENGTH,
    "SEND_BODY_START": <int>SEND_BODY_START,
    "SEND_BODY_LENGTH": <int>SEND_BODY_LENGTH,
    "SEND_DEFAULT_TOPIC_START": <int>SEND_DEFAULT_TOPIC_START,
    "SEND_DEFAULT_TOPIC_LENGTH": <int>SEND_DEFAULT_TOPIC_LENGTH,
    "SEND_DEFAULT_QUEUES": <int>SEND_DEFAULT_QUEUES,
    "SEND_STATUS": <int>SEND_STATUS,
    "SEND_CODE": <int>SEND_CODE,
    "SEND_VERSION": <int>SEND_VERSION,
    "SEND_SERIALIZE_TYPE": <int>SEND_SERIALIZE_TYPE,
    "SEND_COLUMNS": <int>SEND_COLUMNS,
})

cdef enum:
    JSON = 0
    BINARY = 1
    RESPONSE = 1
    PYTHON = 3
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    STACK_BYTES = 1024
    STACK_TEXTS = 64
    HEADER_MAX = 0xffffff
    HEADER_FIXED_BOUND = 256  # more than the fixed fields of a header take in either form
    ENTRY_BOUND = 6           # what one ext entry takes besides its texts, in either form


cdef inline bint row_in(const int64_t* row, Py_ssize_t length) noexcept nogil:
    """True if header and body of a frame row lie within the data: a table need not come from ``frame.scan``."""
    return (
        0 <= row[HEADER_START] <= length and 0 <= row[HEADER_LENGTH] <= length - row[HEADER_START]
        and 0 <= row[BODY_START] <= length and 0 <= row[BODY_LENGTH] <= length - row[BODY_START]
    )


cdef inline void peek_one(const uint8_t* data, const int64_t* row, int64_t* out) noexcept nogil:
    cdef Head head
    cdef const uint8_t* start = data + row[HEADER_START]
    cdef const uint8_t* stopped
    cdef bint usual
    if row[SERIALIZE_TYPE] == BINARY:
        usual = read_binary(start, start + row[HEADER_LENGTH], &head, &stopped) == OK
    else:
        usual = read_json(start, start + row[HEADER_LENGTH], &head)
    out[STATUS] = 0 if usual else 1
    if not usual:
        return
    out[CODE] = head.code
    out[LANGUAGE] = head.language
    out[VERSION] = head.version
    out[OPAQUE] = head.opaque
    out[FLAG] = head.flag
    if head.ext.start == NULL:
        out[EXT_START] = out[EXT_END] = 0
    else:
        out[EXT_START] = head.ext.start - data
        out[EXT_END] = head.ext.end - data


cdef Status read_loop(
    const uint8_t* data, int64_t end, int64_t limit, int64_t* row, int64_t* head, Py_ssize_t capacity,
    Py_ssize_t* count, int64_t* position, int64_t* code,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t found = 0
    cdef int64_t at = position[0], shared = -1
    cdef bint mixed = False
    while found < capacity:
        status = split(data, at, end, limit, row)
        if status != OK:
            break
        at = row[BODY_START] + row[BODY_LENGTH]
        peek_one(data, row, head)
        if head[STATUS] != 0 or head[FLAG] & RESPONSE or (found != 0 and shared != head[CODE]):
            mixed = True
        else:
            shared = head[CODE]
        row += FRAME_COLUMNS
        head += HEAD_COLUMNS
        found += 1
    count[0] = found
    position[0] = at
    code[0] = -1 if mixed else shared
    return status


def read_frames(data, Py_ssize_t start, rows, heads, Py_ssize_t limit=16_777_216):
    """Find the frames in ``data[start:]`` as ``frame.scan`` does, and read the fixed fields of their headers.

    rows      int64[k, 6] as ``frame.scan`` fills it
    heads     int64[k, 8]: CODE LANGUAGE (ordinal, −1 unknown) VERSION OPAQUE FLAG, EXT_START and EXT_END (the entries
              of the ext fields in ``data``, both 0 where there are none), STATUS
    limit     most bytes of one frame, its length word included
    status    0 the row is filled, and every entry of the ext fields has been checked; 1 the header is unusual JSON or
              broken, the other columns hold nothing: use ``read`` and the general reader
    returns   (count, position, code): rows filled, the first byte not consumed, the code of all of them, or −1 where
              they are none, differ, or one is a response or has another STATUS than 0
    raises    DecodeError or FrameTooLarge if the *first* frame is bad, ValueError for tables of another shape
    RocketMQ  remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java ``headerDecode``
    """
    cdef Py_buffer source, frames, table
    cdef Py_ssize_t count = 0
    cdef int64_t position = start, code = -1
    cdef Status status
    take_bytes(data, &source)
    try:
        take_range(&source, start, source.len)
        take_rows(rows, &frames, FRAME_COLUMNS, True)
        try:
            take_rows(heads, &table, HEAD_COLUMNS, True)
            try:
                status = read_loop(
                    <const uint8_t*>source.buf, source.len, limit, <int64_t*>frames.buf, <int64_t*>table.buf,
                    min(frames.shape[0], table.shape[0]), &count, &position, &code,
                )
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&frames)
    finally:
        PyBuffer_Release(&source)
    if count == 0 and status != OK and status != INCOMPLETE:
        raise fail(status, position)
    return count, position, code


cdef object to_str(const uint8_t* start, Py_ssize_t length):
    """Decode UTF-8 as Java does: what is malformed becomes U+FFFD, by Java's idea of one malformed piece."""
    cdef const uint8_t* end = start + length
    cdef uint32_t code_point
    cdef uint8_t* text
    cdef uint8_t* at
    if rc_is_utf8(start, length):
        return PyUnicode_DecodeUTF8(<const char*>start, length, NULL)
    text = at = <uint8_t*>PyMem_Malloc(3 * length)
    if text == NULL:
        raise MemoryError
    try:
        while start < end:
            start += rc_java_utf8(start, end, &code_point)
            at = rc_put_utf8(at, code_point)
        return PyUnicode_DecodeUTF8(<const char*>text, at - text, NULL)
    finally:
        PyMem_Free(text)


cdef object unescaped(const Text* text):
    """The text as bytes, its JSON escapes resolved."""
    cdef Py_ssize_t length = text.end - text.start
    cdef uint8_t* room
    cdef uint8_t* stop
    if not text.escaped:
        return PyBytes_FromStringAndSize(<const char*>text.start, length)
    room = <uint8_t*>PyMem_Malloc(length)
    if room == NULL:
        raise MemoryError
    try:
        stop = rc_json_unescape(room, text.start, text.end)
        return PyBytes_FromStringAndSize(<const char*>room, stop - room)
    finally:
        PyMem_Free(room)


cdef inline object text_str(const Text* text):
    if text.escaped:
        return unescaped(text).decode()
    return to_str(text.start, text.end - text.start)


cdef dict read_ext(const Head* head, const uint8_t* header_end, bint binary):
    """The ext fields as a dict. A field that comes twice has its last value; an empty binary value is Java's null, that
    is, no field."""
    cdef dict ext = {}
    cdef const uint8_t* at = head.ext.start
    cdef Text key, value
    if binary:
        while at < head.ext.end and next_binary_entry(&at, header_end, &key, &value) == OK:
            if value.start != value.end:
                ext[text_str(&key)] = text_str(&value)
            else:
                ext.pop(text_str(&key), None)
    else:
        while next_json_entry(&at, head.ext.end, &key, &value) == 1:
            ext[text_str(&key)] = text_str(&value)
    return ext


def read(data, Py_ssize_t header_start, Py_ssize_t header_length, int serialize_type):
    """Read one header whole.

    returns   (code, language, version, opaque, flag, remark, ext_fields), or None for unusual JSON. language is the
              ordinal, −1 where the sender's is unknown; remark and ext_fields are None where absent; an empty binary
              remark or value counts as absent, as in Java
    raises    DecodeError for a broken binary header, ValueError for a range outside ``data``
    RocketMQ  remoting/protocol/RocketMQSerializable.java ``rocketMQProtocolDecode``, RemotingCommand.java
    """
    cdef Py_buffer source
    cdef Head head
    cdef Status status
    cdef const uint8_t* start
    cdef const uint8_t* end
    cdef const uint8_t* stopped
    cdef object remark = None, ext = None
    take_bytes(data, &source)
    try:
        take_range(&source, header_start, header_start + header_length)
        start = <const uint8_t*>source.buf + header_start
        end = start + header_length
        if serialize_type == BINARY:
            status = read_binary(start, end, &head, &stopped)
            if status != OK:
                raise fail(status, stopped - <const uint8_t*>source.buf)
        elif serialize_type != JSON:
            raise ValueError(f"serialize type {serialize_type} is neither 0 (JSON) nor 1 (binary)")
        elif not read_json(start, end, &head):
            return None
        if head.remark.start != NULL:
            remark = text_str(&head.remark)
        if head.ext.start != NULL:
            ext = read_ext(&head, end, serialize_type == BINARY)
        return head.code, head.language, head.version, head.opaque, head.flag, remark, ext
    finally:
        PyBuffer_Release(&source)


cdef inline int take_run(Py_ssize_t first, Py_ssize_t last, const Py_buffer* frames, const Py_buffer* heads) except -1:
    """IndexError unless the rows ``first`` to ``last`` (excluded) are in both tables."""
    if first < 0 or last < first or last > frames.shape[0] or last > heads.shape[0]:
        raise IndexError(f"rows {first}:{last}, but the tables have {frames.shape[0]} and {heads.shape[0]}")
    return 0


cdef inline bint ext_in(const int64_t* row, const int64_t* head) noexcept nogil:
    """True if the ext fields of a head row lie within the header of its frame row."""
    return row[HEADER_START] <= head[EXT_START] <= head[EXT_END] <= row[HEADER_START] + row[HEADER_LENGTH]


cdef object ext_value(const uint8_t* base, const int64_t* row, const int64_t* head, bytes name):
    """The value of one ext field of a row that ``check_row`` let pass, None where absent."""
    cdef const uint8_t* at = base + head[EXT_START]
    cdef const uint8_t* end = base + head[EXT_END]
    cdef const uint8_t* header_end = base + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value, found
    if head[EXT_END] == 0:
        return None
    found.start = found.end = NULL
    if row[SERIALIZE_TYPE] == BINARY:
        while at < end and next_binary_entry(&at, header_end, &key, &value) == OK:
            if is_text(&key, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                found = value
        if found.start == found.end:
            return None
    else:
        while next_json_entry(&at, end, &key, &value) == 1:
            if key.escaped and unescaped(&key) == name or is_text(
                &key, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            ):
                found = value
        if found.start == NULL:
            return None
    return unescaped(&found)


cdef inline int check_row(const int64_t* row, const int64_t* head, Py_ssize_t length, Py_ssize_t index) except -1:
    """ValueError unless ``read_frames`` filled the head row, and frame and ext fields lie within the data."""
    if head[STATUS] != 0 or not row_in(row, length) or (head[EXT_END] != 0 and not ext_in(row, head)):
        raise ValueError(f"row {index} has another status than 0, or is not of this data")
    return 0


def find_ext_of_all(data, rows, heads, Py_ssize_t first, Py_ssize_t last, bytes name not None,
                    bytes without not None):
    """Return the value that one ext field has in each of the rows ``first`` to ``last`` (excluded), as UTF-8.

    data      bytes-like of which ``rows`` and ``heads`` were read; those rows have STATUS 0
    name      key in UTF-8; JSON keys that hold escapes are compared unescaped
    without   key of a field that none may have
    returns   list of bytes; None unless every row is a plain request (FLAG 0) with the one field and without the other
    raises    IndexError for rows that are not there, ValueError for one outside ``data`` or with another STATUS
    """
    cdef Py_buffer source, frames, table
    cdef const int64_t* row
    cdef const int64_t* head
    cdef list values = []
    cdef Py_ssize_t i
    take_bytes(data, &source)
    try:
        take_rows(rows, &frames, FRAME_COLUMNS, False)
        try:
            take_rows(heads, &table, HEAD_COLUMNS, False)
            try:
                take_run(first, last, &frames, &table)
                for i in range(first, last):
                    row = <const int64_t*>frames.buf + i * FRAME_COLUMNS
                    head = <const int64_t*>table.buf + i * HEAD_COLUMNS
                    check_row(row, head, source.len, i)
                    if head[FLAG] != 0 or ext_value(<const uint8_t*>source.buf, row, head, without) is not None:
                        return None
                    value = ext_value(<const uint8_t*>source.buf, row, head, name)
                    if value is None:
                        return None
                    values.append(value)
                return values
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&frames)
    finally:
        PyBuffer_Release(&source)


cdef enum:
    # Bit of a required field in the mask of those seen; the keys are the letters a … n.
    SEND_REQUIRED = 0xff


cdef inline bint read_send(const uint8_t* data, const int64_t* row, const int64_t* head, int64_t* out,
                           Text* properties) noexcept nogil:
    """Fill a send row except its properties; False if the request needs the general path."""
    cdef const uint8_t* at = data + head[EXT_START]
    cdef const uint8_t* end = data + head[EXT_END]
    cdef const uint8_t* header_end = data + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value
    cdef bint binary = row[SERIALIZE_TYPE] == BINARY, check = False, known
    cdef int seen = 0
    cdef uint8_t letter
    out[SEND_RECONSUME_TIMES] = 0
    out[SEND_BATCH] = 0
    out[SEND_MAX_RECONSUME] = -1
    properties.start = properties.end = NULL
    properties.escaped = False
    if binary:
        # One look at all, length words included: only where one has its top bit set is each text looked at.
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
        if letter == c"a":
            out[SEND_GROUP_START] = value.start - data
            out[SEND_GROUP_LENGTH] = value.end - value.start
            known = True
        elif letter == c"b":
            out[SEND_TOPIC_START] = value.start - data
            out[SEND_TOPIC_LENGTH] = value.end - value.start
            known = True
        elif letter == c"c":
            out[SEND_DEFAULT_TOPIC_START] = value.start - data
            out[SEND_DEFAULT_TOPIC_LENGTH] = value.end - value.start
            known = True
        elif letter == c"d":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_DEFAULT_QUEUES])
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
        elif letter == c"k":
            known = is_text(&value, "false", 5)
        elif letter == c"l":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_MAX_RECONSUME])
        elif letter == c"m":
            out[SEND_BATCH] = is_text(&value, "true", 4)
            known = out[SEND_BATCH] or is_text(&value, "false", 5)
        else:
            known = letter == c"n"
        if not known:
            return False
        if letter <= c"h":
            seen |= 1 << (letter - c"a")
    out[SEND_OPAQUE] = head[OPAQUE]
    out[SEND_FLAG_BITS] = head[FLAG]
    out[SEND_CODE] = head[CODE]
    out[SEND_VERSION] = head[VERSION]
    out[SEND_SERIALIZE_TYPE] = row[SERIALIZE_TYPE]
    out[SEND_BODY_START] = row[BODY_START]
    out[SEND_BODY_LENGTH] = row[BODY_LENGTH]
    return seen == SEND_REQUIRED


cdef Py_ssize_t scan_send_loop(
    const uint8_t* data, const int64_t* row, const int64_t* head, Py_ssize_t count, int64_t* out,
    uint8_t* scratch, Py_ssize_t room,
) noexcept nogil:
    cdef Py_ssize_t done = 0, used = 0, length
    cdef Text properties
    cdef bint usual
    cdef uint8_t* stop
    while done < count:
        usual = (
            head[STATUS] == 0
            and (head[CODE] == SEND_MESSAGE_V2 or head[CODE] == SEND_BATCH_MESSAGE)
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
    """Read the headers of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE requests (310, 320) into typed columns.

    data      bytes-like of which ``rows`` and ``heads`` were read
    first     first row and the one after the last
    out       int64[k, 24], row 0 is for ``first``: the SEND_… columns. GROUP, TOPIC, DEFAULT_TOPIC and BODY are ranges
              of ``data``, PROPERTIES are ranges of ``scratch``. FLAG_BITS is the command's flag, MESSAGE_FLAG field h;
              BATCH 1 for m=true; MAX_RECONSUME −1 where absent
    scratch   writable bytes-like that takes the property texts, from its start
    returns   rows done: it stops when ``out`` or ``scratch`` is full
    status    0 the row is filled: required fields present, numbers in range, text valid UTF-8. 1 use the general path:
              the header is unusual or lacks a field, has one this reader does not know, unit mode, a number that does
              not parse, or properties longer than ``scratch``
    raises    ValueError for tables of another shape or rows outside ``data``
    RocketMQ  remoting/protocol/header/SendMessageRequestHeaderV2.java ``decode``
    """
    cdef Py_buffer source, frames, table, target, room
    cdef Py_ssize_t count, i
    cdef const int64_t* row
    take_bytes(data, &source)
    try:
        take_rows(rows, &frames, FRAME_COLUMNS, False)
        try:
            take_rows(heads, &table, HEAD_COLUMNS, False)
            try:
                take_rows(out, &target, SEND_COLUMNS, True)
                try:
                    if first < 0 or last < first or last > frames.shape[0] or last > table.shape[0]:
                        raise ValueError(f"rows {first}:{last}, but there are {frames.shape[0]} and {table.shape[0]}")
                    row = <const int64_t*>frames.buf
                    for i in range(first, last):
                        if not row_in(row + i * FRAME_COLUMNS, source.len):
                            raise ValueError(f"row {i} is not within the {source.len} bytes of data")
                    count = min(last - first, target.shape[0])
                    PyObject_GetBuffer(scratch, &room, PyBUF_SIMPLE | PyBUF_WRITABLE)
                    try:
                        return scan_send_loop(
                            <const uint8_t*>source.buf, row + first * FRAME_COLUMNS,
                            <const int64_t*>table.buf + first * HEAD_COLUMNS, count, <int64_t*>target.buf,
                            <uint8_t*>room.buf, room.len,
                        )
                    finally:
                        PyBuffer_Release(&room)
                finally:
                    PyBuffer_Release(&target)
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&frames)
    finally:
        PyBuffer_Release(&source)


cdef enum:
    # Bits of the mask of the fields seen: the required ones, and those whose absence is told apart from any value.
    PULL_GROUP = 1
    PULL_TOPIC = 2
    PULL_QUEUE_ID = 4
    PULL_QUEUE_OFFSET = 8
    PULL_MAX_NUMS = 16
    PULL_SYS_FLAG = 32
    PULL_REQUIRED = 63
    PULL_MAX_BYTES = 64
    PULL_RC_PULL = 128

# What a pull asks for; start is NULL for a text that is absent.
cdef struct Pull:
    Text group
    Text topic
    Text subscription
    Text expression_type
    int64_t queue_id
    int64_t queue_offset
    int64_t max_nums
    int64_t sys_flag
    int64_t commit_offset
    int64_t suspend_millis
    int64_t sub_version
    int64_t max_bytes
    int64_t rc_pull
    int seen


cdef inline bint get_int32(const Text* text, int64_t* value) noexcept nogil:
    return rc_get_decimal(text.start, text.end, INT32_MIN, INT32_MAX, value)


cdef inline bint get_int64(const Text* text, int64_t* value) noexcept nogil:
    return rc_get_decimal(text.start, text.end, INT64_MIN, INT64_MAX, value)


cdef bint read_pull_fields(const uint8_t* data, const int64_t* row, const int64_t* head, Pull* pull) noexcept nogil:
    """Fill ``pull`` from the ext fields; False if the request needs the general path."""
    cdef const uint8_t* at = data + head[EXT_START]
    cdef const uint8_t* end = data + head[EXT_END]
    cdef const uint8_t* header_end = data + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value
    cdef bint binary = row[SERIALIZE_TYPE] == BINARY, known
    cdef int seen = 0
    pull.commit_offset = pull.suspend_millis = pull.sub_version = 0
    pull.subscription.start = pull.expression_type.start = NULL
    while at < end:
        if binary:
            if next_binary_entry(&at, header_end, &key, &value) != OK:
                return False
        elif next_json_entry(&at, end, &key, &value) != 1:
            return False
        if key.escaped or value.start == value.end:
            return False
        known = True
        if is_text(&key, "queueOffset", 11):
            known = get_int64(&value, &pull.queue_offset)
            seen |= PULL_QUEUE_OFFSET
        elif is_text(&key, "queueId", 7):
            known = get_int32(&value, &pull.queue_id)
            seen |= PULL_QUEUE_ID
        elif is_text(&key, "topic", 5):
            pull.topic = value
            seen |= PULL_TOPIC
        elif is_text(&key, "consumerGroup", 13):
            pull.group = value
            seen |= PULL_GROUP
        elif is_text(&key, "maxMsgNums", 10):
            known = get_int32(&value, &pull.max_nums)
            seen |= PULL_MAX_NUMS
        elif is_text(&key, "sysFlag", 7):
            known = get_int32(&value, &pull.sys_flag)
            seen |= PULL_SYS_FLAG
        elif is_text(&key, "commitOffset", 12):
            known = get_int64(&value, &pull.commit_offset)
        elif is_text(&key, "suspendTimeoutMillis", 20):
            known = get_int64(&value, &pull.suspend_millis)
        elif is_text(&key, "subVersion", 10):
            known = get_int64(&value, &pull.sub_version)
        elif is_text(&key, "subscription", 12):
            pull.subscription = value
        elif is_text(&key, "expressionType", 14):
            pull.expression_type = value
        elif is_text(&key, "maxMsgBytes", 11):
            known = get_int32(&value, &pull.max_bytes)
            seen |= PULL_MAX_BYTES
        elif is_text(&key, "rcPull", 6):
            known = get_int32(&value, &pull.rc_pull)
            seen |= PULL_RC_PULL
        else:
            known = is_text(&key, "bname", 5)
        if not known:
            return False
    pull.seen = seen
    return seen & PULL_REQUIRED == PULL_REQUIRED


def read_pull(data, rows, heads, Py_ssize_t index):
    """Read the header of one PULL_MESSAGE or LITE_PULL_MESSAGE request (11, 361) without a map of its ext fields.

    data      bytes-like of which ``rows`` and ``heads`` were read
    returns   {consumer_group, topic, queue_id, queue_offset, max_msg_nums, sys_flag, commit_offset,
              suspend_timeout_millis, sub_version, subscription, expression_type, max_msg_bytes, rc_pull}:
              commit_offset, suspend_timeout_millis and sub_version are 0 and the last four None where absent; bname is
              left out. None: use the general path, because the header is unusual or lacks a field, has one this
              reader does not know, or a number that does not parse
    raises    IndexError for a row that is not there, ValueError for one outside ``data``
    RocketMQ  remoting/protocol/header/PullMessageRequestHeader.java ``decode``
    """
    cdef Py_buffer source, frames, table
    cdef const int64_t* row
    cdef const int64_t* head
    cdef Pull pull
    take_bytes(data, &source)
    try:
        take_rows(rows, &frames, FRAME_COLUMNS, False)
        try:
            take_rows(heads, &table, HEAD_COLUMNS, False)
            try:
                if index < 0 or index >= frames.shape[0] or index >= table.shape[0]:
                    raise IndexError(f"row {index}, but the tables have {frames.shape[0]} and {table.shape[0]}")
                row = <const int64_t*>frames.buf + index * FRAME_COLUMNS
                head = <const int64_t*>table.buf + index * HEAD_COLUMNS
                if not row_in(row, source.len):
                    raise ValueError(f"row {index} is not within the {source.len} bytes of data")
                if head[STATUS] != 0 or not ext_in(row, head):
                    return None
                if not read_pull_fields(<const uint8_t*>source.buf, row, head, &pull):
                    return None
                return {
                    "consumer_group": text_str(&pull.group),
                    "topic": text_str(&pull.topic),
                    "queue_id": pull.queue_id,
                    "queue_offset": pull.queue_offset,
                    "max_msg_nums": pull.max_nums,
                    "sys_flag": pull.sys_flag,
                    "commit_offset": pull.commit_offset,
                    "suspend_timeout_millis": pull.suspend_millis,
                    "sub_version": pull.sub_version,
                    "subscription": text_str(&pull.subscription) if pull.subscription.start != NULL else None,
                    "expression_type": text_str(&pull.expression_type) if pull.expression_type.start != NULL else None,
                    "max_msg_bytes": pull.max_bytes if pull.seen & PULL_MAX_BYTES else None,
                    "rc_pull": pull.rc_pull if pull.seen & PULL_RC_PULL else None,
                }
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&frames)
    finally:
        PyBuffer_Release(&source)


# A text to write, and its size inside a JSON string.
cdef struct Piece:
    const uint8_t* start
    size_t length
    size_t escaped


cdef inline Piece literal(const char* text) noexcept nogil:
    return Piece(<const uint8_t*>text, strlen(text), strlen(text))


cdef inline Piece piece(const uint8_t* start, size_t length, int serialize_type) noexcept nogil:
    return Piece(start, length, rc_json_escaped_size(start, length) if serialize_type == JSON else length)


cdef inline Piece number(uint8_t* digits, int64_t value) noexcept nogil:
    """A number as text in ``digits``, which has 20 bytes and outlives the piece."""
    cdef size_t length = rc_put_decimal(digits, value) - digits
    return Piece(digits, length, length)


cdef inline uint8_t* put_literal(uint8_t* at, const char* text) noexcept nogil:
    return rc_put_bytes(at, text, strlen(text))


cdef inline uint8_t* put_piece(uint8_t* at, const Piece* text) noexcept nogil:
    if text.escaped == text.length:
        return rc_put_bytes(at, text.start, text.length)
    return rc_json_escape(at, text.start, text.length)


cdef uint8_t* put_json(uint8_t* at, int64_t code, int language, int64_t version, int64_t opaque, int64_t flag,
                       const Piece* remark, const Piece* ext, Py_ssize_t entries) noexcept nogil:
    cdef Py_ssize_t i
    at = rc_put_decimal(put_literal(at, '{"code":'), code)
    if ext != NULL:
        at = put_literal(at, ',"extFields":{')
        for i in range(entries):
            at = put_literal(at, ',"' if i else '"')
            at = put_literal(put_piece(at, &ext[2 * i]), '":"')
            at = rc_put_u8(put_piece(at, &ext[2 * i + 1]), c'"')
        at = rc_put_u8(at, c"}")
    at = rc_put_decimal(put_literal(at, ',"flag":'), flag)
    at = put_literal(put_literal(at, ',"language":"'), rc_language_names[language])
    at = rc_put_decimal(put_literal(at, '","opaque":'), opaque)
    if remark != NULL:
        at = rc_put_u8(put_piece(put_literal(at, ',"remark":"'), remark), c'"')
    at = rc_put_decimal(put_literal(at, ',"serializeTypeCurrentRPC":"JSON","version":'), version)
    return rc_put_u8(at, c"}")


cdef uint8_t* put_binary(uint8_t* at, int64_t code, int language, int64_t version, int64_t opaque, int64_t flag,
                         const Piece* remark, const Piece* ext, Py_ssize_t entries) noexcept nogil:
    cdef uint8_t* length_word
    cdef Py_ssize_t i
    at = rc_put_u8(rc_put_16(at, <uint16_t>code), <uint8_t>language)
    at = rc_put_32(rc_put_32(rc_put_16(at, <uint16_t>version), <uint32_t>opaque), <uint32_t>flag)
    if remark != NULL:
        at = rc_put_bytes(rc_put_32(at, <uint32_t>remark.length), remark.start, remark.length)
    else:
        at = rc_put_32(at, 0)
    length_word = at
    at += 4
    for i in range(2 * entries):
        at = rc_put_32(at, <uint32_t>ext[i].length) if i & 1 else rc_put_16(at, <uint16_t>ext[i].length)
        at = rc_put_bytes(at, ext[i].start, ext[i].length)
    rc_put_32(length_word, <uint32_t>(at - length_word - 4))
    return at


cdef object build_frame(int64_t code, int language, int64_t version, int64_t opaque, int64_t flag,
                        const Piece* remark, const Piece* ext, Py_ssize_t entries,
                        const uint8_t* body, Py_ssize_t written_length, Py_ssize_t body_length, int serialize_type):
    """Build a frame of ``body_length`` body bytes, of which the first ``written_length`` go into the result."""
    cdef uint8_t stack[STACK_BYTES]
    cdef uint8_t* room = stack
    cdef uint8_t* at
    cdef size_t bound = HEADER_FIXED_BOUND
    cdef Py_ssize_t i, length
    cdef bytes frame
    if serialize_type == BINARY:
        if not -0x8000 <= code <= 0x7fff:
            raise LocalProtocolError(f"code {code} does not fit the 16 bits of a binary header")
        for i in range(entries):
            if not 0 < ext[2 * i].length <= 0x7fff:
                raise LocalProtocolError(f"ext field key of {ext[2 * i].length} bytes; a binary header takes 1…32767")
    elif serialize_type != JSON:
        raise ValueError(f"serialize type {serialize_type} is neither 0 (JSON) nor 1 (binary)")
    if not 0 <= language < LANGUAGES:
        raise ValueError(f"language {language} is no LanguageCode")
    if remark != NULL:
        bound += remark.escaped
    for i in range(2 * entries):
        bound += ext[i].escaped + ENTRY_BOUND
    if bound > HEADER_MAX + HEADER_FIXED_BOUND:
        raise LocalProtocolError(f"header of about {bound} bytes; a frame takes {HEADER_MAX}")
    if bound > STACK_BYTES:
        room = <uint8_t*>PyMem_Malloc(bound)
        if room == NULL:
            raise MemoryError
    try:
        if serialize_type == JSON:
            at = put_json(room + 8, code, language, version, opaque, flag, remark, ext, entries)
        else:
            at = put_binary(room + 8, code, language, version, opaque, flag, remark, ext, entries)
        length = at - room - 8
        if length > HEADER_MAX or body_length > INT32_MAX - 4 - length:
            raise LocalProtocolError(f"header of {length} and body of {body_length} bytes do not fit a frame")
        rc_put_32(rc_put_32(room, <uint32_t>(4 + length + body_length)), <uint32_t>(serialize_type << 24 | length))
        frame = PyBytes_FromStringAndSize(NULL, 8 + length + written_length)
        at = rc_put_bytes(<uint8_t*>PyBytes_AS_STRING(frame), room, 8 + length)
        rc_put_bytes(at, body, written_length)
        return frame
    finally:
        if room != stack:
            PyMem_Free(room)


cdef inline Piece str_piece(object text, int serialize_type) except *:
    """The UTF-8 of a str, which the str keeps; UnicodeEncodeError for an unpaired surrogate."""
    cdef Py_ssize_t length
    cdef const char* start
    if not isinstance(text, str):
        raise TypeError(f"expected a str, not {text!r}")
    start = PyUnicode_AsUTF8AndSize(text, &length)
    return piece(<const uint8_t*>start, length, serialize_type)


def _replace_surrogates(str text not None):
    """Return text that has UTF-8, as Java writes it: paired surrogates joined, an unpaired one as a question mark."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()


cdef object encode_command(int64_t code, int language, int64_t version, int64_t opaque, int64_t flag, object remark,
                           dict ext, const uint8_t* body, Py_ssize_t body_length, int serialize_type):
    cdef Piece stack[STACK_TEXTS]
    cdef Piece* pieces = stack
    cdef Piece remark_piece
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0, used = 0
    if ext is not None and 2 * len(ext) > STACK_TEXTS:
        pieces = <Piece*>PyMem_Malloc(2 * len(ext) * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError
    try:
        if ext is not None:
            while PyDict_Next(ext, &position, &key, &value):
                if <object>value is not None:
                    pieces[used] = str_piece(<object>key, serialize_type)
                    pieces[used + 1] = str_piece(<object>value, serialize_type)
                    used += 2
        if remark is not None:
            remark_piece = str_piece(remark, serialize_type)
        return build_frame(
            code, language, version, opaque, flag, NULL if remark is None else &remark_piece,
            NULL if ext is None else pieces, used // 2, body, body_length, body_length, serialize_type,
        )
    finally:
        if pieces != stack:
            PyMem_Free(pieces)


def encode_frame(int64_t code, int language, int32_t version, int32_t opaque, int32_t flag, remark, ext_fields, body,
                 int serialize_type):
    """Return the whole frame of a command.

    language        ordinal of LanguageCode
    remark          str or None; not written where None
    ext_fields      mapping of str to str or None, or None; a None value is not written. Written in the mapping's order
                    (Java's is that of its hash table), while the keys of the header itself are sorted as in Java
    body            bytes-like
    serialize_type  0 JSON, 1 binary. A code of more than 16 bits does not fit a binary header and gets a JSON one
    raises          LocalProtocolError where the command fits no frame, TypeError for what is not text, ValueError for a
                    language or a type that does not exist
    RocketMQ        remoting/protocol/RemotingCommand.java ``encode``
    """
    cdef Py_buffer source
    cdef dict ext
    if code < INT32_MIN or code > INT32_MAX:
        raise OverflowError(f"code {code} does not fit int32")
    if serialize_type == BINARY and not -0x8000 <= code <= 0x7fff:
        serialize_type = JSON
    ext = ext_fields if ext_fields is None or type(ext_fields) is dict else dict(ext_fields)
    take_bytes(body, &source)
    try:
        try:
            return encode_command(
                code, language, version, opaque, flag, remark, ext, <const uint8_t*>source.buf, source.len,
                serialize_type,
            )
        except UnicodeEncodeError:
            if remark is not None:
                remark = _replace_surrogates(remark)
            if ext is not None:
                ext = {
                    _replace_surrogates(key): _replace_surrogates(value)
                    for key, value in ext.items() if value is not None
                }
            return encode_command(
                code, language, version, opaque, flag, remark, ext, <const uint8_t*>source.buf, source.len,
                serialize_type,
            )
    finally:
        PyBuffer_Release(&source)


def encode_send_response(int32_t opaque, int32_t version, int32_t queue_id, int64_t queue_offset, bytes msg_id not None,
                         bytes transaction_id, int serialize_type, bytes region not None):
    """Return the whole frame of the answer to a send that was stored (code 0).

    msg_id          offset message ids, comma-joined for a batch, UTF-8 as the two others
    transaction_id  UNIQ_KEY of the message, or None
    region          value of MSG_REGION; TRACE_ON is always ``true``
    RocketMQ        remoting/protocol/header/SendMessageResponseHeader.java
    """
    cdef Piece pieces[12]
    cdef uint8_t digits[40]
    cdef Py_ssize_t entries = 5
    pieces[0] = literal("msgId")
    pieces[1] = piece(<const uint8_t*>PyBytes_AS_STRING(msg_id), PyBytes_GET_SIZE(msg_id), serialize_type)
    pieces[2] = literal("queueId")
    pieces[3] = number(digits, queue_id)
    pieces[4] = literal("queueOffset")
    pieces[5] = number(digits + 20, queue_offset)
    pieces[6] = literal("MSG_REGION")
    pieces[7] = piece(<const uint8_t*>PyBytes_AS_STRING(region), PyBytes_GET_SIZE(region), serialize_type)
    pieces[8] = literal("TRACE_ON")
    pieces[9] = literal("true")
    if transaction_id is not None:
        entries = 6
        pieces[10] = literal("transactionId")
        pieces[11] = piece(
            <const uint8_t*>PyBytes_AS_STRING(transaction_id), PyBytes_GET_SIZE(transaction_id), serialize_type
        )
    return build_frame(0, PYTHON, version, opaque, RESPONSE, NULL, pieces, entries, NULL, 0, 0, serialize_type)


def encode_pull_response_header(int32_t code, int32_t opaque, int32_t version, remark, int64_t suggest,
                                int64_t next_begin, int64_t min_offset, int64_t max_offset, Py_ssize_t body_length,
                                int serialize_type):
    """Return the frame of a pull answer up to its body, which the caller sends after it.

    remark      str or None
    suggest     broker id to pull from next time; next_begin, min_offset and max_offset are queue offsets
    RocketMQ    remoting/protocol/header/PullMessageResponseHeader.java
    """
    cdef Piece pieces[8]
    cdef Piece remark_piece
    cdef uint8_t digits[80]
    if body_length < 0:
        raise ValueError(f"negative body length {body_length}")
    pieces[0] = literal("suggestWhichBrokerId")
    pieces[1] = number(digits, suggest)
    pieces[2] = literal("nextBeginOffset")
    pieces[3] = number(digits + 20, next_begin)
    pieces[4] = literal("minOffset")
    pieces[5] = number(digits + 40, min_offset)
    pieces[6] = literal("maxOffset")
    pieces[7] = number(digits + 60, max_offset)
    if remark is not None:
        try:
            remark_piece = str_piece(remark, serialize_type)
        except UnicodeEncodeError:
            remark = _replace_surrogates(remark)
            remark_piece = str_piece(remark, serialize_type)
    return build_frame(
        code, PYTHON, version, opaque, RESPONSE, NULL if remark is None else &remark_piece, pieces, 4, NULL, 0,
        body_length, serialize_type,
    )


def encode_body_responses(rows, heads, Py_ssize_t first, int32_t version, list bodies not None):
    """Return the frames of answers with code 0 and no ext fields, one after the other in one piece.

    rows, heads  of ``read_frames``: the answer with ``bodies[i]`` is to row ``first + i`` and has its OPAQUE and
                 SERIALIZE_TYPE
    bodies       list of bytes
    raises       IndexError for rows that are not there, LocalProtocolError for a body that fits no frame
    """
    cdef Py_buffer frames, table
    cdef const int64_t* row
    cdef const int64_t* head
    cdef PyObject* out
    cdef uint8_t* start
    cdef uint8_t* at
    cdef Py_ssize_t bound = 0, count = len(bodies), size, i
    cdef object result
    for body in bodies:
        if type(body) is not bytes:
            raise TypeError(f"expected bytes, not {type(body).__name__}")
        size = PyBytes_GET_SIZE(body)
        if size > INT32_MAX - HEADER_FIXED_BOUND:
            raise LocalProtocolError(f"a body of {size} bytes does not fit a frame")
        bound += size + HEADER_FIXED_BOUND
    take_rows(rows, &frames, FRAME_COLUMNS, False)
    try:
        take_rows(heads, &table, HEAD_COLUMNS, False)
        try:
            take_run(first, first + count, &frames, &table)
            out = new_bytes(NULL, bound)
            start = at = <uint8_t*>bytes_start(out)
            row = <const int64_t*>frames.buf + first * FRAME_COLUMNS
            head = <const int64_t*>table.buf + first * HEAD_COLUMNS
            for i in range(count):
                at = put_body_response(
                    at, <int32_t>head[OPAQUE], version, row[SERIALIZE_TYPE] == BINARY,
                    <const uint8_t*>PyBytes_AS_STRING(bodies[i]), PyBytes_GET_SIZE(bodies[i]),
                )
                row += FRAME_COLUMNS
                head += HEAD_COLUMNS
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&frames)
    _PyBytes_Resize(&out, at - start)
    result = <object>out
    Py_DECREF(result)
    return result


cdef inline uint8_t* put_body_response(uint8_t* frame, int32_t opaque, int32_t version, bint binary,
                                       const uint8_t* body, Py_ssize_t body_length) noexcept nogil:
    return rc_put_bytes(put_body_response_header(frame, opaque, version, binary, body_length), body, body_length)


cdef uint8_t* put_body_response_header(uint8_t* frame, int32_t opaque, int32_t version, bint binary,
                                       Py_ssize_t body_length) noexcept nogil:
    cdef uint8_t* end
    cdef uint32_t length
    if binary:
        end = put_binary(frame + 8, 0, PYTHON, version, opaque, RESPONSE, NULL, NULL, 0)
    else:
        end = put_json(frame + 8, 0, PYTHON, version, opaque, RESPONSE, NULL, NULL, 0)
    length = <uint32_t>(end - frame - 8)
    rc_put_32(rc_put_32(frame, 4 + length + <uint32_t>body_length), (BINARY if binary else JSON) << 24 | length)
    return end


def decode_text(data):
    """Decode UTF-8 as Java's ``String(byte[], UTF_8)``: never fails, and replaces malformed input piece by piece."""
    cdef Py_buffer source
    take_bytes(data, &source)
    try:
        return to_str(<const uint8_t*>source.buf, source.len)
    finally:
        PyBuffer_Release(&source)


def decode_properties(data):
    """Return the properties of a message as a dict; of a name that comes twice the last pair.

    data      property string in UTF-8, bytes-like; malformed text is decoded as Java does, malformed pairs are dropped
    RocketMQ  common/message/MessageDecoder.java ``string2messageProperties``
    """
    cdef Py_buffer source
    cdef dict properties = {}
    cdef rc_property_reader reader
    cdef rc_property found
    take_bytes(data, &source)
    try:
        reader = rc_read_properties(<const uint8_t*>source.buf, source.len)
        while rc_next_property(&reader, &found):
            properties[to_str(found.name, found.name_length)] = to_str(found.value, found.value_length)
        return properties
    finally:
        PyBuffer_Release(&source)


def encode_properties(properties):
    """Return the property string of a mapping of str to str or None, each pair ended by U+0002; None is not written.

    Neither length nor separators inside the texts are checked: that is the client's rule, not the format's.

    RocketMQ  common/message/MessageDecoder.java ``messageProperties2String`` (5.2 and later)
    """
    cdef list parts = []
    for name, value in properties.items():
        if value is not None:
            parts += (name, "\x01", value, "\x02")
    text = "".join(parts)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _replace_surrogates(text).encode()


def property_value(data, Py_ssize_t start, Py_ssize_t length, bytes name not None):
    """Return the value of one property of ``data[start:start + length]``, the last one of that name, or None.

    raises    ValueError for a range outside ``data``
    """
    cdef Py_buffer source
    cdef const uint8_t* value = NULL
    cdef int64_t value_length = 0
    cdef rc_property_reader reader
    cdef rc_property found
    take_bytes(data, &source)
    try:
        take_range(&source, start, start + length)
        reader = rc_read_properties(<const uint8_t*>source.buf + start, length)
        while rc_next_property(&reader, &found):
            if named(&found, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                value = found.value
                value_length = found.value_length
        return None if value == NULL else PyBytes_FromStringAndSize(<const char*>value, value_length)
    finally:
        PyBuffer_Release(&source)


def java_hash(str text not None):
    """Return Java's ``String.hashCode`` of a text, an int32, over its UTF-16 units."""
    cdef uint32_t value = 0, unit
    for character in text:
        unit = <Py_UCS4>character
        if unit > 0xffff:
            value = 31 * value + (0xd7c0 + (unit >> 10))
            unit = 0xdc00 | (unit & 0x3ff)
        value = 31 * value + unit
    return <int32_t>value
