#include <stddef.h>

#include "choose.h"

/* LIB_avx2, for example, means that the build has the implementations for AVX2. */
#define IMPLEMENTATION(isa)                                                                                            \
    extern const implementation rot_run_f32_##isa, rot_run_f64_##isa;                                                  \
    static const implementation *isa##_for(bool is_double) {                                                           \
        return is_double ? &rot_run_f64_##isa : &rot_run_f32_##isa;                                                    \
    }
#ifdef LIB_base
IMPLEMENTATION(base)
#endif
#ifdef LIB_neon
IMPLEMENTATION(neon)
#endif
#ifdef LIB_avx2
IMPLEMENTATION(avx2)
#endif
#ifdef LIB_avx512
IMPLEMENTATION(avx512)
#endif

const implementation *choose(bool is_double) {
#ifdef LIB_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return avx512_for(is_double);
#endif
#ifdef LIB_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_for(is_double);
#endif
#ifdef LIB_neon
    return neon_for(is_double);
#elif defined(LIB_base)
    return base_for(is_double);
#else
    return NULL;
#endif
}
