/* Functions that build a program from the lines and arrays of a file (lines.c): settings, weights, registers,
 * instructions. An error is recorded in the builder, and later calls do nothing: they return zeros, NULL, or memory
 * whose contents are not used. A caller checks `good` before it reads arrays.
 */
#ifndef ROT_BUILD_H
#define ROT_BUILD_H

#include "exact.h"
#include "file.h"
#include "program.h"

typedef struct {
    const file *file;
    const implementation *run;
    arena *memory; /* for the model */
    arena spare;   /* freed when the program is built */
    program *program;
    rotrnn_error *error;
    int64_t room, taken; /* room for instructions; numbers of a row in use */
    bool half;           /* matrices of dense maps are kept in bfloat16 */
    int64_t left;        /* numbers that the program may still allocate, in proportion to the file's */
    op nowhere;
} builder;

/* Settings, and the name of their owner, "line 3"; the member "op" is its instruction. */
typedef struct {
    const json *settings;
    char name[32];
} part;

/* Numbers of an array, in the file or computed; at no particular alignment. */
typedef struct {
    const void *at;
    bool is_double;
} weights;

/* Bound of an integer setting and of a register's numbers: sums of products of two do not overflow. */
#define LARGEST ((int64_t)1 << 28)

bool good(const builder *b);
/* Errors: the library, or only this build, does not have a part with this property. */
bool unsupported(builder *b, const part *p, const char *what);
bool left_out(builder *b, const part *p, const char *what, const char *option);

/* Settings, which are errors if they are missing or of another type. An integer is in [low, 2^28]. */
int64_t integer_of(builder *b, const part *p, const char *key, int64_t low);
double number_of(builder *b, const part *p, const char *key);
bool flag_of(builder *b, const part *p, const char *key);
bool is_null(builder *b, const part *p, const char *key);
/* The setting "window", 0 if it is null. */
int64_t window_of(builder *b, const part *p);
/* The place of the setting among the names, which are separated by spaces. */
int64_t choice_of(builder *b, const part *p, const char *key, const char *names);

/* The array with this name; writes its shape to `shape` and `axes`. An error if it is missing. */
weights weights_of(builder *b, const char *name, int64_t *shape, int *axes);
/* Computed numbers as weights; weights from a row on; weights in double. */
weights computed(const double *numbers);
weights from_row(weights w, int64_t row, int64_t columns);
void widen(double *to, weights from, int64_t count);
/* Temporary numbers, zeroed; NULL if memory is exhausted. */
double *spare(builder *b, int64_t count);

/* Weights of the program: w (out, in) packed for products, and numbers unchanged; then w of a dense map, packed, and a
 * table, both in bfloat16 if the builder says so. NULL stays NULL. */
const void *packed_of(builder *b, weights w, int64_t out, int64_t in);
const void *dense_of(builder *b, weights w, int64_t out, int64_t in);
const void *table_of(builder *b, weights w, int64_t rows, int64_t columns);
const void *stored(builder *b, const double *from, int64_t count);
const void *stored_exact(builder *b, const double *from, int64_t count);

/* A new register; and room in a sequence's state for numbers of `size` bytes. */
rows take_rows(builder *b, int64_t width);
int64_t take_state(builder *b, int64_t count, size_t size);

/* Appends an instruction y <- x. */
op *emit(builder *b, op_kind kind, rows y, rows x);
/* Makes an instruction keep `width` numbers of each of the last `window` steps; of all steps if it is 0. */
void keep_steps(builder *b, op *o, int64_t window, int64_t width);
/* y = x w^T + bias, w (y's width, x's width), bias may be NULL. */
void emit_dense(builder *b, rows y, rows x, weights w, const double *bias);
/* y = x f(gate), with f an elementwise instruction; y may be x, but not the gate */
void emit_gated(builder *b, op_kind f, rows y, rows x, rows gate);

/* Builds the program of the file's model (lines.c). */
bool build(builder *b);

/* The instructions that a line may have. */
int line_count(void);
const char *line_name(int i);

#endif
