#include "kv/probe.h"

#include "kv/evict.h"

uint32_t vq_kv_probe_room(const char *evict, uint32_t n_ctx)
{
    vq_policy_choice c;
    if (!evict || vq_policy_parse(&c, evict, NULL) != VQ_OK || !c.policy->needs_probe)
        return 0;
    return (n_ctx < VQ_PROBE_TOKENS ? n_ctx : VQ_PROBE_TOKENS) + VQ_PROBE_PREFIX;
}

bool vq_kv_wants_probe(const vq_kv *kv) { return kv->evict && kv->evict->choice.policy->needs_probe; }

vq_status vq_kv_probe_open(vq_kv **out, vq_kv *kv, vq_error *err)
{
    VQ_TRY(vq_kv_fork(kv, out, err));
    (*out)->evict->is_probing = true;
    return VQ_OK;
}

/* Which row of the original is the probe's first one: a window may have dropped some since. */
static uint32_t first_number(const vq_kv *kv, const vq_kv *probe, uint32_t layer, uint32_t head)
{
    const vq_evictor *e = kv->evict, *p = probe->evict;
    const uint32_t *pos = e->pos + head * e->stride;
    uint32_t n = 0;
    while (n < e->n_live[head] && (p->n_live[head] == 0 || pos[n] < p->pos[head * p->stride]))
        n++;
    (void)layer;
    return n;
}

void vq_kv_probe_take(vq_kv *kv, const vq_kv *probe)
{
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_evict_collect(kv, i);
        vq_evict_collect(probe, i);
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            const uint32_t first = first_number(kv, probe, i, h);
            float *to = vq_evict_seen(kv, i, h);
            const float *from = vq_evict_seen(probe, i, h);
            for (uint32_t j = first; j < kv->evict->n_live[h]; j++)
                to[j] = from[j - first] > to[j] ? from[j - first] : to[j];
        }
    }
}
