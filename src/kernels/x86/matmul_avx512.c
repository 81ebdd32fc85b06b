/* The matrix product with AVX-512 VNNI: 16 rows of weights in the lanes of a register.
 *
 * A prompt unpacks a tile of 32 rows once, into scratch that stays in L1, and multiplies it with groups of 6 tokens: 12
 * integer sums, 12 float accumulators and what feeds them are the 32 registers.  Of each 12 vector operations 8 are
 * vpdpbusd.  One token unpacks in registers and multiplies at once; it is bound by memory, and fetches the next tile
 * ahead (the 16 rows are read side by side, in an order that the hardware does not foresee). */
#include "kernels/x86/matmul_avx512.h"

#include <string.h>

enum {
    BLOCK = VQ_MATMUL_BLOCK,
    GROUP = VQ_MATMUL_GROUP,
    TOKEN_BYTES = VQ_MATMUL_TOKEN_BYTES,
    SIDE = 2, /* tiles side by side */
    CODES = 8 * 64,
};

VQ_INLINE __m512i broadcast4(const void *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

VQ_INLINE __m512 broadcast(const void *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_ps(x);
}

/* acc[g][t] += the records w[g] times a group of n tokens.  All inner loops unroll; arrays are registers. */
VQ_INLINE void multiply(__m512 acc[SIDE][GROUP], const vq_tile *tile, uint32_t n, bool halves, bool minima)
{
    const int n_parts = halves ? 2 : 1, n_dwords = halves ? 4 : 8;
    const size_t bytes = CODES + (size_t)n_parts * (minima ? 128 : 64);
    const uint8_t *w0 = tile->w[0], *w1 = tile->w[1], *a = tile->group;
    const __m512i shift = _mm512_set1_epi32((int)tile->shift);
    for (uint32_t b = 0; b < tile->n; b++, w0 += bytes, w1 += bytes, a += n * TOKEN_BYTES) {
        const uint8_t *words = a + n * BLOCK;
        for (int h = 0; h < n_parts; h++) {
            __m512i sum[SIDE][GROUP];
            for (uint32_t t = 0; t < n; t++) {
                if (minima) {
                    sum[0][t] = _mm512_setzero_si512();
                } else {
                    __m512i minus = broadcast4(words + (2 * n + t) * 4);
                    if (halves) {
                        const __m512i minus0 = broadcast4(words + (3 * n + t) * 4);
                        minus = h ? _mm512_sub_epi32(minus, minus0) : minus0;
                    }
                    sum[0][t] = _mm512_sllv_epi32(minus, shift);
                }
                sum[1][t] = sum[0][t];
            }
            for (int k = h * n_dwords; k < (h + 1) * n_dwords; k++) {
                const __m512i q0 = _mm512_loadu_si512(w0 + k * 64), q1 = _mm512_loadu_si512(w1 + k * 64);
                for (uint32_t t = 0; t < n; t++) {
                    const __m512i x = broadcast4(a + t * BLOCK + (uint32_t)k * 4);
                    sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], q0, x);
                    sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], q1, x);
                }
            }
            const __m512 d0 = _mm512_loadu_ps(w0 + CODES + h * 64);
            const __m512 d1 = _mm512_loadu_ps(w1 + CODES + h * 64);
            for (uint32_t t = 0; t < n; t++) {
                const __m512 d = broadcast(words + t * 4);
                acc[0][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0][t]), _mm512_mul_ps(d0, d), acc[0][t]);
                acc[1][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][t]), _mm512_mul_ps(d1, d), acc[1][t]);
            }
            if (!minima)
                continue;
            const __m512 m0 = _mm512_loadu_ps(w0 + CODES + (n_parts + h) * 64);
            const __m512 m1 = _mm512_loadu_ps(w1 + CODES + (n_parts + h) * 64);
            for (uint32_t t = 0; t < n; t++) {
                __m512 d_sum = broadcast(words + (n + t) * 4);
                if (halves) {
                    const __m512i minus0 = broadcast4(words + (3 * n + t) * 4);
                    const __m512i sums = h ? _mm512_sub_epi32(minus0, broadcast4(words + (2 * n + t) * 4))
                                           : _mm512_sub_epi32(_mm512_setzero_si512(), minus0);
                    d_sum = _mm512_mul_ps(broadcast(words + t * 4), _mm512_cvtepi32_ps(sums));
                }
                acc[0][t] = _mm512_fmadd_ps(m0, d_sum, acc[0][t]);
                acc[1][t] = _mm512_fmadd_ps(m1, d_sum, acc[1][t]);
            }
        }
    }
}

