/* The matrix product of every weight type in both modes on every tier: against its definition in double within a bound
 * that follows from the number of roundings; bit for bit between tiers where matmul_tier.h says so; bit for bit for any
 * cut of tokens, any number of threads, alone or with other matrices.  All arrays end (and once begin) at a guard page.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/guard.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "kernels/matmul_tier.h"

enum { MOST_IN = 2048, MOST_OUT = 192, MOST_TOKENS = 160, N_TIERS = 3 };
static const double U = 0x1p-24; /* half an ulp of 1 */

static const vq_type all_types[] = {VQ_TYPE_F32,  VQ_TYPE_F16,  VQ_TYPE_BF16, VQ_TYPE_Q8_0,  VQ_TYPE_Q4_0,
                                    VQ_TYPE_Q4_1, VQ_TYPE_Q5_0, VQ_TYPE_Q5_1, VQ_TYPE_Q2_K,  VQ_TYPE_Q3_K,
                                    VQ_TYPE_Q4_K, VQ_TYPE_Q5_K, VQ_TYPE_Q6_K, VQ_TYPE_IQ4_NL};
enum { N_ALL_TYPES = sizeof all_types / sizeof *all_types };

static const uint32_t tier_sets[N_TIERS] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[N_TIERS] = {"c", "avx2", "avx512"};

/* Where the f16 of a block are, and which of its bytes are codes (of the types with minima: codes of 0 leave those). */
typedef struct block_map {
    int d, m, codes, n_code_bytes;
} block_map;

static const block_map maps[VQ_N_TYPES] = {
    [VQ_TYPE_Q8_0] = {0, -1, 0, 0},    [VQ_TYPE_Q4_0] = {0, -1, 0, 0},   [VQ_TYPE_Q4_1] = {0, 2, 4, 16},
    [VQ_TYPE_Q5_0] = {0, -1, 0, 0},    [VQ_TYPE_Q5_1] = {0, 2, 4, 20},   [VQ_TYPE_IQ4_NL] = {0, -1, 0, 0},
    [VQ_TYPE_Q2_K] = {80, 82, 16, 64}, [VQ_TYPE_Q3_K] = {108, -1, 0, 0}, [VQ_TYPE_Q4_K] = {0, 2, 16, 128},
    [VQ_TYPE_Q5_K] = {0, 2, 16, 160},  [VQ_TYPE_Q6_K] = {208, -1, 0, 0},
};

/* One product with everything that it touches. */
typedef struct subject {
    vq_type type;
    uint32_t n_in, n_out, n_tokens;
    bool exact;
    const char *tier;
    guard weights, act, out, scratch, x;
    bool at_end, is_plain;
    float *w, *m; /* [n_out][n_in] dequantised, and the minima in them */
    vq_matrix matrix;
} subject;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            print_error("%s:%d %s %s on %s, %u x %u, %u tokens: ", __FILE__, __LINE__, vq_type_name(s->type),          \
                        s->exact ? "exact" : "int8", s->tier, s->n_out, s->n_in, s->n_tokens);                         \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static bool tier_runs(int tier) { return (vq_cpu_detect() & tier_sets[tier]) == tier_sets[tier]; }

static void put_half(vq_rng *rng, uint8_t *p)
{
    const uint32_t kind = (uint32_t)(vq_rng_next(rng) % 32);
    const uint16_t h = kind == 0   ? 0
                       : kind == 1 ? (uint16_t)(vq_rng_next(rng) & 0x83ff) /* denormal */
                       : kind == 2 ? vq_f16_from_f32((float)vq_rng_normal(rng) * 100)
                                   : vq_f16_from_f32((float)vq_rng_normal(rng) * 0.01f);
    memcpy(p, &h, sizeof h);
}

