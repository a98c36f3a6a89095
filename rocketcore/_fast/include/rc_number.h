/* Reading numbers from text as Java does: Integer.valueOf, Long.valueOf and Double.valueOf, for any UTF-8 text.
 *
 * Source: JDK 17, java/lang/Long.parseLong, java/lang/Character.digit, jdk/internal/math/FloatingDecimal.
 */
#ifndef RC_NUMBER_H
#define RC_NUMBER_H

#include <math.h>
#include <stdint.h>

#include "rc_hash.h"

/* The digits 0 to 9 beyond ASCII that are one UTF-16 unit each, by their zero: the others are two units, of which
 * Java's parser takes none for a digit. */
static const uint16_t rc_zeros[] = {
    0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66,
    0x0de6, 0x0e50, 0x0ed0, 0x0f20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
};

static inline int rc_is_digit(uint8_t byte) {
    return byte >= '0' && byte <= '9';
}

/* Take one decimal digit of any script; returns -1 for what is none. */
static inline int rc_take_digit(const uint8_t **at, const uint8_t *end) {
    uint32_t code_point;
    if (**at < 0x80)
        return rc_is_digit(**at) ? *(*at)++ - '0' : -1;
    *at += rc_java_utf8(*at, end, &code_point);
    for (unsigned i = 0; i < sizeof rc_zeros / sizeof *rc_zeros; i++)
        if (code_point - rc_zeros[i] < 10)
            return (int)(code_point - rc_zeros[i]);
    return -1;
}

/* Read an optional sign and digits, nothing else, as a number in [-largest - 1, largest]; returns 0 for other text. */
static inline int rc_parse_integer(const uint8_t *at, int64_t length, int64_t largest, int64_t *value) {
    const uint8_t *end = at + length;
    uint64_t magnitude = 0, limit = (uint64_t)largest;
    int negative = 0;
    if (at < end && (*at == '-' || *at == '+')) {
        negative = *at++ == '-';
        limit += negative;
    }
    if (at == end)
        return 0;
    while (at < end) {
        int digit = rc_take_digit(&at, end);
        if (digit < 0 || magnitude > (limit - digit) / 10)
            return 0;
        magnitude = 10 * magnitude + digit;
    }
    *value = (int64_t)(negative ? 0 - magnitude : magnitude);
    return 1;
}

/* What rc_parse_double made of a text. */
enum { RC_NO_NUMBER, RC_NUMBER, RC_LONG_DECIMAL, RC_HEXADECIMAL };

static inline int rc_is_hex(uint8_t byte) {
    return rc_is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

static inline int rc_is_word(const uint8_t *at, const uint8_t *end, const char *word, int64_t length) {
    return end - at == length && memcmp(at, word, length) == 0;
}

/* Take the exponent's sign and digits behind its letter, bounded; returns 0 where there is no digit. */
static inline int rc_take_exponent(const uint8_t **at, const uint8_t *end, int *exponent) {
    int negative = 0, value = 0;
    if (*at < end && (**at == '-' || **at == '+'))
        negative = *(*at)++ == '-';
    if (*at == end || !rc_is_digit(**at))
        return 0;
    for (; *at < end && rc_is_digit(**at); ++*at)
        if (value < 100000)
            value = 10 * value + (**at - '0');
    *exponent = negative ? -value : value;
    return 1;
}

/* Read a floating point number with blanks around it and perhaps one of fFdD behind it.
 *
 * returns  RC_NUMBER: `value` has it. RC_LONG_DECIMAL, RC_HEXADECIMAL: it is one, `start` and `stop` are the bounds of
 *          its text with its sign and without suffix, and more work makes its value. RC_NO_NUMBER: Java refuses it.
 */
static inline int rc_parse_double(
    const uint8_t *at, int64_t length, double *value, const uint8_t **start, const uint8_t **stop) {
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const uint8_t *end = at + length;
    uint64_t mantissa = 0;
    int negative = 0, digits = 0, counted = 0, scale = 0, exponent = 0, is_hex = 0, is_long = 0;
    while (at < end && *at <= ' ')
        at++;
    while (at < end && end[-1] <= ' ')
        end--;
    *start = at;
    if (at < end && (*at == '-' || *at == '+'))
        negative = *at++ == '-';
    if (rc_is_word(at, end, "NaN", 3)) {
        *value = NAN;
        return RC_NUMBER;
    }
    if (rc_is_word(at, end, "Infinity", 8)) {
        *value = negative ? -INFINITY : INFINITY;
        return RC_NUMBER;
    }
    if (end - at > 2 && at[0] == '0' && (at[1] | 0x20) == 'x') {
        for (at += 2; at < end && rc_is_hex(*at); at++)
            digits++;
        if (at < end && *at == '.')
            for (at++; at < end && rc_is_hex(*at); at++)
                digits++;
        if (digits == 0 || at == end || (*at | 0x20) != 'p')
            return RC_NO_NUMBER;
        at++;
        if (!rc_take_exponent(&at, end, &exponent))
            return RC_NO_NUMBER;
        is_hex = 1;
        *stop = at;
    } else {
        for (int behind = 0; at < end; at++) {
            if (*at == '.' && !behind) {
                behind = 1;
                continue;
            }
            if (!rc_is_digit(*at))
                break;
            digits = 1;
            if (counted < 19) {
                mantissa = 10 * mantissa + (*at - '0');
                counted += mantissa != 0;
                scale -= behind;
            } else {
                is_long = 1;
            }
        }
        if (digits == 0)
            return RC_NO_NUMBER;
        *stop = at;
        if (at < end && (*at | 0x20) == 'e') {
            at++;
            if (!rc_take_exponent(&at, end, &exponent))
                return RC_NO_NUMBER;
            *stop = at;
        }
        exponent += scale;
    }
    if (at < end && ((*at | 0x20) == 'd' || (*at | 0x20) == 'f'))
        at++;
    if (at != end)
        return RC_NO_NUMBER;
    if (is_hex)
        return RC_HEXADECIMAL;
    /* Both are exact, so that one operation rounds once. */
    if (is_long || mantissa > (uint64_t)1 << 53 || exponent < -22 || exponent > 22)
        return RC_LONG_DECIMAL;
    *value = exponent < 0 ? (double)mantissa / tens[-exponent] : (double)mantissa * tens[exponent];
    if (negative)
        *value = -*value;
    return RC_NUMBER;
}

/* Double.compare: -0.0 is less than 0.0, NaN is itself and greater than all else. */
static inline int rc_compare_double(double left, double right) {
    if (left < right)
        return -1;
    if (left > right)
        return 1;
    if (left == right)
        return left != 0 ? 0 : (signbit(right) != 0) - (signbit(left) != 0);
    return (left != left) - (right != right);
}

#endif
