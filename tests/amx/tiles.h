/* The instructions of AMX that csrc/kernels/gemm_amx.c uses, in plain C, as Intel's manual defines them (Software
 * Developer's Manual, volume 2: LDTILECFG, TDPBF16PS, TILELOADD, TILERELEASE, TILESTORED; exception class AMX-E4).
 * Where a processor would raise a fault, amx_fault says so and the instruction does nothing.
 *
 * Results below float32's normal numbers are flushed after rounding to the grid of subnormal ones; a processor rounds
 * to 24 bits first. These differ within 2^-151 of 2^-126.
 */
#ifndef AMX_TILES_H
#define AMX_TILES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define AMX_TILES     8
#define AMX_ROWS      16
#define AMX_ROW_BYTES 64

/* What went wrong first, or NULL; and of the calling thread: whether tiles are configured, and how many were
 * multiplied. */
extern const char *amx_fault;
extern _Thread_local bool amx_configured;
extern _Thread_local int64_t amx_products;

typedef struct {
    int rows, bytes;
    uint8_t at[AMX_ROWS][AMX_ROW_BYTES];
} amx_tile;
extern _Thread_local amx_tile amx_tiles[AMX_TILES];

static inline bool amx_ok(bool holds, const char *fault) {
    if (!holds && !amx_fault) amx_fault = fault;
    return holds;
}

static inline void amx_release(void) {
    memset(amx_tiles, 0, sizeof amx_tiles);
    amx_configured = false;
}

/* 64 bytes: palette, start row, 14 zeros; eight sizes of rows in 16 bits, 16 zeros; eight numbers of rows, 8 zeros.
 * Tiles begin as zeros. */
static inline void amx_loadconfig(const void *from) {
    const uint8_t *const config = (const uint8_t *)from;
    bool zero = true;
    for (int i = 2; i < 64; i++)
        if (i < 16 || (i >= 32 && i < 48) || i >= 56) zero = zero && config[i] == 0;
    if (config[0] == 0) {
        amx_release();
        return;
    }
    if (!amx_ok(config[0] == 1, "LDTILECFG: a palette other than 1") || !amx_ok(zero, "LDTILECFG: reserved bytes"))
        return;
    if (!amx_ok(config[1] == 0, "LDTILECFG: a start row")) return;
    for (int i = 0; i < AMX_TILES; i++) {
        const int bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8, rows = config[48 + i];
        if (!amx_ok(bytes <= AMX_ROW_BYTES && rows <= AMX_ROWS, "LDTILECFG: a tile that is too large")) return;
        if (!amx_ok((bytes == 0) == (rows == 0), "LDTILECFG: a tile with rows or bytes, but not both")) return;
    }
    amx_release();
    amx_configured = true;
    for (int i = 0; i < AMX_TILES; i++) {
        amx_tiles[i].bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8;
        amx_tiles[i].rows = config[48 + i];
    }
}

static inline bool amx_valid(int tile) {
    return amx_ok(amx_configured && amx_tiles[tile].rows > 0, "an instruction on a tile that is not configured");
}

/* Rows and bytes beyond the tile's are zero after a load. */
static inline void amx_load(int tile, const void *base, int64_t stride) {
    if (!amx_valid(tile)) return;
    memset(amx_tiles[tile].at, 0, sizeof amx_tiles[tile].at);
    for (int m = 0; m < amx_tiles[tile].rows; m++)
        memcpy(amx_tiles[tile].at[m], (const uint8_t *)base + m * stride, (size_t)amx_tiles[tile].bytes);
}

static inline void amx_store(int tile, void *base, int64_t stride) {
    if (!amx_valid(tile)) return;
    for (int m = 0; m < amx_tiles[tile].rows; m++)
        memcpy((uint8_t *)base + m * stride, amx_tiles[tile].at[m], (size_t)amx_tiles[tile].bytes);
}

/* Numbers below float32's normal ones are zeros with their sign, read or written. */
static inline float amx_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline float amx_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_flushed(x);
}

static inline float amx_fma(float a, float b, float sum) { return amx_flushed(fmaf(a, b, amx_flushed(sum))); }

static inline uint32_t amx_word(int tile, int row, int column) {
    uint32_t word;
    memcpy(&word, amx_tiles[tile].at[row] + 4 * column, sizeof word);
    return word;
}

/* TDPBF16PS: first and second numbers of pairs have sums of their own, from zero; then sum += first + second. */
static inline void amx_multiply(int y, int x, int w) {
    if (!amx_valid(y) || !amx_valid(x) || !amx_valid(w)) return;
    const amx_tile *const ty = &amx_tiles[y], *const tx = &amx_tiles[x], *const tw = &amx_tiles[w];
    if (!amx_ok(y != x && y != w && x != w, "TDPBF16PS: a tile twice")) return;
    if (!amx_ok(ty->bytes % 4 == 0 && tx->bytes % 4 == 0 && tw->bytes % 4 == 0, "TDPBF16PS: a part of a word")) return;
    if (!amx_ok(ty->rows == tx->rows && ty->bytes == tw->bytes && tx->bytes / 4 == tw->rows, "TDPBF16PS: shapes"))
        return;
    amx_products++;
    for (int m = 0; m < ty->rows; m++) {
        for (int n = 0; n < ty->bytes / 4; n++) {
            float first = 0, second = 0;
            for (int k = 0; k < tx->bytes / 4; k++) {
                const uint32_t a = amx_word(x, m, k), b = amx_word(w, k, n);
                first = amx_fma(amx_float(a << 16), amx_float(b << 16), first);
                second = amx_fma(amx_float(a & 0xffff0000u), amx_float(b & 0xffff0000u), second);
            }
            const float pair = amx_flushed(first + second);
            const float sum = amx_flushed(amx_float(amx_word(y, m, n)) + pair);
            memcpy(amx_tiles[y].at[m] + 4 * n, &sum, sizeof sum);
        }
    }
}

#endif
