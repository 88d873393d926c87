/* The door between Python and the kernels of the list (entries.h): one Python function for each kernel.
 *
 * Shared by the extension modules, rotrnn._cpu and rotrnn._cuda. A module defines describe_array, find_call and
 * run_call for its arrays and kernels. Arguments are passed by keyword; arrays must have the dtype and the size given
 * in the list, be C-contiguous and aligned, and be writeable if the kernel writes them. The dtype of the first array
 * without a fixed dtype selects the variant.
 */
#ifndef ROT_DOOR_H
#define ROT_DOOR_H

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#include <Python.h>
#ifndef ROT_IMPORTS_NUMPY /* only a module's main file imports it */
#define NO_IMPORT_ARRAY
#endif
#define PY_ARRAY_UNIQUE_SYMBOL rot_numpy
#include <numpy/arrayobject.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include "entries.h"
#include "kernels.h"

/* The dtypes of calls, and NumPy's type numbers. */
enum { F32, F64, C64, C128, DTYPES };
extern const int TYPE_NUMBERS[DTYPES];

/* An array argument. */
typedef struct {
    void *data;
    int64_t count, bytes;
    int type; /* NumPy's type number; -1 for another byte order */
    bool contiguous, aligned, writeable;
    bool on_host; /* the numbers can be read here */
} rot_array;

/* Describes an array of the module's kind. Returns false for other objects, and false with an exception set if it
 * failed. */
bool describe_array(PyObject *object, rot_array *array);

/* The compiled kernel for a dtype, by its place in the list; NULL if there is none. */
rot_call find_call(PyObject *module, int place, int dtype);

/* An integer argument of a call, from low to high. Returns false with an exception set that names both. */
bool take_integer(const char *call, const char *name, PyObject *object, int64_t low, int64_t high, int64_t *to);

/* Runs a kernel. Returns false with an exception set, or true with its status. */
bool run_call(PyObject *module, const char *name, rot_call call, const char *args, int *status);

/* Adds `kernels`, an object with one function for each kernel of the list, and the list's constants: enumerations as
 * read-only mappings from a name to its number. Returns -1 with an exception set, or 0. */
int add_kernels(PyObject *module);
int add_numbers(PyObject *module);

/* Adds LIST, the list for Python (described in _cpu.pyi). */
int add_list(PyObject *module);

/* precision() and use_precision(name) of either module. use_precision sets the calling thread's precision (precision.h)
 * by name, and returns the previous name. */
#define USE_PRECISION_DOC                                                                                              \
    "use_precision(name): how products of float32 matrices in this thread's calls round their operands; returns the "  \
    "precision before."
#define PRECISION_DOC "precision(): how products of float32 matrices in this thread's calls round their operands."
PyObject *precision_in_use(PyObject *module, PyObject *unused);
PyObject *use_precision_by_name(PyObject *module, PyObject *argument);

#endif
