/* rotrnn._cpu: the tables of entries (entries.h) as Python functions. The only file that knows Python and NumPy.
 *
 * Every function takes its arguments in the order of the entry's signature. Arrays must have the exact dtype, be
 * C-contiguous and aligned, and writeable where they are written; shapes are the caller's business (ops/). The dtype
 * of the first array of a letter r, R, w or W picks the variant, and `use_simd` the instruction set.
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
#include "pool.h"
#include "real.h"

enum { F32, F64, C64, C128, DTYPES };
static const int TYPE_NUMBERS[DTYPES] = {NPY_FLOAT32, NPY_FLOAT64, NPY_COMPLEX64, NPY_COMPLEX128};
static const char *const TYPE_NAMES[DTYPES] = {"float32", "float64", "complex64", "complex128"};

#define TABLES(isa)                                                                                                    \
    extern const rot_entry rot_table_f32_##isa[], rot_table_f64_##isa[], rot_table_c64_##isa[], rot_table_c128_##isa[];
#ifdef ROT_NEON
TABLES(neon)
#else
TABLES(base)
#endif
#ifdef ROT_X86
TABLES(avx2)
TABLES(avx512)
#endif

typedef struct {
    const char *name;
    const rot_entry *tables[DTYPES];
} simd;

/* From the plainest to the fastest. */
static const simd SIMDS[] = {
#ifdef ROT_NEON
    {"neon", {rot_table_f32_neon, rot_table_f64_neon, rot_table_c64_neon, rot_table_c128_neon}},
#else
    {"base", {rot_table_f32_base, rot_table_f64_base, rot_table_c64_base, rot_table_c128_base}},
#endif
#ifdef ROT_X86
    {"avx2", {rot_table_f32_avx2, rot_table_f64_avx2, rot_table_c64_avx2, rot_table_c128_avx2}},
    {"avx512", {rot_table_f32_avx512, rot_table_f64_avx512, rot_table_c64_avx512, rot_table_c128_avx512}},
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
    atomic_int level;  /* the instruction set in use; any thread may change it between two calls */
    PyObject *handler; /* owned: NumPy's name for the allocator of `empty` */
} module_state;

typedef struct {
    PyObject *module; /* owned: a function may outlive every other reference to its module */
    module_state *state;
    const rot_entry *by_dtype[SIMD_COUNT][DTYPES]; /* NULL where the dtype lacks the entry; the plainest set's where
                                                      the instruction set does */
    const char *name;
    PyMethodDef def;
} function;

static const char FUNCTION_CAPSULE[] = "rotrnn._cpu.function";

static int dtype_index(PyObject *object) {
    if (PyArray_Check(object))
        for (int i = 0; i < DTYPES; i++)
            if (PyArray_TYPE((PyArrayObject *)object) == TYPE_NUMBERS[i]) return i;
    return -1;
}

/* Checks one array argument and stores its data pointer. Returns false with an exception set. */
static bool unpack_array(rot_slot *slot, const char *name, Py_ssize_t position, PyObject *object, int type_number,
                         const char *type_name, bool optional, bool written) {
    if (optional && object == Py_None) {
        slot->p = NULL;
        return true;
    }
    PyArrayObject *const array = (PyArrayObject *)object;
    if (!PyArray_Check(object) || PyArray_TYPE(array) != type_number || !PyArray_ISNOTSWAPPED(array)) {
        PyErr_Format(PyExc_TypeError, "%s: argument %zd must be a %s array, got %R", name, position, type_name,
                     PyArray_Check(object) ? (PyObject *)PyArray_DESCR(array) : (PyObject *)Py_TYPE(object));
        return false;
    }
    if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISALIGNED(array)) {
        PyErr_Format(PyExc_ValueError, "%s: argument %zd must be C-contiguous and aligned", name, position);
        return false;
    }
    if (written && !PyArray_ISWRITEABLE(array)) {
        PyErr_Format(PyExc_ValueError, "%s: argument %zd is read-only, but is written", name, position);
        return false;
    }
    slot->p = PyArray_DATA(array);
    return true;
}

static bool unpack(rot_slot *slot, const char *name, Py_ssize_t position, PyObject *object, char letter, int dtype) {
    switch (letter) {
    case 'r':
    case 'R':
        return unpack_array(slot, name, position, object, TYPE_NUMBERS[dtype], TYPE_NAMES[dtype], letter == 'R', false);
    case 'w':
    case 'W':
        return unpack_array(slot, name, position, object, TYPE_NUMBERS[dtype], TYPE_NAMES[dtype], letter == 'W', true);
    case 'i':
    case 'I': return unpack_array(slot, name, position, object, NPY_INT64, "int64", letter == 'I', false);
    case 'j':
    case 'J': return unpack_array(slot, name, position, object, NPY_INT64, "int64", letter == 'J', true);
    case 'b':
    case 'B': return unpack_array(slot, name, position, object, NPY_UINT8, "uint8", letter == 'B', false);
    case 'c':
    case 'C': return unpack_array(slot, name, position, object, NPY_UINT8, "uint8", letter == 'C', true);
    case 'e':
    case 'E': return unpack_array(slot, name, position, object, NPY_FLOAT64, "float64", letter == 'E', true);
    case 'f':
    case 'F': return unpack_array(slot, name, position, object, NPY_FLOAT64, "float64", letter == 'F', false);
    case 'n': slot->n = (int64_t)PyLong_AsLongLong(object); return !PyErr_Occurred();
    case 'd': slot->d = PyFloat_AsDouble(object); return !PyErr_Occurred();
    default: PyErr_Format(PyExc_SystemError, "%s: unknown signature letter '%c'", name, letter); return false;
    }
}

