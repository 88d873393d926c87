/* Table of the kernels of one compiled variant, indexed as in the list. */
#include "entries.h"

#include "kernels.h"

#ifdef ROT_CUDA /* kernels that have no file in cuda/ */
#define CALL(name)                                                                                                     \
    extern int K(name)(const name##_args *args) __attribute__((weak));                                                 \
    static int call_##name(const void *args) { return K(name) ? K(name)(args) : ROT_NO_KERNEL; }
#else
#define CALL(name)                                                                                                     \
    static int call_##name(const void *args) { return K(name)(args); }
#endif
#define AT_PLACE(name) [PLACE_##name] = call_##name,

#if ROT_COMPLEX
ROT_LANE_KERNELS(CALL)
#else
ROT_LANE_KERNELS(CALL)
ROT_REAL_KERNELS(CALL)
#endif

extern const rot_call K(rot_calls)[ROT_KERNELS];
const rot_call K(rot_calls)[ROT_KERNELS] = {
#if ROT_COMPLEX
    ROT_LANE_KERNELS(AT_PLACE)
#else
    ROT_LANE_KERNELS(AT_PLACE) ROT_REAL_KERNELS(AT_PLACE)
#endif
};
