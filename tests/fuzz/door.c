/* libFuzzer over the door of the extension module (csrc/module/module.c): embeds Python, and gives each input to
 * `one` of door.py, which makes a call of it. The module is compiled with -fsanitize=fuzzer-no-link, so the fuzzer sees
 * which branches of it a call takes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

static PyObject *one;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    Py_InitializeEx(0);
    PyObject *const door = PyImport_ImportModule("fuzz.door");
    one = door ? PyObject_GetAttrString(door, "one") : NULL;
    if (!one) {
        PyErr_Print();
        abort();
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PyObject *const result = PyObject_CallFunction(one, "y#", (const char *)data, (Py_ssize_t)size);
    if (!result) {
        PyErr_Print();
        abort();
    }
    Py_DECREF(result);
    return 0;
}
