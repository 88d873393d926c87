#include "wav.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PCM = 1, FLOAT = 3, EXTENSIBLE = 0xfffe, MOST = 1 << 30 };

typedef struct {
    const unsigned char *at;
    size_t left;
} bytes;

static uint32_t number16(const unsigned char *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t number32(const unsigned char *at) { return number16(at) | number16(at + 2) << 16; }

/* All bytes of a file; NULL if it cannot be read, has more than a gibibyte, or there is no memory. */
static unsigned char *contents(const char *path, size_t *size) {
    FILE *const file = fopen(path, "rb");
    if (!file) return NULL;
    unsigned char *all = NULL;
    const long end = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    if (end >= 0 && end <= MOST && !fseek(file, 0, SEEK_SET)) all = malloc((size_t)end + 1);
    *size = all ? fread(all, 1, (size_t)end, file) : 0;
    if (all && *size != (size_t)end) {
        free(all);
        all = NULL;
    }
    fclose(file);
    return all;
}

/* Takes the first chunk of that name, of at least `least` bytes, and skips those before it. Returns whether there is
 * one. A chunk of odd size is followed by a byte that does not count. */
static int find_chunk(bytes *file, const char *name, size_t least, bytes *chunk) {
    while (file->left >= 8) {
        const size_t size = number32(file->at + 4);
        const int found = !memcmp(file->at, name, 4);
        if (size > file->left - 8) return 0;
        *chunk = (bytes){file->at + 8, size};
        const size_t step = 8 + size + size % 2;
        file->at += step < file->left ? step : file->left;
        file->left -= step < file->left ? step : file->left;
        if (found) return size >= least;
    }
    return 0;
}

static float sample_of(const unsigned char *at, uint32_t format) {
    if (format == PCM) return (float)(int16_t)number16(at) / 32768;
    const uint32_t bits = number32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const char *parsed(wav *sound, bytes file) {
    bytes form, data;
    if (file.left < 12 || memcmp(file.at, "RIFF", 4) || memcmp(file.at + 8, "WAVE", 4)) return "is not a WAV file";
    file = (bytes){file.at + 12, file.left - 12};
    if (!find_chunk(&file, "fmt ", 16, &form)) return "has no whole chunk that says its format";
    if (!find_chunk(&file, "data", 0, &data)) return "has no whole chunk of samples";
    uint32_t format = number16(form.at);
    if (format == EXTENSIBLE && form.left >= 26) format = number16(form.at + 24);
    const uint32_t width = number16(form.at + 14);
    if (number16(form.at + 2) != 1) return "has several channels, expected one";
    if (!(format == PCM && width == 16) && !(format == FLOAT && width == 32))
        return "has samples of another kind than 16-bit integers and 32-bit floats";
    if (data.left % (width / 8)) return "ends within a sample";
    sound->rate = number32(form.at + 4);
    if (!sound->rate) return "has a rate of 0 samples a second";
    sound->count = (int64_t)(data.left / (width / 8));
    sound->samples = malloc((size_t)sound->count * sizeof(float) + 1);
    if (!sound->samples) return "does not fit into memory";
    int finite = 1;
    for (int64_t i = 0; i < sound->count; i++) {
        sound->samples[i] = sample_of(data.at + i * (width / 8), format);
        finite &= isfinite(sound->samples[i]) != 0;
    }
    if (finite) return NULL;
    free(sound->samples);
    return "has samples that are not numbers";
}

const char *wav_read(wav *sound, const char *path) {
    size_t size;
    unsigned char *const all = contents(path, &size);
    if (!all) return "cannot be read, or has more than a gibibyte";
    const char *const wrong = parsed(sound, (bytes){all, size});
    free(all);
    return wrong;
}

static void put16(unsigned char *at, uint32_t value) {
    at[0] = (unsigned char)value, at[1] = (unsigned char)(value >> 8);
}
static void put32(unsigned char *at, uint32_t value) { put16(at, value), put16(at + 2, value >> 16); }

const char *wav_write(const wav *sound, const char *path) {
    unsigned char head[44] = "RIFF....WAVEfmt ....................data";
    const uint32_t size = (uint32_t)(4 * sound->count); /* at most twice what was read, a gibibyte */
    put32(head + 4, 36 + size);
    put32(head + 16, 16);
    put16(head + 20, FLOAT);
    put16(head + 22, 1);
    put32(head + 24, sound->rate);
    put32(head + 28, 4 * sound->rate);
    put16(head + 32, 4);
    put16(head + 34, 32);
    put32(head + 40, size);
    FILE *const file = fopen(path, "wb");
    if (!file) return "cannot be written";
    int good = fwrite(head, 1, sizeof head, file) == sizeof head;
    for (int64_t i = 0; i < sound->count; i++) {
        unsigned char four[4];
        uint32_t bits;
        memcpy(&bits, &sound->samples[i], sizeof bits);
        put32(four, bits);
        good &= fwrite(four, 1, 4, file) == 4;
    }
    good &= !fclose(file);
    return good ? NULL : "cannot be written";
}
