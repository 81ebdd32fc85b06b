/* The matrix product around its kernels: the layout of activations, and how work is cut into tasks for the pool.
 * Nothing here changes a result: the parts that a tier is given are independent outputs. */
#include "kernels/matmul_packed.h"

#include <assert.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/codes.h"

enum {
    ROWS = 32,               /* of a tile; parts begin at multiples of it */
    TASK_PRODUCTS = 1 << 17, /* fewest of a task: 5 us of one token, 1 us of a prompt, against 0.2 us to hand it out */
    TASKS_PER_THREAD = 8,    /* enough to even out a thread that is held up */
    CUT_GROUPS = 12,         /* fewest of a part of a prompt: unpacking a tile costs as much as two groups */
};

const vq_matmul_traits vq_matmul_traits_of[VQ_N_TYPES] = {
    [VQ_TYPE_F32] = {.block_len = 1, .block_bytes = 4, .floats = true},
    [VQ_TYPE_F16] = {.block_len = 1, .block_bytes = 2, .floats = true},
    [VQ_TYPE_BF16] = {.block_len = 1, .block_bytes = 2, .floats = true},
    [VQ_TYPE_Q8_0] = {.block_len = 32, .block_bytes = 34, .offset = 128},
    [VQ_TYPE_Q4_0] = {.block_len = 32, .block_bytes = 18, .offset = 8},
    [VQ_TYPE_Q4_1] = {.block_len = 32, .block_bytes = 20, .minima = true},
    [VQ_TYPE_Q5_0] = {.block_len = 32, .block_bytes = 22, .offset = 16},
    [VQ_TYPE_Q5_1] = {.block_len = 32, .block_bytes = 24, .minima = true},
    [VQ_TYPE_IQ4_NL] = {.block_len = 32, .block_bytes = 18, .offset = 128},
    [VQ_TYPE_Q2_K] = {.block_len = 256, .block_bytes = 84, .halves = true, .minima = true},
    [VQ_TYPE_Q3_K] = {.block_len = 256, .block_bytes = 110, .offset = 4, .halves = true},
    [VQ_TYPE_Q4_K] = {.block_len = 256, .block_bytes = 144, .minima = true},
    [VQ_TYPE_Q5_K] = {.block_len = 256, .block_bytes = 176, .minima = true},
    [VQ_TYPE_Q6_K] = {.block_len = 256, .block_bytes = 210, .offset = 32, .halves = true},
    [VQ_TYPE_VQ2] = {.block_len = 1, .packed = true},
    [VQ_TYPE_VQ3] = {.block_len = 1, .packed = true},
    [VQ_TYPE_VQ4] = {.block_len = 1, .packed = true},
};

bool vq_matmul_supports(vq_type type, uint32_t n_in)
{
    return (uint32_t)type < VQ_N_TYPES && vq_matmul_traits_of[type].block_len > 0 &&
           n_in % vq_matmul_traits_of[type].block_len == 0 &&
           !(vq_matmul_traits_of[type].packed && n_in > VQ_PACKED_MOST_IN);
}

bool vq_matmul_prefers_exact(vq_type type) { return (uint32_t)type < VQ_N_TYPES && vq_matmul_traits_of[type].floats; }

bool vq_matmul_is_packed(vq_type type) { return (uint32_t)type < VQ_N_TYPES && vq_matmul_traits_of[type].packed; }

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

size_t vq_matmul_act_bytes(uint32_t n_in, uint32_t n_tokens, vq_act kind)
{
    if (kind == VQ_ACT_ROWS)
        return n_tokens * vq_packed_token_bytes(n_in);
    const size_t n_full = n_tokens / VQ_MATMUL_GROUP, group = vq_matmul_group_bytes(n_in, kind);
    return round_up(n_full * group + n_tokens % VQ_MATMUL_GROUP * (group / VQ_MATMUL_GROUP), 64);
}

typedef struct prepare_args {
    const vq_matmul_kernels *k;
    const float *x;
    uint8_t *groups;
    uint32_t n_in, n_tokens;
    vq_act kind;
} prepare_args;

