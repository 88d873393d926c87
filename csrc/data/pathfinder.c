/* Pathfinder (Linsley et al. 2018), the images of Long Range Arena's Pathfinder and Path-X (Tay et al. 2021).
 *
 * Two long contours of paddles are drawn, then short distractors, then two markers: on both ends of one long contour,
 * or on one end of each. Every paddle must fit beside those already drawn; if one does not, the pair of long contours
 * is discarded. The pictures of paddles come from tasks/paddles.py. They have 8 bits, so everything is computed in
 * integers except moves, which are single additions: every instruction set gives the same image.
 */

#include <math.h>
#include <string.h>

#include "cuts.h"
#include "kernels.h"
#include "philox.h"
#include "pool.h"
#include "workspace.h"

enum { DEGREES = 360, WHITE = 255, MARKER_SHADE = 20 };
enum { PAIRS = 1 << 20, DISTRACTOR_TRIES = 5, PADDLE_TRIES = 3 };
enum { FREE = 76 };         /* a contour starts only where at most this much is taken: 0.3 of 255 */
enum { CROSSING = 459 };    /* two paddles may take less than this of one pixel: 1.8 of 255 */
enum { SPARSE = 100 };      /* distractors are tried while one pixel in this many is free */
enum { DEAD_END = 427819 }; /* the ends' total weight must exceed this: 1e-4 of 255 * 2^24 */
enum { MAX_ENDS = PATHFINDER_MAX_ENDS };
enum { MAX_WINDOW = PATHFINDER_MAX_WINDOW, WORDS = MAX_WINDOW / 64 };

/* One bit per pixel, with a word of zeros on both sides of a row. */
typedef uint64_t bits[MAX_WINDOW][WORDS + 2];

/* Paddle `way` starts at pixel (y,x), like the rows of pathfinder_out's paddles. */
typedef struct {
    int64_t way, y, x;
} placed;

/* A contour while it grows: its last paddle, and the pivot of that paddle. */
typedef struct {
    placed last;
    int64_t y, x;
} contour;

typedef struct {
    const pathfinder_in *in;
    philox_stream random;
    placed *paddles;
    uint8_t *taken, *before; /* (window,window) taken part of each pixel, of 255; a copy to restore */
    uint16_t *shades;        /* (window,window) */
} image;

/* ---- pixels ---- */

static bool inside(int64_t y, int64_t x, int64_t w) { return y >= 0 && y < w && x >= 0 && x < w; }

/* A step is rounded up to the next pixel along the axis. */
static int64_t stepped(int64_t at, double by) { return (int64_t)ceil((double)at + by); }

/* The part of a picture (side,side) with its pixel (cy,cx) at (y,x) that lies in the window. */
typedef struct {
    int64_t top, bottom, left, right; /* in the window */
    int64_t origin;                   /* index of the window's pixel (0,0) in the picture */
} patch;

static patch patch_at(int64_t y, int64_t x, int64_t cy, int64_t cx, int64_t side, int64_t w) {
    const int64_t top = y - cy, left = x - cx;
    const patch p = {most(top, 0), least(top + side, w), most(left, 0), least(left + side, w), -top * side - left};
    return p;
}

static patch paddle_patch(const image *m, placed p) {
    const int64_t half = m->in->S / 2;
    return patch_at(p.y, p.x, half, half, m->in->S, m->in->window);
}

static bool crosses(const image *m, placed p) {
    const int64_t w = m->in->window, S = m->in->S;
    const uint8_t *const mask = m->in->masks + p.way * S * S;
    const patch at = paddle_patch(m, p);
    int crossed = 0;
    for (int64_t y = at.top; y < at.bottom; y++)
        for (int64_t x = at.left; x < at.right; x++)
            crossed |= m->taken[y * w + x] + mask[at.origin + y * S + x] >= CROSSING;
    return crossed;
}

static void take(image *m, placed p) {
    const int64_t w = m->in->window, S = m->in->S;
    const uint8_t *const mask = m->in->masks + p.way * S * S;
    const patch at = paddle_patch(m, p);
    for (int64_t y = at.top; y < at.bottom; y++)
        for (int64_t x = at.left; x < at.right; x++) {
            const uint8_t there = m->taken[y * w + x], new = mask[at.origin + y * S + x];
            m->taken[y * w + x] = there > new ? there : new;
        }
}

