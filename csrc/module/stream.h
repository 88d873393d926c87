/* The type rotrnn._cpu.Stream. */
#ifndef ROT_MODULE_STREAM_H
#define ROT_MODULE_STREAM_H

#include "door.h"

/* Adds the type to the module. Returns -1 with an exception set, or 0. */
int add_stream(PyObject *module);

#endif
