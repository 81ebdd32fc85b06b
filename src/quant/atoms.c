#include "quant/atoms.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    V = VQ_ATOM_VALUES,
    PAIRS = V / 2,
    A_BYTE = VQ_ATOMS_A_BYTE,
    MOST = A_BYTE * VQ_ATOM_MOST_BITS,
    ROUNDS = 8 /* of training */
};

void vq_atoms_order(uint16_t *order, uint32_t d, uint32_t n_rot, bool halves)
{
    for (uint32_t i = 0; i < d; i++)
        order[i] = (uint16_t)i;
    for (uint32_t i = 0; halves && i < n_rot / 2; i++) {
        order[2 * i] = (uint16_t)i;
        order[2 * i + 1] = (uint16_t)(i + n_rot / 2);
    }
}

/* x += s z, two bits of `code` saying which s: bit 0 the sign of its real part, bit 1 of its imaginary one. */
static void add_atom(float *x, const float *z, uint32_t code)
{
    const float a = code & 1 ? 1 : -1, b = code & 2 ? 1 : -1;
    for (uint32_t j = 0; j < PAIRS; j++) {
        x[2 * j] += a * z[2 * j] - b * z[2 * j + 1];
        x[2 * j + 1] += a * z[2 * j + 1] + b * z[2 * j];
    }
}

void vq_atoms_encode(const vq_atoms *a, uint8_t *granule, const float *x)
{
    const size_t each = (size_t)a->bits * A_BYTE * V;
    for (uint32_t s = 0; s < a->n_sub; s++, granule += (size_t)a->bits * VQ_ATOM_ROWS)
        a->k->atoms(granule, a->z + s * each, a->bits, x + (size_t)s * V, (size_t)a->n_sub * V);
}

void vq_atoms_decode(const vq_atoms *a, const uint8_t *granules, uint32_t first, uint32_t n, float *x)
{
    enum { NIBBLES = 2 * VQ_ATOM_MOST_BITS };
    float table[NIBBLES][16][V]; /* what two atoms add, opened once for all rows */
    const size_t d = (size_t)a->n_sub * V;
    for (uint32_t s = 0; s < a->n_sub; s++) {
        const float *z = a->z + (size_t)s * a->bits * A_BYTE * V;
        memset(table, 0, sizeof table);
        for (uint32_t t = 0; t < 2 * a->bits; t++)
            for (uint32_t c = 0; c < 16; c++) {
                add_atom(table[t][c], z + (size_t)2 * t * V, c);
                add_atom(table[t][c], z + (size_t)(2 * t + 1) * V, c >> 2);
            }
        for (uint32_t i = 0; i < n; i++) {
            float *to = x + i * d + (size_t)s * V;
            const uint8_t *byte = granules + vq_atoms_at(a, first + i, s * a->bits);
            const float *low = table[0][byte[0] & 15], *high = table[1][byte[0] >> 4];
            for (uint32_t j = 0; j < V; j++)
                to[j] = low[j] + high[j];
            if (a->bits == 1)
                continue;
            low = table[2][byte[VQ_ATOM_ROWS] & 15];
            high = table[3][byte[VQ_ATOM_ROWS] >> 4];
            for (uint32_t j = 0; j < V; j++)
                to[j] += low[j] + high[j];
        }
    }
}

/* ---- training ---- */

/* Quantisers of single values, in the ratio of Lloyd-Max levels for a normal number. */
static void first_atoms(float *z, uint32_t bits, const float *x, size_t stride, uint32_t n)
{
    static const double sizes[VQ_ATOM_MOST_BITS][VQ_ATOM_MOST_BITS] = {{0.798}, {0.981, 0.528}};
    memset(z, 0, (size_t)bits * A_BYTE * V * sizeof *z);
    for (uint32_t p = 0; p < PAIRS; p++) {
        double squares = 0;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < 2; j++)
                squares += (double)x[i * stride + 2 * p + j] * (double)x[i * stride + 2 * p + j];
        for (uint32_t b = 0; b < bits; b++)
            z[(b * A_BYTE + p) * V + 2 * p] = (float)(sizes[bits - 1][b] * sqrt(squares / (2 * (double)n + 1e-30)));
    }
}

