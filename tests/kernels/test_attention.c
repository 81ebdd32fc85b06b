/* Every tier of kernels/attention.h: against double within derived bounds, over head sizes, row counts and numbers of
 * queries, between guard pages; and bit for bit the same however queries and rows are given. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../support/guard.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "kernels/attention.h"

enum { MOST_D = 512, MOST_QUERIES = 40, MOST_ROWS = 100, N_TYPES = 3 };
static const double U = 0x1p-24;

static const uint32_t dims[] = {1, 3, 8, 15, 16, 17, 31, 64, 72, 80, 100, 128, 130, 256, 512};
static const uint32_t query_counts[] = {1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 40};
static const uint32_t row_counts[] = {1, 2, 15, 16, 17, 33, 48, 63, 64, 65, 100};
static const uint32_t tier_sets[] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"c", "avx2", "avx512"};
static const char *const type_names[] = {"f16", "bf16", "f32"};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* Rows in one of the three types behind one interface. */
static size_t type_bytes(int type) { return type == 2 ? 4 : 2; }

static void store_row(int type, void *to, size_t i, float x)
{
    if (type == 2)
        memcpy((float *)to + i, &x, sizeof x);
    else
        ((uint16_t *)to)[i] = type == 0 ? vq_f16_from_f32(x) : vq_bf16_from_f32(x);
}

static float load_row(int type, const void *from, size_t i)
{
    if (type == 2) {
        float x;
        memcpy(&x, (const float *)from + i, sizeof x);
        return x;
    }
    const uint16_t h = ((const uint16_t *)from)[i];
    return type == 0 ? vq_f32_from_f16(h) : vq_f32_from_bf16(h);
}

static void score(const vq_attention_kernels *k, int type, const float *q, uint32_t q_stride, uint32_t nq,
                  const void *rows, uint32_t n, uint32_t d, float *out, uint32_t out_stride)
{
    if (type == 0)
        k->score_f16(q, q_stride, nq, rows, n, d, out, out_stride);
    else if (type == 1)
        k->score_bf16(q, q_stride, nq, rows, n, d, out, out_stride);
    else
        k->score_f32(q, q_stride, nq, rows, n, d, out, out_stride);
}

static void score_cols(const vq_attention_kernels *k, int type, const float *q, uint32_t q_stride, uint32_t nq,
                       const void *block, uint32_t n, uint32_t d, float *out)
{
    if (type == 0)
        k->score_cols_f16(q, q_stride, nq, block, n, d, out, block);
    else if (type == 1)
        k->score_cols_bf16(q, q_stride, nq, block, n, d, out, block);
    else
        k->score_cols_f32(q, q_stride, nq, block, n, d, out, block);
}

static void mix(const vq_attention_kernels *k, int type, const float *w, uint32_t w_stride, uint32_t nq,
                const void *rows, uint32_t n, uint32_t d, float *acc)
{
    if (type == 0)
        k->mix_f16(w, w_stride, nq, rows, n, d, acc, rows);
    else if (type == 1)
        k->mix_bf16(w, w_stride, nq, rows, n, d, acc, rows);
    else
        k->mix_f32(w, w_stride, nq, rows, n, d, acc, rows);
}

typedef struct subject {
    vq_attention_kernels k;
    const char *tier;
    vq_rng rng;
    guard q, rows, w, out; /* inputs and outputs end at a guard page */
} subject;

static float draw(vq_rng *rng)
{
    const float v = (float)vq_rng_normal(rng);
    const uint64_t kind = vq_rng_next(rng) % 16;
    return kind == 0 ? 0 : kind == 1 ? v * 1e-7f : kind == 2 ? v * 50 : v;
}

/* A chain of d multiply-adds: d + 1 roundings of at most half an ulp of the sum of magnitudes. */
static void check_sum(const subject *s, const char *what, int type, uint32_t d, uint32_t n, uint32_t nq, float got,
                      double want, double magnitude, uint32_t length)
{
    if (!(fabs(got - want) <= (length + 2) * U * magnitude + 1e-44))
        fail_msg("%s %s %s, d %u, %u rows, %u queries: %.9g, expected %.9g", s->tier, what, type_names[type], d, n, nq,
                 (double)got, want);
}

