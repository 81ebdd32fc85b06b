/* Codes of a group as bytes of a table, with AVX-512: planes go through vpermb, whose six index bits make masks
 * needless (the table repeats itself). */
#ifndef VQ_KERNELS_X86_CODES_UNPACK_AVX512_H
#define VQ_KERNELS_X86_CODES_UNPACK_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/codes.h"

#define INLINE static inline __attribute__((always_inline))

/* Of what is read after this.  The address need not exist. */
INLINE void fetch(const uint8_t *p, size_t n_bytes, ptrdiff_t ahead)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead + i), _MM_HINT_T0);
}

typedef struct tables {
    __m512i t[4];
} tables;

/* The table of 2^bits bytes, repeated to fill a register, or in up to four registers. */
INLINE tables load_tables(const uint8_t *table, uint32_t bits)
{
    tables t;
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    memcpy(&two, table, sizeof two);
    memcpy(&four, table, sizeof four);
    memcpy(&eight, table, sizeof eight);
    switch (bits) {
    case 1: t.t[0] = _mm512_set1_epi16((int16_t)two); break;
    case 2: /* and the same by the bits 2..3 and 4..5 of an index, which saves shifts */
        t.t[0] = _mm512_set1_epi32((int32_t)four);
        t.t[1] = _mm512_permutexvar_epi8(_mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303)),
                                         t.t[0]);
        t.t[2] = _mm512_permutexvar_epi8(
            _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                     _mm512_castsi128_si512(_mm_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303))),
            t.t[0]);
        break;
    case 3: t.t[0] = _mm512_set1_epi64((int64_t)eight); break;
    case 4: t.t[0] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)); break;
    case 5: t.t[0] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)table)); break;
    default:
        for (uint32_t i = 0; i < (bits == 6 ? 1u : bits == 7 ? 2u : 4u); i++)
            t.t[i] = _mm512_loadu_si512(table + 64 * i);
    }
    return t;
}

/* Where `which` has ones a, else b. */
INLINE __m512i choose(__m512i which, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(a, b, which, 0xe4); }

/* Turns right by `low` bits in the lower half and by `high` in the upper one; bits that stay in their byte are right.
 */
INLINE __m512i turn(__m512i v, int low, int high)
{
    return _mm512_rorv_epi32(v, _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high));
}

/* Register s of a group: bytes of the table. */
INLINE __m512i unpack(const uint8_t *p, int s, uint32_t bits, const tables *t)
{
    const uint8_t *crumbs = p + (bits & 4 ? 128 : 0), *single = crumbs + (bits & 2 ? 64 : 0);
    __m512i index = _mm512_setzero_si512();
    if (bits == 2 && s < 3)
        return _mm512_permutexvar_epi8(_mm512_loadu_si512(crumbs), t->t[s]);
    if (bits == 8)
        index = _mm512_loadu_si512(p + 64 * s);
    if (bits & 4)
        index = _mm512_srli_epi16(_mm512_loadu_si512(p + 64 * (s / 2)), (unsigned)(4 * (s % 2)));
    if (bits & 2) {
        const __m512i v = _mm512_loadu_si512(crumbs);
        if (bits & 4)
            index = choose(_mm512_set1_epi8(15), index, turn(v, 2 * s - 4, 2 * s - 4));
        else
            index = _mm512_srli_epi16(v, (unsigned)(2 * s));
    }
    if (bits & 1) {
        const __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)single));
        const int to = (int)bits - 1;
        const __m512i bit = turn(v, s - to, s + 4 - to);
        index = bits == 1 ? bit : choose(_mm512_set1_epi8((char)((1 << to) - 1)), index, bit);
    }
    if (bits <= 6)
        return _mm512_permutexvar_epi8(index, t->t[0]);
    const __m512i low = _mm512_permutex2var_epi8(t->t[0], index, t->t[1]);
    if (bits == 7)
        return low;
    const __m512i high = _mm512_permutex2var_epi8(t->t[2], index, t->t[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(index), high);
}

#endif
