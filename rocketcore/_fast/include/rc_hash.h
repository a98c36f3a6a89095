/* CRC-32 and Java's String.hashCode over UTF-8.
 *
 * CRC-32 is the one of zlib (IEEE 802.3, reflected polynomial 0xEDB88320). Three implementations, chosen when the
 * extension is loaded by what the CPU has:
 *
 *   portable   slicing by 16, over tables filled at load
 *   pclmul     carry-less multiply with eight 128-bit accumulators: the multiplier takes one operand pair a cycle and
 *              needs seven cycles and two exclusive-ors, so that fewer accumulators leave it idle
 *   vpclmul    the same with four 512-bit accumulators, where the CPU has AVX-512 and VPCLMULQDQ
 *
 * How folding works. Bits are reflected: the lowest bit of byte 0 is the highest power of x. Sixteen bytes that are n bits
 * ahead of sixteen others are worth first·x^(n+64) + last·x^n (their two halves), and that may be added to the others:
 * modulo P, two multiplies by constants. The product of two reflected 64-bit numbers is one bit short of 128, and a
 * constant of 33 bits sits 31 bits from the end of its 64: together a factor x^32. So the constants for a distance of
 * n bits are x^(n+32) mod P and x^(n-32) mod P, each reflected in 32 bits and shifted left by one.
 * tests/unit/fast/test_crc32.py derives every constant of this file from P.
 */
#ifndef RC_HASH_H
#define RC_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define RC_CRC_X86 1
#include <immintrin.h>
#else
#define RC_CRC_X86 0
#endif

typedef uint32_t (*rc_crc32_function)(const uint8_t *, size_t, uint32_t);

static uint32_t rc_crc32_table[16][256]; /* [k][b]: the CRC register b moved over k more zero bytes */

static inline uint32_t rc_crc32_bytes(const uint8_t *at, size_t length, uint32_t state) {
    while (length-- != 0)
        state = rc_crc32_table[0][(state ^ *at++) & 0xff] ^ (state >> 8);
    return state;
}

static uint32_t rc_crc32_portable(const uint8_t *at, size_t length, uint32_t value) {
    uint32_t state = ~value;
    for (; length >= 16; length -= 16, at += 16) {
        uint32_t next = 0;
        for (int i = 0; i < 4; i++)
            next ^= rc_crc32_table[15 - i][at[i] ^ ((state >> (8 * i)) & 0xff)];
        for (int i = 4; i < 16; i++)
            next ^= rc_crc32_table[15 - i][at[i]];
        state = next;
    }
    return ~rc_crc32_bytes(at, length, state);
}

#if RC_CRC_X86

/* {x^(n+32), x^(n-32)} mod P for a distance of n bits. */
#define RC_FOLD_128 0x1751997d0, 0x0ccaa009e
#define RC_FOLD_256 0x0f1da05aa, 0x15a546366
#define RC_FOLD_384 0x03db1ecdc, 0x174359406
#define RC_FOLD_512 0x154442bd4, 0x1c6e41596
#define RC_FOLD_1024 0x1e88ef372, 0x14a7fe880
#define RC_FOLD_2048 0x11542778a, 0x1322d1430
#define RC_X64 0x163cd6124     /* x^64 mod P */
#define RC_P 0x1db710641       /* P itself, reflected in 33 bits */
#define RC_MU 0x1f7011641      /* x^64 div P, reflected in 33 bits */

#define RC_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define RC_PCLMUL_INLINE static inline __attribute__((always_inline, target("pclmul,sse4.1")))

#define RC_PAIR(...) RC_PAIR_OF(__VA_ARGS__)
#define RC_PAIR_OF(first, last) _mm_set_epi64x(last, first)

/* Shuffle masks: loading at 16 - k moves bytes up by k, at 16 + k down by k, and shifts zeros in. */
static const uint8_t rc_shift[48] = {
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
};

RC_PCLMUL_INLINE __m128i rc_load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

RC_PCLMUL_INLINE __m128i rc_fold(__m128i ahead, __m128i distance, __m128i other) {
    __m128i first = _mm_clmulepi64_si128(ahead, distance, 0x00);
    __m128i last = _mm_clmulepi64_si128(ahead, distance, 0x11);
    return _mm_xor_si128(other, _mm_xor_si128(first, last));
}

/* 128 bits times x^32, modulo P: two folds to 64 bits, then Barrett's division. */
RC_PCLMUL_INLINE uint32_t rc_reduce(__m128i x) {
    const __m128i low32 = _mm_setr_epi32(-1, 0, 0, 0);
    const __m128i barrett = _mm_set_epi64x(RC_MU, RC_P);
    __m128i t;
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, RC_PAIR(RC_FOLD_128), 0x10));
    t = _mm_srli_si128(x, 4);
    x = _mm_xor_si128(t, _mm_clmulepi64_si128(_mm_and_si128(x, low32), _mm_cvtsi64_si128(RC_X64), 0x00));
    t = _mm_clmulepi64_si128(_mm_and_si128(x, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, t), 1);
}

