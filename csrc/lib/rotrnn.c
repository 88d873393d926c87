/* The functions of include/rotrnn.h: checks of arguments, and files, models, streams and states. */
#define _DEFAULT_SOURCE
#include "rotrnn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "cuts.h"
#include "float_mode.h"
#include "platform.h"
#include "stream.h"

const char *rotrnn_version(void) { return ROTRNN_VERSION; }

const char *rotrnn_error_text(rotrnn_status status) {
    static const char *const texts[] = {
        [ROTRNN_OK] = "no error",
        [ROTRNN_ARGUMENT] = "an argument is NULL, negative or out of range, or not of the model's kind",
        [ROTRNN_NO_FILE] = "the file does not exist or cannot be read",
        [ROTRNN_NO_MEMORY] = "there is not enough memory",
        [ROTRNN_DAMAGED] = "the bytes are no model or state, or were changed after they were written",
        [ROTRNN_UNSUPPORTED] = "the model has a part that is not in the library",
        [ROTRNN_FULL] = "the stream was made for fewer steps",
        [ROTRNN_MISMATCH] = "the state is of another model, batch or capacity"};
    const size_t place = (size_t)status;
    return place < sizeof texts / sizeof *texts ? texts[place] : "an unknown status";
}

/* Clears the caller's error, or `own` if the caller passes NULL. */
static rotrnn_error *cleared(rotrnn_error *error, rotrnn_error *own) {
    rotrnn_error *const e = error ? error : own;
    *e = (rotrnn_error){.status = ROTRNN_OK};
    return e;
}

/* Whether an argument is given; an error if it is NULL. */
static bool given(rotrnn_error *error, const char *call, const char *what, const void *argument) {
    return argument || failed(error, ROTRNN_ARGUMENT, "%s: %s is NULL", call, what);
}

/* ---------------------------------------------------------------------------------------------------- models */

rotrnn_model *model_of(const file *f, bool half, rotrnn_error *error) {
    arena memory = {0};
    rotrnn_model *const made = arena_take(&memory, 1, sizeof *made);
    if (!made) {
        failed(error, ROTRNN_NO_MEMORY, "no memory for the model");
        return NULL;
    }
    *made = (rotrnn_model){.memory = memory, .run = choose(f->is_double), .parameters = f->numbers};
    memcpy(made->digest, f->digest, sizeof f->digest);
    builder b = {
        .file = f, .run = made->run, .memory = &made->memory, .program = &made->program, .error = error, .half = half};
    if (!b.run)
        failed(error, ROTRNN_UNSUPPORTED, "this build has no instruction set of this processor");
    else if (half && !b.run->pack_half)
        failed(error, ROTRNN_UNSUPPORTED,
               "the numbers of the model are double, expected float for matrices in bfloat16");
    else if (build(&b))
        return made;
    rotrnn_model_free(made);
    return NULL;
}

static rotrnn_status read_model(rotrnn_model **model, const void *bytes, size_t size, bool half, rotrnn_error *error) {
    rotrnn_error own, *const e = cleared(error, &own);
    arena spare = {0};
    file f;
    if (model) *model = NULL;
    const char *const call = half ? "rotrnn_model_read_bf16" : "rotrnn_model_read";
    if (!given(e, call, "model", model) || !given(e, call, "bytes", bytes)) return e->status;
    if (size > PTRDIFF_MAX) {
        failed(e, ROTRNN_ARGUMENT, "%s: size is %zu, but no object has so many bytes", call, size);
        return e->status;
    }
    const float_mode before = float_mode_quiet(0);
    if (file_read(&f, &spare, bytes, size, e)) *model = model_of(&f, half, e);
    float_mode_set(before);
    arena_free(&spare);
    return e->status;
}

rotrnn_status rotrnn_model_read(rotrnn_model **model, const void *bytes, size_t size, rotrnn_error *error) {
    return read_model(model, bytes, size, false, error);
}
rotrnn_status rotrnn_model_read_bf16(rotrnn_model **model, const void *bytes, size_t size, rotrnn_error *error) {
    return read_model(model, bytes, size, true, error);
}

