/* rotrnn._cuda: the kernels of the list on arrays in a GPU's memory, as Python functions (door.h).
 *
 * The arrays are CuPy's, or look like them: `data.ptr`, `dtype`, `size`, `nbytes`, `flags.c_contiguous`, `device.id`.
 * `connect` sets how to get memory and the stream. Kernels are launched with the GIL, and do not wait for the GPU.
 */
#define ROT_IMPORTS_NUMPY
#include "door.h"

#include "runtime.h"

#ifndef ROT_CUDA_NAME /* the harness builds this file as another module */
#define ROT_CUDA_NAME _cuda
#endif
#define TEXT_(name)   #name
#define TEXT(name)    TEXT_(name)
#define JOIN_(a, b)   a##b
#define JOIN(a, b)    JOIN_(a, b)
#define INIT_FUNCTION JOIN(PyInit_, ROT_CUDA_NAME)

extern const rot_call rot_calls_f32_cuda[], rot_calls_f64_cuda[], rot_calls_c64_cuda[], rot_calls_c128_cuda[];
static const rot_call *const CALLS[DTYPES] = {rot_calls_f32_cuda, rot_calls_f64_cuda, rot_calls_c64_cuda,
                                              rot_calls_c128_cuda};

/* The arguments of `connect`, and names, all owned. The module is never unloaded. */
static PyObject *device, *allocate, *stream;
static PyObject *name_data, *name_ptr, *name_dtype, *name_size, *name_nbytes, *name_flags, *name_contiguous,
    *name_device, *name_id, *name_on;

rot_call find_call(PyObject *module, int place, int dtype) {
    (void)module;
    return CALLS[dtype][place];
}

/* Reads a nonnegative integer attribute. Returns false with an exception set. */
static bool read_integer(PyObject *object, PyObject *name, int64_t *value) {
    PyObject *const number = PyObject_GetAttr(object, name);
    if (!number) return false;
    *value = (int64_t)PyLong_AsLongLong(number);
    Py_DECREF(number);
    return !(*value == -1 && PyErr_Occurred());
}

static bool describe_on_device(PyObject *object, rot_array *array) {
    int64_t at, where;
    PyObject *const data = PyObject_GetAttr(object, name_data);
    const bool has_data = data && read_integer(data, name_ptr, &at);
    Py_XDECREF(data);
    if (!has_data) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear(); /* not a device array */
        return false;
    }
    PyObject *const dtype = PyObject_GetAttr(object, name_dtype), *const flags = PyObject_GetAttr(object, name_flags);
    PyObject *const contiguous = flags ? PyObject_GetAttr(flags, name_contiguous) : NULL;
    PyObject *const home = PyObject_GetAttr(object, name_device);
    bool good = dtype && PyArray_DescrCheck(dtype) && contiguous && home && read_integer(home, name_id, &where) &&
                read_integer(object, name_size, &array->count) && read_integer(object, name_nbytes, &array->bytes);
    if (good) {
        static _Alignas(256) char nothing[256]; /* CuPy has no address for an empty array, and NULL means no array */
        array->data = array->count ? (void *)(intptr_t)at : nothing;
        array->type = PyArray_ISNBO(((PyArray_Descr *)dtype)->byteorder) ? ((PyArray_Descr *)dtype)->type_num : -1;
        array->contiguous = PyObject_IsTrue(contiguous) == 1;
        array->aligned = array->count == 0 || at % (array->bytes / array->count) == 0;
        array->writeable = true;
        array->on_host = false;
        const int current = runtime_device();
        if (current < 0)
            PyErr_SetString(PyExc_RuntimeError, runtime_error());
        else if (current != (int)where)
            PyErr_Format(PyExc_ValueError, "an array is on GPU %d, but the current one is %d", (int)where, current);
        good = current == (int)where;
    }
    Py_XDECREF(dtype), Py_XDECREF(flags), Py_XDECREF(contiguous), Py_XDECREF(home);
    return good;
}

bool describe_array(PyObject *object, rot_array *array) {
    /* checked lengths have a copy on the device; other host arrays are not accepted */
    if (!device || !PyObject_HasAttr((PyObject *)Py_TYPE(object), name_on))
        return !PyArray_Check(object) && describe_on_device(object, array);
    PyObject *const copy = PyObject_CallMethodObjArgs(object, name_on, device, NULL);
    const bool good = copy && describe_on_device(copy, array);
    Py_XDECREF(copy); /* `object` holds a reference */
    return good;
}