static void prepare_row(const vq_matmul_kernels *k, uint8_t *out, const float *x, uint32_t n_in)
{
    vq_packed_head head;
    head.d = k->quantise((int8_t *)out + VQ_PACKED_HEAD, &head.sum, x, n_in);
    memset(out, 0, VQ_PACKED_HEAD);
    memcpy(out, &head, sizeof head);
    memset(out + VQ_PACKED_HEAD + n_in, 0, vq_packed_token_bytes(n_in) - VQ_PACKED_HEAD - n_in);
}

/* Index: of the group. */
static void prepare_task(void *arg, uint32_t index, uint32_t thread)
{
    const prepare_args *a = arg;
    const uint32_t first = index * VQ_MATMUL_GROUP, left = a->n_tokens - first;
    const uint32_t n = left < VQ_MATMUL_GROUP ? left : VQ_MATMUL_GROUP;
    uint8_t *group = a->groups + index * vq_matmul_group_bytes(a->n_in, a->kind);
    (void)thread;
    for (uint32_t t = 0; t < n; t++) {
        const float *x = a->x + (size_t)(first + t) * a->n_in;
        float *out = (float *)(void *)group + t;
        if (a->kind == VQ_ACT_ROWS)
            prepare_row(a->k, a->groups + (first + t) * vq_packed_token_bytes(a->n_in), x, a->n_in);
        else if (a->kind == VQ_ACT_BLOCKS)
            a->k->tier->quantize(group, n, t, x, a->n_in);
        else
            for (size_t i = 0; i < a->n_in; i++)
                out[i * n] = x[i];
    }
}

void vq_matmul_prepare(const vq_matmul_kernels *k, vq_pool *pool, void *act, const float *x, uint32_t n_in,
                       uint32_t n_tokens, vq_act kind)
{
    prepare_args a = {.k = k, .x = x, .groups = act, .n_in = n_in, .n_tokens = n_tokens, .kind = kind};
    const uint32_t n_tasks = n_tokens / VQ_MATMUL_GROUP + (n_tokens % VQ_MATMUL_GROUP != 0);
    vq_pool_run(n_tasks > 1 ? pool : NULL, n_tasks, prepare_task, &a);
}

/* Task first_task + i of a job: rows from i / n_cuts * rows_each, token groups from i % n_cuts * groups_each. */
typedef struct split {
    uint32_t rows_each, groups_each, n_cuts, n_tasks, first_task;
} split;

typedef struct run_args {
    const vq_matmul_kernels *k;
    const vq_matmul_job *jobs;
    vq_matmul_act act;
    split splits[VQ_MATMUL_JOBS];
    uint32_t n_jobs;
    char *scratch;
} run_args;

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void run_task(void *arg, uint32_t index, uint32_t thread)
{
    const run_args *a = arg;
    uint32_t j = 0;
    while (j + 1 < a->n_jobs && index >= a->splits[j + 1].first_task)
        j++;
    const split *s = &a->splits[j];
    const vq_matmul_job *job = &a->jobs[j];
    const uint32_t row = (index - s->first_task) / s->n_cuts * s->rows_each;
    const uint32_t token = (index - s->first_task) % s->n_cuts * s->groups_each * VQ_MATMUL_GROUP;
    const vq_matmul_part part = {.w = job->w,
                                 .act = &a->act,
                                 .row = row,
                                 .row_end = row + least(s->rows_each, job->w->n_out - row),
                                 .token = token,
                                 .token_end = token + least(s->groups_each * VQ_MATMUL_GROUP, a->act.n_tokens - token),
                                 .out = job->out,
                                 .out_stride = job->out_stride};
    void *scratch = a->scratch + (size_t)thread * VQ_MATMUL_SCRATCH;
    if (vq_matmul_is_packed(job->w->type))
        a->k->run_packed(&part, scratch);
    else
        a->k->tier->run(&part, scratch);
}