static PyObject *raise_status(const char *name, int status) {
    switch (status) {
    case ROT_NO_MEMORY: PyErr_Format(PyExc_MemoryError, "%s: not enough memory for its workspace", name); break;
    case ROT_OUT_OF_RANGE: PyErr_Format(PyExc_IndexError, "%s: an index is out of range", name); break;
    case ROT_EXHAUSTED: PyErr_Format(PyExc_RuntimeError, "%s: gave up before it had what was asked for", name); break;
    default: PyErr_Format(PyExc_SystemError, "%s: unknown status %d", name, status); break;
    }
    return NULL;
}

static PyObject *invoke(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
    const function *const self = PyCapsule_GetPointer(capsule, FUNCTION_CAPSULE);
    if (!self) return NULL;
    const int level = self->state->level;
    const char *const letters = self->by_dtype[level][F32]->signature; /* every entry has this dtype */
    int dtype = -1;
    for (Py_ssize_t i = 0; i < count && letters[i] && dtype < 0; i++)
        if (strchr("rRwW", letters[i])) dtype = dtype_index(args[i]);
    if (dtype < 0) dtype = F32; /* an entry without such arrays is the same in every table */
    const rot_entry *const entry = self->by_dtype[level][dtype];
    if (!entry) {
        PyErr_Format(PyExc_TypeError, "%s: there is no %s kernel", self->name, TYPE_NAMES[dtype]);
        return NULL;
    }
    const Py_ssize_t expected = (Py_ssize_t)strlen(entry->signature);
    if (count != expected || count > ROT_MAX_SLOTS) {
        PyErr_Format(PyExc_TypeError, "%s: takes %zd arguments, got %zd", self->name, expected, count);
        return NULL;
    }
    rot_slot slots[ROT_MAX_SLOTS];
    for (Py_ssize_t i = 0; i < count; i++)
        if (!unpack(&slots[i], self->name, i, args[i], entry->signature[i], dtype)) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS status = entry->call(slots);
    Py_END_ALLOW_THREADS if (status != ROT_OK) return raise_status(self->name, status);
    Py_RETURN_NONE;
}

static void free_function(PyObject *capsule) {
    function *const self = PyCapsule_GetPointer(capsule, FUNCTION_CAPSULE);
    Py_DECREF(self->module);
    PyMem_Free(self);
}

static const rot_entry *find_entry(const rot_entry *table, const char *name) {
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

/* Adds one Python function for the entry `name`, if the module has none of that name yet. */
static int add_function(PyObject *module, const char *name) {
    if (PyObject_HasAttrString(module, name)) return 0;
    function *const self = PyMem_Calloc(1, sizeof *self);
    if (!self) {
        PyErr_NoMemory();
        return -1;
    }
    self->module = Py_NewRef(module);
    self->state = PyModule_GetState(module);
    self->name = name;
    for (int level = 0; level < SIMD_COUNT; level++)
        for (int dtype = 0; dtype < DTYPES; dtype++) {
            const rot_entry *const entry = find_entry(SIMDS[level].tables[dtype], name);
            self->by_dtype[level][dtype] = entry ? entry : self->by_dtype[0][dtype];
        }
    self->def.ml_name = name;
    self->def.ml_meth = (PyCFunction)(void (*)(void))invoke;
    self->def.ml_flags = METH_FASTCALL;
    PyObject *const capsule = PyCapsule_New(self, FUNCTION_CAPSULE, free_function);
    if (!capsule) {
        Py_DECREF(module);
        PyMem_Free(self);
        return -1;
    }
    PyObject *const callable = PyCFunction_New(&self->def, capsule);
    Py_DECREF(capsule);
    if (!callable) return -1;
    const int status = PyModule_AddObjectRef(module, name, callable);
    Py_DECREF(callable);
    return status;
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

/* NumPy's allocator interface (NEP 49) over pool.h: arrays that take and give their memory there. */
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

static int exec_module(PyObject *module) {
    import_array1(-1);
    PyObject *const available = PyList_New(0);
    if (!available) return -1;
    module_state *const state = PyModule_GetState(module);
    pool_survive_fork();
    state->handler = PyCapsule_New(&POOL_HANDLER, "mem_handler", NULL);
    if (!state->handler) goto fail;
    for (int level = 0; level < SIMD_COUNT; level++) {
        for (int dtype = 0; dtype < DTYPES; dtype++)
            for (const rot_entry *entry = SIMDS[level].tables[dtype]; entry->name; entry++)
                if (add_function(module, entry->name) < 0) goto fail;
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
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared are the pool, which has a lock, and `level`, which is atomic */
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
