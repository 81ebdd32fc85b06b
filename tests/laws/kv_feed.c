#include "kv_feed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/calibration.h"

static float *rows(vq_rng *rng, uint32_t n_layers, uint32_t n, uint32_t heads, uint32_t d)
{
    float *x = malloc((size_t)n_layers * n * heads * d * sizeof *x);
    size_t at = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t c = 0; c < d; c++) {
                    const double channel = c % 29 == 3 ? 6 : 1, row = i == 77 ? 20 : 1;
                    x[at++] = (float)((vq_rng_normal(rng) + (c % 5 == 0)) * channel * row);
                }
    return x;
}

feed feed_make(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d_k, uint32_t d_v, uint32_t n,
               uint64_t seed)
{
    feed f = {.n_layers = n_layers, .n_heads = n_heads, .n_kv_heads = n_kv_heads, .d_k = d_k, .d_v = d_v, .n = n};
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    f.k = rows(&rng, n_layers, n, n_kv_heads, d_k);
    f.v = rows(&rng, n_layers, n, n_kv_heads, d_v);
    f.q = rows(&rng, n_layers, n, n_heads, d_k);
    f.out = calloc(1, feed_out_bytes(&f));
    return f;
}

void feed_free(feed *f)
{
    free(f->k);
    free(f->v);
    free(f->q);
    free(f->out);
}

size_t feed_out_bytes(const feed *f) { return (size_t)f->n_layers * f->n * f->n_heads * f->d_v * sizeof(float); }

/* Positions turn all channels, pairs of either kind by layer. */
static const vq_kv_rope *ropes_of(const vq_kv_params *p)
{
    enum { MOST_LAYERS = 64 };
    static double freq[257][256]; /* by the number of pairs */
    static vq_kv_rope ropes[257][MOST_LAYERS];
    const uint32_t n = p->d_k / 2;
    if (n == 0 || p->n_layers > MOST_LAYERS)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        freq[n][i] = pow(10000, -(double)i / n);
    for (uint32_t l = 0; l < MOST_LAYERS; l++)
        ropes[n][l] = (vq_kv_rope){.freq = freq[n], .n_rot = 2 * n, .halves = l % 2};
    return ropes[n];
}

vq_kv *feed_open(const feed *f, vq_kv_params p)
{
    p.n_layers = f->n_layers;
    p.n_heads = f->n_heads;
    p.n_kv_heads = f->n_kv_heads;
    p.d_k = f->d_k;
    p.d_v = f->d_v;
    p.n_ctx = p.n_ctx ? p.n_ctx : f->n;
    p.n_batch = p.n_batch ? p.n_batch : f->n;
    p.calibration = toy_calibration_of(&p); /* for the codecs that need one */
    p.ropes = p.ropes ? p.ropes : ropes_of(&p);
    vq_kv *kv;
    vq_error err;
    if (vq_kv_open(&kv, &p, &err) != VQ_OK)
        fail_msg("open: %s", err.text);
    return kv;
}

void feed_run(const feed *f, vq_kv *kv, uint32_t from, uint32_t to, uint32_t chunk)
{
    const size_t k_row = (size_t)f->n_kv_heads * f->d_k, v_row = (size_t)f->n_kv_heads * f->d_v;
    const size_t q_row = (size_t)f->n_heads * f->d_k, out_row = (size_t)f->n_heads * f->d_v;
    for (uint32_t i = from; i < to; i += chunk) {
        const uint32_t n = to - i < chunk ? to - i : chunk;
        for (uint32_t l = 0; l < f->n_layers; l++) {
            const size_t at = (size_t)l * f->n + i;
            vq_error err;
            if (vq_kv_append(kv, l, i, f->k + at * k_row, f->v + at * v_row, n, &err) != VQ_OK ||
                vq_kv_attend(kv, l, f->q + at * q_row, n, f->out + at * out_row, &err) != VQ_OK)
                fail_msg("layer %u, rows %u..%u: %s", l, i, i + n, err.text);
        }
    }
}

/* The bound.  u = 2^-24.
 *   A score is a sum over d products, through rotations of O(log d) steps where the codec has them: off by at most
 *   e = (d + 64) u |q| |k| + score_error |q| |k|, times the scale; rounding the scaled query and exp's own error
 *   (64 u covers both where |score| < 1000).
 *   So each weight is off by a factor within exp(+-e), the normalised one within exp(+-2e), and the sums over n rows
 * add (n + 64) u; a value's own path (rotation back) another (d + 64) u, relative to the largest value and its norm.
 *   |out - exact| <= (exp(2e + 2(n + 64) u) - 1 + (d + 64) u + mix_error) max_j |v_j|. */
double feed_oracle(const feed *f, const vq_kv *kv, uint32_t layer, uint32_t head, uint32_t row, uint32_t window,
                   double score_error, double mix_error, double *out)
{
    const uint32_t kv_head = head / (f->n_heads / f->n_kv_heads), most = vq_kv_n_rows(kv, layer);
    float *k = malloc(most * f->d_k * sizeof *k), *v = malloc(most * f->d_v * sizeof *v);
    uint32_t *pos = malloc(most * sizeof *pos);
    double *score = malloc(most * sizeof *score);
    const uint32_t n = vq_kv_read(kv, layer, kv_head, k, v, pos);
    const float *q = f->q + (((size_t)layer * f->n + row) * f->n_heads + head) * f->d_k;
    const double u = ldexp(1, -24), scale = 1 / sqrt(f->d_k);
    double top = -INFINITY, q_norm = 0, k_most = 0, v_most = 0;
    for (uint32_t c = 0; c < f->d_k; c++)
        q_norm += (double)q[c] * q[c];
    for (uint32_t j = 0; j < n; j++) {
        const bool seen = pos[j] <= row && (window == 0 || pos[j] + window > row);
        double dot = 0, k_norm = 0, v_norm = 0;
        for (uint32_t c = 0; c < f->d_k; c++) {
            dot += (double)q[c] * k[j * f->d_k + c];
            k_norm += (double)k[j * f->d_k + c] * k[j * f->d_k + c];
        }
        for (uint32_t c = 0; c < f->d_v; c++)
            v_norm += (double)v[j * f->d_v + c] * v[j * f->d_v + c];
        score[j] = seen ? dot * scale : -INFINITY;
        if (seen) {
            top = fmax(top, score[j]);
            k_most = fmax(k_most, sqrt(k_norm));
            v_most = fmax(v_most, sqrt(v_norm));
        }
    }
    double sum = 0;
    for (uint32_t c = 0; c < f->d_v; c++)
        out[c] = 0;
    for (uint32_t j = 0; j < n; j++) {
        const double w = exp(score[j] - top);
        sum += w;
        for (uint32_t c = 0; c < f->d_v; c++)
            out[c] += w * v[j * f->d_v + c];
    }
    for (uint32_t c = 0; c < f->d_v; c++)
        out[c] /= sum;
    free(k);
    free(v);
    free(pos);
    free(score);
    const double e = ((f->d_k + 128) * u + score_error) * sqrt(q_norm) * k_most * scale;
    return (expm1(2 * e + 2 * (n + 64) * u) + (f->d_v + 64) * u + mix_error) * v_most;
}