/* How a job is cut.  Whole rows of tiles first; a matrix of few rows is also cut by tokens. */
static split split_job(const vq_matrix *w, uint32_t n_tokens, uint32_t n_threads)
{
    const uint32_t n_tiles = w->n_out / ROWS + (w->n_out % ROWS != 0);
    const uint32_t n_groups = n_tokens / VQ_MATMUL_GROUP + (n_tokens % VQ_MATMUL_GROUP != 0);
    const uint32_t most = n_threads * TASKS_PER_THREAD;
    uint32_t tiles_each = n_tiles, n_cuts = 1;

    if (n_threads > 1) {
        const uint64_t fewest = TASK_PRODUCTS / ((uint64_t)ROWS * n_tokens * w->n_in + 1) + 1;
        uint32_t n_pieces = fewest < n_tiles ? least((uint32_t)(n_tiles / fewest), most) : 1;
        n_pieces -= n_pieces > n_threads ? n_pieces % n_threads : 0; /* as many for each thread */
        tiles_each = n_tiles / n_pieces;
        if (n_tiles < most && n_groups >= 2 * CUT_GROUPS)
            n_cuts = least((most + n_tiles - 1) / n_tiles, n_groups / CUT_GROUPS);
    }
    const uint32_t groups_each = (n_groups + n_cuts - 1) / n_cuts;
    n_cuts = (n_groups + groups_each - 1) / groups_each;
    return (split){.rows_each = tiles_each * ROWS,
                   .groups_each = groups_each,
                   .n_cuts = n_cuts,
                   .n_tasks = (n_tiles + tiles_each - 1) / tiles_each * n_cuts};
}

void vq_matmul_many(const vq_matmul_kernels *k, vq_pool *pool, const vq_matmul_job *jobs, uint32_t n_jobs,
                    const void *act, uint32_t n_tokens, vq_act kind, void *scratch)
{
    assert(n_jobs <= VQ_MATMUL_JOBS);
    if (n_jobs == 0 || n_tokens == 0)
        return;
    const uint32_t n_in = jobs[0].w->n_in;
    run_args a = {.k = k,
                  .jobs = jobs,
                  .n_jobs = n_jobs,
                  .scratch = scratch,
                  .act = {.n_in = n_in,
                          .n_blocks = n_in / VQ_MATMUL_BLOCK + (n_in % VQ_MATMUL_BLOCK != 0),
                          .n_tokens = n_tokens,
                          .kind = kind,
                          .groups = act}};
    uint32_t n_tasks = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        assert(vq_matmul_supports(jobs[j].w->type, n_in) && jobs[j].w->n_in == n_in && jobs[j].w->n_out > 0);
        assert(kind == VQ_ACT_EXACT || (kind == VQ_ACT_ROWS) == vq_matmul_is_packed(jobs[j].w->type));
        a.splits[j] = split_job(jobs[j].w, n_tokens, vq_pool_n_threads(pool));
        a.splits[j].first_task = n_tasks;
        n_tasks += a.splits[j].n_tasks;
    }
    vq_pool_run(n_tasks > 1 ? pool : NULL, n_tasks, run_task, &a);
}

void vq_matmul(const vq_matmul_kernels *k, vq_pool *pool, const vq_matrix *w, const void *act, uint32_t n_tokens,
               vq_act kind, float *out, size_t out_stride, void *scratch)
{
    const vq_matmul_job job = {.w = w, .out = out, .out_stride = out_stride};
    vq_matmul_many(k, pool, &job, 1, act, n_tokens, kind, scratch);
}

size_t vq_matmul_scratch_bytes(uint32_t n_threads) { return (size_t)n_threads * VQ_MATMUL_SCRATCH; }

void vq_matmul_kernels_init(vq_matmul_kernels *k, uint32_t cpu)
{
    vq_codes_kernels codes;
    vq_codes_kernels_init(&codes, cpu);
    *k = (vq_matmul_kernels){cpu, &vq_matmul_tier_c, vq_packed_run_c, codes.quantise_narrow};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        *k = (vq_matmul_kernels){cpu, &vq_matmul_tier_avx2, vq_packed_run_avx2, codes.quantise_narrow};
    if (cpu & VQ_CPU_AVX512)
        *k = (vq_matmul_kernels){cpu, &vq_matmul_tier_avx512, vq_packed_run_avx512, codes.quantise_narrow};
#endif
}
