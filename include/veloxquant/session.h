/* A session: one sequence of tokens through one model with one cache. */
#ifndef VELOXQUANT_SESSION_H
#define VELOXQUANT_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/kv.h"
#include "veloxquant/model.h"
#include "veloxquant/status.h"

typedef struct vq_session vq_session;

typedef struct vq_session_params {
    uint32_t n_ctx;            /* 0: the model's trained context, at most 4096 */
    uint32_t n_batch;          /* prompt tokens a forward pass; 0: 256.  Results do not depend on it */
    bool exact;                /* f32 activations instead of int8: slower, what quality is judged in */
    const char *kv_keys, *kv_values, *kv_layers;     /* as vq_kv_params */
    uint32_t sinks, residual;                        /* VQ_KV_DEFAULT */
    vq_kv_exact kv_exact;
    uint64_t seed;             /* of the codecs */
    vq_pool *pool;             /* may be NULL */
} vq_session_params;

VQ_API void vq_session_params_init(vq_session_params *params);    /* the defaults */

/* The model must outlive the session. One thread at a time. */
VQ_API vq_status vq_session_open(vq_session **out, const vq_model *model, const vq_session_params *params, vq_error *err);
VQ_API void vq_session_close(vq_session *s);

VQ_API const vq_model *vq_session_model(const vq_session *s);
VQ_API vq_kv *vq_session_kv(vq_session *s);
VQ_API uint32_t vq_session_n_ctx(const vq_session *s);
VQ_API uint32_t vq_session_n_tokens(const vq_session *s);         /* evaluated so far: the position of the next */

/* Called with the logits [n_vocab] of token `index` of the evaluated ones, in ascending order; false cancels. */
typedef bool (*vq_logits_fn)(void *arg, size_t index, const float *logits);

/* Runs tokens through the model.  Logits of the last one stay readable through vq_session_logits; with `each` also those
 * of every token from `first` on are passed to it.  VQ_ERR_FULL (naming both numbers) when they exceed the context, and
 * nothing is evaluated. On VQ_ERR_CANCELLED the tokens up to the cancelled chunk remain in the cache. */
VQ_API vq_status vq_session_eval(vq_session *s, const int32_t *ids, size_t n, vq_logits_fn each, size_t first, void *arg,
                                 vq_error *err);
VQ_API const float *vq_session_logits(const vq_session *s);       /* [n_vocab], of the last token; NULL before the first */
VQ_API vq_status vq_session_truncate(vq_session *s, uint32_t n_tokens, vq_error *err);

/* Saved prompts: the cache and the token ids that made it. *ids is freed with vq_free. */
VQ_API vq_status vq_session_save(const vq_session *s, const char *path, vq_error *err);
VQ_API vq_status vq_session_load(vq_session *s, const char *path, vq_error *err);
VQ_API const int32_t *vq_session_ids(const vq_session *s);        /* [vq_session_n_tokens] */

/* ---- sampling ---- */
typedef struct vq_sampler_params {
    float temperature;         /* 0: greedy */
    uint32_t top_k;            /* 0: off */
    float top_p;               /* 1: off */
    float min_p;               /* 0: off */
    float repeat_penalty;      /* 1: off */
    uint32_t repeat_last_n;    /* tokens that the penalty looks back */
    uint64_t seed;
} vq_sampler_params;

typedef struct vq_sampler vq_sampler;
VQ_API void vq_sampler_params_init(vq_sampler_params *params);
VQ_API vq_status vq_sampler_open(vq_sampler **out, const vq_sampler_params *params, uint32_t n_vocab, vq_error *err);
VQ_API void vq_sampler_close(vq_sampler *s);
VQ_API void vq_sampler_accept(vq_sampler *s, int32_t id);         /* a token of the text, for the penalty */
VQ_API int32_t vq_sampler_next(vq_sampler *s, const float *logits);   /* ties go to the lower id; does not accept it */

/* ---- generation ---- */
typedef enum vq_finish { VQ_FINISH_LENGTH, VQ_FINISH_END, VQ_FINISH_STOP, VQ_FINISH_CONTEXT, VQ_FINISH_CANCELLED } vq_finish;

typedef struct vq_generate_params {
    uint32_t n_predict;        /* most new tokens; UINT32_MAX: until the context is full */
    const char *const *stops;  /* [n_stops] strings that end the text just before them, also across token borders */
    size_t n_stops;
    bool ignore_end;           /* go on after an end-of-sequence token */
    bool show_control;         /* control tokens appear in the text by name */
    bool (*prompt_progress)(void *arg, size_t done, size_t all);  /* may be NULL; false cancels */
    bool (*text)(void *arg, const char *utf8, size_t n_bytes);    /* whole characters; may be NULL; false cancels */
    void *arg;
} vq_generate_params;

typedef struct vq_generate_result {
    vq_finish finish;
    size_t n_prompt, n_new;
    double prompt_seconds, decode_seconds, first_token_seconds;
} vq_generate_result;

/* Evaluates ids [n] after what the session holds and then generates. n = 0 needs logits from an earlier evaluation. */
VQ_API vq_status vq_generate(vq_session *s, vq_sampler *sampler, const int32_t *ids, size_t n,
                             const vq_generate_params *params, vq_generate_result *result, vq_error *err);

#endif
