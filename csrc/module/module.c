/* rotrnn._cpu: the kernels of the list (entries.h) as Python functions. The only file that uses Python and NumPy.
 *
 * `_cpu.kernels` has one function for each kernel, which takes every argument of the list by keyword. Arrays must have
 * the dtype and the size that the list gives, be C-contiguous and aligned, and writeable if the kernel writes them. The
 * dtype of the first array without a fixed dtype selects the variant, `use_simd` the instruction set.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#include <Python.h>
#include <numpy/arrayobject.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "entries.h"
#include "float_mode.h"
#include "kernels.h"
#include "platform.h"
#include "pool.h"
#include "stop.h"

enum { F32, F64, C64, C128, DTYPES };
static const int TYPE_NUMBERS[DTYPES] = {NPY_FLOAT32, NPY_FLOAT64, NPY_COMPLEX64, NPY_COMPLEX128};
static const char *const TYPE_NAMES[DTYPES] = {"float32", "float64", "complex64", "complex128"};

#define TABLES(isa)                                                                                                    \
    extern const rot_call rot_calls_f32_##isa[], rot_calls_f64_##isa[], rot_calls_c64_##isa[], rot_calls_c128_##isa[];
#ifdef ROT_NEON
TABLES(neon)
#else
TABLES(base)
#endif
#ifdef ROT_X86
TABLES(avx2)
TABLES(avx512)
#endif
extern const rot_call ROT_ONCE[];

typedef struct {
    const char *name;
    const rot_call *calls[DTYPES];
} simd;

/* From the baseline to the fastest. */
static const simd SIMDS[] = {
#ifdef ROT_NEON
    {"neon", {rot_calls_f32_neon, rot_calls_f64_neon, rot_calls_c64_neon, rot_calls_c128_neon}},
#else
    {"base", {rot_calls_f32_base, rot_calls_f64_base, rot_calls_c64_base, rot_calls_c128_base}},
#endif
#ifdef ROT_X86
    {"avx2", {rot_calls_f32_avx2, rot_calls_f64_avx2, rot_calls_c64_avx2, rot_calls_c128_avx2}},
    {"avx512", {rot_calls_f32_avx512, rot_calls_f64_avx512, rot_calls_c64_avx512, rot_calls_c128_avx512}},
#endif
};
enum { SIMD_COUNT = sizeof SIMDS / sizeof SIMDS[0] };

