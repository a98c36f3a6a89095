"""A command header in its two forms, read from pointer and end.

JSON      {"code":…,"extFields":{…},"flag":…,"language":"…","opaque":…,"remark":"…","serializeTypeCurrentRPC":"JSON",
          "version":…}: keys in any order, standard JSON, ext values texts. Anything else is *unusual* and left to the
          general reader of rocketcore.protocol, which gives the same command for what both can read
binary    code i16 · language u8 · version i16 · opaque i32 · flag i32 · remark i32 + n · ext i32 + n, where ext is
          entries of key i16 + n · value i32 + n
RocketMQ  remoting/protocol/{RemotingCommand,RemotingSerializable,RocketMQSerializable}.java 5.5.0

The readers neither allocate nor keep a pointer; a ``Text`` lives as long as the data.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, strlen

from rocketcore._fast.status cimport (
    EXT_ENTRY_BROKEN,
    EXT_KEY_EMPTY,
    EXT_PAST_HEADER,
    HEADER_TOO_SHORT,
    OK,
    REMARK_PAST_HEADER,
    Status,
)
from rocketcore._fast.text cimport to_str


cdef extern from "rc_bytes.h" nogil:
    bint rc_fits(const uint8_t* at, int64_t length, const uint8_t* end)
    int16_t rc_get_i16(const uint8_t* at)
    int32_t rc_get_i32(const uint8_t* at)
    bint rc_get_decimal(const uint8_t* at, const uint8_t* end, int64_t low, int64_t high, int64_t* value)

cdef extern from "rc_hash.h" nogil:
    bint rc_is_utf8(const uint8_t* at, size_t length)

cdef extern from "rc_json.h" nogil:
    const uint8_t* rc_json_close(const uint8_t* at, const uint8_t* end, int* plain)

cdef extern from *:
    """
    /* LanguageCode by ordinal. */
    static const char *const rc_language_names[] = {
        "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
        "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
    };
    enum { LANGUAGES = sizeof rc_language_names / sizeof rc_language_names[0] };
    """
    const char* rc_language_names[]
    const int LANGUAGES

cdef enum:
    PYTHON = 3              # ordinal of our own language
    RESPONSE = 1            # bit of the flag
    BINARY_FIXED_SIZE = 21  # the fixed fields of a binary header, both length words included
    HEADER_FIXED_BOUND = 256  # more than the fixed fields take in either form, the eight bytes before them included


# A text inside the buffer: where it is, and whether it may hold JSON escapes.
cdef struct Text:
    const uint8_t* start
    const uint8_t* end
    bint escaped


# What one header says. remark.start and ext.start are NULL where there is none.
cdef struct Head:
    int64_t code
    int64_t language
    int64_t version
    int64_t opaque
    int64_t flag
    Text remark
    Text ext


cdef inline const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) noexcept nogil:
    # One comparison where there is no space, as in what Java and most clients write.
    while at < end and at[0] <= c" " and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t"):
        at += 1
    return at


cdef inline bint is_text(const Text* text, const char* word, size_t length) noexcept nogil:
    return <size_t>(text.end - text.start) == length and memcmp(text.start, word, length) == 0


cdef inline const uint8_t* read_string(const uint8_t* at, const uint8_t* end, Text* text) noexcept nogil:
    """Read a JSON string; returns the byte after its closing quote, NULL if it is not one."""
    cdef int plain = 1
    if at == end or at[0] != c'"':
        return NULL
    text.start = at + 1
    text.end = rc_json_close(at + 1, end, &plain)
    text.escaped = not plain
    if text.end == NULL:
        return NULL
    return text.end + 1


cdef inline const uint8_t* read_word(const uint8_t* at, const uint8_t* end, const char* word) noexcept nogil:
    cdef size_t length = strlen(word)
    if <size_t>(end - at) < length or memcmp(at, word, length) != 0:
        return NULL
    return at + length


cdef inline const uint8_t* read_int(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """Read a JSON integer that fits int32; a number with a fraction or an exponent is unusual."""
    cdef bint negative = at < end and at[0] == c"-"
    cdef const uint8_t* digits = at + negative
    cdef int64_t read = 0
    at = digits
    while at < end and c"0" <= at[0] <= c"9" and read <= INT32_MAX:
        read = read * 10 + (at[0] - c"0")
        at += 1
    if at == digits or (digits[0] == c"0" and at - digits > 1) or read > <int64_t>INT32_MAX + negative:
        return NULL
    value[0] = -read if negative else read
    return at


cdef inline int next_json_entry(const uint8_t** position, const uint8_t* end, Text* key, Text* value) noexcept nogil:
    """Read one entry of an object of texts, from before its key to after its comma.

    Returns 1, or 0 at the end of the object's inside, or −1 if it is unusual.
    """
    cdef const uint8_t* at = skip_space(position[0], end)
    if at == end:
        return 0
    at = read_string(at, end, key)
    if at == NULL:
        return -1
    at = skip_space(at, end)
    if at == end or at[0] != c":":
        return -1
    at = read_string(skip_space(at + 1, end), end, value)
    if at == NULL:
        return -1
    at = skip_space(at, end)
    if at < end:
        if at[0] != c",":
            return -1
        at = skip_space(at + 1, end)
        if at == end:
            return -1
    position[0] = at
    return 1


cdef inline Status next_binary_entry(
    const uint8_t** position, const uint8_t* end, Text* key, Text* value
) noexcept nogil:
    """Read one entry; ``end`` is the end of the header, because Java lets the last entry run past the ext fields."""
    cdef const uint8_t* at = position[0]
    cdef int64_t length
    if not rc_fits(at, 2, end):
        return EXT_ENTRY_BROKEN
    length = rc_get_i16(at)
    if length == 0:
        return EXT_KEY_EMPTY
    at += 2
    if length < 0 or not rc_fits(at, length + 4, end):
        return EXT_ENTRY_BROKEN
    key.start = at
    key.end = at = at + length
    key.escaped = value.escaped = False
    length = rc_get_i32(at)
    at += 4
    if not rc_fits(at, length, end):
        return EXT_ENTRY_BROKEN
    value.start = at
    value.end = at + length
    position[0] = value.end
    return OK


cdef inline const uint8_t* skip_ext(const uint8_t* at, const uint8_t* end, Text* ext) noexcept nogil:
    """Pass over the object of ext fields, all texts; ``ext`` becomes its inside."""
    cdef Text text
    cdef bint escaped = False
    if at == end or at[0] != c"{":
        return NULL
    at = skip_space(at + 1, end)
    ext.start = at
    if at < end and at[0] == c"}":
        ext.end = at
        ext.escaped = False
        return at + 1
    while True:
        at = read_string(at, end, &text)
        if at == NULL:
            return NULL
        escaped |= text.escaped
        at = skip_space(at, end)
        if at == end or at[0] != c":":
            return NULL
        at = read_string(skip_space(at + 1, end), end, &text)
        if at == NULL:
            return NULL
        escaped |= text.escaped
        at = skip_space(at, end)
        if at == end:
            return NULL
        if at[0] == c"}":
            ext.end = at
            ext.escaped = escaped
            return at + 1
        if at[0] != c",":
            return NULL
        at = skip_space(at + 1, end)


cdef inline Status read_binary(
    const uint8_t* at, const uint8_t* end, Head* head, const uint8_t** stopped
) noexcept nogil:
    """Fill ``head`` from a binary header, every entry checked; on failure ``stopped`` is the field that is wrong."""
    cdef Text key, value
    cdef int64_t length
    cdef Status status
    stopped[0] = at
    if end - at < BINARY_FIXED_SIZE:
        return HEADER_TOO_SHORT
    head.code = rc_get_i16(at)
    head.language = at[2] if at[2] < LANGUAGES else -1
    head.version = rc_get_i16(at + 3)
    head.opaque = rc_get_i32(at + 5)
    head.flag = rc_get_i32(at + 9)
    length = rc_get_i32(at + 13)
    at += 17
    if length < 0 or not rc_fits(at, length + 4, end):
        stopped[0] = at - 4
        return REMARK_PAST_HEADER
    head.remark.start = at if length != 0 else NULL
    head.remark.end = at = at + length
    head.remark.escaped = False
    length = rc_get_i32(at)
    at += 4
    head.ext.start = NULL
    if length > 0:
        if not rc_fits(at, length, end):
            stopped[0] = at - 4
            return EXT_PAST_HEADER
        head.ext.start = at
        head.ext.end = at + length
        head.ext.escaped = False
        while at < head.ext.end:
            stopped[0] = at
            status = next_binary_entry(&at, end, &key, &value)
            if status != OK:
                return status
        head.ext.end = at
    return OK


# Fills ``head`` from a JSON header; False if it is unusual. Not inline: it is long, and a loop that calls it would keep
# its own variables on the stack for it.
cdef bint read_json(const uint8_t* at, const uint8_t* end, Head* head) noexcept nogil

# The text as bytes, its JSON escapes resolved.
cdef object unescaped(const Text* text)


cdef inline object text_str(const Text* text):
    if text.escaped:
        return unescaped(text).decode()
    return to_str(text.start, text.end - text.start)


# Writes a frame with code 0 and no ext fields up to its body; at most HEADER_FIXED_BOUND bytes. Returns their end.
cdef uint8_t* put_body_response_header(
    uint8_t* frame, int32_t opaque, int32_t version, bint binary, Py_ssize_t body_length
) noexcept nogil
