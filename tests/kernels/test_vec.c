/* Every tier of kernels/vec.h against double, within derived bounds, for all lengths from 0 to 70 and a few long ones,
 * with guard pages on both sides; rope and conversions bit for bit against the definition. */
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
#include "base/rng.h"
#include "kernels/vec.h"

enum { MOST = 2048, N_GUARDS = 3 };
static const double U = 0x1p-24;    /* half an ulp of 1 */
static const double TINY = 1.2e-38; /* the exponential may be 0 below this */

static const uint32_t long_sizes[] = {127, 128, 129, 576, 640, 1536, 2048};
static const uint32_t tier_sets[] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"c", "avx2", "avx512"};

typedef struct subject {
    const vq_vec_kernels *k, *c; /* the tier under test and the definition */
    const char *tier;
    float *x, *y, *w; /* [n] between guard pages */
    uint32_t n;
    vq_rng rng;
} subject;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            print_error("%s:%d tier %s n %u: ", __FILE__, __LINE__, s->tier, s->n);                                    \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static void check_near(const subject *s, const char *what, uint32_t i, float got, double want, double bound)
{
    CHECK(fabs((double)got - want) <= bound, "%s[%u] = %.9g, want %.12g within %.3g", what, i, (double)got, want,
          bound);
}

/* Mostly ordinary values; now and then zero, tiny, denormal or large ones. */
static float draw(vq_rng *rng, float most)
{
    const uint32_t kind = (uint32_t)(vq_rng_next(rng) % 16);
    const float v = (float)vq_rng_normal(rng);
    if (kind == 0)
        return 0;
    if (kind == 1)
        return v * 1e-39f;
    if (kind == 2)
        return v * 0.2f * most;
    return v < -most ? -most : v > most ? most : v;
}

static void fill(subject *s, float *x, float most)
{
    for (uint32_t i = 0; i < s->n; i++)
        x[i] = draw(&s->rng, most);
}

static void check_rms_norm(subject *s)
{
    float *x = s->x, *w = s->w, *out = s->y;
    for (int round = 0; round < 3; round++) {
        fill(s, x, round == 2 ? 1e25f : 100); /* squares of 1e25 do not fit in a float */
        fill(s, w, 10);
        const float eps = round == 1 ? 1e-5f : 1e-6f;
        double sum = 0;
        for (uint32_t i = 0; i < s->n; i++)
            sum += (double)x[i] * x[i];
        const double inv = 1 / sqrt(sum / s->n + eps);
        s->k->rms_norm(out, x, w, s->n, eps);
        for (uint32_t i = 0; i < s->n; i++) { /* three roundings: the factor and two products */
            const double want = x[i] * inv * w[i];
            check_near(s, "rms_norm", i, out[i], want, 3.1 * U * fabs(want) + fabs((double)w[i]) * TINY + TINY);
        }
        s->k->rms_norm(out, x, NULL, s->n, eps);
        for (uint32_t i = 0; i < s->n; i++)
            check_near(s, "rms_norm, no weight", i, out[i], x[i] * inv, 2.1 * U * fabs(x[i] * inv) + TINY);
        memcpy(w, x, s->n * sizeof *w);
        s->k->rms_norm(w, w, NULL, s->n, eps); /* in place */
        CHECK(memcmp(w, out, s->n * sizeof *w) == 0, "rms_norm in place differs");
    }
}

static void check_add_and_scale(subject *s)
{
    static float want[MOST];
    fill(s, s->x, 1000);
    fill(s, s->y, 1000);
    for (uint32_t i = 0; i < s->n; i++)
        want[i] = s->x[i] + s->y[i];
    s->k->add(s->x, s->y, s->n);
    CHECK(memcmp(want, s->x, s->n * sizeof *want) == 0, "add differs");
    for (uint32_t i = 0; i < s->n; i++)
        want[i] = s->x[i] * 1.7f;
    s->k->scale(s->x, 1.7f, s->n);
    CHECK(memcmp(want, s->x, s->n * sizeof *want) == 0, "scale differs");
}

static double logistic(double u) { return u < 0 ? exp(u) / (1 + exp(u)) : 1 / (1 + exp(-u)); }

