"""Command headers: read whole, or one field of a row; written with the frame around them.

Formats: command.pxd. What is a row: frame.pxd. RocketMQ: remoting/protocol/{RemotingCommand,RemotingSerializable,
RocketMQSerializable}.java 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport strlen

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, check_range, give_back
from rocketcore._fast.frame cimport (
    BINARY,
    EXT_END,
    EXT_START,
    FLAG,
    FRAME_COLUMNS,
    HEAD_COLUMNS,
    HEADER_LENGTH,
    HEADER_START,
    JSON,
    OPAQUE,
    SERIALIZE_TYPE,
    STATUS,
    ext_in,
    row_in,
)
from rocketcore._fast.status cimport OK, Status, fail
from rocketcore._fast.text cimport replace_surrogates

from rocketcore.errors import LocalProtocolError


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_u8(uint8_t* at, uint8_t value)
    uint8_t* rc_put_16(uint8_t* at, uint16_t value)
    uint8_t* rc_put_32(uint8_t* at, uint32_t value)
    uint8_t* rc_put_bytes(uint8_t* at, const void* source, size_t length)
    uint8_t* rc_put_decimal(uint8_t* at, int64_t value)

cdef extern from "rc_json.h" nogil:
    uint8_t* rc_json_unescape(uint8_t* out, const uint8_t* at, const uint8_t* end)
    size_t rc_json_escaped_size(const uint8_t* text, size_t length)
    uint8_t* rc_json_escape(uint8_t* out, const uint8_t* text, size_t length)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    # Bytes as pointers: a resize may move the object, so that no reference may be held while it happens.
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char* source, Py_ssize_t size) except NULL
    char* bytes_start "PyBytes_AS_STRING"(PyObject* of)
    int _PyBytes_Resize(PyObject** of, Py_ssize_t size) except -1


cdef enum:
    STACK_BYTES = 1024
    STACK_TEXTS = 64
    HEADER_MAX = 0xffffff
    ENTRY_BOUND = 6  # what one ext entry takes besides its texts, in either form


cdef object unescaped(const Text* text):
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
    cdef Borrowed held
    cdef Head head
    cdef Status status
    cdef const uint8_t* start
    cdef const uint8_t* end
    cdef const uint8_t* stopped
    cdef object remark = None, ext = None
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, header_start, header_start + header_length)
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
        give_back(&held)


cdef inline int check_run(Py_ssize_t first, Py_ssize_t last, const Py_buffer* frames, const Py_buffer* heads) except -1:
    """IndexError unless the rows ``first`` to ``last`` (excluded) are in both tables."""
    if first < 0 or last < first or last > frames.shape[0] or last > heads.shape[0]:
        raise IndexError(f"rows {first}:{last}, but the tables have {frames.shape[0]} and {heads.shape[0]}")
    return 0


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
    cdef Borrowed held
    cdef const int64_t* row
    cdef const int64_t* head
    cdef list values = []
    cdef Py_ssize_t i
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        check_run(first, last, frames, table)
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
        give_back(&held)


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
    cdef Borrowed held
    cdef const int64_t* row
    cdef const int64_t* head
    cdef Pull pull
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        check_run(index, index + 1, frames, table)
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
        give_back(&held)


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
    cdef Borrowed held
    cdef dict ext
    if code < INT32_MIN or code > INT32_MAX:
        raise OverflowError(f"code {code} does not fit int32")
    if serialize_type == BINARY and not -0x8000 <= code <= 0x7fff:
        serialize_type = JSON
    ext = ext_fields if ext_fields is None or type(ext_fields) is dict else dict(ext_fields)
    held.count = 0
    try:
        source = borrow_bytes(&held, body)
        try:
            return encode_command(
                code, language, version, opaque, flag, remark, ext, <const uint8_t*>source.buf, source.len,
                serialize_type,
            )
        except UnicodeEncodeError:
            if remark is not None:
                remark = replace_surrogates(remark)
            if ext is not None:
                ext = {
                    replace_surrogates(key): replace_surrogates(value)
                    for key, value in ext.items() if value is not None
                }
            return encode_command(
                code, language, version, opaque, flag, remark, ext, <const uint8_t*>source.buf, source.len,
                serialize_type,
            )
    finally:
        give_back(&held)


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
            remark = replace_surrogates(remark)
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
    cdef Borrowed held
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
    held.count = 0
    try:
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, False)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, False)
        check_run(first, first + count, frames, table)
        out = new_bytes(NULL, bound)
        start = at = <uint8_t*>bytes_start(out)
        row = <const int64_t*>frames.buf + first * FRAME_COLUMNS
        head = <const int64_t*>table.buf + first * HEAD_COLUMNS
        for i in range(count):
            at = put_body_response_header(
                at, <int32_t>head[OPAQUE], version, row[SERIALIZE_TYPE] == BINARY, PyBytes_GET_SIZE(bodies[i])
            )
            at = rc_put_bytes(at, PyBytes_AS_STRING(bodies[i]), PyBytes_GET_SIZE(bodies[i]))
            row += FRAME_COLUMNS
            head += HEAD_COLUMNS
    finally:
        give_back(&held)
    _PyBytes_Resize(&out, at - start)
    result = <object>out
    Py_DECREF(result)
    return result


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
