/* The lines of a program in a file, and functions that read a line (lines.c, recurrences.c, fixed_points.c). */
#ifndef ROT_READ_H
#define ROT_READ_H

#include "build.h"

enum { MOST_INPUTS = 12, MOST_PARTS = 64 };

/* An input of a line: the rows of a register, or an array of the file (`fixed`), and its shape without (B, T). */
typedef struct {
    int64_t shape[MOST_AXES];
    int axes;
    bool fixed;
    weights numbers;
    rows rows;
    int64_t last;  /* the last line that reads the register */
    int64_t whole; /* the register that owns the rows: itself, or an earlier one */
} value;

/* The program being read, and its current line. */
typedef struct {
    builder *b;
    part p; /* of the line */
    const char *op;
    value *registers;
    int64_t count, known; /* of registers, and of registers already set */
    int64_t line;
    const value *in[MOST_INPUTS]; /* NULL if not given */
    value arrays[MOST_INPUTS];    /* the fixed inputs in `in` */
    rows *free;                   /* rows for reuse */
    int64_t free_count;
    value nothing, nowhere; /* read, and written, after an error */
} reader;

/* Returns whether the shapes of a line fit; if not, sets an error, and later calls do nothing. */
bool expect(reader *r, bool right);

/* Input i: rows of a step, or an array, with this number of axes; 0 for any number. */
const value *steps(reader *r, int64_t i, int axes);
const value *fixed(reader *r, int64_t i, int axes);
int64_t numbers_of(const value *v);
/* Whether axis i of a value has this size, and whether two values have the same shape. */
bool is(const value *v, int i, int64_t size);
bool alike(const value *x, const value *y);
/* Whether input i is an array (rows, columns), or a vector (rows,) for 0 columns, or is not given. */
bool is_matrix_or_none(const reader *r, int64_t i, int64_t rows, int64_t columns);
/* The numbers of an array in double; NULL with an error, or if there is no value. */
const double *doubles(reader *r, const value *v);
/* The numbers of a matrix (rows, columns) as (columns, rows) in double; NULL with an error. */
const double *transposed(reader *r, const value *w);
/* Input i as weights for a product, NULL if it is not given. */
const void *packed_input(reader *r, int64_t i);
/* The integers in a setting that is a list. Returns their number; 0 with an error if it is no list. */
int integers_of(reader *r, const char *key, int64_t *to, int most_of_them);

/* The rows of a new register with the shape of another value, or with the given shape. */
rows make_like(reader *r, const value *like);
rows make(reader *r, int64_t width);
rows make_matrix(reader *r, int64_t count, int64_t width);
/* The rows of a new register that begins as a copy of the rows of input i; or a copy for this line only. */
rows make_copy(reader *r, int64_t i);
rows copied(reader *r, int64_t i);
/* Rows for this line only, freed after it. */
rows rows_for(reader *r, int64_t width);
void give_back(reader *r, rows some);
/* Room for the line's numbers in a sequence's state. */
int64_t state_for(reader *r, int64_t count);
/* A register, or rows for this line only, with planes x (2, N) as adjacent numbers (N, 2), or the other way round. */
rows make_adjacent(reader *r, rows x);
rows halves_for(reader *r, rows x);
/* y <- columns `from` to from + y.width of x. */
void emit_columns(builder *b, rows y, rows x, int64_t from);

typedef void read_line(reader *r);
read_line read_system, read_bank, read_turning_scan, read_scan, read_conv; /* recurrences.c */
read_line read_dplr_bank, read_products;
read_line read_rotary, read_attention, read_wrope, read_history;
read_line read_oscillator_scan, read_selective, read_elman, read_lstm, read_gru, read_ssd, read_delta,
    read_matrix_memory, read_scalar_memory;
read_line read_turn, read_trapezoid, read_hold, read_permuted_scan, read_unit_scan;
read_line read_fixed_point, read_matrix_fixed_point; /* fixed_points.c */

#endif
