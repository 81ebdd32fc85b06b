/* The search for trellis codes with AVX2: 32 rows are two registers of metrics, done one after the other for each set
 * of the trellis, so that the prices of its butterflies stay in registers. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/trellis_inner.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = VQ_TRELLIS_ROWS, STATES = VQ_TRELLIS_STATES, SETS = VQ_TRELLIS_SETS, HALF = ROWS / 2 };

INLINE __m256i load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

INLINE void store(uint16_t *p, __m256i v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }

INLINE __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }

INLINE __m256i units_of(__m256 best, __m256 least, __m256 unit)
{
    const __m256 squared = _mm256_mul_ps(best, best);
    const __m256 units = _mm256_mul_ps(_mm256_sub_ps(squared, least), unit);
    return _mm256_cvttps_epi32(_mm256_min_ps(units, _mm256_set1_ps(VQ_TRELLIS_TOP_COST))); /* the second, of NaN */
}

/* The square of the nearest is the least of the squares: rounding keeps their order.  Rows 0..3 and 8..11 of a half go
 * apart from the others: packing puts them in order again. */
static void costs(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n)
{
    const uint32_t n_others = 1u << (t->bits - 1), sets = t->sets;
    const __m256 unit = _mm256_set1_ps(t->unit);
    for (uint32_t j = 0; j < n; j++, x += ROWS, cost += (size_t)sets * ROWS)
        for (uint32_t h = 0; h < ROWS; h += HALF) {
            const __m256 low = _mm256_loadu_ps(x + h), high = _mm256_loadu_ps(x + h + 8);
            const __m256 v = _mm256_permute2f128_ps(low, high, 0x20), w = _mm256_permute2f128_ps(low, high, 0x31);
            __m256 best[SETS][2], least[2] = {_mm256_set1_ps(INFINITY), _mm256_set1_ps(INFINITY)};
            for (uint32_t i = 0; i < sets; i++) {
                best[i][0] = best[i][1] = _mm256_set1_ps(INFINITY);
                for (uint32_t l = 0; l < n_others; l++) {
                    const __m256 level = _mm256_broadcast_ss(&t->level[sets * l + i]);
                    const __m256 a = magnitude(_mm256_sub_ps(v, level)), b = magnitude(_mm256_sub_ps(w, level));
                    best[i][0] = _mm256_min_ps(a, best[i][0]);
                    best[i][1] = _mm256_min_ps(b, best[i][1]);
                }
                for (uint32_t part = 0; part < 2; part++)
                    least[part] = _mm256_min_ps(best[i][part], least[part]);
            }
            for (uint32_t part = 0; part < 2; part++)
                least[part] = _mm256_mul_ps(least[part], least[part]);
            for (uint32_t i = 0; i < sets; i++)
                store(cost + (size_t)i * ROWS + h,
                      _mm256_packus_epi32(units_of(best[i][0], least[0], unit), units_of(best[i][1], least[1], unit)));
        }
}

INLINE __m256i plus(__m256i a, __m256i b, bool far) { return far ? _mm256_adds_epu16(a, b) : _mm256_add_epi16(a, b); }

/* The bits of 16 rows of a state. */
INLINE void put_bits(uint32_t *back, uint32_t h, uint32_t bits)
{
    const uint16_t some = (uint16_t)bits;
    memcpy((uint8_t *)back + h / 8, &some, sizeof some);
}

/* Where the metric of a state lies after p coordinates: what two states lead to takes their places, so that a walk
 * needs no second copy, which together with the first would fill the L1.  After 8 every state is where it was. */
INLINE uint32_t place(uint32_t state, uint32_t p) { return (state << p | state >> (8 - p)) & (STATES - 1); }

INLINE void step(uint32_t *back, uint16_t *metric, const uint16_t *cost, uint32_t p, const vq_trellis_table *t,
                 bool far)
{
    const uint32_t old = t->set[1], new = t->set[STATES];
    for (uint32_t set = 0; set < t->sets; set++)
        for (uint32_t h = 0; h < ROWS; h += HALF) {
            const __m256i p00 = load(cost + (size_t)set * ROWS + h), p01 = load(cost + (size_t)(set ^ old) * ROWS + h);
            const __m256i p10 = load(cost + (size_t)(set ^ new) * ROWS + h);
            const __m256i p11 = load(cost + (size_t)(set ^ old ^ new) * ROWS + h);
            for (uint32_t at = t->first[set]; at < t->first[set + 1]; at++) {
                const uint32_t i = t->order[at];
                uint16_t *from = metric + (size_t)place(2 * i, p) * ROWS + h;
                uint16_t *too = metric + (size_t)place(2 * i + 1, p) * ROWS + h;
                const __m256i even = load(from);
                const __m256i odd = load(too);
                const __m256i even_zero = plus(even, p00, far), even_one = plus(even, p10, far);
                const __m256i zero = _mm256_min_epu16(even_zero, plus(odd, p01, far));
                const __m256i one = _mm256_min_epu16(even_one, plus(odd, p11, far));
                store(from, zero);
                store(too, one);
                const __m256i kept = _mm256_permute4x64_epi64(
                    _mm256_packs_epi16(_mm256_cmpeq_epi16(zero, even_zero), _mm256_cmpeq_epi16(one, even_one)), 0xd8);
                const uint32_t lost = ~(uint32_t)_mm256_movemask_epi8(kept);
                put_bits(back + i, h, lost);
                put_bits(back + i + STATES / 2, h, lost >> 16);
            }
        }
}

INLINE void walk_of(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far)
{
    for (uint32_t p = 0; p < 8; p++)
        step(back + (size_t)p * STATES, metric, cost + (size_t)p * t->sets * ROWS, p, t, far);
    for (uint32_t h = 0; h < ROWS; h += HALF) {
        __m256i least = load(metric + h);
        for (uint32_t i = 1; i < STATES; i++)
            least = _mm256_min_epu16(least, load(metric + (size_t)i * ROWS + h));
        for (uint32_t i = 0; i < STATES; i++)
            store(metric + (size_t)i * ROWS + h, _mm256_sub_epi16(load(metric + (size_t)i * ROWS + h), least));
    }
}

static void walk(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far)
{
    if (far)
        walk_of(back, metric, cost, t, true);
    else
        walk_of(back, metric, cost, t, false);
}

void vq_trellis_search_init_avx2(vq_trellis_kernels *k)
{
    k->costs = costs;
    k->walk = walk;
}