static void check_score(subject *s, int type, uint32_t d, uint32_t n, uint32_t nq)
{
    const uint32_t q_stride = d + (nq > 3 ? 5 : 0), out_stride = n + (n % 3);
    float *q = guard_take(&s->q, ((nq - 1) * q_stride + d) * sizeof(float), true);
    void *rows = guard_take(&s->rows, n * d * type_bytes(type), true);
    float *out = guard_take(&s->out, ((nq - 1) * out_stride + n) * sizeof(float), true);
    for (uint32_t i = 0; i < (nq - 1) * q_stride + d; i++)
        q[i] = draw(&s->rng);
    for (uint32_t i = 0; i < n * d; i++)
        store_row(type, rows, i, draw(&s->rng));
    for (uint32_t i = 0; i < (nq - 1) * out_stride + n; i++)
        out[i] = -77;
    score(&s->k, type, q, q_stride, nq, rows, n, d, out, out_stride);
    for (uint32_t i = 0; i < nq; i++) {
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0, magnitude = 0;
            for (uint32_t c = 0; c < d; c++) {
                const double x = (double)q[i * q_stride + c] * load_row(type, rows, (size_t)j * d + c);
                sum += x;
                magnitude += fabs(x);
            }
            check_sum(s, "score", type, d, n, nq, out[i * out_stride + j], sum, magnitude, d);
        }
        for (uint32_t j = n; j < out_stride && i + 1 < nq; j++)
            assert_true(out[i * out_stride + j] == -77);
    }
    /* one query and one row at a time: the same bits */
    for (uint32_t i = 0; i < nq; i += 5)
        for (uint32_t j = 0; j < n; j += 7) {
            float one;
            score(&s->k, type, q + i * q_stride, q_stride, 1,
                  (const unsigned char *)rows + (size_t)j * d * type_bytes(type), 1, d, &one, 1);
            assert_memory_equal(&one, &out[i * out_stride + j], sizeof one);
        }
}

static void check_cols(subject *s, int type, uint32_t d, uint32_t n, uint32_t nq)
{
    const uint32_t q_stride = (d + 15) / 16 * 16;
    float *q = guard_take(&s->q, ((nq - 1) * q_stride + d) * sizeof(float), true);
    const size_t n_block = (size_t)d * VQ_BLOCK_ROWS;
    void *block = guard_take(&s->rows, n_block * type_bytes(type), true);
    float *out = guard_take(&s->out, (size_t)nq * VQ_BLOCK_ROWS * sizeof(float), true);
    for (uint32_t i = 0; i < (nq - 1) * q_stride + d; i++)
        q[i] = draw(&s->rng);
    for (size_t i = 0; i < n_block; i++)
        store_row(type, block, i, draw(&s->rng));
    for (uint32_t i = 0; i < nq * VQ_BLOCK_ROWS; i++)
        out[i] = NAN;
    score_cols(&s->k, type, q, q_stride, nq, block, n, d, out);
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0, magnitude = 0;
            for (uint32_t c = 0; c < d; c++) {
                const double x = (double)q[i * q_stride + c] * load_row(type, block, (size_t)c * VQ_BLOCK_ROWS + j);
                sum += x;
                magnitude += fabs(x);
            }
            check_sum(s, "score_cols", type, d, n, nq, out[i * VQ_BLOCK_ROWS + j], sum, magnitude, d);
        }
    for (uint32_t i = 0; i < nq; i += 3) {
        float one[VQ_BLOCK_ROWS];
        score_cols(&s->k, type, q + i * q_stride, q_stride, 1, block, n, d, one);
        assert_memory_equal(one, &out[i * VQ_BLOCK_ROWS], n * sizeof one[0]);
    }
}

static void check_mix(subject *s, int type, uint32_t d, uint32_t n, uint32_t nq)
{
    const uint32_t w_stride = n + 3;
    float *w = guard_take(&s->w, ((nq - 1) * w_stride + n) * sizeof(float), true);
    void *rows = guard_take(&s->rows, n * d * type_bytes(type), true);
    float *acc = guard_take(&s->out, (size_t)nq * d * sizeof(float), true);
    float *start = malloc((size_t)nq * d * sizeof *start), *again = malloc((size_t)nq * d * sizeof *again);
    for (uint32_t i = 0; i < (nq - 1) * w_stride + n; i++)
        w[i] = fabsf(draw(&s->rng));
    for (uint32_t i = 0; i < n * d; i++)
        store_row(type, rows, i, draw(&s->rng));
    for (uint32_t i = 0; i < nq * d; i++)
        again[i] = start[i] = acc[i] = draw(&s->rng);
    mix(&s->k, type, w, w_stride, nq, rows, n, d, acc);
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t c = 0; c < d; c++) {
            double sum = start[i * d + c], magnitude = fabs(sum);
            for (uint32_t j = 0; j < n; j++) {
                const double x = (double)w[i * w_stride + j] * load_row(type, rows, (size_t)j * d + c);
                sum += x;
                magnitude += fabs(x);
            }
            check_sum(s, "mix", type, d, n, nq, acc[i * d + c], sum, magnitude, n + 1);
        }
    /* one query at a time, rows in two calls: the same bits */
    const uint32_t half = n / 3;
    for (uint32_t i = 0; i < nq; i++) {
        mix(&s->k, type, w + i * w_stride, w_stride, 1, rows, half, d, again + i * d);
        mix(&s->k, type, w + i * w_stride + half, w_stride, 1,
            (const unsigned char *)rows + (size_t)half * d * type_bytes(type), n - half, d, again + i * d);
    }
    assert_memory_equal(again, acc, (size_t)nq * d * sizeof *acc);
    free(start);
    free(again);
}