/* The bytes of a model's file, in memory of malloc; NULL with an error. Reading stops if the first bytes do not begin a
 * model's file: devices may have no end. */
static void *read_bytes(FILE *from, size_t *size, rotrnn_error *error) {
    enum { FIRST = 1 << 16 };
    char *bytes = NULL;
    size_t room = 0, got = 1;
    for (*size = 0; got; *size += got) {
        if (*size == room) {
            room = room ? 2 * room : FIRST;
            char *const more = realloc(bytes, room);
            if (!more) {
                failed(error, ROTRNN_NO_MEMORY, "no memory for the file");
                break;
            }
            bytes = more;
        }
        got = fread(bytes + *size, 1, room - *size, from);
        if (ferror(from)) {
            failed(error, ROTRNN_NO_FILE, "%s", strerror(errno));
            break;
        }
        if (!*size && header_length(bytes, got, error) < 0) break;
    }
    if (error->status == ROTRNN_OK) return bytes;
    free(bytes);
    return NULL;
}

static void read_file(rotrnn_model **model, const char *path, bool half, rotrnn_error *error) {
    size_t size;
    if (platform_is_special(path)) {
        failed(error, ROTRNN_NO_FILE, "is a pipe or a device, expected a file");
        return;
    }
    FILE *const from = fopen(path, "rb");
    if (!from) {
        failed(error, ROTRNN_NO_FILE, "%s", strerror(errno));
        return;
    }
    void *const bytes = read_bytes(from, &size, error);
    (void)fclose(from);
    if (bytes) (void)read_model(model, bytes, size, half, error);
    free(bytes);
}

static rotrnn_status open_model(rotrnn_model **model, const char *path, bool half, rotrnn_error *error) {
    enum { LONGEST = 96 }; /* a longer path leaves no room for the message */
    rotrnn_error own, found = {.status = ROTRNN_OK}, *const e = cleared(error, &own);
    if (model) *model = NULL;
    const char *const call = half ? "rotrnn_model_open_bf16" : "rotrnn_model_open";
    if (!given(e, call, "model", model) || !given(e, call, "path", path)) return e->status;
    read_file(model, path, half, &found);
    if (found.status == ROTRNN_OK) return ROTRNN_OK;
    const size_t length = strlen(path);
    const char *const dots = length > LONGEST ? "..." : "", *end = length > LONGEST ? path + length - LONGEST : path;
    while (*dots && (*end & 0xc0) == 0x80) end++; /* not amid a letter of UTF-8 */
    failed(e, found.status, "%s%s: %s", dots, end, found.text);
    for (char *to = e->text + strlen(dots); *end; end++, to++)
        if (*end & 0x80) *to = *end; /* the caller's letters, and no line break */
    return e->status;
}

rotrnn_status rotrnn_model_open(rotrnn_model **model, const char *path, rotrnn_error *error) {
    return open_model(model, path, false, error);
}
rotrnn_status rotrnn_model_open_bf16(rotrnn_model **model, const char *path, rotrnn_error *error) {
    return open_model(model, path, true, error);
}

void rotrnn_model_free(rotrnn_model *model) {
    if (!model) return;
    arena memory = model->memory;
    arena_free(&memory);
}

rotrnn_facts rotrnn_model_facts(const rotrnn_model *model) {
    if (!model) return (rotrnn_facts){0};
    const program *const p = &model->program;
    return (rotrnn_facts){.reads_tokens = p->tokens,
                          .is_double = model->run->number == sizeof(double),
                          .gives_each = p->pool == POOL_NONE,
                          .needs_capacity = p->step_bytes > 0,
                          .inputs = p->inputs,
                          .outputs = p->outputs,
                          .parameters = model->parameters};
}

const char *rotrnn_model_isa(const rotrnn_model *model) { return model ? model->run->isa : ""; }

/* --------------------------------------------------------------------------------------------------- streams */

static int64_t bytes_of_state(const rotrnn_stream *s) { return s->batch * s->state_bytes; }

