/* Error feedback: what it is for, that rows don't depend on how they come, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "quant/feedback.h"

enum { N_IN = 96, N_OUT = 37, N_X = 400 };

typedef struct subject {
    vq_codes_kernels k;
    vq_carry_kernels carry;
    vq_input_rotation *rotation;
    vq_linear l;
    float w[N_OUT * N_IN], back[N_OUT * N_IN], x[N_X * N_IN], moment[N_IN * N_IN], factor[N_IN * N_IN + N_IN];
    void *data, *scratch;
    size_t n_bytes;
} subject;

/* Inputs of 12 directions and a little noise, as the activations of a model are. */
static subject *open_subject(uint32_t bits)
{
    subject *s = calloc(1, sizeof *s);
    vq_error err;
    assert_non_null(s);
    vq_codes_kernels_init(&s->k, vq_cpu_detect());
    vq_carry_kernels_init(&s->carry, vq_cpu_detect());
    assert_int_equal(vq_input_rotation_open(&s->rotation, &s->k, N_IN, false, 5, &err), VQ_OK);
    s->l = (vq_linear){.bits = bits, .n_in = N_IN, .n_out = N_OUT, .rotation = &s->rotation->r, .k = &s->k};
    s->n_bytes = vq_linear_bytes(bits, N_IN, N_OUT);
    s->data = aligned_alloc(64, s->n_bytes);
    s->scratch = aligned_alloc(64, vq_feedback_scratch_bytes(N_IN, 3) + vq_linear_scratch_bytes(N_IN, 3));
    assert_true(s->data && s->scratch);
    vq_rng rng;
    vq_rng_seed(&rng, 8);
    float mixing[12 * N_IN];
    for (uint32_t i = 0; i < 12 * N_IN; i++)
        mixing[i] = (float)vq_rng_normal(&rng);
    for (uint32_t t = 0; t < N_X; t++) {
        for (uint32_t i = 0; i < N_IN; i++)
            s->x[t * N_IN + i] = 0.3F * (float)vq_rng_normal(&rng);
        for (uint32_t j = 0; j < 12; j++) {
            const float amount = (float)vq_rng_normal(&rng);
            for (uint32_t i = 0; i < N_IN; i++)
                s->x[t * N_IN + i] += amount * mixing[j * N_IN + i];
        }
    }
    for (uint32_t i = 0; i < N_OUT * N_IN; i++)
        s->w[i] = (float)vq_rng_normal(&rng);
    return s;
}

static void close_subject(subject *s)
{
    vq_input_rotation_close(s->rotation);
    free(s->data);
    free(s->scratch);
    free(s);
}

static void make_factor(subject *s)
{
    float scratch[N_IN];
    vq_error err;
    memcpy(s->factor, s->moment, sizeof s->moment);
    assert_int_equal(vq_feedback_factor(s->factor, s->l.rotation, scratch, &err), VQ_OK);
}

/* Mean square of (w - q) x over rows and inputs. */
static double output_error(subject *s)
{
    double sum = 0;
    vq_linear_decode(&s->l, NULL, s->data, 0, N_OUT, s->back, s->scratch);
    for (uint32_t t = 0; t < N_X; t++)
        for (uint32_t r = 0; r < N_OUT; r++) {
            double dot = 0;
            for (uint32_t i = 0; i < N_IN; i++)
                dot += ((double)s->w[r * N_IN + i] - (double)s->back[r * N_IN + i]) * (double)s->x[t * N_IN + i];
            sum += dot * dot;
        }
    return sum / (N_X * N_OUT);
}

static void moments_are_sums_of_products(void **state)
{
    (void)state;
    subject *s = open_subject(3);
    vq_feedback_add(&s->carry, s->moment, NULL, s->x, 100, N_IN);
    vq_feedback_add(&s->carry, s->moment, NULL, s->x + 100 * N_IN, N_X - 100, N_IN);
    for (uint32_t i = 0; i < N_IN; i += 5)
        for (uint32_t j = i; j < N_IN; j += 7) {
            double want = 0, size = 0;
            for (uint32_t t = 0; t < N_X; t++) {
                want += (double)s->x[t * N_IN + i] * (double)s->x[t * N_IN + j];
                size += fabs((double)s->x[t * N_IN + i] * (double)s->x[t * N_IN + j]);
            }
            assert_true(fabs((double)s->moment[i * N_IN + j] - want) <= (N_X + 2) * 0x1p-24 * size);
        }
    close_subject(s);
}

/* The same bits on threads, in other pieces and on every tier. */
static void moments_do_not_depend_on_how_rows_come(void **state)
{
    (void)state;
    subject *s = open_subject(3);
    float *other = calloc(N_IN * N_IN, sizeof *other);
    vq_pool *pool = NULL;
    assert_true(other && vq_pool_open(&pool, 3, NULL) == VQ_OK);
    vq_feedback_add(&s->carry, s->moment, NULL, s->x, N_X, N_IN);
    vq_carry_kernels_init(&s->carry, 0);
    for (uint32_t first = 0, n; first < N_X; first += n) {
        n = N_X - first < 61 ? N_X - first : 61;
        vq_feedback_add(&s->carry, other, pool, s->x + first * N_IN, n, N_IN);
    }
    for (uint32_t i = 0; i < N_IN; i++)
        assert_memory_equal(other + i * N_IN + i, s->moment + i * N_IN + i, (N_IN - i) * sizeof *other);
    vq_pool_close(pool);
    free(other);
    close_subject(s);
}

