/* Reading property text: name U+0001 value U+0002, the last U+0002 optional.
 *
 * A pair ends at U+0002 and its name at the first U+0001, so a value may hold U+0001, as it may in Java's 5.x reader; a
 * pair without name or value does not count (common/message/MessageDecoder.java, string2messageProperties).
 *
 * Separators are found 64 bytes at a time: a message has about a dozen within 150 bytes, too close to each other for
 * two memchr calls a pair to pay. Without SSE2 a plain loop makes the masks, for the compiler to vectorise.
 */
#ifndef RC_PROPERTIES_H
#define RC_PROPERTIES_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef struct {
    const uint8_t *name, *value;
    int64_t name_length, value_length;
} rc_property;

typedef struct {
    const uint8_t *at, *begin, *block, *end;
    uint64_t ones, twos; /* bit i: block[i] is U+0001 or U+0002 and was not passed yet */
} rc_property_reader;

#if defined(__SSE2__)
static inline uint64_t rc_equal_16(const uint8_t *at, char wanted) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)at);
    return (uint16_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted)));
}
#else
static inline uint64_t rc_equal_16(const uint8_t *at, char wanted) {
    uint64_t found = 0;
    for (int i = 0; i < 16; i++)
        found |= (uint64_t)(at[i] == wanted) << i;
    return found;
}
#endif

static inline uint64_t rc_equal_64(const uint8_t *at, char wanted) {
    return rc_equal_16(at, wanted) | rc_equal_16(at + 16, wanted) << 16 | rc_equal_16(at + 32, wanted) << 32 |
           rc_equal_16(at + 48, wanted) << 48;
}

/* Fill the masks for the next 64 bytes, or for what is left. The last load may reach back to the begin of the text: a
 * copy of the rest would cost a stall of the store buffer. */
static inline void rc_read_block(rc_property_reader *reader) {
    const uint8_t *at = reader->block;
    int64_t left = reader->end - at;
    int i = 0;
    reader->ones = reader->twos = 0;
    if (left >= 64) {
        reader->ones = rc_equal_64(at, 1);
        reader->twos = rc_equal_64(at, 2);
        return;
    }
    for (; i + 16 <= left; i += 16) {
        reader->ones |= rc_equal_16(at + i, 1) << i;
        reader->twos |= rc_equal_16(at + i, 2) << i;
    }
    if (i < left && reader->end - reader->begin >= 16) {
        int back = (int)(16 - (left - i));
        reader->ones |= rc_equal_16(reader->end - 16, 1) >> back << i;
        reader->twos |= rc_equal_16(reader->end - 16, 2) >> back << i;
        return;
    }
    for (; i < left; i++) {
        reader->ones |= (uint64_t)(at[i] == 1) << i;
        reader->twos |= (uint64_t)(at[i] == 2) << i;
    }
}

static inline rc_property_reader rc_read_properties(const uint8_t *at, int64_t length) {
    rc_property_reader reader = {at, at, at, at + length, 0, 0};
    rc_read_block(&reader);
    return reader;
}

/* Read the next pair that counts; returns 0 when there is none. */
static inline int rc_next_property(rc_property_reader *reader, rc_property *found) {
    while (reader->at < reader->end) {
        const uint8_t *name = reader->at, *name_end = NULL, *stop;
        while (reader->twos == 0) {
            if (name_end == NULL && reader->ones != 0)
                name_end = reader->block + __builtin_ctzll(reader->ones);
            reader->ones = 0;
            if (reader->end - reader->block <= 64)
                break;
            reader->block += 64;
            rc_read_block(reader);
        }
        if (reader->twos != 0) {
            uint64_t before = (reader->twos & (0 - reader->twos)) - 1;
            if (name_end == NULL && (reader->ones & before) != 0)
                name_end = reader->block + __builtin_ctzll(reader->ones);
            stop = reader->block + __builtin_ctzll(reader->twos);
            reader->ones &= ~before;
            reader->twos &= reader->twos - 1;
            reader->at = stop + 1;
        } else {
            reader->at = stop = reader->end;
        }
        if (name_end != NULL && name_end != name && name_end + 1 != stop) {
            found->name = name;
            found->name_length = name_end - name;
            found->value = name_end + 1;
            found->value_length = stop - name_end - 1;
            return 1;
        }
    }
    return 0;
}

#endif