/* The counts at the beginning of a sequence's state, in any state of this stream's form: all its steps, and its steps
 * without a fixed point. */
enum { STEPS, UNSETTLED, COUNTS };

static int64_t count_in(const rotrnn_stream *s, const void *state, int64_t sequence, int which) {
    int64_t counts[COUNTS];
    memcpy(counts, (const char *)state + sequence * s->state_bytes, sizeof counts);
    return counts[which];
}

rotrnn_status rotrnn_stream_new(rotrnn_stream **stream, const rotrnn_model *model, int64_t batch, int64_t capacity,
                                rotrnn_error *error) {
    rotrnn_error own, *const e = cleared(error, &own);
    arena memory = {0};
    if (stream) *stream = NULL;
    if (!given(e, "rotrnn_stream_new", "stream", stream) || !given(e, "rotrnn_stream_new", "model", model))
        return e->status;
    const bool keeps_steps = model->program.step_bytes > 0;
    if (batch < 1)
        failed(e, ROTRNN_ARGUMENT, "rotrnn_stream_new: batch is %lld, expected 1 sequence or more", (long long)batch);
    if (capacity < keeps_steps)
        failed(e, ROTRNN_ARGUMENT, "rotrnn_stream_new: capacity is %lld, expected %s", (long long)capacity,
               keeps_steps ? "1 step or more, because a layer of the model keeps all steps" : "0 steps or more");
    if (e->status != ROTRNN_OK) return e->status;
    const program *const p = &model->program;
    const int64_t chunk = most(CHUNK_ROWS / batch, 1);
    int64_t numbers = 0, rows = 0, state_bytes = 0;
    rotrnn_stream *const made = arena_take(&memory, 1, sizeof *made);
    const bool fits = !__builtin_mul_overflow(batch, chunk, &rows) && !__builtin_mul_overflow(rows, p->row, &numbers) &&
                      state_size(p, capacity, &state_bytes);
    void *const scratch = made && fits ? arena_take(&memory, numbers, model->run->number) : NULL;
    void *const state = scratch ? arena_take(&memory, batch, (size_t)state_bytes) : NULL;
    if (!state) {
        arena_free(&memory);
        failed(e, ROTRNN_NO_MEMORY, "no memory for a stream of %lld sequences", (long long)batch);
        return e->status;
    }
    *made = (rotrnn_stream){.memory = memory,
                            .model = model,
                            .batch = batch,
                            .capacity = capacity,
                            .chunk = chunk,
                            .state_bytes = state_bytes,
                            .state = state,
                            .scratch = scratch};
    *stream = made;
    return ROTRNN_OK;
}

void rotrnn_stream_free(rotrnn_stream *stream) {
    if (!stream) return;
    arena memory = stream->memory;
    arena_free(&memory);
}

/* Clears a sequence: its parts of fixed size, and the kept rows of the steps that it has read. Later rows are zero:
 * memory that was never written is not touched. */
static void clear(const rotrnn_stream *s, int64_t sequence) {
    const program *const p = &s->model->program;
    char *const state = (char *)s->state + sequence * s->state_bytes, *const kept = state + p->state_bytes;
    const int64_t steps = count_in(s, s->state, sequence, STEPS);
    for (int64_t i = 0; i < p->count; i++)
        if (p->ops[i].kept) memset(kept + s->capacity * p->ops[i].state, 0, (size_t)(steps * p->ops[i].kept));
    memset(state, 0, (size_t)p->state_bytes);
}

rotrnn_status rotrnn_stream_reset(rotrnn_stream *stream) {
    if (!stream) return ROTRNN_ARGUMENT;
    for (int64_t b = 0; b < stream->batch; b++) clear(stream, b);
    return ROTRNN_OK;
}

static bool has_sequence(const rotrnn_stream *s, int64_t sequence) { return s && sequence >= 0 && sequence < s->batch; }

rotrnn_status rotrnn_sequence_reset(rotrnn_stream *stream, int64_t sequence) {
    if (!has_sequence(stream, sequence)) return ROTRNN_ARGUMENT;
    clear(stream, sequence);
    return ROTRNN_OK;
}

