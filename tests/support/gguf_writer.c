#include "support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    uint8_t *at;
    size_t n, room;
} bytes;

struct gguf_writer {
    uint32_t alignment;
    uint64_t n_values, n_tensors;
    uint64_t n_data; /* bytes of data, holes too */
    bytes values, tensors, data;
};

static void put(bytes *b, const void *from, size_t n)
{
    if (n > b->room - b->n) {
        b->room = 2 * b->room + n + 64;
        b->at = realloc(b->at, b->room);
        if (!b->at)
            abort();
    }
    if (n)
        memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_u32(bytes *b, uint32_t x) { put(b, &x, sizeof x); }

static void put_u64(bytes *b, uint64_t x) { put(b, &x, sizeof x); }

static void put_str(bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void pad(bytes *b, size_t alignment)
{
    while (b->n % alignment)
        put(b, "", 1);
}

gguf_writer *gguf_writer_new(uint32_t alignment)
{
    gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        abort();
    w->alignment = alignment;
    if (alignment != 32)
        gguf_add_u32(w, "general.alignment", alignment);
    return w;
}

void gguf_add_raw(gguf_writer *w, const char *key, uint32_t kind, const void *value, size_t n_bytes)
{
    put_str(&w->values, key);
    put_u32(&w->values, kind);
    put(&w->values, value, n_bytes);
    w->n_values++;
}

void gguf_add_u8(gguf_writer *w, const char *key, uint8_t x) { gguf_add_raw(w, key, VQ_GGUF_U8, &x, sizeof x); }

void gguf_add_i8(gguf_writer *w, const char *key, int8_t x) { gguf_add_raw(w, key, VQ_GGUF_I8, &x, sizeof x); }

void gguf_add_u16(gguf_writer *w, const char *key, uint16_t x) { gguf_add_raw(w, key, VQ_GGUF_U16, &x, sizeof x); }

void gguf_add_i16(gguf_writer *w, const char *key, int16_t x) { gguf_add_raw(w, key, VQ_GGUF_I16, &x, sizeof x); }

void gguf_add_u32(gguf_writer *w, const char *key, uint32_t x) { gguf_add_raw(w, key, VQ_GGUF_U32, &x, sizeof x); }

void gguf_add_i32(gguf_writer *w, const char *key, int32_t x) { gguf_add_raw(w, key, VQ_GGUF_I32, &x, sizeof x); }

void gguf_add_u64(gguf_writer *w, const char *key, uint64_t x) { gguf_add_raw(w, key, VQ_GGUF_U64, &x, sizeof x); }

void gguf_add_i64(gguf_writer *w, const char *key, int64_t x) { gguf_add_raw(w, key, VQ_GGUF_I64, &x, sizeof x); }

void gguf_add_f32(gguf_writer *w, const char *key, float x) { gguf_add_raw(w, key, VQ_GGUF_F32, &x, sizeof x); }

void gguf_add_f64(gguf_writer *w, const char *key, double x) { gguf_add_raw(w, key, VQ_GGUF_F64, &x, sizeof x); }

void gguf_add_bool(gguf_writer *w, const char *key, bool x) { gguf_add_raw(w, key, VQ_GGUF_BOOL, x ? "\1" : "\0", 1); }

void gguf_add_str(gguf_writer *w, const char *key, const char *text)
{
    gguf_add_raw(w, key, VQ_GGUF_STRING, NULL, 0);
    put_str(&w->values, text);
}

static void add_array_head(gguf_writer *w, const char *key, vq_gguf_kind kind, uint64_t n)
{
    gguf_add_raw(w, key, VQ_GGUF_ARRAY, NULL, 0);
    put_u32(&w->values, kind);
    put_u64(&w->values, n);
}

void gguf_add_array(gguf_writer *w, const char *key, vq_gguf_kind kind, uint64_t n, const void *values)
{
    static const uint8_t each[VQ_N_GGUF_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    add_array_head(w, key, kind, n);
    put(&w->values, values, n * each[kind]);
}

void gguf_add_strs(gguf_writer *w, const char *key, uint64_t n, const char *const *texts)
{
    add_array_head(w, key, VQ_GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_str(&w->values, texts[i]);
}

void gguf_add_tensor(gguf_writer *w, const char *name, vq_type type, uint32_t n_dims, const uint64_t *dims,
                     const void *data)
{
    uint64_t n_rows = 1;
    put_str(&w->tensors, name);
    put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_u64(&w->tensors, dims[i]);
        n_rows *= i ? dims[i] : 1;
    }
    const uint64_t n_bytes = n_rows * vq_type_row_bytes(type, dims[0]), over = w->n_data % w->alignment;
    w->n_data += over ? w->alignment - over : 0;
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, w->n_data);
    if (data) {
        pad(&w->data, w->alignment);
        put(&w->data, data, n_bytes);
    }
    w->n_data += n_bytes;
    w->n_tensors++;
}

uint64_t gguf_writer_total(const gguf_writer *w)
{
    const uint64_t head = 4 + 4 + 8 + 8 + w->values.n + w->tensors.n;
    return (head + w->alignment - 1) / w->alignment * w->alignment + w->n_data;
}

gguf_buffer gguf_writer_finish(gguf_writer *w)
{
    bytes file = {0};
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, w->n_tensors);
    put_u64(&file, w->n_values);
    put(&file, w->values.at, w->values.n);
    put(&file, w->tensors.at, w->tensors.n);
    pad(&file, w->alignment);
    put(&file, w->data.at, w->data.n);

    free(w->values.at);
    free(w->tensors.at);
    free(w->data.at);
    free(w);
    return (gguf_buffer){file.at, file.n};
}

bool gguf_buffer_save(gguf_buffer b, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    const bool ok = fwrite(b.bytes, 1, b.n_bytes, f) == b.n_bytes;
    return !fclose(f) && ok;
}
