/* Variants that take turns: each round runs every variant once, then the base again, on other inputs than the round
 * before. */
#include <stdlib.h>
#include <time.h>
#include <xxhash.h>

#include "base/status.h"
#include "veloxquant/measure.h"

double vq_clock_seconds(vq_clock clock)
{
    static const clockid_t ids[] = {
        [VQ_CLOCK_WALL] = CLOCK_MONOTONIC,
        [VQ_CLOCK_THREAD] = CLOCK_THREAD_CPUTIME_ID,
        [VQ_CLOCK_PROCESS] = CLOCK_PROCESS_CPUTIME_ID,
    };
    struct timespec t;
    clock_gettime(ids[clock], &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(bool cpu_time) { return vq_clock_seconds(cpu_time ? VQ_CLOCK_THREAD : VQ_CLOCK_WALL); }

typedef struct summed {
    XXH64_hash_t sum;
    uint32_t input;
} summed;

static int by_sum(const void *a, const void *b)
{
    const summed *x = a, *y = b;
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    return x->input < y->input ? -1 : 1;
}

static vq_status check_inputs(const vq_turns *t, vq_error *err)
{
    if (t->n_inputs < 2)
        return vq_fail(err, VQ_ERR_ARG, "a pool of %u inputs; at least 2, or caches answer", t->n_inputs);
    if (!t->input)
        return VQ_OK;
    summed *sums = malloc(t->n_inputs * sizeof *sums);
    if (!sums)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for the checksums of %u inputs", t->n_inputs);
    for (uint32_t i = 0; i < t->n_inputs; i++) {
        size_t n_bytes = 0;
        const void *bytes = t->input(t->input_arg, i, &n_bytes);
        sums[i] = (summed){XXH64(bytes, n_bytes, 0), i};
    }
    qsort(sums, t->n_inputs, sizeof *sums, by_sum);
    vq_status status = VQ_OK;
    for (uint32_t i = 1; i < t->n_inputs && status == VQ_OK; i++)
        if (sums[i].sum == sums[i - 1].sum)
            status = vq_fail(err, VQ_ERR_ARG, "inputs %u and %u of the pool are the same bytes", sums[i - 1].input,
                             sums[i].input);
    free(sums);
    return status;
}

/* Passes over successive inputs from *at on, until the sample is long enough; seconds of one. */
static vq_status sample(const vq_turns *t, const vq_variant *v, uint32_t *at, double *seconds, vq_error *err)
{
    uint32_t n = 0;
    double took;
    const double start = now(t->cpu_time);
    do {
        VQ_TRY(v->run(v->arg, *at, err));
        *at = *at + 1 < t->n_inputs ? *at + 1 : 0;
        n++;
        took = now(t->cpu_time) - start;
    } while (took < t->sample_seconds);
    *seconds = took / n;
    return VQ_OK;
}

static vq_status take_rounds(const vq_turns *t, double *seconds, vq_load_mark *marks, uint32_t *n_marks, vq_error *err)
{
    const size_t n = t->n_variants;
    uint32_t at = 0;
    double unused;
    for (size_t i = 0; i < n; i++)
        VQ_TRY(sample(t, &t->variants[i], &at, &unused, err));
    vq_load_take(&marks[(*n_marks)++]);
    for (uint32_t r = 0; r < t->n_rounds; r++) {
        for (size_t i = 0; i <= n; i++)
            VQ_TRY(sample(t, &t->variants[i < n ? i : 0], &at, &seconds[i * t->n_rounds + r], err));
        vq_load_take(&marks[(*n_marks)++]);
        if (t->progress && !t->progress(t->progress_arg, r + 1, t->n_rounds))
            return vq_fail(err, VQ_ERR_CANCELLED, "cancelled after %u of %u rounds", r + 1, t->n_rounds);
    }
    return VQ_OK;
}

vq_status vq_take_turns(const vq_turns *t, double *seconds, vq_load *load, vq_error *err)
{
    *load = (vq_load){0};
    if (t->n_variants == 0 || t->n_rounds == 0)
        return vq_fail(err, VQ_ERR_ARG, "%zu variants, %u rounds: nothing to measure", t->n_variants, t->n_rounds);
    VQ_TRY(check_inputs(t, err));
    vq_load_mark *marks = malloc(((size_t)t->n_rounds + 1) * sizeof *marks);
    if (!marks)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for the load of %u rounds", t->n_rounds);
    uint32_t n_marks = 0;
    vq_status status = take_rounds(t, seconds, marks, &n_marks, err);
    *load = vq_load_between(marks, n_marks);
    free(marks);
    if (status == VQ_OK && t->need_quiet && !load->quiet)
        status =
            vq_fail(err, VQ_ERR_UNSUPPORTED,
                    "the machine was not quiet: other processes took %.2f CPUs (limit %.2f), the host %.2f (%.2f), "
                    "%.1f waited (%.1f)",
                    load->others, VQ_QUIET_OTHERS, load->steal, VQ_QUIET_STEAL, load->waiting, VQ_QUIET_WAITING);
    return status;
}
