/* The file of a model: safetensors, with settings in its metadata (python/rotrnn/models/files.py has the format). */
#ifndef ROT_FILE_H
#define ROT_FILE_H

#include "json.h"
#include "sha256.h"

enum { MOST_AXES = 8 };

/* An array of the file. Its numbers are float or double, little-endian, and at no particular alignment. */
typedef struct {
    const char *name;
    const void *bytes;
    int64_t shape[MOST_AXES], count;
    int axes;
} file_array;

typedef struct {
    file_array *arrays; /* sorted by name */
    int64_t count;      /* number of arrays */
    int64_t numbers;    /* number of parameters */
    bool is_double;
    json *facts;
    uint8_t digest[SHA256_BYTES]; /* of the facts and arrays */
} file;

/* The length of the header, from the first bytes of a file; -1 with an error if they do not begin a model's file.
 */
int64_t header_length(const void *bytes, size_t size, rotrnn_error *error);

/* Reads and verifies the bytes of a file; `f` points into them. Other memory comes from the arena. */
bool file_read(file *f, arena *memory, const void *bytes, size_t size, rotrnn_error *error);

/* Sorts the arrays by name. */
void file_sort(file *f);

/* The array with this name, or NULL. */
file_array *file_find(const file *f, const char *name);

#endif