static void check_gates(subject *s)
{
    static const float extremes[] = {0,      -0.0f, 1e-40f, -1e-40f, 20,     -20,   87.3f,  -87.3f,  87.4f,
                                     -87.4f, 104,   -104,   1e10f,   -1e10f, 1e30f, -1e30f, FLT_MAX, -FLT_MAX};
    static float kept[MOST];
    for (int round = 0; round < 2; round++) {
        fill(s, s->x, 90);
        fill(s, s->y, 10);
        if (round == 1)
            for (uint32_t i = 0; i < s->n; i++)
                s->x[i] = extremes[i % (sizeof extremes / sizeof *extremes)], s->y[i] = 0.5f;
        memcpy(kept, s->x, s->n * sizeof *kept);
        s->k->silu_mul(s->x, s->y, s->n);
        for (uint32_t i = 0; i < s->n; i++) {
            /* the exponential (4 + |u| / 20), and five operations */
            const double x = kept[i], want = x * logistic(x) * s->y[i];
            const double bound = (9.1 + fabs(x) / 20) * U * fabs(want) + (fabs(x) + 1) * (fabs(s->y[i]) + 1) * TINY;
            check_near(s, "silu", i, s->x[i], want, bound);
        }
        memcpy(s->x, kept, s->n * sizeof *kept);
        s->k->gelu_mul(s->x, s->y, s->n);
        for (uint32_t i = 0; i < s->n; i++) {
            /* and u itself: two constants, four operations */
            const double x = kept[i], u = 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
            const double want = x * logistic(u) * s->y[i];
            const double bound = (9.1 + fabs(u) * 6.1) * U * fabs(want) + (fabs(x) + 1) * (fabs(s->y[i]) + 1) * TINY;
            check_near(s, "gelu", i, s->x[i], want, bound);
        }
    }
}

static void check_max(subject *s)
{
    CHECK(s->k->max(s->x, 0) == -INFINITY, "max of nothing");
    for (uint32_t at = 0; at < s->n; at++) {
        for (uint32_t i = 0; i < s->n; i++)
            s->x[i] = -3 - (float)i;
        s->x[at] = -2.5f;
        CHECK(s->k->max(s->x, s->n) == -2.5f, "max at %u is %g", at, (double)s->k->max(s->x, s->n));
        if (s->n > 70)
            at += 60;
    }
}

static void check_exp_sum(subject *s)
{
    static float kept[MOST];
    fill(s, s->x, 95);
    if (s->n > 2)
        s->x[s->n / 2] = -INFINITY;
    const float max = s->n == 0 ? 0 : s->k->max(s->x, s->n);
    memcpy(kept, s->x, s->n * sizeof *kept);
    const float got = s->k->exp_sum(s->x, max, s->n);
    double sum = 0, bound_of_sum = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const double t = kept[i] - max, want = exp(t); /* the difference is one float operation */
        const double bound = isinf(t) ? 0 : (4 + fabs(t) / 20) * U * want + TINY;
        check_near(s, "exp", i, s->x[i], want, bound);
        CHECK(kept[i] != max || s->x[i] == 1, "exp(0) = %.9g", (double)s->x[i]);
        sum += want;
        bound_of_sum += bound;
    }
    check_near(s, "exp_sum", 0, got, sum, bound_of_sum + s->n * U * sum);
    for (uint32_t i = 0; i < s->n; i++)
        s->x[i] = -88 - (float)i;
    CHECK(s->k->exp_sum(s->x, 0, s->n) == 0, "not 0 below the smallest normal number");
}

static void check_dot(subject *s)
{
    fill(s, s->x, 100);
    fill(s, s->y, 100);
    double want = 0, sum_abs = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        want += (double)s->x[i] * s->y[i];
        sum_abs += fabs((double)s->x[i] * s->y[i]);
    }
    /* a product and at most n additions are rounded */
    check_near(s, "dot", 0, s->k->dot(s->x, s->y, s->n), want, (s->n + 1) * U * sum_abs + s->n * TINY);
}

