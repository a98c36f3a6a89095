/* Comparisons of short texts, inline: a call of memcmp for each takes longer than the comparison itself.
 *
 * The last sixteen bytes of a text are compared at once, of a shorter one together with bytes before it, which do not
 * count: 16 bytes before the end of both texts must be readable. They are where a text is within a Python object, whose
 * header is at least as long.
 */
#ifndef RC_SAME_H
#define RC_SAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

static inline __m128i rc_load16(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

static inline __m128i rc_equal16(const uint8_t *a, const uint8_t *b) { return _mm_cmpeq_epi8(rc_load16(a), rc_load16(b)); }

/* Those of sixteen marks that count for a text of this length. */
static inline unsigned rc_last16(unsigned marks, ptrdiff_t length) { return length < 16 ? marks >> (16 - length) : marks; }

static inline int rc_same(const uint8_t *a, const uint8_t *b, ptrdiff_t length) {
    ptrdiff_t at = 0;
    for (; length - at > 64; at += 64) {
        __m128i front = _mm_and_si128(rc_equal16(a + at, b + at), rc_equal16(a + at + 16, b + at + 16));
        __m128i back = _mm_and_si128(rc_equal16(a + at + 32, b + at + 32), rc_equal16(a + at + 48, b + at + 48));
        if (_mm_movemask_epi8(_mm_and_si128(front, back)) != 0xffff)
            return 0;
    }
    for (; length - at > 16; at += 16)
        if (_mm_movemask_epi8(rc_equal16(a + at, b + at)) != 0xffff)
            return 0;
    unsigned other = 0xffff ^ (unsigned)_mm_movemask_epi8(rc_equal16(a + length - 16, b + length - 16));
    return rc_last16(other, length) == 0;
}

static inline unsigned rc_not_name16(const uint8_t *name, const uint8_t *text) {
    __m128i is = rc_load16(name), blank = _mm_set1_epi8(' ');
    __m128i special = _mm_or_si128(_mm_cmpeq_epi8(is, _mm_set1_epi8('"')), _mm_cmpeq_epi8(is, _mm_set1_epi8('\\')));
    special = _mm_or_si128(special, _mm_cmpeq_epi8(_mm_max_epu8(is, blank), blank));
    return (unsigned)_mm_movemask_epi8(_mm_andnot_si128(special, _mm_cmpeq_epi8(is, rc_load16(text)))) ^ 0xffff;
}

/* True if a name is what the text begins with, and holds nothing that would end or change it there: no quote, backslash,
 * blank or control character. */
static inline int rc_is_name(const uint8_t *name, ptrdiff_t length, const uint8_t *text) {
    for (ptrdiff_t at = 0; length - at > 16; at += 16)
        if (rc_not_name16(name + at, text + at) != 0)
            return 0;
    return rc_last16(rc_not_name16(name + length - 16, text + length - 16), length) == 0;
}

#else

static inline int rc_same(const uint8_t *a, const uint8_t *b, ptrdiff_t length) { return memcmp(a, b, (size_t)length) == 0; }

static inline int rc_is_name(const uint8_t *name, ptrdiff_t length, const uint8_t *text) {
    for (ptrdiff_t at = 0; at < length; at++)
        if (name[at] <= ' ' || name[at] == '"' || name[at] == '\\')
            return 0;
    return rc_same(name, text, length);
}

#endif

#endif