static int64_t count_of(const rotrnn_stream *s, int64_t sequence, int which) {
    return has_sequence(s, sequence) ? count_in(s, s->state, sequence, which) : 0;
}

int64_t rotrnn_sequence_steps(const rotrnn_stream *stream, int64_t sequence) {
    return count_of(stream, sequence, STEPS);
}

int64_t rotrnn_sequence_unsettled(const rotrnn_stream *stream, int64_t sequence) {
    return count_of(stream, sequence, UNSETTLED);
}

int64_t rotrnn_stream_steps(const rotrnn_stream *stream) {
    int64_t steps = 0;
    for (int64_t b = 0; stream && b < stream->batch; b++) steps = most(steps, count_of(stream, b, STEPS));
    return steps;
}

/* ---------------------------------------------------------------------------------------------------- pushes */

/* Whether all tokens of the batch are in the vocabulary. */
static bool in_vocabulary(const int32_t *tokens, int64_t count, int64_t vocabulary) {
    bool right = true;
    for (int64_t i = 0; i < count; i++) right &= tokens[i] >= 0 && tokens[i] < vocabulary;
    return right;
}

/* The number of steps of a sequence in a push. */
static int64_t length_of(const pushed *call, int64_t b) { return call->lengths ? call->lengths[b] : call->n; }

/* Checks the lengths, the tokens and the stream's room. */
static rotrnn_status check_steps(const rotrnn_stream *s, const pushed *call) {
    const program *const p = &s->model->program;
    const int64_t most_steps = p->step_bytes ? s->capacity : MOST_STEPS;
    rotrnn_status status = ROTRNN_OK;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t length = length_of(call, b);
        if (length < 0 || length > call->n) return ROTRNN_ARGUMENT;
        if (length && p->tokens && !in_vocabulary(call->tokens + b * call->n, length, p->inputs))
            return ROTRNN_ARGUMENT;
        if (length > most_steps - count_of(s, b, STEPS)) status = ROTRNN_FULL;
    }
    return status;
}

/* Sequences of different lengths, one after the other: each has the same bits alone and in a batch. Outputs of the
 * padding are zero. */
static void push_each(const rotrnn_stream *s, const frame *all, const pushed *call) {
    const program *const p = &s->model->program;
    const int64_t number = (int64_t)s->model->run->number, n = call->n;
    const int64_t row = p->outputs * number, rows = p->pool || call->last ? 1 : n;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t length = call->lengths[b], at = b * n;
        char *const output = (char *)call->output + b * rows * row;
        frame f = *all;
        f.B = 1;
        f.state = (char *)all->state + b * all->state_bytes;
        pushed one = {.output = output, .n = length, .last = call->last};
        if (p->tokens)
            one.tokens = call->tokens + at;
        else
            one.features = (const char *)call->features + at * p->inputs * number;
        s->model->run->push(p, &f, &one);
        if (!p->pool && !call->last) memset(output + length * row, 0, (size_t)((n - length) * row));
    }
}

rotrnn_status stream_push(rotrnn_stream *s, const pushed *call) {
    if (!s || call->n < 0 || !call->output) return ROTRNN_ARGUMENT;
    const rotrnn_model *const model = s->model;
    const program *const p = &model->program;
    int64_t numbers;
    if (__builtin_mul_overflow(s->batch, call->n, &numbers) ||
        __builtin_mul_overflow(numbers, most(p->inputs, p->outputs) * (int64_t)sizeof(double), &numbers))
        return ROTRNN_ARGUMENT;
    if (call->n && !(p->tokens ? (const void *)call->tokens : call->features)) return ROTRNN_ARGUMENT;
    const rotrnn_status status = check_steps(s, call);
    if (status != ROTRNN_OK) return status;
    const float_mode before = float_mode_quiet(FLOAT_MODE_FLUSH);
    frame f = {.scratch = s->scratch,
               .state = s->state,
               .room = s->chunk * s->batch,
               .B = s->batch,
               .state_bytes = s->state_bytes,
               .fixed_bytes = p->state_bytes,
               .capacity = s->capacity};
    if (call->lengths && call->n)
        push_each(s, &f, call);
    else
        model->run->push(p, &f, call);
    float_mode_set(before);
    return ROTRNN_OK;
}

