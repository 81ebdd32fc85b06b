/* The search for trellis codes with AVX-512: 32 rows are a register of metrics.  States that a set of the trellis
 * serves alike come one after the other, so that what the four sets of a butterfly cost is loaded once for eight. */
#include <immintrin.h>

#include "kernels/trellis_inner.h"
#include "kernels/x86/trellis_avx512.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = VQ_TRELLIS_ROWS, STATES = VQ_TRELLIS_STATES, SETS = VQ_TRELLIS_SETS };

/* Rows 0..3, 8..11, .. of 32 and the others: packing puts them in order again. */
typedef struct rows {
    __m512 a, b;
} rows;

INLINE __m512i units_of(__m512 best, __m512 least, __m512 unit)
{
    const __m512 squared = _mm512_mul_ps(best, best);
    const __m512 units = _mm512_mul_ps(_mm512_sub_ps(squared, least), unit);
    return _mm512_cvttps_epi32(_mm512_min_ps(units, _mm512_set1_ps(VQ_TRELLIS_TOP_COST))); /* the second, of NaN */
}

/* The square of the nearest is the least of the squares: rounding keeps their order. */
INLINE void costs_of(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n, uint32_t bits)
{
    const uint32_t sets = vq_trellis_sets(bits), n_others = 1u << (bits - 1);
    const __m512 unit = _mm512_set1_ps(t->unit);
    for (uint32_t j = 0; j < n; j++, x += ROWS, cost += (size_t)sets * ROWS) {
        const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        const rows v = {_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd)};
        rows best[SETS], least;
        for (uint32_t i = 0; i < sets; i++) {
            for (uint32_t l = 0; l < n_others; l++) {
                const __m512 level = _mm512_set1_ps(t->level[sets * l + i]);
                const __m512 a = _mm512_abs_ps(_mm512_sub_ps(v.a, level));
                const __m512 b = _mm512_abs_ps(_mm512_sub_ps(v.b, level));
                best[i].a = l ? _mm512_min_ps(a, best[i].a) : a;
                best[i].b = l ? _mm512_min_ps(b, best[i].b) : b;
            }
            least.a = i ? _mm512_min_ps(best[i].a, least.a) : best[i].a;
            least.b = i ? _mm512_min_ps(best[i].b, least.b) : best[i].b;
        }
        least = (rows){_mm512_mul_ps(least.a, least.a), _mm512_mul_ps(least.b, least.b)};
        for (uint32_t i = 0; i < sets; i++)
            _mm512_storeu_si512(cost + (size_t)i * ROWS, _mm512_packus_epi32(units_of(best[i].a, least.a, unit),
                                                                             units_of(best[i].b, least.b, unit)));
    }
}

static void costs(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n)
{
    switch (t->bits) {
    case 1: costs_of(cost, x, t, n, 1); break;
    case 2: costs_of(cost, x, t, n, 2); break;
    case 3: costs_of(cost, x, t, n, 3); break;
    case 4: costs_of(cost, x, t, n, 4); break;
    default: costs_of(cost, x, t, n, 5);
    }
}

INLINE __m512i plus(__m512i a, __m512i b, bool far) { return far ? _mm512_adds_epu16(a, b) : _mm512_add_epi16(a, b); }

INLINE __m512i better(uint32_t *lost, __m512i even, __m512i odd)
{
    *lost = _cvtmask32_u32(_mm512_cmplt_epu16_mask(odd, even));
    return _mm512_min_epu16(even, odd);
}

/* Where the metric of a state lies after p coordinates: what two states lead to takes their places, so that a walk
 * needs no second copy, which together with the first would fill the L1.  After 8 every state is where it was. */
INLINE uint32_t place(uint32_t state, uint32_t p) { return (state << p | state >> (8 - p)) & (STATES - 1); }

/* With `last`, returns the least of what each row has after it. */
INLINE __m512i step(uint32_t *back, uint16_t *metric, const uint16_t *cost, uint32_t p, const vq_trellis_table *t,
                    bool far, bool last)
{
    const uint32_t old = t->set[1], new = t->set[STATES];
    __m512i least = _mm512_set1_epi16(-1);
    for (uint32_t set = 0; set < t->sets; set++) {
        const __m512i p00 = _mm512_loadu_si512(cost + (size_t)set * ROWS);
        const __m512i p01 = _mm512_loadu_si512(cost + (size_t)(set ^ old) * ROWS);
        const __m512i p10 = _mm512_loadu_si512(cost + (size_t)(set ^ new) * ROWS);
        const __m512i p11 = _mm512_loadu_si512(cost + (size_t)(set ^ old ^ new) * ROWS);
        for (uint32_t at = t->first[set]; at < t->first[set + 1]; at++) {
            const uint32_t i = t->order[at];
            uint16_t *from = metric + (size_t)place(2 * i, p) * ROWS;
            uint16_t *too = metric + (size_t)place(2 * i + 1, p) * ROWS;
            const __m512i even = _mm512_loadu_si512(from);
            const __m512i odd = _mm512_loadu_si512(too);
            const __m512i zero = better(back + i, plus(even, p00, far), plus(odd, p01, far));
            const __m512i one = better(back + i + STATES / 2, plus(even, p10, far), plus(odd, p11, far));
            _mm512_storeu_si512(from, zero);
            _mm512_storeu_si512(too, one);
            if (last)
                least = _mm512_min_epu16(least, _mm512_min_epu16(zero, one));
        }
    }
    return least;
}

