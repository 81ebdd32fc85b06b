/* Letting the model repeat its prompt, for a policy that wants to see where it looks while it does (kvzip). */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/session.h"
#include "kv/probe.h"
#include "model/forward.h"

static const char request[] = "\n\nRepeat the previous context exactly.\n\n";

/* Runs ids [n] behind the session's tokens on a fork of its cache. */
static vq_status run_probe(vq_kv *kv, vq_forward *forward, const int32_t *ids, uint32_t n, uint32_t pos,
                           uint32_t n_batch, vq_error *err)
{
    vq_kv *fork;
    VQ_TRY(vq_kv_probe_open(&fork, kv, err));
    vq_status status = VQ_OK;
    for (uint32_t at = 0; at < n && status == VQ_OK; at += n_batch) {
        const uint32_t chunk = n - at < n_batch ? n - at : n_batch;
        status = vq_forward_run(forward, fork, ids + at, pos + at, chunk, chunk, err);
    }
    if (status == VQ_OK)
        vq_kv_probe_take(kv, fork);
    vq_kv_close(fork);
    return status;
}

vq_status vq_session_probe(vq_session *s, vq_forward *forward, uint32_t n_batch, vq_error *err)
{
    vq_kv *kv = vq_session_kv(s);
    if (!vq_kv_wants_probe(kv))
        return VQ_OK;
    int32_t *prefix;
    size_t n_prefix;
    const vq_tokenizer *t = vq_model_tokenizer(vq_session_model(s));
    VQ_TRY(vq_tokenize(t, request, sizeof request - 1, 0, &prefix, &n_prefix, err));
    n_prefix = n_prefix < VQ_PROBE_PREFIX ? n_prefix : VQ_PROBE_PREFIX;
    const uint32_t n = vq_session_n_tokens(s), most = n < VQ_PROBE_TOKENS ? n : VQ_PROBE_TOKENS;
    int32_t *ids = malloc((n_prefix + most) * sizeof *ids);
    vq_status status = ids ? VQ_OK : vq_fail(err, VQ_ERR_NOMEM, "no memory for %u ids", most);
    for (uint32_t at = 0; at < n && status == VQ_OK; at += VQ_PROBE_TOKENS) {
        const uint32_t piece = n - at < VQ_PROBE_TOKENS ? n - at : VQ_PROBE_TOKENS;
        memcpy(ids, prefix, n_prefix * sizeof *ids);
        memcpy(ids + n_prefix, vq_session_ids(s) + at, piece * sizeof *ids);
        status = run_probe(kv, forward, ids, (uint32_t)n_prefix + piece, n, n_batch, err);
    }
    free(ids);
    vq_free(prefix);
    return status;
}
