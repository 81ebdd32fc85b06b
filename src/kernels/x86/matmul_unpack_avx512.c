/* Unpacking of every weight type into records of 16 rows (matmul_tiles.h), and from there to f32. */
#include "kernels/x86/matmul_avx512.h"

#include <string.h>

enum { CODES = 8 * 64, ONE = CODES + 64, PAIR = CODES + 2 * 64, BOTH = CODES + 4 * 64 }; /* bytes of records */

VQ_INLINE void store(uint8_t *to, int at, __m512i x) { _mm512_storeu_si512(to + (size_t)at * 64, x); }

VQ_INLINE void store_word(uint8_t *to, int at, __m512 x) { _mm512_storeu_ps(to + CODES + (size_t)at * 64, x); }

VQ_INLINE void unpack_blocks(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n, block_fn block,
                             size_t block_bytes, bool minima)
{
    const __m512i offsets = row_offsets(stride);
    stream next = next_tile(rows, stride, b * block_bytes);
    rows += b * block_bytes;
    for (uint32_t i = 0; i < n; i++, rows += block_bytes, out += minima ? PAIR : ONE) {
        record r;
        fetch(&next, LANES * block_bytes);
        block(&r, rows, stride, offsets);
        for (int k = 0; k < 8; k++)
            store(out, k, r.q[k]);
        store_word(out, 0, r.d);
        if (minima)
            store_word(out, 1, r.m);
    }
}

static void unpack_q8_0(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_q8_0, 34, false);
}

static void unpack_q4_0(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_q4_0, 18, false);
}

static void unpack_q4_1(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_q4_1, 20, true);
}

static void unpack_q5_0(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_q5_0, 22, false);
}

static void unpack_q5_1(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_q5_1, 24, true);
}

static void unpack_iq4_nl(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    unpack_blocks(out, rows, stride, b, n, block_iq4_nl, 18, false);
}

/* Field of `bits` bits from bit `at` of each dword, as f32. */
VQ_INLINE __m512 field(__m512i x, unsigned at, int bits)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(x, at), _mm512_set1_epi32((1 << bits) - 1)));
}

/* For the loops below: shifts of bytes by a number of either sign that unrolling makes constant. */
VQ_INLINE __m512i shift_right(__m512i x, int n)
{
    return n >= 0 ? _mm512_srli_epi16(x, (unsigned)n) : _mm512_slli_epi16(x, (unsigned)-n);
}

/* (a >> n) & mask, bytes */
VQ_INLINE __m512i bits_of(__m512i a, int n, int mask)
{
    return _mm512_and_si512(shift_right(a, n), _mm512_set1_epi8((char)mask));
}

static void unpack_q2_k(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    const __m512i offsets = row_offsets(stride);
    const size_t bytes = BOTH;
    const uint8_t *p = rows + (size_t)(b / 8) * 84;
    stream next = next_tile(rows, stride, (size_t)(b / 8) * 84);
    for (uint32_t at = 0; at < n; at += 8, p += 84, out += 8 * bytes) {
        for (int half = 0; half < 2; half++) {
            for (int c = 0; c < 2; c++) {
                __m512i q[4];
                fetch(&next, LANES * 84 / 4);
                load_16x16(q, p + 16 + 32 * half + 16 * c, stride);
                for (int j = 0; j < 4; j++)
                    for (int k = 0; k < 4; k++)
                        store(out + (size_t)(4 * half + j) * bytes, 4 * c + k, bits_of(q[k], 2 * j, 3));
            }
        }
        const __m512i d_dmin = gather(p + 80, offsets);
        const __m512 d = low_halves(d_dmin);
        const __m512 minus_dmin = _mm512_xor_ps(high_halves(d_dmin), _mm512_set1_ps(-0.0f));
        __m512i scales[4];
        load_16x16(scales, p, stride);
        for (unsigned i = 0; i < 16; i++) {
            uint8_t *to = out + i / 2 * bytes;
            store_word(to, (int)(i % 2), _mm512_mul_ps(d, field(scales[i / 4], i % 4 * 8, 4)));
            store_word(to, (int)(2 + i % 2), _mm512_mul_ps(minus_dmin, field(scales[i / 4], i % 4 * 8 + 4, 4)));
        }
    }
}

