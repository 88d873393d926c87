#include "json.h"

#include <math.h>
#include <string.h>

typedef struct {
    const char *at, *end;
    arena *memory;
    rotrnn_error *error;
    char *strings; /* place of the next string: never longer than the rest of the text */
    json *free, *last_free;
} reader;

static json *bad(reader *r, const char *what) {
    failed(r->error, ROTRNN_DAMAGED, "the settings are not JSON: %s", what);
    return NULL;
}

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static bool take(reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static bool take_word(reader *r, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n)) return false;
    r->at += n;
    return true;
}

static int digit_at(const reader *r) { return r->at < r->end && *r->at >= '0' && *r->at <= '9' ? *r->at - '0' : -1; }

static json *new_value(reader *r) {
    enum { EACH = 256 };
    if (r->free == r->last_free) {
        r->free = arena_take(r->memory, EACH, sizeof(json));
        if (!r->free) {
            failed(r->error, ROTRNN_NO_MEMORY, "no memory for the settings");
            return NULL;
        }
        r->last_free = r->free + EACH;
    }
    return r->free++;
}

/* The four hexadecimal digits of an escape, or -1. */
static int32_t hex4(reader *r) {
    int32_t code = 0;
    if (r->end - r->at < 4) return -1;
    for (int i = 0; i < 4; i++, r->at++) {
        const char c = *r->at;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

static char *put_utf8(char *to, int32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const int lead[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (char)(lead[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; i--) *to++ = (char)(0x80 | (code >> (6 * i) & 0x3F));
    return to;
}

/* One escape after its backslash; NULL if it is invalid. An escape is longer than its UTF-8. */
static char *put_escape(reader *r, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return NULL;
    const char c = *r->at++;
    const char *const found = c ? strchr(names, c) : NULL;
    if (found) {
        *to++ = values[found - names];
        return to;
    }
    if (c != 'u') return NULL;
    int32_t code = hex4(r);
    if (code >= 0xD800 && code < 0xDC00 && take_word(r, "\\u")) {
        const int32_t low = hex4(r);
        if (low < 0xDC00 || low > 0xDFFF) return NULL;
        code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00);
    }
    return code < 0 || (code >= 0xD800 && code < 0xE000) ? NULL : put_utf8(to, code);
}

/* The string after its opening quote; writes its length if `length` is given. */
static const char *string_of(reader *r, size_t *length) {
    char *const text = r->strings, *to = text;
    while (r->at < r->end && *r->at != '"') {
        const char c = *r->at++;
        if ((unsigned char)c < 0x20) return bad(r, "a control character in a string"), NULL;
        if (c != '\\')
            *to++ = c;
        else if (!(to = put_escape(r, to)))
            return bad(r, "an unknown escape in a string"), NULL;
    }
    if (r->at == r->end) return bad(r, "a string without end"), NULL;
    r->at++;
    if (length) *length = (size_t)(to - text);
    *to++ = 0;
    r->strings = to;
    return text;
}

/* A number. Python writes the shortest digits that round-trip. Up to 15 digits and 10^22 the quotient or product here
 * is rounded once; beyond, the error is a few units in the last place. No strtod: it depends on the locale. */
static json *number_of(reader *r, json *value) {
    const bool negative = take_word(r, "-");
    double mantissa = 0, exponent = 0;
    int64_t integer = 0;
    bool whole = true;
    if (digit_at(r) < 0) return bad(r, "an unknown value");
    for (int digit; (digit = digit_at(r)) >= 0; r->at++) {
        mantissa = mantissa * 10 + digit;
        whole = whole && !__builtin_mul_overflow(integer, 10, &integer) &&
                !__builtin_add_overflow(integer, digit, &integer);
    }
    if (take_word(r, ".")) {
        whole = false;
        if (digit_at(r) < 0) return bad(r, "a number without digits after its point");
        for (int digit; (digit = digit_at(r)) >= 0; r->at++) mantissa = mantissa * 10 + digit, exponent--;
    }
    if (take_word(r, "e") || take_word(r, "E")) {
        whole = false;
        const bool down = take_word(r, "-");
        if (!down) (void)take_word(r, "+");
        if (digit_at(r) < 0) return bad(r, "a number without digits in its exponent");
        double power = 0;
        for (int digit; (digit = digit_at(r)) >= 0; r->at++) power = power > 1e6 ? power : power * 10 + digit;
        exponent += down ? -power : power;
    }
    const double size = exponent < 0 ? mantissa / pow(10, -exponent) : mantissa * pow(10, exponent);
    if (!whole) integer = 0; /* what an overflow left may have no negative */
    value->kind = JSON_NUMBER;
    value->whole = whole;
    value->integer = negative ? -integer : integer;
    value->number = negative ? -size : size;
    return isfinite(size) ? value : bad(r, "a number that is too large");
}

static json *value_of(reader *r, int depth);

/* The members of an object or a list, after its opening bracket. */
static json *members_of(reader *r, json *value, char close, int depth) {
    json **next = &value->first;
    if (depth == JSON_DEEPEST) return bad(r, "nested too deep");
    if (take(r, close)) return value;
    do {
        const char *key = NULL;
        if (close == '}') {
            if (!take(r, '"')) return bad(r, "a member without a name");
            if (!(key = string_of(r, NULL))) return NULL;
            if (!take(r, ':')) return bad(r, "a member without a value");
        }
        json *const member = value_of(r, depth + 1);
        if (!member) return NULL;
        member->key = key;
        *next = member;
        next = &member->next;
    } while (take(r, ','));
    return take(r, close) ? value : bad(r, "a bracket that is not closed");
}

static json *value_of(reader *r, int depth) {
    json *const value = new_value(r);
    if (!value) return NULL;
    skip_space(r);
    if (take(r, '{')) {
        value->kind = JSON_OBJECT;
        return members_of(r, value, '}', depth);
    }
    if (take(r, '[')) {
        value->kind = JSON_LIST;
        return members_of(r, value, ']', depth);
    }
    if (take(r, '"')) {
        value->kind = JSON_STRING;
        value->text = string_of(r, &value->length);
        return value->text ? value : NULL;
    }
    if (take_word(r, "null")) return value->kind = JSON_NULL, value;
    if (take_word(r, "true")) return value->kind = JSON_TRUE, value;
    if (take_word(r, "false")) return value->kind = JSON_FALSE, value;
    return number_of(r, value);
}

json *json_read(arena *a, const char *text, size_t size, rotrnn_error *error) {
    reader r = {.at = text, .end = text + size, .memory = a, .error = error};
    r.strings = size < INT64_MAX - 1 ? arena_take(a, (int64_t)size + 1, 1) : NULL;
    if (!r.strings) {
        failed(error, ROTRNN_NO_MEMORY, "no memory for the settings");
        return NULL;
    }
    json *const value = value_of(&r, 0);
    skip_space(&r);
    return value && r.at != r.end ? bad(&r, "text after the end") : value;
}

json *json_member(const json *object, const char *key) {
    if (!object || object->kind != JSON_OBJECT) return NULL;
    for (json *one = object->first; one; one = one->next) {
        if (strcmp(one->key, key)) continue;
        one->used = true;
        return one;
    }
    return NULL;
}

bool json_is(const json *value, const char *text) {
    return value && value->kind == JSON_STRING && !strcmp(value->text, text);
}
