/* zlib streams (RFC 1950) unpacked into memory of the caller's, with one state for many of them.
 *
 * What is not a sound stream within the limit is left to the caller's slower way, which words the error.
 */
#ifndef RC_INFLATE_H
#define RC_INFLATE_H

#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

typedef struct {
    z_stream stream;
    int ready;
} rc_inflater;

enum { RC_INFLATED = 0, RC_INFLATE_FULL = 1, RC_NOT_INFLATED = 2 };

/* Begin with the stream in [data, data + length), which stays where it is; what follows its end is ignored. */
static inline int rc_inflate_begin(rc_inflater *inflater, const uint8_t *data, size_t length)
{
    z_stream *stream = &inflater->stream;
    int outcome = inflater->ready ? inflateReset(stream) : inflateInit(stream);
    if (outcome != Z_OK || length > UINT32_MAX)
        return RC_NOT_INFLATED;
    inflater->ready = 1;
    stream->next_in = (Bytef *)data;
    stream->avail_in = (uInt)length;
    return RC_INFLATED;
}

/* Go on into [out, out + room); *written says how much came. RC_INFLATE_FULL: there may be more. */
static inline int rc_inflate_some(rc_inflater *inflater, uint8_t *out, size_t room, size_t *written)
{
    z_stream *stream = &inflater->stream;
    int outcome;
    stream->next_out = out;
    stream->avail_out = (uInt)room;
    outcome = inflate(stream, Z_NO_FLUSH);
    *written = room - stream->avail_out;
    if (outcome == Z_STREAM_END)
        return RC_INFLATED;
    return outcome == Z_OK && stream->avail_out == 0 ? RC_INFLATE_FULL : RC_NOT_INFLATED;
}

static inline void rc_inflate_end(rc_inflater *inflater)
{
    if (inflater->ready)
        inflateEnd(&inflater->stream);
    inflater->ready = 0;
}

#endif
