/* Quantised matrices: their error on matrices as methods.md gives them, rows that are independent of how they come,
 * rotations that are orthogonal, what decode and products see. */
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
#include "kernels/matmul_packed.h"
#include "quant/linear.h"

typedef struct subject {
    vq_codes_kernels *k; /* rotation and matrix point to it */
    vq_input_rotation *rotation;
    vq_linear l;
    void *data, *scratch;
    float *x, *back;
    vq_row_error *errors;
} subject;

static subject open_subject(uint32_t bits, uint32_t n_in, uint32_t n_out, bool haar, uint32_t n_outliers, uint32_t cpu)
{
    subject s = {0};
    vq_error err;
    s.k = malloc(sizeof *s.k);
    assert_non_null(s.k);
    vq_codes_kernels_init(s.k, cpu);
    assert_int_equal(vq_linear_check(bits, n_in, n_out, &err), VQ_OK);
    assert_int_equal(vq_input_rotation_open(&s.rotation, s.k, n_in, haar, 1234, &err), VQ_OK);
    s.l = (vq_linear){.bits = bits, .n_in = n_in, .n_out = n_out, .rotation = &s.rotation->r, .k = s.k};
    const size_t n = (size_t)n_in * n_out;
    s.data = aligned_alloc(64, vq_linear_bytes(bits, n_in, n_out));
    s.scratch = aligned_alloc(64, vq_linear_scratch_bytes(n_in, 4));
    s.x = malloc(n * sizeof *s.x);
    s.back = malloc(n * sizeof *s.back);
    s.errors = malloc(n_out * sizeof *s.errors);
    assert_true(s.data && s.scratch && s.x && s.back && s.errors);
    memset(s.data, 0xff, vq_linear_bytes(bits, n_in, n_out));
    vq_rng rng;
    vq_rng_seed(&rng, 99);
    for (size_t i = 0; i < n; i++)
        s.x[i] = (float)vq_rng_normal(&rng) * (i % n_in % (n_in / 8 + 1) == 0 && n_outliers ? 10.0F : 1.0F);
    return s;
}

static void close_subject(subject *s)
{
    vq_input_rotation_close(s->rotation);
    free(s->k);
    free(s->data);
    free(s->scratch);
    free(s->x);
    free(s->back);
    free(s->errors);
}

static double relative_error(subject *s)
{
    double error = 0, squares = 0;
    vq_linear_encode(&s->l, NULL, s->data, 0, s->l.n_out, s->x, s->errors, s->scratch);
    vq_linear_decode(&s->l, NULL, s->data, 0, s->l.n_out, s->back, s->scratch);
    for (size_t i = 0; i < (size_t)s->l.n_in * s->l.n_out; i++) {
        const double d = (double)s->back[i] - (double)s->x[i];
        error += d * d;
        squares += (double)s->x[i] * (double)s->x[i];
    }
    double told = 0, told_squares = 0;
    for (uint32_t r = 0; r < s->l.n_out; r++) {
        told += s->errors[r].error;
        told_squares += s->errors[r].squares;
    }
    assert_true(fabs(told / error - 1) < 1e-3 && fabs(told_squares / squares - 1) < 1e-4);
    return sqrt(error / squares);
}

/* The figures of a Gaussian matrix, and of one with 8 columns of 512 ten times as large; in longer rows 8 such columns
 * are less, and the figure of the first is the limit. */
static void relative_errors(void **state)
{
    static const double plain[] = {0.343, 0.186, 0.0975}, outliers[] = {0.332, 0.180, 0.094};
    static const uint32_t n_ins[] = {512, 576, 640, 1536, 2048, 4864};
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (uint32_t i = 0; i < sizeof n_ins / sizeof *n_ins; i++)
            for (uint32_t outlier = 0; outlier < 2; outlier++) {
                subject s = open_subject(bits, n_ins[i], 128, false, outlier, vq_cpu_detect());
                const double error = relative_error(&s),
                             most = (outlier && n_ins[i] == 512 ? outliers : plain)[bits - 2];
                print_message("%u bits, %u values%s: %.4f\n", bits, n_ins[i], outlier ? ", 8 outliers" : "", error);
                assert_true(error <= most * 1.002 && error >= most * 0.9);
                close_subject(&s);
            }
}