static void unpack_q3_k(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    const __m512i offsets = row_offsets(stride), bit2 = _mm512_set1_epi8(4);
    const size_t bytes = PAIR;
    const uint8_t *p = rows + (size_t)(b / 8) * 110;
    stream next = next_tile(rows, stride, (size_t)(b / 8) * 110);
    for (uint32_t at = 0; at < n; at += 8, p += 110, out += 8 * bytes) {
        for (int c = 0; c < 2; c++) {
            __m512i high[4];
            fetch(&next, LANES * 110 / 6);
            load_16x16(high, p + 16 * c, stride);
            for (int half = 0; half < 2; half++) {
                __m512i q[4];
                fetch(&next, LANES * 110 / 6);
                load_16x16(q, p + 32 + 32 * half + 16 * c, stride);
                for (int j = 0; j < 4; j++) {
                    for (int k = 0; k < 4; k++) {
                        const __m512i low = bits_of(q[k], 2 * j, 3), h = shift_right(high[k], 4 * half + j - 2);
                        store(out + (size_t)(4 * half + j) * bytes, 4 * c + k,
                              _mm512_ternarylogic_epi32(low, h, bit2, 0xf8)); /* low | (h & bit2) */
                    }
                }
            }
        }
        const __m512 d = high_halves(gather(p + 106, offsets));
        const __m512i low03 = gather(p + 96, offsets), low47 = gather(p + 100, offsets);
        const __m512i high = gather(p + 104, offsets), mask = _mm512_set1_epi32(15);
        for (unsigned i = 0; i < 16; i++) {
            const __m512i low = _mm512_srli_epi32(i & 4 ? low47 : low03, i % 4 * 8 + i / 8 * 4);
            const __m512i top = _mm512_srli_epi32(high, i % 4 * 8 + i / 4 * 2);
            const __m512i top2 = _mm512_slli_epi32(_mm512_and_si512(top, _mm512_set1_epi32(3)), 4);
            const __m512i scale = _mm512_or_si512(_mm512_and_si512(low, mask), top2);
            store_word(out + i / 2 * bytes, (int)(i % 2),
                       _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(scale, _mm512_set1_epi32(32)))));
        }
    }
}

/* Scales and minima of the 8 blocks of Q4_K and Q5_K. */
VQ_INLINE void scales_k(uint8_t *out, size_t bytes, const uint8_t *p, __m512i offsets)
{
    const __m512i d_dmin = gather(p, offsets);
    const __m512 d = low_halves(d_dmin);
    const __m512 minus_dmin = _mm512_xor_ps(high_halves(d_dmin), _mm512_set1_ps(-0.0f));
    const __m512i s0 = gather(p + 4, offsets), s1 = gather(p + 8, offsets), s2 = gather(p + 12, offsets);
    const __m512i low6 = _mm512_set1_epi8(63), low4 = _mm512_set1_epi8(15), top2 = _mm512_set1_epi8(48);
    const __m512i scale[2] = {
        _mm512_and_si512(s0, low6),
        _mm512_or_si512(_mm512_and_si512(s2, low4), _mm512_and_si512(_mm512_srli_epi32(s0, 2), top2))};
    const __m512i min[2] = {_mm512_and_si512(s1, low6),
                            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(s2, 4), low4),
                                            _mm512_and_si512(_mm512_srli_epi32(s1, 2), top2))};
    for (unsigned i = 0; i < 8; i++) {
        store_word(out + i * bytes, 0, _mm512_mul_ps(d, field(scale[i / 4], i % 4 * 8, 8)));
        store_word(out + i * bytes, 1, _mm512_mul_ps(minus_dmin, field(min[i / 4], i % 4 * 8, 8)));
    }
}