static void fill_weights(vq_rng *rng, vq_type type, uint8_t *p, uint32_t n_in, uint32_t n_out)
{
    const size_t n_bytes = vq_type_row_bytes(type, n_in) * n_out, block = vq_type_block_bytes(type);
    if (vq_matmul_prefers_exact(type)) {
        for (size_t i = 0; i < (size_t)n_in * n_out; i++) {
            const float v = (float)vq_rng_normal(rng);
            const uint16_t f16 = vq_f16_from_f32(v), bf16 = vq_bf16_from_f32(v);
            memcpy(p + i * block, type == VQ_TYPE_F32 ? (const void *)&v : type == VQ_TYPE_F16 ? &f16 : &bf16, block);
        }
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)vq_rng_next(rng);
    for (size_t i = 0; i < n_bytes; i += block) {
        put_half(rng, p + i + maps[type].d);
        if (maps[type].m >= 0)
            put_half(rng, p + i + maps[type].m);
    }
}

static void fill_activations(vq_rng *rng, float *x, uint32_t n_in, uint32_t n_tokens)
{
    for (uint32_t t = 0; t < n_tokens; t++, x += n_in) {
        const uint32_t kind = (uint32_t)(vq_rng_next(rng) % 10);
        for (uint32_t i = 0; i < n_in; i++) {
            const float v = (float)vq_rng_normal(rng);
            x[i] = kind == 0   ? 0
                   : kind == 1 ? 3
                   : kind == 2 ? v * 1e-40f
                   : kind == 3 ? v * 1e28f
                   : kind == 4 ? (i == n_in / 2 ? 1000 : v * 0.1f)
                   : kind == 5 ? (vq_rng_next(rng) & 1 ? -2 : 2) /* codes of +-127 */
                               : v;
        }
    }
}

/* What int8 mode makes of one input, written again. */
static void quantized(float *out, const float *x, uint32_t n_in)
{
    for (uint32_t first = 0; first < n_in; first += 32) {
        const uint32_t end = first + 32 < n_in ? first + 32 : n_in;
        float max = 0;
        for (uint32_t i = first; i < end; i++)
            max = fmaxf(max, fabsf(x[i]));
        const float d = max / 127.0f, inverse = 127.0f / max;
        for (uint32_t i = first; i < end; i++)
            out[i] = d < FLT_MIN ? 0 : d * rintf(x[i] * inverse);
    }
}

static void open_subject(subject *s, vq_rng *rng)
{
    const size_t row = vq_type_row_bytes(s->type, s->n_in), n = (size_t)s->n_in * s->n_out;
    s->weights = guard_open(row * s->n_out);
    s->act = guard_open(vq_matmul_act_bytes(s->n_in, s->n_tokens, s->exact));
    s->out = guard_open((size_t)s->n_out * s->n_tokens * 4);
    s->scratch = guard_open(vq_matmul_scratch_bytes(4));
    s->x = guard_open((size_t)s->n_in * s->n_tokens * 4);
    s->w = calloc(n, sizeof *s->w);
    s->m = calloc(n, sizeof *s->m);
    assert_true(s->w && s->m);

    uint8_t *p = guard_take(&s->weights, row * s->n_out, s->at_end);
    fill_weights(rng, s->type, p, s->n_in, s->n_out);
    vq_type_dequantize(s->type, p, s->w, n);
    const block_map *map = &maps[s->type];
    if (map->n_code_bytes) {
        uint8_t *copy = malloc(row * s->n_out);
        assert_non_null(copy);
        memcpy(copy, p, row * s->n_out);
        for (size_t i = 0; i < row * s->n_out; i += vq_type_block_bytes(s->type))
            memset(copy + i + map->codes, 0, (size_t)map->n_code_bytes);
        vq_type_dequantize(s->type, copy, s->m, n);
        free(copy);
    }
    s->matrix = (vq_matrix){.type = s->type, .n_in = s->n_in, .n_out = s->n_out, .data = p};
    fill_activations(rng, guard_take(&s->x, (size_t)s->n_in * s->n_tokens * 4, s->at_end), s->n_in, s->n_tokens);
}

