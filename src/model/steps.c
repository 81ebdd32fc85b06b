/* Steps of the forward pass: products go to kernels/matmul, attention to the cache, and what is done row by row is
 * handed to the pool when there are many rows. */
#include "model/steps.h"

#include <string.h>

#include "quant/rotation.h"

/* Rows a task: a few microseconds of work, so that handing it out is noise. */
enum { ROWS_A_TASK = 8 };

typedef struct row_work {
    const vq_forward *f;
    void (*rows)(const struct row_work *w, uint32_t first, uint32_t n);
    float *out;
    const float *x, *weight;
    uint32_t n_rows, width, n_heads;
    vq_rope_kind rope;
} row_work;

static void task(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const row_work *w = arg;
    const uint32_t first = index * ROWS_A_TASK, left = w->n_rows - first;
    w->rows(w, first, left < ROWS_A_TASK ? left : ROWS_A_TASK);
}

static void run_rows(vq_forward *f, row_work w)
{
    w.f = f;
    w.n_rows = f->n;
    if (w.n_rows <= ROWS_A_TASK)
        w.rows(&w, 0, w.n_rows);
    else
        vq_pool_run(f->pool, (w.n_rows + ROWS_A_TASK - 1) / ROWS_A_TASK, task, &w);
}

static void norm_rows(const row_work *w, uint32_t first, uint32_t n)
{
    const vq_vec_kernels *k = &w->f->kernels.vec;
    const size_t from = (size_t)first * w->n_heads, to = from + (size_t)n * w->n_heads;
    for (size_t i = from; i < to; i++)
        k->rms_norm(w->out + i * w->width, w->x + i * w->width, w->weight, w->width, w->f->model->hp.norm_eps);
}

void vq_step_norm(vq_forward *f, float *out, const float *x, const float *weight, uint32_t width)
{
    run_rows(f, (row_work){.rows = norm_rows, .out = out, .x = x, .weight = weight, .width = width, .n_heads = 1});
}

void vq_step_head_norm(vq_forward *f, float *x, const float *weight, uint32_t n_heads)
{
    const uint32_t d = f->model->hp.d_k;
    run_rows(f, (row_work){.rows = norm_rows, .out = x, .x = x, .weight = weight, .width = d, .n_heads = n_heads});
}

static void bias_rows(const row_work *w, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++)
        w->f->kernels.vec.add(w->out + (size_t)i * w->width, w->weight, w->width);
}

void vq_step_bias(vq_forward *f, float *x, const float *bias, uint32_t width)
{
    if (bias)
        run_rows(f, (row_work){.rows = bias_rows, .out = x, .weight = bias, .width = width});
}

static void rope_rows(const row_work *w, uint32_t first, uint32_t n)
{
    const vq_hparams *hp = &w->f->model->hp;
    const size_t n_pairs = hp->n_rot / 2;
    for (uint32_t i = first; i < first + n; i++)
        w->f->kernels.vec.rope(w->out + (size_t)i * w->n_heads * hp->d_k, w->f->cos[w->rope] + i * n_pairs,
                               w->f->sin[w->rope] + i * n_pairs, w->n_heads, hp->d_k, hp->n_rot, hp->rope_halves);
}

static void show_rows(const vq_forward *f, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d)
{
    if (f->observer && f->observer->rows)
        f->observer->rows(f->observer->arg, f->layer, kind, x, n_heads, d, f->pos, f->n);
}

static void show_input(const vq_forward *f, vq_input_kind kind, const float *x, uint32_t width)
{
    if (f->observer && f->observer->input && f->n > 0)
        f->observer->input(f->observer->arg, f->layer, kind, x, width, f->n);
}

void vq_step_rope(vq_forward *f, float *x, vq_rope_kind rope, uint32_t n_heads)
{
    show_rows(f, x == f->q ? VQ_ROWS_Q_BEFORE_ROPE : VQ_ROWS_K_BEFORE_ROPE, x, n_heads, f->model->hp.d_k);
    run_rows(f, (row_work){.rows = rope_rows, .out = x, .n_heads = n_heads, .rope = rope});
}

typedef struct rotate_work {
    const vq_forward *f;
    const vq_rotation *rotation;
    const float *x;
} rotate_work;

static void rotate_row(void *arg, uint32_t i, uint32_t thread)
{
    const rotate_work *w = arg;
    const size_t width = w->rotation->d;
    float *row = w->f->rotated + i * width;
    memcpy(row, w->x + i * width, width * sizeof *row);
    vq_rotation_apply(w->rotation, row, w->f->turn_scratch + (size_t)thread * w->f->widest);
}

/* How the input of each product is prepared.  Matrices of f32, f16 and bf16 are multiplied in f32 anyway, so theirs
 * stays exact; beside block types they take what those need. */
static void choose_kinds(const vq_forward *f, vq_act *kinds, const vq_matmul_job *jobs, uint32_t n_jobs)
{
    bool blocks = false;
    for (uint32_t i = 0; i < n_jobs; i++) {
        const bool packed = vq_matmul_is_packed(jobs[i].w->type), exact = vq_matmul_prefers_exact(jobs[i].w->type);
        kinds[i] = f->exact || exact ? VQ_ACT_EXACT : packed ? VQ_ACT_ROWS : VQ_ACT_BLOCKS;
        blocks = blocks || kinds[i] == VQ_ACT_BLOCKS;
    }
    for (uint32_t i = 0; i < n_jobs; i++)
        if (blocks && kinds[i] == VQ_ACT_EXACT)
            kinds[i] = VQ_ACT_BLOCKS;
}

