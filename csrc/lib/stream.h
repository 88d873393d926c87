/* What a model and a stream are, and the functions on them below those of include/rotrnn.h. The Python module has
 * streams by these (csrc/module/stream.c).
 */
#ifndef ROT_STREAM_H
#define ROT_STREAM_H

#include "build.h"
#include "file.h"
#include "memory.h"
#include "program.h"

struct rotrnn_model {
    arena memory; /* with the model itself */
    program program;
    const implementation *run;
    int64_t parameters;
    uint8_t digest[SHA256_BYTES];
};

struct rotrnn_stream {
    arena memory; /* with the stream itself */
    const rotrnn_model *model;
    int64_t batch, capacity, chunk;
    int64_t state_bytes; /* of a sequence */
    void *state, *scratch;
};

/* The model of a file that was read, or that only lies in memory; NULL with an error. */
rotrnn_model *model_of(const file *f, rotrnn_error *error);

/* Reads the steps of a call, in the model's numbers. */
rotrnn_status stream_push(rotrnn_stream *s, const pushed *call);

/* The first of so many sequences whose number of steps no state of this stream can have, where `state` are the bytes of
 * that many; -1 if there is none. Everything else in a state are numbers, of which any are possible. */
int64_t stream_refuses(const rotrnn_stream *s, const void *state, int64_t sequences);

#endif
