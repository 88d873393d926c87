/* Sounds of one channel in WAV files: 16-bit integers or 32-bit floats, little-endian, as RIFF chunks. */
#ifndef EXAMPLES_WAV_H
#define EXAMPLES_WAV_H

#include <stdint.h>

typedef struct {
    uint32_t rate; /* samples a second */
    int64_t count;
    float *samples; /* integers are divided by 32768 */
} wav;

/* Reads a file. Returns NULL, or a sentence on its error. Free the samples by free. */
const char *wav_read(wav *sound, const char *path);

/* Writes a file of 32-bit floats. Returns NULL, or a sentence on the error. */
const char *wav_write(const wav *sound, const char *path);

#endif
