#include "engine/input_moments.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "engine/session.h"
#include "model/model.h"
#include "quant/feedback.h"

enum { DEFAULT_CTX = 1024, LEAST = 64 };

typedef struct sums {
    vq_carry_kernels k;
    const vq_input_moments_params *params;
    const vq_input_moment *wanted;
    size_t n_wanted, before, all;
} sums;

uint32_t vq_input_width(const vq_model *model, vq_input_kind kind)
{
    const vq_hparams *hp = &model->hp;
    return kind == VQ_INPUT_O ? hp->n_heads * hp->d_v : kind == VQ_INPUT_DOWN ? hp->n_ff : hp->n_embd;
}

static void on_input(void *arg, uint32_t layer, vq_input_kind kind, const float *x, uint32_t width, uint32_t n)
{
    const sums *s = arg;
    for (size_t i = 0; i < s->n_wanted; i++)
        if (s->wanted[i].layer == layer && s->wanted[i].kind == kind)
            vq_feedback_add(&s->k, s->wanted[i].sum, s->params->pool, x, n, width);
}

static bool on_progress(void *arg, size_t done, size_t all)
{
    const sums *s = arg;
    (void)all;
    return !s->params->progress || s->params->progress(s->params->arg, s->before + done, s->all);
}

static vq_status run(sums *s, vq_session *session, const int32_t *ids, uint32_t n_ctx, vq_error *err)
{
    const vq_tokenizer *t = vq_model_tokenizer(vq_session_model(session));
    const vq_observer observer = {.arg = s, .input = on_input};
    int32_t *window = malloc(n_ctx * sizeof *window);
    if (!window)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u tokens", n_ctx);
    vq_session_observe(session, &observer);
    vq_status status = VQ_OK;
    for (s->before = 0; s->before < s->all && status == VQ_OK;) {
        const size_t part = s->all - s->before < n_ctx ? s->all - s->before : n_ctx;
        memcpy(window, ids + s->before, part * sizeof *ids);
        if (vq_tokenizer_adds_bos(t) && vq_tokenizer_bos(t) != VQ_NO_TOKEN)
            window[0] = vq_tokenizer_bos(t);
        status = vq_session_truncate(session, 0, err);
        if (status == VQ_OK)
            status = vq_session_run(session, window, part, &(vq_run){.progress = on_progress, .arg = s}, err);
        s->before += part;
    }
    free(window);
    return status;
}

vq_status vq_input_moments(const vq_model *model, const int32_t *ids, size_t n, const vq_input_moments_params *params,
                           const vq_input_moment *wanted, size_t n_wanted, vq_error *err)
{
    const vq_hparams *hp = &model->hp;
    uint32_t n_ctx = params->n_ctx ? params->n_ctx : DEFAULT_CTX;
    if (n_ctx > hp->n_ctx_train)
        n_ctx = hp->n_ctx_train;
    if (params->most > 0 && n > params->most)
        n = params->most;
    if (n < LEAST)
        return vq_fail(err, VQ_ERR_ARG, "%zu tokens to take moments from, must be %d or more", n, LEAST);
    for (size_t i = 0; i < n_wanted; i++) {
        if (wanted[i].layer >= hp->n_layers || wanted[i].kind >= VQ_INPUT_OUTPUT)
            return vq_fail(err, VQ_ERR_ARG, "moments of input %d of layer %u, the model has %u layers",
                           (int)wanted[i].kind, wanted[i].layer, hp->n_layers);
        const size_t width = vq_input_width(model, wanted[i].kind);
        memset(wanted[i].sum, 0, width * width * sizeof(float));
    }
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = n_ctx;
    p.pool = params->pool;
    vq_session *session;
    VQ_TRY(vq_session_open(&session, model, &p, err));
    sums s = {.params = params, .wanted = wanted, .n_wanted = n_wanted, .all = n};
    vq_carry_kernels_init(&s.k, vq_cpu_detect());
    const vq_status status = run(&s, session, ids, n_ctx, err);
    vq_session_close(session);
    return status;
}
