/* Any bytes as a saved cache: refused with a message and the cache unchanged, or loaded and usable.  The method is the
 * one that the bytes name, and their checksum is put right, so that mutations get past both. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kv/save.h"
#include "kv_shape.h"
#include "support/calibration.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* A name of up to 31 bytes with its length before it; "" where there is none.  Returns where it ends. */
static size_t name_at(const uint8_t *bytes, size_t n_bytes, size_t at, char name[32])
{
    uint32_t n = 0;
    name[0] = '\0';
    if (n_bytes >= at + 4)
        memcpy(&n, bytes + at, 4);
    if (n == 0 || n >= 32 || n_bytes < at + 4 + n)
        return at + 4;
    memcpy(name, bytes + at + 4, n);
    name[n] = '\0';
    return at + 4 + n;
}

/* The names of the policy and of the first method, at their places in every file. */
static void names_of(const uint8_t *bytes, size_t n_bytes, char policy[32], char method[32])
{
    enum { AT = 8 + 4 + 4 + 11 * 8, POLICY_NUMBERS = 8 + 5 * 4 };
    size_t at = name_at(bytes, n_bytes, AT, policy);
    uint32_t n_options = 0;
    if (policy[0] && n_bytes >= at + 4) {
        memcpy(&n_options, bytes + at, 4);
        at += 4 + (size_t)(n_options & 15) * 8 + POLICY_NUMBERS;
    }
    name_at(bytes, n_bytes, at, method);
    if (!method[0])
        strcpy(method, "f16");
}

static void add_rows(vq_kv *kv, uint32_t n)
{
    static float x[SHAPE_BATCH * SHAPE_HEADS * SHAPE_DIM], out[SHAPE_BATCH * SHAPE_HEADS * SHAPE_DIM];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        x[i] = (float)(i % 17) - 8;
    for (uint32_t l = 0; l < SHAPE_LAYERS; l++) {
        uint32_t pos[200];
        const uint32_t held = vq_kv_read(kv, l, 0, NULL, NULL, pos); /* the last one may have been evicted */
        if (vq_kv_append(kv, l, held ? pos[held - 1] + 1 : 7, x, x, n, NULL) == VQ_OK &&
            vq_kv_attend(kv, l, x, n, out, NULL) != VQ_OK)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char method[32], policy[32], evict[64];
    names_of(bytes, n_bytes, policy, method);
    vq_kv_params p = shape_params(method);
    if (policy[0]) {
        snprintf(evict, sizeof evict, "%s:%s", policy, SHAPE_EVICT);
        p.evict = evict;
    }
    p.calibration = toy_calibration_of(&p);
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
    vq_kv_compact(kv, VQ_KV_DECODE, NULL);
    add_rows(kv, 3);
    vq_kv_close(kv);
    free(copy);
    return 0;
}
