/* Any bytes as a GGUF file: refused with a message, or open with everything in it readable. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint8_t sink;

static void touch(const void *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sink = sink ^ ((const uint8_t *)bytes)[i];
}

static void read_value(const vq_gguf *g, const vq_gguf_value *v)
{
    static const uint8_t each[VQ_N_GGUF_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    touch(v->key.at, v->key.n_bytes);
    if (v->array_kind == VQ_GGUF_STRING) {
        for (uint64_t i = 0; i < v->n; i++)
            touch(v->strings[i].at, v->strings[i].n_bytes);
    } else {
        touch(v->raw, v->n * each[v->array_kind]);
    }

    char *key = malloc(v->key.n_bytes + 1);
    if (!key)
        return;
    memcpy(key, v->key.at, v->key.n_bytes);
    key[v->key.n_bytes] = 0;
    if (vq_gguf_find(g, key) != v)
        abort(); /* keys are printable and unique: each is found */
    uint32_t u;
    float f;
    bool flag;
    vq_str s;
    vq_error err;
    vq_gguf_get_u32(g, key, &u, &err);
    vq_gguf_get_f32(g, key, &f, &err);
    vq_gguf_get_bool(g, key, &flag, &err);
    vq_gguf_get_str(g, key, &s, &err);
    free(key);
}

static void read_tensor(const vq_tensor *t)
{
    float out[16 * 256];
    const uint32_t block = vq_type_block_len(t->type);
    const uint64_t n_blocks = t->dims[0] / block;
    touch(t->name.at, t->name.n_bytes);
    touch(t->data, t->n_bytes);
    vq_type_dequantize(t->type, t->data, out, block * (n_blocks < 16 ? n_blocks : 16));
    sink = sink ^ (uint8_t)(out[0] > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    void *copy = malloc(n_bytes + !n_bytes); /* aligned, and of the exact size */
    if (!copy)
        return 0;
    if (n_bytes)
        memcpy(copy, bytes, n_bytes);

    vq_gguf *g;
    vq_error err;
    const vq_status status = vq_gguf_open_memory(&g, "input", copy, n_bytes, &err);
    if (status == VQ_OK) {
        for (uint64_t i = 0; i < vq_gguf_n_values(g); i++)
            read_value(g, vq_gguf_value_at(g, i));
        for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++)
            read_tensor(vq_gguf_tensor_at(g, i));
    } else if (g || err.status != status || strncmp(err.text, "input: ", 7)) {
        abort();
    }
    vq_gguf_close(g);
    free(copy);
    return 0;
}
