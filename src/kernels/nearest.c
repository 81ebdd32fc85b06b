/* Nearest codewords: the definitions. */
#include "kernels/nearest.h"

#include <math.h>

#include "base/cpu.h"

enum { LANES = VQ_NEAREST_LANES };

/* `d` is a constant where it is inlined for the usual lengths, so that the loop over it unrolls. */
static inline __attribute__((always_inline)) uint32_t nearest_of(const float *columns, const float *half, uint32_t k,
                                                                 uint32_t d, const float *x, float *score)
{
    float best[LANES];
    uint32_t at[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        best[l] = INFINITY;
        at[l] = 0;
    }
    for (uint32_t c = 0; c < k; c += LANES) {
        float v[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            v[l] = half[c + l];
        for (uint32_t j = 0; j < d; j++)
            for (uint32_t l = 0; l < LANES; l++)
                v[l] -= x[j] * columns[(size_t)j * k + c + l];
        for (uint32_t l = 0; l < LANES; l++) {
            at[l] = v[l] < best[l] ? c : at[l];
            best[l] = v[l] < best[l] ? v[l] : best[l];
        }
    }
    uint32_t lane = 0;
    for (uint32_t l = 1; l < LANES; l++)
        if (best[l] < best[lane] || (best[l] == best[lane] && at[l] + l < at[lane] + lane))
            lane = l;
    *score = best[lane];
    return best[lane] < INFINITY ? at[lane] + lane : 0;
}

uint32_t vq_nearest(const float *columns, const float *half, uint32_t k, uint32_t d, const float *x, float *score)
{
    switch (d) {
    case 4: return nearest_of(columns, half, k, 4, x, score);
    case 8: return nearest_of(columns, half, k, 8, x, score);
    default: return nearest_of(columns, half, k, d, x, score);
    }
}

static void centroids_c(uint8_t *codes, const float *columns, uint32_t d, const float *x, size_t x_stride)
{
    float half[VQ_NEAREST_CODES] = {0}, score;
    for (uint32_t j = 0; j < d; j++)
        for (uint32_t c = 0; c < VQ_NEAREST_CODES; c++)
            half[c] += columns[j * VQ_NEAREST_CODES + c] * columns[j * VQ_NEAREST_CODES + c] * 0.5F;
    for (size_t i = 0; i < VQ_NEAREST_ROWS; i++)
        codes[i] = (uint8_t)vq_nearest(columns, half, VQ_NEAREST_CODES, d, x + i * x_stride, &score);
}

enum { V = VQ_ATOM_VALUES, HALF = 16, TURNS = 2 /* how often both bytes of a sub-vector are chosen */ };

/* What the codes of a byte mean.  Those from 128 on are those below it turned round. */
typedef struct byte_table {
    const float *z;
    float low[HALF][V], high[HALF][V]; /* what the first two atoms add, and the others */
    float half[VQ_NEAREST_CODES / 2];  /* half the square of the sum */
} byte_table;

/* What two atoms add under all codes: of each atom two bits, the sign of s's real part and of its imaginary one. */
static void add_two(float out[HALF][V], const float *z)
{
    for (uint32_t c = 0; c < HALF; c++) {
        const float a = c & 1 ? 1 : -1, b = c & 2 ? 1 : -1, a2 = c & 4 ? 1 : -1, b2 = c & 8 ? 1 : -1;
        for (uint32_t j = 0; j < V; j += 2) {
            const float *y = z + j, *y2 = z + V + j;
            out[c][j] = (a * y[0] - b * y[1]) + (a2 * y2[0] - b2 * y2[1]);
            out[c][j + 1] = (a * y[1] + b * y[0]) + (a2 * y2[1] + b2 * y2[0]);
        }
    }
}

static void open_byte(byte_table *t, const float *z)
{
    t->z = z;
    add_two(t->low, z);
    add_two(t->high, z + (size_t)2 * V);
    for (uint32_t c = 0; c < VQ_NEAREST_CODES / 2; c++) {
        float squares = 0;
        for (uint32_t j = 0; j < V; j++) {
            const float v = t->low[c % HALF][j] + t->high[c / HALF][j];
            squares += v * v;
        }
        t->half[c] = squares / 2;
    }
}

/* Products of y with what two atoms add. */
static void multiply_two(float out[HALF], const float *z, const float *y)
{
    float each[2][4];
    for (uint32_t n = 0; n < 2; n++, z += V) {
        float real = 0, turned = 0; /* with the atom, and with i times it */
        for (uint32_t j = 0; j < V; j += 2) {
            real += y[j] * z[j];
            real += y[j + 1] * z[j + 1];
            turned += y[j + 1] * z[j];
            turned -= y[j] * z[j + 1];
        }
        each[n][3] = real + turned;
        each[n][1] = real - turned;
        each[n][2] = -each[n][1];
        each[n][0] = -each[n][3];
    }
    for (uint32_t c = 0; c < HALF; c++)
        out[c] = each[0][c % 4] + each[1][c / 4];
}

/* A code below 128 and its turned one have products of opposite sign and the same square. */
static uint8_t nearest_byte(const byte_table *t, const float *y)
{
    float low[HALF], high[HALF], best = -INFINITY;
    uint32_t code = 0;
    multiply_two(low, t->z, y);
    multiply_two(high, t->z + (size_t)2 * V, y);
    for (uint32_t c = 0; c < VQ_NEAREST_CODES / 2; c++) {
        const float product = low[c % HALF] + high[c / HALF], gain = fabsf(product) - t->half[c];
        if (gain > best) {
            best = gain;
            code = product < 0 ? VQ_NEAREST_CODES - 1 - c : c;
        }
    }
    return (uint8_t)code;
}

static void less(float *out, const float *x, const byte_table *t, uint32_t code)
{
    for (uint32_t j = 0; j < V; j++)
        out[j] = x[j] - (t->low[code % HALF][j] + t->high[code / HALF][j]);
}

static void atoms_c(uint8_t *codes, const float *z, uint32_t n_bytes, const float *x, size_t x_stride)
{
    byte_table t[VQ_ATOM_MOST_BITS];
    float rest[V];
    for (uint32_t b = 0; b < n_bytes; b++)
        open_byte(&t[b], z + (size_t)b * VQ_ATOMS_A_BYTE * V);
    for (uint32_t i = 0; i < VQ_NEAREST_ROWS; i++, x += x_stride) {
        codes[i] = nearest_byte(&t[0], x);
        for (uint32_t turn = 0; turn < TURNS && n_bytes > 1; turn++) {
            uint8_t *other = codes + VQ_NEAREST_ROWS + i;
            if (turn > 0) {
                less(rest, x, &t[1], *other);
                codes[i] = nearest_byte(&t[0], rest);
            }
            less(rest, x, &t[0], codes[i]);
            *other = nearest_byte(&t[1], rest);
        }
    }
}

void vq_nearest_kernels_init(vq_nearest_kernels *k, uint32_t cpu)
{
    *k = (vq_nearest_kernels){.centroids = centroids_c, .atoms = atoms_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_nearest_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_nearest_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
