/* Water-filling from nothing up, and SpectralQuant on rows that are distributed as its calibration says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "quant/mixcode.h"
#include "support/calibration.h"
#include "support/codec.h"

enum { N_PAGES = 16, N = 64 * N_PAGES };

static vq_kernels kernels;

static const double unit[] = {1, 0.36338, 0.11748, 0.03454, 0.009497, 0.00349, 0.00104, 0.000304};

/* Bits of the formula b = max(0, log2(l / theta) / 2), theta such that they are n_bits in all. */
static void formula(double *bits, const double *l, uint32_t n, double n_bits)
{
    double low = 1e-12, high = 1e12;
    for (int i = 0; i < 200; i++) {
        const double theta = sqrt(low * high);
        double sum = 0;
        for (uint32_t g = 0; g < n; g++) {
            bits[g] = fmax(0, 0.5 * log2(l[g] / theta));
            sum += bits[g];
        }
        *(sum > n_bits ? &low : &high) = theta;
    }
}

static void bits_are_those_of_the_formula_rounded(void **state)
{
    (void)state;
    enum { GROUPS = 16 };
    for (int shape = 0; shape < 4; shape++)
        for (uint32_t n_bits = 1; n_bits <= 4 * GROUPS; n_bits++) {
            float variance[8 * GROUPS];
            double l[GROUPS], want[GROUPS];
            for (uint32_t g = 0; g < GROUPS; g++) {
                l[g] = shape == 0 ? 1 : pow(1 + g, -shape);
                for (uint32_t j = 0; j < 8; j++)
                    variance[8 * g + j] = (float)l[g];
            }
            uint8_t bits[GROUPS];
            const uint32_t n = vq_mix_fill(bits, variance, GROUPS, n_bits, VQ_MIXCODE_TOP_BITS);
            formula(want, l, GROUPS, n_bits);
            uint32_t sum = 0;
            for (uint32_t g = 0; g < GROUPS; g++) {
                sum += bits[g];
                /* quantisers of few bits take off less than the formula's 6 dB a bit */
                if (!(fabs(bits[g] - want[g]) < 1.5))
                    fail_msg("shape %d, %u bits: group %u has %u, the formula says %g", shape, n_bits, g, bits[g],
                             want[g]);
                assert_true((bits[g] > 0) == (g < n));
            }
            assert_int_equal(sum, n_bits);
        }
}

/* Rows with moments B' diag(1/(1+i)) B. */
static void draw(const vq_calibration *c, bool keys, uint32_t d, float *x)
{
    const float *basis = vq_calibration_at(c, keys ? VQ_KEY_BASIS : VQ_VALUE_BASIS, 0, 0);
    vq_rng rng;
    vq_rng_seed(&rng, 11);
    for (uint32_t r = 0; r < N; r++) {
        double y[512];
        for (uint32_t j = 0; j < d; j++)
            y[j] = sqrt(1 / (1 + (double)j)) * vq_rng_normal(&rng);
        for (uint32_t i = 0; i < d; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < d; j++)
                sum += y[j] * (double)basis[(size_t)j * d + i];
            x[(size_t)r * d + i] = (float)sum;
        }
    }
}

/* Error energy of a row; unshrunk levels have D / (1 - D) where the quantiser has D, groups without bits all there is.
 */
static double promised(uint32_t d, double bits, size_t *code_bytes)
{
    float variance[512];
    uint8_t of[64];
    for (uint32_t j = 0; j < d; j++)
        variance[j] = 1 / (1 + (float)j);
    const uint32_t n_bits = (uint32_t)rint(bits * d / 8);
    vq_mix_fill(of, variance, d / 8, n_bits, VQ_MIXCODE_TOP_BITS);
    double sum = 0;
    for (uint32_t j = 0; j < d; j++)
        sum += (double)variance[j] * (of[j / 8] ? unit[of[j / 8]] / (1 - unit[of[j / 8]]) : 1);
    *code_bytes = (size_t)n_bits * 64;
    /* the basis in signed bytes, there and back; the toy one has entries up to 1 */
    for (uint32_t j = 0; j < d; j++)
        sum += (double)variance[j] * 2 * d / (12.0 * 127 * 127);
    return sum;
}

static void open_codec(test_codec *t, const char *method, uint32_t d, bool keys, const vq_calibration *c)
{
    vq_error err = {0};
    if (test_codec_open_calibrated(t, &kernels, method, NULL, d, keys, 1, c, &err) != VQ_OK)
        fail_msg("%s: %s", method, err.text);
}

