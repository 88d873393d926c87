#include "file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuts.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "librotrnn reads its files on little-endian processors"
#endif

enum { LENGTH = 8 };                                      /* bytes of the header's length, in front of the header */
enum { SHORTEST_HEADER = 2, LONGEST_HEADER = 100000000 }; /* "{}", and the limit of safetensors */

static const char METADATA[] = "__metadata__", KEY[] = "rotrnn"; /* a member of the header, and one of it */
static const char DERIVED[] = "program."; /* prefix of the names of arrays that are not parameters */
enum { FORMAT = 2, MODEL_FORMAT = 1, DIGITS = 2 * SHA256_BYTES };

/* The data of the file, after the header. */
typedef struct {
    const char *at;
    int64_t size;
} data;

static bool is_count(const json *value) { return value && value->whole && value->integer >= 0; }

/* One member of the header: {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}. Its end is in the data
 * (is_whole). */
static bool read_array(file_array *array, const json *entry, const char *dtype, data d, rotrnn_error *error) {
    const int64_t bytes = !strcmp(dtype, "F64") ? sizeof(double) : sizeof(float);
    const json *const shape = json_member(entry, "shape"), *const offsets = json_member(entry, "data_offsets");
    *array = (file_array){.name = entry->key, .count = 1};
    if (!json_is(json_member(entry, "dtype"), dtype))
        return failed(error, ROTRNN_UNSUPPORTED, "%.80s does not have dtype %s: expected one of F32 and F64 for all",
                      entry->key, dtype);
    if (!shape || shape->kind != JSON_LIST || !offsets || offsets->kind != JSON_LIST)
        return failed(error, ROTRNN_DAMAGED, "%.80s has no shape or no place", entry->key);
    for (const json *axis = shape->first; axis; axis = axis->next) {
        if (!is_count(axis) || array->axes == MOST_AXES ||
            __builtin_mul_overflow(array->count, axis->integer, &array->count))
            return failed(error, ROTRNN_DAMAGED, "%.80s has no shape of at most %d axes", entry->key, MOST_AXES);
        array->shape[array->axes++] = axis->integer;
    }
    const json *const from = offsets->first, *const to = from ? from->next : NULL;
    int64_t size;
    if (!is_count(from) || !is_count(to) || from->integer > to->integer ||
        __builtin_mul_overflow(array->count, bytes, &size) || to->integer - from->integer != size)
        return failed(error, ROTRNN_DAMAGED, "%.80s does not lie in the file with the size of its shape", entry->key);
    array->bytes = d.at + from->integer;
    return true;
}

/* Whether the file has all the data that its header lists. */
static bool is_whole(const json *header, data d, size_t size, rotrnn_error *error) {
    int64_t end = 0;
    for (const json *one = header->first; one; one = one->next) {
        const json *const offsets = json_member(one, "data_offsets"), *const from = offsets ? offsets->first : NULL;
        if (from && is_count(from->next)) end = most(end, from->next->integer);
    }
    return end <= d.size || failed(error, ROTRNN_DAMAGED, "cut off: has %zu bytes, its header asks for %llu", size,
                                   (unsigned long long)end + size - (unsigned long long)d.size);
}

static int by_place(const void *a, const void *b) {
    const file_array *const x = a, *const y = b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes)
                                : (x->count > y->count) - (x->count < y->count); /* empty ones first */
}

/* Whether the arrays fill the data, one after the other. Sorts them by place. */
static bool fill(file *f, data d, rotrnn_error *error) {
    const char *next = d.at;
    qsort(f->arrays, (size_t)f->count, sizeof *f->arrays, by_place);
    for (int64_t i = 0; i < f->count; i++) {
        if (f->arrays[i].bytes != next)
            return failed(error, ROTRNN_DAMAGED, "%.80s does not begin where the array before it ends",
                          f->arrays[i].name);
        next += f->arrays[i].count * (f->is_double ? (int64_t)sizeof(double) : (int64_t)sizeof(float));
    }
    const int64_t left = d.at + d.size - next;
    if (left) return failed(error, ROTRNN_DAMAGED, "%lld bytes follow the last array, expected none", (long long)left);
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const file_array *)a)->name, ((const file_array *)b)->name);
}

void file_sort(file *f) { qsort(f->arrays, (size_t)f->count, sizeof *f->arrays, by_name); }

/* Adds "\0NAME DTYPE SHAPE\0" and the bytes of an array, with dtype and shape as Python writes them. */
static void add_to_digest(sha256 *s, const file_array *array, bool is_double) {
    char text[32 * (MOST_AXES + 1)];
    size_t n = (size_t)snprintf(text, sizeof text, " <f%d (", is_double ? 8 : 4);
    for (int i = 0; i < array->axes; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i ? ", " : "", (long long)array->shape[i]);
    n += (size_t)snprintf(text + n, sizeof text - n, array->axes == 1 ? ",)" : ")");
    sha256_add(s, "", 1);
    sha256_add(s, array->name, strlen(array->name));
    sha256_add(s, text, n + 1);
    sha256_add(s, array->bytes, (size_t)array->count * (is_double ? sizeof(double) : sizeof(float)));
}