static void unpack_q4_k(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    const __m512i offsets = row_offsets(stride);
    const size_t bytes = PAIR;
    const uint8_t *p = rows + (size_t)(b / 8) * 144;
    stream next = next_tile(rows, stride, (size_t)(b / 8) * 144);
    for (uint32_t at = 0; at < n; at += 8, p += 144, out += 8 * bytes) {
        for (int pair = 0; pair < 4; pair++) {
            for (int c = 0; c < 2; c++) {
                __m512i q[4];
                fetch(&next, LANES * 144 / 8);
                load_16x16(q, p + 16 + 32 * pair + 16 * c, stride);
                for (int k = 0; k < 4; k++) {
                    store(out + (size_t)(2 * pair) * bytes, 4 * c + k, bits_of(q[k], 0, 15));
                    store(out + (size_t)(2 * pair + 1) * bytes, 4 * c + k, bits_of(q[k], 4, 15));
                }
            }
        }
        scales_k(out, bytes, p, offsets);
    }
}

static void unpack_q5_k(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    const __m512i offsets = row_offsets(stride), bit4 = _mm512_set1_epi8(16);
    const size_t bytes = PAIR;
    const uint8_t *p = rows + (size_t)(b / 8) * 176;
    stream next = next_tile(rows, stride, (size_t)(b / 8) * 176);
    for (uint32_t at = 0; at < n; at += 8, p += 176, out += 8 * bytes) {
        for (int c = 0; c < 2; c++) {
            __m512i high[4];
            fetch(&next, LANES * 176 / 10);
            load_16x16(high, p + 16 + 16 * c, stride);
            for (int pair = 0; pair < 4; pair++) {
                __m512i q[4];
                fetch(&next, LANES * 176 / 10);
                load_16x16(q, p + 48 + 32 * pair + 16 * c, stride);
                for (int j = 0; j < 2; j++) {
                    for (int k = 0; k < 4; k++) {
                        const __m512i low = bits_of(q[k], 4 * j, 15), h = shift_right(high[k], 2 * pair + j - 4);
                        store(out + (size_t)(2 * pair + j) * bytes, 4 * c + k,
                              _mm512_ternarylogic_epi32(low, h, bit4, 0xf8)); /* low | (h & bit4) */
                    }
                }
            }
        }
        scales_k(out, bytes, p, offsets);
    }
}