static void error_is_what_water_filling_promises(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {64, 128, 256};
    static const double rates[] = {0.5, 1, 2, 3, 4.5};
    for (size_t s = 0; s < 3; s++) {
        const uint32_t d = sizes[s];
        const vq_calibration_info info = {
            .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = d, .d_v = d, .n_tokens = 9};
        vq_calibration *c = toy_calibration(&info, 3);
        float *x = malloc(sizeof(float) * N * d), *y = malloc(sizeof(float) * 64 * d);
        for (size_t r = 0; r < 5; r++)
            for (int keys = 0; keys < 2; keys++) {
                draw(c, keys, d, x);
                char method[64];
                snprintf(method, sizeof method, "spectralquant:bits=%g", rates[r]);
                test_codec t;
                open_codec(&t, method, d, keys, c);
                uint8_t *page = calloc(1, test_codec_page_bytes(&t));
                double error = 0;
                for (uint32_t p = 0; p < N_PAGES; p++) {
                    const float *rows = x + (size_t)p * 64 * d;
                    t.codec->encode(t.state, page, 0, 32, rows);
                    t.codec->encode(t.state, page, 32, 32, rows + (size_t)32 * d);
                    t.codec->decode(t.state, page, 0, 64, y);
                    for (uint32_t i = 0; i < 64 * d; i++)
                        error += ((double)rows[i] - (double)y[i]) * ((double)rows[i] - (double)y[i]);
                }
                size_t code_bytes;
                const double want = promised(d, rates[r], &code_bytes) * N;
                /* Above: the draws, gains in 8 bits.  Below: what the search of gains takes off, most where a block has
                 * few dimensions. */
                if (!(error < want * 1.2 && error > want * 0.7))
                    fail_msg("d %u, %s, %g bits: error %g of what was promised", d, keys ? "keys" : "values", rates[r],
                             error / want);
                assert_int_equal(t.bytes.codes, code_bytes);
                free(page);
                test_codec_close(&t);
            }
        free(x);
        free(y);
        vq_calibration_close(c);
    }
}

/* With the sketch, decoded rows are noisier, but along the signal block a query meets them without bias. */
static void the_sketch_is_unbiased(void **state)
{
    (void)state;
    enum { D = 64 };
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_tokens = 9};
    vq_calibration *c = toy_calibration(&info, 3);
    float *x = malloc(sizeof(float) * N * D), *y = malloc(sizeof(float) * 64 * D);
    draw(c, true, D, x);
    const float *basis = vq_calibration_at(c, VQ_KEY_BASIS, 0, 0);
    double loss[2] = {0};
    for (int sketch = 0; sketch < 2; sketch++) {
        test_codec t;
        open_codec(&t, sketch ? "spectralquant:bits=1,sketch=1" : "spectralquant:bits=1", D, true, c);
        uint8_t *page = calloc(1, test_codec_page_bytes(&t));
        double own = 0, cross = 0;
        for (uint32_t p = 0; p < N_PAGES; p++) {
            const float *rows = x + (size_t)p * 64 * D;
            t.codec->encode(t.state, page, 0, 32, rows);
            t.codec->encode(t.state, page, 32, 32, rows + (size_t)32 * D);
            t.codec->decode(t.state, page, 0, 64, y);
            for (uint32_t r = 0; r < 64; r++)
                for (uint32_t j = 0; j < 8; j++) { /* the first group is signal, whatever the ratio */
                    double a = 0, b = 0;
                    for (uint32_t i = 0; i < D; i++) {
                        a += (double)rows[r * D + i] * (double)basis[j * D + i];
                        b += (double)y[r * D + i] * (double)basis[j * D + i];
                    }
                    own += a * a;
                    cross += a * b;
                    loss[sketch] += (a - b) * (a - b);
                }
        }
        if (!(fabs(cross / own - 1) < 0.02))
            fail_msg("sketch %d: slope %g", sketch, cross / own);
        free(page);
        test_codec_close(&t);
    }
    if (!(loss[1] < 0.75 * loss[0])) /* pi/2 - 1 of the residual, which the levels' unshrinking does not enter */
        fail_msg("error %g with the sketch, %g without", loss[1], loss[0]);
    vq_calibration_close(c);
    free(x);
    free(y);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_the_formula_rounded),
        cmocka_unit_test(error_is_what_water_filling_promises),
        cmocka_unit_test(the_sketch_is_unbiased),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
