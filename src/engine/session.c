/* A session: token ids, their cache and the scratch of one model's forward pass.
 *
 * A prompt runs in chunks of n_batch tokens.  Logits are computed only for rows that somebody wants: of a prompt the
 * last one, with `each` those from `first` on. */
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/status.h"
#include "kv/plan.h"
#include "kv/probe.h"
#include "model/forward.h"
#include "veloxquant/session.h"

enum { DEFAULT_MOST_CTX = 4096, DEFAULT_BATCH = 256, MOST_BATCH = 8192 };

struct vq_session {
    const vq_model *model;
    vq_forward *forward;
    vq_kv *kv;
    vq_pool *pool;
    bool is_exact;
    uint32_t n_ctx, n_batch, n_vocab, n_tokens;
    int32_t *ids;  /* [n_ctx] */
    float *logits; /* [n_vocab], of the last token */
    bool has_logits;
    float *rows; /* [VQ_FORWARD_LOGITS][n_vocab], from the first call that asks for each row */
    vq_arena arena;
};

void vq_session_params_init(vq_session_params *params)
{
    *params = (vq_session_params){.sinks = VQ_KV_DEFAULT, .residual = VQ_KV_DEFAULT, .kv_exact = VQ_KV_EXACT_F16};
}

static void layout(vq_session *s)
{
    s->ids = vq_arena_take(&s->arena, s->n_ctx, sizeof *s->ids);
    s->logits = vq_arena_take(&s->arena, s->n_vocab, sizeof *s->logits);
}

static uint32_t context_of(const vq_model_info *info, const vq_session_params *params)
{
    if (params->n_ctx)
        return params->n_ctx;
    return info->n_ctx_train < DEFAULT_MOST_CTX ? info->n_ctx_train : DEFAULT_MOST_CTX;
}

vq_status vq_session_kv_params(const vq_model *model, const vq_session_params *params, vq_kv_params *out, vq_error *err)
{
    const uint32_t n_ctx = context_of(vq_model_get_info(model), params);
    if (params->n_batch > MOST_BATCH)
        return vq_fail(err, VQ_ERR_ARG, "%u prompt tokens a pass, at most %d", params->n_batch, MOST_BATCH);
    vq_kv_params kv = {0};
    vq_forward_kv_params(model, &kv);
    kv.n_ctx = n_ctx + vq_kv_probe_room(params->evict, n_ctx);
    kv.n_batch = params->n_batch ? params->n_batch : DEFAULT_BATCH;
    kv.n_batch = kv.n_batch < n_ctx ? kv.n_batch : n_ctx;
    kv.keys = params->kv_keys;
    kv.values = params->kv_values;
    kv.plan = params->plan;
    kv.layers = params->kv_layers;
    kv.sinks = params->sinks;
    kv.residual = params->residual;
    kv.exact = params->kv_exact;
    kv.seed = params->seed;
    kv.pool = params->pool;
    kv.calibration = params->calibration;
    kv.artifact_dir = params->artifact_dir;
    kv.evict = params->evict;
    *out = kv;
    return VQ_OK;
}

vq_status vq_plan_fits(const vq_plan *plan, const vq_model *model, vq_error *err)
{
    vq_kv_params kv = {0};
    vq_forward_kv_params(model, &kv);
    return vq_plan_check(plan, &kv, err);
}

static vq_status open_parts(vq_session *s, const vq_session_params *params, vq_error *err)
{
    layout(s);
    VQ_TRY(vq_arena_alloc(&s->arena, err));
    layout(s);
    vq_kv_params kv;
    VQ_TRY(vq_session_kv_params(s->model, params, &kv, err));
    VQ_TRY(vq_kv_open(&s->kv, &kv, err));
    return vq_forward_open(&s->forward, s->model, s->pool, s->n_batch, s->is_exact, err);
}

