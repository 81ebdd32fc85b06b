/* Any bytes as a plan: refused with a message, or a plan with numbers that a cache may refuse but not fall over. */
#include <stdint.h>
#include <stdlib.h>

#include "support/calibration.h"
#include "veloxquant/kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    vq_plan *p;
    vq_error err = {0};
    if (vq_plan_read(&p, "fuzz", bytes, n_bytes, &err) != VQ_OK) {
        if (p || !err.text[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < (size_t)p->n_layers * p->n_kv_heads; i++)
        if (!(p->key_bits[i] >= 0 && p->key_bits[i] <= 64 && p->value_bits[i] >= 0 && p->value_bits[i] <= 64 &&
              p->key_losses[i] >= 0 && p->key_losses[i] <= 1e6 && p->value_losses[i] >= 0 && p->value_losses[i] <= 1e6))
            abort();
    if (p->n_layers <= 4 && p->n_kv_heads <= 4) {
        vq_kv_params params = {.n_layers = p->n_layers,
                               .n_heads = p->n_kv_heads,
                               .n_kv_heads = p->n_kv_heads,
                               .d_k = 64,
                               .d_v = 64,
                               .n_ctx = 64,
                               .n_batch = 8,
                               .sinks = VQ_KV_DEFAULT,
                               .residual = VQ_KV_DEFAULT,
                               .plan = p};
        params.calibration = toy_calibration_of(&params);
        vq_kv *kv;
        if (vq_kv_open(&kv, &params, &err) != VQ_OK && (kv || !err.text[0]))
            abort();
        vq_kv_close(kv);
    }
    vq_plan_close(p);
    return 0;
}
