/* Measuring: perplexity in generation order, two caches compared on the same tokens, speed. */
#ifndef VELOXQUANT_EVAL_H
#define VELOXQUANT_EVAL_H

#include "veloxquant/session.h"

/* How a text is cut: windows of n_ctx tokens one after another, each evaluated from an empty cache; a rest that fills
 * no window is left out.  Where the model wants a BOS, it takes the place of each window's first token.  A token is
 * scored from the logits of the one before it; the first `skip` tokens of a window (at least 1) are not scored. skip =
 * n_ctx / 2 + 1 is what llama.cpp's perplexity program does. */
typedef struct vq_windows {
    const int32_t *ids;
    size_t n;
    uint32_t n_ctx, skip;
    size_t most; /* windows at most; 0: all */
    /* The tokens from `skip` on go through the (tested) sessions as generated ones (vq_session_decode), after the first
     * ones as a prompt.  Sessions whose cache evicts always work so: in one pass nothing would be evicted before the
     * end.  Others give the same figures either way. */
    bool decodes;
    /* Asks for one pass whatever the cache; with one that evicts that is VQ_ERR_ARG. */
    bool one_pass;
    /* By default a text that repeats itself, or on which the (reference) model's perplexity is below 2, is refused
     * (VQ_ERR_VALUE): on a looped paragraph any cache looks perfect. */
    bool any_text;
} vq_windows;

/* Windows and scored tokens of a text.  VQ_ERR_ARG, naming the numbers, when it fills no window or nothing is scored.
 */
VQ_API vq_status vq_eval_count(const vq_windows *w, size_t *n_windows, size_t *n_scored, vq_error *err);

/* Mean and spread of a series, in one pass; zeroed is empty. */
typedef struct vq_moments {
    uint64_t n;
    double mean, m2; /* m2: sum of squared distances from the mean */
} vq_moments;

VQ_API void vq_moments_add(vq_moments *m, double x);
VQ_API void vq_moments_merge(vq_moments *m, const vq_moments *more);
VQ_API double vq_moments_error(const vq_moments *m); /* standard error of the mean; 0 below two values */

/* Share of the sequences of `gram` consecutive ids that are distinct, 0..1: near 1 for prose, low for text that loops;
 * 1 when there are fewer than `gram` ids, NaN without memory. */
VQ_API double vq_eval_distinct(const int32_t *ids, size_t n, uint32_t gram);

/* Where a text falls into a loop that lasts to its end: the index of the first token that repeats what stands a period
 * before it, and so does every token after it, for two periods and 16 tokens at least.  n when it does not. */
VQ_API size_t vq_eval_loop_start(const int32_t *ids, size_t n);

/* Called after each scored token; false cancels. */
typedef bool (*vq_eval_fn)(void *arg, size_t done, size_t all, double nll_of_token);

/* Adds the negative log-likelihood (nats) of each scored token to *nll: perplexity is exp(nll->mean), and its standard
 * error exp(nll->mean) * vq_moments_error(nll).  The session is cleared before each window and needs n_ctx tokens of
 * room.  On failure *nll is unchanged. */
VQ_API vq_status vq_eval_perplexity(vq_session *s, const vq_windows *w, vq_eval_fn progress, void *arg, vq_moments *nll,
                                    vq_error *err);

/* Sessions over the same tokens, side by side; all series are token by token, so that differences are paired. */
typedef struct vq_comparison {
    vq_moments reference_nll, nll;
    vq_moments log_ratio; /* nll - reference_nll: exp(mean) is the ratio of the perplexities */
    vq_moments kl;        /* KL divergence of the tested distribution from the reference's, nats */
    vq_moments same_top;  /* 1 where both have the same likeliest token */
} vq_comparison;

/* Compares each of tested [n_tested] with the reference and adds to out [n_tested]; the reference runs once.  All
 * sessions are cleared before each window; they may be over different models with one vocabulary.  progress gets the
 * reference's figures.  On failure *out is unchanged. */
VQ_API vq_status vq_eval_compare(vq_session *reference, vq_session *const *tested, size_t n_tested, const vq_windows *w,
                                 vq_eval_fn progress, void *arg, vq_comparison *out, vq_error *err);

/* ---- how much each head matters ----
 * Keys, and values, of one layer (or kv head) after the other are stored with VQ_PLAN_PROBE_METHOD at
 * VQ_PLAN_PROBE_BITS, all others at 8 bits, and the text is compared with an f16 cache, in exact mode. */
