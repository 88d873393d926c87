/* librotrnn: streaming inference with the sequence models of rotrnn, in C99 or C++, without Python.
 *
 * A model is a file that `model.save` of the Python package wrote. A stream reads sequences with it, some steps at a
 * time, and keeps the state between pushes:
 *
 *     rotrnn_model *model;
 *     rotrnn_stream *stream;
 *     rotrnn_error error;
 *     if (rotrnn_model_open(&model, "model.safetensors", &error)) return fail(error.text);
 *     if (rotrnn_stream_new(&stream, model, 1, 0, &error)) return fail(error.text);
 *     rotrnn_push_features(stream, input, steps, output);
 *     rotrnn_stream_free(stream);
 *     rotrnn_model_free(model);
 *
 * Promises:
 *   - A push allocates no memory, takes no lock and calls no operating system. Its time depends on sizes alone. If a
 *     layer keeps all steps, it also depends on their number; if a layer iterates to a fixed point, on the iterations.
 *   - The output has the same bits whether steps are pushed one by one or many at once, alone or in a batch.
 *   - A model does not change once it is open: any number of streams and threads may share it. A stream belongs to one
 *     thread at a time. The library has no state of its own.
 *   - A file that is damaged, cut off or made up gives an error, and so does a model with a part that the library does
 *     not know.
 *
 * Functions return ROTRNN_OK (zero) or another status. Functions with an argument `error`, which may be NULL, also
 * write an error message. Results of a failed call are NULL.
 */
#ifndef ROTRNN_H
#define ROTRNN_H

#include <stddef.h>
#include <stdint.h>

#ifndef ROTRNN_API
#if defined(__GNUC__)
#define ROTRNN_API __attribute__((visibility("default")))
#else
#define ROTRNN_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ROTRNN_VERSION "0.2.0"

typedef struct rotrnn_model rotrnn_model;
typedef struct rotrnn_stream rotrnn_stream;

typedef enum {
    ROTRNN_OK = 0,
    ROTRNN_ARGUMENT = 1,    /* an argument is NULL, negative or out of range, or not of the model's kind */
    ROTRNN_NO_FILE = 2,     /* the file does not exist or cannot be read */
    ROTRNN_NO_MEMORY = 3,   /* there is not enough memory */
    ROTRNN_DAMAGED = 4,     /* the bytes are no model or state, or were changed after they were written */
    ROTRNN_UNSUPPORTED = 5, /* the model has a part that is not in the library */
    ROTRNN_FULL = 6,        /* the stream was made for fewer steps */
    ROTRNN_MISMATCH = 7     /* the state is of another model, batch or capacity */
} rotrnn_status;

/* An error message without a line break; empty after ROTRNN_OK. It is in ASCII, except for the letters of a path. */
typedef struct {
    rotrnn_status status;
    char text[248];
} rotrnn_error;

/* The inputs and outputs of a model. */
typedef struct {
    int reads_tokens;   /* 1: token ids in [0, inputs); 0: `inputs` features a step */
    int is_double;      /* 1: numbers are double; 0: float */
    int gives_each;     /* 1: logits for each step; 0: for the sequence so far */
    int needs_capacity; /* 1: a layer keeps all steps; a stream then needs a capacity */
    int64_t inputs;     /* tokens of the vocabulary, or features of a step */
    int64_t outputs;    /* logits */
    int64_t parameters; /* numbers in the file */
} rotrnn_facts;

/* The version of the library, as "0.2.0". */
ROTRNN_API const char *rotrnn_version(void);

/* The meaning of a status, as a sentence; also defined for an unknown status. */
ROTRNN_API const char *rotrnn_error_text(rotrnn_status status);

/* Reads a model from a file, or from `size` bytes of memory, which may be freed afterwards. The file's checksum is
 * verified. An error message begins with the path, or with the end of a long path. Free the model by rotrnn_model_free,
 * after its streams; NULL is ignored. */
ROTRNN_API rotrnn_status rotrnn_model_open(rotrnn_model **model, const char *path, rotrnn_error *error);
ROTRNN_API rotrnn_status rotrnn_model_read(rotrnn_model **model, const void *bytes, size_t size, rotrnn_error *error);
ROTRNN_API void rotrnn_model_free(rotrnn_model *model);

/* The same with the matrix or table of the encoder, the matrices of all dense maps and of the head, and the input and
 * output projections (B with its gain, and C) of diagonal recurrences, rounded to bfloat16 (to nearest, ties to even),
 * which takes half the memory and is faster where memory is the limit. All else, sums and states too, is float: logits
 * have the bits of the model whose matrices are these rounded numbers. A state may go from a stream of one to a stream
 * of the other. ROTRNN_UNSUPPORTED if the model's numbers are double. */
ROTRNN_API rotrnn_status rotrnn_model_open_bf16(rotrnn_model **model, const char *path, rotrnn_error *error);
ROTRNN_API rotrnn_status rotrnn_model_read_bf16(rotrnn_model **model, const void *bytes, size_t size,
                                                rotrnn_error *error);

