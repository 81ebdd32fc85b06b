/* The tables of Lloyd-Max quantisers against their definition, recomputed: bounds are midpoints, levels conditional
 * means.  Newton's method from another start than the generator's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "quant/levels.h"
#include "quant/lloyd_max.h"

static double density(double x) { return isinf(x) ? 0 : exp(-0.5 * x * x) / sqrt(2 * M_PI); }

static double mass(double a, double b)
{
    return a >= 0 ? 0.5 * (erfc(a / M_SQRT2) - erfc(b / M_SQRT2)) : 0.5 * (erfc(-b / M_SQRT2) - erfc(-a / M_SQRT2));
}

/* The positive half: n levels, the first cell begins at 0. */
static void solve(double *c, uint32_t n)
{
    double low[128], diagonal[128], up[128], f[128];
    for (uint32_t i = 0; i < n; i++)
        c[i] = (i + 0.5) / n * (1.2 + 0.35 * log2(2.0 * n)); /* about evenly up to the outermost level */
    for (uint32_t round = 0; round < 500; round++) {
        double moved = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double a = i ? 0.5 * (c[i - 1] + c[i]) : 0, b = i + 1 < n ? 0.5 * (c[i] + c[i + 1]) : INFINITY;
            const double p = mass(a, b), m = (density(a) - density(b)) / p;
            const double da = i ? density(a) * (m - a) / p : 0, db = i + 1 < n ? density(b) * (b - m) / p : 0;
            f[i] = c[i] - m;
            low[i] = -0.5 * da;
            up[i] = -0.5 * db;
            diagonal[i] = 1 - 0.5 * (da + db);
        }
        for (uint32_t i = 1; i < n; i++) {
            const double w = low[i] / diagonal[i - 1];
            diagonal[i] -= w * up[i - 1];
            f[i] -= w * f[i - 1];
        }
        for (uint32_t i = n; i-- > 0;)
            f[i] = (f[i] - (i + 1 < n ? up[i] * f[i + 1] : 0)) / diagonal[i];
        double t = 1;
        for (uint32_t i = 0; i + 1 < n; i++)
            while (c[i] - t * f[i] >= c[i + 1] - t * f[i + 1] || c[0] - t * f[0] <= 0)
                t *= 0.5;
        for (uint32_t i = 0; i < n; i++) {
            c[i] -= t * f[i];
            moved = fabs(t * f[i]) > moved ? fabs(t * f[i]) : moved;
        }
        if (moved < 1e-14)
            return;
    }
}

static void tables_are_fixed_points(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= VQ_LLOYD_MAX_BITS; bits++) {
        const uint32_t n = 1u << (bits - 1);
        double c[128];
        solve(c, n);
        for (uint32_t i = 0; i < n; i++)
            if (!(fabs(c[i] - vq_lloyd_max_half[bits - 1][i]) <= 1e-9))
                fail_msg("%u bits, level %u: table %.12g, recomputed %.12g", bits, i, vq_lloyd_max_half[bits - 1][i],
                         c[i]);
        assert_true(vq_lloyd_max_level(bits, 0) == -vq_lloyd_max_half[bits - 1][n - 1]);
        assert_true(vq_lloyd_max_level(bits, 2 * n - 1) == vq_lloyd_max_half[bits - 1][n - 1]);
    }
}

/* Expected squared error of a table of levels, and that its byte forms say the same as v. */
static void grids_are_nearly_as_good(void **state)
{
    (void)state;
    static const double want[8] = {0.3634, 0.11748, 0.034548, 0.009501, 0.0025047, 0.00064424, 0.00016348, 0.000041185};
    for (uint32_t bits = 1; bits <= 8; bits++) {
        const vq_levels *l = &vq_levels_gaussian[bits - 1];
        const uint32_t n = 1u << bits, top = l->wide ? VQ_WIDE_TOP : VQ_NARROW_TOP;
        double error = 1;
        for (uint32_t i = 0; i < n; i++) {
            const double a = i ? l->bounds[i - 1] : -INFINITY, b = i + 1 < n ? l->bounds[i] : INFINITY;
            const double x = (double)l->step * l->v[i];
            error += x * x * mass(a, b) - 2 * x * (density(a) - density(b));
            const int32_t u = l->wide ? 256 * l->key[0][i] + l->key[1][i] : l->key[1][i];
            const int32_t s = l->wide ? 256 * l->value[0][i] + l->value[1][i] : l->value[1][i];
            assert_int_equal(2 * u - (int32_t)top, l->v[i]);
            assert_int_equal(2 * s + 1, l->v[i]);
        }
        printf("%u bits: %.8f (%.8f)\n", bits, error, want[bits - 1]);
        assert_true(error <= 1.005 * want[bits - 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_fixed_points),
        cmocka_unit_test(grids_are_nearly_as_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
