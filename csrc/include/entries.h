/* The table of entries that one compiled variant offers to module.c. Knows nothing of Python.
 *
 * A signature has one letter an argument, in order; module.c checks and unpacks each into a slot:
 *   r R  array of the variant's dtype, read            w W  the same, written
 *   i I  int64 array, read                             j J  the same, written
 *   b B  uint8 array, read                             c C  the same, written
 *   e E  float64 array, written                        f F  the same, read
 *   n    integer                                       d    floating-point number
 * A capital letter may be None (NULL in the slot).
 */
#ifndef ROT_ENTRIES_H
#define ROT_ENTRIES_H

#include <stdint.h>

typedef union {
    void *p;
    int64_t n;
    double d;
} rot_slot;

typedef struct {
    const char *name;
    const char *signature;
    int (*call)(const rot_slot *s);
} rot_entry;

enum { ROT_MAX_SLOTS = 64 };

#endif