/* A push of numbers of one type, to a model with the same type, of tokens or of features. */
static rotrnn_status push_any(rotrnn_stream *s, size_t number, bool tokens, const pushed *call) {
    const bool fits = s && s->model->run->number == number && s->model->program.tokens == tokens;
    return fits ? stream_push(s, call) : ROTRNN_ARGUMENT;
}

rotrnn_status rotrnn_push_features(rotrnn_stream *stream, const float *input, int64_t n, float *output) {
    return push_any(stream, sizeof(float), false, &(pushed){.features = input, .output = output, .n = n});
}
rotrnn_status rotrnn_push_tokens(rotrnn_stream *stream, const int32_t *input, int64_t n, float *output) {
    return push_any(stream, sizeof(float), true, &(pushed){.tokens = input, .output = output, .n = n});
}
rotrnn_status rotrnn_push_features_double(rotrnn_stream *stream, const double *input, int64_t n, double *output) {
    return push_any(stream, sizeof(double), false, &(pushed){.features = input, .output = output, .n = n});
}
rotrnn_status rotrnn_push_tokens_double(rotrnn_stream *stream, const int32_t *input, int64_t n, double *output) {
    return push_any(stream, sizeof(double), true, &(pushed){.tokens = input, .output = output, .n = n});
}
rotrnn_status rotrnn_push_ragged(rotrnn_stream *stream, const void *input, int64_t n, const int64_t *lengths,
                                 void *output) {
    if (!stream || !lengths) return ROTRNN_ARGUMENT;
    const bool tokens = stream->model->program.tokens;
    return stream_push(stream, &(pushed){.features = tokens ? NULL : input,
                                         .tokens = tokens ? input : NULL,
                                         .lengths = lengths,
                                         .output = output,
                                         .n = n});
}

/* ---------------------------------------------------------------------------------------------------- states */

/* The header of a saved state. The checksum covers all bytes after it. */
typedef struct {
    char magic[8];
    uint8_t checksum[SHA256_BYTES], model[SHA256_BYTES];
    int64_t batch, capacity, bytes;
} state_header;

static const char MAGIC[8] = "rotrnnS2";

/* The header of a state of `sequences` sequences. */
static state_header header_of(const rotrnn_stream *s, int64_t sequences) {
    const int64_t capacity = s->model->program.step_bytes ? s->capacity : 0; /* otherwise it means nothing */
    state_header h = {.batch = sequences, .capacity = capacity, .bytes = sequences * s->state_bytes};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.model, s->model->digest, sizeof h.model);
    return h;
}

static void add_checksum(state_header *h, const void *state) {
    const size_t before = offsetof(state_header, model);
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, (const char *)h + before, sizeof *h - before);
    sha256_add(&s, state, (size_t)h->bytes);
    sha256_end(&s, h->checksum);
}

int64_t stream_refuses(const rotrnn_stream *s, const void *state, int64_t sequences) {
    const int64_t most_steps = s->model->program.step_bytes ? s->capacity : MOST_STEPS;
    for (int64_t b = 0; b < sequences; b++) {
        const int64_t steps = count_in(s, state, b, STEPS), unsettled = count_in(s, state, b, UNSETTLED);
        if (steps < 0 || steps > most_steps || unsettled < 0 || unsettled > MOST_STEPS) return b;
    }
    return -1;
}

/* Writes the state of `sequences` sequences, from `first` on. */
static void save_part(const rotrnn_stream *s, int64_t first, int64_t sequences, void *bytes) {
    const void *const state = (const char *)s->state + first * s->state_bytes;
    state_header h = header_of(s, sequences);
    add_checksum(&h, state);
    memcpy(bytes, &h, sizeof h);
    memcpy((char *)bytes + sizeof h, state, (size_t)h.bytes);
}

