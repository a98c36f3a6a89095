/* JSON strings, checked, skipped, written and read in place; just what a remoting header needs.
 *
 * The readers take standard JSON only (RFC 8259), and refuse an escaped surrogate without its other half, because it has
 * no UTF-8. What they refuse goes to the general reader of rocketcore.protocol, which knows what else Java takes.
 */
#ifndef RC_JSON_H
#define RC_JSON_H

#include "rc_bytes.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Nonzero if one of eight bytes is a quote, a backslash or a control character (exact: the subtractions do not borrow
 * into a byte that is tested, because only bytes without the top bit count). */
static inline uint64_t rc_json_special(uint64_t eight) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    uint64_t low = eight & ~tops;
    uint64_t quote = (low ^ ones * '"') + (tops - ones);      /* top bit clear only where the byte is a quote */
    uint64_t backslash = (low ^ ones * '\\') + (tops - ones); /* … a backslash */
    uint64_t control = low + ones * (0x80 - 0x20);            /* … below 0x20 */
    return ~(quote & backslash & control) & ~eight & tops;
}

/* rc_json_plain past the first bytes; out of line, as rc_json_escaped, to keep the readers small. */
__attribute__((noinline)) static const uint8_t *rc_json_plain_long(const uint8_t *at, const uint8_t *end) {
    while (end - at >= 8) {
        uint64_t eight;
        memcpy(&eight, at, 8);
        if (rc_json_special(eight) != 0)
            break;
        at += 8;
    }
    while (at < end && *at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    return at;
}

/* The first byte from `at` that is a quote, a backslash or a control character, or `end`. */
static inline const uint8_t *rc_json_plain(const uint8_t *at, const uint8_t *end) {
#ifdef __SSE2__
    if (end - at >= 16) { /* most texts of a header are shorter */
        __m128i text = _mm_loadu_si128((const __m128i *)at), control = _mm_set1_epi8(0x1f);
        __m128i special = _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        special = _mm_or_si128(special, _mm_cmpeq_epi8(_mm_max_epu8(text, control), control));
        unsigned found = (unsigned)_mm_movemask_epi8(special);
        if (found != 0)
            return at + __builtin_ctz(found);
        at += 16;
    }
#endif
    return rc_json_plain_long(at, end);
}

static inline int rc_json_hex4(const uint8_t *at, uint32_t *unit) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = at[i], digit;
        if ((uint8_t)(c - '0') <= 9)
            digit = c - '0';
        else if ((uint8_t)((c | 0x20) - 'a') <= 5)
            digit = (c | 0x20) - 'a' + 10;
        else
            return 0;
        value = value << 4 | digit;
    }
    *unit = value;
    return 1;
}

/* Read one escape; `at` is its backslash. Returns the byte after it, or NULL if it is not a standard one. */
__attribute__((noinline)) static const uint8_t *rc_json_escaped(const uint8_t *at, const uint8_t *end, uint32_t *code_point) {
    uint32_t low;
    if (end - at < 2)
        return NULL;
    switch (at[1]) {
    case '"': case '\\': case '/': *code_point = at[1]; return at + 2;
    case 'b': *code_point = '\b'; return at + 2;
    case 'f': *code_point = '\f'; return at + 2;
    case 'n': *code_point = '\n'; return at + 2;
    case 'r': *code_point = '\r'; return at + 2;
    case 't': *code_point = '\t'; return at + 2;
    case 'u': break;
    default: return NULL;
    }
    if (end - at < 6 || !rc_json_hex4(at + 2, code_point))
        return NULL;
    at += 6;
    if ((*code_point & 0xf800) != 0xd800)
        return at;
    if (*code_point >= 0xdc00 || end - at < 6 || at[0] != '\\' || at[1] != 'u' || !rc_json_hex4(at + 2, &low) ||
        (low & 0xfc00) != 0xdc00)
        return NULL;
    *code_point = 0x10000 + ((*code_point & 0x3ff) << 10) + (low & 0x3ff);
    return at + 6;
}

/* The closing quote of the string whose opening quote is before `at`, or NULL; *plain is cleared if there are escapes. */
static inline const uint8_t *rc_json_close(const uint8_t *at, const uint8_t *end, int *plain) {
    uint32_t code_point;
    for (;;) {
        at = rc_json_plain(at, end);
        if (at == end || *at < 0x20)
            return NULL;
        if (*at == '"')
            return at;
        *plain = 0;
        at = rc_json_escaped(at, end, &code_point);
        if (at == NULL)
            return NULL;
    }
}

static inline uint8_t *rc_put_utf8(uint8_t *out, uint32_t code_point) {
    if (code_point < 0x80) {
        *out++ = (uint8_t)code_point;
    } else if (code_point < 0x800) {
        *out++ = (uint8_t)(0xc0 | code_point >> 6);
        *out++ = (uint8_t)(0x80 | (code_point & 0x3f));
    } else if (code_point < 0x10000) {
        *out++ = (uint8_t)(0xe0 | code_point >> 12);
        *out++ = (uint8_t)(0x80 | (code_point >> 6 & 0x3f));
        *out++ = (uint8_t)(0x80 | (code_point & 0x3f));
    } else {
        *out++ = (uint8_t)(0xf0 | code_point >> 18);
        *out++ = (uint8_t)(0x80 | (code_point >> 12 & 0x3f));
        *out++ = (uint8_t)(0x80 | (code_point >> 6 & 0x3f));
        *out++ = (uint8_t)(0x80 | (code_point & 0x3f));
    }
    return out;
}

/* Write the text of a string that rc_json_close passed, never more bytes than it has. Returns the byte after the text,
 * or NULL where an escape is broken, which such a string has not. */
static inline uint8_t *rc_json_unescape(uint8_t *out, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        const uint8_t *backslash = (const uint8_t *)memchr(at, '\\', (size_t)(end - at));
        size_t run = (size_t)((backslash == NULL ? end : backslash) - at);
        uint32_t code_point;
        out = rc_put_bytes(out, at, run);
        if (backslash == NULL)
            break;
        at = rc_json_escaped(backslash, end, &code_point);
        if (at == NULL)
            return NULL;
        out = rc_put_utf8(out, code_point);
    }
    return out;
}

/* What an escaped character becomes after its backslash; 0 for \u00xx. */
static inline uint8_t rc_json_letter(uint8_t c) {
    switch (c) {
    case '"': case '\\': return c;
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

/* Bytes that rc_json_escape writes. */
static inline size_t rc_json_escaped_size(const uint8_t *text, size_t length) {
    const uint8_t *end = text + length, *at = text;
    size_t size = length;
    while ((at = rc_json_plain(at, end)) < end)
        size += rc_json_letter(*at++) != 0 ? 1 : 5;
    return size;
}

/* Write text as the inside of a JSON string, the way fastjson2 does: only quote, backslash and control characters are
 * escaped, hexadecimal in lower case. */
static inline uint8_t *rc_json_escape(uint8_t *out, const uint8_t *text, size_t length) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *end = text + length;
    while (text < end) {
        const uint8_t *stop = rc_json_plain(text, end);
        out = rc_put_bytes(out, text, (size_t)(stop - text));
        if (stop == end)
            break;
        *out++ = '\\';
        uint8_t letter = rc_json_letter(*stop);
        if (letter != 0) {
            *out++ = letter;
        } else {
            out = rc_put_bytes(out, "u00", 3);
            *out++ = (uint8_t)hex[*stop >> 4];
            *out++ = (uint8_t)hex[*stop & 15];
        }
        text = stop + 1;
    }
    return out;
}

#endif