vq_status vq_session_open(vq_session **out, const vq_model *model, const vq_session_params *params, vq_error *err)
{
    *out = NULL;
    const vq_model_info *info = vq_model_get_info(model);
    vq_kv_params kv;
    VQ_TRY(vq_session_kv_params(model, params, &kv, err));
    vq_session *s = calloc(1, sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a session");
    s->model = model;
    s->pool = params->pool;
    s->is_exact = params->exact;
    s->n_vocab = info->n_vocab;
    s->n_ctx = context_of(info, params);
    s->n_batch = kv.n_batch;
    const vq_status status = open_parts(s, params, err);
    if (status != VQ_OK) {
        vq_session_close(s);
        return status;
    }
    *out = s;
    return VQ_OK;
}

static vq_status fork_parts(vq_session *to, vq_session *s, vq_error *err)
{
    layout(to);
    VQ_TRY(vq_arena_alloc(&to->arena, err));
    layout(to);
    VQ_TRY(vq_kv_fork(s->kv, &to->kv, err));
    VQ_TRY(vq_forward_open(&to->forward, s->model, s->pool, s->n_batch, s->is_exact, err));
    memcpy(to->ids, s->ids, s->n_tokens * sizeof *s->ids);
    if (s->has_logits)
        memcpy(to->logits, s->logits, s->n_vocab * sizeof *s->logits);
    return VQ_OK;
}

vq_status vq_session_fork(vq_session *s, vq_session **out, vq_error *err)
{
    *out = NULL;
    vq_session *to = calloc(1, sizeof *to);
    if (!to)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a session");
    to->model = s->model;
    to->pool = s->pool;
    to->is_exact = s->is_exact;
    to->n_ctx = s->n_ctx;
    to->n_batch = s->n_batch;
    to->n_vocab = s->n_vocab;
    to->n_tokens = s->n_tokens;
    to->has_logits = s->has_logits;
    const vq_status status = fork_parts(to, s, err);
    if (status != VQ_OK) {
        vq_session_close(to);
        return status;
    }
    *out = to;
    return VQ_OK;
}

void vq_session_close(vq_session *s)
{
    if (!s)
        return;
    vq_forward_close(s->forward);
    vq_kv_close(s->kv);
    vq_arena_free(&s->arena);
    free(s->rows);
    free(s);
}

const vq_model *vq_session_model(const vq_session *s) { return s->model; }
vq_kv *vq_session_kv(vq_session *s) { return s->kv; }
const vq_kv *vq_session_kv_of(const vq_session *s) { return s->kv; }
vq_pool *vq_session_pool(const vq_session *s) { return s->pool; }
void vq_session_observe(vq_session *s, const vq_observer *o) { vq_forward_observe(s->forward, o); }
uint32_t vq_session_n_ctx(const vq_session *s) { return s->n_ctx; }
uint32_t vq_session_n_tokens(const vq_session *s) { return s->n_tokens; }
const int32_t *vq_session_ids(const vq_session *s) { return s->ids; }
const float *vq_session_logits(const vq_session *s) { return s->has_logits ? s->logits : NULL; }

static vq_status check_tokens(const vq_session *s, const int32_t *ids, size_t n, vq_error *err)
{
    if (n > s->n_ctx - s->n_tokens) {
        if (s->n_tokens == 0)
            return vq_fail(err, VQ_ERR_FULL, "%zu tokens do not fit into a context of %u", n, s->n_ctx);
        return vq_fail(err, VQ_ERR_FULL, "%zu tokens after %u do not fit into a context of %u", n, s->n_tokens,
                       s->n_ctx);
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->n_vocab)
            return vq_fail(err, VQ_ERR_ARG, "token id %d at %zu, must be 0 to %u", ids[i], i, s->n_vocab - 1);
    return VQ_OK;
}

/* After a failed pass some layers hold more rows than others: back to the last token that all of them hold.  A sliding
 * window can forbid even that; then nothing is left. */
static void recover(vq_session *s)
{
    if (vq_kv_truncate(s->kv, s->n_tokens, NULL) != VQ_OK) {
        vq_kv_clear(s->kv);
        s->n_tokens = 0;
    }
}

/* The first row of a chunk [done, done + chunk) whose logits are wanted. */
static uint32_t first_wanted(const vq_run *run, size_t done, uint32_t chunk, size_t n)
{
    uint32_t first = done + chunk == n ? chunk - 1 : chunk;
    if (run->each && run->first < done + first)
        first = run->first > done ? (uint32_t)(run->first - done) : 0;
    return first;
}

/* Rows [from, n) of the chunk that ran last, whose first token is number `base` of the call. */
static bool pass_rows(vq_session *s, const vq_run *run, uint32_t from, uint32_t n, size_t base)
{
    for (uint32_t at = from; at < n; at += VQ_FORWARD_LOGITS) {
        const uint32_t part = n - at < VQ_FORWARD_LOGITS ? n - at : VQ_FORWARD_LOGITS;
        vq_forward_logits(s->forward, at, part, s->rows);
        for (uint32_t i = 0; i < part; i++) {
            const float *row = s->rows + (size_t)i * s->n_vocab;
            if (at + i + 1 == n)
                memcpy(s->logits, row, s->n_vocab * sizeof *row);
            if (!run->each(run->arg, base + at + i, row))
                return false;
        }
    }
    return true;
}

/* Tokens of the next pass, of n: eviction happens at multiples of a number of rows, whatever the size of a pass. */
static uint32_t chunk_of(const vq_session *s, vq_kv_phase phase, size_t n)
{
    uint32_t most = s->n_batch;
    const uint32_t step = vq_kv_compact_step(s->kv, phase);
    if (step > 0 && step - s->n_tokens % step < most)
        most = step - s->n_tokens % step;
    return n < most ? (uint32_t)n : most;
}

static vq_status compact(vq_session *s, vq_kv_phase phase, bool is_end, vq_error *err)
{
    const uint32_t step = vq_kv_compact_step(s->kv, phase);
    if (phase == VQ_KV_PROMPT && is_end) {
        VQ_TRY(vq_session_probe(s, s->forward, s->n_batch, err));
        return vq_kv_compact(s->kv, VQ_KV_PROMPT_END, err);
    }
    return step > 0 && s->n_tokens % step == 0 ? vq_kv_compact(s->kv, phase, err) : VQ_OK;
}

vq_status vq_session_run(vq_session *s, const int32_t *ids, size_t n, const vq_run *run, vq_error *err)
{
    VQ_TRY(check_tokens(s, ids, n, err));
    if (n == 0)
        return VQ_OK;
    if (run->each && !s->rows) {
        s->rows = malloc((size_t)VQ_FORWARD_LOGITS * s->n_vocab * sizeof *s->rows);
        if (!s->rows)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for %d rows of %u logits", VQ_FORWARD_LOGITS, s->n_vocab);
    }
    s->has_logits = false;
    const vq_kv_phase phase = run->decodes ? VQ_KV_DECODE : VQ_KV_PROMPT;
    vq_kv_begin(s->kv, phase);
    for (size_t done = 0; done < n;) {
        const uint32_t chunk = chunk_of(s, phase, n - done);
        const uint32_t wanted = first_wanted(run, done, chunk, n);
        const vq_status status = vq_forward_run(s->forward, s->kv, ids + done, s->n_tokens, chunk, wanted, err);
        if (status != VQ_OK) {
            recover(s);
            return status;
        }
        memcpy(s->ids + s->n_tokens, ids + done, chunk * sizeof *ids);
        s->n_tokens += chunk;
        bool go_on = true;
        if (run->each && run->first < done + chunk)
            go_on = pass_rows(s, run, wanted, chunk, done);
        else if (done + chunk == n)
            vq_forward_logits(s->forward, chunk - 1, 1, s->logits);
        done += chunk;
        VQ_TRY(compact(s, phase, done == n, err));
        if (go_on && run->progress)
            go_on = run->progress(run->arg, done, n);
        if (!go_on && done < n)
            return vq_fail(err, VQ_ERR_CANCELLED, "cancelled after %zu of %zu tokens", done, n);
        if (!go_on)
            return vq_fail(err, VQ_ERR_CANCELLED, "cancelled");
    }
    s->has_logits = true;
    return VQ_OK;
}

vq_status vq_session_eval(vq_session *s, const int32_t *ids, size_t n, vq_logits_fn each, size_t first, void *arg,
                          vq_error *err)
{
    return vq_session_run(s, ids, n, &(vq_run){.each = each, .first = first, .arg = arg}, err);
}

vq_status vq_session_decode(vq_session *s, const int32_t *ids, size_t n, vq_logits_fn each, size_t first, void *arg,
                            vq_error *err)
{
    return vq_session_run(s, ids, n, &(vq_run){.each = each, .first = first, .arg = arg, .decodes = true}, err);
}

vq_status vq_session_truncate(vq_session *s, uint32_t n_tokens, vq_error *err)
{
    if (n_tokens > s->n_tokens)
        return vq_fail(err, VQ_ERR_ARG, "going back to %u tokens of %u", n_tokens, s->n_tokens);
    if (n_tokens == s->n_tokens)
        return VQ_OK;
    if (n_tokens == 0)
        vq_kv_clear(s->kv);
    else
        VQ_TRY(vq_kv_truncate(s->kv, n_tokens, err));
    s->n_tokens = n_tokens;
    s->has_logits = false;
    return VQ_OK;
}

uint32_t vq_session_common(const vq_session *s, const int32_t *ids, size_t n)
{
    uint32_t common = 0;
    while (common < s->n_tokens && common < n && s->ids[common] == ids[common])
        common++;
    return common;
}

void vq_session_set_ids(vq_session *s, const int32_t *ids, uint32_t n)
{
    memcpy(s->ids, ids, n * sizeof *ids);
    s->n_tokens = n;
    s->has_logits = false;
}
