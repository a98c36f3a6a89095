/* Big-endian reads and writes at any alignment, and the length check that every record reader starts with.
 *
 * All integers of the remoting protocol and of the store files are big-endian two's complement. The readers do not
 * check bounds: a caller compares the length of a record with the bytes left, once (rc_fits), then reads inside it.
 */
#ifndef RC_BYTES_H
#define RC_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define RC_BE16(x) (x)
#define RC_BE32(x) (x)
#define RC_BE64(x) (x)
#else
#define RC_BE16(x) __builtin_bswap16(x)
#define RC_BE32(x) __builtin_bswap32(x)
#define RC_BE64(x) __builtin_bswap64(x)
#endif

/* True if `length` bytes from `at` lie before `end`. A negative length never fits, so that a claimed length needs no
 * other test; the comparison cannot overflow because it subtracts pointers into one buffer. */
static inline int rc_fits(const uint8_t *at, int64_t length, const uint8_t *end) {
    return length >= 0 && length <= (int64_t)(end - at);
}

static inline uint16_t rc_get_u16(const uint8_t *at) {
    uint16_t raw;
    memcpy(&raw, at, sizeof raw);
    return RC_BE16(raw);
}

static inline uint32_t rc_get_u32(const uint8_t *at) {
    uint32_t raw;
    memcpy(&raw, at, sizeof raw);
    return RC_BE32(raw);
}

static inline uint64_t rc_get_u64(const uint8_t *at) {
    uint64_t raw;
    memcpy(&raw, at, sizeof raw);
    return RC_BE64(raw);
}

static inline int16_t rc_get_i16(const uint8_t *at) { return (int16_t)rc_get_u16(at); }
static inline int32_t rc_get_i32(const uint8_t *at) { return (int32_t)rc_get_u32(at); }
static inline int64_t rc_get_i64(const uint8_t *at) { return (int64_t)rc_get_u64(at); }

static inline uint32_t rc_get_u24(const uint8_t *at) {
    return ((uint32_t)at[0] << 16) | ((uint32_t)at[1] << 8) | at[2];
}

/* The writers return the byte after what they wrote, so that a record is one chain of calls. */
static inline uint8_t *rc_put_u8(uint8_t *at, uint8_t value) {
    *at = value;
    return at + 1;
}

static inline uint8_t *rc_put_16(uint8_t *at, uint16_t value) {
    uint16_t raw = RC_BE16(value);
    memcpy(at, &raw, sizeof raw);
    return at + sizeof raw;
}

static inline uint8_t *rc_put_32(uint8_t *at, uint32_t value) {
    uint32_t raw = RC_BE32(value);
    memcpy(at, &raw, sizeof raw);
    return at + sizeof raw;
}

static inline uint8_t *rc_put_64(uint8_t *at, uint64_t value) {
    uint64_t raw = RC_BE64(value);
    memcpy(at, &raw, sizeof raw);
    return at + sizeof raw;
}

static inline uint8_t *rc_put_bytes(uint8_t *at, const void *from, size_t length) {
    if (length != 0) /* memcpy takes no null pointer, not even for nothing */
        memcpy(at, from, length);
    return at + length;
}

/* Decimal digits of a signed number, without a terminator; at most 20 bytes. */
static inline uint8_t *rc_put_decimal(uint8_t *at, int64_t value) {
    uint8_t digits[20];
    int used = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *at++ = '-';
    do {
        digits[used++] = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left != 0);
    while (used != 0)
        *at++ = digits[--used];
    return at;
}

/* Read what rc_put_decimal writes: optional minus, digits, nothing else. Returns 1 and sets *value if the text is a
 * decimal number between `low` and `high`, else 0. Leading zeros are fine; a plus sign is not. */
static inline int rc_get_decimal(const uint8_t *at, const uint8_t *end, int64_t low, int64_t high, int64_t *value) {
    int negative = at < end && *at == '-';
    uint64_t magnitude = 0;
    at += negative;
    if (at == end || end - at > 19) /* 19 digits always fit an unsigned 64-bit number */
        return 0;
    for (; at < end; at++) {
        uint8_t digit = (uint8_t)(*at - '0');
        if (digit > 9)
            return 0;
        magnitude = magnitude * 10 + digit;
    }
    if (magnitude > (uint64_t)INT64_MAX + (uint64_t)negative)
        return 0;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return *value >= low && *value <= high;
}

#endif
