/* The table of kernels that the extension module reads. csrc/generate.py writes it (list.c) from csrc/kernels.list.
 * Does not depend on Python.
 */
#ifndef ROT_ENTRIES_H
#define ROT_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROT_READ, ROT_WRITE, ROT_INT, ROT_FLOAT };                  /* kinds of arguments */
enum { ROT_CALLS, ROT_INT64, ROT_UINT8, ROT_UINT16, ROT_FLOAT64 }; /* dtypes of arrays; ROT_CALLS: the call's dtype */
enum { ROT_IMMENSE = -2 }; /* in place of a size of 0: a kernel would loop over immense axes of an empty array */
enum { ROT_ARGS_BYTES = 640, ROT_MOST_ARGUMENTS = 64 }; /* limits for one kernel; list.c checks them */

typedef struct {
    const char *name, *shape; /* shape: as written in the list, for messages */
    size_t place;             /* offset in the kernel's struct of arguments */
    int kind, dtype;
    int64_t low, high; /* of an integer: the numbers allowed */
    bool optional;
    bool ranged; /* the array's numbers have a range (`ranges` below) */
} rot_argument;

/* The numbers allowed in an array. */
typedef struct {
    int64_t low, high;
} rot_range;

typedef struct {
    const char *name;
    const rot_argument *arguments;
    int count;
    void (*sizes)(int64_t *sizes, const void *args);     /* computes each array's size from the integers */
    void (*ranges)(rot_range *ranges, const void *args); /* the range of each array that has one, or NULL */
    const char *(*broken)(const void *args);             /* the first false condition, or NULL; may be NULL */
    bool lane;                                           /* compiled for complex dtypes, too */
} rot_kernel;

/* A constant, or one value of an enumeration. */
typedef struct {
    const char *group, *name; /* name: NULL for a constant */
    int64_t value;
} rot_number;

/* A kernel of one compiled variant, called with its struct of arguments. */
typedef int (*rot_call)(const void *args);

extern const rot_kernel ROT_LIST[];
extern const rot_number ROT_NUMBERS[];

#endif