static void the_same_bytes_in_any_pieces_on_any_tier(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (uint32_t n_out = 1; n_out <= 67; n_out += 11) {
            const uint32_t n_in = n_out % 2 ? 96 : 171;
            subject s = open_subject(bits, n_in, n_out, false, 0, 0);
            const size_t n_bytes = vq_linear_bytes(bits, n_in, n_out);
            uint8_t *other = aligned_alloc(64, n_bytes);
            vq_pool *pool = NULL;
            assert_true(other && vq_pool_open(&pool, 3, NULL) == VQ_OK);
            vq_linear_encode(&s.l, NULL, s.data, 0, n_out, s.x, NULL, s.scratch);
            memset(other, 0x5a, n_bytes);
            vq_codes_kernels_init(s.k, vq_cpu_detect());
            const uint32_t cut = n_out / 3; /* the end first */
            vq_linear_encode(&s.l, pool, other, cut, n_out - cut, s.x + (size_t)cut * n_in, NULL, s.scratch);
            vq_linear_encode(&s.l, pool, other, 0, cut, s.x, NULL, s.scratch);
            assert_memory_equal(s.data, other, n_bytes);
            vq_pool_close(pool);
            free(other);
            close_subject(&s);
        }
}

static void a_haar_matrix_can_be_kept(void **state)
{
    (void)state;
    subject s = open_subject(3, 192, 40, true, 1, vq_cpu_detect());
    assert_true(s.rotation->matrix != NULL);
    assert_true(relative_error(&s) < 0.19);
    float *kept = malloc((size_t)192 * 192 * sizeof *kept), *again = malloc((size_t)192 * 40 * sizeof *again);
    assert_true(kept && again);
    memcpy(kept, s.rotation->matrix, (size_t)192 * 192 * sizeof *kept);
    vq_input_rotation *mapped;
    vq_error err;
    assert_int_equal(vq_input_rotation_map(&mapped, s.k, 192, kept, &err), VQ_OK);
    assert_true(vq_input_rotation_hash(mapped) == vq_input_rotation_hash(s.rotation));
    s.l.rotation = &mapped->r;
    vq_linear_decode(&s.l, NULL, s.data, 0, 40, again, s.scratch);
    assert_memory_equal(again, s.back, (size_t)192 * 40 * sizeof *again);
    vq_input_rotation_close(mapped);
    free(kept);
    free(again);
    close_subject(&s);
}

static void rows_of_zeros_and_of_huge_values(void **state)
{
    (void)state;
    subject s = open_subject(4, 64, 3, false, 0, vq_cpu_detect());
    for (uint32_t i = 0; i < 64; i++) {
        s.x[i] = 0;
        s.x[64 + i] = 3e38F * (i % 2 ? 1.0F : -1.0F);
        s.x[128 + i] = 1e-42F;
    }
    vq_linear_encode(&s.l, NULL, s.data, 0, 3, s.x, s.errors, s.scratch);
    vq_linear_decode(&s.l, NULL, s.data, 0, 3, s.back, s.scratch);
    for (uint32_t i = 0; i < 3 * 64; i++)
        assert_true(isfinite(s.back[i]) && (i / 64 == 1 || s.back[i] == 0));
    close_subject(&s);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    vq_error err;
    vq_codes_kernels k;
    vq_input_rotation *rotation;
    vq_codes_kernels_init(&k, 0);
    assert_int_equal(vq_linear_check(5, 64, 64, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "5 bits"));
    assert_int_equal(vq_linear_check(1, 64, 64, &err), VQ_ERR_ARG);
    assert_int_equal(vq_linear_check(2, 0, 64, &err), VQ_ERR_ARG);
    assert_int_equal(vq_linear_check(2, (1 << 17) + 1, 64, &err), VQ_ERR_ARG);
    assert_int_equal(vq_linear_check(2, 64, 0, &err), VQ_ERR_ARG);
    assert_int_equal(vq_linear_check(2, 1 << 17, 1 << 24, &err), VQ_OK);
    assert_int_equal(vq_input_rotation_open(&rotation, &k, 521 * 4, false, 0, &err), VQ_ERR_ARG);
    assert_null(rotation);
    assert_int_equal(vq_input_rotation_open(&rotation, &k, 0, false, 0, &err), VQ_ERR_ARG);
    assert_int_equal(vq_input_rotation_open(&rotation, &k, 8193, true, 0, &err), VQ_ERR_ARG);
    assert_int_equal(vq_input_rotation_open(&rotation, &k, 1 << 17, false, 0, &err), VQ_OK);
    vq_input_rotation_close(rotation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relative_errors),
        cmocka_unit_test(the_same_bytes_in_any_pieces_on_any_tier),
        cmocka_unit_test(a_haar_matrix_can_be_kept),
        cmocka_unit_test(rows_of_zeros_and_of_huge_values),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
