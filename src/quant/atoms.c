#include "quant/atoms.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/kmeans.h"

enum {
    V = VQ_ATOM_VALUES,
    PAIRS = V / 2,
    A_BYTE = VQ_ATOMS_A_BYTE,
    CODES = 256,
    MOST = A_BYTE * VQ_ATOM_MOST_BITS,
    TURNS = 2, /* how often both bytes of a sub-vector are chosen again */
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

/* What all codes of a byte mean, as vq_nearest reads it. */
typedef struct byte_table {
    float columns[V * CODES], half[CODES];
    float rows[CODES][V];
} byte_table;

static void open_byte(byte_table *t, const float *z)
{
    for (uint32_t c = 0; c < CODES; c++) {
        memset(t->rows[c], 0, sizeof t->rows[c]);
        for (uint32_t n = 0; n < A_BYTE; n++)
            add_atom(t->rows[c], z + n * V, c >> 2 * n);
        float squares = 0;
        for (uint32_t j = 0; j < V; j++) {
            t->columns[j * CODES + c] = t->rows[c][j];
            squares += t->rows[c][j] * t->rows[c][j];
        }
        t->half[c] = squares / 2;
    }
}

static uint8_t nearest(const byte_table *t, const float *y)
{
    float score;
    return (uint8_t)vq_nearest(t->columns, t->half, CODES, V, y, &score);
}

static void less(float *out, const float *x, const float *y)
{
    for (uint32_t j = 0; j < V; j++)
        out[j] = x[j] - y[j];
}

/* Codes of one sub-vector: the best of all for one byte; of two bytes each the best beside the other. */
static void choose(const byte_table *t, uint32_t bits, const float *x, uint8_t *codes)
{
    float rest[V];
    codes[0] = nearest(&t[0], x);
    if (bits == 1)
        return;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        if (turn > 0) {
            less(rest, x, t[1].rows[codes[1]]);
            codes[0] = nearest(&t[0], rest);
        }
        less(rest, x, t[0].rows[codes[0]]);
        codes[1] = nearest(&t[1], rest);
    }
}

void vq_atoms_encode(const vq_atoms *a, uint8_t *granule, const float *x)
{
    byte_table tables[VQ_ATOM_MOST_BITS];
    const size_t d = (size_t)a->n_sub * V, each = (size_t)a->bits * A_BYTE * V;
    for (uint32_t s = 0; s < a->n_sub; s++, granule += (size_t)a->bits * VQ_ATOM_ROWS) {
        for (uint32_t b = 0; b < a->bits; b++)
            open_byte(&tables[b], a->z + s * each + (size_t)b * A_BYTE * V);
        for (uint32_t i = 0; i < VQ_ATOM_ROWS; i++) {
            uint8_t codes[VQ_ATOM_MOST_BITS];
            choose(tables, a->bits, x + i * d + (size_t)s * V, codes);
            for (uint32_t b = 0; b < a->bits; b++)
                granule[b * VQ_ATOM_ROWS + i] = codes[b];
        }
    }
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

vq_status vq_atoms_train(float *z, uint32_t n_sub, uint32_t bits, const float *x, uint32_t n, vq_error *err)
{
    byte_table *tables = malloc(bits * sizeof *tables);
    uint8_t *codes = malloc((size_t)n * bits + 1);
    if (!tables || !codes) {
        free(tables);
        free(codes);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to code %u rows", n);
    }
    const size_t stride = (size_t)n_sub * V;
    for (uint32_t s = 0; s < n_sub; s++, z += (size_t)bits * A_BYTE * V) {
        const float *rows = x + (size_t)s * V;
        first_atoms(z, bits, rows, stride, n);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t b = 0; b < bits; b++)
                open_byte(&tables[b], z + (size_t)b * A_BYTE * V);
            for (uint32_t i = 0; i < n; i++)
                choose(tables, bits, rows + i * stride, codes + (size_t)i * bits);
            fit_atoms(z, bits, rows, stride, n, codes);
        }
    }
    free(tables);
    free(codes);
    return VQ_OK;
}
