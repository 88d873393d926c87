/* The mixer of a layer's tokens. Needs no dtype, unlike members.h, which says what it consists of. */
#ifndef ROT_MIXING_H
#define ROT_MIXING_H

#include <stdint.h>

/* Form (MIXER_), R and the number of channels of a token as in mixer.h, or a mixture of R mixers; and steps of the
 * power iteration of mixer_gains.h, 0 for none. */
typedef struct {
    int64_t form, rank, width, power_steps;
} mixing;

#endif
