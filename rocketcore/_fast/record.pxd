"""The layout of a stored message and of property text, read and written inline by every kernel that meets them.

The calls from Python are in record.pyx.

layout    totalSize i32 · magic i32 · bodyCRC i32 · queueId i32 · flag i32 · queueOffset i64 · physicalOffset i64 ·
          sysFlag i32 · bornTimestamp i64 · bornHost 8 or 20 · storeTimestamp i64 · storeHost 8 or 20 ·
          reconsumeTimes i32 · preparedTransactionOffset i64 · body i32 + n · topic i8 or i16 + n · properties i16 + n
property  name U+0001 value U+0002, the last U+0002 optional; a pair without name or value does not count
checksum  the last property may be ``__CRC32#`` U+0001, ten digits, U+0002: the CRC-32 of the record before it, sign bit
          cleared, in decimal, the least significant digit first (enabledAppendPropCRC)
limits    properties ≤ 32,767 bytes, the checksum counts; a topic above 127 bytes makes a V2 record; the CRC of the body
          is without its sign bit
RocketMQ  common/message/MessageDecoder.java, store/MessageExtEncoder.java, store/CommitLog.java
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from rocketcore._fast.status cimport (
    BODY_PAST_RECORD,
    CHECKSUM_WRONG,
    MAGIC_UNKNOWN,
    OK,
    PROPERTIES_PAST_RECORD,
    RECORD_PAST_END,
    RECORD_SIZE_WRONG,
    RECORD_TOO_SHORT,
    TOPIC_PAST_RECORD,
    Status,
)


cdef extern from "rc_bytes.h" nogil:
    bint rc_fits(const uint8_t* at, int64_t length, const uint8_t* end)
    bint rc_get_decimal(const uint8_t* at, const uint8_t* end, int64_t low, int64_t high, int64_t* value)
    int16_t rc_get_i16(const uint8_t* at)
    int32_t rc_get_i32(const uint8_t* at)
    int64_t rc_get_i64(const uint8_t* at)
    uint8_t* rc_put_u8(uint8_t* at, uint8_t value)
    uint8_t* rc_put_16(uint8_t* at, uint16_t value)
    uint8_t* rc_put_32(uint8_t* at, uint32_t value)
    uint8_t* rc_put_64(uint8_t* at, uint64_t value)
    uint8_t* rc_put_bytes(uint8_t* at, const void* source, size_t length)

cdef extern from "rc_hash.h" nogil:
    uint32_t rc_crc32(const uint8_t* data, size_t length, uint32_t value)
    int32_t rc_java_hash_utf8(const uint8_t* text, size_t length)
    bint rc_is_utf8(const uint8_t* text, size_t length)

cdef extern from "rc_properties.h" nogil:
    ctypedef struct rc_property:
        const uint8_t* name
        const uint8_t* value
        int64_t name_length
        int64_t value_length
    ctypedef struct rc_property_reader:
        pass
    rc_property_reader rc_read_properties(const uint8_t* at, int64_t length)
    bint rc_next_property(rc_property_reader* reader, rc_property* found)


cdef enum Magic:
    MAGIC_V1 = -626843481  # 0xDAA320A7
    MAGIC_V2 = -626843477  # 0xDAA320AB: the topic length has two bytes
    MAGIC_FILLER = -875286124  # 0xCBD43194: the rest of the file is not used

cdef enum SysFlag:
    TRANSACTION_MASK = 0xC
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80

cdef enum RecordSize:
    FIXED_SIZE = 91  # V1 with two IPv4 hosts, no body, topic or properties
    V6_EXTRA = 12
    TOPIC_MAX_V1 = 127
    TOPIC_MAX = 32767
    PROPERTIES_MAX = 32767

cpdef enum:
    CHECKSUM_SIZE = 20

cdef enum Checksum:
    CHECKSUM_DIGITS = 10
    # Bytes of name and separators, ten in all, that make the end of the properties a checksum that was hit: one flipped
    # bit leaves nine. Among records with a checksum a few are enough, no other text has them there.
    CHECKSUM_HIT = 8
    CHECKSUM_HIT_SEALED = 4

# One row per stored message. BORN_HOST and STORE_HOST are positions, like the columns that end in _START.
cpdef enum:
    POSITION
    TOTAL_SIZE
    MAGIC
    BODY_CRC
    QUEUE_ID
    FLAG
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SYS_FLAG
    BORN_TIMESTAMP
    BORN_HOST
    STORE_TIMESTAMP
    STORE_HOST
    RECONSUME_TIMES
    PREPARED_OFFSET
    BODY_START
    BODY_LENGTH
    TOPIC_START
    TOPIC_LENGTH
    PROPERTIES_START
    PROPERTIES_LENGTH
    TAGS_CODE
    STORED_COLUMNS


cdef inline uint32_t body_crc(const uint8_t* body, size_t length) noexcept nogil:
    """CRC-32 with the sign bit cleared, as RocketMQ stores it; 0 for an empty body."""
    return rc_crc32(body, length, 0) & 0x7FFFFFFF


cdef inline bint takes_unit(int64_t sys_flag) noexcept nogil:
    """Whether a record is in a consume queue: prepared and rolled back transaction messages are not."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_PREPARED and sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


