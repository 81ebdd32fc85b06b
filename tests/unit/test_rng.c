/* Random numbers: published vectors, then distributions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* splitmix64 from seed 1234567, as its users publish it. */
static void seeding_is_splitmix64(void **state)
{
    (void)state;
    static const uint64_t want[4] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                     4593380528125082431u};
    vq_rng rng;
    vq_rng_seed(&rng, 1234567);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(rng.s[i], want[i]);
}

/* The first outputs of the authors' code from the state 1, 2, 3, 4. */
static void stream_is_xoshiro256pp(void **state)
{
    (void)state;
    static const uint64_t want[10] = {
        41943041u,
        58720359u,
        3588806011781223u,
        3591011842654386u,
        9228616714210784205u,
        9973669472204895162u,
        14011001112246962877u,
        12406186145184390807u,
        15849039046786891736u,
        10450023813501588000u,
    };
    vq_rng rng = {{1, 2, 3, 4}};
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(vq_rng_next(&rng), want[i]);
}

static void uniform_uses_53_bits(void **state)
{
    (void)state;
    enum { N = 200000 };
    vq_rng rng, copy;
    vq_rng_seed(&rng, 7);
    copy = rng;
    double sum = 0, least = 1, most = 0;
    for (unsigned i = 0; i < N; i++) {
        const double u = vq_rng_uniform(&rng);
        assert_true(u == (double)(vq_rng_next(&copy) >> 11) / 9007199254740992.0);
        sum += u;
        least = fmin(least, u);
        most = fmax(most, u);
    }
    assert_true(least >= 0 && most < 1);
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1. / 12 / N)); /* five standard errors */
}

static void normal_has_the_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    vq_rng rng;
    vq_rng_seed(&rng, 7);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    for (unsigned i = 0; i < N; i++) {
        const double x = vq_rng_normal(&rng);
        assert_true(isfinite(x));
        m1 += x / N;
        m2 += x * x / N;
        m3 += x * x * x / N;
        m4 += x * x * x * x / N;
    }
    /* Variances of the sample moments: 1, 2, 15, 96 over N. */
    assert_true(fabs(m1) < 5 * sqrt(1. / N));
    assert_true(fabs(m2 - 1) < 5 * sqrt(2. / N));
    assert_true(fabs(m3) < 5 * sqrt(15. / N));
    assert_true(fabs(m4 - 3) < 5 * sqrt(96. / N));
}

/* Every bit of every word moves about half of the result. */
static void hash_spreads(void **state)
{
    (void)state;
    uint64_t w[5] = {1, 2, 3, 4, 5};
    const uint64_t before = vq_hash64(w[0], w[1], w[2], w[3], w[4]);
    assert_int_equal(before, vq_hash64(1, 2, 3, 4, 5));
    assert_int_not_equal(before, vq_hash64(2, 1, 3, 4, 5));
    assert_int_not_equal(vq_hash64(0, 0, 0, 0, 0), 0);
    int total = 0;
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned bit = 0; bit < 64; bit++) {
            w[i] ^= (uint64_t)1 << bit;
            const int moved = __builtin_popcountll(before ^ vq_hash64(w[0], w[1], w[2], w[3], w[4]));
            w[i] ^= (uint64_t)1 << bit;
            assert_in_range(moved, 12, 52); /* five standard deviations of 4 around 32 */
            total += moved;
        }
    }
    assert_in_range(total, 320 * 32 - 5 * 72, 320 * 32 + 5 * 72);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeding_is_splitmix64), cmocka_unit_test(stream_is_xoshiro256pp),
        cmocka_unit_test(uniform_uses_53_bits),  cmocka_unit_test(normal_has_the_moments),
        cmocka_unit_test(hash_spreads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
