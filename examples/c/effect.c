/* An audio effect: sends a WAV file of one channel through a model that imitates a filter (effect.py), in blocks as a
 * sound card asks for them.
 *
 *     effect MODEL INPUT.wav OUTPUT.wav
 *
 * Each block size from 32 to 512 samples reads the whole file. A line for each tells how long its blocks took, and how
 * many took longer than they last, which would be heard. The output is the same for all of them. At a rate other than
 * in training (effect.py), the filter's frequencies are shifted: a line says so.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rotrnn.h"
#include "wav.h"

enum { SMALLEST = 32, LARGEST = 512, RATE = 48000 };

static int failed(const char *what, const char *wrong) {
    fprintf(stderr, "effect: %s %s\n", what, wrong);
    return 1;
}

static double microseconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sends the sound through the stream in blocks, and writes the time of each block. Returns their number. */
static int64_t play(rotrnn_stream *stream, const wav *sound, int64_t block, float *output, double *times) {
    int64_t blocks = 0;
    (void)rotrnn_stream_reset(stream);
    for (int64_t i = 0; i < sound->count; i += block) {
        const int64_t left = sound->count - i;
        const double before = microseconds();
        (void)rotrnn_push_features(stream, sound->samples + i, left < block ? left : block, output + i);
        times[blocks++] = microseconds() - before;
    }
    return blocks;
}

static void report(int64_t block, double deadline, double *times, int64_t blocks) {
    int64_t missed = 0;
    for (int64_t i = 0; i < blocks; i++) missed += times[i] > deadline;
    qsort(times, (size_t)blocks, sizeof *times, by_size);
    const double median = blocks ? times[blocks / 2] : 0, worst = blocks ? times[blocks - 1] : 0;
    printf("%5lld %12.1f %10.1f %10.1f %8lld\n", (long long)block, deadline, median, worst, (long long)missed);
}

int main(int argc, char **argv) {
    if (argc != 4) return fputs("usage: effect MODEL INPUT.wav OUTPUT.wav\n", stderr), 2;
    rotrnn_model *model;
    rotrnn_stream *stream;
    rotrnn_error error;
    wav sound;
    if (rotrnn_model_open(&model, argv[1], &error)) return failed("the model:", error.text);
    const rotrnn_facts facts = rotrnn_model_facts(model);
    if (facts.reads_tokens || facts.is_double || !facts.gives_each || facts.needs_capacity || facts.inputs != 1 ||
        facts.outputs != 1)
        return failed(argv[1], "does not make one float of each float");
    if (rotrnn_stream_new(&stream, model, 1, 0, &error)) return failed("the stream:", error.text);
    const char *wrong = wav_read(&sound, argv[2]);
    if (wrong) return failed(argv[2], wrong);

    const size_t room = (size_t)sound.count + 1;
    float *const output = calloc(room, sizeof *output), *const again = calloc(room, sizeof *again);
    double *const times = calloc(room / SMALLEST + 1, sizeof *times);
    if (!output || !again || !times) return failed(argv[2], "does not fit into memory");
    puts("block  deadline us  median us   worst us   missed");
    for (int64_t block = SMALLEST; block <= LARGEST; block *= 2) {
        float *const result = block == SMALLEST ? output : again;
        const int64_t blocks = play(stream, &sound, block, result, times);
        report(block, 1e6 * (double)block / sound.rate, times, blocks);
        if (memcmp(result, output, (size_t)sound.count * sizeof *output))
            return failed("the output", "depends on the size of the blocks");
    }
    if (sound.rate != RATE)
        printf("%s has %lu samples a second: the model learnt from %d, so this is another filter\n", argv[2],
               (unsigned long)sound.rate, RATE);
    wrong = wav_write(&(wav){sound.rate, sound.count, output}, argv[3]);
    if (wrong) return failed(argv[3], wrong);
    free(sound.samples), free(output), free(again), free(times);
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    return 0;
}