cdef inline int64_t host_size(int64_t sys_flag, int v6_bit) noexcept nogil:
    return 20 if sys_flag & v6_bit else 8


cdef inline int64_t record_size(
    int64_t topic_length, int64_t body_length, int64_t properties_length, int64_t sys_flag
) noexcept nogil:
    """Bytes of a record; V2 where the topic does not fit the signed length byte of V1."""
    cdef int64_t size = FIXED_SIZE + topic_length + body_length + properties_length
    if topic_length > TOPIC_MAX_V1:
        size += 1
    if sys_flag & BORN_HOST_V6:
        size += V6_EXTRA
    if sys_flag & STORE_HOST_V6:
        size += V6_EXTRA
    return size


cdef inline Status read_fields(
    const uint8_t* data, int64_t at, int64_t end, int32_t magic, int64_t* row
) noexcept nogil:
    """Fill one row but TOTAL_SIZE from the fields of the record at ``at``, FIXED_SIZE bytes at least before ``end``."""
    cdef const uint8_t* record = data + at
    cdef const uint8_t* stop = data + end
    cdef const uint8_t* p
    cdef int64_t length
    cdef int32_t sys_flag
    row[POSITION] = at
    row[MAGIC] = magic
    row[BODY_CRC] = rc_get_i32(record + 8)
    row[QUEUE_ID] = rc_get_i32(record + 12)
    row[FLAG] = rc_get_i32(record + 16)
    row[QUEUE_OFFSET] = rc_get_i64(record + 20)
    row[PHYSICAL_OFFSET] = rc_get_i64(record + 28)
    sys_flag = rc_get_i32(record + 36)
    row[SYS_FLAG] = sys_flag
    row[BORN_TIMESTAMP] = rc_get_i64(record + 40)
    row[BORN_HOST] = at + 48
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        if end - at < record_size(0, 0, 0, sys_flag):
            return RECORD_TOO_SHORT
    p = record + 48 + host_size(sys_flag, BORN_HOST_V6)
    row[STORE_TIMESTAMP] = rc_get_i64(p)
    row[STORE_HOST] = p + 8 - data
    p += 8 + host_size(sys_flag, STORE_HOST_V6)
    row[RECONSUME_TIMES] = rc_get_i32(p)
    row[PREPARED_OFFSET] = rc_get_i64(p + 4)
    length = rc_get_i32(p + 12)
    p += 16
    if not rc_fits(p, length, stop):
        return BODY_PAST_RECORD
    row[BODY_START] = p - data
    row[BODY_LENGTH] = length
    p += length
    if magic == MAGIC_V1:
        if stop - p < 1:
            return TOPIC_PAST_RECORD
        length = <signed char>p[0]
        p += 1
    else:
        if stop - p < 2:
            return TOPIC_PAST_RECORD
        length = rc_get_i16(p)
        p += 2
    if not rc_fits(p, length, stop):
        return TOPIC_PAST_RECORD
    row[TOPIC_START] = p - data
    row[TOPIC_LENGTH] = length
    p += length
    if stop - p < 2:
        return PROPERTIES_PAST_RECORD
    length = rc_get_i16(p)
    p += 2
    if length < 0:
        length = 0
    if length > stop - p:
        return PROPERTIES_PAST_RECORD
    row[PROPERTIES_START] = p - data
    row[PROPERTIES_LENGTH] = length
    return OK