static void close_subject(subject *s)
{
    guard_close(&s->weights);
    guard_close(&s->act);
    guard_close(&s->out);
    guard_close(&s->scratch);
    guard_close(&s->x);
    free(s->w);
    free(s->m);
}

static const float *inputs(const subject *s) { return guard_take(&s->x, (size_t)s->n_in * s->n_tokens * 4, s->at_end); }

/* The whole product on a tier; the result is in s->out until the next. */
static const float *product(subject *s, int tier, vq_pool *pool)
{
    vq_matmul_kernels k;
    vq_matmul_kernels_init(&k, tier_sets[tier]);
    s->tier = tier_names[tier];
    s->is_plain = k.tier == &vq_matmul_tier_c;
    const size_t act_bytes = vq_matmul_act_bytes(s->n_in, s->n_tokens, s->exact);
    const size_t out_bytes = (size_t)s->n_out * s->n_tokens * 4;
    void *act = guard_take(&s->act, act_bytes, s->at_end), *scratch = guard_take(&s->scratch, s->scratch.n_bytes, true);
    float *out = guard_take(&s->out, out_bytes, s->at_end);
    memset(out, 0xff, out_bytes);
    memset(act, 0xff, act_bytes);
    vq_matmul_prepare(&k, pool, act, inputs(s), s->n_in, s->n_tokens, s->exact);
    vq_matmul(&k, pool, &s->matrix, act, s->n_tokens, s->exact, out, s->n_out, scratch);
    return out;
}

/* What each output may differ by.  int8: the activations are exactly d a, each block adds at most 4 fused terms that
 * are each a product of one more rounded product.  f32: a rounding a product (two without FMA), one for d a.  To that,
 * the at most 3 roundings in the dequantised weight that the reference reads.  Every partial sum is at most `size`. */
static void check_bounds(const subject *s, const float *out)
{
    const bool f32 = s->exact || vq_matmul_prefers_exact(s->type);
    const double n_roundings = f32 ? s->n_in + 6 : 4.0 * ((s->n_in + 31) / 32) + 6;
    float *x = malloc(s->n_in * sizeof *x);
    assert_non_null(x);
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        const float *given = inputs(s) + (size_t)t * s->n_in;
        memcpy(x, given, s->n_in * sizeof *x);
        if (!s->exact)
            quantized(x, given, s->n_in);
        for (uint32_t r = 0; r < s->n_out; r++) {
            const float *w = s->w + (size_t)r * s->n_in, *m = s->m + (size_t)r * s->n_in;
            double want = 0, size = 0;
            for (uint32_t i = 0; i < s->n_in; i++) {
                want += (double)w[i] * x[i];
                size += (fabs((double)w[i] - m[i]) + fabs((double)m[i])) * fabs((double)x[i]);
            }
            /* the last term: products that underflow */
            const double bound = (n_roundings * U * size) * 1.01 + n_roundings * 0x1p-149;
            const double got = (double)out[(size_t)t * s->n_out + r];
            CHECK(fabs(got - want) <= bound, "out[%u][%u] = %.9g, want %.12g within %.3g", t, r, got, want, bound);
        }
    }
    free(x);
}

static void check_same(const subject *s, const float *got, const float *want, const char *what)
{
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        for (uint32_t r = 0; r < s->n_out; r++) {
            const size_t i = (size_t)t * s->n_out + r;
            CHECK(!memcmp(&got[i], &want[i], 4), "%s: out[%u][%u] = %.9g, not %.9g", what, t, r, (double)got[i],
                  (double)want[i]);
        }
    }
}

static bool fits(vq_type type, uint32_t n_in) { return vq_matmul_supports(type, n_in); }

