#include "support/calibration.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

/* Rows of I - 2 u u' and, when asked for, of (I - 2uu') diag(1/(1+i)) (I - 2uu'). */
static void fill_square(float *to, const double *u, size_t d, bool moment)
{
    double across = 0; /* u' diag u */
    for (size_t i = 0; i < d; i++)
        across += u[i] * u[i] / (1 + (double)i);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            const double li = 1 / (1 + (double)i), lj = 1 / (1 + (double)j), same = i == j;
            to[i * d + j] = (float)(moment ? same * li - 2 * u[i] * u[j] * (li + lj) + 4 * u[i] * u[j] * across
                                           : same - 2 * u[i] * u[j]);
        }
}

/* Centroids and atoms: uniform numbers that get smaller from one atom to the next; the first centroid of a place is 0.
 */
static void fill_codebook(float *to, size_t n, vq_statistic what, vq_rng *rng)
{
    const bool four =
        what == VQ_VALUE_CODEBOOK_4 || what == VQ_KEY_SMOOTH_CODEBOOK_4 || what == VQ_KEY_FACTOR_CODEBOOK_4;
    const bool atoms = what >= VQ_KEY_ATOMS_1;
    const size_t sub = four ? 4 : 8;
    for (size_t i = 0; i < n; i++)
        to[i] = !atoms && i / sub % 256 == 0
                    ? 0
                    : (float)(4 * vq_rng_uniform(rng) - 2) / (float)(1 + (atoms ? i / 8 % 4 : 0));
}

static void fill(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head, const double *u, size_t d,
                 vq_rng *rng)
{
    float *to = vq_calibration_edit(c, what, layer, head);
    const size_t n = vq_statistic_shape_of(vq_calibration_get_info(c), what).n_floats;
    const vq_statistic_shape shape = vq_statistic_shape_of(vq_calibration_get_info(c), what);
    if (shape.codebooks && !shape.square) {
        fill_codebook(to, n, what, rng);
        return;
    }
    if (what == VQ_KEY_FACTOR) {
        for (size_t i = 0; i < n; i++)
            to[i] = i % d > i / d ? 0 : i % d == i / d ? 1 + (float)(i % 3) : 0.05F * (float)u[i % d];
        return;
    }
    if (n == d * d && d > 1) {
        fill_square(to, u, d, what != VQ_KEY_BASIS && what != VQ_KEY_REST_BASIS && what != VQ_VALUE_BASIS);
        return;
    }
    for (size_t i = 0; i < d; i++)
        switch (what) {
        case VQ_KEY_SPECTRUM:
        case VQ_KEY_REST_SPECTRUM:
        case VQ_VALUE_SPECTRUM:
        case VQ_KEY_TURN_NEAR:
        case VQ_KEY_TURN_REST:
        case VQ_KEY_NEAR_VARIANCE: to[i] = 1 / (1 + (float)i); break;
        case VQ_KEY_LEAST:
        case VQ_VALUE_LEAST: to[i] = -3; break;
        case VQ_KEY_MOST:
        case VQ_VALUE_MOST: to[i] = 3; break;
        case VQ_KEY_SINK: /* many rows are nearer to it than to their neighbours' mean */
        case VQ_QUERY_FILTER:
        case VQ_QUERY_BEFORE_FILTER: to[i] = (float)u[i]; break;
        default: to[i] = 0;
        }
}

vq_calibration *toy_calibration(const vq_calibration_info *info, uint64_t seed)
{
    vq_calibration *c;
    vq_error err;
    const void *bytes;
    size_t n_bytes;
    if (vq_calibration_make(&c, info, &err) != VQ_OK) {
        fprintf(stderr, "toy_calibration: %s\n", err.text);
        abort();
    }
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (int what = 0; what < VQ_N_STATISTICS; what++) {
        const bool values = vq_statistic_shape_of(info, (vq_statistic)what).values;
        const size_t d = values ? info->d_v : info->d_k;
        const uint32_t n_heads = vq_statistic_shape_of(info, (vq_statistic)what).n_heads;
        for (uint32_t layer = 0; layer < info->n_layers; layer++)
            for (uint32_t head = 0; head < n_heads; head++) {
                double u[512], squares = 0;
                vq_rng_seed(&rng, vq_hash64(seed, layer, head, values, 0));
                for (size_t i = 0; i < d; i++) {
                    u[i] = vq_rng_normal(&rng);
                    squares += u[i] * u[i];
                }
                for (size_t i = 0; i < d; i++)
                    u[i] /= sqrt(squares);
                fill(c, (vq_statistic)what, layer, head, u, d, &rng);
            }
    }
    if (vq_calibration_seal(c, &bytes, &n_bytes, &err) != VQ_OK) {
        fprintf(stderr, "toy_calibration: %s\n", err.text);
        abort();
    }
    return c;
}

const vq_calibration *toy_calibration_of(const vq_kv_params *p)
{
    enum { MOST = 64 };
    static vq_calibration *made[MOST];
    for (size_t i = 0; i < MOST; i++) {
        if (!made[i]) {
            const vq_calibration_info info = {.model_hash = p->model_hash,
                                              .n_layers = p->n_layers,
                                              .n_heads = p->n_heads,
                                              .n_kv_heads = p->n_kv_heads,
                                              .d_k = p->d_k,
                                              .d_v = p->d_v,
                                              .codebooks = VQ_CODEBOOKS_ALL};
            made[i] = toy_calibration(&info, 1);
        }
        const vq_calibration_info *has = vq_calibration_get_info(made[i]);
        if (has->model_hash == p->model_hash && has->n_layers == p->n_layers && has->n_heads == p->n_heads &&
            has->n_kv_heads == p->n_kv_heads && has->d_k == p->d_k && has->d_v == p->d_v)
            return made[i];
    }
    fputs("toy_calibration_of: too many shapes\n", stderr);
    abort();
}