static void check_rope(subject *s)
{
    static float kept[MOST], want[MOST];
    const uint32_t n_pairs = s->n / 2;
    float *cosine = s->y, *sine = s->w;
    if (n_pairs == 0)
        return;
    /* rows between guard pages: one head of d = n values of which n_rot = 2 n_pairs are turned */
    for (uint32_t i = 0; i < n_pairs; i++) {
        const double angle = vq_rng_normal(&s->rng) * 100;
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    for (int halves = 0; halves < 2; halves++) {
        fill(s, s->x, 1000);
        memcpy(kept, s->x, s->n * sizeof *kept);
        memcpy(want, s->x, s->n * sizeof *want);
        s->c->rope(want, cosine, sine, 1, s->n, 2 * n_pairs, halves);
        s->k->rope(s->x, cosine, sine, 1, s->n, 2 * n_pairs, halves);
        CHECK(memcmp(want, s->x, s->n * sizeof *want) == 0, "rope (halves %d) is not the definition's", halves);
        for (uint32_t i = 0; i < n_pairs; i++) {
            const uint32_t at = halves ? i : 2 * i, bt = halves ? i + n_pairs : 2 * i + 1;
            const double a = kept[at], b = kept[bt], c = cosine[i], sn = sine[i];
            check_near(s, "rope", at, s->x[at], a * c - b * sn, 2.1 * U * (fabs(a * c) + fabs(b * sn)) + TINY);
            check_near(s, "rope", bt, s->x[bt], a * sn + b * c, 2.1 * U * (fabs(a * sn) + fabs(b * c)) + TINY);
        }
        CHECK(s->n % 2 == 0 || s->x[s->n - 1] == kept[s->n - 1], "rope touched a value past n_rot");
    }
    /* several heads, partial rotation */
    const uint32_t d = s->n / 3, n_rot = d / 4 * 2;
    if (n_rot == 0)
        return;
    for (int halves = 0; halves < 2; halves++) {
        fill(s, s->x, 10);
        memcpy(want, s->x, s->n * sizeof *want);
        s->c->rope(want, cosine, sine, 3, d, n_rot, halves);
        s->k->rope(s->x, cosine, sine, 3, d, n_rot, halves);
        CHECK(memcmp(want, s->x, s->n * sizeof *want) == 0, "rope over heads (halves %d) differs", halves);
    }
}

/* Bits of floats that decide between tiers: halfway cases, limits, NaN, denormals, and random ones. */
static uint32_t odd_bits(vq_rng *rng, uint32_t i)
{
    static const uint32_t fixed[] = {0,          0x80000000, 1,          0x7f7fffff, 0xff7fffff, 0x7f800000,
                                     0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x477fe000, 0x477fefff,
                                     0x477ff000, 0x33000000, 0x33000001, 0x32ffffff, 0x387fc000, 0x387fe000,
                                     0x387fffff, 0x7f7f8000, 0x7f7f7fff, 0x3f808000, 0x3f818000, 0x3f801000,
                                     0x3f803000, 0x007fffff, 0x00008000, 0x00018000};
    const uint32_t n_fixed = sizeof fixed / sizeof *fixed, r = (uint32_t)vq_rng_next(rng);
    if (i % 3 == 0)
        return fixed[r % n_fixed];
    if (i % 3 == 1)
        return (r & 0xc7ffe000) | 0x38000000 | 0x1000; /* halfway between two halves */
    return r;
}

static void check_halves(subject *s, const char *what, const uint16_t *got, const uint16_t *want, const float *x,
                         uint32_t infinity)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const bool nan = (got[i] & 0x7fffu) > infinity;
        CHECK(isnan(x[i]) ? nan : got[i] == want[i], "%s(%a)[%u] = %04x, want %04x", what, (double)x[i], i, got[i],
              want[i]);
    }
}

