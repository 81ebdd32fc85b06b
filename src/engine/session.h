/* What the parts of the engine know about a session beyond the public header. */
#ifndef VQ_ENGINE_SESSION_H
#define VQ_ENGINE_SESSION_H

#include "model/forward.h"
#include "model/observer.h"
#include "veloxquant/session.h"

typedef struct vq_run {
    vq_logits_fn each; /* as vq_session_eval; may be NULL */
    size_t first;
    bool decodes;                                         /* the tokens count as generated */
    bool (*progress)(void *arg, size_t done, size_t all); /* after each chunk; false cancels; may be NULL */
    void *arg;                                            /* of both */
} vq_run;

/* vq_session_eval with a progress report. */
vq_status vq_session_run(vq_session *s, const int32_t *ids, size_t n, const vq_run *run, vq_error *err);

/* As vq_forward_observe. */
void vq_session_observe(vq_session *s, const vq_observer *observer);

/* probe.c: at the end of a prompt, for policies that want it; uses the forward pass, whose logits are gone then. */
vq_status vq_session_probe(vq_session *s, vq_forward *forward, uint32_t n_batch, vq_error *err);

const vq_kv *vq_session_kv_of(const vq_session *s);
vq_pool *vq_session_pool(const vq_session *s); /* may be NULL */

/* Sets the ids of a cache that was just restored; n is at most the context. */
void vq_session_set_ids(vq_session *s, const int32_t *ids, uint32_t n);

#endif
