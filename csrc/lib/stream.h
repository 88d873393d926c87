/* The structs of a model and of a stream, and the functions that implement include/rotrnn.h. The Python module uses
 * them for its streams (csrc/module/stream.c).
 */
#ifndef ROT_STREAM_H
#define ROT_STREAM_H

#include "build.h"
#include "file.h"
#include "memory.h"
#include "program.h"

struct rotrnn_model {
    arena memory; /* contains the model itself */
    program program;
    const implementation *run;
    int64_t parameters;
    uint8_t digest[SHA256_BYTES];
};

struct rotrnn_stream {
    arena memory; /* contains the stream itself */
    const rotrnn_model *model;
    int64_t batch, capacity, chunk;
    int64_t state_bytes; /* of a sequence */
    void *state, *scratch;
};

/* The model of a file that was read, or that is only in memory, `half`: with matrices in bfloat16; NULL with an error.
 */
rotrnn_model *model_of(const file *f, bool half, rotrnn_error *error);

/* Reads the steps of a call; numbers have the model's dtype. */
rotrnn_status stream_push(rotrnn_stream *s, const pushed *call);

/* The first sequence in `state`, the bytes of `sequences` sequences, whose number of steps is impossible in this
 * stream; -1 if there is none. All other numbers in a state may have any value. */
int64_t stream_refuses(const rotrnn_stream *s, const void *state, int64_t sequences);

#endif