typedef struct vq_head_losses_params {
    vq_windows windows; /* the text; some hundred scored tokens tell layers apart */
    bool by_head;       /* each kv head by itself: as many times longer as a layer has; else a layer's heads share */
    vq_pool *pool;      /* may be NULL */
    bool (*progress)(void *arg, size_t done, size_t all); /* may be NULL; false cancels */
    void *arg;
} vq_head_losses_params;

/* KL divergences, into key_losses and value_losses [n_layers][n_kv_heads] (vq_plan).  Layers that seem to lose nothing
 * get a twentieth of the mean. */
VQ_API vq_status vq_eval_head_losses(const vq_model *model, const vq_head_losses_params *params, double *key_losses,
                                     double *value_losses, vq_error *err);

/* ---- finding facts of a context again ---- */
typedef enum vq_recall_task {
    VQ_RECALL_NEEDLES, /* sentences hidden in prose, one for each question */
    VQ_RECALL_PAIRS,   /* a list of "who: word" that fills the context; some of the lines are asked for */
} vq_recall_task;

enum {
    VQ_RECALL_MOST_QUESTIONS = 64,
    VQ_RECALL_QUESTION_ROOM = 96, /* tokens that a question takes at most beyond the context, announced and answered */
};

typedef struct vq_recall_params {
    vq_recall_task task;
    uint32_t n_tokens;    /* of the context; a list may leave a few of them unused */
    uint32_t n_questions; /* asked one after another, each followed by its true answer */
    float depth;          /* of a single needle, 0 (first) to 1 (last); several are spread over the context */
    bool asked_first;     /* the questions stand at the end of the context, so that a policy sees them before it drops
                             anything; otherwise they come after it has */
    uint64_t seed;        /* of facts, order and the place in the prose */
    const int32_t *prose; /* [n_prose] what needles are hidden in; not used by a list */
    size_t n_prose;
} vq_recall_params;

/* Over questions. */
typedef struct vq_recall_score {
    vq_moments exact;  /* 1 where the greedy output begins with the answer */
    vq_moments chosen; /* 1 where its first token is likelier than that of every other word that could be the answer */
    vq_moments log_p;  /* log-probability of the answer, nats */
    vq_moments margin; /* by how much the logit of its first token is above the best of the other words */
    uint32_t n_words;  /* words that could be answers: 1 / n_words is what guessing scores in `chosen` */
    uint32_t n_facts;  /* in the last context */
} vq_recall_score;

/* One context with its questions, added to *score.  The session is cleared first and needs n_tokens + n_questions *
 * VQ_RECALL_QUESTION_ROOM tokens of room.  The same parameters give the same tokens for every session over one
 * vocabulary.  On failure *score is unchanged. */
VQ_API vq_status vq_eval_recall(vq_session *s, const vq_recall_params *params, vq_recall_score *score, vq_error *err);

/* ---- what policies rate rows by ---- */
enum { VQ_RANK_MOST_SCORES = 32 };

typedef struct vq_rank_score_info {
    const char *name, *summary;
    bool needs_calibration;
} vq_rank_score_info;
VQ_API size_t vq_eval_n_rank_scores(void);
VQ_API void vq_eval_rank_score_at(size_t index, vq_rank_score_info *out);

typedef struct vq_rank_params {
    const int32_t *ids;   /* [n] one context; not of the text that the calibration was made of */
    uint32_t n, n_prompt; /* rows of the first n_prompt tokens are rated; the rest's queries say what they received */
    const char *const *scores; /* [n_scores] names */
    size_t n_scores;
    const struct vq_calibration *calibration; /* may be NULL when no score needs one */
    uint64_t seed;                            /* of the score `random` */
    bool exact;
    vq_pool *pool;
    bool (*progress)(void *arg, size_t done, size_t all); /* in layers; may be NULL; false cancels */
    void *arg;
} vq_rank_params;

/* Spearman's correlation of each score with the mean attention that a row receives from later queries: rho
 * [n_scores][n_layers][n_kv_heads].  Four sinks are left out, and rows that later queries of a sliding window do not
 * see. */
VQ_API vq_status vq_eval_rank(const vq_model *model, const vq_rank_params *params, float *rho, vq_error *err);

typedef struct vq_anisotropy_params {
    const int32_t *ids; /* [n] one context */
    uint32_t n;
    bool exact;
    vq_pool *pool;
    bool (*progress)(void *arg, size_t done, size_t all); /* in layers; may be NULL; false cancels */
    void *arg;
} vq_anisotropy_params;