static void check_softmax(subject *s)
{
    enum { NQ = 7, BLOCKS = 6 };
    float max[NQ], sum[NQ], scale[NQ], w[NQ * VQ_BLOCK_ROWS];
    double true_max[NQ], true_sum[NQ];
    for (int i = 0; i < NQ; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
        true_max[i] = -INFINITY;
        true_sum[i] = 0;
    }
    for (int b = 0; b < BLOCKS; b++) {
        uint64_t live[NQ];
        float before[NQ * VQ_BLOCK_ROWS], old_max[NQ], old_sum[NQ];
        for (int i = 0; i < NQ; i++) {
            const uint64_t random = vq_rng_next(&s->rng);
            live[i] = i == 0 ? UINT64_MAX : i == 1 ? 0 : i == 2 ? random : i == 3 ? 1 : random & (random >> 7);
            if (b == 0 && i > 3)
                live[i] = 0;
            old_max[i] = max[i];
            old_sum[i] = sum[i];
        }
        for (int i = 0; i < NQ * VQ_BLOCK_ROWS; i++)
            before[i] = w[i] = (float)vq_rng_normal(&s->rng) * (b == 4 ? 60 : 4) + (float)b;
        s->k.softmax(w, 1, NQ, live, max, sum, scale);
        for (int i = 0; i < NQ; i++) {
            double top = old_max[i], total = 0;
            for (int j = 0; j < VQ_BLOCK_ROWS; j++)
                if (live[i] >> j & 1)
                    top = fmax(top, before[i * VQ_BLOCK_ROWS + j]);
            assert_true(max[i] == (float)top);
            if (live[i] == 0)
                assert_true(scale[i] == 1 && sum[i] == old_sum[i]);
            if (max[i] == old_max[i] || old_max[i] == -INFINITY)
                assert_true(scale[i] == 1);
            else
                assert_true(fabs(scale[i] - exp(old_max[i] - top)) <=
                            (5 + 1.1 * (top - old_max[i])) * U * exp(old_max[i] - top) + 1.3e-38);
            for (int j = 0; j < VQ_BLOCK_ROWS; j++) {
                const double want = live[i] >> j & 1 ? exp(before[i * VQ_BLOCK_ROWS + j] - top) : 0;
                /* exp: (4 + |x| / 20) u, and rounding the difference |x| u */
                const double x = live[i] ? fabs(before[i * VQ_BLOCK_ROWS + j] - top) : 0;
                if (!(fabs(w[i * VQ_BLOCK_ROWS + j] - want) <= (5 + 1.1 * x) * U * want + 1.3e-38))
                    fail_msg("%s softmax: weight %.9g, expected %.9g", s->tier, (double)w[i * VQ_BLOCK_ROWS + j], want);
                total += want;
            }
            true_sum[i] =
                (true_max[i] == -INFINITY || top == -INFINITY ? 0 : true_sum[i] * exp(true_max[i] - top)) + total;
            true_max[i] = top;
            assert_true(fabs(sum[i] - true_sum[i]) <= 400 * U * true_sum[i]);
            /* alone: the same bits */
            float m = old_max[i], t = old_sum[i], r;
            s->k.softmax(before + i * VQ_BLOCK_ROWS, 1, 1, live + i, &m, &t, &r);
            assert_memory_equal(before + i * VQ_BLOCK_ROWS, w + i * VQ_BLOCK_ROWS, VQ_BLOCK_ROWS * sizeof(float));
            assert_memory_equal(&t, &sum[i], sizeof t);
        }
    }
}

