/* Writes GGUF files in memory, for tests.  Runs out of memory or finds a misuse: aborts.
 *
 *     gguf_writer *w = gguf_writer_new(32);
 *     gguf_add_str(w, "general.architecture", "llama");
 *     gguf_add_tensor(w, "token_embd.weight", VQ_TYPE_F32, 2, (uint64_t[]){32, 288}, data);
 *     gguf_buffer b = gguf_writer_finish(w);      // frees w; b.bytes is freed with free()
 */
#ifndef TESTS_SUPPORT_GGUF_WRITER_H
#define TESTS_SUPPORT_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/gguf.h"

typedef struct gguf_buffer {
    uint8_t *bytes; /* aligned for vq_gguf_open_memory; freed with free() */
    size_t n_bytes;
} gguf_buffer;

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_new(uint32_t alignment); /* 32 is the format's default; another one becomes a key */

void gguf_add_u8(gguf_writer *w, const char *key, uint8_t x);
void gguf_add_i8(gguf_writer *w, const char *key, int8_t x);
void gguf_add_u16(gguf_writer *w, const char *key, uint16_t x);
void gguf_add_i16(gguf_writer *w, const char *key, int16_t x);
void gguf_add_u32(gguf_writer *w, const char *key, uint32_t x);
void gguf_add_i32(gguf_writer *w, const char *key, int32_t x);
void gguf_add_u64(gguf_writer *w, const char *key, uint64_t x);
void gguf_add_i64(gguf_writer *w, const char *key, int64_t x);
void gguf_add_f32(gguf_writer *w, const char *key, float x);
void gguf_add_f64(gguf_writer *w, const char *key, double x);
void gguf_add_bool(gguf_writer *w, const char *key, bool x);
void gguf_add_str(gguf_writer *w, const char *key, const char *text);
/* An array of fixed-size values, as they lie in memory. */
void gguf_add_array(gguf_writer *w, const char *key, vq_gguf_kind kind, uint64_t n, const void *values);
void gguf_add_strs(gguf_writer *w, const char *key, uint64_t n, const char *const *texts);
/* Any value, byte for byte: what follows the kind. */
void gguf_add_raw(gguf_writer *w, const char *key, uint32_t kind, const void *bytes, size_t n_bytes);

/* Copies the data.  NULL: a hole, of which only the size counts; then all tensors of the file are holes, and what
 * finish gives is the head of a file of gguf_writer_total bytes. */
void gguf_add_tensor(gguf_writer *w, const char *name, vq_type type, uint32_t n_dims, const uint64_t *dims,
                     const void *data);

gguf_buffer gguf_writer_finish(gguf_writer *w);
uint64_t gguf_writer_total(const gguf_writer *w); /* bytes of the whole file; before finish */

/* Writes a buffer to a file; true when all of it arrived. */
bool gguf_buffer_save(gguf_buffer b, const char *path);

#endif