/* The last length bytes (any number) after the 16 that x stands for; what lies before `at` is readable. */
RC_PCLMUL_INLINE uint32_t rc_finish(__m128i x, const uint8_t *at, size_t length) {
    const __m128i fold128 = RC_PAIR(RC_FOLD_128);
    for (; length >= 16; length -= 16, at += 16)
        x = rc_fold(x, fold128, rc_load(at));
    if (length != 0) {
        /* Shift x and the rest so that they end together: zeros in front change nothing. */
        __m128i down = rc_load(rc_shift + 16 + length);
        __m128i ahead = _mm_shuffle_epi8(x, rc_load(rc_shift + length));
        __m128i rest = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), rc_load(at + length - 16), down);
        x = rc_fold(ahead, fold128, rest);
    }
    return ~rc_reduce(x);
}

RC_PCLMUL_INLINE uint32_t rc_crc32_short(const uint8_t *at, size_t length, uint32_t value) {
    uint64_t first, last = 0;
    if (length < 4)
        return ~rc_crc32_bytes(at, length, ~value);
    if (length >= 8) {
        memcpy(&first, at, 8);
        if (length > 8) {
            memcpy(&last, at + length - 8, 8);
            last >>= 8 * (16 - length);
        }
    } else {
        uint32_t head, tail;
        memcpy(&head, at, 4);
        memcpy(&tail, at + length - 4, 4);
        first = head | (uint64_t)tail << 8 * (length - 4);
    }
    first ^= (uint32_t)~value;
    return ~rc_reduce(_mm_shuffle_epi8(_mm_set_epi64x((int64_t)last, (int64_t)first), rc_load(rc_shift + length)));
}

RC_PCLMUL static uint32_t rc_crc32_pclmul(const uint8_t *at, size_t length, uint32_t value) {
    const __m128i fold512 = RC_PAIR(RC_FOLD_512);
    __m128i a[8];
    if (length < 16)
        return rc_crc32_short(at, length, value);
    a[0] = _mm_xor_si128(rc_load(at), _mm_cvtsi32_si128((int)~value));
    if (length < 64)
        return rc_finish(a[0], at + 16, length - 16);
    for (int i = 1; i < 4; i++)
        a[i] = rc_load(at + 16 * i);
    at += 64;
    length -= 64;
    if (length >= 64) {
        const __m128i fold1024 = RC_PAIR(RC_FOLD_1024);
        for (int i = 4; i < 8; i++)
            a[i] = rc_load(at + 16 * (i - 4));
        at += 64;
        length -= 64;
        for (; length >= 128; length -= 128, at += 128)
            for (int i = 0; i < 8; i++)
                a[i] = rc_fold(a[i], fold1024, rc_load(at + 16 * i));
        for (int i = 0; i < 4; i++)
            a[i] = rc_fold(a[i], fold512, a[i + 4]);
        if (length >= 64) {
            for (int i = 0; i < 4; i++)
                a[i] = rc_fold(a[i], fold512, rc_load(at + 16 * i));
            at += 64;
            length -= 64;
        }
    }
    a[2] = rc_fold(a[0], RC_PAIR(RC_FOLD_256), a[2]);
    a[3] = rc_fold(a[1], RC_PAIR(RC_FOLD_256), a[3]);
    return rc_finish(rc_fold(a[2], RC_PAIR(RC_FOLD_128), a[3]), at, length);
}

#define RC_WIDE_TARGET "avx512f,avx512vl,avx512bw,pclmul,vpclmulqdq"
#define RC_WIDE_NAME rc_crc32_vpclmul
#define RC_WIDE_MULTIPLY _mm512_clmulepi64_epi128
#include "rc_crc32_wide.h"

#ifdef RC_CRC_EMULATE_WIDE
/* For tests: the same 512-bit code with four 128-bit multiplies, for CPUs with AVX-512 and without VPCLMULQDQ. */
#define RC_EMULATED_LANE(a, b, halves, lane) \
    _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, lane), _mm512_extracti32x4_epi32(b, lane), halves)
#define RC_EMULATED_MULTIPLY(a, b, halves)                                                                    \
    _mm512_inserti32x4(                                                                                       \
        _mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(RC_EMULATED_LANE(a, b, halves, 0)),      \
                                              RC_EMULATED_LANE(a, b, halves, 1), 1),                          \
                           RC_EMULATED_LANE(a, b, halves, 2), 2),                                             \
        RC_EMULATED_LANE(a, b, halves, 3), 3)
#define RC_WIDE_TARGET "avx512f,avx512vl,avx512bw,pclmul"
#define RC_WIDE_NAME rc_crc32_emulated
#define RC_WIDE_MULTIPLY RC_EMULATED_MULTIPLY
#include "rc_crc32_wide.h"
#endif

static inline int rc_cpu_has_pclmul(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

static inline int rc_cpu_has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
}

static inline int rc_cpu_has_vpclmul(void) {
    return rc_cpu_has_pclmul() && rc_cpu_has_avx512() && __builtin_cpu_supports("vpclmulqdq");
}

