#include "engine/codebooks.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kv/codec_generic.h"
#include "quant/atoms.h"
#include "quant/factor.h"
#include "quant/product.h"
#include "quant/smooth.h"

/* Atoms are few: 64 numbers a sub-vector at most. */
enum { SAMPLE_SEED = 17, ATOM_SAMPLE = 1024 };

/* ---- the sample ---- */

static uint32_t needed_for(vq_rows_kind kind)
{
    switch (kind) {
    case VQ_ROWS_K: return VQ_CODEBOOKS_SMOOTH;
    case VQ_ROWS_V: return VQ_CODEBOOKS_VALUES | VQ_CODEBOOKS_ATOMS;
    case VQ_ROWS_K_BEFORE_ROPE: return VQ_CODEBOOKS_ATOMS | VQ_CODEBOOKS_FACTOR;
    default: return 0;
    }
}

void vq_samples_layout(vq_samples *s, vq_arena *arena, const vq_calibration_info *shape)
{
    for (int kind = 0; kind <= VQ_ROWS_V; kind++) {
        if (!(s->codebooks & needed_for((vq_rows_kind)kind)))
            continue;
        const size_t d = kind == VQ_ROWS_V ? shape->d_v : shape->d_k;
        s->rows[kind] = vq_arena_take(arena, (size_t)shape->n_layers * shape->n_kv_heads * VQ_SAMPLE_ROWS,
                                      d * sizeof *s->rows[kind]);
        s->n_seen[kind] = vq_arena_take(arena, shape->n_layers, sizeof *s->n_seen[kind]);
    }
    vq_kernels_init(&s->kernels, vq_cpu_detect());
}

void vq_samples_add(vq_samples *s, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t skip, uint32_t n)
{
    if (!s->rows[kind])
        return;
    for (uint32_t i = skip; i < n; i++) {
        const uint64_t seen = s->n_seen[kind][layer]++;
        const uint64_t at = seen < VQ_SAMPLE_ROWS ? seen : vq_hash64(SAMPLE_SEED, seen, 0, 0, 0) % (seen + 1);
        if (at >= VQ_SAMPLE_ROWS)
            continue;
        for (uint32_t h = 0; h < n_heads; h++) {
            uint16_t *to = s->rows[kind] + ((((size_t)layer * n_heads + h) * VQ_SAMPLE_ROWS) + at) * d;
            s->kernels.vec.f32_to_f16(to, x + ((size_t)i * n_heads + h) * d, d);
        }
    }
}

/* ---- codebooks ---- */

typedef struct one_book {
    vq_statistic what;
    vq_rows_kind kind;
    uint32_t sub, atom_bits; /* centroids of sub-vectors, or atoms */
} one_book;

static const one_book books[] = {
    {VQ_VALUE_CODEBOOK_4, VQ_ROWS_V, 4, 0},
    {VQ_VALUE_CODEBOOK_8, VQ_ROWS_V, 8, 0},
    {VQ_KEY_SMOOTH_CODEBOOK_4, VQ_ROWS_K, 4, 0},
    {VQ_KEY_SMOOTH_CODEBOOK_8, VQ_ROWS_K, 8, 0},
    {VQ_KEY_FACTOR_CODEBOOK_4, VQ_ROWS_K_BEFORE_ROPE, 4, 0},
    {VQ_KEY_FACTOR_CODEBOOK_8, VQ_ROWS_K_BEFORE_ROPE, 8, 0},
    {VQ_KEY_ATOMS_1, VQ_ROWS_K_BEFORE_ROPE, VQ_ATOM_VALUES, 1},
    {VQ_KEY_ATOMS_2, VQ_ROWS_K_BEFORE_ROPE, VQ_ATOM_VALUES, 2},
    {VQ_VALUE_ATOMS_1, VQ_ROWS_V, VQ_ATOM_VALUES, 1},
    {VQ_VALUE_ATOMS_2, VQ_ROWS_V, VQ_ATOM_VALUES, 2},
};
enum { N_BOOKS = sizeof books / sizeof *books };

typedef struct layer_job {
    const vq_codebooks_job *job;
    uint32_t layer;
    const one_book *chosen[N_BOOKS];
    vq_status *status; /* [tasks] */
    vq_error *err;     /* [tasks] */
} layer_job;

