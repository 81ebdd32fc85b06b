#include <math.h>
/* Trellis codes in plain C: what every tier has to give, bit for bit. */
#include "kernels/trellis.h"

#include <string.h>

#include "base/cpu.h"
#include "kernels/trellis_inner.h"

/* Groups before and after the cut that are searched for the state at the cut. */
enum { AROUND = 4, BACK_BYTES = VQ_TRELLIS_STATES / 8 };

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
    *t = (vq_trellis_table){.bits = bits, .unit = units_of_error / code->error};
    for (uint32_t i = 0; i < (uint32_t)VQ_TRELLIS_SETS << (bits - 1); i++) {
        t->level[i] = code->step * (float)(2 * code->value[i] + 1);
        t->value[i] = code->value[i];
        t->key[i] = (uint8_t)(code->value[i] + 64);
    }
    for (uint32_t w = 0; w < VQ_TRELLIS_WINDOWS; w++) {
        t->set[w] = (uint8_t)set_of(code, w);
        (w & 1 ? t->odd : t->even)[w / 2] = t->set[w];
    }
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
            to[p] = (uint8_t)(VQ_TRELLIS_SETS << l);
            t->other[l][p] = matrix(to);
        }
    }
}

static void costs_c(uint16_t *cost, uint8_t *other, const float *x, const vq_trellis_table *t, uint32_t n)
{
    const uint32_t n_others = 1u << (t->bits - 1);
    for (uint32_t j = 0; j < n; j++, cost += VQ_TRELLIS_SETS, other += VQ_TRELLIS_SETS) {
        float best[VQ_TRELLIS_SETS], least = INFINITY;
        for (uint32_t i = 0; i < VQ_TRELLIS_SETS; i++) {
            best[i] = INFINITY;
            other[i] = 0;
            for (uint32_t l = 0; l < n_others; l++) {
                const float off = x[j] - t->level[VQ_TRELLIS_SETS * l + i], squared = off * off;
                if (squared < best[i]) {
                    best[i] = squared;
                    other[i] = (uint8_t)l;
                }
            }
            least = best[i] < least ? best[i] : least;
        }
        for (uint32_t i = 0; i < VQ_TRELLIS_SETS; i++) {
            const float units = (best[i] - least) * t->unit;
            cost[i] = units < VQ_TRELLIS_TOP_COST ? (uint16_t)units : VQ_TRELLIS_TOP_COST;
        }
    }
}

static uint16_t added(uint16_t a, uint16_t b)
{
    const uint32_t sum = (uint32_t)a + b;
    return sum < UINT16_MAX ? (uint16_t)sum : UINT16_MAX;
}

static void walk_c(uint8_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t)
{
    for (uint32_t p = 0; p < 8; p++, cost += VQ_TRELLIS_SETS, back += BACK_BYTES) {
        uint16_t next[VQ_TRELLIS_STATES], least = UINT16_MAX;
        memset(back, 0, BACK_BYTES);
        for (uint32_t s = 0; s < VQ_TRELLIS_STATES; s++) {
            const uint32_t from = 2 * s % VQ_TRELLIS_STATES;
            const uint16_t a = added(metric[from], cost[t->even[s]]), b = added(metric[from + 1], cost[t->odd[s]]);
            back[s / 8] |= (uint8_t)((b < a) << s % 8);
            next[s] = b < a ? b : a;
            least = next[s] < least ? next[s] : least;
        }
        for (uint32_t s = 0; s < VQ_TRELLIS_STATES; s++)
            metric[s] = (uint16_t)(p % 4 == 3 ? next[s] - least : next[s]);
    }
}

/* Of coordinate p: 16 other + set */
static uint32_t level_at(const vq_trellis_table *t, const uint8_t *group, size_t stride, uint32_t before, uint32_t p)
{
    uint32_t at = t->set[((uint32_t)group[0] << 8 | before) >> p & (VQ_TRELLIS_WINDOWS - 1)];
    for (uint32_t l = 1; l < t->bits; l++)
        at += (uint32_t)(group[l * stride] >> p & 1) * (VQ_TRELLIS_SETS / 2u << l);
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
                        size_t low, size_t stride, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, out += 64, b += stride)
        for (uint32_t r = 0; r < 32 * n_granules; r++) {
            out[r] = 0;
            for (uint32_t j = 0; j < 8 * n_groups; j++)
                out[r] += tile[((size_t)(j / 4) * 64 + r) * 4 + j % 4] * (low ? 128 * b[j] + b[low + j] : b[j]);
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

/* ---- the search ---- */

typedef struct search {
    uint32_t n; /* groups that have bits */
    uint8_t bits[VQ_TRELLIS_MAX_GROUPS];
    uint16_t cost[VQ_TRELLIS_MAX_GROUPS * 8 * VQ_TRELLIS_SETS];
    uint8_t other[VQ_TRELLIS_MAX_GROUPS * 8 * VQ_TRELLIS_SETS];
    uint8_t back[VQ_TRELLIS_MAX_GROUPS * 8 * BACK_BYTES];
} search;

static uint32_t least_of(const uint16_t *metric)
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < VQ_TRELLIS_STATES; s++)
        if (metric[s] < metric[best])
            best = s;
    return best;
}

