"""The layout of a stored message and of property text, read and written inline by every kernel that meets them.

layout    totalSize i32 · magic i32 · bodyCRC i32 · queueId i32 · flag i32 · queueOffset i64 · physicalOffset i64 ·
          sysFlag i32 · bornTimestamp i64 · bornHost 8 or 20 · storeTimestamp i64 · storeHost 8 or 20 ·
          reconsumeTimes i32 · preparedTransactionOffset i64 · body i32 + n · topic i8 or i16 + n · properties i16 + n
property  name U+0001 value U+0002, the last U+0002 optional; a pair without name or value does not count
checksum  the last property may be ``__CRC32#`` U+0001, ten digits, U+0002: the CRC-32 of the record before it, sign bit
          cleared, in decimal, the least significant digit first (enabledAppendPropCRC)
RocketMQ  common/message/MessageDecoder.java, store/MessageExtEncoder.java, store/CommitLog.java
"""

from libc.stdint cimport INT16_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

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

cdef enum Checksum:
    CHECKSUM_SIZE = 20
    CHECKSUM_DIGITS = 10
    # Bytes of name and separators, ten in all, that make the end of the properties a checksum that was hit: one flipped
    # bit leaves nine. Among records with a checksum a few are enough, no other text has them there.
    CHECKSUM_HIT = 8
    CHECKSUM_HIT_SEALED = 4

# One row per stored message. BORN_HOST and STORE_HOST are positions, like the columns that end in _START.
cdef enum:
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


cdef inline int64_t find_tags_code(const uint8_t* properties, int64_t length) noexcept nogil:
    """Java hash of the TAGS value, sign-extended; the last TAGS wins, 0 without one."""
    cdef rc_property_reader reader = rc_read_properties(properties, length)
    cdef rc_property found
    cdef const uint8_t* tags = NULL
    cdef int64_t tags_length = 0
    while rc_next_property(&reader, &found):
        if named(&found, b"TAGS", 4):
            tags = found.value
            tags_length = found.value_length
    return rc_java_hash_utf8(tags, tags_length) if tags != NULL else 0