static void outputs_lose_less(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        subject *s = open_subject(bits);
        vq_feedback_add(&s->carry, s->moment, NULL, s->x, N_X, N_IN);
        make_factor(s);
        vq_row_error errors[N_OUT];
        vq_linear_encode(&s->l, NULL, s->data, 0, N_OUT, s->w, NULL, s->scratch);
        const double plain = output_error(s);
        vq_feedback_encode(&s->l, &s->carry, NULL, s->data, 0, N_OUT, s->w, s->factor, errors, s->scratch);
        const double fed = output_error(s);
        print_message("%u bits: error %.4f, with feedback %.4f\n", bits, plain, fed);
        assert_true(fed < 0.5 * plain);

        double told = 0, error = 0;
        for (uint32_t r = 0; r < N_OUT; r++)
            told += errors[r].error;
        for (uint32_t i = 0; i < N_OUT * N_IN; i++)
            error += ((double)s->w[i] - (double)s->back[i]) * ((double)s->w[i] - (double)s->back[i]);
        assert_true(fabs(told / error - 1) < 1e-3);
        close_subject(s);
    }
}

/* With H a multiple of the identity nothing is moved: the plain codes, for the norm that is then chosen. */
static void white_inputs_move_nothing(void **state)
{
    (void)state;
    subject *s = open_subject(4);
    for (uint32_t i = 0; i < N_IN; i++)
        s->moment[i * N_IN + i] = 7;
    make_factor(s);
    for (uint32_t j = 0; j < N_IN; j++)
        for (uint32_t k = 0; k < j; k++)
            assert_true(fabsf(s->factor[j * N_IN + k]) < 1e-5F);
    vq_linear_encode(&s->l, NULL, s->data, 0, N_OUT, s->w, NULL, s->scratch);
    const double plain = output_error(s);
    vq_feedback_encode(&s->l, &s->carry, NULL, s->data, 0, N_OUT, s->w, s->factor, NULL, s->scratch);
    assert_true(output_error(s) < 1.1 * plain);
    close_subject(s);
}

static void the_same_bytes_in_any_pieces_on_any_tier(void **state)
{
    (void)state;
    subject *s = open_subject(3);
    vq_feedback_add(&s->carry, s->moment, NULL, s->x, N_X, N_IN);
    make_factor(s);
    vq_feedback_encode(&s->l, &s->carry, NULL, s->data, 0, N_OUT, s->w, s->factor, NULL, s->scratch);
    uint8_t *other = aligned_alloc(64, s->n_bytes);
    vq_pool *pool = NULL;
    assert_true(other && vq_pool_open(&pool, 3, NULL) == VQ_OK);
    memset(other, 0x5a, s->n_bytes);
    vq_carry_kernels_init(&s->carry, 0);
    vq_codes_kernels_init(&s->k, 0);
    vq_feedback_encode(&s->l, &s->carry, pool, other, 5, N_OUT - 5, s->w + 5 * N_IN, s->factor, NULL, s->scratch);
    vq_feedback_encode(&s->l, &s->carry, pool, other, 0, 5, s->w, s->factor, NULL, s->scratch);
    assert_memory_equal(other, s->data, s->n_bytes);
    vq_pool_close(pool);
    free(other);
    close_subject(s);
}

static void odd_moments(void **state)
{
    (void)state;
    subject *s = open_subject(2);
    float scratch[N_IN];
    vq_error err;
    make_factor(s); /* all zeros: no input was ever seen */
    vq_feedback_encode(&s->l, &s->carry, NULL, s->data, 0, N_OUT, s->w, s->factor, NULL, s->scratch);
    assert_true(isfinite(output_error(s)));
    for (uint32_t i = 0; i < N_IN; i++) /* one direction only */
        for (uint32_t j = 0; j < N_IN; j++)
            s->moment[i * N_IN + j] = 1e6F;
    make_factor(s);
    vq_feedback_encode(&s->l, &s->carry, NULL, s->data, 0, N_OUT, s->w, s->factor, NULL, s->scratch);
    assert_true(isfinite(output_error(s)));
    memcpy(s->factor, s->moment, sizeof s->moment);
    s->factor[3 * N_IN + 3] = INFINITY;
    assert_int_equal(vq_feedback_factor(s->factor, s->l.rotation, scratch, &err), VQ_ERR_NONFINITE);
    close_subject(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments_are_sums_of_products),
        cmocka_unit_test(moments_do_not_depend_on_how_rows_come),
        cmocka_unit_test(outputs_lose_less),
        cmocka_unit_test(white_inputs_move_nothing),
        cmocka_unit_test(the_same_bytes_in_any_pieces_on_any_tier),
        cmocka_unit_test(odd_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
