/* rotrnn._cpu.Stream: a stream of the C library (csrc/lib) on NumPy arrays, with a model in memory. Python checks the
 * meaning of arrays (python/rotrnn/models/engines.py); this file checks that they fit into the stream's memory.
 */
#include "stream.h"

#include <stdatomic.h>
#include <string.h>

#include "../lib/stream.h"
#include "stop.h"

typedef struct {
    PyObject_HEAD rotrnn_model *model;
    rotrnn_stream *stream;
    int32_t *tokens; /* owned: the tokens of a push, as int32 */
    int64_t room;    /* for this number of tokens */
    atomic_flag busy;
} stream_object;

/* A stream belongs to one thread at a time, even while a push lets other threads run. */
static bool enter(stream_object *self, const char *call) {
    if (!atomic_flag_test_and_set(&self->busy)) return true;
    PyErr_Format(PyExc_RuntimeError, "Stream.%s: the stream is in use by another thread, expected one call at a time",
                 call);
    return false;
}
static void leave(stream_object *self) { atomic_flag_clear(&self->busy); }

static void raise(const rotrnn_error *error) {
    PyObject *const type = error->status == ROTRNN_UNSUPPORTED ? PyExc_NotImplementedError
                           : error->status == ROTRNN_NO_MEMORY ? PyExc_MemoryError
                                                               : PyExc_ValueError;
    PyErr_Format(type, error->status == ROTRNN_NO_MEMORY ? "Stream: %s" : "%s", error->text);
}

/* ----------------------------------------------------------------------------------------------------- a new one */

/* Adds an array of the parameters to the file. Returns false with an exception set. */
static bool add_array(file *f, PyObject *name, PyObject *object) {
    file_array *const to = f->arrays + f->count;
    rot_array array;
    const bool is_array = describe_array(object, &array);
    const char *const text = is_array ? PyUnicode_AsUTF8(name) : NULL;
    if (PyErr_Occurred()) return false;
    const bool real = is_array && (array.type == NPY_FLOAT32 || array.type == NPY_FLOAT64);
    if (real && !f->count) f->is_double = array.type == NPY_FLOAT64;
    if (!real || !array.contiguous || f->is_double != (array.type == NPY_FLOAT64) ||
        PyArray_NDIM((PyArrayObject *)object) > MOST_AXES) {
        PyErr_Format(PyExc_TypeError, "Stream: parameter %S must be a C-contiguous array, all of float32 or of float64",
                     name);
        return false;
    }
    *to = (file_array){.name = text, .bytes = array.data, .count = array.count};
    to->axes = PyArray_NDIM((PyArrayObject *)object);
    for (int i = 0; i < to->axes; i++) to->shape[i] = PyArray_DIM((PyArrayObject *)object, i);
    f->numbers += array.count;
    f->count++;
    return true;
}

/* Fills in the contents of this model's file. Returns false with an exception set. */
static bool fill(file *f, arena *memory, PyObject *facts, PyObject *arrays) {
    rotrnn_error error = {.status = ROTRNN_OK};
    Py_ssize_t length, place = 0;
    PyObject *name, *array;
    const char *const text = PyUnicode_AsUTF8AndSize(facts, &length);
    if (!text) return false;
    f->facts = json_read(memory, text, (size_t)length, &error);
    f->arrays = arena_take(memory, PyDict_Size(arrays), sizeof *f->arrays);
    if (!f->facts || !f->arrays) {
        failed(&error, ROTRNN_NO_MEMORY, "no memory for the list of arrays");
        raise(&error);
        return false;
    }
    while (PyDict_Next(arrays, &place, &name, &array))
        if (!add_array(f, name, array)) return false;
    file_sort(f);
    return true;
}

