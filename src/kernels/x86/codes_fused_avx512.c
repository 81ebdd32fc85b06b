/* Products with codes for few rows (a decoded token's queries) with AVX-512: what is unpacked meets all rows in
 * registers, and no tile is written.  At 2 bits and 3 rows, a group of a granule is one load, 3 shifts, 4 look-ups and
 * 12 products. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/x86/codes_avx512.h"
#include "kernels/x86/codes_unpack_avx512.h"

enum { APART = 4 }; /* up to so many rows there are registers for two sums of the same row, which hides latency */

INLINE __m512i four_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Sums over dimensions: 32 rows of a granule are two registers of lanes. */
INLINE void keys_rows(int32_t *out, const uint8_t *packed, uint32_t bits, const tables *t, uint32_t n_groups,
                      uint32_t n_granules, const int8_t *b, size_t b_stride, int n, ptrdiff_t ahead)
{
    for (uint32_t r = 0; r < n_granules; r++) {
        __m512i sum[VQ_CODES_FUSED][2], more[APART][2];
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 2; h++) {
                sum[i][h] = _mm512_setzero_si512();
                if (n <= APART)
                    more[i][h] = _mm512_setzero_si512();
            }
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            if (ahead)
                fetch(packed, vq_codes_group_bytes(bits), ahead);
            __m512i v[4];
            for (int s = 0; s < 4; s++)
                v[s] = unpack(packed, s, bits, t);
            for (int i = 0; i < n; i++) {
                const int8_t *at = b + (size_t)i * b_stride + (size_t)VQ_CODES_GROUP * g;
                const __m512i low = four_bytes(at), high = four_bytes(at + 4);
                for (int h = 0; h < 2; h++) {
                    sum[i][h] = _mm512_dpbusd_epi32(sum[i][h], v[h], low);
                    if (n <= APART)
                        more[i][h] = _mm512_dpbusd_epi32(more[i][h], v[2 + h], high);
                    else
                        sum[i][h] = _mm512_dpbusd_epi32(sum[i][h], v[2 + h], high);
                }
            }
        }
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 2; h++)
                _mm512_storeu_si512(out + (size_t)i * VQ_CODES_ROWS + r * VQ_CODES_GRANULE + h * 16,
                                    n <= APART ? _mm512_add_epi32(sum[i][h], more[i][h]) : sum[i][h]);
    }
}

/* Sums of m neighbouring groups, each its own, so that none waits for another and a granule's weights stay in
 * registers. */
INLINE void values_groups(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const tables *t,
                          uint32_t n_groups, uint32_t n_granules, __m512i w[VQ_CODES_FUSED][8], int n, int m,
                          ptrdiff_t ahead)
{
    __m512i sum[VQ_CODES_FUSED][4];
    for (int i = 0; i < n; i++)
        for (int g = 0; g < m; g++)
            sum[i][g] = _mm512_setzero_si512();
    for (uint32_t r = 0; r < n_granules; r++) {
        const uint8_t *from = packed + r * n_groups * vq_codes_group_bytes(bits);
        if (ahead)
            fetch(from, (size_t)m * vq_codes_group_bytes(bits), ahead);
        for (int s = 0; s < 4; s++)
            for (int g = 0; g < m; g++) {
                const __m512i v = unpack(from + (size_t)g * vq_codes_group_bytes(bits), s, bits, t);
                for (int i = 0; i < n; i++)
                    sum[i][g] = _mm512_dpbusd_epi32(sum[i][g], w[i][4 * r + (uint32_t)s], v);
            }
    }
    for (int i = 0; i < n; i++)
        for (int g = 0; g < m; g++)
            _mm256_storeu_si256(
                (__m256i *)(void *)(out + (size_t)i * out_stride + (size_t)VQ_CODES_GROUP * g),
                _mm256_add_epi32(_mm512_castsi512_si256(sum[i][g]), _mm512_extracti64x4_epi64(sum[i][g], 1)));
}

/* Sums over rows.  A register of codes has two quads of rows for 8 dimensions: its lower half meets one quad's weights,
 * its upper half the next one's. */
