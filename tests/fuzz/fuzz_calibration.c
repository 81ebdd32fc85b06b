/* Any bytes as a calibration: refused with a message, or readable to its last number.  The checksum is put right, so
 * that mutations get past it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/calibration.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    vq_calibration *c;
    vq_error err = {0};
    uint8_t *copy = malloc(n_bytes + 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, n_bytes);
    if (n_bytes >= 16) {
        const uint64_t sum = XXH64(copy + 16, n_bytes - 16, 0);
        memcpy(copy + 8, &sum, 8);
    }
    if (vq_calibration_read(&c, "fuzz", copy, n_bytes, &err) == VQ_OK) {
        const vq_calibration_info *info = vq_calibration_get_info(c);
        for (int what = 0; what < VQ_N_STATISTICS; what++) {
            const vq_statistic_shape shape = vq_statistic_shape_of(info, (vq_statistic)what);
            for (uint32_t layer = 0; layer < info->n_layers; layer++)
                for (uint32_t head = 0; head < shape.n_heads; head++)
                    for (size_t i = 0; i < shape.n_floats; i++)
                        if (!isfinite(vq_calibration_at(c, (vq_statistic)what, layer, head)[i]))
                            abort();
        }
        vq_calibration_close(c);
    } else if (c || !err.text[0]) {
        abort();
    }
    free(copy);
    return 0;
}
