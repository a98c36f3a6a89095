/* The 512-bit CRC-32 loop of rc_hash.h, written once over three macros and included for each use:
 *
 *   RC_WIDE_NAME                     name of the function
 *   RC_WIDE_TARGET                   instruction sets, as the compiler's target attribute takes them
 *   RC_WIDE_MULTIPLY(a, b, halves)   carry-less multiply in each 128-bit lane; `halves` as for PCLMULQDQ
 */
#define RC_WIDE_FOLD(ahead, distance, other)                                                                     \
    _mm512_ternarylogic_epi64(RC_WIDE_MULTIPLY(ahead, distance, 0x00), RC_WIDE_MULTIPLY(ahead, distance, 0x11), \
                              other, 0x96) /* 0x96: exclusive or of all three */
#define RC_WIDE_PAIR(...) _mm512_broadcast_i32x4(RC_PAIR(__VA_ARGS__))

__attribute__((target(RC_WIDE_TARGET))) static uint32_t RC_WIDE_NAME(const uint8_t *at, size_t length, uint32_t value) {
    if (length < 256)
        return rc_crc32_pclmul(at, length, value);

    const __m512i fold512 = RC_WIDE_PAIR(RC_FOLD_512);
    const __m512i fold2048 = RC_WIDE_PAIR(RC_FOLD_2048);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~value)));
    __m512i b = _mm512_loadu_si512(at + 64);
    __m512i c = _mm512_loadu_si512(at + 128);
    __m512i d = _mm512_loadu_si512(at + 192);
    at += 256;
    length -= 256;
    for (; length >= 256; length -= 256, at += 256) {
        a = RC_WIDE_FOLD(a, fold2048, _mm512_loadu_si512(at));
        b = RC_WIDE_FOLD(b, fold2048, _mm512_loadu_si512(at + 64));
        c = RC_WIDE_FOLD(c, fold2048, _mm512_loadu_si512(at + 128));
        d = RC_WIDE_FOLD(d, fold2048, _mm512_loadu_si512(at + 192));
    }
    b = RC_WIDE_FOLD(a, fold512, b);
    d = RC_WIDE_FOLD(c, fold512, d);
    d = RC_WIDE_FOLD(b, RC_WIDE_PAIR(RC_FOLD_1024), d);
    for (; length >= 64; length -= 64, at += 64)
        d = RC_WIDE_FOLD(d, fold512, _mm512_loadu_si512(at));

    /* The first three lanes, each by its distance to the last one, which is kept as it is. */
    __m128i x = _mm512_extracti32x4_epi32(d, 3);
    x = rc_fold(_mm512_castsi512_si128(d), RC_PAIR(RC_FOLD_384), x);
    x = rc_fold(_mm512_extracti32x4_epi32(d, 1), RC_PAIR(RC_FOLD_256), x);
    x = rc_fold(_mm512_extracti32x4_epi32(d, 2), RC_PAIR(RC_FOLD_128), x);
    return rc_finish(x, at, length);
}

#undef RC_WIDE_FOLD
#undef RC_WIDE_PAIR
#undef RC_WIDE_NAME
#undef RC_WIDE_TARGET
#undef RC_WIDE_MULTIPLY
