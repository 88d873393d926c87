/* rotrnn._cpu: the kernels of the list (entries.h) on NumPy arrays, as Python functions (door.h). `use_simd` selects
 * the instruction set.
 */
#define ROT_IMPORTS_NUMPY
#include "door.h"

#include <stdatomic.h>
#include <string.h>
#ifdef ROT_AMX
#include <cpuid.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "../lib/choose.h"
#include "float_mode.h"
#include "platform.h"
#include "pool.h"
#include "precision.h"
#include "stop.h"
#include "stream.h"

#define TABLES(isa)                                                                                                    \
    extern const rot_call rot_calls_f32_##isa[], rot_calls_f64_##isa[], rot_calls_c64_##isa[], rot_calls_c128_##isa[]; \
    extern const implementation rot_run_f32_##isa, rot_run_f64_##isa;
#ifdef ROT_NEON
TABLES(neon)
#else
TABLES(base)
#endif
#ifdef ROT_AVX2
TABLES(avx2)
#endif
#ifdef ROT_AVX512
TABLES(avx512)
#endif
extern const rot_call ROT_ONCE[];

typedef struct {
    const char *name;
    const rot_call *calls[DTYPES];
    const implementation *streams[2]; /* for float and double */
} simd;

#define SIMD(isa)                                                                                                      \
    {                                                                                                                  \
#isa, {rot_calls_f32_##isa, rot_calls_f64_##isa, rot_calls_c64_##isa, rot_calls_c128_##isa },                  \
               {&rot_run_f32_##isa, &rot_run_f64_##isa },                                                              \
    }

/* From the baseline to the fastest. */
static const simd SIMDS[] = {
#ifdef ROT_NEON
    SIMD(neon),
#else
    SIMD(base),
#endif
#ifdef ROT_AVX2
    SIMD(avx2),
#endif
#ifdef ROT_AVX512
    SIMD(avx512),
#endif
};
enum { SIMD_COUNT = sizeof SIMDS / sizeof SIMDS[0] };

static bool simd_supported(int level) {
#ifdef ROT_AVX2
    if (level >= 1 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return false;
    if (level >= 2 && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")))
        return false;
#endif
    return level < SIMD_COUNT;
}

#ifdef ROT_AMX
/* Whether the processor has AMX for bfloat16, the system saves its registers, and this process may use them. */
static bool amx_supported(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, TILES_SAVED = 3 << 17 }; /* CPUID 7 EDX, twice; XCR0 */
    uint32_t eax, ebx, ecx, edx, saved, high;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if (!(edx & AMX_BF16) || !(edx & AMX_TILE)) return false;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & TILES_SAVED) == TILES_SAVED && platform_permits_tiles();
}
#endif

/* Instructions for products of bfloat16 with avx512 (precision.h), in order. */
static const char *const BF16_NAMES[BF16_WAYS] = {
    [BF16_BY_FLOAT32] = "float32", [BF16_BY_PAIRS] = "avx512_bf16", [BF16_BY_TILES] = "avx512_amx"};

static bool bf16_supported(int way) {
    if (way == BF16_BY_FLOAT32) return true;
#ifdef ROT_AVX512
    if (!(simd_supported(2) && __builtin_cpu_supports("avx512bf16"))) return false;
    if (way == BF16_BY_PAIRS) return true;
#endif
#ifdef ROT_AMX
    return amx_supported();
#else
    return false;
#endif
}

static atomic_int level_in_use; /* the instruction set; any thread may change it between two calls */

const implementation *choose(bool is_double) { return SIMDS[level_in_use].streams[is_double]; }

typedef struct {
    unsigned long main_thread; /* the thread in which Python handles signals */
    PyObject *handler;         /* owned: NumPy's handle of the allocator of `empty` */
} module_state;

rot_call find_call(PyObject *module, int place, int dtype) {
    (void)module;
    const rot_call call = SIMDS[level_in_use].calls[dtype][place];
    return call ? call : ROT_ONCE[place];
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* NumPy's functions are macros that cast object pointers */
#endif
bool describe_array(PyObject *object, rot_array *array) {
    if (!PyArray_Check(object)) return false;
    PyArrayObject *const numbers = (PyArrayObject *)object;
    array->data = PyArray_DATA(numbers);
    array->count = PyArray_SIZE(numbers);
    array->bytes = array->count * PyArray_ITEMSIZE(numbers);
    array->type = PyArray_ISNOTSWAPPED(numbers) ? PyArray_TYPE(numbers) : -1;
    array->contiguous = PyArray_IS_C_CONTIGUOUS(numbers);
    array->aligned = PyArray_ISALIGNED(numbers);
    array->writeable = PyArray_ISWRITEABLE(numbers);
    array->on_host = true;
    return true;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* Looks for signals during a call of the main thread, where Python handles them. */
typedef struct {
    rot_stop base;
    PyThreadState *thread;
    int64_t next; /* time of the next look; 0 before the first */
} watch;

static void look_for_signals(rot_stop *stop) {
    enum { EVERY = 50 }; /* milliseconds */
    watch *const w = (watch *)(void *)stop;
    const int64_t now = platform_milliseconds();
    const bool first = !w->next;
    if (now < w->next || stop->set) return;
    w->next = now + EVERY;
    if (first) return;
    PyEval_RestoreThread(w->thread);
    if (PyErr_CheckSignals() < 0) stop_now(stop);
    w->thread = PyEval_SaveThread();
}

/* Runs a kernel without the GIL. A signal whose handler raises, such as Ctrl-C, ends it early: returns false with the
 * exception set. */
bool run_call(PyObject *module, const char *name, rot_call call, const char *args, int *status) {
    (void)name;
    const module_state *const state = PyModule_GetState(module);
    watch w = {.base = {.poll = look_for_signals}};
    const bool watched = PyThread_get_thread_ident() == state->main_thread;
    rot_stop *const before = stop_calls_by(watched ? &w.base : NULL);
    w.thread = PyEval_SaveThread();
    const float_mode mode = float_mode_usual();
    *status = call(args);
    float_mode_set(mode);
    PyEval_RestoreThread(w.thread);
    stop_calls_by(before);
    return !w.base.set;
}

/* Raises ValueError: `function` got a name that is not in the module's tuple `list`. */
static PyObject *unknown_name(PyObject *module, const char *function, const char *name, const char *list) {
    PyObject *const available = PyObject_GetAttrString(module, list);
    if (available) PyErr_Format(PyExc_ValueError, "%s: got '%s', expected one of %R", function, name, available);
    Py_XDECREF(available);
    return NULL;
}

static PyObject *simd_in_use(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyUnicode_FromString(SIMDS[level_in_use].name);
}

static PyObject *use_simd(PyObject *module, PyObject *argument) {
    const char *const name = PyUnicode_AsUTF8(argument);
    if (!name) return NULL;
    for (int level = 0; level < SIMD_COUNT; level++) {
        if (strcmp(SIMDS[level].name, name) == 0 && simd_supported(level)) {
            PyObject *const before = simd_in_use(module, NULL);
            if (before) level_in_use = level;
            return before;
        }
    }
    return unknown_name(module, "use_simd", name, "SIMD_AVAILABLE");
}

static PyObject *use_bf16_by_name(PyObject *module, PyObject *argument) {
    const char *const name = PyUnicode_AsUTF8(argument);
    if (!name) return NULL;
    for (int way = 0; way < BF16_WAYS; way++) {
        if (strcmp(BF16_NAMES[way], name) == 0 && bf16_supported(way)) {
            PyObject *const before = PyUnicode_FromString(BF16_NAMES[bf16_by()]);
            if (before) use_bf16_by(way);
            return before;
        }
    }
    return unknown_name(module, "use_bf16_by", name, "BF16_BY_AVAILABLE");
}

static PyObject *bf16_by_in_use(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyUnicode_FromString(BF16_NAMES[level_in_use >= 2 ? bf16_by() : BF16_BY_FLOAT32]);
}

static PyObject *threads(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
#ifdef _OPENMP
    return PyLong_FromLong(omp_get_max_threads());
#else
    return PyLong_FromLong(1);
#endif
}

static PyObject *use_threads(PyObject *module, PyObject *argument) {
    const long count = PyLong_AsLong(argument);
    if (count == -1 && PyErr_Occurred()) return NULL;
    if (count < 1 || count > 1024) {
        PyErr_Format(PyExc_ValueError, "use_threads: got %ld, expected a number from 1 to 1024", count);
        return NULL;
    }
    PyObject *const before = threads(module, NULL);
#ifdef _OPENMP
    if (before) omp_set_num_threads((int)count);
#endif
    return before;
}

/* NumPy's allocator interface (NEP 49) over pool.h, for arrays whose memory comes from the pool. */
static void *pool_malloc(void *context, size_t bytes) {
    (void)context;
    return pool_take(bytes);
}

static void *pool_calloc(void *context, size_t count, size_t size) {
    (void)context;
    if (size && count > SIZE_MAX / size) return NULL;
    void *const memory = pool_take(count * size);
    return memory ? memset(memory, 0, count * size) : NULL;
}

static void *pool_realloc(void *context, void *memory, size_t bytes) {
    (void)context;
    return pool_resize(memory, bytes);
}

static void pool_free(void *context, void *memory, size_t bytes) {
    (void)context, (void)bytes;
    pool_give(memory);
}

static PyDataMem_Handler POOL_HANDLER = {"rotrnn_pool", 1, {NULL, pool_malloc, pool_calloc, pool_realloc, pool_free}};

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* NumPy's functions are macros that cast object pointers */
#endif
/* Sets NumPy's allocator. If memory runs out, this may fail after setting it. The previous allocator is therefore
 * restored after every failure, with a second try if needed. Returns false with an exception set. */
static bool set_handler(PyObject *handler) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *before = PyDataMem_SetHandler(handler);
    const bool good = before != NULL;
    if (!good) {
        PyErr_Clear();
        before = PyDataMem_SetHandler(handler);
        PyErr_Clear();
        PyErr_NoMemory();
    }
    Py_XDECREF(before);
    if (type) PyErr_Restore(type, value, trace);
    return good;
}

static PyObject *empty(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    PyArray_Descr *dtype = NULL;
    PyArray_Dims shape = {NULL, 0};
    PyObject *array = NULL;
    const module_state *const state = PyModule_GetState(module);
    if (count != 2) return PyErr_Format(PyExc_TypeError, "empty: takes 2 arguments, got %zd", count);
    if (PyArray_IntpConverter(args[0], &shape) && PyArray_DescrConverter(args[1], &dtype)) {
        PyObject *const usual = PyDataMem_GetHandler();
        PyObject *const before = usual ? PyDataMem_SetHandler(state->handler) : NULL;
        if (before) {
            array = PyArray_Empty(shape.len, shape.ptr, dtype, 0); /* steals dtype */
            dtype = NULL;
            Py_DECREF(before);
        }
        if (usual && !set_handler(usual)) Py_CLEAR(array);
        Py_XDECREF(usual);
    }
    Py_XDECREF(dtype);
    PyDimMem_FREE(shape.ptr);
    return array;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static PyObject *release_memory(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromSize_t(pool_release());
}

/* Sets the mode of arithmetic of this thread, and returns the previous mode; None is the usual mode. Kernels set it
 * themselves: this function is for code around them, in threads of libraries that flush denormal numbers. */
static PyObject *use_float_mode(PyObject *module, PyObject *argument) {
    (void)module;
    const bool usual = argument == Py_None;
    const unsigned long long mode = usual ? 0 : PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    const float_mode before = float_mode_now(), mask = FLOAT_MODE_BITS;
    PyObject *const number = PyLong_FromUnsignedLongLong(before);
    if (number && usual)
        float_mode_usual();
    else if (number)
        float_mode_set((before & ~mask) | (mode & mask));
    return number;
}

static PyMethodDef METHODS[] = {
    {"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL,
     "empty(shape, dtype): numpy.empty in memory that is kept for reuse after the array is freed."},
    {"release_memory", release_memory, METH_NOARGS,
     "release_memory(): returns memory kept for reuse to the system, and its number of bytes."},
    {"use_simd", use_simd, METH_O, "use_simd(name): pick all kernels' instruction set; returns the previous name."},
    {"simd", simd_in_use, METH_NOARGS, "simd(): the instruction set in use."},
    {"use_bf16_by", use_bf16_by_name, METH_O,
     "use_bf16_by(name): pick how avx512 multiplies bfloat16, in all threads; returns the previous name."},
    {"bf16_by", bf16_by_in_use, METH_NOARGS, "bf16_by(): how the next product of bfloat16 is computed."},
    {"precision", precision_in_use, METH_NOARGS, PRECISION_DOC},
    {"use_precision", use_precision_by_name, METH_O, USE_PRECISION_DOC},
    {"use_float_mode", use_float_mode, METH_O,
     "use_float_mode(mode): set the calling thread's mode of arithmetic, None for gradual underflow and rounding to "
     "nearest; returns the previous mode."},
    {"threads", threads, METH_NOARGS, "threads(): the number of threads of the next kernel."},
    {"use_threads", use_threads, METH_O, "use_threads(n): use n threads; returns the previous number."},
    {NULL, NULL, 0, NULL},
};

/* The identity of Python's main thread; 0 with an exception set. */
static unsigned long main_thread(void) {
    PyObject *const threading = PyImport_ImportModule("threading");
    PyObject *const thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *const ident = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    const unsigned long number = ident ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(threading), Py_XDECREF(thread), Py_XDECREF(ident);
    return number;
}

/* Adds a tuple of the names with supported(i). Returns the last such i, or -1 with an exception set. */
static int add_names(PyObject *module, const char *list, int count, const char *(*name)(int), bool (*supported)(int)) {
    PyObject *const available = PyList_New(0);
    int last = -1;
    for (int i = 0; available && i < count; i++) {
        if (!supported(i)) continue;
        last = i;
        PyObject *const one = PyUnicode_FromString(name(i));
        if (!one || PyList_Append(available, one) < 0) last = -1, i = count;
        Py_XDECREF(one);
    }
    PyObject *const tuple = last < 0 ? NULL : PyList_AsTuple(available);
    if (!tuple || PyModule_AddObjectRef(module, list, tuple) < 0) last = -1;
    Py_XDECREF(tuple), Py_XDECREF(available);
    return last;
}

static const char *simd_name(int level) { return SIMDS[level].name; }
static const char *bf16_name(int way) { return BF16_NAMES[way]; }

static int exec_module(PyObject *module) {
    import_array1(-1);
    module_state *const state = PyModule_GetState(module);
    pool_survive_fork();
    state->main_thread = main_thread();
    if (PyErr_Occurred()) return -1;
    state->handler = PyCapsule_New(&POOL_HANDLER, "mem_handler", NULL);
    if (!state->handler) return -1;
    if (add_kernels(module) < 0 || add_numbers(module) < 0 || add_list(module) < 0 || add_stream(module) < 0) return -1;
    const int level = add_names(module, "SIMD_AVAILABLE", SIMD_COUNT, simd_name, simd_supported);
    const int way = level < 0 ? -1 : add_names(module, "BF16_BY_AVAILABLE", BF16_WAYS, bf16_name, bf16_supported);
    if (way < 0) return -1;
    level_in_use = level;
    use_bf16_by(way);
#ifdef _OPENMP
    if (PyModule_AddIntConstant(module, "OPENMP", _OPENMP) < 0) return -1;
#else
    if (PyModule_AddIntConstant(module, "OPENMP", 0) < 0) return -1;
#endif
    if (PyModule_AddIntConstant(module, "KEEPS_MEMORY", pool_keeps()) < 0) return -1;
    return PyModule_AddStringConstant(module, "COMPILER", __VERSION__);
}

static void free_module(void *module) {
    module_state *const state = PyModule_GetState((PyObject *)module);
    if (state) Py_CLEAR(state->handler);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, (void *)(uintptr_t)exec_module}, /* NOLINT: the C API's own idiom */
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* NumPy is not */
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared: the pool, with its lock, and atomics: `level_in_use`, bf16_by */
#endif
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "rotrnn._cpu",
    .m_doc = "C kernels of rotrnn on the CPU.",
    .m_size = sizeof(module_state),
    .m_methods = METHODS,
    .m_slots = SLOTS,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__cpu(void);
PyMODINIT_FUNC PyInit__cpu(void) { return PyModuleDef_Init(&MODULE); }
