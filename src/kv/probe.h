/* Probing for eviction (kvzip): the model goes on from a fork of the cache, which looks at the weights that the rows of
 * the original get; the fork is then dropped, so the original is as it was. */
#ifndef VQ_KV_PROBE_H
#define VQ_KV_PROBE_H

#include "base/status.h"
#include "veloxquant/kv.h"

enum { VQ_PROBE_TOKENS = 2048, VQ_PROBE_PREFIX = 64 }; /* repeated at once; most of the words that ask for it */

/* Rows that the cache needs beyond its context for probes of a policy; 0 when it needs none (or is not one). */
uint32_t vq_kv_probe_room(const char *evict, uint32_t n_ctx);
bool vq_kv_wants_probe(const vq_kv *kv);
vq_status vq_kv_probe_open(vq_kv **out, vq_kv *kv, vq_error *err); /* closed with vq_kv_close */
/* What the probe saw, taken over by the original, whose rows have not changed since. */
void vq_kv_probe_take(vq_kv *kv, const vq_kv *probe);

#endif
