/* Any bytes as an artifact file: refused with a message, or readable to its last number.  The checksum is put right, so
 * that mutations get past it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/artifact.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void read_all(const vq_artifact *a)
{
    const vq_artifact_info *info = vq_artifact_get_info(a);
    vq_artifact_layout at;
    if (vq_artifact_lay_out(&at, info, "fuzz", NULL) != VQ_OK || at.n_bytes != info->n_bytes)
        abort();
    for (uint32_t bits = 0; bits < 10; bits++) {
        const double *levels = vq_artifact_codebook(a, bits);
        if (!levels != (bits < info->least_bits || bits > info->most_bits))
            abort();
        for (uint32_t i = 1; levels && i < 1u << bits; i++)
            if (!(levels[i - 1] < levels[i]))
                abort();
    }
    for (size_t i = 0; i < at.n_rotations; i++) {
        const uint32_t layer = (uint32_t)(i / 2 / info->n_kv_heads), head = (uint32_t)(i / 2 % info->n_kv_heads);
        const float *matrix = vq_artifact_matrix(a, layer, head, i % 2 == 0);
        if (!matrix != (at.m == 1))
            abort();
        for (size_t k = 0; matrix && k < (size_t)at.m * at.m; k++)
            if (!isfinite(matrix[k]))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    vq_artifact *a;
    vq_error err = {0};
    uint8_t *copy = malloc(n_bytes + 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, n_bytes);
    if (n_bytes >= VQ_ARTIFACT_SUMMED_FROM) {
        const uint64_t sum = XXH64(copy + VQ_ARTIFACT_SUMMED_FROM, n_bytes - VQ_ARTIFACT_SUMMED_FROM, 0);
        memcpy(copy + sizeof vq_artifact_magic, &sum, sizeof sum);
    }
    if (vq_artifact_read(&a, "fuzz", copy, n_bytes, &err) == VQ_OK) {
        read_all(a);
        vq_artifact_close(a);
    } else if (a || !err.text[0]) {
        abort();
    }
    free(copy);
    return 0;
}
