/* A session: one sequence of tokens through one model with one cache; sampling and generating text from it. */
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
    uint32_t n_ctx;   /* 0: the model's trained context, at most 4096 */
    uint32_t n_batch; /* prompt tokens a forward pass; 0: 256.  Results do not depend on it */
    bool exact;       /* f32 activations instead of int8: slower, what quality is judged in */
    const char *kv_keys, *kv_values, *kv_layers; /* as vq_kv_params */
    const vq_plan *plan;                         /* likewise; instead of kv_keys and kv_values */
    const char *evict;                           /* likewise; NULL: nothing is evicted */
    uint32_t sinks, residual;                    /* VQ_KV_DEFAULT */
    vq_kv_exact kv_exact;
    uint64_t seed;                     /* of the codecs */
    vq_pool *pool;                     /* may be NULL */
    const char *artifact_dir;          /* folder of vq_precompute's files, read in vq_session_open; may be NULL */
    const vq_calibration *calibration; /* of methods that name none; may be NULL; must outlive the session */
} vq_session_params;

VQ_API void vq_session_params_init(vq_session_params *params); /* the defaults */

/* The model and the pool must outlive the session. One thread at a time. */
VQ_API vq_status vq_session_open(vq_session **out, const vq_model *model, const vq_session_params *params,
                                 vq_error *err);
/* The cache that such a session opens: for choosing a plan (vq_plan_choose), or looking at its size (vq_kv_most_bytes)
 * without a session.  What it points to is the model's and the caller's. */
VQ_API vq_status vq_session_kv_params(const vq_model *model, const vq_session_params *params, vq_kv_params *out,
                                      vq_error *err);
/* VQ_ERR_MISMATCH, naming what differs, when a plan was made for another model. */
VQ_API vq_status vq_plan_fits(const vq_plan *plan, const vq_model *model, vq_error *err);
VQ_API void vq_session_close(vq_session *s);

VQ_API const vq_model *vq_session_model(const vq_session *s);
VQ_API vq_kv *vq_session_kv(vq_session *s); /* for measuring; rows are the session's to change */
VQ_API uint32_t vq_session_n_ctx(const vq_session *s);
VQ_API uint32_t vq_session_n_tokens(const vq_session *s);  /* evaluated so far: the position of the next */
VQ_API const int32_t *vq_session_ids(const vq_session *s); /* [vq_session_n_tokens] */

/* Called with the logits [n_vocab] of token `index` of the evaluated ones, in ascending order; false cancels. */
typedef bool (*vq_logits_fn)(void *arg, size_t index, const float *logits);

/* Runs tokens through the model.  Logits of the last one stay readable through vq_session_logits; with `each` also
 * those of every token from `first` on are passed to it.  n = 0 does nothing.  VQ_ERR_FULL (naming both numbers) when
 * they exceed the context, VQ_ERR_ARG for an id that is not in the vocabulary; nothing is evaluated then.  On
 * VQ_ERR_CANCELLED whole chunks of n_batch tokens, up to and with the one that was cancelled, remain. */
VQ_API vq_status vq_session_eval(vq_session *s, const int32_t *ids, size_t n, vq_logits_fn each, size_t first,
                                 void *arg, vq_error *err);
/* The same for tokens that count as generated, one after the other: what an eviction policy does then, and not what it
 * does in a prompt, happens to them, as if each had come in a call of its own.  vq_session_eval's are a prompt, which
 * is over when it returns. */
VQ_API vq_status vq_session_decode(vq_session *s, const int32_t *ids, size_t n, vq_logits_fn each, size_t first,
                                   void *arg, vq_error *err);
/* [n_vocab], of the last token; NULL before the first and after going back or loading. */
VQ_API const float *vq_session_logits(const vq_session *s);

/* Back to the first n_tokens; 0 always works.  VQ_ERR_UNSUPPORTED as vq_kv_truncate; nothing has changed then. */
VQ_API vq_status vq_session_truncate(vq_session *s, uint32_t n_tokens, vq_error *err);

/* How many of ids [n] the session already holds from its start on: what need not be evaluated again after
 * vq_session_truncate to that count. */
VQ_API uint32_t vq_session_common(const vq_session *s, const int32_t *ids, size_t n);

/* A second session that goes on from the same tokens (vq_kv_fork): one prompt, several answers. */
VQ_API vq_status vq_session_fork(vq_session *s, vq_session **out, vq_error *err);