INLINE void walk_of(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far)
{
    for (uint32_t p = 0; p < 7; p++)
        step(back + (size_t)p * STATES, metric, cost + (size_t)p * t->sets * ROWS, p, t, far, false);
    const __m512i least = step(back + (size_t)7 * STATES, metric, cost + (size_t)7 * t->sets * ROWS, 7, t, far, true);
    for (uint32_t i = 0; i < STATES * ROWS; i += ROWS)
        _mm512_storeu_si512(metric + i, _mm512_sub_epi16(_mm512_loadu_si512(metric + i), least));
}

static void walk(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far)
{
    if (far)
        walk_of(back, metric, cost, t, true);
    else
        walk_of(back, metric, cost, t, false);
}

/* Sets are linear: those of the window's lowest four bits, of the next four, and of the highest. */
static void trace(uint8_t *state, float *x, uint8_t *other, const uint32_t *back, const vq_trellis_table *t)
{
    const uint32_t n_others = 1u << (t->bits - 1), sets = t->sets;
    const __m512i one = _mm512_set1_epi32(1), low = _mm512_set1_epi32(15);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i of_lowest = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)t->set));
    uint32_t next[16];
    for (uint32_t i = 0; i < 16; i++)
        next[i] = t->set[16 * i];
    const __m512i of_next = _mm512_loadu_si512(next), of_highest = _mm512_set1_epi32(t->set[STATES]);
    for (uint32_t h = 0; h < ROWS; h += 16) {
        const __m512i shift = _mm512_add_epi32(lanes, _mm512_set1_epi32((int32_t)h));
        __m512i now = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + h)));
        __m512i bytes[VQ_TRELLIS_MAX_BITS - 1] = {_mm512_setzero_si512(), _mm512_setzero_si512(),
                                                  _mm512_setzero_si512(), _mm512_setzero_si512()};
        for (uint32_t p = 8; p-- > 0;) {
            const __m512i lost = _mm512_i32gather_epi32(now, back + (size_t)p * STATES, 4);
            const __m512i window =
                _mm512_or_si512(_mm512_add_epi32(now, now), _mm512_and_si512(_mm512_srlv_epi32(lost, shift), one));
            const __m512i high = _mm512_srli_epi32(window, 4);
            const __m512i highest =
                _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(window, _mm512_set1_epi32(STATES)), of_highest);
            const __m512i set =
                _mm512_xor_si512(_mm512_xor_si512(_mm512_permutexvar_epi32(_mm512_and_si512(window, low), of_lowest),
                                                  _mm512_permutexvar_epi32(_mm512_and_si512(high, low), of_next)),
                                 highest);
            const __m512 own = _mm512_loadu_ps(x + (size_t)p * ROWS + h);
            __m512 level = _mm512_permutexvar_ps(set, _mm512_loadu_ps(t->level)), off = _mm512_sub_ps(own, level);
            __m512 best = _mm512_mul_ps(off, off);
            __m512i which = _mm512_setzero_si512();
            for (uint32_t l = 1; l < n_others; l++) { /* a register has the levels of 16 sets, or of 8 twice */
                const uint32_t first = sets * l, within = first % 16;
                const __m512 candidate =
                    _mm512_permutexvar_ps(_mm512_add_epi32(set, _mm512_set1_epi32((int32_t)within)),
                                          _mm512_loadu_ps(t->level + first - within));
                off = _mm512_sub_ps(own, candidate);
                const __m512 squared = _mm512_mul_ps(off, off);
                const __mmask16 less = _mm512_cmp_ps_mask(squared, best, _CMP_LT_OQ);
                best = _mm512_mask_mov_ps(best, less, squared);
                level = _mm512_mask_mov_ps(level, less, candidate);
                which = _mm512_mask_set1_epi32(which, less, (int32_t)l);
            }
            _mm512_storeu_ps(x + (size_t)p * ROWS + h, level);
            for (uint32_t l = 0; l + 1 < t->bits; l++)
                bytes[l] =
                    _mm512_or_si512(bytes[l], _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(which, l), one), p));
            now = _mm512_and_si512(window, _mm512_set1_epi32(STATES - 1));
        }
        for (uint32_t l = 0; l + 1 < t->bits; l++)
            _mm_storeu_si128((__m128i *)(void *)(other + (size_t)l * ROWS + h), _mm512_cvtepi32_epi8(bytes[l]));
        _mm_storeu_si128((__m128i *)(void *)(state + h), _mm512_cvtepi32_epi8(now));
    }
}

void vq_trellis_kernels_init_avx512(vq_trellis_kernels *k)
{
    k->costs = costs;
    k->walk = walk;
    k->trace = trace;
    k->unpack_keys = vq_trellis_unpack_keys_avx512;
    k->dots_keys = vq_trellis_dots_keys_avx512;
    k->unpack_values = vq_trellis_unpack_values_avx512;
    k->dots_values = vq_trellis_dots_values_avx512;
}
