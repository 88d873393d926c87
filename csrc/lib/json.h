/* A reader of JSON (RFC 8259): text to a tree. It terminates for any bytes, and nests no deeper than JSON_DEEPEST.
 */
#ifndef ROT_JSON_H
#define ROT_JSON_H

#include "memory.h"

enum { JSON_DEEPEST = 64 };

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT } json_kind;

typedef struct json {
    json_kind kind;
    bool used;  /* whether json_member found it */
    bool whole; /* a number without fraction or exponent that fits into `integer` */
    int64_t integer;
    double number;
    const char *key, *text; /* UTF-8 with a zero at the end: the name of a member, the value of a string */
    size_t length;          /* bytes of `text`, which may contain zeros */
    struct json *first, *next;
} json;

/* Returns the value of a text, allocated in the arena; NULL with an error if the text is no JSON. */
json *json_read(arena *a, const char *text, size_t size, rotrnn_error *error);

/* Returns the member of an object, and marks it as used; NULL if there is none, or `object` is NULL or no object. */
json *json_member(const json *object, const char *key);

bool json_is(const json *value, const char *text);

#endif
