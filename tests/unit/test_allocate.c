/* Sharing a budget out, against all that there is to choose from. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rng.h"
#include "quant/allocate.h"

enum { ITEMS = 5, CHOICES = 5 };

static void sums(const vq_choice *c, const uint32_t *picked, uint64_t *cost, double *loss)
{
    *cost = 0;
    *loss = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        *cost += c[i * CHOICES + picked[i]].cost;
        *loss += c[i * CHOICES + picked[i]].loss;
    }
}

/* The least loss within a budget, by trying everything. */
static double best_of_all(const vq_choice *c, uint64_t budget)
{
    double best = INFINITY;
    uint32_t n_all = 1;
    for (uint32_t i = 0; i < ITEMS; i++)
        n_all *= CHOICES;
    for (uint32_t code = 0; code < n_all; code++) {
        uint32_t picked[ITEMS];
        for (uint32_t i = 0, rest = code; i < ITEMS; i++, rest /= CHOICES)
            picked[i] = rest % CHOICES;
        uint64_t cost;
        double loss;
        sums(c, picked, &cost, &loss);
        if (cost <= budget && loss < best)
            best = loss;
    }
    return best;
}

/* Rates as codecs have them: each bit costs the same and takes a falling part of what is left. */
static void convex(vq_choice *c, vq_rng *rng)
{
    for (uint32_t i = 0; i < ITEMS; i++) {
        double loss = 0.01 + vq_rng_uniform(rng);
        for (uint32_t k = 0; k < CHOICES; k++) {
            c[i * CHOICES + k] = (vq_choice){.cost = 10 + 8 * k, .loss = loss};
            loss *= 0.2 + 0.1 * vq_rng_uniform(rng);
        }
    }
}

static void equal_steps_are_shared_out_as_well_as_can_be(void **state)
{
    (void)state;
    vq_choice c[ITEMS * CHOICES];
    uint32_t picked[ITEMS];
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    for (int round = 0; round < 20; round++) {
        convex(c, &rng);
        for (uint64_t budget = 10 * ITEMS; budget <= 42 * ITEMS + 5; budget += 3) {
            uint64_t cost;
            double loss;
            assert_int_equal(vq_allocate(picked, c, ITEMS, CHOICES, budget, NULL), VQ_OK);
            sums(c, picked, &cost, &loss);
            const double best = best_of_all(c, budget);
            if (cost > budget || loss > best * (1 + 1e-12))
                fail_msg("round %d, budget %u: cost %u, loss %.6g, the best is %.6g", round, (unsigned)budget,
                         (unsigned)cost, loss, best);
        }
    }
}

/* Any costs and losses: the budget holds, and greed loses no more than the best single step of one item. */
static void any_choices_are_near_the_best(void **state)
{
    (void)state;
    vq_choice c[ITEMS * CHOICES];
    uint32_t picked[ITEMS];
    vq_rng rng;
    vq_rng_seed(&rng, 2);
    double worst = 1;
    for (int round = 0; round < 40; round++) {
        double most_step = 0;
        for (uint32_t i = 0; i < ITEMS; i++) {
            double most = 0, least = INFINITY;
            for (uint32_t k = 0; k < CHOICES; k++) {
                const double loss = vq_rng_uniform(&rng);
                c[i * CHOICES + k] = (vq_choice){.cost = vq_rng_next(&rng) % 100, .loss = loss};
                most = fmax(most, loss);
                least = fmin(least, loss);
            }
            most_step = fmax(most_step, most - least);
        }
        const uint64_t least = vq_allocate_least(picked, c, ITEMS, CHOICES);
        vq_error err;
        if (least > 0)
            assert_int_equal(vq_allocate(picked, c, ITEMS, CHOICES, least - 1, &err), VQ_ERR_FULL);
        for (uint64_t budget = least; budget < 400; budget += 7) {
            uint64_t cost;
            double loss;
            assert_int_equal(vq_allocate(picked, c, ITEMS, CHOICES, budget, NULL), VQ_OK);
            sums(c, picked, &cost, &loss);
            const double best = best_of_all(c, budget);
            assert_true(cost <= budget);
            if (loss > best + most_step)
                fail_msg("round %d, budget %u: loss %.6g, the best is %.6g", round, (unsigned)budget, loss, best);
            worst = fmax(worst, loss / best);
        }
    }
    printf("at worst %.3f times the best loss\n", worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_steps_are_shared_out_as_well_as_can_be),
        cmocka_unit_test(any_choices_are_near_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
