#include "kernels/carry.h"

#include "base/cpu.h"

static float factor(const vq_carry *c, uint32_t j, uint32_t k)
{
    return c->unit && k < j ? c->matrix[(size_t)k * c->n + j] : c->matrix[(size_t)j * c->n + k];
}

/* Of VQ_CARRY_LANES lanes from `lane` on. */
static void add_lost(const vq_carry *c, float *sum, uint32_t lane, uint32_t j, uint32_t first, uint32_t end)
{
    for (uint32_t k = first; k < end; k++) {
        const float *lost = c->lost + (size_t)k * c->n_lanes + lane;
        for (uint32_t i = 0; k != j && i < VQ_CARRY_LANES; i++)
            sum[i] += lost[i] * factor(c, j, k);
    }
}

static void code_value(const vq_carry *c, const float *sum, uint32_t lane, uint32_t j)
{
    const size_t at = (size_t)j * c->n_lanes + lane;
    for (uint32_t i = 0; i < VQ_CARRY_LANES; i++) {
        const float aim = c->values[at + i] + sum[i] * (c->unit ? c->unit[j] : 1);
        const float scaled = aim * c->inverse[lane + i];
        uint32_t code = 0;
        for (uint32_t b = 0; b < c->n_bounds; b++)
            code += scaled > c->bounds[b];
        const float got = c->levels[code] * c->scale[lane + i];
        c->codes[at + i] = (uint8_t)code;
        c->lost[at + i] = c->values[at + i] - got;
        c->left[at + i] = aim - got;
    }
}

static void encode_c(const vq_carry *c)
{
    for (uint32_t first = 0, n_rows; first < c->n; first += n_rows) {
        n_rows = c->n - first < VQ_CARRY_BLOCK ? 1 : VQ_CARRY_BLOCK;
        for (uint32_t lane = 0; lane < c->n_lanes; lane += VQ_CARRY_LANES)
            for (uint32_t j = first; j < first + n_rows; j++) {
                float sum[VQ_CARRY_LANES] = {0};
                add_lost(c, sum, lane, j, 0, first);
                if (c->unit)
                    add_lost(c, sum, lane, j, first + n_rows, c->n);
                add_lost(c, sum, lane, j, first, c->unit ? first + n_rows : j);
                code_value(c, sum, lane, j);
            }
    }
}

static void add_moments_c(float *sum, const float *x, uint32_t n, uint32_t n_in, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        for (uint32_t t = 0; t < n; t++) {
            const float *row = x + (size_t)t * n_in;
            for (uint32_t j = first; j < n_in; j++)
                sum[(size_t)i * n_in + j] += row[i] * row[j];
        }
}

void vq_carry_kernels_init(vq_carry_kernels *k, uint32_t cpu)
{
    *k = (vq_carry_kernels){.encode = encode_c, .add_moments = add_moments_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_carry_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_carry_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
