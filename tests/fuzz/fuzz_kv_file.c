/* Any bytes as a saved cache: refused with a message and the cache unchanged, or loaded and usable.  The method is the
 * one that the bytes name, and their checksum is put right, so that mutations get past both. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kv/save.h"
#include "kv_shape.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* The name of the first method, at its place in every file; "f16" where there is none. */
static void method_of(const uint8_t *bytes, size_t n_bytes, char name[32])
{
    enum { AT = 8 + 4 + 4 + 11 * 8 };
    uint32_t n = 0;
    if (n_bytes >= AT + 4)
        memcpy(&n, bytes + AT, 4);
    strcpy(name, "f16");
    if (n > 0 && n < 32 && n_bytes >= AT + 4 + n) {
        memcpy(name, bytes + AT + 4, n);
        name[n] = '\0';
    }
}

static void add_rows(vq_kv *kv, uint32_t n)
{
    static float x[SHAPE_BATCH * SHAPE_HEADS * SHAPE_DIM], out[SHAPE_BATCH * SHAPE_HEADS * SHAPE_DIM];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        x[i] = (float)(i % 17) - 8;
    for (uint32_t l = 0; l < SHAPE_LAYERS; l++) {
        uint32_t pos[200];
        const uint32_t held = vq_kv_read(kv, l, 0, NULL, NULL, pos);
        if (vq_kv_append(kv, l, held ? pos[held - 1] + 1 : 7, x, x, n, NULL) == VQ_OK &&
            vq_kv_attend(kv, l, x, n, out, NULL) != VQ_OK)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char method[32];
    method_of(bytes, n_bytes, method);
    const vq_kv_params p = shape_params(method);
    vq_kv *kv;
    vq_error err = {0};
    if (vq_kv_open(&kv, &p, &err) != VQ_OK)
        return 0;
    uint8_t *copy = malloc(n_bytes + 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, n_bytes);
    if (n_bytes >= 8) {
        const uint64_t sum = XXH64(copy, n_bytes - 8, 0);
        memcpy(copy + n_bytes - 8, &sum, 8);
    }
    add_rows(kv, 5);
    const vq_status status = vq_kv_restore(kv, "fuzz", copy, n_bytes, NULL, &err);
    if (status != VQ_OK && (vq_kv_n_rows(kv, 0) != 5 || vq_kv_n_rows(kv, 1) != 5 || !err.text[0]))
        abort();
    static float x[200 * SHAPE_DIM];
    for (uint32_t l = 0; l < SHAPE_LAYERS; l++)
        vq_kv_read(kv, l, 0, x, x, NULL);
    vq_kv_bytes measured;
    vq_kv_measure(kv, &measured);
    add_rows(kv, 1);
    vq_kv_truncate(kv, vq_kv_n_rows(kv, 0) / 2 + 20, NULL);
    add_rows(kv, 40);
    vq_kv_close(kv);
    free(copy);
    return 0;
}