static void all_tiers(subject *s, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    s->tier = "-";
    open_subject(s, &rng);
    const size_t n_bytes = (size_t)s->n_out * s->n_tokens * 4;
    float *first = malloc(n_bytes);
    assert_non_null(first);
    bool have_first = false;
    for (int tier = 0; tier < N_TIERS; tier++) {
        if (!tier_runs(tier))
            continue;
        const float *out = product(s, tier, NULL);
        check_bounds(s, out);
        const bool f32 = s->exact || vq_matmul_prefers_exact(s->type);
        if (f32 && (s->is_plain || s->n_out < 16)) /* below 16 rows the definition does the work of every tier */
            continue;
        if (have_first)
            check_same(s, out, first, "tiers differ");
        memcpy(first, out, n_bytes);
        have_first = true;
    }
    free(first);
    close_subject(s);
}

static void every_size(void **state)
{
    static const uint32_t n_ins[] = {1, 17, 32, 64, 96, 256, 576, 640, 1536, 2048};
    static const uint32_t n_outs[] = {1, 15, 16, 17, 33, 47, 192};
    uint64_t seed = 1;
    (void)state;
    for (uint32_t i = 0; i < sizeof n_ins / sizeof *n_ins; i++) {
        for (uint32_t type = 0; type < N_ALL_TYPES; type++) {
            if (!fits(all_types[type], n_ins[i]))
                continue;
            for (uint32_t j = 0; j < 2 * sizeof n_outs / sizeof *n_outs; j++, seed++) {
                subject s = {.type = all_types[type],
                             .n_in = n_ins[i],
                             .n_out = n_outs[j / 2],
                             .exact = j % 2,
                             .at_end = seed % 5 != 0};
                s.n_tokens = s.n_out == 192 ? 1 + (uint32_t)seed % 2 * 5 : 1 + (uint32_t)(seed * 7 % 9);
                all_tiers(&s, seed);
            }
        }
    }
}

static void every_tail(void **state)
{
    uint64_t seed = 100000;
    (void)state;
    for (uint32_t type = 0; type < N_ALL_TYPES; type++) {
        for (uint32_t n = 1; n <= 40; n++, seed++) {
            subject s = {.type = all_types[type],
                         .n_in = 256,
                         .n_out = n,
                         .n_tokens = 1 + n * 19 % 33,
                         .exact = n % 3 == 0,
                         .at_end = seed % 5 != 0};
            all_tiers(&s, seed);
        }
    }
}

/* One token at a time, and in pieces that are no multiples of a group. */
static void any_cut_of_tokens(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_ALL_TYPES * 2 * N_TIERS; i++) {
        subject s = {.type = all_types[i / 2 / N_TIERS],
                     .n_in = 1280,
                     .n_out = 33 + i % 5,
                     .n_tokens = 23,
                     .exact = i / N_TIERS % 2,
                     .at_end = true};
        const int tier = i % N_TIERS;
        if (!tier_runs(tier))
            continue;
        vq_rng rng;
        vq_rng_seed(&rng, 7 + i);
        open_subject(&s, &rng);
        vq_matmul_kernels k;
        vq_matmul_kernels_init(&k, tier_sets[tier]);
        const float *all = product(&s, tier, NULL);
        float *cut = calloc((size_t)s.n_tokens * s.n_out, sizeof *cut);
        void *act = aligned_alloc(64, vq_matmul_act_bytes(s.n_in, s.n_tokens, s.exact));
        void *scratch = aligned_alloc(64, vq_matmul_scratch_bytes(1));
        assert_true(cut && act && scratch);
        static const uint32_t steps[] = {1, 2, 3, 4, 5, 7, 13};
        for (uint32_t j = 0; j < sizeof steps / sizeof *steps; j++) {
            for (uint32_t t = 0; t < s.n_tokens; t += steps[j]) {
                const uint32_t n = s.n_tokens - t < steps[j] ? s.n_tokens - t : steps[j];
                vq_matmul_prepare(&k, NULL, act, inputs(&s) + (size_t)t * s.n_in, s.n_in, n, s.exact);
                vq_matmul(&k, NULL, &s.matrix, act, n, s.exact, cut + (size_t)t * s.n_out, s.n_out, scratch);
            }
            check_same(&s, cut, all, "cut by tokens");
        }
        free(cut);
        free(act);
        free(scratch);
        close_subject(&s);
    }
}

