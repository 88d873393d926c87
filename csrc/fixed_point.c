/* Fixed points in depth  y = F(y)  of sequences (B, T, D): the pass over memory that an iteration takes beside F.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor written, so a sequence that is done has length
 * 0. Maxima have no order, so results are the same bits for any number of threads.
 */
#include <string.h>

#include "kernels.h"
#include "steps.h"
#include "workspace.h"

enum { PIECE = 65536 / sizeof(real), SERIAL = 32768 };

/* Magnitudes as integers, in the order of the numbers, infinity above them and NaN above all: so a maximum keeps NaN.
 */
#if ROT_DOUBLE
typedef int64_t magnitude;
static const magnitude WITHOUT_SIGN = INT64_MAX;
#else
typedef int32_t magnitude;
static const magnitude WITHOUT_SIGN = INT32_MAX;
#endif

static inline magnitude magnitude_of(real x) {
    magnitude bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & WITHOUT_SIGN;
}

static inline real number_of(magnitude bits) {
    real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline magnitude larger(magnitude a, magnitude b) { return a > b ? a : b; }

/* How far apart an iterate and its image are, and how large the image is: maxima over steps and channels. */
typedef struct {
    magnitude apart, size;
} spread;

static real residual_of(spread s) { return number_of(s.apart) / (number_of(s.size) + (real)RESIDUAL_FLOOR); }

/* y <- s f + (1 - s) y over n numbers. */
static spread relax_row(real *restrict y, const real *restrict f, real s, int64_t n) {
    spread most = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        most.apart = larger(most.apart, magnitude_of(y[i] - f[i]));
        most.size = larger(most.size, magnitude_of(f[i]));
        y[i] = relax_step(y[i], f[i], s);
    }
    return most;
}

/* y (B,T,D) <- s_b f + (1 - s_b) y in place, and residual (B) = max |y - f| / (max |f| + RESIDUAL_FLOOR) of y as it
 * was, the maxima over a sequence's steps and channels: NaN if anything was, 0 without a step. f (B,T,D), s (B). */
int K(relax)(real *restrict residual, real *restrict y, const real *restrict f, const real *restrict s,
             const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D) {
    const int64_t rows = PIECE / (D + 1) + 1, pieces = (T + rows - 1) / rows;
    spread *const most = WORKSPACE(spread, B, pieces);
    if (!most) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (B * T * D > SERIAL)
    for (int64_t i = 0; i < B * pieces; i++) {
        const int64_t b = i / pieces, from = i % pieces * rows, all = lengths ? lengths[b] : T;
        const int64_t left = all - from, count = left < 0 ? 0 : left < rows ? left : rows, at = (b * T + from) * D;
        most[i] = relax_row(y + at, f + at, s[b], count * D);
    }
    for (int64_t b = 0; b < B; b++) {
        spread all = {0, 0};
        for (int64_t i = b * pieces; i < (b + 1) * pieces; i++) {
            all.apart = larger(all.apart, most[i].apart);
            all.size = larger(all.size, most[i].size);
        }
        residual[b] = residual_of(all);
    }
    pool_give(most);
    return ROT_OK;
}