static void walk(const vq_trellis_kernels *k, search *s, uint32_t group, uint32_t to, uint16_t *metric)
{
    k->walk(s->back + (size_t)to * 8 * BACK_BYTES, metric, s->cost + (size_t)group * 8 * VQ_TRELLIS_SETS,
            &k->tables[s->bits[group] - 1]);
}

/* From the state after coordinate p of what was walked to `group` to the one before it. */
static uint32_t step_back(const search *s, uint32_t group, uint32_t p, uint32_t state)
{
    const uint8_t *back = s->back + (size_t)(group * 8 + p) * BACK_BYTES;
    return (2 * state + (back[state / 8] >> state % 8 & 1)) % VQ_TRELLIS_STATES;
}

/* Paths with the given state at both ends exist from 8 coordinates on, and others cannot be cheaper: those of 8
 * coordinates cost at most 8 TOP_COST, which is less than what the others start with. */
static void start_at(uint16_t *metric, uint32_t state)
{
    memset(metric, 0xff, VQ_TRELLIS_STATES * sizeof *metric);
    metric[state] = 0;
}
_Static_assert(8 * VQ_TRELLIS_TOP_COST < UINT16_MAX - 4 * VQ_TRELLIS_TOP_COST, "see start_at");

/* The state between the last and the first group: that of the best path through the groups on both sides. */
static uint32_t state_at_cut(const vq_trellis_kernels *k, search *s)
{
    uint16_t metric[VQ_TRELLIS_STATES] = {0};
    for (uint32_t i = 0; i < 2 * AROUND; i++)
        walk(k, s, (i + (AROUND * s->n - AROUND)) % s->n, i >= AROUND ? i - AROUND : i, metric);
    uint32_t state = least_of(metric);
    for (uint32_t i = AROUND; i-- > 0;)
        for (uint32_t p = 8; p-- > 0;)
            state = step_back(s, i, p, state);
    return state;
}

void vq_trellis_search(const vq_trellis_kernels *k, uint8_t *codes, const float *x, const uint8_t *bits,
                       uint32_t n_groups)
{
    search s;
    uint32_t n_bytes = 0;
    s.n = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        if (!bits[g])
            continue;
        const size_t at = (size_t)s.n * 8 * VQ_TRELLIS_SETS;
        k->costs(s.cost + at, s.other + at, x + (size_t)8 * g, &k->tables[bits[g] - 1], 8);
        s.bits[s.n++] = bits[g];
        n_bytes += bits[g];
    }
    if (!s.n)
        return;
    memset(codes, 0, n_bytes);
    const uint32_t cut = state_at_cut(k, &s);
    uint16_t metric[VQ_TRELLIS_STATES];
    start_at(metric, cut);
    for (uint32_t g = 0; g < s.n; g++)
        walk(k, &s, g, g, metric);
    uint32_t state = cut;
    uint8_t *to = codes + n_bytes;
    for (uint32_t g = s.n; g-- > 0;) {
        const vq_trellis_table *t = &k->tables[s.bits[g] - 1];
        to -= t->bits;
        for (uint32_t p = 8; p-- > 0;) {
            const uint32_t before = step_back(&s, g, p, state), window = state << 1 | (before & 1);
            const uint32_t other = s.other[(size_t)(g * 8 + p) * VQ_TRELLIS_SETS + t->set[window]];
            to[0] |= (uint8_t)(state >> 7 << p);
            for (uint32_t l = 1; l < t->bits; l++)
                to[l] |= (uint8_t)((other >> (l - 1) & 1) << p);
            state = before;
        }
    }
}

void vq_trellis_kernels_init(vq_trellis_kernels *k, uint32_t cpu)
{
    *k = (vq_trellis_kernels){
        .costs = costs_c,
        .walk = walk_c,
        .unpack_keys = unpack_keys_c,
        .unpack_values = unpack_values_c,
        .dots_keys = dots_keys_c,
        .dots_values = dots_values_c,
    };
    for (uint32_t b = 1; b <= VQ_TRELLIS_MAX_BITS; b++)
        vq_trellis_table_make(&k->tables[b - 1], &vq_trellis_gaussian[b - 1], b);
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_trellis_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_trellis_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