/* 1 to 4 threads, one and many tokens (then a matrix of few rows is also cut by tokens). */
static void any_number_of_threads(void **state)
{
    (void)state;
    for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
        vq_pool *pool;
        vq_error err;
        assert_int_equal(vq_pool_open(&pool, n_threads, &err), VQ_OK);
        for (uint32_t i = 0; i < N_ALL_TYPES * 2 * 2; i++) {
            subject s = {.type = all_types[i / 4],
                         .n_in = 768,
                         .n_out = 179,
                         .n_tokens = i % 2 ? MOST_TOKENS : 1,
                         .exact = i / 2 % 2,
                         .at_end = true};
            int tier = N_TIERS - 1 - (int)(i / 4) % 2;
            while (!tier_runs(tier))
                tier--;
            vq_rng rng;
            vq_rng_seed(&rng, 11 + i);
            open_subject(&s, &rng);
            const size_t n_bytes = (size_t)s.n_out * s.n_tokens * 4;
            float *one = malloc(n_bytes);
            assert_non_null(one);
            memcpy(one, product(&s, tier, NULL), n_bytes);
            check_same(&s, product(&s, tier, pool), one, "threads");
            free(one);
            close_subject(&s);
        }
        vq_pool_close(pool);
    }
}

/* Matrices of different types and heights in one run, into columns of one output. */
static void many_matrices(void **state)
{
    enum { N_IN = 768, N_TOKENS = 9, N = 4 };
    static const vq_type types[N] = {VQ_TYPE_Q4_1, VQ_TYPE_Q6_K, VQ_TYPE_F16, VQ_TYPE_Q8_0};
    static const uint32_t n_outs[N] = {70, 200, 16, 9};
    (void)state;
    vq_pool *pool;
    vq_error err;
    assert_int_equal(vq_pool_open(&pool, 3, &err), VQ_OK);
    for (int exact = 0; exact < 2; exact++) {
        subject subjects[N];
        vq_matmul_job jobs[N];
        float all[N_TOKENS * 300], *out = all;
        vq_rng rng;
        vq_rng_seed(&rng, 5);
        vq_matmul_kernels k;
        vq_matmul_kernels_init(&k, vq_cpu_detect());
        for (uint32_t i = 0; i < N; i++, out += n_outs[i - 1]) {
            subjects[i] = (subject){.type = types[i],
                                    .n_in = N_IN,
                                    .n_out = n_outs[i],
                                    .n_tokens = N_TOKENS,
                                    .exact = exact,
                                    .at_end = true,
                                    .tier = "best"};
            open_subject(&subjects[i], &rng);
            jobs[i] = (vq_matmul_job){.w = &subjects[i].matrix, .out = out, .out_stride = 300};
        }
        void *act = aligned_alloc(64, vq_matmul_act_bytes(N_IN, N_TOKENS, exact));
        void *scratch = aligned_alloc(64, vq_matmul_scratch_bytes(3));
        assert_true(act && scratch);
        vq_matmul_prepare(&k, pool, act, inputs(&subjects[0]), N_IN, N_TOKENS, exact);
        vq_matmul_many(&k, pool, jobs, N, act, N_TOKENS, exact, scratch);
        for (uint32_t i = 0; i < N; i++) {
            float *alone = calloc((size_t)n_outs[i] * N_TOKENS, sizeof *alone);
            assert_non_null(alone);
            vq_matmul(&k, NULL, &subjects[i].matrix, act, N_TOKENS, exact, alone, n_outs[i], scratch);
            for (uint32_t t = 0; t < N_TOKENS; t++)
                assert_memory_equal(jobs[i].out + (size_t)t * 300, alone + (size_t)t * n_outs[i], n_outs[i] * 4);
            free(alone);
        }
        for (uint32_t i = 0; i < N; i++)
            close_subject(&subjects[i]);
        free(act);
        free(scratch);
    }
    vq_pool_close(pool);
}