/* Memory of a call: the list `context` holds it until the call ends. */
static void *allocate_memory(void *context, size_t bytes) {
    PyObject *const memory = PyObject_CallFunction(allocate, "n", (Py_ssize_t)bytes);
    int64_t at = 0;
    const bool good = memory && read_integer(memory, name_ptr, &at) && PyList_Append(context, memory) == 0;
    Py_XDECREF(memory);
    return good ? (void *)(intptr_t)at : NULL;
}

bool run_call(PyObject *module, const char *name, rot_call call, const char *args, int *status) {
    (void)module;
    if (!allocate) {
        PyErr_Format(PyExc_RuntimeError, "%s: the module is not connected to a device", name);
        return false;
    }
    PyObject *const on = PyObject_CallNoArgs(stream), *const kept = PyList_New(0);
    const long long at = on ? PyLong_AsLongLong(on) : -1;
    if (kept && !(at == -1 && PyErr_Occurred())) {
        runtime_begin((void *)(intptr_t)at, precision_of_call(), allocate_memory, kept);
        *status = call(args);
        if (*status == ROT_DEVICE_FAILED) PyErr_Format(PyExc_RuntimeError, "%s: %s", name, runtime_error());
    }
    Py_XDECREF(on), Py_XDECREF(kept);
    return !PyErr_Occurred();
}

static PyObject *connect(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *given_device, *given_allocate, *given_stream;
    const char *blas;
    if (!PyArg_ParseTuple(arguments, "OOOs", &given_device, &given_allocate, &given_stream, &blas)) return NULL;
    if (!runtime_runs()) return PyErr_Format(PyExc_RuntimeError, "connect: %s", runtime_error());
    Py_XSETREF(device, Py_NewRef(given_device));
    Py_XSETREF(allocate, Py_NewRef(given_allocate));
    Py_XSETREF(stream, Py_NewRef(given_stream));
    runtime_use_blas(blas);
    Py_RETURN_NONE;
}

static PyObject *use_counter(PyObject *module, PyObject *argument) {
    (void)module;
    rot_array array;
    if (argument == Py_None) {
        runtime_use_counter(NULL);
        Py_RETURN_NONE;
    }
    if (!describe_array(argument, &array) || array.type != NPY_INT64 || array.count != 1)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "use_counter: got %R, expected one int64", argument);
    runtime_use_counter(array.data);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"connect", connect, METH_VARARGS,
     "connect(device, allocate, stream, blas): device for checked lengths, allocate(bytes) -> memory with `ptr`, "
     "stream() -> its address, and the path of cuBLAS. RuntimeError if the current GPU cannot run the kernels."},
    {"use_counter", use_counter, METH_O,
     "use_counter(array): an int64 on the GPU that is added to the step in the keys of random numbers, or None. The "
     "caller "
     "keeps the array."},
    {"precision", precision_in_use, METH_NOARGS, PRECISION_DOC},
    {"use_precision", use_precision_by_name, METH_O, USE_PRECISION_DOC},
    {NULL, NULL, 0, NULL},
};

static int exec_module(PyObject *module) {
    import_array1(-1);
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_data, "data"},
                 {&name_ptr, "ptr"},
                 {&name_dtype, "dtype"},
                 {&name_size, "size"},
                 {&name_nbytes, "nbytes"},
                 {&name_flags, "flags"},
                 {&name_contiguous, "c_contiguous"},
                 {&name_device, "device"},
                 {&name_id, "id"},
                 {&name_on, "on"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
    return add_kernels(module) < 0 || add_numbers(module) < 0 ? -1 : 0;
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, (void *)(uintptr_t)exec_module}, /* NOLINT: the C API's own idiom */
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* NumPy is not */
#endif
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "rotrnn." TEXT(ROT_CUDA_NAME),
    .m_doc = "CUDA kernels of rotrnn.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC INIT_FUNCTION(void);
PyMODINIT_FUNC INIT_FUNCTION(void) { return PyModuleDef_Init(&MODULE); }