INLINE void values_rows(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const tables *t,
                        uint32_t n_groups, uint32_t n_granules, const uint8_t *b, size_t b_stride, int n,
                        ptrdiff_t ahead)
{
    __m512i w[VQ_CODES_FUSED][8];
    for (int i = 0; i < n; i++) {
        const uint8_t *from = b + (size_t)i * b_stride; /* just written: no masked load, which might wait for that */
        const __m512i all = n_granules == 2
                                ? _mm512_loadu_si512(from)
                                : _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)from));
        for (int s = 0; s < 8; s++)
            w[i][s] =
                _mm512_permutexvar_epi32(_mm512_mask_set1_epi32(_mm512_set1_epi32(2 * s), 0xff00, 2 * s + 1), all);
    }
    uint32_t g = 0;
    const uint32_t wide = n <= 3 ? 4 : n == 4 ? 2 : 1;
    for (; g + wide <= n_groups; g += wide)
        values_groups(out + (size_t)VQ_CODES_GROUP * g, out_stride, packed + g * vq_codes_group_bytes(bits), bits, t,
                      n_groups, n_granules, w, n, (int)wide, ahead);
    for (; g < n_groups; g++)
        values_groups(out + (size_t)VQ_CODES_GROUP * g, out_stride, packed + g * vq_codes_group_bytes(bits), bits, t,
                      n_groups, n_granules, w, n, 1, ahead);
}

/* As many rows at once as there is a function for: 1 to 4, and with the wide queries of 5 bits and more 1, 2, 4, 6, 8.
 */
INLINE int rows_at_once(uint32_t bits, uint32_t n)
{
    if (bits <= 4)
        return n > 4 ? 4 : (int)n;
    return n == 1 ? 1 : (int)(n / 2 * 2);
}

#define KEYS(n_)                                                                                                       \
    case n_:                                                                                                           \
        keys_rows(out, packed, bits, &t, n_groups, n_granules, b, b_stride, n_, ahead);                                \
        break
#define VALUES(n_)                                                                                                     \
    case n_: values_rows(out, out_stride, packed, bits, &t, n_groups, n_granules, b, b_stride, n_, ahead); break

INLINE void keys(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table, uint32_t n_groups,
                 uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    const tables t = load_tables(table, bits);
    while (n > 0) {
        const int now = rows_at_once(bits, n);
        if (bits <= 4)
            switch (now) {
                KEYS(4);
                KEYS(3);
                KEYS(2);
            default: keys_rows(out, packed, bits, &t, n_groups, n_granules, b, b_stride, 1, ahead);
            }
        else
            switch (now) {
                KEYS(8);
                KEYS(6);
                KEYS(4);
                KEYS(2);
            default: keys_rows(out, packed, bits, &t, n_groups, n_granules, b, b_stride, 1, ahead);
            }
        n -= (uint32_t)now;
        b += (size_t)now * b_stride;
        out += (size_t)now * VQ_CODES_ROWS;
        ahead = 0;
    }
}

INLINE void values(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                   uint32_t n_groups, uint32_t n_granules, const uint8_t *b, size_t b_stride, uint32_t n,
                   ptrdiff_t ahead)
{
    const tables t = load_tables(table, bits);
    while (n > 0) {
        const int now = rows_at_once(bits, n);
        if (bits <= 4)
            switch (now) {
                VALUES(4);
                VALUES(3);
                VALUES(2);
            default: values_rows(out, out_stride, packed, bits, &t, n_groups, n_granules, b, b_stride, 1, ahead);
            }
        else
            switch (now) {
                VALUES(8);
                VALUES(6);
                VALUES(4);
                VALUES(2);
            default: values_rows(out, out_stride, packed, bits, &t, n_groups, n_granules, b, b_stride, 1, ahead);
            }
        n -= (uint32_t)now;
        b += (size_t)now * b_stride;
        out += (size_t)now * out_stride;
        ahead = 0;
    }
}

void vq_codes_dots_keys_avx512(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                               uint32_t n_groups, uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n,
                               ptrdiff_t ahead)
{
    switch (bits) {
    case 1: keys(out, packed, 1, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 2: keys(out, packed, 2, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 3: keys(out, packed, 3, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 4: keys(out, packed, 4, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 5: keys(out, packed, 5, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 6: keys(out, packed, 6, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 7: keys(out, packed, 7, table, n_groups, n_granules, b, b_stride, n, ahead); break;
    default: keys(out, packed, 8, table, n_groups, n_granules, b, b_stride, n, ahead);
    }
}

void vq_codes_dots_values_avx512(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits,
                                 const int8_t *table, uint32_t n_groups, uint32_t n_granules, const uint8_t *b,
                                 size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    const uint8_t *t = (const uint8_t *)table;
    switch (bits) {
    case 1: values(out, out_stride, packed, 1, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 2: values(out, out_stride, packed, 2, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 3: values(out, out_stride, packed, 3, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 4: values(out, out_stride, packed, 4, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 5: values(out, out_stride, packed, 5, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 6: values(out, out_stride, packed, 6, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    case 7: values(out, out_stride, packed, 7, t, n_groups, n_granules, b, b_stride, n, ahead); break;
    default: values(out, out_stride, packed, 8, t, n_groups, n_granules, b, b_stride, n, ahead);
    }
}