static bool verify(file *f, const json *text, rotrnn_error *error) {
    static const char digits[] = "0123456789abcdef";
    const size_t before = DIGITS + 1;
    char expected[DIGITS];
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, text->text + before, text->length - before);
    for (int64_t i = 0; i < f->count; i++) add_to_digest(&s, f->arrays + i, f->is_double);
    sha256_end(&s, f->digest);
    for (int i = 0; i < SHA256_BYTES; i++) {
        expected[2 * i] = digits[f->digest[i] >> 4];
        expected[2 * i + 1] = digits[f->digest[i] & 15];
    }
    if (memcmp(text->text, expected, sizeof expected))
        return failed(error, ROTRNN_DAMAGED, "the content does not match its checksum: damaged or changed");
    return true;
}

static bool all_finite(const file_array *array, bool is_double) {
    for (int64_t i = 0; i < array->count; i++) {
        double wide;
        float narrow;
        if (is_double)
            memcpy(&wide, (const char *)array->bytes + i * (int64_t)sizeof wide, sizeof wide);
        else
            memcpy(&narrow, (const char *)array->bytes + i * (int64_t)sizeof narrow, sizeof narrow),
                wide = (double)narrow;
        if (!isfinite(wide)) return false;
    }
    return true;
}

/* `text` is the value in the metadata: a SHA-256 in hexadecimal, a space, and the facts as JSON. */
static bool read_facts(file *f, arena *memory, const json *text, rotrnn_error *error) {
    const size_t before = DIGITS + 1;
    if (!text || text->kind != JSON_STRING || text->length < before || text->text[DIGITS] != ' ')
        return failed(error, ROTRNN_DAMAGED, "the metadata have no \"%s\": not a file of rotrnn", KEY);
    f->facts = json_read(memory, text->text + before, text->length - before, error);
    if (f->facts && !json_member(f->facts, "model"))
        return failed(error, ROTRNN_DAMAGED, "not a model: expected a file that a model's save wrote");
    return f->facts;
}

static bool check_format(const file *f, rotrnn_error *error) {
    const json *const format = json_member(f->facts, "format"), *const of_model = json_member(f->facts, "model_format");
    if (!is_count(format) || format->integer != FORMAT || !is_count(of_model) || of_model->integer != MODEL_FORMAT)
        return failed(error, ROTRNN_UNSUPPORTED, "not of format %d and model_format %d, which this version reads",
                      FORMAT, MODEL_FORMAT);
    return true;
}

int64_t header_length(const void *bytes, size_t size, rotrnn_error *error) {
    uint64_t length = 0;
    if (size >= LENGTH) memcpy(&length, bytes, LENGTH);
    if (size < LENGTH)
        failed(error, ROTRNN_DAMAGED, "%zu bytes are too few for a model's file", size);
    else if (length < SHORTEST_HEADER || length > LONGEST_HEADER)
        failed(error, ROTRNN_DAMAGED, "not a safetensors file: its header would have %llu bytes, expected %d to %d",
               (unsigned long long)length, SHORTEST_HEADER, LONGEST_HEADER);
    else
        return (int64_t)length;
    return -1;
}

bool file_read(file *f, arena *memory, const void *bytes, size_t size, rotrnn_error *error) {
    *f = (file){0};
    const int64_t length = header_length(bytes, size, error);
    if (length < 0) return false;
    if ((size_t)length > size - LENGTH)
        return failed(error, ROTRNN_DAMAGED, "cut off, or not a safetensors file: its header would have %lld bytes",
                      (long long)length);
    const char *const text = (const char *)bytes + LENGTH;
    const json *const header = json_read(memory, text, (size_t)length, error);
    if (!header) return false;
    if (header->kind != JSON_OBJECT) return failed(error, ROTRNN_DAMAGED, "the header is not a JSON object");
    const data d = {text + length, (int64_t)(size - LENGTH - (size_t)length)};
    const json *const value = json_member(json_member(header, METADATA), KEY);
    if (!read_facts(f, memory, value, error) || !is_whole(header, d, size, error)) return false;
    for (const json *one = header->first; one; one = one->next) f->count++;
    f->arrays = arena_take(memory, f->count, sizeof *f->arrays);
    if (!f->arrays) return failed(error, ROTRNN_NO_MEMORY, "no memory for the list of arrays");
    f->count = 0;
    for (const json *one = header->first; one; one = one->next) {
        if (!strcmp(one->key, METADATA)) continue;
        if (!f->count) f->is_double = json_is(json_member(one, "dtype"), "F64");
        if (!read_array(f->arrays + f->count, one, f->is_double ? "F64" : "F32", d, error)) return false;
        const bool derived = !strncmp(one->key, DERIVED, sizeof DERIVED - 1);
        if (!derived && __builtin_add_overflow(f->numbers, f->arrays[f->count].count, &f->numbers))
            return failed(error, ROTRNN_DAMAGED, "the arrays have too many numbers");
        f->count++;
    }
    if (!fill(f, d, error)) return false;
    file_sort(f);
    if (!verify(f, value, error)) return false;
    for (int64_t i = 0; i < f->count; i++)
        if (!all_finite(f->arrays + i, f->is_double))
            return failed(error, ROTRNN_DAMAGED, "%.80s has values that are not finite", f->arrays[i].name);
    return check_format(f, error);
}

file_array *file_find(const file *f, const char *name) {
    const file_array wanted = {.name = name};
    return bsearch(&wanted, f->arrays, (size_t)f->count, sizeof *f->arrays, by_name);
}