VQ_INLINE __mmask16 own_lanes(uint32_t skip) { return skip < LANES ? (__mmask16)(0xffffu << skip) : 0; }

VQ_INLINE void load_acc(__m512 acc[SIDE][GROUP], const vq_tile *tile, uint32_t n)
{
    for (int g = 0; g < SIDE; g++)
        for (uint32_t t = 0; t < n; t++)
            acc[g][t] = tile->first
                            ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(own_lanes(tile->skip[g]), tile->out[g] + t * tile->out_stride);
}

VQ_INLINE void store_acc(__m512 acc[SIDE][GROUP], const vq_tile *tile, uint32_t n)
{
    for (int g = 0; g < SIDE; g++)
        for (uint32_t t = 0; t < n; t++)
            _mm512_mask_storeu_ps(tile->out[g] + t * tile->out_stride, own_lanes(tile->skip[g]), acc[g][t]);
}

VQ_INLINE void tile_int8(const vq_tile *tile, uint32_t n, bool halves, bool minima)
{
    __m512 acc[SIDE][GROUP];
    load_acc(acc, tile, n);
    multiply(acc, tile, n, halves, minima);
    store_acc(acc, tile, n);
}

VQ_INLINE void tile_f32(const vq_tile *tile, uint32_t n)
{
    const float *w0 = tile->w[0], *w1 = tile->w[1], *x = tile->group;
    __m512 acc[SIDE][GROUP];
    load_acc(acc, tile, n);
    for (uint32_t i = 0; i < tile->n; i++, w0 += LANES, w1 += LANES, x += n) {
        const __m512 v0 = _mm512_loadu_ps(w0), v1 = _mm512_loadu_ps(w1);
        for (uint32_t t = 0; t < n; t++) {
            acc[0][t] = _mm512_fmadd_ps(v0, _mm512_set1_ps(x[t]), acc[0][t]);
            acc[1][t] = _mm512_fmadd_ps(v1, _mm512_set1_ps(x[t]), acc[1][t]);
        }
    }
    store_acc(acc, tile, n);
}

VQ_INLINE void tile_int8_n(const vq_tile *tile, bool halves, bool minima)
{
    switch (tile->n_tokens) {
    case 1: tile_int8(tile, 1, halves, minima); break;
    case 2: tile_int8(tile, 2, halves, minima); break;
    case 3: tile_int8(tile, 3, halves, minima); break;
    case 4: tile_int8(tile, 4, halves, minima); break;
    case 5: tile_int8(tile, 5, halves, minima); break;
    default: tile_int8(tile, 6, halves, minima); break;
    }
}

static void tile_one(const vq_tile *tile) { tile_int8_n(tile, false, false); }
static void tile_minima(const vq_tile *tile) { tile_int8_n(tile, false, true); }
static void tile_halves(const vq_tile *tile) { tile_int8_n(tile, true, false); }
static void tile_both(const vq_tile *tile) { tile_int8_n(tile, true, true); }

static void tile_floats(const vq_tile *tile)
{
    switch (tile->n_tokens) {
    case 1: tile_f32(tile, 1); break;
    case 2: tile_f32(tile, 2); break;
    case 3: tile_f32(tile, 3); break;
    case 4: tile_f32(tile, 4); break;
    case 5: tile_f32(tile, 5); break;
    default: tile_f32(tile, 6); break;
    }
}

/* One record times one token. */
VQ_INLINE __m512 multiply_one(__m512 acc, const record *r, const uint8_t *a, bool minima, int shift)
{
    __m512i sum0 = _mm512_setzero_si512(), sum1 = sum0;
    if (!minima)
        sum0 = _mm512_slli_epi32(broadcast4(a + BLOCK + 8), (unsigned)shift);
    for (int k = 0; k < 4; k++) {
        sum0 = _mm512_dpbusd_epi32(sum0, r->q[k], broadcast4(a + k * 4));
        sum1 = _mm512_dpbusd_epi32(sum1, r->q[k + 4], broadcast4(a + 16 + k * 4));
    }
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sum0, sum1));
    acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(r->d, broadcast(a + BLOCK)), acc);
    if (minima)
        acc = _mm512_fmadd_ps(r->m, broadcast(a + BLOCK + 4), acc);
    return acc;
}

