#include "quant/rotation.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

void vq_rotation_layout(vq_rotation *r, vq_arena *arena, uint32_t d, bool haar)
{
    r->d = d;
    r->n_block = haar ? 1 : d & -d;
    r->m = d / r->n_block;
    r->signs = vq_arena_take(arena, (d + 7) / 8, 1);
    r->across = r->m > 1 ? vq_arena_take(arena, (size_t)r->m * r->m, sizeof(float)) : NULL;
}

static void draw_row(double *row, uint32_t m, vq_rng *rng)
{
    for (uint32_t j = 0; j < m; j++)
        row[j] = vq_rng_normal(rng);
}

static void normalise(double *row, uint32_t m)
{
    double sum = 0;
    for (uint32_t j = 0; j < m; j++)
        sum += row[j] * row[j];
    const double inv = 1 / sqrt(sum);
    for (uint32_t j = 0; j < m; j++)
        row[j] *= inv;
}

/* Rows of normal draws, made orthonormal one after the other: the first factor of QR with positive diagonal, which is
 * Haar-distributed.  Each row is swept twice, since one sweep leaves errors that grow with the condition number. */
static void draw_orthogonal(double *a, uint32_t m, vq_rng *rng)
{
    for (uint32_t i = 0; i < m; i++) {
        double *row = a + (size_t)i * m;
        draw_row(row, m, rng);
        for (uint32_t sweep = 0; sweep < 2; sweep++)
            for (uint32_t p = 0; p < i; p++) {
                const double *other = a + (size_t)p * m;
                double dot = 0;
                for (uint32_t j = 0; j < m; j++)
                    dot += row[j] * other[j];
                for (uint32_t j = 0; j < m; j++)
                    row[j] -= dot * other[j];
            }
        normalise(row, m);
    }
}

static uint8_t draw_signs(vq_rng *rng) { return (uint8_t)(vq_rng_next(rng) >> 56); }

vq_status vq_rotation_draw(vq_rotation *r, const vq_codes_kernels *k, uint64_t seed, vq_error *err)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    r->k = k;
    for (uint32_t i = 0; i < (r->d + 7) / 8; i++)
        r->signs[i] = draw_signs(&rng);
    if (!r->across)
        return VQ_OK;

    double *a = malloc((size_t)r->m * r->m * sizeof *a);
    if (!a)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a %u x %u rotation", r->m, r->m);
    draw_orthogonal(a, r->m, &rng);
    for (size_t i = 0; i < (size_t)r->m * r->m; i++)
        r->across[i] = (float)a[i];
    free(a);
    return VQ_OK;
}

uint64_t vq_rotation_seed(uint64_t seed, uint32_t layer, uint32_t head, bool keys)
{
    return vq_hash64(seed, layer, head, keys, 0);
}

bool vq_rotation_begins(uint32_t d, uint32_t m, const uint8_t *signs, const float *across, uint64_t seed)
{
    double row[VQ_ROTATION_MAX_M];
    vq_rng rng;
    assert(m <= VQ_ROTATION_MAX_M);
    vq_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < (d + 7) / 8; i++)
        if (signs[i] != draw_signs(&rng))
            return false;
    if (!across)
        return true;
    draw_row(row, m, &rng);
    normalise(row, m);
    for (uint32_t j = 0; j < m; j++)
        if (!(fabs((double)across[j] - row[j]) <= 1e-6))
            return false;
    return true;
}

size_t vq_rotation_bytes(const vq_rotation *r)
{
    return (r->d + 7) / 8 + (r->across ? (size_t)r->m * r->m * sizeof(float) : 0);
}

/* out[i] = sum over j of across[i][j] x[j] (or its transpose), blocks of n_block.  Sums go over j in ascending order.
 */
static void mix_blocks(const vq_rotation *r, float *x, float *out, bool transpose)
{
    const uint32_t m = r->m, n = r->n_block;
    if (n % 8 == 0) {
        r->k->mix_blocks(out, x, r->across, m, n, transpose);
        memcpy(x, out, r->d * sizeof *x);
        return;
    }
    memset(out, 0, r->d * sizeof *out);
    if (n == 1 && transpose) {
        for (uint32_t j = 0; j < m; j++) /* rows of `across` are columns here: lanes are outputs */
            for (uint32_t i = 0; i < m; i++)
                out[i] += r->across[(size_t)j * m + i] * x[j];
    } else {
        for (uint32_t i = 0; i < m; i++)
            for (uint32_t j = 0; j < m; j++) {
                const float c = transpose ? r->across[(size_t)j * m + i] : r->across[(size_t)i * m + j];
                for (uint32_t t = 0; t < n; t++)
                    out[i * n + t] += c * x[j * n + t];
            }
    }
    memcpy(x, out, r->d * sizeof *x);
}

void vq_rotation_apply(const vq_rotation *r, float *x, float *scratch)
{
    r->k->flip(x, r->signs, r->d);
    if (r->n_block > 1)
        for (uint32_t i = 0; i < r->m; i++)
            r->k->hadamard(x + i * r->n_block, r->n_block);
    if (r->across)
        mix_blocks(r, x, scratch, false);
}

void vq_rotation_invert(const vq_rotation *r, float *x, float *scratch)
{
    if (r->across)
        mix_blocks(r, x, scratch, true);
    if (r->n_block > 1)
        for (uint32_t i = 0; i < r->m; i++)
            r->k->hadamard(x + i * r->n_block, r->n_block);
    r->k->flip(x, r->signs, r->d);
}
