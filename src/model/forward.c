/* Opening a forward pass, running tokens through all layers, logits. */
#include "model/forward.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "model/rope.h"
#include "model/steps.h"

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

static bool has_packed(const vq_model *m)
{
    bool any = vq_matmul_is_packed(m->output.type);
    for (uint32_t i = 0; i < m->hp.n_layers; i++) {
        const vq_layer *w = &m->layers[i];
        const vq_matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            any = any || vq_matmul_is_packed(all[j]->type);
    }
    return any;
}

static void layout(vq_arena *a, vq_forward *f)
{
    const vq_hparams *hp = &f->model->hp;
    const uint32_t n = f->n_batch, n_logits = n > VQ_FORWARD_LOGITS ? n : VQ_FORWARD_LOGITS;
    const uint32_t widths[] = {hp->n_embd, hp->n_heads * hp->d_v, hp->n_ff};
    size_t act_bytes = 0;
    for (int i = 0; i < 3; i++)
        for (int kind = VQ_ACT_BLOCKS; kind <= VQ_ACT_ROWS; kind++) /* also in int8 mode some inputs stay exact */
            act_bytes = most(act_bytes, vq_matmul_act_bytes(widths[i], n_logits, (vq_act)kind));
    f->widest = (uint32_t)most(most(widths[0], widths[1]), widths[2]);

    f->stream = vq_arena_take(a, n, hp->n_embd * sizeof *f->x);
    f->h = vq_arena_take(a, n_logits, hp->n_embd * sizeof *f->h);
    f->q = vq_arena_take(a, n, (size_t)hp->n_heads * hp->d_k * sizeof *f->q);
    f->k = vq_arena_take(a, n, (size_t)hp->n_kv_heads * hp->d_k * sizeof *f->k);
    f->v = vq_arena_take(a, n, (size_t)hp->n_kv_heads * hp->d_v * sizeof *f->v);
    f->o = vq_arena_take(a, n, (size_t)hp->n_heads * hp->d_v * sizeof *f->o);
    f->gate = vq_arena_take(a, n, hp->n_ff * sizeof *f->gate);
    f->up = vq_arena_take(a, n, hp->n_ff * sizeof *f->up);
    for (int rope = 0; rope < VQ_N_ROPES; rope++) {
        f->cos[rope] = vq_arena_take(a, n, hp->n_rot / 2 * sizeof(float));
        f->sin[rope] = vq_arena_take(a, n, hp->n_rot / 2 * sizeof(float));
    }
    if (has_packed(f->model)) {
        f->rotated = vq_arena_take(a, n_logits, f->widest * sizeof *f->rotated);
        f->turn_scratch = vq_arena_take(a, vq_pool_n_threads(f->pool), f->widest * sizeof *f->turn_scratch);
    }
    f->act = vq_arena_take(a, act_bytes, 1);
    f->scratch = vq_arena_take(a, vq_matmul_scratch_bytes(vq_pool_n_threads(f->pool)), 1);
}

vq_status vq_forward_open(vq_forward **out, const vq_model *model, vq_pool *pool, uint32_t n_batch, bool exact,
                          vq_error *err)
{
    *out = NULL;
    if (n_batch < 1 || n_batch > VQ_MAX_CONTEXT)
        return vq_fail(err, VQ_ERR_ARG, "batches of %u tokens, must be 1 to %d", n_batch, VQ_MAX_CONTEXT);
    vq_forward *f = calloc(1, sizeof *f);
    if (!f)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a forward pass");
    f->model = model;
    f->pool = pool;
    f->n_batch = n_batch;
    f->exact = exact;
    vq_kernels_init(&f->kernels, vq_cpu_detect());
    layout(&f->arena, f);
    const vq_status status = vq_arena_alloc(&f->arena, err);
    if (status != VQ_OK) {
        vq_forward_close(f);
        return status;
    }
    layout(&f->arena, f);
    *out = f;
    return VQ_OK;
}

