/* Writes the corpus of fuzz_kv_file: saved caches of every method, empty, of exact rows and of codes. To be run again
 * when the format changes:  corpus_kv_file tests/fuzz/corpus/kv_file */
#include <stdio.h>

#include "kv_shape.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    static const uint32_t lengths[] = {0, 3, 100};
    static float x[SHAPE_BATCH * SHAPE_DIM];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    for (size_t c = 0; c < vq_kv_n_codecs(); c++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            vq_kv_codec_info info;
            vq_kv_codec_at(c, &info);
            const vq_kv_params p = shape_params(info.name);
            vq_kv *kv;
            vq_error err;
            char path[512];
            snprintf(path, sizeof path, "%s/%s_%u", argv[1], info.name, lengths[i]);
            if (vq_kv_open(&kv, &p, &err) != VQ_OK)
                goto failed;
            for (uint32_t l = 0; lengths[i] > 0 && l < SHAPE_LAYERS; l++)
                if (vq_kv_append(kv, l, 0, x, x, lengths[i], &err) != VQ_OK)
                    goto failed;
            if (vq_kv_save(kv, path, &err) != VQ_OK)
                goto failed;
            vq_kv_close(kv);
            continue;
        failed:
            fprintf(stderr, "corpus_kv_file: %s: %s\n", info.name, err.text);
            return 1;
        }
    return 0;
}
