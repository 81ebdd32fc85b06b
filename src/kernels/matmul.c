/* The matrix product around its kernels: the layout of activations, and how work is cut into tasks for the pool.
 * Nothing here changes a result: the parts that a tier is given are independent outputs. */
#include "kernels/matmul_tier.h"

#include <assert.h>
#include <string.h>

enum {
    ROWS = 32, /* of a tile; parts begin at multiples of it */
    TASK_BYTES =
        48 * 1024, /* of weights, at least, in a task of one token: about 5 us of work against 0.2 us to hand it out */
    TASKS_PER_THREAD = 8, /* at most: enough to even out a thread that is held up */
    TOKENS = 64,          /* fewest of a part of a prompt: unpacking the weights of a tile costs about 8 tokens */
    PREPARE_TOKENS = 8,   /* of a task of vq_matmul_prepare */
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
};

bool vq_matmul_supports(vq_type type, uint32_t n_in)
{
    return (uint32_t)type < VQ_N_TYPES && vq_matmul_traits_of[type].block_len > 0 &&
           n_in % vq_matmul_traits_of[type].block_len == 0;
}

bool vq_matmul_prefers_exact(vq_type type)
{
    return (uint32_t)type < VQ_N_TYPES && vq_matmul_traits_of[type].floats;
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Byte offsets of the parts of n_tokens prepared inputs. */
typedef struct act_layout {
    uint32_t n_blocks;
    size_t d, sums, n_bytes;
} act_layout;

static act_layout lay_out(uint32_t n_in, uint32_t n_tokens, bool exact)
{
    act_layout l = {.n_blocks = n_in / VQ_MATMUL_BLOCK + (n_in % VQ_MATMUL_BLOCK != 0)};
    if (exact) {
        l.n_bytes = round_up((size_t)n_in * n_tokens * sizeof(float), 64);
        return l;
    }
    const size_t n_blocks = (size_t)l.n_blocks * n_tokens;
    l.d = round_up(n_blocks * VQ_MATMUL_BLOCK, 64);
    l.sums = l.d + round_up(n_blocks * sizeof(float), 64);
    l.n_bytes = l.sums + round_up(n_blocks * 2 * sizeof(int16_t), 64);
    return l;
}

static vq_matmul_act view(const void *act, uint32_t n_in, uint32_t n_tokens, bool exact)
{
    const act_layout l = lay_out(n_in, n_tokens, exact);
    const char *at = act;
    if (exact)
        return (vq_matmul_act){.n_in = n_in, .n_blocks = l.n_blocks, .x = act};
    return (vq_matmul_act){.n_in = n_in,
                           .n_blocks = l.n_blocks,
                           .code_stride = (size_t)l.n_blocks * VQ_MATMUL_BLOCK,
                           .codes = act,
                           .d = (const float *)(const void *)(at + l.d),
                           .sums = (const int16_t *)(const void *)(at + l.sums)};
}

size_t vq_matmul_act_bytes(uint32_t n_in, uint32_t n_tokens, bool exact)
{
    return lay_out(n_in, n_tokens, exact).n_bytes;
}

typedef struct prepare_args {
    const vq_matmul_tier *tier;
    const float *x;
    int8_t *codes;
    float *d;
    int16_t *sums;
    uint32_t n_in, n_blocks, n_tokens;
} prepare_args;

static void prepare_task(void *arg, uint32_t index, uint32_t thread)
{
    const prepare_args *a = arg;
    const uint32_t first = index * PREPARE_TOKENS;
    const uint32_t n = a->n_tokens - first < PREPARE_TOKENS ? a->n_tokens - first : PREPARE_TOKENS;
    (void)thread;
    for (size_t t = first; t < first + n; t++)
        a->tier->quantize(a->x + t * a->n_in, a->n_in, a->codes + t * a->n_blocks * VQ_MATMUL_BLOCK,
                          a->d + t * a->n_blocks, a->sums + t * a->n_blocks * 2);
}

void vq_matmul_prepare(const vq_matmul_kernels *k, vq_pool *pool, void *act, const float *x, uint32_t n_in,
                       uint32_t n_tokens, bool exact)
{
    if (exact) {
        memcpy(act, x, (size_t)n_in * n_tokens * sizeof *x);
        return;
    }
    const act_layout l = lay_out(n_in, n_tokens, exact);
    char *at = act;
    prepare_args a = {.tier = k->tier,
                      .x = x,
                      .codes = act,
                      .d = (float *)(void *)(at + l.d),
                      .sums = (int16_t *)(void *)(at + l.sums),
                      .n_in = n_in,
                      .n_blocks = l.n_blocks,
                      .n_tokens = n_tokens};
    const uint32_t n_tasks = n_tokens / PREPARE_TOKENS + (n_tokens % PREPARE_TOKENS != 0);
    vq_pool_run(n_tasks > 1 ? pool : NULL, n_tasks, prepare_task, &a);
}

/* Task i of a job: row piece i / n_cuts of rows_each rows, token piece i % n_cuts. */
typedef struct split {
    uint32_t rows_each, n_row_pieces, n_cuts, first_task;
} split;

typedef struct run_args {
    const vq_matmul_tier *tier;
    const vq_matmul_job *jobs;
    vq_matmul_act act;
    split splits[VQ_MATMUL_JOBS];
    uint32_t n_jobs, n_tokens;
    bool exact;
    char *scratch;
} run_args;

static void run_task(void *arg, uint32_t index, uint32_t thread)
{
    const run_args *a = arg;
    uint32_t j = 0;
    while (j + 1 < a->n_jobs && index >= a->splits[j + 1].first_task)
        j++;
    const split *s = &a->splits[j];
    const vq_matmul_job *job = &a->jobs[j];
    const uint32_t piece = (index - s->first_task) / s->n_cuts, cut = (index - s->first_task) % s->n_cuts;
    const uint32_t row = piece * s->rows_each, left = job->w->n_out - row;
    const vq_matmul_part part = {.w = job->w,
                                 .act = &a->act,
                                 .exact = a->exact,
                                 .row = row,
                                 .row_end = row + (left < s->rows_each ? left : s->rows_each),
                                 .token = (uint32_t)((uint64_t)a->n_tokens * cut / s->n_cuts),
                                 .token_end = (uint32_t)((uint64_t)a->n_tokens * (cut + 1) / s->n_cuts),
                                 .out = job->out,
                                 .out_stride = job->out_stride};
    a->tier->run(&part, a->scratch + (size_t)thread * VQ_MATMUL_SCRATCH);
}

static split split_job(const vq_matmul_job *job, uint32_t n_tokens, uint32_t n_threads)
{
    const uint32_t n_tiles = job->w->n_out / ROWS + (job->w->n_out % ROWS != 0);
    const size_t tile_bytes = ROWS * vq_matmul_row_bytes(job->w->type, job->w->n_in);
    uint32_t tiles_each = 1, n_cuts = 1;

    if (n_threads == 1) {
        tiles_each = n_tiles;
    } else if ((uint64_t)n_tokens * tile_bytes < TASK_BYTES || n_tiles >= n_threads * TASKS_PER_THREAD) {
        const size_t fewest = TASK_BYTES / (tile_bytes * n_tokens + 1) + 1;
        const uint32_t most = n_threads * TASKS_PER_THREAD;
        tiles_each = n_tiles / most + (n_tiles % most != 0);
        if (tiles_each < fewest)
            tiles_each = fewest < n_tiles ? (uint32_t)fewest : n_tiles;
    } else if (n_tokens >= 2 * TOKENS) {
        n_cuts = (n_threads * TASKS_PER_THREAD + n_tiles - 1) / n_tiles;
        if (n_cuts > n_tokens / TOKENS)
            n_cuts = n_tokens / TOKENS;
    }
    return (split){
        .rows_each = tiles_each * ROWS, .n_row_pieces = (n_tiles + tiles_each - 1) / tiles_each, .n_cuts = n_cuts};
}

void vq_matmul_many(const vq_matmul_kernels *k, vq_pool *pool, const vq_matmul_job *jobs, uint32_t n_jobs,
                    const void *act, uint32_t n_tokens, bool exact, void *scratch)
{
    assert(n_jobs <= VQ_MATMUL_JOBS);
    if (n_jobs == 0 || n_tokens == 0)
        return;
    run_args a = {.tier = k->tier,
                  .jobs = jobs,
                  .act = view(act, jobs[0].w->n_in, n_tokens, exact),
                  .n_jobs = n_jobs,
                  .n_tokens = n_tokens,
                  .exact = exact,
                  .scratch = scratch};
    const uint32_t n_threads = vq_pool_n_threads(pool);
    uint32_t n_tasks = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        assert(vq_matmul_supports(jobs[j].w->type, jobs[j].w->n_in) && jobs[j].w->n_in == jobs[0].w->n_in);
        a.splits[j] = split_job(&jobs[j], n_tokens, n_threads);
        a.splits[j].first_task = n_tasks;
        n_tasks += a.splits[j].n_row_pieces * a.splits[j].n_cuts;
    }
    vq_pool_run(n_tasks > 1 ? pool : NULL, n_tasks, run_task, &a);
}

void vq_matmul(const vq_matmul_kernels *k, vq_pool *pool, const vq_matrix *w, const void *act, uint32_t n_tokens,
               bool exact, float *out, size_t out_stride, void *scratch)
{
    const vq_matmul_job job = {.w = w, .out = out, .out_stride = out_stride};
    vq_matmul_many(k, pool, &job, 1, act, n_tokens, exact, scratch);
}

size_t vq_matmul_scratch_bytes(uint32_t n_threads)
{
    return (size_t)n_threads * VQ_MATMUL_SCRATCH;
}

void vq_matmul_kernels_init(vq_matmul_kernels *k, uint32_t cpu)
{
    *k = (vq_matmul_kernels){.cpu = cpu, .tier = &vq_matmul_tier_c};
}