static void paint(image *m, const uint8_t *picture, patch at, int64_t side, int64_t shade) {
    const int64_t w = m->in->window;
    for (int64_t y = at.top; y < at.bottom; y++)
        for (int64_t x = at.left; x < at.right; x++) {
            const uint16_t there = m->shades[y * w + x], new = (uint16_t)(picture[at.origin + y * side + x] * shade);
            m->shades[y * w + x] = there > new ? there : new;
        }
}

/* ---- where a contour may start ---- */

static int64_t from_edge(int64_t y, int64_t x, int64_t w) { return least(least(y, w - 1 - y), least(x, w - 1 - x)); }

/* Marks a band along the edges as taken. */
static void band(bits b, int64_t w, int64_t width) {
    for (int64_t y = 0; y < w; y++)
        for (int64_t x = 0; x < w; x++)
            if (from_edge(y, x, w) < width) b[y][1 + x / 64] |= 1ull << x % 64;
}

/* The taken pixels; returns the number of others. */
static int64_t taken_bits(bits b, const uint8_t *taken, int64_t w) {
    int64_t count = 0;
    memset(b, 0, sizeof(bits));
    for (int64_t y = 0; y < w; y++)
        for (int64_t x = 0; x < w; x++) {
            const uint64_t bit = taken[y * w + x] > FREE;
            b[y][1 + x / 64] |= bit << x % 64;
            count += !bit;
        }
    return count;
}

/* The pixels around which no probe is taken (no probe is outside the window); returns their number. */
static int64_t free_bits(bits free, bits taken, const int64_t *probes, int64_t count, int64_t w) {
    int64_t found = 0;
    for (int64_t y = 0; y < w; y++)
        for (int64_t k = 1; 64 * (k - 1) < w; k++) {
            const int64_t rest = w - 64 * (k - 1);
            uint64_t left = rest >= 64 ? ~0ull : (1ull << rest) - 1;
            for (int64_t i = 0; i < count && left; i++) {
                const int64_t from = y + probes[2 * i], right = probes[2 * i + 1];
                if (from < 0 || from >= w) continue;
                const uint64_t *const row = taken[from] + k;
                left &= ~(right == 0  ? row[0]
                          : right > 0 ? row[0] >> right | row[1] << (64 - right)
                                      : row[0] << -right | row[-1] >> (64 + right));
            }
            free[y][k] = left;
            found += __builtin_popcountll(left);
        }
    return found;
}

/* Position of the n-th set bit, row by row. */
static void nth_bit(int64_t *y, int64_t *x, bits b, int64_t n, int64_t w) {
    for (*y = 0;; ++*y)
        for (int64_t k = 1; 64 * (k - 1) < w; k++) {
            uint64_t word = b[*y][k];
            const int64_t here = __builtin_popcountll(word);
            if (n >= here) {
                n -= here;
                continue;
            }
            while (n--) word &= word - 1;
            *x = 64 * (k - 1) + __builtin_ctzll(word);
            return;
        }
}

/* ---- contours ---- */

static int64_t below(image *m, int64_t n) { return philox_below(philox_draw(&m->random), (uint32_t)n); }

/* A first paddle with its tail at (y,x), if its head and its pivot are in the window. */
static bool start_at(const image *m, contour *c, int64_t degree, int64_t y, int64_t x) {
    const double *const by = m->in->seed_steps + 4 * degree;
    const int64_t head_y = stepped(y, by[0]), head_x = stepped(x, by[1]);
    const contour started = {{degree, y, x}, stepped(head_y, by[2]), stepped(head_x, by[3])};
    *c = started;
    return inside(head_y, head_x, m->in->window) && inside(c->y, c->x, m->in->window);
}

/* A first paddle anywhere. */
static bool start(image *m, contour *c, bits taken) {
    const pathfinder_in *const in = m->in;
    bits free;
    for (int attempt = 0; attempt < PADDLE_TRIES; attempt++) {
        const int64_t degree = below(m, DEGREES), probes = in->probe_counts[degree];
        const int64_t count =
            probes ? free_bits(free, taken, in->probes + 2 * degree * in->probes_most, probes, in->window) : 0;
        if (!count) return false;
        int64_t y, x;
        nth_bit(&y, &x, free, below(m, count), in->window);
        if (start_at(m, c, degree, y, x)) return true;
    }
    return false;
}

/* A first paddle at seed_distance from another contour's. */
static bool start_beside(image *m, contour *c, placed other) {
    for (int attempt = 0; attempt < PADDLE_TRIES; attempt++) {
        const int64_t degree = below(m, DEGREES);
        const double *const by = m->in->ring + 2 * below(m, DEGREES);
        const double y = rint((double)other.y + (double)by[0]), x = rint((double)other.x + (double)by[1]);
        if (start_at(m, c, degree, (int64_t)y, (int64_t)x)) return true;
    }
    return false;
}

