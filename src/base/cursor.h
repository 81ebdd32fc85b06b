/* A bounded little-endian reader with a sticky error, for bytes from outside.  Parse on; test `bad` once at the end of
 * a record.  A failed take moves nothing and yields zeros. */
#ifndef VQ_BASE_CURSOR_H
#define VQ_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vq_cursor {
    const uint8_t *start, *at, *end;
    bool bad;
} vq_cursor;

vq_cursor vq_cursor_make(const void *bytes, size_t n_bytes);
const uint8_t *vq_cursor_take(vq_cursor *c, uint64_t n_bytes); /* NULL when fewer are left */
uint64_t vq_cursor_left(const vq_cursor *c);
uint64_t vq_cursor_offset(const vq_cursor *c);
uint8_t vq_cursor_u8(vq_cursor *c);
uint16_t vq_cursor_u16(vq_cursor *c);
uint32_t vq_cursor_u32(vq_cursor *c);
uint64_t vq_cursor_u64(vq_cursor *c);
float vq_cursor_f32(vq_cursor *c);
double vq_cursor_f64(vq_cursor *c);

#endif
