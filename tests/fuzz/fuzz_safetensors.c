/* Any bytes as a safetensors file: refused with a message, or open with everything in it readable. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint8_t sink;

static void touch(const void *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sink = sink ^ ((const uint8_t *)bytes)[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    void *copy = malloc(n_bytes + !n_bytes); /* aligned, and of the exact size */
    if (!copy)
        return 0;
    if (n_bytes)
        memcpy(copy, bytes, n_bytes);
    vq_safetensors *s;
    vq_error err;
    const vq_status status = vq_safetensors_read(&s, "input", copy, n_bytes, &err);
    if (status == VQ_OK) {
        for (uint64_t i = 0; i < vq_safetensors_count(s); i++) {
            const vq_tensor *t = vq_safetensors_at(s, i);
            touch(t->name.at, t->name.n_bytes);
            touch(t->data, t->n_bytes);
            touch(vq_safetensors_dtype(s, i), 1);
            uint64_t n = 1;
            for (uint32_t d = 0; d < VQ_MAX_DIMS; d++)
                n *= t->dims[d];
            float x[8];
            if (t->type != VQ_N_TYPES)
                vq_type_dequantize(t->type, t->data, x, n < 8 ? n : 8);
        }
    } else if (s || err.status != status || strncmp(err.text, "input: ", 7)) {
        abort();
    }
    vq_safetensors_close(s);
    free(copy);
    return 0;
}