cdef inline Status read_record(const uint8_t* data, int64_t at, int64_t end, int64_t* row) noexcept nogil:
    """Fill one row from the record at ``at``; on a failure the row holds rubbish.

    As Java's decoder does, a negative properties length counts as 0, and bytes between the last field and the total
    size are skipped; whoever needs an exact size compares the end of the properties with the end of the record.
    """
    cdef int64_t size
    cdef int32_t magic
    if end - at < 8:
        return RECORD_PAST_END
    size = rc_get_i32(data + at)
    magic = rc_get_i32(data + at + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return MAGIC_UNKNOWN
    if size < FIXED_SIZE:
        return RECORD_TOO_SHORT
    if size > end - at:
        return RECORD_PAST_END
    row[TOTAL_SIZE] = size
    return read_fields(data, at, at + size, magic, row)


cdef inline Status check_body(const uint8_t* data, const int64_t* row) noexcept nogil:
    """Compare the body with its stored CRC; an empty body is not compared, as in Java."""
    if row[BODY_LENGTH] != 0 and body_crc(data + row[BODY_START], row[BODY_LENGTH]) != <uint32_t>row[BODY_CRC]:
        return CHECKSUM_WRONG
    return OK


cdef inline uint8_t* put_checksum(uint8_t* at, uint32_t checksum) noexcept nogil:
    """Write the property that ends a record; ``checksum`` has no sign bit (Java: MessageDecoder.createCrc32)."""
    cdef uint64_t left[<int>CHECKSUM_DIGITS + 1]
    cdef int i
    at = rc_put_u8(rc_put_bytes(at, b"__CRC32#", 8), 1)
    # Each quotient by itself: one division after the other would take four times as long as these.
    left[0] = checksum
    left[1] = checksum // 10
    left[2] = checksum // 100
    left[3] = checksum // 1000
    left[4] = checksum // 10000
    left[5] = checksum // 100000
    left[6] = checksum // 1000000
    left[7] = checksum // 10000000
    left[8] = checksum // 100000000
    left[9] = checksum // 1000000000
    left[10] = 0
    for i in range(<int>CHECKSUM_DIGITS):
        at[i] = <uint8_t>(48 + left[i] - 10 * left[i + 1])
    return rc_put_u8(at + CHECKSUM_DIGITS, 2)


cdef inline bint is_checksum(const uint8_t* tail) noexcept nogil:
    """Whether 20 bytes are name and separators of a checksum property."""
    return memcmp(tail, b"__CRC32#\x01", 9) == 0 and tail[CHECKSUM_SIZE - 1] == 2


cdef inline int checksum_likeness(const uint8_t* tail) noexcept nogil:
    """How many of the ten bytes of name and separators 20 bytes share with a checksum property."""
    cdef const uint8_t* name = b"__CRC32#\x01"
    cdef int i, same = tail[CHECKSUM_SIZE - 1] == 2
    for i in range(9):
        same += tail[i] == name[i]
    return same


cdef inline Status check_checksum(const uint8_t* record, int64_t size) noexcept nogil:
    """Compare a record that ends in a checksum property with it."""
    cdef const uint8_t* digits = record + size - 1 - CHECKSUM_DIGITS
    cdef uint64_t stored = 0, scale = 1
    cdef bint wrong = False
    cdef int i
    # Not stored * 10 + digit: that chain of multiplications is longer than the checksum of a short record takes.
    for i in range(<int>CHECKSUM_DIGITS):
        wrong |= <uint8_t>(digits[i] - 48) > 9
        stored += scale * <uint8_t>(digits[i] - 48)
        scale *= 10
    if wrong:
        return CHECKSUM_WRONG
    return OK if rc_crc32(record, size - CHECKSUM_SIZE, 0) & 0x7FFFFFFF == stored else CHECKSUM_WRONG


cdef inline bint is_property_text(const uint8_t* text, int64_t length) noexcept nogil:
    """Whether bytes may be properties: UTF-8, and no control characters but separators and white space at the end."""
    cdef int64_t i
    for i in range(max(length - CHECKSUM_SIZE, 0), length):
        if text[i] < 9 and text[i] != 1 and text[i] != 2 or 13 < text[i] < 32 or text[i] == 127:
            return False
    return rc_is_utf8(text, length)


cdef inline Status check_record(const uint8_t* data, const int64_t* row, bint* sealed) noexcept nogil:
    """The one judge of whether a record of the log is what was written.

    sealed   in: the writer of this part of the log gave every record a checksum; out: set where this one has a right
             one
    returns  OK for a record with a right checksum, or for one without (an older store, or Apache's with the setting
             off) whose fields add up to its size and whose body has its CRC

    Damage to the checksum itself must not make a record one without. A flipped bit leaves most of the property. Zeros,
    as of a page that was not written, or rubbish do not look like the text that ends the properties of another writer's
    record among sealed ones.
    """
    cdef const uint8_t* tail
    cdef int64_t size = row[TOTAL_SIZE], end = row[POSITION] + size, length = row[PROPERTIES_LENGTH]
    cdef int likeness
    cdef Status status
    if row[PROPERTIES_START] + length != end:
        return RECORD_SIZE_WRONG
    if length >= CHECKSUM_SIZE:
        tail = data + end - CHECKSUM_SIZE
        if is_checksum(tail):
            status = check_checksum(data + row[POSITION], size)
            if status == OK:
                sealed[0] = True
            return status
        likeness = checksum_likeness(tail)
        if likeness >= CHECKSUM_HIT or (sealed[0] and likeness >= CHECKSUM_HIT_SEALED):
            return CHECKSUM_WRONG
    if sealed[0] and not is_property_text(data + row[PROPERTIES_START], row[PROPERTIES_LENGTH]):
        return CHECKSUM_WRONG
    return check_body(data, row)


cdef inline bint named(const rc_property* found, const char* name, int64_t length) noexcept nogil:
    return found.name_length == length and memcmp(found.name, name, length) == 0


cdef inline int64_t hash_of_tags(const rc_property* tags) noexcept nogil:
    """What a consume queue keeps of a TAGS property: Java's hash of its value, sign-extended; 0 where value is NULL."""
    return rc_java_hash_utf8(tags.value, tags.value_length) if tags.value != NULL else 0


cdef inline int64_t find_tags_code(const uint8_t* properties, int64_t length) noexcept nogil:
    """The hash of the TAGS of a property text; the last TAGS wins, 0 without one."""
    cdef rc_property_reader reader = rc_read_properties(properties, length)
    cdef rc_property found, tags
    tags.value = NULL
    while rc_next_property(&reader, &found):
        if named(&found, b"TAGS", 4):
            tags = found
    return hash_of_tags(&tags)


cdef inline int64_t level_of(const uint8_t* text, int64_t length) noexcept nogil:
    """The delay level that a value of DELAY is; 0 unless it is a positive int32 (Java: ``Integer.parseInt``)."""
    cdef int64_t level
    cdef const uint8_t* end = text + length
    text += length > 0 and text[0] == c"+"
    while end - text > 1 and text[0] == c"0":
        text += 1
    return level if rc_get_decimal(text, end, 1, INT32_MAX, &level) else 0


# What the records of one put have in common. The hosts' widths are in sys_flag already.
cdef struct Fields:
    const uint8_t* topic
    int64_t topic_length
    const uint8_t* born_host
    const uint8_t* store_host
    const uint8_t* extra  # property text that is added to that of every message
    int64_t extra_length
    int64_t store_timestamp
    int64_t sys_flag
    int64_t born_timestamp
    int64_t prepared_offset
    int32_t queue_id
    int32_t reconsume_times
    bint checksum


# Property text that came with a message. ``kept`` is its length without checksums of records it was in before,
# ``open_ended`` says that it lacks its last separator.
cdef struct Properties:
    const uint8_t* at
    int64_t length
    int64_t kept
    bint open_ended


cdef inline Fields shared_fields(
    bytes topic, bytes born_host, bytes store_host, int64_t store_timestamp, int64_t sys_flag, bint checksum
) except *:
    """Fields without extra properties; those that are not given are 0. The arguments are pointed at.

    raises  ValueError for a topic that does not fit, or hosts that are none
    """
    cdef Fields fields
    cdef Py_ssize_t born_length = PyBytes_GET_SIZE(born_host), store_length = PyBytes_GET_SIZE(store_host)
    if (born_length != 8 and born_length != 20) or (store_length != 8 and store_length != 20):
        raise ValueError(f"hosts are address (4 or 16) and port (4), got {born_length} and {store_length} bytes")
    fields.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    fields.topic_length = PyBytes_GET_SIZE(topic)
    if fields.topic_length > TOPIC_MAX:
        raise ValueError(f"topic of {fields.topic_length} bytes, {<int>TOPIC_MAX} fit a record")
    fields.born_host = <const uint8_t*>PyBytes_AS_STRING(born_host)
    fields.store_host = <const uint8_t*>PyBytes_AS_STRING(store_host)
    fields.extra = NULL
    fields.extra_length = 0
    fields.store_timestamp = store_timestamp
    fields.sys_flag = sys_flag & ~<int64_t>(BORN_HOST_V6 | STORE_HOST_V6)
    if born_length == 20:
        fields.sys_flag |= BORN_HOST_V6
    if store_length == 20:
        fields.sys_flag |= STORE_HOST_V6
    fields.born_timestamp = fields.prepared_offset = 0
    fields.queue_id = fields.reconsume_times = 0
    fields.checksum = checksum
    return fields


cdef inline Properties plain_properties(const uint8_t* at, int64_t length) noexcept nogil:
    """Property text that is known to hold no checksum."""
    return Properties(at, length, length, length != 0 and at[length - 1] != 2)


cdef inline uint8_t* put_kept(
    uint8_t* out, const uint8_t* at, int64_t length, int64_t* kept, bint* open_ended
) noexcept nogil:
    """Copy property text without its checksum pairs, or only measure what is kept if ``out`` is NULL."""
    cdef const uint8_t* end = at + length
    cdef const uint8_t* stop
    cdef int64_t size
    kept[0] = 0
    open_ended[0] = False
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        size = end - at if stop == NULL else stop + 1 - at
        if size < 9 or memcmp(at, b"__CRC32#\x01", 9) != 0:
            if out != NULL:
                out = rc_put_bytes(out, at, size)
            kept[0] += size
            open_ended[0] = stop == NULL
        at += size
    return out


cdef inline Properties any_properties(const uint8_t* at, int64_t length) noexcept nogil:
    """Property text that may hold a checksum: a message that is stored again, or that a client made up so."""
    cdef Properties properties
    properties.at = at
    properties.length = length
    put_kept(NULL, at, length, &properties.kept, &properties.open_ended)
    return properties


cdef inline int64_t joined_length(const Fields* fields, const Properties* properties) noexcept nogil:
    """Bytes of the properties as stored: with ``fields.extra``, the checksum, and the separator before them."""
    cdef int64_t added = fields.extra_length + (CHECKSUM_SIZE if fields.checksum else 0)
    return properties.kept + added + (added != 0 and properties.open_ended)


cdef inline uint8_t* write_record(
    uint8_t* at, const Fields* fields, int64_t size, int32_t flag, int64_t queue_offset, int64_t physical_offset,
    const uint8_t* body, int64_t body_length, const Properties* properties,
) noexcept nogil:
    """Write one record of ``size`` bytes, with ``fields.extra`` and the checksum behind the properties it came with.

    The caller made room for it.
    """
    cdef uint8_t* record = at
    cdef int64_t kept
    cdef bint open_ended
    at = rc_put_32(at, <uint32_t>size)
    at = rc_put_32(at, <uint32_t>(MAGIC_V2 if fields.topic_length > TOPIC_MAX_V1 else MAGIC_V1))
    at = rc_put_32(at, body_crc(body, body_length))
    at = rc_put_32(at, <uint32_t>fields.queue_id)
    at = rc_put_32(at, <uint32_t>flag)
    at = rc_put_64(at, <uint64_t>queue_offset)
    at = rc_put_64(at, <uint64_t>physical_offset)
    at = rc_put_32(at, <uint32_t>fields.sys_flag)
    at = rc_put_64(at, <uint64_t>fields.born_timestamp)
    at = rc_put_bytes(at, fields.born_host, host_size(fields.sys_flag, BORN_HOST_V6))
    at = rc_put_64(at, <uint64_t>fields.store_timestamp)
    at = rc_put_bytes(at, fields.store_host, host_size(fields.sys_flag, STORE_HOST_V6))
    at = rc_put_32(at, <uint32_t>fields.reconsume_times)
    at = rc_put_64(at, <uint64_t>fields.prepared_offset)
    at = rc_put_32(at, <uint32_t>body_length)
    at = rc_put_bytes(at, body, body_length)
    if fields.topic_length > TOPIC_MAX_V1:
        at = rc_put_16(at, <uint16_t>fields.topic_length)
    else:
        at = rc_put_u8(at, <uint8_t>fields.topic_length)
    at = rc_put_bytes(at, fields.topic, fields.topic_length)
    at = rc_put_16(at, <uint16_t>joined_length(fields, properties))
    if properties.kept == properties.length:
        at = rc_put_bytes(at, properties.at, properties.length)
    else:
        at = put_kept(at, properties.at, properties.length, &kept, &open_ended)
    if properties.open_ended and (fields.extra_length or fields.checksum):
        at = rc_put_u8(at, 2)
    at = rc_put_bytes(at, fields.extra, fields.extra_length)
    if fields.checksum:
        at = put_checksum(at, rc_crc32(record, at - record, 0) & 0x7FFFFFFF)
    return at
