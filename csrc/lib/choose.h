/* The implementation of a program for this processor. */
#ifndef ROT_CHOOSE_H
#define ROT_CHOOSE_H

#include <stdbool.h>

typedef struct implementation implementation; /* program.h */

/* The fastest implementation in this build that the processor can run; NULL if there is none. */
const implementation *choose(bool is_double);

#endif
