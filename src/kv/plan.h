/* What opening a cache asks a plan. */
#ifndef VQ_KV_PLAN_H
#define VQ_KV_PLAN_H

#include <stdbool.h>

#include "veloxquant/kv.h"

/* That it fits the cache's shape and model, and that nothing else names methods for all layers. */
vq_status vq_plan_check(const vq_plan *plan, const vq_kv_params *params, vq_error *err);
/* 0: what the method's text says. */
double vq_plan_bits(const vq_plan *plan, uint32_t layer, uint32_t head, bool keys);

#endif
