/* The implementations that this build has. */
#ifndef ROT_RUN_H
#define ROT_RUN_H

#include "program.h"
#include "real.h"

extern const implementation K(rot_run);

#endif