/* Blocks at once against the definition, in f64; those that show a query nothing may as well not be there. */
static void check_softmax_blocks(subject *s)
{
    enum { NQ = 3, MOST = VQ_SOFTMAX_BLOCKS };
    for (uint32_t n = 1; n <= MOST; n++) {
        float w[MOST * NQ * VQ_BLOCK_ROWS], before[MOST * NQ * VQ_BLOCK_ROWS], max[NQ], sum[NQ], scale[NQ];
        uint64_t live[MOST * NQ];
        for (uint32_t i = 0; i < NQ; i++) {
            max[i] = i == 1 ? 1 : -INFINITY;
            sum[i] = i == 1 ? 2 : 0;
        }
        for (uint32_t i = 0; i < n * NQ; i++) /* query 2 sees nothing, or only the last of the blocks */
            live[i] = i % NQ < 2 ? vq_rng_next(&s->rng) : i / NQ + 1 == n && n % 2 ? 0xff00ff : 0;
        for (uint32_t i = 0; i < n * NQ * VQ_BLOCK_ROWS; i++)
            before[i] = w[i] = (float)vq_rng_normal(&s->rng) * 4;
        s->k.softmax(w, n, NQ, live, max, sum, scale);
        for (uint32_t i = 0; i < NQ; i++) {
            double top = i == 1 ? 1 : -INFINITY, total = 0;
            for (uint32_t b = 0; b < n; b++)
                for (uint32_t j = 0; j < VQ_BLOCK_ROWS; j++)
                    if (live[b * NQ + i] >> j & 1)
                        top = fmax(top, before[(b * NQ + i) * VQ_BLOCK_ROWS + j]);
            if (i == 1)
                total = 2 * exp(1 - top);
            for (uint32_t b = 0; b < n; b++)
                for (uint32_t j = 0; j < VQ_BLOCK_ROWS; j++) {
                    const size_t at = (b * NQ + i) * VQ_BLOCK_ROWS + j;
                    const double want = live[b * NQ + i] >> j & 1 ? exp(before[at] - top) : 0;
                    assert_true(fabs(w[at] - want) <= 60 * U * want + 1.3e-38);
                    total += want;
                }
            assert_true(max[i] == (float)top);
            assert_true(fabs(sum[i] - total) <= 500 * U * total);
        }
        if (n == 1 || n % 2 == 0)
            continue;
        float m = -INFINITY, t = 0, r, *last = before + ((n - 1) * NQ + 2) * VQ_BLOCK_ROWS;
        s->k.softmax(last, 1, 1, live + (n - 1) * NQ + 2, &m, &t, &r);
        assert_memory_equal(last, w + ((n - 1) * NQ + 2) * VQ_BLOCK_ROWS, VQ_BLOCK_ROWS * sizeof(float));
        assert_memory_equal(&t, &sum[2], sizeof t);
    }
}

static void run_tier(void **state)
{
    const size_t tier = (size_t)(uintptr_t)*state;
    if ((vq_cpu_detect() & tier_sets[tier]) != tier_sets[tier])
        skip();
    subject s = {.tier = tier_names[tier],
                 .q = guard_open(MOST_QUERIES * (MOST_D + 16) * sizeof(float)),
                 .rows = guard_open(MOST_ROWS * MOST_D * sizeof(float)),
                 .w = guard_open(MOST_QUERIES * (MOST_ROWS + 4) * sizeof(float)),
                 .out = guard_open(MOST_QUERIES * MOST_D * sizeof(float))};
    vq_attention_kernels_init(&s.k, tier_sets[tier]);
    vq_rng_seed(&s.rng, 21 + tier);
    for (int type = 0; type < N_TYPES; type++)
        for (size_t i = 0; i < LENGTH(dims); i++)
            for (size_t j = 0; j < LENGTH(query_counts); j++) {
                /* every count of rows with one of the counts of queries, so that the test stays short */
                for (size_t n = (i + j) % 3; n < LENGTH(row_counts); n += 3) {
                    check_score(&s, type, dims[i], row_counts[n], query_counts[j]);
                    check_mix(&s, type, dims[i], row_counts[n], query_counts[j]);
                }
                check_cols(&s, type, dims[i], (uint32_t)(i * 23 + j * 16) % VQ_BLOCK_ROWS + 1, query_counts[j]);
            }
    for (int i = 0; i < 50; i++)
        check_softmax(&s);
    check_softmax_blocks(&s);
    guard_close(&s.q);
    guard_close(&s.rows);
    guard_close(&s.w);
    guard_close(&s.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"c", run_tier, NULL, NULL, (void *)(uintptr_t)0},
        {"avx2", run_tier, NULL, NULL, (void *)(uintptr_t)1},
        {"avx512", run_tier, NULL, NULL, (void *)(uintptr_t)2},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