void vq_forward_close(vq_forward *f)
{
    if (!f)
        return;
    vq_arena_free(&f->arena);
    free(f);
}

void vq_forward_observe(vq_forward *f, const vq_observer *observer) { f->observer = observer; }

void vq_forward_kv_params(const vq_model *model, vq_kv_params *params)
{
    const vq_hparams *hp = &model->hp;
    params->n_layers = hp->n_layers;
    params->n_heads = hp->n_heads;
    params->n_kv_heads = hp->n_kv_heads;
    params->d_k = hp->d_k;
    params->d_v = hp->d_v;
    params->window = model->windows;
    params->ropes = model->kv_ropes;
    params->scale = hp->attn_scale;
    params->model_hash = model->hash;
    params->rope_base = model->ropes[VQ_ROPE_GLOBAL].base;
}

typedef struct embed_work {
    vq_forward *f;
    const int32_t *ids;
} embed_work;

/* Embedding and turns of one token. */
static void embed(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const embed_work *w = arg;
    vq_forward *f = w->f;
    const vq_model *m = f->model;
    const uint32_t n_embd = m->hp.n_embd, n_pairs = m->hp.n_rot / 2;
    float *x = f->stream + (size_t)i * n_embd;
    const char *rows = m->embd.data;
    vq_type_dequantize(m->embd.type, rows + (size_t)w->ids[i] * vq_type_row_bytes(m->embd.type, n_embd), x, n_embd);
    if (m->hp.embd_scale != 1)
        f->kernels.vec.scale(x, m->hp.embd_scale, n_embd);
    for (int rope = 0; rope < VQ_N_ROPES; rope++)
        if (m->ropes[rope].freq)
            vq_rope_turn(m->ropes[rope].freq, n_pairs, f->pos + i, f->cos[rope] + (size_t)i * n_pairs,
                         f->sin[rope] + (size_t)i * n_pairs);
}

vq_status vq_forward_run(vq_forward *f, vq_kv *kv, const int32_t *ids, uint32_t pos, uint32_t n, uint32_t first,
                         vq_error *err)
{
    const vq_model *m = f->model;
    if (n < 1 || n > f->n_batch)
        return vq_fail(err, VQ_ERR_ARG, "%u tokens in one run, must be 1 to %u", n, f->n_batch);
    if (first > n)
        return vq_fail(err, VQ_ERR_ARG, "logits wanted from row %u of %u", first, n);
    if (pos > VQ_MAX_CONTEXT - n)
        return vq_fail(err, VQ_ERR_ARG, "position %u is above %u", pos, VQ_MAX_CONTEXT - n);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= m->hp.n_vocab)
            return vq_fail(err, VQ_ERR_ARG, "token %u is %d, the vocabulary has %u", i, ids[i], m->hp.n_vocab);
    VQ_TRY(vq_model_check_whole(m, err));

    f->kv = kv;
    f->pos = pos;
    f->n = n;
    f->n_skip = f->observer ? 0 : first;
    f->n_valid = 0;
    f->x = f->stream;
    vq_pool_run(n > 1 ? f->pool : NULL, n, embed, &(embed_work){f, ids});
    for (f->layer = 0; f->layer < m->hp.n_layers; f->layer++)
        VQ_TRY(m->family->layer(f, &m->layers[f->layer], err));
    f->n_valid = n;
    return VQ_OK;
}

void vq_forward_logits(vq_forward *f, uint32_t first, uint32_t n, float *logits)
{
    assert(n <= VQ_FORWARD_LOGITS && first >= f->n_skip && first + n <= f->n_valid);
    const vq_model *m = f->model;
    f->n = n;
    vq_step_norm(f, f->h, f->stream + (size_t)first * m->hp.n_embd, m->output_norm, m->hp.n_embd);
    vq_step_product(f, logits, f->h, &m->output); /* logits = Wout norm(x)  [n][n_vocab] */
}
