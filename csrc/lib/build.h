/* What builds a program from the settings and arrays of a file. Everything that does not depend on time is computed
 * here, once, in double, and rounded when the weights are stored.
 *
 * An error is noted in the builder and all that follows does nothing: functions then return zeros, NULL, or what may be
 * written to in vain. A caller looks at `good` before it reads arrays.
 */
#ifndef ROT_BUILD_H
#define ROT_BUILD_H

#include "exact.h"
#include "file.h"
#include "program.h"

typedef struct {
    const file *file;
    const implementation *run;
    arena *memory; /* of the model */
    arena spare;   /* until the program is built */
    program *program;
    rotrnn_error *error;
    int64_t room, taken; /* room for instructions; numbers of a row in use */
    op nowhere;
} builder;

/* A part of the model: its settings, and the name in front of those of its arrays, "blocks.0.layer". */
typedef struct {
    const json *settings;
    char name[96];
} part;

/* Numbers of a matrix, where they lie in the file or were computed; at no particular alignment. */
typedef struct {
    const void *at;
    bool is_double;
} weights;

/* Of an integer setting, and of the numbers of a register, so that sums of products of two do not overflow. */
#define LARGEST ((int64_t)1 << 28)

bool good(const builder *b);

/* The part in a part: its settings are the member `key`, its arrays are below `name`, "" for those of the part itself.
 */
part part_in(builder *b, const part *of, const char *key, const char *name);
bool is_kind(const part *p, const char *kind);
bool unsupported(builder *b, const part *p, const char *what);

/* Settings, which are errors if they are missing or of another type. An integer is in [low, 2^28]. */
int64_t integer_of(builder *b, const part *p, const char *key, int64_t low);
double number_of(builder *b, const part *p, const char *key);
bool flag_of(builder *b, const part *p, const char *key);
bool is_null(builder *b, const part *p, const char *key);
/* The setting "window", 0 if it is null. */
int64_t window_of(builder *b, const part *p);
/* The place of the setting among the names, which are separated by spaces. */
int64_t choice_of(builder *b, const part *p, const char *key, const char *names);
/* Settings of these names matter only in training. */
void ignore(const part *p, const char *names);
/* Notes an error unless the width of the part, a setting, is the one that its place needs. */
void check_width(builder *b, const part *p, const char *key, int64_t width);

/* An array in double, of one, two or three axes; an error if it is missing or has another shape. */
const double *vector_of(builder *b, const part *p, const char *name, int64_t n);
const double *matrix_of(builder *b, const part *p, const char *name, int64_t rows, int64_t columns);
const double *stack_of(builder *b, const part *p, const char *name, int64_t count, int64_t rows, int64_t columns);
/* A matrix, or several, that are packed or stored as they are, which is read in place; the same from a row on; and one
 * in double. */
weights weights_of(builder *b, const part *p, const char *name, int64_t rows, int64_t columns);
weights stacked_weights_of(builder *b, const part *p, const char *name, int64_t count, int64_t rows, int64_t columns);
weights from_row(weights w, int64_t row, int64_t columns);
weights computed(const double *numbers);
/* A matrix, or several, of any shape, which is written to `shape` and `axes`; an error if it is missing. */
weights any_weights_of(builder *b, const part *p, const char *name, int64_t *shape, int *axes);
/* Numbers in double. */
void widen(double *to, weights from, int64_t count);
/* Numbers for a while, zeroed; NULL if there is no memory. */
double *spare(builder *b, int64_t count);

/* P (G,n,n): the rotations expm(M - M^T). Returns false with an error if M has numbers that are too large. */
bool rotations_of(builder *b, const part *p, double *P, const double *M, int64_t G, int64_t n);

/* Weights of the program: w (out, in) packed for products, a table, and numbers as they are; NULL stays NULL. */
const void *packed_of(builder *b, weights w, int64_t out, int64_t in);
const void *table_of(builder *b, weights w, int64_t rows, int64_t columns);
const void *stored(builder *b, const double *from, int64_t count);
const void *stored_exact(builder *b, const double *from, int64_t count);

/* A register, until `taken` is set back; and room in a sequence's state for numbers of `size` bytes. */
rows take_rows(builder *b, int64_t width);
int64_t take_state(builder *b, int64_t count, size_t size);
/* The place of `width` numbers for each of the last `window` steps; for all steps where it is 0. */
int64_t take_history(builder *b, int64_t window, int64_t width);

/* Appends an instruction y <- x. */
op *emit(builder *b, op_kind kind, rows y, rows x);
/* y = x w^T + bias, w (y's width, x's width), bias may be NULL. */
void emit_dense(builder *b, rows y, rows x, weights w, const double *bias);
/* The same of the arrays of a part with the names `w` and, if it has a bias, `shift`. */
void build_map(builder *b, const part *p, const char *w, const char *shift, bool bias, rows y, rows x);
/* y = scale x / sqrt(mean x^2 + eps), with a scale by channel and the mean of each of some groups of channels. */
void emit_rms_norm(builder *b, rows y, rows x, const double *scale, int64_t groups, double eps);
/* y = scale (x - mean) / sqrt(variance + eps) + bias, with a scale and, unless it is NULL, a bias by channel, and the
 * mean and variance of each of some groups of channels. y is another register. */
void emit_layer_norm(builder *b, rows y, rows x, const double *scale, const double *bias, int64_t groups, double eps);
/* y = x f(gate), f an instruction for each number; y may be x and not the gate */
void emit_gated(builder *b, op_kind f, rows y, rows x, rows gate);
/* y += skip x */
void emit_skip(builder *b, rows y, rows x, const double *skip);

/* Builds the program of the file's model. */
bool build(builder *b);

/* Appends the instructions of a layer, y <- layer(x), both of the model's width; an error if it is none of its file.
 */
typedef void build_layer(builder *b, const part *layer, rows y, rows x);
build_layer build_lru, build_s5, build_rotrnn, build_rope_memory, build_s4d; /* linear.c */
build_layer build_selective_rotrnn, build_s4, build_liquid_s4;
build_layer build_attention, build_wrope_memory;             /* histories.c */
build_layer build_fixed_point, build_bedouin, build_fpmamba; /* fixed_points.c */
build_layer build_program;                                   /* lines.c: of a layer whose program is in the file */
build_layer build_layer_of;                                  /* any of these */

/* u <- conv(value) with weights w (channels, taps) and a bias, or NULL. */
void emit_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps);
/* u <- SiLU(conv(value)); SiLU alone without taps. */
void emit_silu_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps);

#endif
