/* Calls of kernels from Python: arguments are unpacked and checked against the list (door.h). */
#include "door.h"

#include <string.h>

#include "precision.h"

const int TYPE_NUMBERS[DTYPES] = {NPY_FLOAT32, NPY_FLOAT64, NPY_COMPLEX64, NPY_COMPLEX128};
static const char *const TYPE_NAMES[DTYPES] = {"float32", "float64", "complex64", "complex128"};

typedef struct {
    PyObject *module; /* owned: a function may outlive every other reference to its module */
    const rot_kernel *kernel;
    int place;                           /* in the list */
    PyObject *names[ROT_MOST_ARGUMENTS]; /* owned: its arguments' names, interned */
    PyMethodDef def;
} function;

static const char FUNCTION_CAPSULE[] = "rotrnn.function";

static int dtype_index(int type) {
    for (int i = 0; i < DTYPES; i++)
        if (type == TYPE_NUMBERS[i]) return i;
    return -1;
}

/* The index of the argument with this name, or -1. Callers pass interned names, usually in the list's order. */
static int find_argument(const function *self, PyObject *name, int guess) {
    const int count = self->kernel->count;
    if (guess < count && self->names[guess] == name) return guess;
    for (int i = 0; i < count; i++)
        if (self->names[i] == name) return i;
    for (int i = 0; i < count; i++)
        if (PyUnicode_Compare(self->names[i], name) == 0) return i;
    return -1;
}

static bool refuse_array(const rot_kernel *kernel, const rot_argument *argument, PyObject *object, bool is_array,
                         int dtype) {
    static const char *const NAMES[] = {
        [ROT_INT64] = "int64", [ROT_UINT8] = "uint8", [ROT_UINT16] = "uint16", [ROT_FLOAT64] = "float64"};
    PyObject *const got = is_array ? PyObject_GetAttrString(object, "dtype") : Py_NewRef((PyObject *)Py_TYPE(object));
    if (got)
        PyErr_Format(PyExc_TypeError, "%s: %s must be a %s array%s, got %R", kernel->name, argument->name,
                     argument->dtype == ROT_CALLS ? TYPE_NAMES[dtype] : NAMES[argument->dtype],
                     argument->optional ? " or None" : "", got);
    Py_XDECREF(got);
    return false;
}

/* Checks an array argument and stores its data pointer at `to`. Returns false with an exception set. `array` describes
 * `object` if `is_array`. */
static bool unpack_array(void *to, const rot_kernel *kernel, const rot_argument *argument, PyObject *object,
                         const rot_array *array, bool is_array, int dtype) {
    static const int TYPES[] = {
        [ROT_INT64] = NPY_INT64, [ROT_UINT8] = NPY_UINT8, [ROT_UINT16] = NPY_UINT16, [ROT_FLOAT64] = NPY_FLOAT64};
    const int type = argument->dtype == ROT_CALLS ? TYPE_NUMBERS[dtype] : TYPES[argument->dtype];
    void *data = NULL;
    if (!(argument->optional && object == Py_None)) {
        if (!is_array || array->type != type) return refuse_array(kernel, argument, object, is_array, dtype);
        if (!array->contiguous || !array->aligned) {
            PyErr_Format(PyExc_ValueError, "%s: %s must be C-contiguous and aligned", kernel->name, argument->name);
            return false;
        }
        if (argument->kind == ROT_WRITE && !array->writeable) {
            PyErr_Format(PyExc_ValueError, "%s: %s is read-only, but is written", kernel->name, argument->name);
            return false;
        }
        data = array->data;
    }
    memcpy(to, &data, sizeof data);
    return true;
}

bool take_integer(const char *call, const char *name, PyObject *object, int64_t low, int64_t high, int64_t *to) {
    *to = (int64_t)PyLong_AsLongLong(object);
    if (*to == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
    if (!PyErr_Occurred() && *to >= low && *to <= high) return true;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s: %s is %S, expected an integer from %lld to %lld", call, name, object,
                 (long long)low, (long long)high);
    return false;
}

/* Stores a number in the struct at `args`. Returns false with an exception set. */
static bool unpack_number(char *args, const rot_kernel *kernel, const rot_argument *argument, PyObject *object) {
    char *const to = args + argument->place;
    if (argument->kind == ROT_FLOAT) {
        const double d = PyFloat_AsDouble(object);
        memcpy(to, &d, sizeof d);
        return !(d == -1 && PyErr_Occurred());
    }
    int64_t n;
    const bool taken = take_integer(kernel->name, argument->name, object, argument->low, argument->high, &n);
    memcpy(to, &n, sizeof n);
    return taken;
}

