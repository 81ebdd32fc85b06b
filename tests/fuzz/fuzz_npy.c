/* Any bytes as a NumPy array file: read or refused, never more memory than a few times the file. */
#include <stdlib.h>

#include "veloxquant/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    vq_npy npy;
    vq_error err;
    if (vq_npy_read_memory(&npy, "fuzz", bytes, n_bytes, &err) == VQ_OK) {
        uint64_t n = 1;
        for (uint32_t i = 0; i < npy.n_dims; i++)
            n *= npy.dims[i];
        volatile float last = n > 0 ? npy.data[n - 1] : 0;
        (void)last;
    } else if (npy.data || err.text[0] == 0) {
        abort();
    }
    vq_npy_free(&npy);
    return 0;
}