static void check_conversions(subject *s)
{
    static uint16_t want[MOST];
    uint16_t *half = (uint16_t *)(void *)s->y;
    if (s->n > 0) /* so that the last half is the last thing before the guard page */
        half = (uint16_t *)(void *)((unsigned char *)(s->y + s->n) - s->n * sizeof *half);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < s->n; i++) {
            const uint32_t bits = odd_bits(&s->rng, i + (uint32_t)round);
            memcpy(s->x + i, &bits, 4);
        }
        s->c->f32_to_f16(want, s->x, s->n);
        s->k->f32_to_f16(half, s->x, s->n);
        check_halves(s, "f32_to_f16", half, want, s->x, 0x7c00);
        s->c->f32_to_bf16(want, s->x, s->n);
        s->k->f32_to_bf16(half, s->x, s->n);
        check_halves(s, "f32_to_bf16", half, want, s->x, 0x7f80);
        for (uint32_t i = 0; i < s->n; i++)
            half[i] = (uint16_t)vq_rng_next(&s->rng);
        s->k->bf16_to_f32(s->x, half, s->n);
        s->c->bf16_to_f32(s->w, half, s->n);
        for (uint32_t i = 0; i < s->n; i++)
            CHECK((isnan(s->x[i]) && isnan(s->w[i])) || memcmp(s->x + i, s->w + i, 4) == 0, "bf16_to_f32(%04x)",
                  half[i]);
        s->k->f16_to_f32(s->x, half, s->n);
        s->c->f16_to_f32(s->w, half, s->n);
        for (uint32_t i = 0; i < s->n; i++)
            CHECK((isnan(s->x[i]) && isnan(s->w[i])) || memcmp(s->x + i, s->w + i, 4) == 0, "f16_to_f32(%04x)",
                  half[i]);
    }
}

static void run_tier(uint32_t tier, void (*check)(subject *))
{
    const uint32_t cpu = tier_sets[tier];
    if ((vq_cpu_detect() & cpu) != cpu) {
        print_message("SKIP tier %s: not on this processor\n", tier_names[tier]);
        return;
    }
    vq_vec_kernels k, c;
    vq_vec_kernels_init(&k, cpu);
    vq_vec_kernels_init(&c, 0);
    guard guards[N_GUARDS];
    for (int i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(MOST * sizeof(float));
    subject s = {.k = &k, .c = &c, .tier = tier_names[tier]};
    vq_rng_seed(&s.rng, 20261129);
    const uint32_t n_long = sizeof long_sizes / sizeof *long_sizes;
    for (uint32_t i = 0; i <= 70 + n_long; i++)
        for (int at_end = 0; at_end < 2; at_end++) {
            s.n = i <= 70 ? i : long_sizes[i - 71];
            s.x = guard_take(&guards[0], s.n * sizeof(float), at_end);
            s.y = guard_take(&guards[1], s.n * sizeof(float), at_end);
            s.w = guard_take(&guards[2], s.n * sizeof(float), at_end);
            check(&s);
        }
    for (int i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
}

static void all_tiers(void **state)
{
    void (*check)(subject *);
    memcpy(&check, state, sizeof check);
    for (uint32_t tier = 0; tier < 3; tier++)
        run_tier(tier, check);
}

/* One float in 509 of the whole range of the softmax, and all near 0: the bound of vec_exp.h. */
static void exp_sweep(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < 3; tier++) {
        if ((vq_cpu_detect() & tier_sets[tier]) != tier_sets[tier])
            continue;
        vq_vec_kernels k;
        vq_vec_kernels_init(&k, tier_sets[tier]);
        double worst = 0, worst_at = 0;
        uint32_t bits = 0x80000000;
        for (bool more = true; more;) {
            float x[64], y[64];
            uint32_t n = 0;
            for (; n < 64 && more; n++, bits += bits < 0xb0000000 ? 40009 : 509) {
                memcpy(&x[n], &bits, 4);
                more = x[n] > -87.33f;
            }
            memcpy(y, x, sizeof y);
            k.exp_sum(y, 0, n);
            for (uint32_t i = 0; i + !more < n; i++) {
                const double want = exp(x[i]), units = fabs(y[i] - want) / want / U, bound = 4 - (double)x[i] / 20;
                if (!(units <= bound))
                    fail_msg("tier %s: exp(%.9g) = %.9g is off by %.3f x 2^-24, bound %.3f", tier_names[tier],
                             (double)x[i], (double)y[i], units, bound);
                if (units > worst)
                    worst = units, worst_at = x[i];
            }
        }
        print_message("tier %s: worst error of exp %.3f x 2^-24 at %.6g\n", tier_names[tier], worst, worst_at);
    }
}

#define CASE(check)                                                                                                    \
    {                                                                                                                  \
#check, all_tiers, NULL, NULL, (void *)(uintptr_t)(check)                                                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(check_rms_norm), CASE(check_add_and_scale), CASE(check_gates),
        CASE(check_max),      CASE(check_exp_sum),       CASE(check_dot),
        CASE(check_rope),     CASE(check_conversions),   cmocka_unit_test(exp_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
