/* Products with packed rows on every tier: int8 mode is one exact sum of integers, the same bits everywhere; exact mode
 * stays within a bound that follows from the number of roundings.  Any cut of tokens, any number of threads, rows that
 * end at a guard page. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../support/guard.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "kernels/matmul_packed.h"
#include "quant/levels.h"
#include "quant/linear.h"

enum { N_TIERS = 3 };
static const uint32_t tier_sets[N_TIERS] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[N_TIERS] = {"c", "avx2", "avx512"};

static bool tier_runs(int tier) { return (vq_cpu_detect() & tier_sets[tier]) == tier_sets[tier]; }

typedef struct subject {
    uint32_t bits, n_in, n_out, n_tokens;
    vq_matrix w;
    uint8_t *codes; /* [n_out][n_in] */
    guard data, x, act, out, scratch;
} subject;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            print_error("%s:%d %u bits, %u x %u, %u tokens: ", __FILE__, __LINE__, s->bits, s->n_out, s->n_in,         \
                        s->n_tokens);                                                                                  \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static float *inputs(const subject *s) { return guard_take(&s->x, (size_t)s->n_in * s->n_tokens * 4, true); }

static subject open_subject(uint32_t bits, uint32_t n_in, uint32_t n_out, uint32_t n_tokens, uint64_t seed)
{
    subject s = {.bits = bits, .n_in = n_in, .n_out = n_out, .n_tokens = n_tokens};
    const size_t n_bytes = vq_linear_bytes(bits, n_in, n_out);
    s.data = guard_open(n_bytes);
    s.x = guard_open((size_t)n_in * n_tokens * 4);
    s.act = guard_open(vq_matmul_act_bytes(n_in, n_tokens, VQ_ACT_EXACT) +
                       vq_matmul_act_bytes(n_in, n_tokens, VQ_ACT_ROWS));
    s.out = guard_open((size_t)n_out * n_tokens * 4);
    s.scratch = guard_open(vq_matmul_scratch_bytes(4));
    s.codes = malloc((size_t)n_in * n_out);
    assert_non_null(s.codes);
    uint8_t *data = guard_take(&s.data, n_bytes, true);
    memset(data, 0, n_bytes);
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (uint32_t r = 0; r < n_out; r++) {
        for (uint32_t i = 0; i < n_in; i++)
            s.codes[(size_t)r * n_in + i] =
                (uint8_t)(r % 7 == 1 ? (1u << bits) - 1 : vq_rng_next(&rng) & ((1u << bits) - 1));
        const uint16_t norm =
            r % 7 == 2 ? 0 : vq_f16_from_f32((float)vq_rng_uniform(&rng) * (r % 7 == 3 ? 1e-7F : 1.0F));
        memcpy(data + (size_t)2 * r, &norm, 2);
        vq_packed_put(data + vq_packed_norm_bytes(n_out) + r / 16 * vq_packed_tile_bytes(bits, n_in), r % 16, bits,
                      s.codes + (size_t)r * n_in, n_in);
    }
    const vq_linear l = {.bits = bits, .n_in = n_in, .n_out = n_out};
    s.w = vq_linear_matrix(&l, data);
    float *x = inputs(&s);
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t i = 0; i < n_in; i++)
            x[(size_t)t * n_in + i] = t % 5 == 1   ? 2.0F
                                      : t % 5 == 2 ? 0
                                                   : (float)vq_rng_normal(&rng) * (t % 5 == 3 ? 1e-40F : 1.0F);
    return s;
}

static void close_subject(subject *s)
{
    guard_close(&s->data);
    guard_close(&s->x);
    guard_close(&s->act);
    guard_close(&s->out);
    guard_close(&s->scratch);
    free(s->codes);
}

/* Tokens in steps of `step`; the result is in s->out until the next. */
static float *product(subject *s, int tier, vq_act kind, vq_pool *pool, uint32_t step)
{
    vq_matmul_kernels k;
    vq_matmul_kernels_init(&k, tier_sets[tier]);
    float *out = guard_take(&s->out, (size_t)s->n_out * s->n_tokens * 4, true);
    memset(out, 0xff, (size_t)s->n_out * s->n_tokens * 4);
    for (uint32_t t = 0; t < s->n_tokens; t += step) {
        const uint32_t n = s->n_tokens - t < step ? s->n_tokens - t : step;
        const size_t act_bytes = vq_matmul_act_bytes(s->n_in, n, kind);
        void *act = guard_take(&s->act, act_bytes, true);
        memset(act, 0xff, act_bytes);
        vq_matmul_prepare(&k, pool, act, inputs(s) + (size_t)t * s->n_in, s->n_in, n, kind);
        vq_matmul(&k, pool, &s->w, act, n, kind, out + (size_t)t * s->n_out, s->n_out,
                  guard_take(&s->scratch, s->scratch.n_bytes, true));
    }
    return out;
}

static float scale_of(const subject *s, uint32_t r)
{
    uint16_t norm;
    memcpy(&norm, (const uint8_t *)s->w.data + (size_t)2 * r, 2);
    return vq_f32_from_f16(norm) * s->w.step;
}