/* The largest taken value within the margin around a pixel. */
static int64_t taken_around(const image *m, int64_t y, int64_t x) {
    const int64_t w = m->in->window, r = m->in->margin;
    uint8_t found = 0;
    int64_t reach = 0;
    for (int64_t i = y - r; i <= y + r; i++) {
        while ((i - y) * (i - y) + reach * reach <= r * r) reach++;
        while ((i - y) * (i - y) + reach * reach > r * r) reach--;
        if (i < 0 || i >= w) continue;
        for (int64_t j = most(x - reach, 0); j <= least(x + reach, w - 1); j++)
            found = m->taken[i * w + j] > found ? m->taken[i * w + j] : found;
    }
    return found;
}

/* Adds a paddle that ends on a circle around the next pivot. Ends are drawn with weights: higher for straighter
 * contours and for free space. The pixels of the paddle before it count as taken from now on. */
static bool extend(image *m, contour *c) {
    const pathfinder_in *const in = m->in;
    const int64_t *const weights = in->weights + c->last.way * in->C;
    const int64_t y = stepped(c->y, in->steps[2 * c->last.way]), x = stepped(c->x, in->steps[2 * c->last.way + 1]);
    uint64_t sums[MAX_ENDS], total = 0;
    for (int64_t i = 0; i < in->C; i++) {
        const int64_t end_y = y + in->ends[2 * i], end_x = x + in->ends[2 * i + 1];
        if (weights[i] && inside(end_y, end_x, in->window))
            total += (uint64_t)(weights[i] * (WHITE - taken_around(m, end_y, end_x)));
        sums[i] = total;
    }
    if (total <= DEAD_END) return false;
    for (int attempt = 0; attempt < PADDLE_TRIES; attempt++) {
        const uint64_t drawn = (philox_draw(&m->random) >> 8) * total >> 24; /* 24 bits, as in philox_uniform */
        int64_t i = 0;
        while (sums[i] <= drawn) i++;
        const placed next = {DEGREES + i, y + in->ends[2 * i], x + in->ends[2 * i + 1]};
        if (crosses(m, next)) continue;
        take(m, c->last);
        const contour extended = {next, y, x};
        *c = extended;
        return true;
    }
    return false;
}

static bool draw_pair(image *m, const uint8_t *frame, bits start_from) {
    const pathfinder_in *const in = m->in;
    contour c[2];
    memcpy(m->taken, frame, (size_t)(in->window * in->window));
    if (!start(m, &c[0], start_from) || !start_beside(m, &c[1], c[0].last)) return false;
    for (int64_t i = 0; i < in->contour_length; i++)
        for (int k = 0; k < 2; k++) {
            if (i && !extend(m, &c[k])) return false;
            m->paddles[2 * i + k] = c[k].last;
        }
    take(m, c[1].last); /* as in the original, the first contour's last paddle takes no pixels */
    return true;
}

static bool draw_distractor(image *m, placed *paddles, bits taken) {
    contour c;
    if (!start(m, &c, taken)) return false;
    for (int64_t i = 0; i < m->in->distractor_length; i++) {
        if (i && !extend(m, &c)) return false;
        paddles[i] = c.last;
    }
    take(m, c.last);
    return true;
}

/* Collects the taken pixels for the next distractor; returns the number of free ones. */
static int64_t survey(image *m, bits taken) {
    const int64_t w = m->in->window, free = taken_bits(taken, m->taken, w);
    band(taken, w, 1);
    memcpy(m->before, m->taken, (size_t)(w * w));
    return free;
}

/* Draws as many distractors as fit; returns their number. */
static int64_t draw_distractors(image *m) {
    const pathfinder_in *const in = m->in;
    const int64_t pixels = in->window * in->window;
    bits taken;
    int64_t count = 0, free = survey(m, taken);
    placed *paddles = m->paddles + 2 * in->contour_length;
    for (int64_t i = 0; i < in->distractors; i++)
        for (int attempt = 0; attempt < DISTRACTOR_TRIES; attempt++) {
            if (free * SPARSE < pixels) return count;
            if (draw_distractor(m, paddles, taken)) {
                paddles += in->distractor_length;
                count++;
                free = survey(m, taken);
                break;
            }
            memcpy(m->taken, m->before, (size_t)pixels);
        }
    return count;
}

/* ---- the image ---- */

