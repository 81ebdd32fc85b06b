/* The bounded reader.  Bytes are put together one by one, so it reads little-endian on any machine and at any
 * alignment; compilers make one load of it. */
#include "base/cursor.h"

#include <string.h>

vq_cursor vq_cursor_make(const void *bytes, size_t n_bytes)
{
    static const uint8_t nothing[1] = {0}; /* so that an empty range has pointers to subtract */
    const uint8_t *start = n_bytes ? bytes : nothing;
    return (vq_cursor){.start = start, .at = start, .end = start + n_bytes};
}

const uint8_t *vq_cursor_take(vq_cursor *c, uint64_t n_bytes)
{
    if (c->bad || n_bytes > (uint64_t)(c->end - c->at)) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += n_bytes;
    return p;
}

uint64_t vq_cursor_left(const vq_cursor *c) { return (uint64_t)(c->end - c->at); }

uint64_t vq_cursor_offset(const vq_cursor *c) { return (uint64_t)(c->at - c->start); }

static uint64_t little_endian(const uint8_t *p, unsigned n)
{
    uint64_t x = 0;
    for (unsigned i = 0; p && i < n; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

uint8_t vq_cursor_u8(vq_cursor *c) { return (uint8_t)little_endian(vq_cursor_take(c, 1), 1); }

uint16_t vq_cursor_u16(vq_cursor *c) { return (uint16_t)little_endian(vq_cursor_take(c, 2), 2); }

uint32_t vq_cursor_u32(vq_cursor *c) { return (uint32_t)little_endian(vq_cursor_take(c, 4), 4); }

uint64_t vq_cursor_u64(vq_cursor *c) { return little_endian(vq_cursor_take(c, 8), 8); }

float vq_cursor_f32(vq_cursor *c)
{
    const uint32_t bits = vq_cursor_u32(c);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double vq_cursor_f64(vq_cursor *c)
{
    const uint64_t bits = vq_cursor_u64(c);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