static void unpack_q6_k(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n)
{
    const __m512i offsets = row_offsets(stride);
    const size_t bytes = PAIR;
    const uint8_t *p = rows + (size_t)(b / 8) * 210;
    stream next = next_tile(rows, stride, (size_t)(b / 8) * 210);
    for (uint32_t at = 0; at < n; at += 8, p += 210, out += 8 * bytes) {
        for (int half = 0; half < 2; half++) {
            for (int c = 0; c < 2; c++) {
                __m512i low[2][4], high[4];
                fetch(&next, LANES * 210 / 12);
                load_16x16(low[0], p + 64 * half + 16 * c, stride);
                fetch(&next, LANES * 210 / 12);
                load_16x16(low[1], p + 64 * half + 32 + 16 * c, stride);
                fetch(&next, LANES * 210 / 12);
                load_16x16(high, p + 128 + 32 * half + 16 * c, stride);
                for (int j = 0; j < 4; j++)
                    for (int k = 0; k < 4; k++)
                        store(out + (size_t)(4 * half + j) * bytes, 4 * c + k,
                              _mm512_or_si512(bits_of(low[j % 2][k], j / 2 * 4, 15), bits_of(high[k], 2 * j - 4, 48)));
            }
        }
        const __m512 d = high_halves(gather(p + 206, offsets));
        __m512i scales[4];
        load_16x16(scales, p + 192, stride);
        for (unsigned i = 0; i < 16; i++) {
            const __m512i scale = _mm512_srai_epi32(_mm512_slli_epi32(scales[i / 4], 24 - i % 4 * 8), 24);
            store_word(out + i / 2 * bytes, (int)(i % 2), _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
        }
    }
}

const vq_unpack_fn vq_unpack_avx512[VQ_N_TYPES] = {
    [VQ_TYPE_Q8_0] = unpack_q8_0, [VQ_TYPE_Q4_0] = unpack_q4_0, [VQ_TYPE_Q4_1] = unpack_q4_1,
    [VQ_TYPE_Q5_0] = unpack_q5_0, [VQ_TYPE_Q5_1] = unpack_q5_1, [VQ_TYPE_IQ4_NL] = unpack_iq4_nl,
    [VQ_TYPE_Q2_K] = unpack_q2_k, [VQ_TYPE_Q3_K] = unpack_q3_k, [VQ_TYPE_Q4_K] = unpack_q4_k,
    [VQ_TYPE_Q5_K] = unpack_q5_k, [VQ_TYPE_Q6_K] = unpack_q6_k,
};

void vq_record_f32_avx512(float *out, const uint8_t *to, const vq_matmul_traits *traits)
{
    const __m512i byte = _mm512_set1_epi32(255), offset = _mm512_set1_epi32(traits->offset);
    const float *words = (const float *)(const void *)(to + CODES);
    const int n_scales = traits->halves ? 2 : 1;
    for (int k = 0; k < 8; k++) {
        const int h = traits->halves ? k / 4 : 0;
        const __m512i codes = _mm512_loadu_si512(to + (size_t)k * 64);
        const __m512 d = _mm512_loadu_ps(words + (size_t)h * LANES);
        const __m512 m = traits->minima ? _mm512_loadu_ps(words + (size_t)(n_scales + h) * LANES) : _mm512_setzero_ps();
        for (unsigned j = 0; j < 4; j++) {
            const __m512i code = _mm512_and_si512(_mm512_srli_epi32(codes, j * 8), byte);
            const __m512 q = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, offset));
            _mm512_storeu_ps(out + (size_t)(4 * k + (int)j) * LANES, _mm512_add_ps(_mm512_mul_ps(q, d), m));
        }
    }
}

/* The last values of rows of floats, fewer than a load. */
static void tail_f32(vq_type type, float *out, const uint8_t *rows, size_t stride, uint32_t i)
{
    for (size_t r = 0; r < LANES; r++) {
        uint32_t bits = 0;
        if (type == VQ_TYPE_F32) {
            memcpy(&bits, rows + r * stride + (size_t)i * 4, 4);
            memcpy(&out[r], &bits, 4);
            continue;
        }
        memcpy(&bits, rows + r * stride + (size_t)i * 2, 2);
        if (type == VQ_TYPE_F16) {
            out[r] = _cvtsh_ss((uint16_t)bits);
        } else {
            bits <<= 16;
            memcpy(&out[r], &bits, 4);
        }
    }
}

void vq_unpack_floats_avx512(vq_type type, float *out, const uint8_t *rows, size_t stride, uint32_t i, uint32_t n)
{
    const uint32_t each = type == VQ_TYPE_F32 ? 4 : 8, end = i + n;
    for (; i + each <= end; i += each, out += (size_t)each * LANES) {
        __m512i v[4];
        load_16x16(v, rows + (size_t)i * (16 / each), stride);
        for (int k = 0; k < 4; k++) {
            if (type == VQ_TYPE_F32) {
                _mm512_storeu_si512(out + k * LANES, v[k]);
            } else if (type == VQ_TYPE_F16) {
                _mm512_storeu_ps(out + 2 * k * LANES, low_halves(v[k]));
                _mm512_storeu_ps(out + (2 * k + 1) * LANES, high_halves(v[k]));
            } else {
                _mm512_storeu_si512(out + 2 * k * LANES, _mm512_slli_epi32(v[k], 16));
                _mm512_storeu_si512(out + (2 * k + 1) * LANES, _mm512_and_si512(v[k], _mm512_set1_epi32(-65536)));
            }
        }
    }
    for (; i < end; i++, out += LANES)
        tail_f32(type, out, rows, stride, i);
}