/* Reads a state that save_part wrote for the same number of sequences. */
static void load_part(rotrnn_stream *s, int64_t first, int64_t sequences, const void *bytes, size_t size,
                      rotrnn_error *e) {
    const state_header mine = header_of(s, sequences);
    const size_t expected = sizeof mine + (size_t)mine.bytes;
    state_header h;
    if (size < sizeof h) {
        failed(e, ROTRNN_DAMAGED, "%zu bytes are too few for a state", size);
        return;
    }
    memcpy(&h, bytes, sizeof h);
    state_header checked = h;
    if (memcmp(h.magic, MAGIC, sizeof h.magic))
        failed(e, ROTRNN_DAMAGED, "the bytes are not a state that rotrnn_state_save or rotrnn_sequence_save wrote");
    else if (memcmp(h.model, mine.model, sizeof h.model))
        failed(e, ROTRNN_MISMATCH, "the state is of another model");
    else if (h.batch != mine.batch || (mine.capacity && h.capacity != mine.capacity) || h.bytes != mine.bytes)
        failed(e, ROTRNN_MISMATCH, "the state is of batch %lld and capacity %lld, expected %lld and %lld",
               (long long)h.batch, (long long)h.capacity, (long long)mine.batch, (long long)mine.capacity);
    else if (size != expected)
        failed(e, ROTRNN_DAMAGED, "the state has %zu bytes, expected %zu", size, expected);
    else {
        const void *const state = (const char *)bytes + sizeof h;
        add_checksum(&checked, state);
        if (memcmp(checked.checksum, h.checksum, sizeof h.checksum) || stream_refuses(s, state, sequences) >= 0)
            failed(e, ROTRNN_DAMAGED, "the state does not match its checksum: damaged or changed");
        else
            memcpy((char *)s->state + first * s->state_bytes, state, (size_t)h.bytes);
    }
}

size_t rotrnn_state_size(const rotrnn_stream *stream) {
    return stream ? sizeof(state_header) + (size_t)bytes_of_state(stream) : 0;
}

size_t rotrnn_sequence_size(const rotrnn_stream *stream) {
    return stream ? sizeof(state_header) + (size_t)stream->state_bytes : 0;
}

rotrnn_status rotrnn_state_save(const rotrnn_stream *stream, void *bytes, size_t size) {
    if (!stream || !bytes || size != rotrnn_state_size(stream)) return ROTRNN_ARGUMENT;
    save_part(stream, 0, stream->batch, bytes);
    return ROTRNN_OK;
}

rotrnn_status rotrnn_sequence_save(const rotrnn_stream *stream, int64_t sequence, void *bytes, size_t size) {
    if (!has_sequence(stream, sequence) || !bytes || size != rotrnn_sequence_size(stream)) return ROTRNN_ARGUMENT;
    save_part(stream, sequence, 1, bytes);
    return ROTRNN_OK;
}

rotrnn_status rotrnn_state_load(rotrnn_stream *stream, const void *bytes, size_t size, rotrnn_error *error) {
    rotrnn_error own, *const e = cleared(error, &own);
    if (given(e, "rotrnn_state_load", "stream", stream) && given(e, "rotrnn_state_load", "bytes", bytes))
        load_part(stream, 0, stream->batch, bytes, size, e);
    return e->status;
}

rotrnn_status rotrnn_sequence_load(rotrnn_stream *stream, int64_t sequence, const void *bytes, size_t size,
                                   rotrnn_error *error) {
    rotrnn_error own, *const e = cleared(error, &own);
    if (!given(e, "rotrnn_sequence_load", "stream", stream) || !given(e, "rotrnn_sequence_load", "bytes", bytes))
        return e->status;
    if (has_sequence(stream, sequence))
        load_part(stream, sequence, 1, bytes, size, e);
    else
        failed(e, ROTRNN_ARGUMENT, "rotrnn_sequence_load: sequence is %lld, expected 0 to %lld", (long long)sequence,
               (long long)(stream->batch - 1));
    return e->status;
}
