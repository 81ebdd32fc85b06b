#include <math.h>
/* Trellis codes in plain C: what every tier has to give, bit for bit. */
#include "kernels/trellis.h"

#include <string.h>

#include "base/cpu.h"
#include "kernels/trellis_inner.h"

/* Units to the code's own mean error: its rounding is then far below what paths differ by, and TOP_COST is 30 times the
 * mean error. */
static const float units_of_error = 136;

static uint32_t set_of(const vq_trellis_code *code, uint32_t window)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < 4; i++)
        set |= (uint32_t)__builtin_parity(window & code->taps[i]) << i;
    return set;
}

/* The matrix that takes bit i of a byte to bits to[i]. */
static uint64_t matrix(const uint8_t *to)
{
    uint64_t m = 0;
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t o = 0; o < 8; o++)
            m |= (uint64_t)(to[i] >> o & 1) << (8 * (7 - o) + i);
    return m;
}

void vq_trellis_table_make(vq_trellis_table *t, const vq_trellis_code *code, uint32_t bits)
{
    *t = (vq_trellis_table){.bits = bits, .sets = vq_trellis_sets(bits), .unit = units_of_error / code->error};
    for (uint32_t i = 0; i < vq_trellis_n_levels(bits); i++) {
        t->level[i] = code->step * (float)(2 * code->value[i] + 1);
        t->value[i] = code->value[i];
        t->key[i] = (uint8_t)(code->value[i] + 64);
    }
    for (uint32_t w = 0; w < VQ_TRELLIS_WINDOWS; w++)
        t->set[w] = (uint8_t)set_of(code, w);
    uint32_t n_ordered = 0;
    for (uint32_t set = 0; set < VQ_TRELLIS_SETS; set++) {
        t->first[set] = (uint8_t)n_ordered;
        for (uint32_t i = 0; i < VQ_TRELLIS_STATES / 2; i++)
            if (t->set[2 * i] == set)
                t->order[n_ordered++] = (uint8_t)i;
    }
    t->first[VQ_TRELLIS_SETS] = (uint8_t)n_ordered;
    for (uint32_t p = 0; p < 8; p++) {
        uint8_t current[8] = {0}, before[8] = {0};
        for (uint32_t i = 0; i < 8; i++) {
            current[i] = (uint8_t)(i <= p ? set_of(code, 1u << (8 + i - p)) : 0);
            before[i] = (uint8_t)(i >= p ? set_of(code, 1u << (i - p)) : 0);
        }
        t->current[p] = matrix(current);
        t->before[p] = matrix(before);
        const uint8_t *of[3] = {current, p < 4 ? before : current + 4, before + 4};
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t n = 0; n < 16; n++)
                for (uint32_t bit = 0; bit < 4; bit++)
                    t->nibble[p][i][n] ^= n >> bit & 1 ? of[i][bit] : 0;
        for (uint32_t l = 0; l + 1 < bits; l++) {
            uint8_t to[8] = {0};
            to[p] = (uint8_t)(t->sets << l);
            t->other[l][p] = matrix(to);
        }
    }
}

/* Of coordinate p: sets * other + set */
static uint32_t level_at(const vq_trellis_table *t, const uint8_t *group, size_t stride, uint32_t before, uint32_t p)
{
    uint32_t at = t->set[((uint32_t)group[0] << 8 | before) >> p & (VQ_TRELLIS_WINDOWS - 1)];
    for (uint32_t l = 1; l < t->bits; l++)
        at += (uint32_t)(group[l * stride] >> p & 1) * (t->sets << (l - 1));
    return at;
}

const uint8_t *vq_trellis_last(const uint8_t *packed, const uint8_t *bits, uint32_t n_groups, size_t stride)
{
    const uint8_t *last = packed;
    for (uint32_t g = 0; g < n_groups; g++) {
        if (bits[g])
            last = packed;
        packed += bits[g] * stride;
    }
    return last;
}