/* int8 mode written again, from codes and inputs. */
static void check_rows(const subject *s, const float *out, const char *what)
{
    const vq_levels *levels = &vq_levels_gaussian[s->bits - 1];
    int32_t *a = malloc(s->n_in * sizeof *a);
    assert_non_null(a);
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        const float *x = inputs(s) + (size_t)t * s->n_in;
        float most = 0;
        for (uint32_t i = 0; i < s->n_in; i++)
            most = fmaxf(most, fabsf(x[i]));
        const bool zero = most < 1e-30F;
        for (uint32_t i = 0; i < s->n_in; i++)
            a[i] = zero ? 0 : (int32_t)rintf(x[i] * (127 / most));
        for (uint32_t r = 0; r < s->n_out; r++) {
            int64_t sum = 0;
            for (uint32_t i = 0; i < s->n_in; i++)
                sum += levels->v[s->codes[(size_t)r * s->n_in + i]] * a[i];
            const float want = (float)sum * (scale_of(s, r) * (zero ? 0 : most / 127));
            const float got = out[(size_t)t * s->n_out + r];
            CHECK(want == got, "%s: out[%u][%u] = %.9g, want %.9g", what, t, r, (double)got, (double)want);
        }
    }
    free(a);
}

/* Two roundings a product without FMA, one of the sum, one of the weight. */
static void check_exact(const subject *s, const float *out, const char *what)
{
    const vq_levels *levels = &vq_levels_gaussian[s->bits - 1];
    for (uint32_t t = 0; t < s->n_tokens; t++)
        for (uint32_t r = 0; r < s->n_out; r++) {
            double want = 0, size = 0;
            for (uint32_t i = 0; i < s->n_in; i++) {
                const double p = levels->v[s->codes[(size_t)r * s->n_in + i]] * (double)scale_of(s, r) *
                                 (double)inputs(s)[(size_t)t * s->n_in + i];
                want += p;
                size += fabs(p);
            }
            const double got = (double)out[(size_t)t * s->n_out + r];
            const double bound = (s->n_in + 3) * 0x1p-24 * size * 1.01 + (s->n_in + 3) * 0x1p-149;
            CHECK(fabs(got - want) <= bound, "%s exact: out[%u][%u] = %.9g, want %.12g within %.3g", what, t, r, got,
                  want, bound);
        }
}

static void every_size(void **state)
{
    static const uint32_t n_ins[] = {1, 31, 32, 33, 64, 96, 100, 576, 640, 1536, 2048, 2080};
    static const uint32_t n_outs[] = {1, 15, 16, 17, 31, 32, 33, 48, 65};
    uint64_t seed = 1;
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (uint32_t i = 0; i < sizeof n_ins / sizeof *n_ins; i++)
            for (uint32_t j = 0; j < sizeof n_outs / sizeof *n_outs; j++, seed++) {
                subject s = open_subject(bits, n_ins[i], n_outs[j], 1 + (uint32_t)(seed * 5 % 14), seed);
                for (int tier = 0; tier < N_TIERS; tier++)
                    if (tier_runs(tier)) {
                        check_rows(&s, product(&s, tier, VQ_ACT_ROWS, NULL, s.n_tokens), tier_names[tier]);
                        check_rows(&s, product(&s, tier, VQ_ACT_ROWS, NULL, 1), tier_names[tier]);
                        check_exact(&s, product(&s, tier, VQ_ACT_EXACT, NULL, s.n_tokens), tier_names[tier]);
                    }
                close_subject(&s);
            }
}

/* The longest row with the largest codes: the sum of integers must not overflow. */
static void the_longest_row(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        subject s = open_subject(bits, 1 << 17, 3, 2, 5);
        for (uint32_t i = 0; i < 2 * s.n_in; i++)
            inputs(&s)[i] = i < s.n_in ? 1.0F : -1.0F;
        for (int tier = 0; tier < N_TIERS; tier++)
            if (tier_runs(tier)) {
                check_rows(&s, product(&s, tier, VQ_ACT_ROWS, NULL, 2), tier_names[tier]);
                check_rows(&s, product(&s, tier, VQ_ACT_ROWS, NULL, 1), tier_names[tier]);
            }
        close_subject(&s);
    }
}

/* The same bits for any cut of tokens and any number of threads, in both modes. */
static void any_cut_any_threads(void **state)
{
    static const uint32_t steps[] = {1, 2, 5, 7, 13, 27};
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (int tier = 0; tier < N_TIERS; tier++)
            for (uint32_t kind = VQ_ACT_EXACT; kind <= VQ_ACT_ROWS && tier_runs(tier); kind++) {
                subject sub = open_subject(bits, 1100, 65, 27, 77), *s = &sub;
                const size_t n_bytes = (size_t)s->n_out * s->n_tokens * 4;
                float *all = malloc(n_bytes);
                assert_non_null(all);
                memcpy(all, product(s, tier, (vq_act)kind, NULL, s->n_tokens), n_bytes);
                for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++) {
                    vq_pool *pool;
                    assert_int_equal(vq_pool_open(&pool, 1 + i % 4, NULL), VQ_OK);
                    const float *got = product(s, tier, (vq_act)kind, pool, steps[i]);
                    CHECK(memcmp(got, all, n_bytes) == 0, "%s, kind %u: steps of %u tokens, %u threads differ",
                          tier_names[tier], kind, steps[i], 1 + i % 4);
                    vq_pool_close(pool);
                }
                free(all);
                close_subject(s);
            }
}

static void codes_return_from_the_layout(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        subject s = open_subject(bits, 77, 33, 1, 3);
        uint8_t codes[77];
        for (uint32_t r = 0; r < 33; r++) {
            vq_packed_get(codes, vq_packed_tile(&s.w, r), r % 16, bits, 77);
            assert_memory_equal(codes, s.codes + (size_t)r * 77, 77);
        }
        close_subject(&s);
    }
}

int main(void)
{
    for (int tier = 0; tier < N_TIERS; tier++)
        if (!tier_runs(tier))
            print_message("SKIP: this CPU has no %s\n", tier_names[tier]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_return_from_the_layout),
        cmocka_unit_test(every_size),
        cmocka_unit_test(the_longest_row),
        cmocka_unit_test(any_cut_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