/* Rows less their mean, in the order of pairs.  (Where d is no multiple of a sub-vector commvq refuses it.) */
static void list_pairs(const layer_job *l, const one_book *b, uint32_t head, float *x, uint32_t n, uint32_t width)
{
    const bool keys = b->kind == VQ_ROWS_K_BEFORE_ROPE;
    const vq_calibration_info *info = vq_calibration_get_info(l->job->calibration);
    const uint32_t d = keys ? info->d_k : info->d_v;
    const vq_kv_rope *rope = &l->job->ropes[l->layer];
    const float *mean =
        vq_calibration_at(l->job->calibration, keys ? VQ_KEY_BEFORE_MEAN : VQ_VALUE_MEAN, l->layer, head);
    uint16_t order[VQ_SMOOTH_MOST_D];
    float row[VQ_SMOOTH_MOST_D];
    vq_atoms_order(order, d, keys && rope->freq ? rope->n_rot : 0, rope->halves);
    for (uint32_t i = 0; i < n; i++, x += width) {
        memcpy(row, x, d * sizeof *row);
        for (uint32_t j = 0; j < d; j++)
            x[j] = row[order[j]] - mean[order[j]];
    }
}

static void weigh_keys(const layer_job *l, uint32_t head, float *x, uint32_t n, uint32_t width)
{
    const uint32_t d = vq_calibration_get_info(l->job->calibration)->d_k;
    const float *factor = vq_calibration_at(l->job->calibration, VQ_KEY_FACTOR, l->layer, head);
    float row[VQ_SMOOTH_MOST_D];
    for (uint32_t i = 0; i < n; i++, x += width) {
        memcpy(row, x, d * sizeof *row);
        vq_factor_key(factor, d, row, x);
    }
}

/* Task: the factor of one head: of its group's queries before RoPE, which stand VQ_A2ATS_OFFSET after the keys.  A
 * hundredth of the mean on the diagonal, for keys that are nearer and see other turns. */
static void make_factor(void *arg, uint32_t head, uint32_t thread)
{
    (void)thread;
    const layer_job *l = arg;
    vq_calibration *c = l->job->calibration;
    const vq_calibration_info *info = vq_calibration_get_info(c);
    const uint32_t d = info->d_k, group = info->n_heads / info->n_kv_heads;
    const vq_kv_rope *rope = &l->job->ropes[l->layer];
    float *to = vq_calibration_edit(c, VQ_KEY_FACTOR, l->layer, head), column[VQ_SMOOTH_MOST_D];
    double *h = malloc((size_t)d * d * sizeof *h);
    l->status[head] = h ? VQ_OK : vq_fail(&l->err[head], VQ_ERR_NOMEM, "no memory for %u x %u products", d, d);
    if (!h)
        return;
    memset(to, 0, (size_t)d * d * sizeof *to);
    for (uint32_t g = 0; g < group; g++) {
        const float *moment = vq_calibration_at(c, VQ_QUERY_BEFORE_MOMENT, l->layer, head * group + g);
        for (size_t i = 0; i < (size_t)d * d; i++)
            to[i] += moment[i] / (float)group;
    }
    /* R H R': rows turned, then columns. */
    for (uint32_t i = 0; rope->freq && i < d; i++)
        vq_turn_by(rope, &l->job->samples->kernels, VQ_A2ATS_OFFSET, d, to + (size_t)i * d);
    for (uint32_t j = 0; rope->freq && j < d; j++) {
        for (uint32_t i = 0; i < d; i++)
            column[i] = to[(size_t)i * d + j];
        vq_turn_by(rope, &l->job->samples->kernels, VQ_A2ATS_OFFSET, d, column);
        for (uint32_t i = 0; i < d; i++)
            to[(size_t)i * d + j] = column[i];
    }
    for (size_t i = 0; i < (size_t)d * d; i++)
        h[i] = (double)to[i];
    vq_factor(h, d, 0.01);
    for (size_t i = 0; i < (size_t)d * d; i++)
        to[i] = (float)h[i];
    free(h);
}

