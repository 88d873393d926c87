/* Table of the kernels that are compiled once for all dtypes and instruction sets, indexed as in the list. */
#include "entries.h"

#include "kernels.h"

#define CALL(name)                                                                                                     \
    static int call_##name(const void *args) { return K(name)(args); }
#define AT_PLACE(name) [PLACE_##name] = call_##name,

ROT_ONCE_KERNELS(CALL)

extern const rot_call ROT_ONCE[ROT_KERNELS];
const rot_call ROT_ONCE[ROT_KERNELS] = {ROT_ONCE_KERNELS(AT_PLACE)};
