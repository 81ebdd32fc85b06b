/* Writes the corpus of fuzz_kv_file: saved caches of every method, empty, of exact rows and of codes, and evicted ones
 * of policies that remember different things. To be run again when the format changes: corpus_kv_file
 * tests/fuzz/corpus/kv_file */
#include <stdio.h>

#include "kv_shape.h"
#include "support/calibration.h"

static float x[SHAPE_BATCH * SHAPE_DIM * SHAPE_HEADS], out[SHAPE_BATCH * SHAPE_DIM * SHAPE_HEADS];

static vq_status write_one(const char *path, const char *method, const char *evict, uint32_t n, vq_error *err)
{
    vq_kv_params p = shape_params(method);
    p.evict = evict;
    p.calibration = toy_calibration_of(&p);
    vq_kv *kv;
    vq_status status = vq_kv_open(&kv, &p, err);
    if (status != VQ_OK)
        return status;
    for (uint32_t l = 0; n > 0 && l < SHAPE_LAYERS && status == VQ_OK; l++) {
        status = vq_kv_append(kv, l, 0, x, x, n, err);
        if (status == VQ_OK)
            status = vq_kv_attend(kv, l, x, n, out, err);
    }
    if (status == VQ_OK)
        status = vq_kv_compact(kv, VQ_KV_PROMPT_END, err);
    if (status == VQ_OK)
        status = vq_kv_save(kv, path, err);
    vq_kv_close(kv);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    vq_error err;
    char path[512];
    static const uint32_t lengths[] = {0, 3, 100};
    for (size_t c = 0; c < vq_kv_n_codecs(); c++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            vq_kv_codec_info info;
            vq_kv_codec_at(c, &info);
            snprintf(path, sizeof path, "%s/%s_%u", argv[1], info.name, lengths[i]);
            const vq_status status = write_one(path, info.name, NULL, lengths[i], &err);
            if (status != VQ_OK) {
                fprintf(stderr, "corpus_kv_file: %s: %s\n", info.name, err.text);
                return 1;
            }
        }
    static const char *const evicted[][2] = {{"h2o", "int8"}, {"snapkv", "kivi"}, {"streaming", "f16"}};
    for (size_t i = 0; i < sizeof evicted / sizeof evicted[0]; i++) {
        char policy[64];
        snprintf(policy, sizeof policy, "%s:%s", evicted[i][0], SHAPE_EVICT);
        snprintf(path, sizeof path, "%s/evicted_%s_%s", argv[1], evicted[i][0], evicted[i][1]);
        if (write_one(path, evicted[i][1], policy, 140, &err) != VQ_OK) {
            fprintf(stderr, "corpus_kv_file: %s: %s\n", policy, err.text);
            return 1;
        }
    }
    return 0;
}