/* Solves m z = r for Hermitian m [n][n], r [n][PAIRS], in place. */
static void solve(double complex *m, double complex *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pivot = i;
        for (uint32_t k = i + 1; k < n; k++)
            pivot = cabs(m[k * n + i]) > cabs(m[pivot * n + i]) ? k : pivot;
        for (uint32_t j = 0; j < n; j++) {
            const double complex t = m[i * n + j];
            m[i * n + j] = m[pivot * n + j];
            m[pivot * n + j] = t;
        }
        for (uint32_t j = 0; j < PAIRS; j++) {
            const double complex t = r[i * PAIRS + j];
            r[i * PAIRS + j] = r[pivot * PAIRS + j];
            r[pivot * PAIRS + j] = t;
        }
        for (uint32_t k = 0; k < n; k++) {
            if (k == i)
                continue;
            const double complex f = m[k * n + i] / m[i * n + i];
            for (uint32_t j = i; j < n; j++)
                m[k * n + j] -= f * m[i * n + j];
            for (uint32_t j = 0; j < PAIRS; j++)
                r[k * PAIRS + j] -= f * r[i * PAIRS + j];
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < PAIRS; j++)
            r[i * PAIRS + j] /= m[i * n + i];
}

/* Codes [n][bits] for the atoms.  What fills the last granule up is coded too. */
static void assign(const vq_nearest_kernels *k, const float *z, uint32_t bits, const float *x, size_t stride,
                   uint32_t n, uint8_t *codes)
{
    for (uint32_t first = 0; first < n; first += VQ_ATOM_ROWS) {
        const uint32_t now = n - first < VQ_ATOM_ROWS ? n - first : VQ_ATOM_ROWS;
        float rows[VQ_ATOM_ROWS][V] = {{0}};
        uint8_t granule[VQ_ATOM_MOST_BITS][VQ_ATOM_ROWS];
        for (uint32_t i = 0; i < now; i++)
            memcpy(rows[i], x + (first + i) * stride, sizeof rows[i]);
        k->atoms(granule[0], z, bits, rows[0], V);
        for (uint32_t i = 0; i < now * bits; i++)
            *codes++ = granule[i % bits][i / bits];
    }
}

/* Atoms that fit the codes best; a little is added to the diagonal for those that are never told apart. */
static void fit_atoms(float *z, uint32_t bits, const float *x, size_t stride, uint32_t n, const uint8_t *codes)
{
    const uint32_t n_atoms = bits * A_BYTE;
    double complex m[MOST * MOST] = {0}, r[MOST * PAIRS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        double complex s[MOST];
        for (uint32_t k = 0; k < n_atoms; k++) {
            const uint32_t code = (uint32_t)codes[i * bits + k / A_BYTE] >> 2 * (k % A_BYTE);
            s[k] = (code & 1 ? 1 : -1) + (code & 2 ? 1 : -1) * I;
        }
        for (uint32_t k = 0; k < n_atoms; k++) {
            for (uint32_t l = 0; l < n_atoms; l++)
                m[k * n_atoms + l] += conj(s[k]) * s[l];
            for (uint32_t j = 0; j < PAIRS; j++)
                r[k * PAIRS + j] +=
                    conj(s[k]) * ((double)x[i * stride + 2 * j] + (double)x[i * stride + 2 * j + 1] * I);
        }
    }
    for (uint32_t k = 0; k < n_atoms; k++)
        m[k * n_atoms + k] += 1e-6 * n + 1e-30;
    solve(m, r, n_atoms);
    for (uint32_t k = 0; k < n_atoms; k++)
        for (uint32_t j = 0; j < PAIRS; j++) {
            z[k * V + 2 * j] = (float)creal(r[k * PAIRS + j]);
            z[k * V + 2 * j + 1] = (float)cimag(r[k * PAIRS + j]);
        }
}

vq_status vq_atoms_train(float *z, const vq_nearest_kernels *k, uint32_t n_sub, uint32_t bits, const float *x,
                         uint32_t n, vq_error *err)
{
    uint8_t *codes = malloc((size_t)n * bits + 1);
    if (!codes)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to code %u rows", n);
    const size_t stride = (size_t)n_sub * V;
    for (uint32_t s = 0; s < n_sub; s++, z += (size_t)bits * A_BYTE * V) {
        const float *rows = x + (size_t)s * V;
        first_atoms(z, bits, rows, stride, n);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            assign(k, z, bits, rows, stride, n, codes);
            fit_atoms(z, bits, rows, stride, n, codes);
        }
    }
    free(codes);
    return VQ_OK;
}