/* All rows of a part times one token, types with blocks of 32. */
VQ_INLINE void one_token(const vq_matmul_part *part, block_fn block, size_t block_bytes, bool minima, int shift)
{
    uint32_t n_tokens;
    const uint8_t *group = vq_matmul_group(part->act, part->token, &n_tokens);
    const size_t stride = vq_matmul_row_bytes(part->w->type, part->w->n_in);
    const __m512i offsets = row_offsets(stride);
    for (uint32_t row = part->row; row < part->row_end; row += LANES) {
        const uint8_t *p = (const uint8_t *)part->w->data + vq_tile_row(part, row, LANES) * stride, *a = group;
        stream next = next_tile(p, stride, 0);
        __m512 acc = _mm512_setzero_ps();
        for (uint32_t b = 0; b < part->act->n_blocks; b++) {
            record r;
            fetch(&next, LANES * block_bytes);
            block(&r, p, stride, offsets);
            acc = multiply_one(acc, &r, a, minima, shift);
            p += block_bytes;
            a += TOKEN_BYTES;
        }
        const uint32_t at = vq_tile_row(part, row, LANES);
        _mm512_mask_storeu_ps(part->out + at, own_lanes(row - at), acc);
    }
}

static void one_q8_0(const vq_matmul_part *part) { one_token(part, block_q8_0, 34, false, 7); }
static void one_q4_0(const vq_matmul_part *part) { one_token(part, block_q4_0, 18, false, 3); }
static void one_q4_1(const vq_matmul_part *part) { one_token(part, block_q4_1, 20, true, 0); }
static void one_q5_0(const vq_matmul_part *part) { one_token(part, block_q5_0, 22, false, 4); }
static void one_q5_1(const vq_matmul_part *part) { one_token(part, block_q5_1, 24, true, 0); }
static void one_iq4_nl(const vq_matmul_part *part) { one_token(part, block_iq4_nl, 18, false, 7); }

static void run(const vq_matmul_part *part, void *scratch)
{
    static const vq_tiling tiling = {
        .lanes = LANES,
        .side_int8 = SIDE,
        .side_f32 = SIDE,
        .unpack = vq_unpack_avx512,
        .unpack_floats = vq_unpack_floats_avx512,
        .record_f32 = vq_record_f32_avx512,
        .multiply = {[VQ_TYPE_Q8_0] = tile_one,
                     [VQ_TYPE_Q4_0] = tile_one,
                     [VQ_TYPE_Q4_1] = tile_minima,
                     [VQ_TYPE_Q5_0] = tile_one,
                     [VQ_TYPE_Q5_1] = tile_minima,
                     [VQ_TYPE_IQ4_NL] = tile_one,
                     [VQ_TYPE_Q2_K] = tile_both,
                     [VQ_TYPE_Q3_K] = tile_halves,
                     [VQ_TYPE_Q4_K] = tile_minima,
                     [VQ_TYPE_Q5_K] = tile_minima,
                     [VQ_TYPE_Q6_K] = tile_halves},
        .multiply_f32 = tile_floats,
    };
    static void (*const ones[VQ_N_TYPES])(const vq_matmul_part *) = {
        [VQ_TYPE_Q8_0] = one_q8_0, [VQ_TYPE_Q4_0] = one_q4_0, [VQ_TYPE_Q4_1] = one_q4_1,
        [VQ_TYPE_Q5_0] = one_q5_0, [VQ_TYPE_Q5_1] = one_q5_1, [VQ_TYPE_IQ4_NL] = one_iq4_nl,
    };
    if (!vq_tiles_fit(part))
        vq_matmul_tier_c.run(part, scratch);
    else if (part->act->n_tokens == 1 && part->act->kind != VQ_ACT_EXACT && ones[part->w->type])
        ones[part->w->type](part);
    else
        vq_tiles_run(&tiling, part, scratch);
}

const vq_matmul_tier vq_matmul_tier_avx512 = {.quantize = vq_quantize_avx2, .run = run};