/* The facts of a model; zeros if it is NULL. */
ROTRNN_API rotrnn_facts rotrnn_model_facts(const rotrnn_model *model);

/* The instruction set that was chosen for this processor: "base", "neon", "avx2" or "avx512"; "" for NULL. */
ROTRNN_API const char *rotrnn_model_isa(const rotrnn_model *model);

/* A stream that reads `batch` sequences side by side. `capacity` is the largest number of steps between two resets,
 * needed only by models with `needs_capacity`. For other models it may be 0: any number. All memory is allocated here,
 * and first touched in a push. Free the stream by rotrnn_stream_free; NULL is ignored. */
ROTRNN_API rotrnn_status rotrnn_stream_new(rotrnn_stream **stream, const rotrnn_model *model, int64_t batch,
                                           int64_t capacity, rotrnn_error *error);
ROTRNN_API void rotrnn_stream_free(rotrnn_stream *stream);

/* Returns to the state before the first step: for all sequences, or for one, 0 to batch - 1, without a change of the
 * others. The time depends on sizes and on the steps that were read, not on the capacity. */
ROTRNN_API rotrnn_status rotrnn_stream_reset(rotrnn_stream *stream);
ROTRNN_API rotrnn_status rotrnn_sequence_reset(rotrnn_stream *stream, int64_t sequence);

/* The number of steps that one sequence of the batch has read since the start or the last reset; 0 if there is none.
 * rotrnn_stream_steps is the largest number in the batch. */
ROTRNN_API int64_t rotrnn_sequence_steps(const rotrnn_stream *stream, int64_t sequence);
ROTRNN_API int64_t rotrnn_stream_steps(const rotrnn_stream *stream);

/* How often, since the start or the last reset, a layer did not reach its fixed point in a step of this sequence:
 * within its number of iterations, or to the tolerance of its direct solver. The stream then continues from the last
 * iterate. 0 for models without such layers. */
ROTRNN_API int64_t rotrnn_sequence_unsettled(const rotrnn_stream *stream, int64_t sequence);

/* Reads the next n >= 0 steps of each sequence: features (batch, n, inputs), or tokens (batch, n), in C order, as the
 * model's facts say. Writes the logits, (batch, n, outputs) if the model gives them for each step, else (batch,
 * outputs) for all steps read so far. `output` must not overlap `input`; input may be NULL if n is 0.
 *
 * ROTRNN_ARGUMENT if the model reads or writes another kind of number, or a token is out of range; ROTRNN_FULL if there
 * is no room for n more steps, or a sequence would have read more than 2^53. The stream and the output are then
 * unchanged. */
ROTRNN_API rotrnn_status rotrnn_push_features(rotrnn_stream *stream, const float *input, int64_t n, float *output);
ROTRNN_API rotrnn_status rotrnn_push_tokens(rotrnn_stream *stream, const int32_t *input, int64_t n, float *output);

/* The same for models whose numbers are double. */
ROTRNN_API rotrnn_status rotrnn_push_features_double(rotrnn_stream *stream, const double *input, int64_t n,
                                                     double *output);
ROTRNN_API rotrnn_status rotrnn_push_tokens_double(rotrnn_stream *stream, const int32_t *input, int64_t n,
                                                   double *output);

/* The same for sequences of different lengths, for models of any kind: `input` and `output` have the numbers and the
 * shape that the model's facts say, with room for n steps of each sequence. Sequence b reads lengths[b] steps, 0 to n.
 * Later steps are not read, and their logits are zero. Results have the same bits as for each sequence alone. */
ROTRNN_API rotrnn_status rotrnn_push_ragged(rotrnn_stream *stream, const void *input, int64_t n, const int64_t *lengths,
                                            void *output);

/* The state of a stream as bytes, to continue later, here or on another machine. rotrnn_state_size is the number of
 * bytes of every state of this stream, 0 for NULL. Loading checks that the bytes are complete and from a stream with
 * the same model, batch and, with `needs_capacity`, capacity; otherwise the stream is unchanged. */
ROTRNN_API size_t rotrnn_state_size(const rotrnn_stream *stream);
ROTRNN_API rotrnn_status rotrnn_state_save(const rotrnn_stream *stream, void *bytes, size_t size);
ROTRNN_API rotrnn_status rotrnn_state_load(rotrnn_stream *stream, const void *bytes, size_t size, rotrnn_error *error);

/* The same for one sequence of the batch, 0 to batch - 1, while the others stay as they are: for a server whose
 * sequences come and go. A stream of one sequence has the same bytes, and loads them too. They can be loaded into any
 * place of any stream with the same model and, with `needs_capacity`, capacity. */
ROTRNN_API size_t rotrnn_sequence_size(const rotrnn_stream *stream);
ROTRNN_API rotrnn_status rotrnn_sequence_save(const rotrnn_stream *stream, int64_t sequence, void *bytes, size_t size);
ROTRNN_API rotrnn_status rotrnn_sequence_load(rotrnn_stream *stream, int64_t sequence, const void *bytes, size_t size,
                                              rotrnn_error *error);

#ifdef __cplusplus
}
#endif

#endif
