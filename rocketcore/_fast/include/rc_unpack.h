/* Compressed bodies unpacked into memory of the caller's, by the system's zlib, LZ4 and Zstandard.
 *
 * The libraries are opened when they are first asked for (dlopen): neither a build nor a start needs them. Where one is
 * missing, and for what is not one sound stream or frame, the caller has a slower way, which words the error too.
 */
#ifndef RC_UNPACK_H
#define RC_UNPACK_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* As in the system flag of a message; 0 means zlib too. */
enum { RC_LZ4 = 1 << 8, RC_ZSTD = 2 << 8, RC_ZLIB = 3 << 8, RC_PACKED_KIND = 7 << 8 };

enum { RC_UNPACKED = 0, RC_UNPACK_FULL = 1, RC_NOT_UNPACKED = 2 };

/* zlib.h: z_stream, the same since version 1.0. */
typedef struct {
    const uint8_t *next_in;
    unsigned int avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned int avail_out;
    unsigned long total_out;
    const char *msg;
    void *state;
    void *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} rc_z_stream;

/* zstd.h: ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct {
    const void *data;
    size_t size, position;
} rc_zstd_input;

typedef struct {
    void *data;
    size_t size, position;
} rc_zstd_output;

/* NULL in the first place: the library is not there. */
static struct {
    int (*begin)(rc_z_stream *, const char *, int);
    int (*reset)(rc_z_stream *);
    int (*inflate)(rc_z_stream *, int);
    int (*end)(rc_z_stream *);
} rc_zlib;

static struct {
    size_t (*create)(void **, unsigned int);
    size_t (*decompress)(void *, void *, size_t *, const void *, size_t *, const void *);
    unsigned int (*is_error)(size_t);
    void (*reset)(void *);
    size_t (*release)(void *);
} rc_lz4;

static struct {
    void *(*create)(void);
    size_t (*decompress)(void *, rc_zstd_output *, rc_zstd_input *);
    unsigned int (*is_error)(size_t);
    size_t (*reset)(void *, int);
    size_t (*release)(void *);
} rc_zstd;

/* Fill a table of functions, whose first place stays NULL unless all are there. */
static inline void rc_open_library(const char *library, const char *const *names, int count, void *table)
{
    void *found[5];
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < count; i++) {
        found[i] = handle == NULL ? NULL : dlsym(handle, names[i]);
        if (found[i] == NULL)
            return;
    }
    memcpy(table, found, (size_t)count * sizeof *found);
}

/* Open what there is; once, before anything is unpacked. */
static inline void rc_open_libraries(void)
{
    static const char *const zlib[] = {"inflateInit_", "inflateReset", "inflate", "inflateEnd"};
    static const char *const lz4[] = {"LZ4F_createDecompressionContext", "LZ4F_decompress", "LZ4F_isError",
                                      "LZ4F_resetDecompressionContext", "LZ4F_freeDecompressionContext"};
    static const char *const zstd[] = {"ZSTD_createDCtx", "ZSTD_decompressStream", "ZSTD_isError", "ZSTD_DCtx_reset",
                                       "ZSTD_freeDCtx"};
    rc_open_library("libz.so.1", zlib, 4, &rc_zlib);
    rc_open_library("liblz4.so.1", lz4, 5, &rc_lz4);
    rc_open_library("libzstd.so.1", zstd, 5, &rc_zstd);
}

/* The states of many bodies, one after the other; all bytes 0 at first. */
typedef struct {
    rc_z_stream zlib;
    void *lz4;
    void *zstd;
    const uint8_t *data; /* what is left of the body at hand, but for zlib */
    size_t left;
    int kind;
    int zlib_begun;
} rc_unpacker;

/* Begin with the body in [data, data + length), which stays where it is. */
static inline int rc_unpack_begin(rc_unpacker *unpacker, int kind, const uint8_t *data, size_t length)
{
    int ready = 0;
    unpacker->data = data;
    unpacker->left = length;
    unpacker->kind = kind;
    if (kind == RC_LZ4 && rc_lz4.create != NULL) {
        if (unpacker->lz4 != NULL)
            rc_lz4.reset(unpacker->lz4);
        else if (rc_lz4.is_error(rc_lz4.create(&unpacker->lz4, 100)))
            unpacker->lz4 = NULL;
        ready = unpacker->lz4 != NULL;
    } else if (kind == RC_ZSTD && rc_zstd.create != NULL) {
        if (unpacker->zstd == NULL)
            unpacker->zstd = rc_zstd.create();
        ready = unpacker->zstd != NULL && !rc_zstd.is_error(rc_zstd.reset(unpacker->zstd, 1));
    } else if ((kind == RC_ZLIB || kind == 0) && rc_zlib.begin != NULL && length <= UINT32_MAX) {
        rc_z_stream *stream = &unpacker->zlib;
        ready = (unpacker->zlib_begun ? rc_zlib.reset(stream) : rc_zlib.begin(stream, "1", sizeof *stream)) == 0;
        unpacker->zlib_begun |= ready;
        stream->next_in = data;
        stream->avail_in = (unsigned int)length;
    }
    return ready ? RC_UNPACKED : RC_NOT_UNPACKED;
}

static inline int rc_inflate_some(rc_z_stream *stream, uint8_t *out, size_t room, size_t *written)
{
    int outcome;
    stream->next_out = out;
    stream->avail_out = (unsigned int)room;
    outcome = rc_zlib.inflate(stream, 0);
    *written = room - stream->avail_out;
    if (outcome == 1) /* Z_STREAM_END; as in Java what follows is ignored */
        return RC_UNPACKED;
    return outcome == 0 && stream->avail_out == 0 ? RC_UNPACK_FULL : RC_NOT_UNPACKED;
}

/* Go on into [out, out + room), room above 0; *written says how much came. RC_UNPACK_FULL: there may be more. */
static inline int rc_unpack_some(rc_unpacker *unpacker, uint8_t *out, size_t room, size_t *written)
{
    size_t outcome = 1, read = 1, made = 1;
    *written = 0;
    if (unpacker->kind != RC_LZ4 && unpacker->kind != RC_ZSTD)
        return rc_inflate_some(&unpacker->zlib, out, room, written);
    while (outcome != 0 && *written < room && (read || made)) {
        int failed;
        if (unpacker->kind == RC_LZ4) {
            read = unpacker->left;
            made = room - *written;
            outcome = rc_lz4.decompress(unpacker->lz4, out + *written, &made, unpacker->data, &read, NULL);
            failed = rc_lz4.is_error(outcome) != 0;
        } else {
            rc_zstd_input input = {unpacker->data, unpacker->left, 0};
            rc_zstd_output output = {out + *written, room - *written, 0};
            outcome = rc_zstd.decompress(unpacker->zstd, &output, &input);
            failed = rc_zstd.is_error(outcome) != 0;
            read = input.position;
            made = output.position;
        }
        if (failed)
            return RC_NOT_UNPACKED;
        unpacker->data += read;
        unpacker->left -= read;
        *written += made;
    }
    if (outcome == 0) /* the end of a frame; a body of several is rare */
        return unpacker->left == 0 ? RC_UNPACKED : RC_NOT_UNPACKED;
    return *written == room ? RC_UNPACK_FULL : RC_NOT_UNPACKED;
}

static inline void rc_unpack_end(rc_unpacker *unpacker)
{
    if (unpacker->zlib_begun)
        rc_zlib.end(&unpacker->zlib);
    if (unpacker->lz4 != NULL)
        rc_lz4.release(unpacker->lz4);
    if (unpacker->zstd != NULL)
        rc_zstd.release(unpacker->zstd);
}

#endif