static PyObject *raise_status(const char *name, int status) {
    switch (status) {
    case ROT_NO_MEMORY: PyErr_Format(PyExc_MemoryError, "%s: not enough memory for its workspace", name); break;
    case ROT_OUT_OF_RANGE: PyErr_Format(PyExc_IndexError, "%s: a number is out of range", name); break;
    case ROT_EXHAUSTED: PyErr_Format(PyExc_RuntimeError, "%s: no result within the allowed attempts", name); break;
    case ROT_NO_KERNEL:
        PyErr_Format(PyExc_NotImplementedError, "%s: there is no kernel for these arguments on this device", name);
        break;
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

/* The values of a call's integers, for example "B=2, T=3"; NULL with an exception set. */
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

static bool raise_size(const rot_kernel *kernel, const rot_argument *argument, PyObject *array, const char *args,
                       int64_t expected) {
    PyObject *const values = integers_of(kernel, args), *const shape = PyObject_GetAttrString(array, "shape");
    if (values && shape && expected < 0)
        PyErr_Format(PyExc_ValueError, "%s: %s has shape %R, but (%s) has too many rows or numbers, with %U",
                     kernel->name, argument->name, shape, argument->shape, values);
    else if (values && shape)
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
static int64_t outside(const rot_array *array, rot_range range) {
    if (array->type == NPY_INT64) {
        const int64_t *const numbers = array->data;
        for (int64_t i = 0; i < array->count; i++)
            if (numbers[i] < range.low || numbers[i] > range.high) return i;
    } else {
        const double *const numbers = array->data;
        for (int64_t i = 0; i < array->count; i++)
            if (!(numbers[i] >= (double)range.low && numbers[i] <= (double)range.high)) return i;
    }
    return -1;
}

static bool raise_range(const rot_kernel *kernel, const rot_argument *argument, const rot_array *array, int64_t at,
                        rot_range range) {
    PyObject *const number = array->type == NPY_INT64 ? PyLong_FromLongLong(((const int64_t *)array->data)[at])
                                                      : PyFloat_FromDouble(((const double *)array->data)[at]);
    if (number)
        PyErr_Format(PyExc_ValueError, "%s: number %lld of %s is %S, expected %lld to %lld", kernel->name,
                     (long long)at, argument->name, number, (long long)range.low, (long long)range.high);
    Py_XDECREF(number);
    return false;
}

/* Checks the arrays before the kernel indexes them: their sizes, their numbers if these can be read here, the list's
 * conditions, and that no written array overlaps another array. Returns false with an exception set. `written`: the
 * number of nonempty arrays that the kernel writes. */
static bool fits(const rot_kernel *kernel, PyObject *const *given, const rot_array *arrays, const char *args,
                 int *written) {
    int64_t sizes[ROT_MOST_ARGUMENTS];
    rot_range ranges[ROT_MOST_ARGUMENTS];
    int here[ROT_MOST_ARGUMENTS], there = 0, immense = -1;
    *written = 0;
    kernel->sizes(sizes, args);
    for (int i = 0, k = 0; i < kernel->count; i++) {
        const rot_argument *const argument = &kernel->arguments[i];
        if (argument->kind > ROT_WRITE) continue;
        int64_t expected = sizes[k++];
        if (given[i] == Py_None) continue;
        if (expected == ROT_IMMENSE) expected = 0, immense = i;
        if (arrays[i].count != expected) return raise_size(kernel, argument, given[i], args, expected);
        if (expected) here[there++] = i;
        if (expected && argument->kind == ROT_WRITE) ++*written;
    }
    if (*written && immense >= 0) return raise_size(kernel, &kernel->arguments[immense], given[immense], args, -1);
    const char *const condition = kernel->broken ? kernel->broken(args) : NULL;
    if (condition) return raise_broken(kernel, condition, args);
    if (kernel->ranges) kernel->ranges(ranges, args);
    for (int i = 0, k = 0; kernel->ranges && i < kernel->count; i++) {
        if (!kernel->arguments[i].ranged) continue;
        const rot_range range = ranges[k++];
        if (given[i] == Py_None || !arrays[i].on_host) continue;
        const int64_t at = outside(&arrays[i], range);
        if (at >= 0) return raise_range(kernel, &kernel->arguments[i], &arrays[i], at, range);
    }
    for (int i = 0; i < there; i++) {
        if (kernel->arguments[here[i]].kind != ROT_WRITE) continue;
        const rot_array *const mine = &arrays[here[i]];
        const char *const begin = mine->data, *const end = begin + mine->bytes;
        for (int k = 0; k < there; k++) {
            const rot_array *const other = &arrays[here[k]];
            const char *const other_begin = other->data;
            if (k == i || other_begin >= end || other_begin + other->bytes <= begin) continue;
            return raise_overlap(kernel, kernel->arguments[here[i]].name, kernel->arguments[here[k]].name);
        }
    }
    return true;
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
        if (given[at]) return PyErr_Format(PyExc_TypeError, "%s: %U is given twice", kernel->name, name);
        given[at] = values[i];
    }
    if (count != kernel->count) return raise_missing(self, given);
    rot_array arrays[ROT_MOST_ARGUMENTS];
    bool is_array[ROT_MOST_ARGUMENTS];
    int dtype = -1;
    for (int i = 0; i < kernel->count; i++) {
        if (kernel->arguments[i].kind > ROT_WRITE) continue;
        is_array[i] = given[i] != Py_None && describe_array(given[i], &arrays[i]);
        if (!is_array[i] && PyErr_Occurred()) return NULL;
        if (is_array[i] && dtype < 0 && kernel->arguments[i].dtype == ROT_CALLS) dtype = dtype_index(arrays[i].type);
    }
    if (dtype < 0) dtype = F32; /* a kernel without such arrays is the same for all dtypes */
    const rot_call call = find_call(self->module, self->place, dtype);
    if (!call) return PyErr_Format(PyExc_TypeError, "%s: there is no %s kernel", kernel->name, TYPE_NAMES[dtype]);
    _Alignas(16) char args[ROT_ARGS_BYTES];
    for (int i = 0; i < kernel->count; i++) {
        const rot_argument *const argument = &kernel->arguments[i];
        const bool good = argument->kind > ROT_WRITE ? unpack_number(args, kernel, argument, given[i])
                                                     : unpack_array(args + argument->place, kernel, argument, given[i],
                                                                    &arrays[i], is_array[i], dtype);
        if (!good) return NULL;
    }
    int written;
    if (!fits(kernel, given, arrays, args, &written)) return NULL;
    if (!written) Py_RETURN_NONE;
    int status;
    if (!run_call(self->module, kernel->name, call, args, &status)) return NULL;
    if (status != ROT_OK) return raise_status(kernel->name, status);
    Py_RETURN_NONE;
}

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

int add_kernels(PyObject *module) {
    PyObject *const kernels = PyModule_New("rotrnn.kernels");
    if (!kernels) return -1;
    int status = 0;
    for (int place = 0; place < ROT_KERNELS && status == 0; place++) status = add_function(module, kernels, place);
    if (status == 0) status = PyModule_AddObjectRef(module, "kernels", kernels);
    Py_DECREF(kernels);
    return status;
}

int add_numbers(PyObject *module) {
    for (const rot_number *number = ROT_NUMBERS; number->group;) {
        if (!number->name) {
            PyObject *const value = PyLong_FromLongLong((long long)number->value);
            const int added = PyModule_AddObjectRef(module, number->group, value);
            Py_XDECREF(value);
            if (added < 0) return -1;
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

/* A kernel's row for Python; NULL with an exception set. */
static PyObject *row_of(const rot_kernel *kernel) {
    static const char *const KINDS[] = {
        [ROT_READ] = "read", [ROT_WRITE] = "write", [ROT_INT] = "int", [ROT_FLOAT] = "float"};
    PyObject *const arguments = PyTuple_New(kernel->count);
    for (int i = 0; arguments && i < kernel->count; i++) {
        const rot_argument *const one = &kernel->arguments[i];
        PyObject *const row = Py_BuildValue("(sssNN)", KINDS[one->kind], one->name, one->shape,
                                            PyBool_FromLong(one->dtype == ROT_CALLS), PyBool_FromLong(one->optional));
        if (!row) {
            Py_DECREF(arguments);
            return NULL;
        }
        PyTuple_SET_ITEM(arguments, i, row);
    }
    return arguments ? Py_BuildValue("(NN)", PyBool_FromLong(kernel->lane), arguments) : NULL;
}

int add_list(PyObject *module) {
    PyObject *const list = PyDict_New();
    int status = list ? 0 : -1;
    for (int i = 0; i < ROT_KERNELS && status == 0; i++) {
        PyObject *const row = row_of(&ROT_LIST[i]);
        status = row ? PyDict_SetItemString(list, ROT_LIST[i].name, row) : -1;
        Py_XDECREF(row);
    }
    if (status == 0) status = PyModule_AddObjectRef(module, "LIST", list);
    Py_XDECREF(list);
    return status;
}

static const char *const PRECISION_NAMES[PRECISIONS] = {
    [PRECISION_FLOAT32] = "float32", [PRECISION_TF32] = "tf32", [PRECISION_BF16] = "bf16"};

PyObject *precision_in_use(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(PRECISION_NAMES[precision_of_call()]);
}

PyObject *use_precision_by_name(PyObject *module, PyObject *argument) {
    const char *const name = PyUnicode_AsUTF8(argument);
    if (!name) return NULL;
    for (int i = 0; i < PRECISIONS; i++)
        if (strcmp(name, PRECISION_NAMES[i]) == 0) {
            PyObject *const before = precision_in_use(module, NULL);
            if (before) use_precision(i);
            return before;
        }
    return PyErr_Format(PyExc_ValueError, "use_precision: got '%s', expected one of float32, tf32, bf16", name);
}
