/* Weights as the AVX2 tier reads them: 8 rows in the 8 dwords of a register, into the records of matmul_tiles.h. */
#ifndef VQ_KERNELS_X86_MATMUL_AVX2_H
#define VQ_KERNELS_X86_MATMUL_AVX2_H

#include <immintrin.h>

#include "kernels/matmul_tiles.h"

enum {
    LANES = 8,
    CODES = 8 * 32,
    ONE = CODES + 32,
    PAIR = CODES + 2 * 32,
    BOTH = CODES + 4 * 32
}; /* bytes of records */

#define VQ_INLINE static inline __attribute__((always_inline))

/* out[k]: dword k of the 16 bytes that begin each of 8 rows. */
VQ_INLINE void load_8x16(__m256i out[4], const uint8_t *p, size_t stride)
{
    __m256i v[4];
    for (int i = 0; i < 4; i++, p += stride) {
        v[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
        v[i] = _mm256_inserti128_si256(v[i], _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
    }
    const __m256i low01 = _mm256_unpacklo_epi32(v[0], v[1]), high01 = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i low23 = _mm256_unpacklo_epi32(v[2], v[3]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(low01, low23);
    out[1] = _mm256_unpackhi_epi64(low01, low23);
    out[2] = _mm256_unpacklo_epi64(high01, high23);
    out[3] = _mm256_unpackhi_epi64(high01, high23);
}

VQ_INLINE __m256i row_offsets(size_t stride)
{
    return _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)stride));
}

VQ_INLINE __m256i gather(const uint8_t *p, __m256i offsets)
{
    return _mm256_i32gather_epi32((const int *)(const void *)p, offsets, 1);
}

/* The f16 in the low and in the high half of each dword. */
VQ_INLINE __m256 low_halves(__m256i x)
{
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

VQ_INLINE __m256 high_halves(__m256i x) { return low_halves(_mm256_srli_epi32(x, 16)); }

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
    __m256i q[8];
    __m256 d, m;
} record;

typedef void (*block_fn)(record *out, const uint8_t *p, size_t stride, __m256i offsets);

VQ_INLINE void nibbles(__m256i q[8], const uint8_t *p, size_t stride)
{
    const __m256i mask = _mm256_set1_epi8(15);
    load_8x16(q, p, stride);
    for (int k = 0; k < 4; k++) {
        q[k + 4] = _mm256_and_si256(_mm256_srli_epi16(q[k], 4), mask);
        q[k] = _mm256_and_si256(q[k], mask);
    }
}

/* Adds 16 to value i where bit i of the row's dword is set. */
VQ_INLINE void fifth_bits(__m256i q[8], __m256i bits)
{
    const __m256i bit4 = _mm256_set1_epi8(16);
    for (int k = 0; k < 8; k++) {
        /* byte k / 2 of each row, four times, and of it bits 4 (k % 2) .. + 3 */
        const __m256i spread = _mm256_add_epi8(
            _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c),
            _mm256_set1_epi8((char)(k / 2)));
        const __m256i each = _mm256_set1_epi32(k % 2 ? (int)0x80402010 : 0x08040201);
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, spread), each), each);
        q[k] = _mm256_or_si256(q[k], _mm256_and_si256(set, bit4));
    }
}

VQ_INLINE void block_q8_0(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    const __m256i sign = _mm256_set1_epi8(-128);
    load_8x16(out->q, p + 2, stride);
    load_8x16(out->q + 4, p + 18, stride);
    for (int k = 0; k < 8; k++)
        out->q[k] = _mm256_xor_si256(out->q[k], sign);
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q4_0(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    nibbles(out->q, p + 2, stride);
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q4_1(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    const __m256i d_m = gather(p, offsets);
    nibbles(out->q, p + 4, stride);
    out->d = low_halves(d_m);
    out->m = high_halves(d_m);
}

VQ_INLINE void block_q5_0(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    nibbles(out->q, p + 6, stride);
    fifth_bits(out->q, gather(p + 2, offsets));
    out->d = low_halves(gather(p, offsets));
}

VQ_INLINE void block_q5_1(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    const __m256i d_m = gather(p, offsets);
    nibbles(out->q, p + 8, stride);
    fifth_bits(out->q, gather(p + 4, offsets));
    out->d = low_halves(d_m);
    out->m = high_halves(d_m);
}

VQ_INLINE void block_iq4_nl(record *out, const uint8_t *p, size_t stride, __m256i offsets)
{
    /* the 16 values plus 128 */
    const __m256i values =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153,
                                                  (char)166, (char)181, (char)197, (char)217, (char)241));
    nibbles(out->q, p + 2, stride);
    for (int k = 0; k < 8; k++)
        out->q[k] = _mm256_shuffle_epi8(values, out->q[k]);
    out->d = low_halves(gather(p, offsets));
}

/* Also of the AVX-512 tier. */
void vq_quantize_avx2(uint8_t *group, uint32_t n, uint32_t t, const float *x, uint32_t n_in);

extern const vq_unpack_fn vq_unpack_avx2[VQ_N_TYPES];
void vq_unpack_floats_avx2(vq_type type, float *out, const uint8_t *rows, size_t stride, uint32_t i, uint32_t n);
void vq_record_f32_avx2(float *out, const uint8_t *record, const vq_matmul_traits *traits);

#endif
