/* Weights as the AVX-512 tier reads them: 16 rows in the 16 lanes of a register, into the records of matmul_tiles.h.
 *
 * GGUF has the 4 bytes of a row that a lane takes side by side; what is left is a transposition of dwords, in
 * registers. */
#ifndef VQ_KERNELS_X86_MATMUL_AVX512_H
#define VQ_KERNELS_X86_MATMUL_AVX512_H

#include <immintrin.h>

#include "kernels/matmul_tiles.h"

enum { LANES = 16, CODE_BYTES = 8 * 64 };

#define VQ_INLINE static inline __attribute__((always_inline))

/* out[k]: dword k of the 16 bytes that begin each of 16 rows. */
VQ_INLINE void load_16x16(__m512i out[4], const uint8_t *p, size_t stride)
{
    const size_t stride4 = 4 * stride;
    __m512i v[4];
    for (int i = 0; i < 4; i++, p += stride) {
        const uint8_t *q = p + 2 * stride4;
        v[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
        v[i] = _mm512_inserti32x4(v[i], _mm_loadu_si128((const __m128i *)(p + stride4)), 1);
        v[i] = _mm512_inserti32x4(v[i], _mm_loadu_si128((const __m128i *)q), 2);
        v[i] = _mm512_inserti32x4(v[i], _mm_loadu_si128((const __m128i *)(q + stride4)), 3);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(v[0], v[1]), high01 = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(v[2], v[3]), high23 = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
}

VQ_INLINE __m512i row_offsets(size_t stride)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)stride));
}

VQ_INLINE __m512i gather(const uint8_t *p, __m512i offsets) { return _mm512_i32gather_epi32(offsets, p, 1); }

/* The f16 in the low and in the high half of each dword. */
VQ_INLINE __m512 low_halves(__m512i x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

VQ_INLINE __m512 high_halves(__m512i x) { return low_halves(_mm512_srli_epi32(x, 16)); }

/* A tile's rows are read side by side, in an order that no processor foresees.  The next tile lies right behind: where
 * a tile has been read up to n bytes of each row, that one is fetched up to n bytes of it for each row.  What lies
 * further on is brought to L2 before that: L1 alone has too few lines under way to keep the memory busy (measured: 5 to
 * 17 %). */
typedef struct stream {
    const char *at;
} stream;

VQ_INLINE stream next_tile(const uint8_t *rows, size_t stride, size_t n_bytes)
{
    return (stream){(const char *)rows + LANES * (stride + n_bytes)};
}

VQ_INLINE void fetch(stream *next, size_t n_bytes)
{
    enum { FAR = 24 * 1024 };
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch(next->at + i, _MM_HINT_T0);
        _mm_prefetch(next->at + i + FAR, _MM_HINT_T1);
    }
    next->at += n_bytes;
}

/* A record in registers, of the types that have one scale and 32 values to a block. */
typedef struct record {
    __m512i q[8];
    __m512 d, m;
} record;

typedef void (*block_fn)(record *out, const uint8_t *p, size_t stride, __m512i offsets);

VQ_INLINE void nibbles(__m512i q[8], const uint8_t *p, size_t stride)
{
    const __m512i mask = _mm512_set1_epi8(15);
    load_16x16(q, p, stride);
    for (int k = 0; k < 4; k++) {
        q[k + 4] = _mm512_and_si512(_mm512_srli_epi16(q[k], 4), mask);
        q[k] = _mm512_and_si512(q[k], mask);
    }
}

/* Adds 16 to value i where bit i of the row's dword is set. */
VQ_INLINE void fifth_bits(__m512i q[8], __m512i bits)
{
    /* For byte j of each row, 8 bits from bit 4 k + j - 4 on: the wanted one is bit 4. A qword holds two rows. */
    const __m512i first = _mm512_set1_epi64(0x1f1e1d1cfffefdfc);
    const __m512i bit4 = _mm512_set1_epi8(16);
    for (int k = 0; k < 8; k++) {
        const __m512i from = _mm512_add_epi8(first, _mm512_set1_epi8((char)(4 * k)));
        const __m512i high = _mm512_multishift_epi64_epi8(from, bits);
        q[k] = _mm512_ternarylogic_epi32(q[k], high, bit4, 0xf8); /* q | (high & bit4) */
    }
}

VQ_INLINE void block_q8_0(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    const __m512i sign = _mm512_set1_epi8(-128);
    load_16x16(out->q, p + 2, stride);
    load_16x16(out->q + 4, p + 18, stride);
    for (int k = 0; k < 8; k++)
        out->q[k] = _mm512_xor_si512(out->q[k], sign);
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q4_0(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    nibbles(out->q, p + 2, stride);
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q4_1(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    const __m512i d_m = gather(p, offsets);
    nibbles(out->q, p + 4, stride);
    out->d = low_halves(d_m);
    out->m = high_halves(d_m);
}

VQ_INLINE void block_q5_0(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    nibbles(out->q, p + 6, stride);
    fifth_bits(out->q, gather(p + 2, offsets));
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q5_1(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    const __m512i d_m = gather(p, offsets);
    nibbles(out->q, p + 8, stride);
    fifth_bits(out->q, gather(p + 4, offsets));
    out->d = low_halves(d_m);
    out->m = high_halves(d_m);
}

VQ_INLINE void block_iq4_nl(record *out, const uint8_t *p, size_t stride, __m512i offsets)
{
    /* the 16 values plus 128 */
    const __m512i values =
        _mm512_broadcast_i32x4(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153,
                                             (char)166, (char)181, (char)197, (char)217, (char)241));
    nibbles(out->q, p + 2, stride);
    for (int k = 0; k < 8; k++)
        out->q[k] = _mm512_shuffle_epi8(values, out->q[k]);
    out->d = low_halves(gather(p, offsets));
}

/* Of the AVX2 tier; vectors of 512 bits gain nothing on blocks of 32. */
void vq_quantize_avx2(uint8_t *group, uint32_t n, uint32_t t, const float *x, uint32_t n_in);

extern const vq_unpack_fn vq_unpack_avx512[VQ_N_TYPES];
void vq_unpack_floats_avx512(vq_type type, float *out, const uint8_t *rows, size_t stride, uint32_t i, uint32_t n);
void vq_record_f32_avx512(float *out, const uint8_t *to, const vq_matmul_traits *traits);

#endif