/* Every tier writes the same prepared bytes, and the codes and scales that are defined. */
static void prepared_bytes(void **state)
{
    (void)state;
    for (uint32_t n_in = 1; n_in < 140; n_in++) {
        for (uint32_t n_tokens = 1; n_tokens < 16; n_tokens += 3) {
            const size_t n_bytes = vq_matmul_act_bytes(n_in, n_tokens, false), n_x = (size_t)n_in * n_tokens;
            guard gx = guard_open(n_x * 4);
            float *x = guard_take(&gx, n_x * 4, true), *want = malloc(n_x * 4);
            uint8_t *act[N_TIERS];
            vq_rng rng;
            vq_rng_seed(&rng, n_in * 100 + n_tokens);
            fill_activations(&rng, x, n_in, n_tokens);
            for (int tier = 0; tier < N_TIERS; tier++) {
                act[tier] = aligned_alloc(64, n_bytes);
                assert_non_null(act[tier]);
                memset(act[tier], 0, n_bytes); /* up to 63 bytes at the end belong to no record */
                vq_matmul_kernels k;
                vq_matmul_kernels_init(&k, tier_sets[tier_runs(tier) ? tier : 0]);
                vq_matmul_prepare(&k, NULL, act[tier], x, n_in, n_tokens, false);
                assert_memory_equal(act[tier], act[0], n_bytes);
            }
            assert_non_null(want);
            const vq_matmul_act view = {
                .n_in = n_in, .n_blocks = (n_in + 31) / 32, .n_tokens = n_tokens, .groups = act[0]};
            for (uint32_t t = 0; t < n_tokens; t++) {
                uint32_t n;
                const uint8_t *group = vq_matmul_group(&view, t / VQ_MATMUL_GROUP * VQ_MATMUL_GROUP, &n);
                quantized(want, x + (size_t)t * n_in, n_in);
                for (uint32_t i = 0; i < n_in; i++) {
                    const uint8_t *record = group + (size_t)(i / 32) * n * VQ_MATMUL_TOKEN_BYTES;
                    const float *words = (const float *)(const void *)(record + n * 32) + t % VQ_MATMUL_GROUP;
                    const int8_t code = (int8_t)record[t % VQ_MATMUL_GROUP * 32 + i % 32];
                    assert_true(words[0] * (float)code == want[i]);
                }
            }
            for (int tier = 0; tier < N_TIERS; tier++)
                free(act[tier]);
            free(want);
            guard_close(&gx);
        }
    }
}

static void supported_sizes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_ALL_TYPES; i++) {
        const vq_type type = all_types[i];
        assert_int_equal(vq_matmul_traits_of[type].block_len, vq_type_block_len(type));
        assert_int_equal(vq_matmul_traits_of[type].block_bytes, vq_type_block_bytes(type));
        assert_true(vq_matmul_supports(type, 512));
        assert_true(vq_matmul_supports(type, 33) == (vq_type_block_len(type) == 1));
        assert_true(vq_matmul_supports(type, 96) == (vq_type_block_len(type) <= 32));
    }
    for (uint32_t type = 0; type < VQ_N_TYPES + 5; type++)
        assert_true(vq_matmul_supports((vq_type)type, 512) ==
                    (vq_type_known(type) || vq_matmul_is_packed((vq_type)type)));
}

int main(void)
{
    for (int tier = 0; tier < N_TIERS; tier++)
        if (!tier_runs(tier))
            print_message("SKIP: this processor has no %s\n", tier_names[tier]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supported_sizes), cmocka_unit_test(prepared_bytes),    cmocka_unit_test(every_size),
        cmocka_unit_test(every_tail),      cmocka_unit_test(any_cut_of_tokens), cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(many_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