static void unpack_keys_c(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                          uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    (void)ahead;
    for (uint32_t granule = 0; granule < n_granules; granule++) {
        const uint8_t *before = vq_trellis_last(packed, bits, n_groups, 32);
        for (uint32_t g = 0; g < n_groups; g++) {
            for (uint32_t r = 0; r < 32; r++)
                for (uint32_t p = 0; p < 8; p++) {
                    const uint32_t at = vq_trellis_place(r);
                    tile[((size_t)(2 * g + p / 4) * 64 + 32 * granule + r) * 4 + p % 4] =
                        bits[g]
                            ? tables[bits[g] - 1].key[level_at(&tables[bits[g] - 1], packed + at, 32, before[at], p)]
                            : 64;
                }
            before = bits[g] ? packed : before;
            packed += (size_t)32 * bits[g];
        }
    }
}

static void unpack_values_c(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                            uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    const size_t n_lanes = (8 * n_groups + 15) / 16 * 16;
    (void)ahead;
    memset(tile, 0, 32 * n_granules * n_lanes);
    for (uint32_t granule = 0; granule < n_granules; granule++) {
        const uint8_t *before = vq_trellis_last(packed, bits, n_groups, 32);
        for (uint32_t g = 0; g < n_groups; g++) {
            for (uint32_t r = 0; bits[g] && r < 32; r++)
                for (uint32_t p = 0; p < 8; p++) {
                    const vq_trellis_table *t = &tables[bits[g] - 1];
                    const uint32_t at = vq_trellis_place(r);
                    tile[((8 * granule + r / 4) * n_lanes + 8 * g + p) * 4 + r % 4] =
                        t->value[level_at(t, packed + at, 32, before[at], p)];
                }
            before = bits[g] ? packed : before;
            packed += (size_t)32 * bits[g];
        }
    }
}

static void dots_keys_c(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules, const int8_t *b,
                        size_t low, size_t second, size_t stride, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, out += 64, b += stride)
        for (uint32_t r = 0; r < 32 * n_granules; r++) {
            const int8_t *own = b + (r < 32 ? 0 : second);
            out[r] = 0;
            for (uint32_t j = 0; j < 8 * n_groups; j++)
                out[r] += tile[((size_t)(j / 4) * 64 + r) * 4 + j % 4] * (low ? 128 * b[j] + b[low + j] : own[j]);
        }
}

static void dots_values_c(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits,
                          uint32_t n_groups, uint32_t n_granules, const vq_trellis_table *tables, const uint8_t *b,
                          size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    int8_t tile[VQ_TRELLIS_MAX_TILE];
    const size_t n_lanes = (8 * n_groups + 15) / 16 * 16;
    unpack_values_c(tile, packed, bits, n_groups, n_granules, tables, ahead);
    for (uint32_t i = 0; i < n; i++, out += out_stride, b += b_stride)
        for (uint32_t j = 0; j < 8 * n_groups; j++) {
            out[j] = 0;
            for (uint32_t r = 0; r < 32 * n_granules; r++)
                out[j] += tile[(r / 4 * n_lanes + j) * 4 + r % 4] * b[r];
        }
}

void vq_trellis_levels(const vq_trellis_kernels *k, float *level, const uint8_t *codes, const uint8_t *bits,
                       uint32_t n_groups)
{
    uint8_t before = *vq_trellis_last(codes, bits, n_groups, 1);
    for (uint32_t g = 0; g < n_groups; g++, level += 8) {
        memset(level, 0, 8 * sizeof *level);
        if (!bits[g])
            continue;
        const vq_trellis_table *t = &k->tables[bits[g] - 1];
        for (uint32_t p = 0; p < 8; p++)
            level[p] = t->level[level_at(t, codes, 1, before, p)];
        before = codes[0];
        codes += bits[g];
    }
}

void vq_trellis_kernels_init(vq_trellis_kernels *k, uint32_t cpu)
{
    *k = (vq_trellis_kernels){
        .costs = vq_trellis_costs_c,
        .walk = vq_trellis_walk_c,
        .trace = vq_trellis_trace_c,
        .unpack_keys = unpack_keys_c,
        .unpack_values = unpack_values_c,
        .dots_keys = dots_keys_c,
        .dots_values = dots_values_c,
    };
    for (uint32_t b = 1; b <= VQ_TRELLIS_MAX_BITS; b++)
        vq_trellis_table_make(&k->tables[b - 1], &vq_trellis_gaussian[b - 1], b);
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2) {
        vq_trellis_kernels_init_avx2(k);
        vq_trellis_search_init_avx2(k);
    }
    if (cpu & VQ_CPU_AVX512)
        vq_trellis_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