static bool simd_supported(int level) {
#ifdef ROT_X86
    if (level >= 1 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return false;
    if (level >= 2 && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")))
        return false;
#endif
    return level < SIMD_COUNT;
}

typedef struct {
    atomic_int level;          /* the instruction set in use; any thread may change it between two calls */
    unsigned long main_thread; /* the thread in which Python handles signals */
    PyObject *handler;         /* owned: NumPy's name for the allocator of `empty` */
} module_state;

typedef struct {
    PyObject *module; /* owned: a function may outlive every other reference to its module */
    module_state *state;
    const rot_kernel *kernel;
    int place;                           /* in the list */
    PyObject *names[ROT_MOST_ARGUMENTS]; /* owned: of its arguments, interned */
    PyMethodDef def;
} function;

static const char FUNCTION_CAPSULE[] = "rotrnn._cpu.function";

/* The compiled kernel for a dtype; NULL if there is none. */
static rot_call find_call(const function *self, int dtype) {
    const rot_call call = SIMDS[self->state->level].calls[dtype][self->place];
    return call ? call : ROT_ONCE[self->place];
}

static int dtype_index(PyObject *object) {
    if (PyArray_Check(object))
        for (int i = 0; i < DTYPES; i++)
            if (PyArray_TYPE((PyArrayObject *)object) == TYPE_NUMBERS[i]) return i;
    return -1;
}

/* The index of the argument with this name, or -1. Callers pass interned names, mostly in the list's order. */
static int find_argument(const function *self, PyObject *name, int guess) {
    const int count = self->kernel->count;
    if (guess < count && self->names[guess] == name) return guess;
    for (int i = 0; i < count; i++)
        if (self->names[i] == name) return i;
    for (int i = 0; i < count; i++)
        if (PyUnicode_Compare(self->names[i], name) == 0) return i;
    return -1;
}

/* Checks one array argument and stores its data pointer at `to`. Returns false with an exception set. */
static bool unpack_array(void *to, const rot_kernel *kernel, const rot_argument *argument, PyObject *object,
                         int dtype) {
    static const int TYPES[] = {[ROT_INT64] = NPY_INT64, [ROT_UINT8] = NPY_UINT8, [ROT_FLOAT64] = NPY_FLOAT64};
    static const char *const NAMES[] = {[ROT_INT64] = "int64", [ROT_UINT8] = "uint8", [ROT_FLOAT64] = "float64"};
    const int type = argument->dtype == ROT_CALLS ? TYPE_NUMBERS[dtype] : TYPES[argument->dtype];
    void *data = NULL;
    if (!(argument->optional && object == Py_None)) {
        PyArrayObject *const array = (PyArrayObject *)object;
        if (!PyArray_Check(object) || PyArray_TYPE(array) != type || !PyArray_ISNOTSWAPPED(array)) {
            PyErr_Format(PyExc_TypeError, "%s: %s must be a %s array%s, got %R", kernel->name, argument->name,
                         argument->dtype == ROT_CALLS ? TYPE_NAMES[dtype] : NAMES[argument->dtype],
                         argument->optional ? " or None" : "",
                         PyArray_Check(object) ? (PyObject *)PyArray_DESCR(array) : (PyObject *)Py_TYPE(object));
            return false;
        }
        if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISALIGNED(array)) {
            PyErr_Format(PyExc_ValueError, "%s: %s must be C-contiguous and aligned", kernel->name, argument->name);
            return false;
        }
        if (argument->kind == ROT_WRITE && !PyArray_ISWRITEABLE(array)) {
            PyErr_Format(PyExc_ValueError, "%s: %s is read-only, but is written", kernel->name, argument->name);
            return false;
        }
        data = PyArray_DATA(array);
    }
    memcpy(to, &data, sizeof data);
    return true;
}

/* Stores an argument in the struct at `args`. Returns false with an exception set. */
static bool unpack(char *args, const rot_kernel *kernel, int i, PyObject *object, int dtype) {
    const rot_argument *const argument = &kernel->arguments[i];
    char *const to = args + argument->place;
    if (argument->kind == ROT_INT) {
        const int64_t n = (int64_t)PyLong_AsLongLong(object);
        memcpy(to, &n, sizeof n);
        if (n == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
        if (!PyErr_Occurred() && n >= argument->low && n <= argument->high) return true;
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s: %s is %S, expected an integer from %lld to %lld", kernel->name,
                     argument->name, object, (long long)argument->low, (long long)argument->high);
        return false;
    }
    if (argument->kind == ROT_FLOAT) {
        const double d = PyFloat_AsDouble(object);
        memcpy(to, &d, sizeof d);
        return !(d == -1 && PyErr_Occurred());
    }
    return unpack_array(to, kernel, argument, object, dtype);
}

static PyObject *raise_status(const char *name, int status) {
    switch (status) {
    case ROT_NO_MEMORY: PyErr_Format(PyExc_MemoryError, "%s: not enough memory for its workspace", name); break;
    case ROT_OUT_OF_RANGE: PyErr_Format(PyExc_IndexError, "%s: a number is out of range", name); break;
    case ROT_EXHAUSTED: PyErr_Format(PyExc_RuntimeError, "%s: no result within the attempts it may make", name); break;
    default: PyErr_Format(PyExc_SystemError, "%s: unknown status %d", name, status); break;
    }
    return NULL;
}

static PyObject *raise_missing(const function *self, PyObject *const *given) {
    for (int i = 0; i < self->kernel->count; i++)
        if (!given[i]) {
            PyErr_Format(PyExc_TypeError, "%s: %U is missing", self->kernel->name, self->names[i]);
            break;
        }
    return NULL;
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* NumPy's functions are macros that cast object pointers */
#endif
/* The values of a call's integers, as "B=2, T=3"; NULL with an exception set. */
static PyObject *integers_of(const rot_kernel *kernel, const char *args) {
    PyObject *values = PyUnicode_FromString("");
    for (int i = 0; i < kernel->count && values; i++) {
        const rot_argument *const one = &kernel->arguments[i];
        int64_t n;
        if (one->kind != ROT_INT) continue;
        memcpy(&n, args + one->place, sizeof n);
        PyObject *const more = PyUnicode_FromFormat("%U%s%s=%lld", values, PyUnicode_GET_LENGTH(values) ? ", " : "",
                                                    one->name, (long long)n);
        Py_DECREF(values);
        values = more;
    }
    return values;
}

static bool raise_size(const rot_kernel *kernel, const rot_argument *argument, PyObject *array, const char *args) {
    PyObject *const values = integers_of(kernel, args), *const shape = PyObject_GetAttrString(array, "shape");
    if (values && shape)
        PyErr_Format(PyExc_ValueError, "%s: %s has shape %R, expected as many numbers as (%s), with %U", kernel->name,
                     argument->name, shape, argument->shape, values);
    Py_XDECREF(shape);
    Py_XDECREF(values);
    return false;
}

static bool raise_broken(const rot_kernel *kernel, const char *condition, const char *args) {
    PyObject *const values = integers_of(kernel, args);
    if (values) PyErr_Format(PyExc_ValueError, "%s: expected %s, with %U", kernel->name, condition, values);
    Py_XDECREF(values);
    return false;
}

static bool raise_overlap(const rot_kernel *kernel, const char *written, const char *other) {
    PyErr_Format(PyExc_ValueError, "%s: %s overlaps %s, but is written: expected separate memory", kernel->name,
                 written, other);
    return false;
}

/* Index of the first number that is not in the range (NaN is in none), or -1. */
static npy_intp outside(PyArrayObject *array, rot_range range) {
    const npy_intp count = PyArray_SIZE(array);
    if (PyArray_TYPE(array) == NPY_INT64) {
        const int64_t *const numbers = PyArray_DATA(array);
        for (npy_intp i = 0; i < count; i++)
            if (numbers[i] < range.low || numbers[i] > range.high) return i;
    } else {
        const double *const numbers = PyArray_DATA(array);
        for (npy_intp i = 0; i < count; i++)
            if (!(numbers[i] >= (double)range.low && numbers[i] <= (double)range.high)) return i;
    }
    return -1;
}

static bool raise_range(const rot_kernel *kernel, const rot_argument *argument, PyArrayObject *array, npy_intp at,
                        rot_range range) {
    PyObject *const number = PyArray_GETITEM(array, PyArray_BYTES(array) + at * PyArray_ITEMSIZE(array));
    if (number)
        PyErr_Format(PyExc_ValueError, "%s: number %zd of %s is %S, expected one from %lld to %lld", kernel->name, at,
                     argument->name, number, (long long)range.low, (long long)range.high);
    Py_XDECREF(number);
    return false;
}

/* Checks what the kernel indexes by against the arrays: their sizes, the numbers in them, conditions of the list, and
 * that nothing written overlaps another array. Returns false with an exception set. `written`: how many arrays
 * the kernel writes that are not empty. */
static bool fits(const rot_kernel *kernel, PyObject *const *given, const char *args, int *written) {
    int64_t sizes[ROT_MOST_ARGUMENTS];
    rot_range ranges[ROT_MOST_ARGUMENTS];
    int arrays[ROT_MOST_ARGUMENTS], there = 0;
    *written = 0;
    kernel->sizes(sizes, args);
    for (int i = 0, k = 0; i < kernel->count; i++) {
        const rot_argument *const argument = &kernel->arguments[i];
        if (argument->kind > ROT_WRITE) continue;
        const int64_t expected = sizes[k++];
        if (given[i] == Py_None) continue;
        if (PyArray_SIZE((PyArrayObject *)given[i]) != expected) return raise_size(kernel, argument, given[i], args);
        if (expected) arrays[there++] = i;
        if (expected && argument->kind == ROT_WRITE) ++*written;
    }
    const char *const condition = kernel->broken ? kernel->broken(args) : NULL;
    if (condition) return raise_broken(kernel, condition, args);
    if (kernel->ranges) kernel->ranges(ranges, args);
    for (int i = 0, k = 0; kernel->ranges && i < kernel->count; i++) {
        if (!kernel->arguments[i].ranged) continue;
        const rot_range range = ranges[k++];
        if (given[i] == Py_None) continue;
        const npy_intp at = outside((PyArrayObject *)given[i], range);
        if (at >= 0) return raise_range(kernel, &kernel->arguments[i], (PyArrayObject *)given[i], at, range);
    }
    for (int i = 0; i < there; i++) {
        if (kernel->arguments[arrays[i]].kind != ROT_WRITE) continue;
        PyArrayObject *const mine = (PyArrayObject *)given[arrays[i]];
        const char *const begin = PyArray_BYTES(mine), *const end = begin + PyArray_NBYTES(mine);
        for (int k = 0; k < there; k++) {
            PyArrayObject *const other = (PyArrayObject *)given[arrays[k]];
            if (k == i || PyArray_BYTES(other) >= end || PyArray_BYTES(other) + PyArray_NBYTES(other) <= begin)
                continue;
            return raise_overlap(kernel, kernel->arguments[arrays[i]].name, kernel->arguments[arrays[k]].name);
        }
    }
    return true;
}

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

/* Runs a kernel without the GIL. A signal whose handler raises, as that of Ctrl-C does, ends it early: returns false
 * with the exception set. */
static bool run(const function *self, rot_call call, const char *args, int *status) {
    watch w = {.base = {.poll = look_for_signals}};
    const bool watched = PyThread_get_thread_ident() == self->state->main_thread;
    rot_stop *const before = stop_calls_by(watched ? &w.base : NULL);
    w.thread = PyEval_SaveThread();
    const float_mode mode = float_mode_usual();
    *status = call(args);
    float_mode_set(mode);
    PyEval_RestoreThread(w.thread);
    stop_calls_by(before);
    return !w.base.set;
}

static PyObject *invoke(PyObject *capsule, PyObject *const *values, Py_ssize_t positional, PyObject *keywords) {
    const function *const self = PyCapsule_GetPointer(capsule, FUNCTION_CAPSULE);
    if (!self) return NULL;
    const rot_kernel *const kernel = self->kernel;
    if (positional) return PyErr_Format(PyExc_TypeError, "%s: takes its arguments by keyword alone", kernel->name);
    PyObject *given[ROT_MOST_ARGUMENTS] = {NULL}; /* borrowed, in the order of the list */
    const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *const name = PyTuple_GET_ITEM(keywords, i);
        const int at = find_argument(self, name, (int)i);
        if (at < 0) return PyErr_Format(PyExc_TypeError, "%s: has no argument %U", kernel->name, name);
        given[at] = values[i];
    }
    if (count != kernel->count) return raise_missing(self, given);
    int dtype = -1;
    for (int i = 0; i < kernel->count && dtype < 0; i++)
        if (kernel->arguments[i].kind <= ROT_WRITE && kernel->arguments[i].dtype == ROT_CALLS)
            dtype = dtype_index(given[i]);
    if (dtype < 0) dtype = F32; /* a kernel without such arrays is the same for all dtypes */
    const rot_call call = find_call(self, dtype);
    if (!call) return PyErr_Format(PyExc_TypeError, "%s: there is no %s kernel", kernel->name, TYPE_NAMES[dtype]);
    _Alignas(16) char args[ROT_ARGS_BYTES];
    for (int i = 0; i < kernel->count; i++)
        if (!unpack(args, kernel, i, given[i], dtype)) return NULL;
    int written;
    if (!fits(kernel, given, args, &written)) return NULL;
    if (!written) Py_RETURN_NONE; /* its loops over an immense axis may still take minutes */
    int status;
    if (!run(self, call, args, &status)) return NULL;
    if (status != ROT_OK) return raise_status(kernel->name, status);
    Py_RETURN_NONE;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static void free_function(PyObject *capsule) {
    function *const self = PyCapsule_GetPointer(capsule, FUNCTION_CAPSULE);
    for (int i = 0; i < self->kernel->count; i++) Py_XDECREF(self->names[i]);
    Py_DECREF(self->module);
    PyMem_Free(self);
}

/* Adds the function of the kernel with index `place` in the list to `kernels`. */
static int add_function(PyObject *module, PyObject *kernels, int place) {
    function *const self = PyMem_Calloc(1, sizeof *self);
    if (!self) {
        PyErr_NoMemory();
        return -1;
    }
    self->module = Py_NewRef(module);
    self->state = PyModule_GetState(module);
    self->kernel = &ROT_LIST[place];
    self->place = place;
    self->def.ml_name = self->kernel->name;
    self->def.ml_meth = (PyCFunction)(void (*)(void))invoke;
    self->def.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    PyObject *const capsule = PyCapsule_New(self, FUNCTION_CAPSULE, free_function);
    if (!capsule) {
        Py_DECREF(module);
        PyMem_Free(self);
        return -1;
    }
    int status = 0;
    for (int i = 0; i < self->kernel->count && status == 0; i++) {
        self->names[i] = PyUnicode_InternFromString(self->kernel->arguments[i].name);
        if (!self->names[i]) status = -1;
    }
    PyObject *const callable = status == 0 ? PyCFunction_New(&self->def, capsule) : NULL;
    Py_DECREF(capsule);
    if (!callable) return -1;
    status = PyObject_SetAttrString(kernels, self->kernel->name, callable);
    Py_DECREF(callable);
    return status;
}

/* Adds `kernels`, an object with one function for each kernel of the list. */
static int add_kernels(PyObject *module) {
    PyObject *const kernels = PyModule_New("rotrnn._cpu.kernels");
    if (!kernels) return -1;
    int status = 0;
    for (int place = 0; place < ROT_KERNELS && status == 0; place++) status = add_function(module, kernels, place);
    if (status == 0) status = PyModule_AddObjectRef(module, "kernels", kernels);
    Py_DECREF(kernels);
    return status;
}

/* Adds the list's constants as numbers, and each enumeration as a read-only mapping from a name to its number. */
static int add_numbers(PyObject *module) {
    for (const rot_number *number = ROT_NUMBERS; number->group;) {
        if (!number->name) {
            if (PyModule_AddIntConstant(module, number->group, (long)number->value) < 0) return -1;
            number++;
            continue;
        }
        const char *const group = number->group;
        PyObject *const names = PyDict_New();
        int status = names ? 0 : -1;
        for (; status == 0 && number->group && strcmp(number->group, group) == 0; number++) {
            PyObject *const value = PyLong_FromLongLong((long long)number->value);
            status = value ? PyDict_SetItemString(names, number->name, value) : -1;
            Py_XDECREF(value);
        }
        PyObject *const view = status == 0 ? PyDictProxy_New(names) : NULL;
        Py_XDECREF(names);
        if (!view) return -1;
        status = PyModule_AddObjectRef(module, group, view);
        Py_DECREF(view);
        if (status < 0) return -1;
    }
    return 0;
}

static PyObject *use_simd(PyObject *module, PyObject *argument) {
    module_state *const state = PyModule_GetState(module);
    const char *const name = PyUnicode_AsUTF8(argument);
    if (!name) return NULL;
    for (int level = 0; level < SIMD_COUNT; level++) {
        if (strcmp(SIMDS[level].name, name) == 0 && simd_supported(level)) {
            return PyUnicode_FromString(SIMDS[atomic_exchange(&state->level, level)].name);
        }
    }
    PyObject *const available = PyObject_GetAttrString(module, "SIMD_AVAILABLE");
    if (available) PyErr_Format(PyExc_ValueError, "use_simd: got '%s', expected one of %R", name, available);
    Py_XDECREF(available);
    return NULL;
}

static PyObject *simd_in_use(PyObject *module, PyObject *ignored) {
    (void)ignored;
    const module_state *const state = PyModule_GetState(module);
    return PyUnicode_FromString(SIMDS[state->level].name);
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
static PyObject *empty(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    PyArray_Descr *dtype = NULL;
    PyArray_Dims shape = {NULL, 0};
    PyObject *array = NULL;
    const module_state *const state = PyModule_GetState(module);
    if (count != 2) return PyErr_Format(PyExc_TypeError, "empty: takes 2 arguments, got %zd", count);
    if (PyArray_IntpConverter(args[0], &shape) && PyArray_DescrConverter(args[1], &dtype)) {
        PyObject *const before = PyDataMem_SetHandler(state->handler);
        if (before) {
            array = PyArray_Empty(shape.len, shape.ptr, dtype, 0); /* steals dtype */
            dtype = NULL;
            PyObject *const ours = PyDataMem_SetHandler(before);
            Py_DECREF(before);
            Py_XDECREF(ours);
        }
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

static PyMethodDef METHODS[] = {
    {"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL,
     "empty(shape, dtype): numpy.empty in memory that is kept for reuse when the array is gone."},
    {"release_memory", release_memory, METH_NOARGS,
     "release_memory(): returns memory kept for reuse to the system; how many bytes that was."},
    {"use_simd", use_simd, METH_O, "use_simd(name): pick the instruction set of all kernels; returns the one before."},
    {"simd", simd_in_use, METH_NOARGS, "simd(): the instruction set in use."},
    {"threads", threads, METH_NOARGS, "threads(): how many threads the next kernel will use."},
    {"use_threads", use_threads, METH_O, "use_threads(n): n threads from here on; returns the number before."},
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

static int exec_module(PyObject *module) {
    import_array1(-1);
    PyObject *const available = PyList_New(0);
    if (!available) return -1;
    module_state *const state = PyModule_GetState(module);
    pool_survive_fork();
    state->main_thread = main_thread();
    if (PyErr_Occurred()) goto fail;
    state->handler = PyCapsule_New(&POOL_HANDLER, "mem_handler", NULL);
    if (!state->handler) goto fail;
    if (add_kernels(module) < 0 || add_numbers(module) < 0) goto fail;
    for (int level = 0; level < SIMD_COUNT; level++) {
        if (!simd_supported(level)) continue;
        state->level = level;
        PyObject *const name = PyUnicode_FromString(SIMDS[level].name);
        if (!name || PyList_Append(available, name) < 0) {
            Py_XDECREF(name);
            goto fail;
        }
        Py_DECREF(name);
    }
    PyObject *const tuple = PyList_AsTuple(available);
    if (!tuple || PyModule_AddObjectRef(module, "SIMD_AVAILABLE", tuple) < 0) {
        Py_XDECREF(tuple);
        goto fail;
    }
    Py_DECREF(tuple);
    Py_DECREF(available);
#ifdef _OPENMP
    if (PyModule_AddIntConstant(module, "OPENMP", _OPENMP) < 0) return -1;
#else
    if (PyModule_AddIntConstant(module, "OPENMP", 0) < 0) return -1;
#endif
    if (PyModule_AddIntConstant(module, "KEEPS_MEMORY", pool_keeps()) < 0) return -1;
    return PyModule_AddStringConstant(module, "COMPILER", __VERSION__);
fail:
    Py_DECREF(available);
    return -1;
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
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared: the pool, which has a lock, and the atomic `level` */
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