#endif /* RC_CRC_X86 */

static rc_crc32_function rc_crc32_chosen = rc_crc32_portable;

/* Runs when the extension is loaded, before any of its code, so that neither the table nor the choice needs a lock. */
__attribute__((constructor)) static void rc_crc32_load(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (0xedb88320 & (0 - (state & 1)));
        rc_crc32_table[0][byte] = state;
    }
    for (int zeros = 1; zeros < 16; zeros++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t state = rc_crc32_table[zeros - 1][byte];
            rc_crc32_table[zeros][byte] = rc_crc32_table[0][state & 0xff] ^ (state >> 8);
        }
#if RC_CRC_X86
    __builtin_cpu_init();
    if (rc_cpu_has_vpclmul())
        rc_crc32_chosen = rc_crc32_vpclmul;
    else if (rc_cpu_has_pclmul())
        rc_crc32_chosen = rc_crc32_pclmul;
#endif
}

/* CRC-32 of length bytes, continuing from value (0 to begin); the same numbers as zlib's crc32(). */
static inline uint32_t rc_crc32(const uint8_t *at, size_t length, uint32_t value) {
    return rc_crc32_chosen(at, length, value);
}

/* Decode one character as Java's String(byte[], UTF_8) does, and return the bytes it took (at least 1; at < end).
 *
 * Malformed input becomes U+FFFD. What Java takes for one malformed piece is not what Python does: an encoded surrogate
 * is one piece of three bytes, and a sequence that the end cuts off is one piece however many bytes are there.
 * Source: JDK 17, java/lang/String.decodeUTF8_UTF16. */
static inline size_t rc_java_utf8(const uint8_t *at, const uint8_t *end, uint32_t *code_point) {
    size_t left = (size_t)(end - at);
    uint32_t b0 = at[0];
    *code_point = 0xfffd;
#define RC_CONTINUES(i) ((at[i] & 0xc0) == 0x80)
    if (b0 < 0x80) {
        *code_point = b0;
        return 1;
    }
    if (b0 < 0xc2 || b0 > 0xf4)
        return 1;
    if (b0 < 0xe0) {
        if (left < 2 || !RC_CONTINUES(1))
            return 1;
        *code_point = (b0 & 0x1f) << 6 | (at[1] & 0x3f);
        return 2;
    }
    if (left > 1 && !RC_CONTINUES(1))
        return 1;
    if (b0 < 0xf0) {
        if (left > 1 && b0 == 0xe0 && at[1] < 0xa0)
            return 1;
        if (left < 3)
            return left;
        if (!RC_CONTINUES(2))
            return 2;
        uint32_t decoded = (b0 & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
        if (decoded < 0xd800 || decoded > 0xdfff)
            *code_point = decoded;
        return 3;
    }
    if (left > 1 && ((b0 == 0xf0 && at[1] < 0x90) || (b0 == 0xf4 && at[1] > 0x8f)))
        return 1;
    if (left > 2 && !RC_CONTINUES(2))
        return 2;
    if (left < 4)
        return left;
    if (!RC_CONTINUES(3))
        return 3;
    *code_point = (b0 & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 | (uint32_t)(at[2] & 0x3f) << 6 | (at[3] & 0x3f);
    return 4;
#undef RC_CONTINUES
}

/* Java's String.hashCode of UTF-8 text: the sum over UTF-16 units, s = 31·s + unit, in 32 bits. `hash` is that of the
 * text before it, 0 where there is none. */
static inline uint32_t rc_java_hash_more(uint32_t hash, const uint8_t *at, size_t length) {
    const uint8_t *end = at + length;
    while (at < end) {
        uint32_t code_point = *at;
        if (code_point < 0x80) {
            at++;
        } else {
            at += rc_java_utf8(at, end, &code_point);
            if (code_point > 0xffff) {
                hash = 31 * hash + (0xd7c0 + (code_point >> 10));
                code_point = 0xdc00 | (code_point & 0x3ff);
            }
        }
        hash = 31 * hash + code_point;
    }
    return hash;
}

static inline int32_t rc_java_hash_utf8(const uint8_t *at, size_t length) {
    return (int32_t)rc_java_hash_more(0, at, length);
}

/* True if the bytes are UTF-8 by the Unicode standard, so that decoding and encoding again gives them back. */
static inline int rc_is_utf8(const uint8_t *at, size_t length) {
    const uint8_t *end = at + length;
    while (at < end) {
        uint32_t code_point;
        uint64_t four[4];
        if (end - at >= 32) {
            memcpy(four, at, 32);
            if (((four[0] | four[1] | four[2] | four[3]) & 0x8080808080808080u) == 0) {
                at += 32;
                continue;
            }
        }
        if (*at < 0x80) {
            at++;
            continue;
        }
        size_t taken = rc_java_utf8(at, end, &code_point);
        if (code_point == 0xfffd && !(taken == 3 && at[0] == 0xef && at[1] == 0xbf && at[2] == 0xbd))
            return 0;
        at += taken;
    }
    return 1;
}

#endif