/* Products of one input, which is rotated and prepared once for all matrices that agree in how. */
static void products(vq_forward *f, const float *x, const vq_matmul_job *jobs, uint32_t n_jobs)
{
    vq_matmul_job now[VQ_MATMUL_JOBS];
    vq_act kinds[VQ_MATMUL_JOBS];
    bool done[VQ_MATMUL_JOBS] = {false};
    if (f->n == 0)
        return;
    choose_kinds(f, kinds, jobs, n_jobs);
    for (uint32_t first = 0; first < n_jobs; first++) {
        const vq_rotation *rotation = jobs[first].w->rotation;
        uint32_t n_now = 0;
        for (uint32_t i = first; i < n_jobs; i++)
            if (!done[i] && jobs[i].w->rotation == rotation && kinds[i] == kinds[first]) {
                now[n_now++] = jobs[i];
                done[i] = true;
            }
        if (n_now == 0)
            continue;
        if (rotation)
            vq_pool_run(f->n > 1 ? f->pool : NULL, f->n, rotate_row, &(rotate_work){f, rotation, x});
        vq_matmul_prepare(&f->kernels.matmul, f->pool, f->act, rotation ? f->rotated : x, jobs[first].w->n_in, f->n,
                          kinds[first]);
        vq_matmul_many(&f->kernels.matmul, f->pool, now, n_now, f->act, f->n, kinds[first], f->scratch);
    }
}

void vq_step_product(vq_forward *f, float *out, const float *x, const vq_matrix *w)
{
    if (f->observer) {
        const bool last = w == &f->model->output;
        const vq_layer *layer = last ? NULL : &f->model->layers[f->layer];
        show_input(f, last ? VQ_INPUT_OUTPUT : w == &layer->o ? VQ_INPUT_O : VQ_INPUT_DOWN, x, w->n_in);
    }
    products(f, x, &(vq_matmul_job){w, out, w->n_out}, 1);
}

void vq_step_qkv(vq_forward *f, const float *x, const vq_layer *layer)
{
    const vq_matmul_job jobs[] = {
        {&layer->q, f->q, layer->q.n_out},
        {&layer->k, f->k, layer->k.n_out},
        {&layer->v, f->v, layer->v.n_out},
    };
    show_input(f, VQ_INPUT_QKV, x, layer->q.n_in);
    products(f, x, jobs, 3);
}

void vq_step_gate_up(vq_forward *f, const float *x, const vq_layer *layer)
{
    const vq_matmul_job jobs[] = {
        {&layer->gate, f->gate, layer->gate.n_out},
        {&layer->up, f->up, layer->up.n_out},
    };
    show_input(f, VQ_INPUT_GATE_UP, x, layer->gate.n_in);
    products(f, x, jobs, 2);
}

vq_status vq_step_attend(vq_forward *f, vq_error *err)
{
    const vq_hparams *hp = &f->model->hp;
    show_rows(f, VQ_ROWS_Q, f->q, hp->n_heads, hp->d_k);
    show_rows(f, VQ_ROWS_K, f->k, hp->n_kv_heads, hp->d_k);
    show_rows(f, VQ_ROWS_V, f->v, hp->n_kv_heads, hp->d_v);
    VQ_TRY(vq_kv_append(f->kv, f->layer, f->pos, f->k, f->v, f->n, err));
    const bool is_last = f->layer + 1 == hp->n_layers;
    const uint32_t skip = is_last ? f->n_skip : 0;
    /* Eviction may look at the queries of all rows, also where nobody wants their logits. */
    if (skip > 0)
        vq_kv_observe(f->kv, f->layer, f->q, f->n);
    f->n -= skip;
    f->x += (size_t)skip * hp->n_embd;
    const float *q = f->q + (size_t)skip * hp->n_heads * hp->d_k;
    return f->n == 0 ? VQ_OK : vq_kv_attend(f->kv, f->layer, q, f->n, f->o, err);
}

static void add_rows(const row_work *w, uint32_t first, uint32_t n)
{
    const size_t from = (size_t)first * w->width;
    w->f->kernels.vec.add(w->out + from, w->x + from, n * w->width);
}

void vq_step_add(vq_forward *f, const float *y)
{
    run_rows(f, (row_work){.rows = add_rows, .out = f->x, .x = y, .width = f->model->hp.n_embd});
}

static void silu_rows(const row_work *w, uint32_t first, uint32_t n)
{
    const size_t from = (size_t)first * w->width;
    w->f->kernels.vec.silu_mul(w->out + from, w->x + from, n * w->width);
}

static void gelu_rows(const row_work *w, uint32_t first, uint32_t n)
{
    const size_t from = (size_t)first * w->width;
    w->f->kernels.vec.gelu_mul(w->out + from, w->x + from, n * w->width);
}

void vq_step_silu(vq_forward *f)
{
    run_rows(f, (row_work){.rows = silu_rows, .out = f->gate, .x = f->up, .width = f->model->hp.n_ff});
}

void vq_step_gelu(vq_forward *f)
{
    run_rows(f, (row_work){.rows = gelu_rows, .out = f->gate, .x = f->up, .width = f->model->hp.n_ff});
}
