/* Element types and names of one compiled variant.
 *
 * Each kernel file is compiled once per dtype (ROT_DTYPE: f32, f64; scans also c64, c128) and once per
 * instruction set (ROT_ISA: base, avx2, avx512, or neon). `real` is the scalar, `lane` the scalar or complex number
 * that a kernel walks over, and K(scan_forward) the variant's own name, e.g. scan_forward_f32_avx2.
 *
 * Dimension letters of the whole project: B batch, T time, N state lanes, D model width, H heads, P planes per
 * head, R reflections, M rows (usually B*T), C classes.
 */
#ifndef ROT_REAL_H
#define ROT_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef ROT_DTYPE
#define ROT_DTYPE f32
#endif
#ifndef ROT_ISA
#define ROT_ISA base
#endif

#define ROT_PASTE_(name, dtype, isa) name##_##dtype##_##isa
#define ROT_PASTE(name, dtype, isa)  ROT_PASTE_(name, dtype, isa)
#define K(name)                      ROT_PASTE(name, ROT_DTYPE, ROT_ISA)

#define ROT_IS_f32     1
#define ROT_IS_f64     2
#define ROT_IS_c64     3
#define ROT_IS_c128    4
#define ROT_CAT_(a, b) a##b
#define ROT_CAT(a, b)  ROT_CAT_(a, b)
#define ROT_KIND       ROT_CAT(ROT_IS_, ROT_DTYPE)
#define ROT_COMPLEX    (ROT_KIND == ROT_IS_c64 || ROT_KIND == ROT_IS_c128)
#define ROT_DOUBLE     (ROT_KIND == ROT_IS_f64 || ROT_KIND == ROT_IS_c128)

#if ROT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* A complex number is a struct: `_Complex` multiplies through __mulsc3, and a struct compiles under nvcc. */
typedef struct {
    real re, im;
} cplx;

#if ROT_COMPLEX
typedef cplx lane;
#else
typedef real lane;
#endif

/* What a kernel returns; module.c turns it into a Python exception. */
enum { ROT_OK = 0, ROT_NO_MEMORY = 1, ROT_OUT_OF_RANGE = 2, ROT_EXHAUSTED = 3 };

#endif