static PyObject *new_stream(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *facts, *arrays, *sequences;
    int64_t batch;
    int half;
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Stream: takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "UO!Op:Stream", &facts, &PyDict_Type, &arrays, &sequences, &half) ||
        !take_integer("Stream", "batch", sequences, 1, MOST_NUMBERS, &batch))
        return NULL;
    stream_object *const self = (stream_object *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    rotrnn_error error = {.status = ROTRNN_OK};
    arena memory = {0};
    file f = {0};
    if (fill(&f, &memory, facts, arrays)) {
        self->model = model_of(&f, half, &error);
        if (self->model && self->model->program.step_bytes)
            failed(&error, ROTRNN_UNSUPPORTED,
                   "a layer keeps every step, so its state grows with time without a window");
        else if (self->model)
            (void)rotrnn_stream_new(&self->stream, self->model, batch, 0, &error);
        if (error.status != ROTRNN_OK) raise(&error);
    }
    arena_free(&memory);
    if (!PyErr_Occurred()) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void free_stream(PyObject *object) {
    stream_object *const self = (stream_object *)object;
    PyTypeObject *const type = Py_TYPE(object);
    rotrnn_stream_free(self->stream);
    rotrnn_model_free(self->model);
    PyMem_Free(self->tokens);
    type->tp_free(object);
    Py_DECREF(type);
}

/* --------------------------------------------------------------------------------------------------------- a push */

/* Whether the object is a contiguous, aligned array of `count` numbers of this dtype. */
static bool fits(PyObject *object, rot_array *array, int type, int64_t count) {
    return describe_array(object, array) && array->type == type && array->contiguous && array->aligned &&
           array->count == count;
}

/* Sets the tokens, as the library's int32; numbers out of its range become -1, which is no token. */
static bool narrow(stream_object *self, const int64_t *from, int64_t count) {
    if (count > self->room) {
        int32_t *const more = PyMem_Realloc(self->tokens, (size_t)count * sizeof *more);
        if (!more) return PyErr_NoMemory();
        self->tokens = more;
        self->room = count;
    }
    for (int64_t i = 0; i < count; i++) self->tokens[i] = from[i] < 0 || from[i] > INT32_MAX ? -1 : (int32_t)from[i];
    return true;
}

/* A push of less work than this keeps the interpreter's lock: it ends before another thread would run. */
static const int64_t SMALL = (int64_t)1 << 23;

typedef struct {
    rotrnn_stream *stream;
    const pushed *call;
} push_args;

static int push_now(const void *args) {
    const push_args *const push = args;
    return (int)stream_push(push->stream, push->call);
}

/* Returns false with an exception set, and the stream unchanged, if memory is exhausted or a signal ended the push
 * early. */
static bool run_push(stream_object *self, const pushed *call, int *status) {
    rotrnn_stream *const s = self->stream;
    const push_args args = {s, call};
    if (s->batch * call->n * self->model->parameters < SMALL) {
        rot_stop *const outer = stop_calls_by(NULL); /* in a signal handler: the interrupted call's stop */
        *status = push_now(&args);
        stop_calls_by(outer);
        return true;
    }
    const size_t bytes = (size_t)(s->batch * s->state_bytes);
    void *const before = PyMem_Malloc(bytes);
    if (!before) return PyErr_NoMemory();
    memcpy(before, s->state, bytes);
    PyObject *const module = PyType_GetModule(Py_TYPE(self));
    const bool ended = run_call(module, "Stream.push", push_now, (const char *)(const void *)&args, status);
    if (!ended) memcpy(s->state, before, bytes);
    PyMem_Free(before);
    return ended;
}

/* push(x, n, lengths, last, y): writes y. Returns whether all tokens and lengths were in range; if not, nothing
 * changes. */
static PyObject *push(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    stream_object *const self = (stream_object *)object;
    const program *const p = &self->model->program;
    const int type = self->model->run->number == sizeof(double) ? NPY_FLOAT64 : NPY_FLOAT32;
    rot_array x, y, lengths = {0};
    if (count != 5) return PyErr_Format(PyExc_TypeError, "Stream.push: takes 5 arguments, got %zd", count);
    const int64_t B = self->stream->batch, most_steps = INT64_MAX >> 32;
    int64_t n;
    if (!take_integer("Stream.push", "n", args[1], 0, most_steps / B, &n)) return NULL;
    const bool ragged = args[2] != Py_None, last = args[3] == Py_True;
    const char *wrong = NULL;
    if (!fits(args[0], &x, p->tokens ? NPY_INT64 : type, B * n * (p->tokens ? 1 : p->inputs)))
        wrong = "x";
    else if (!fits(args[4], &y, type, B * (p->pool || last ? 1 : n) * p->outputs) || !y.writeable)
        wrong = "y";
    else if (ragged && !fits(args[2], &lengths, NPY_INT64, B))
        wrong = "lengths";
    if (wrong)
        return PyErr_Format(PyExc_ValueError, "Stream.push: %s does not have the dtype and size of the stream", wrong);
    if (!enter(self, "push")) return NULL;
    int status = ROTRNN_NO_MEMORY;
    bool ended = !p->tokens || narrow(self, x.data, B * n);
    const pushed call = {.features = p->tokens ? NULL : x.data,
                         .tokens = p->tokens ? self->tokens : NULL,
                         .lengths = lengths.data,
                         .output = y.data,
                         .n = n,
                         .last = last};
    if (ended) ended = run_push(self, &call, &status);
    leave(self);
    if (!ended) return NULL;
    if (status == ROTRNN_FULL)
        return PyErr_Format(PyExc_OverflowError, "Stream.push: n is %lld, but a stream reads at most %lld steps",
                            (long long)n, (long long)MOST_STEPS);
    return PyBool_FromLong(status == ROTRNN_OK);
}

/* ------------------------------------------------------------------------------------------------------ the state */

/* Sets the sequences that a call's argument selects: one, or all if it is None. Returns false with an exception set. */
static bool part_of(const char *call, const rotrnn_stream *s, PyObject *which, int64_t *first, int64_t *sequences) {
    const bool all = which == Py_None;
    *first = 0;
    *sequences = all ? s->batch : 1;
    return all || take_integer(call, "sequence", which, 0, s->batch - 1, first);
}

static PyObject *reset(PyObject *object, PyObject *which) {
    stream_object *const self = (stream_object *)object;
    rotrnn_stream *const s = self->stream;
    int64_t first, sequences;
    if (!part_of("Stream.reset", s, which, &first, &sequences) || !enter(self, "reset")) return NULL;
    (void)(which == Py_None ? rotrnn_stream_reset(s) : rotrnn_sequence_reset(s, first));
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *state(PyObject *object, PyObject *which) {
    stream_object *const self = (stream_object *)object;
    const rotrnn_stream *const s = self->stream;
    int64_t first, sequences;
    if (!part_of("Stream.state", s, which, &first, &sequences) || !enter(self, "state")) return NULL;
    const char *const from = (const char *)s->state + first * s->state_bytes;
    PyObject *const bytes = PyBytes_FromStringAndSize(from, (Py_ssize_t)(sequences * s->state_bytes));
    leave(self);
    return bytes;
}

static PyObject *restore(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    stream_object *const self = (stream_object *)object;
    rotrnn_stream *const s = self->stream;
    int64_t first, sequences;
    char *bytes;
    Py_ssize_t size;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "Stream.restore: takes 2 arguments, got %zd", count);
    if (PyBytes_AsStringAndSize(args[0], &bytes, &size) < 0) return NULL;
    if (!part_of("Stream.restore", s, args[1], &first, &sequences)) return NULL;
    const int64_t expected = sequences * s->state_bytes;
    if (size != expected)
        return PyErr_Format(PyExc_ValueError, "Stream.restore: state has %zd bytes, expected %lld", size,
                            (long long)expected);
    const int64_t wrong = stream_refuses(s, bytes, sequences);
    if (wrong >= 0)
        return PyErr_Format(PyExc_ValueError,
                            "Stream.restore: state of sequence %lld has a number of steps that is out of range",
                            (long long)(first + wrong));
    if (!enter(self, "restore")) return NULL;
    memcpy((char *)s->state + first * s->state_bytes, bytes, (size_t)size);
    leave(self);
    Py_RETURN_NONE;
}

/* A list with a count for each sequence. */
static PyObject *counts(stream_object *self, const char *call, int64_t (*count)(const rotrnn_stream *, int64_t)) {
    const int64_t B = self->stream->batch;
    if (!enter(self, call)) return NULL;
    PyObject *list = PyList_New((Py_ssize_t)B);
    for (int64_t b = 0; list && b < B; b++) {
        PyObject *const one = PyLong_FromLongLong(count(self->stream, b));
        if (one)
            PyList_SET_ITEM(list, (Py_ssize_t)b, one);
        else
            Py_CLEAR(list);
    }
    leave(self);
    return list;
}

static PyObject *steps(PyObject *object, PyObject *ignored) {
    (void)ignored;
    return counts((stream_object *)object, "steps", rotrnn_sequence_steps);
}

static PyObject *unsettled(PyObject *object, PyObject *ignored) {
    (void)ignored;
    return counts((stream_object *)object, "unsettled", rotrnn_sequence_unsettled);
}

static PyMethodDef METHODS[] = {
    {"push", (PyCFunction)(void (*)(void))push, METH_FASTCALL,
     "push(x, n, lengths, last, y): reads n steps and writes y; returns whether tokens and lengths were in range."},
    {"reset", reset, METH_O, "reset(sequence): returns to the state before the first step; all sequences if None."},
    {"state", state, METH_O, "state(sequence): the state of a sequence; of all if None."},
    {"restore", (PyCFunction)(void (*)(void))restore, METH_FASTCALL,
     "restore(state, sequence): continues from a result of state(sequence)."},
    {"steps", steps, METH_NOARGS, "steps(): the number of steps that each sequence has read."},
    {"unsettled", unsettled, METH_NOARGS, "unsettled(): how often each sequence reached no fixed point in a step."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, (void *)(uintptr_t)new_stream}, /* NOLINT: the C API's own idiom */
    {Py_tp_dealloc, (void *)(uintptr_t)free_stream},
    {Py_tp_methods, METHODS},
    {Py_tp_doc, "Stream(facts, arrays, batch, half): a stream of the C library, from the contents of a model's file."},
    {0, NULL},
};

static PyType_Spec SPEC = {
    .name = "rotrnn._cpu.Stream",
    .basicsize = sizeof(stream_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SLOTS,
};

/* Adds the instructions of lines as the tuple LINES. */
static int add_lines(PyObject *module) {
    PyObject *const lines = PyTuple_New(line_count());
    for (int i = 0; lines && i < line_count(); i++) {
        PyObject *const name = PyUnicode_FromString(line_name(i));
        if (!name || PyTuple_SetItem(lines, i, name) < 0) {
            Py_DECREF(lines);
            return -1;
        }
    }
    const int status = PyModule_AddObjectRef(module, "LINES", lines);
    Py_XDECREF(lines);
    return status;
}

int add_stream(PyObject *module) {
    PyObject *const type = PyType_FromModuleAndSpec(module, &SPEC, NULL);
    const int status = type ? PyModule_AddObjectRef(module, "Stream", type) : -1;
    Py_XDECREF(type);
    return status < 0 ? status : add_lines(module);
}
