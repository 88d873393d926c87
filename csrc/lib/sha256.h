/* SHA-256 (FIPS 180-4). */
#ifndef ROT_SHA256_H
#define ROT_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

typedef struct {
    uint32_t state[8];
    uint64_t count; /* bytes so far */
    uint8_t block[64];
    void (*add_blocks)(uint32_t state[8], const uint8_t *from, size_t blocks);
} sha256;

void sha256_start(sha256 *s);
void sha256_add(sha256 *s, const void *bytes, size_t count);
void sha256_end(sha256 *s, uint8_t digest[SHA256_BYTES]);

#endif
