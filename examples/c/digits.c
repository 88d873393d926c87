/* Recognises handwritten digits of 8 x 8 pixels, numbers from 0 (paper) to 16 (ink). Compiled to WebAssembly it is what
 * the page digits.html calls; otherwise it is a program that reads images from standard input, 64 numbers each:
 *
 *     digits MODEL < IMAGES
 *
 * and prints a line for each: the digit, and the probabilities of the digits from 0 to 9.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "rotrnn.h"

enum { ROWS = 8, COLUMNS = 8, CLASSES = 10 };

static rotrnn_model *model;
static rotrnn_stream *stream;
static rotrnn_error error;
static float pixels[ROWS * COLUMNS], shares[ROWS * CLASSES];

/* Makes the stream. Returns a sentence on the model's error, empty if there is none. */
static const char *start(void) {
    if (error.status) return error.text;
    const rotrnn_facts facts = rotrnn_model_facts(model);
    if (facts.reads_tokens || facts.is_double || facts.gives_each || facts.inputs != 1 || facts.outputs != CLASSES)
        return "the model does not read images pixel by pixel, in float32, and tell ten digits";
    (void)rotrnn_stream_new(&stream, model, 1, ROWS * COLUMNS, &error);
    return error.text;
}

/* Turns n logits into probabilities. */
static void softmax(float *x, int n) {
    float largest = x[0], sum = 0;
    for (int i = 1; i < n; i++) largest = fmaxf(largest, x[i]);
    for (int i = 0; i < n; i++) sum += x[i] = expf(x[i] - largest);
    for (int i = 0; i < n; i++) x[i] /= sum;
}

/* Reads the image from its first pixel to its last. `shares` become the probabilities (8, 10) after each row. */
static void recognise(void) {
    (void)rotrnn_stream_reset(stream);
    for (int row = 0; row < ROWS; row++) {
        (void)rotrnn_push_features(stream, pixels + row * COLUMNS, COLUMNS, shares + row * CLASSES);
        softmax(shares + row * CLASSES, CLASSES);
    }
}

#ifdef __wasm__

#define SHOWN(name) __attribute__((export_name(name)))

/* Memory for a model's file. */
SHOWN("take") void *page_take(size_t size) { return malloc(size); }

/* Opens the model in `size` bytes. Returns its error. */
SHOWN("open") const char *page_open(const void *bytes, size_t size) {
    (void)rotrnn_model_read(&model, bytes, size, &error);
    return start();
}

/* Where the page writes the image's pixels. */
SHOWN("pixels") float *page_pixels(void) { return pixels; }

/* Recognises the image. Returns the probabilities after each row. */
SHOWN("recognise") const float *page_recognise(void) {
    recognise();
    return shares;
}

#else

/* The next image. Returns 1, 0 at the end of the input, or -1 if the next input is not an image. */
static int next_image(void) {
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        const int found = scanf("%f", &pixels[i]);
        if (found == EOF && i == 0) return 0;
        if (found != 1 || !(pixels[i] >= 0 && pixels[i] <= 16)) return -1;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) return fputs("usage: digits MODEL < IMAGES, 64 numbers from 0 to 16 each\n", stderr), 2;
    (void)rotrnn_model_open(&model, argv[1], &error);
    const char *const wrong = start();
    if (*wrong) return fprintf(stderr, "digits: %s\n", wrong), 1;
    int found;
    while ((found = next_image()) > 0) {
        recognise();
        const float *const last = shares + (ROWS - 1) * CLASSES;
        int digit = 0;
        for (int i = 1; i < CLASSES; i++)
            if (last[i] > last[digit]) digit = i;
        printf("%d ", digit);
        for (int i = 0; i < CLASSES; i++) printf(" %.6f", (double)last[i]);
        puts("");
    }
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    if (fflush(stdout) || ferror(stdout)) return fputs("digits: the output cannot be written\n", stderr), 1;
    if (found < 0) return fputs("digits: expected images of 64 numbers from 0 to 16 each\n", stderr), 1;
    return 0;
}

#endif