/* Rows of one head as the codebook's codec sees them, x [n][width] with zeros past d. */
static vq_status transform(const layer_job *l, const one_book *b, uint32_t head, float *x, uint32_t n, uint32_t width,
                           vq_error *err)
{
    const vq_calibration *c = l->job->calibration;
    if (b->atom_bits)
        list_pairs(l, b, head, x, n, width);
    else if (b->kind == VQ_ROWS_K_BEFORE_ROPE)
        weigh_keys(l, head, x, n, width);
    if (b->kind != VQ_ROWS_K)
        return VQ_OK;
    vq_arena arena = {0};
    vq_smooth smooth;
    const uint32_t d = vq_calibration_get_info(c)->d_k;
    vq_smooth_layout(&smooth, &arena, d);
    VQ_TRY(vq_arena_alloc(&arena, err));
    vq_smooth_layout(&smooth, &arena, d);
    const vq_status status =
        vq_smooth_make(&smooth, &l->job->samples->kernels.codes, vq_calibration_at(c, VQ_KEY_LEAST, l->layer, head),
                       vq_calibration_at(c, VQ_KEY_MOST, l->layer, head), l->layer, head, err);
    for (uint32_t i = 0; i < n && status == VQ_OK; i++)
        vq_smooth_key(&smooth, x + (size_t)i * width);
    vq_arena_free(&arena);
    return status;
}

static vq_status make_book(const layer_job *l, const one_book *b, uint32_t head, vq_error *err)
{
    const vq_codebooks_job *job = l->job;
    const vq_samples *s = job->samples;
    const vq_calibration_info *info = vq_calibration_get_info(job->calibration);
    const uint32_t d = b->kind == VQ_ROWS_V ? info->d_v : info->d_k, n_sub = (d + b->sub - 1) / b->sub;
    const uint32_t width = n_sub * b->sub;
    const uint64_t seen = s->n_seen[b->kind][l->layer];
    const uint32_t all = seen < VQ_SAMPLE_ROWS ? (uint32_t)seen : VQ_SAMPLE_ROWS;
    const uint32_t n = b->atom_bits && all > ATOM_SAMPLE ? ATOM_SAMPLE : all;
    float *x = calloc((size_t)n * width + 1, sizeof *x);
    if (!x)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u rows of %u values", n, width);
    const uint16_t *rows = s->rows[b->kind] + ((size_t)l->layer * info->n_kv_heads + head) * VQ_SAMPLE_ROWS * d;
    for (uint32_t i = 0; i < n; i++)
        s->kernels.vec.f16_to_f32(x + (size_t)i * width, rows + (size_t)i * all / n * d, d);
    vq_status status = transform(l, b, head, x, n, width, err);
    float *to = vq_calibration_edit(job->calibration, b->what, l->layer, head);
    if (status == VQ_OK && b->atom_bits)
        status = vq_atoms_train(to, &s->kernels.nearest, n_sub, b->atom_bits, x, n, err);
    else if (status == VQ_OK)
        status = vq_product_train(to, b->sub, n_sub, x, n, vq_hash64(b->what, l->layer, head, 0, 0), err);
    free(x);
    return status;
}

/* Task: one codebook of one head. */
static void run_task(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const layer_job *l = arg;
    const uint32_t n_heads = vq_calibration_get_info(l->job->calibration)->n_kv_heads;
    l->status[index] = make_book(l, l->chosen[index / n_heads], index % n_heads, &l->err[index]);
}

vq_status vq_codebooks_make(const vq_codebooks_job *job, vq_error *err)
{
    const vq_calibration_info *info = vq_calibration_get_info(job->calibration);
    layer_job l = {.job = job};
    uint32_t n_books = 0;
    for (uint32_t i = 0; i < N_BOOKS; i++)
        if (vq_statistic_shape_of(info, books[i].what).n_floats > 0)
            l.chosen[n_books++] = &books[i];
    const uint32_t n_tasks = n_books * info->n_kv_heads;
    l.status = calloc(n_tasks + 1, sizeof *l.status);
    l.err = calloc(n_tasks + 1, sizeof *l.err);
    vq_status status = VQ_OK;
    if (!l.status || !l.err)
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for %u codebooks", n_tasks);
    for (l.layer = 0; l.layer < info->n_layers && status == VQ_OK && n_tasks > 0; l.layer++) {
        if (info->codebooks & VQ_CODEBOOKS_FACTOR)
            vq_pool_run(job->pool, info->n_kv_heads, make_factor, &l);
        vq_pool_run(job->pool, n_tasks, run_task, &l);
        for (uint32_t i = 0; i < n_tasks && status == VQ_OK; i++)
            if (l.status[i] != VQ_OK) {
                status = l.status[i];
                *err = l.err[i];
            }
        if (status == VQ_OK && job->progress &&
            !job->progress(job->arg, (size_t)(l.layer + 1) * n_tasks, (size_t)info->n_layers * n_tasks))
            status = vq_fail(err, VQ_ERR_CANCELLED, "stopped after layer %u", l.layer);
    }
    free(l.status);
    free(l.err);
    return status;
}