/* Saved prompts: the cache and the token ids that made it, in one file that is written whole or not at all. */
VQ_API vq_status vq_session_save(const vq_session *s, const char *path, vq_error *err);
/* Into a session over the same model with the same cache settings.  VQ_ERR_MISMATCH names what differs; the session is
 * then unchanged. */
VQ_API vq_status vq_session_load(vq_session *s, const char *path, vq_error *err);

/* Whether a saved prompt is what was written: its sums, without a model.  Loading checks more. */
VQ_API vq_status vq_session_verify(const char *path, uint64_t *n_tokens, vq_error *err);

/* ---- sampling ----
 * The order is that of llama.cpp: repeat penalty, top-k, top-p, min-p, then temperature and the draw.  Top-p and min-p
 * look at probabilities at temperature 1.  The same seed and the same logits give the same tokens everywhere. */
typedef struct vq_sampler_params {
    float temperature;      /* 0: greedy, and the three filters do not matter */
    uint32_t top_k;         /* the k likeliest tokens; 0: off */
    float top_p;            /* the likeliest tokens that together reach this share, always one at least; 1: off */
    float min_p;            /* tokens with at least this share of the likeliest one's probability; 0: off */
    float repeat_penalty;   /* logits of recent tokens: positive ones are divided by it, others multiplied; 1: off */
    uint32_t repeat_last_n; /* tokens that the penalty looks back */
    uint64_t seed;
} vq_sampler_params;

typedef struct vq_sampler vq_sampler;
VQ_API void vq_sampler_params_init(vq_sampler_params *params); /* 0.8, 40, 0.95, 0.05, 1, 64, 0 */
VQ_API vq_status vq_sampler_open(vq_sampler **out, const vq_sampler_params *params, uint32_t n_vocab, vq_error *err);
VQ_API void vq_sampler_close(vq_sampler *s);
VQ_API void vq_sampler_accept(vq_sampler *s, int32_t id); /* a token of the text, for the penalty */
/* Ties go to the lower id.  NaN counts as minus infinity.  Does not accept the token. */
VQ_API int32_t vq_sampler_next(vq_sampler *s, const float *logits);

/* ---- generation ---- */
typedef enum vq_finish {
    VQ_FINISH_LENGTH,    /* n_predict tokens */
    VQ_FINISH_END,       /* an end-of-sequence or end-of-turn token */
    VQ_FINISH_STOP,      /* a stop string */
    VQ_FINISH_CONTEXT,   /* no room for another token */
    VQ_FINISH_CANCELLED, /* a callback returned false */
} vq_finish;

typedef struct vq_generate_params {
    uint32_t n_predict;       /* most new tokens; UINT32_MAX: until the context is full */
    const char *const *stops; /* [n_stops] strings that end the text just before them, also across token borders */
    size_t n_stops;
    bool ignore_end;                                             /* end tokens are never drawn: the text goes on */
    bool show_control;                                           /* control tokens appear in the text by name */
    bool (*prompt_progress)(void *arg, size_t done, size_t all); /* may be NULL; false cancels */
    bool (*token)(void *arg, int32_t id);                        /* each new token, also an end; may be NULL */
    bool (*text)(void *arg, const char *utf8, size_t n_bytes);   /* whole characters; may be NULL; false cancels */
    void *arg;
} vq_generate_params;

typedef struct vq_generate_result {
    vq_finish finish;
    size_t n_prompt, n_new; /* n_new counts drawn tokens, an end token among them */
    int32_t pending;        /* the token drawn last, which is not in the cache yet; VQ_NO_TOKEN when none was.  To go
                               on from here, put it before the ids of the next call */
    double prompt_seconds, decode_seconds;
    double first_token_seconds; /* from the call to the first drawn token; 0 when there was none */
} vq_generate_result;

/* Evaluates ids [n] after what the session holds and then generates.  n = 0 needs logits from an earlier evaluation.
 * The text is the same however tokens split it: a held-back tail that could have become a stop string, and an
 * unfinished character as U+FFFD, come at the end.  When several stop strings could end the text, the one that is
 * complete first does, and of those complete at the same byte the longest. *result is
 * needed (what is pending goes into the next call), and filled also on failure. */
VQ_API vq_status vq_generate(vq_session *s, vq_sampler *sampler, const int32_t *ids, size_t n,
                             const vq_generate_params *params, vq_generate_result *result, vq_error *err);

#endif