static void paint_paddles(image *m, int64_t from, int64_t to, int64_t shade) {
    const int64_t S = m->in->S;
    for (int64_t i = from; i < to; i++)
        paint(m, m->in->lines + m->paddles[i].way * S * S, paddle_patch(m, m->paddles[i]), S, shade);
}

/* Index of a marker's picture, of E along an axis: near the edges each position has its own picture. */
static int64_t marker_at(int64_t at, int64_t E, int64_t w) { return most(least(at, E / 2), at - (w - E)); }

static void paint_marker(image *m, placed tip) {
    const int64_t E = m->in->E, w = m->in->window, cy = marker_at(tip.y, E, w), cx = marker_at(tip.x, E, w);
    paint(m, m->in->markers + (cy * E + cx) * E * E, patch_at(tip.y, tip.x, cy, cx, E, w), E, MARKER_SHADE);
}

/* Maps shades from the least to the largest to 0 to 255; halves are rounded up. */
static void save(uint8_t *pixels, const uint16_t *shades, int64_t n) {
    uint16_t low = shades[0], high = shades[0];
    for (int64_t i = 0; i < n; i++) {
        low = shades[i] < low ? shades[i] : low;
        high = shades[i] > high ? shades[i] : high;
    }
    const uint32_t range = high > low ? (uint32_t)(high - low) : 1;
    for (int64_t i = 0; i < n; i++)
        pixels[i] = (uint8_t)(((uint32_t)(shades[i] - low) * (2 * WHITE) + range) / (2 * range));
}

/* Draws image number `number`; returns false if no pair of contours fits. */
static bool draw_image(image *m, uint8_t *pixels, int64_t *facts, uint64_t number, const uint8_t *frame,
                       bits start_from) {
    const pathfinder_in *const in = m->in;
    const int64_t length = in->contour_length, targets = 2 * length;
    const philox_stream random = {.seed = (uint64_t)in->seed, .number = number};
    m->random = random;
    const int64_t label = below(m, 2);
    philox_draw(&m->random); /* the word that chose the margin */
    int64_t pairs = 0;
    do {
        if (pairs++ == PAIRS) return false;
    } while (!draw_pair(m, frame, start_from));
    const int64_t distractors = draw_distractors(m);
    const int64_t paddles = targets + distractors * in->distractor_length;
    const int64_t all = targets + in->distractors * in->distractor_length;
    memset(m->paddles + paddles, -1, (size_t)(all - paddles) * sizeof(placed));

    memset(m->shades, 0, (size_t)(in->window * in->window) * sizeof *m->shades);
    paint_paddles(m, 0, targets, in->target_shade);
    paint_paddles(m, targets, paddles, in->distractor_shade);
    const int64_t marked = below(m, 2);
    paint_marker(m, m->paddles[marked]);
    paint_marker(m, m->paddles[targets - 2 + (label ? marked : 1 - marked)]);
    save(pixels, m->shades, in->window * in->window);
    const int64_t known[4] = {label, pairs, distractors, marked};
    memcpy(facts, known, sizeof known);
    return true;
}

KERNEL(pathfinder) {
    const int64_t w = in->window, pixels = w * w;
    const int64_t most_paddles = 2 * in->contour_length + in->distractors * in->distractor_length;
    _Static_assert(sizeof(placed) == 3 * sizeof(int64_t), "a row of out->paddles");
    uint16_t *const room = WORKSPACE(uint16_t, 1 + 2 * most_threads(), pixels); /* the frame; shades, taken, before */
    if (!room) return ROT_NO_MEMORY;

    uint8_t *const frame = (uint8_t *)room;
    for (int64_t y = 0; y < w; y++)
        for (int64_t x = 0; x < w; x++) frame[y * w + x] = from_edge(y, x, w) < in->padding ? WHITE : 0;
    bits start_from;
    taken_bits(start_from, frame, w);
    band(start_from, w, 2 * in->seed_distance);

    bool failed = false;
#pragma omp parallel for schedule(dynamic, 1) reduction(|| : failed)
    for (int64_t i = 0; i < in->n; i++) {
        uint16_t *const own = room + (1 + 2 * thread_number()) * pixels;
        uint8_t *const taken = (uint8_t *)(own + pixels);
        placed *const paddles = (placed *)(void *)(out->paddles + 3 * most_paddles * i);
        image m = {.in = in, .paddles = paddles, .taken = taken, .before = taken + pixels, .shades = own};
        if (!draw_image(&m, out->images + pixels * i, out->facts + 4 * i, (uint64_t)in->index[i], frame, start_from))
            failed = true;
    }
    pool_give(room);
    return failed ? ROT_EXHAUSTED : ROT_OK;
}