/* Of one query head.  u is the first right singular vector of its queries, uncentred, on the side of their mean. */
typedef struct vq_anisotropy {
    float query_share; /* of queries with a positive projection on u: 0.5 without any anisotropy */
    float explained;   /* of the queries' energy, by u */
    float rest;        /* largest |mean projection| on another singular vector, over that on u */
    float key_sign;    /* of the mean projection of keys on u */
    float key_share;   /* of keys whose projection has this sign */
    float rank;        /* Spearman of a key's projection on u with the attention that it receives later */
} vq_anisotropy;

/* out [n_layers][n_heads]; the first 32 rows are left out. */
VQ_API vq_status vq_eval_anisotropy(const vq_model *model, const vq_anisotropy_params *params, vq_anisotropy *out,
                                    vq_error *err);

/* ---- what a cache does to attention, layer by layer ---- */
typedef struct vq_distortion_params {
    const int32_t *ids;    /* [n] one context, a prompt */
    uint32_t n, n_queries; /* the output of the last n_queries tokens is compared, 1 to n */
    bool (*progress)(void *arg, size_t done, size_t all); /* in layers; may be NULL; false cancels */
    void *arg;
} vq_distortion_params;

/* Of one layer: attention's output as it came from the cache against the one of the same queries over the same rows
 * unrounded.  A layer's rows are those that the model computes with this cache in the layers below. */
typedef struct vq_distortion {
    double error;  /* sqrt(sum |o - o^|^2 / sum |o|^2) */
    double cosine; /* mean over tokens and heads */
} vq_distortion;

/* out [n_layers].  The session is cleared first and must take the whole context in one pass (n_batch); it then holds
 * it. */
VQ_API vq_status vq_eval_distortion(vq_session *s, const vq_distortion_params *params, vq_distortion *out,
                                    vq_error *err);

/* What a cache method does to rows, without a model. */
typedef struct vq_fidelity_params {
    uint32_t n_heads, n_kv_heads, n_tokens, n_queries, d_k, d_v; /* n_heads is a multiple of n_kv_heads */
    const float *k, *v;                                          /* [n_kv_heads][n_tokens][d] */
    const float *q;            /* [n_heads][n_queries][d_k]; NULL: normal draws from the seed */
    const char *keys, *values; /* as vq_kv_params */
    uint32_t sinks, residual;  /* exact rows; 0 shows the codes alone, VQ_KV_DEFAULT what the method asks for */
    uint64_t seed;
    vq_pool *pool;          /* may be NULL */
    float *k_read, *v_read; /* [n_kv_heads][n_tokens][d]: where the rows go as attention sees them; may be NULL */
} vq_fidelity_params;

typedef struct vq_fidelity {
    uint64_t n_rows, n_packed; /* of keys, over all heads */
    double bits_per_value;     /* codes, scales and shared tables of packed keys and values */
    /* over packed rows: */
    double key_cosine, value_cosine; /* mean of cos(x, x^) */
    double key_error, value_error;   /* sum |x - x^|^2 / sum |x|^2 */
    double product_error;            /* rms(q.k^ - q.k) / rms(q.k) */
    double product_slope;            /* of the regression of q.k^ on q.k through 0; 1 without bias */
    double product_slope_error;      /* its standard error, from the spread over queries */
    /* over all rows, each query after the last row: */
    double attention_error;    /* sqrt(sum |o - o^|^2 / sum |o|^2), o in double precision */
    double append_rows_second; /* key and value rows appended a second, encoding included */
    double attend_seconds;     /* of one query token, all heads */
} vq_fidelity;

VQ_API vq_status vq_eval_fidelity(const vq_fidelity_params *params, vq_fidelity *out, vq_error *err);

/* Speed.  Token ids are drawn from `seed`, so that samples can rotate through different inputs.
 * fill: untimed, to `n` tokens in all.  prompt: n tokens in chunks. decode: n tokens one at a time. */
VQ_API vq_status vq_eval_fill(vq_session *s, uint32_t n, uint64_t seed, vq_error *err);
/* For benchmarks: to `n` tokens in all with normal rows put straight into the cache, which takes no model and as long
 * as packing them.  Speed is that of a cache that was filled by evaluating; what is decoded then means nothing. */
VQ_API vq_status vq_eval_fill_rows(vq_session *s, uint32_t n, uint64_t seed, vq_error *err);
VQ_API vq_status vq_eval_prompt_speed(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err);
/* seconds [n]: of each token */
VQ_API vq_status vq_eval_decode_times(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err);
VQ_API vq_status vq_eval_decode_speed(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err);

#endif
