"""Command headers, read whole and written with the frame around them.

Formats: command.pxd. RocketMQ: remoting/protocol/{RemotingCommand,RemotingSerializable,
RocketMQSerializable}.java 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport strlen

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, check_range, give_back
from rocketcore._fast.frame cimport BINARY, JSON
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


cdef enum:
    STACK_BYTES = 1024
    STACK_TEXTS = 64
    HEADER_MAX = 0xffffff
    ENTRY_BOUND = 6  # what one ext entry takes besides its texts, in either form


cdef inline int64_t find_language(const Text* name) noexcept nogil:
    """Ordinal of a language name, −1 where it is none of them (or written in another case)."""
    cdef int64_t i
    for i in range(LANGUAGES):
        if is_text(name, rc_language_names[i], strlen(rc_language_names[i])):
            return i
    return -1


cdef bint read_json(const uint8_t* at, const uint8_t* end, Head* head) noexcept nogil:
    """Fill ``head``; False if it is unusual.

    Unusual is also a key that is unknown or comes twice, a missing opaque (Java invents one), an unknown language, and
    text that is not UTF-8: rare, and the general reader decides what they mean.
    """
    cdef Text key, text
    cdef int seen = 0, field
    if not rc_is_utf8(at, end - at):
        return False
    head.code = head.language = head.version = head.flag = 0
    head.remark.start = head.ext.start = NULL
    at = skip_space(at, end)
    if at == end or at[0] != c"{":
        return False
    at = skip_space(at + 1, end)
    while True:
        at = read_string(at, end, &key)
        if at == NULL:
            return False
        at = skip_space(at, end)
        if at == end or at[0] != c":":
            return False
        at = skip_space(at + 1, end)
        if is_text(&key, "code", 4):
            field = 1
            at = read_int(at, end, &head.code)
        elif is_text(&key, "extFields", 9):
            field = 2
            if at < end and at[0] == c"n":
                at = read_word(at, end, "null")
            else:
                at = skip_ext(at, end, &head.ext)
        elif is_text(&key, "flag", 4):
            field = 4
            at = read_int(at, end, &head.flag)
        elif is_text(&key, "language", 8):
            field = 8
            at = read_string(at, end, &text)
            if at != NULL:
                head.language = find_language(&text)
                if head.language < 0:
                    return False
        elif is_text(&key, "opaque", 6):
            field = 16
            at = read_int(at, end, &head.opaque)
        elif is_text(&key, "remark", 6):
            field = 32
            if at < end and at[0] == c"n":
                at = read_word(at, end, "null")
            else:
                at = read_string(at, end, &head.remark)
        elif is_text(&key, "serializeTypeCurrentRPC", 23):
            field = 64
            at = read_string(at, end, &text)
        elif is_text(&key, "version", 7):
            field = 128
            at = read_int(at, end, &head.version)
        else:
            return False
        if at == NULL or seen & field:
            return False
        seen |= field
        at = skip_space(at, end)
        if at == end:
            return False
        if at[0] == c"}":
            break
        if at[0] != c",":
            return False
        at = skip_space(at + 1, end)
    return (seen & 16) != 0 and skip_space(at + 1, end) == end


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
