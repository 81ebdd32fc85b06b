/* The matrix product with AVX2: 8 rows of weights in the dwords of a register.
 *
 * vpmaddubsw adds 2 products of an unsigned and a signed byte in 16 bits, saturating.  With codes up to 15, 31 and 63
 * the sums of 8, 4 and 2 of them still fit (8 * 2 * 15 * 127 = 30480), and are widened together.  Codes of 8 bits are
 * multiplied as |w| times (sign of w) a, one at a time: at most 2 * 128 * 127. */
#include "kernels/x86/matmul_avx2.h"

#include <string.h>

enum {
    BLOCK = VQ_MATMUL_BLOCK,
    GROUP = VQ_MATMUL_GROUP,
    TOKEN_BYTES = VQ_MATMUL_TOKEN_BYTES,
    SIDE_F32 = 2, /* tiles side by side */
};

/* How a weight type is multiplied; constant wherever it is used. */
typedef struct shape {
    bool halves, minima;
    bool wide; /* 8-bit codes, stored as w + 128 */
    int steps; /* dwords whose products are added in 16 bits */
    int shift; /* log2 of the offset of narrow codes */
} shape;

VQ_INLINE __m256i broadcast4(const void *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

VQ_INLINE __m256 broadcast(const void *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_ps(x);
}

/* The sums over dwords [first, end) of codes times those of each of n tokens; from -offset sum(a) on. */
VQ_INLINE void dots(__m256i sum[GROUP], const __m256i *q, const uint8_t *a, uint32_t n, int first, int end, shape s)
{
    for (int k = first; k < end; k += s.steps) {
        __m256i sum16[GROUP];
        for (int i = k; i < k + s.steps; i++) {
            const __m256i w = s.wide ? _mm256_xor_si256(q[i], _mm256_set1_epi8(-128)) : q[i];
            const __m256i size = s.wide ? _mm256_abs_epi8(w) : w;
            for (uint32_t t = 0; t < n; t++) {
                __m256i x = broadcast4(a + t * BLOCK + (uint32_t)i * 4);
                if (s.wide)
                    x = _mm256_sign_epi8(x, w);
                const __m256i product = _mm256_maddubs_epi16(size, x);
                sum16[t] = i > k ? _mm256_add_epi16(sum16[t], product) : product;
            }
        }
        for (uint32_t t = 0; t < n; t++)
            sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(sum16[t], _mm256_set1_epi16(1)));
    }
}

/* acc[t] += a record (codes q, scales, minima) times each of n tokens.  Loops unroll; arrays are registers. */
VQ_INLINE void multiply_record(__m256 *acc, const __m256i *q, const __m256 *d_w, const __m256 *m_w, const uint8_t *a,
                               uint32_t n, shape s)
{
    const uint8_t *words = a + n * BLOCK;
    const int n_parts = s.halves ? 2 : 1, n_dwords = s.halves ? 4 : 8;
    for (int h = 0; h < n_parts; h++) {
        __m256i sum[GROUP];
        for (uint32_t t = 0; t < n; t++) {
            if (s.minima || s.wide) {
                sum[t] = _mm256_setzero_si256();
                continue;
            }
            __m256i minus = broadcast4(words + (2 * n + t) * 4);
            if (s.halves) {
                const __m256i minus0 = broadcast4(words + (3 * n + t) * 4);
                minus = h ? _mm256_sub_epi32(minus, minus0) : minus0;
            }
            sum[t] = _mm256_slli_epi32(minus, s.shift);
        }
        dots(sum, q, a, n, h * n_dwords, (h + 1) * n_dwords, s);
        for (uint32_t t = 0; t < n; t++)
            acc[t] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), _mm256_mul_ps(d_w[h], broadcast(words + t * 4)), acc[t]);
        if (!s.minima)
            continue;
        for (uint32_t t = 0; t < n; t++) {
            __m256 d_sum = broadcast(words + (n + t) * 4);
            if (s.halves) {
                const __m256i minus0 = broadcast4(words + (3 * n + t) * 4);
                const __m256i sums = h ? _mm256_sub_epi32(minus0, broadcast4(words + (2 * n + t) * 4))
                                       : _mm256_sub_epi32(_mm256_setzero_si256(), minus0);
                d_sum = _mm256_mul_ps(broadcast(words + t * 4), _mm256_cvtepi32_ps(sums));
            }
            acc[t] = _mm256_fmadd_ps(m_w[h], d_sum, acc[t]);
        }
    }
}

VQ_INLINE __m256i own_lanes(uint32_t skip)
{
    return _mm256_cmpgt_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)skip - 1));
}

VQ_INLINE __m256 load_acc(const vq_tile *tile, int g, uint32_t t)
{
    return tile->first ? _mm256_setzero_ps()
                       : _mm256_maskload_ps(tile->out[g] + t * tile->out_stride, own_lanes(tile->skip[g]));
}

VQ_INLINE void store_acc(const vq_tile *tile, int g, uint32_t t, __m256 acc)
{
    _mm256_maskstore_ps(tile->out[g] + t * tile->out_stride, own_lanes(tile->skip[g]), acc);
}

VQ_INLINE void tile_int8_n(const vq_tile *tile, uint32_t n, shape s)
{
    const int n_parts = s.halves ? 2 : 1;
    const size_t bytes = CODES + (size_t)n_parts * (s.minima ? 64 : 32);
    const uint8_t *w = tile->w[0], *a = tile->group;
    __m256 acc[GROUP];
    for (uint32_t t = 0; t < n; t++)
        acc[t] = load_acc(tile, 0, t);
    for (uint32_t b = 0; b < tile->n; b++, w += bytes, a += n * TOKEN_BYTES) {
        /* records are 32-byte aligned */
        const __m256i *q = (const __m256i *)(const void *)w;
        const __m256 *d = (const __m256 *)(const void *)(w + CODES), *m = d + n_parts;
        multiply_record(acc, q, d, m, a, n, s);
    }
    for (uint32_t t = 0; t < n; t++)
        store_acc(tile, 0, t, acc[t]);
}

VQ_INLINE void tile_int8(const vq_tile *tile, shape s)
{
    switch (tile->n_tokens) {
    case 1: tile_int8_n(tile, 1, s); break;
    case 2: tile_int8_n(tile, 2, s); break;
    case 3: tile_int8_n(tile, 3, s); break;
    case 4: tile_int8_n(tile, 4, s); break;
    case 5: tile_int8_n(tile, 5, s); break;
    default: tile_int8_n(tile, 6, s); break;
    }
}

#define SHAPE_BYTES ((shape){.wide = true, .steps = 1})
#define SHAPE_Q4 ((shape){.steps = 8, .shift = 3})
#define SHAPE_Q4_MINIMA ((shape){.steps = 8, .minima = true})
#define SHAPE_Q5 ((shape){.steps = 4, .shift = 4})
#define SHAPE_Q5_MINIMA ((shape){.steps = 4, .minima = true})
#define SHAPE_Q2_K ((shape){.steps = 4, .minima = true, .halves = true})
#define SHAPE_Q3_K ((shape){.steps = 4, .shift = 2, .halves = true})
#define SHAPE_Q6_K ((shape){.steps = 2, .shift = 5, .halves = true})

static void tile_bytes(const vq_tile *tile) { tile_int8(tile, SHAPE_BYTES); }
static void tile_q4(const vq_tile *tile) { tile_int8(tile, SHAPE_Q4); }
static void tile_q4_minima(const vq_tile *tile) { tile_int8(tile, SHAPE_Q4_MINIMA); }
static void tile_q5(const vq_tile *tile) { tile_int8(tile, SHAPE_Q5); }
static void tile_q5_minima(const vq_tile *tile) { tile_int8(tile, SHAPE_Q5_MINIMA); }
static void tile_q2_k(const vq_tile *tile) { tile_int8(tile, SHAPE_Q2_K); }
static void tile_q3_k(const vq_tile *tile) { tile_int8(tile, SHAPE_Q3_K); }
static void tile_q6_k(const vq_tile *tile) { tile_int8(tile, SHAPE_Q6_K); }

VQ_INLINE void tile_f32_n(const vq_tile *tile, uint32_t n)
{
    const float *w0 = tile->w[0], *w1 = tile->w[1], *x = tile->group;
    __m256 acc[SIDE_F32][GROUP];
    for (int g = 0; g < SIDE_F32; g++)
        for (uint32_t t = 0; t < n; t++)
            acc[g][t] = load_acc(tile, g, t);
    for (uint32_t i = 0; i < tile->n; i++, w0 += LANES, w1 += LANES, x += n) {
        const __m256 v0 = _mm256_loadu_ps(w0), v1 = _mm256_loadu_ps(w1);
        for (uint32_t t = 0; t < n; t++) {
            const __m256 v = _mm256_set1_ps(x[t]);
            acc[0][t] = _mm256_fmadd_ps(v0, v, acc[0][t]);
            acc[1][t] = _mm256_fmadd_ps(v1, v, acc[1][t]);
        }
    }
    for (int g = 0; g < SIDE_F32; g++)
        for (uint32_t t = 0; t < n; t++)
            store_acc(tile, g, t, acc[g][t]);
}

static void tile_f32(const vq_tile *tile)
{
    switch (tile->n_tokens) {
    case 1: tile_f32_n(tile, 1); break;
    case 2: tile_f32_n(tile, 2); break;
    case 3: tile_f32_n(tile, 3); break;
    case 4: tile_f32_n(tile, 4); break;
    case 5: tile_f32_n(tile, 5); break;
    default: tile_f32_n(tile, 6); break;
    }
}

/* All rows of a part times one token, types with blocks of 32. */
VQ_INLINE void one_token(const vq_matmul_part *part, block_fn block, size_t block_bytes, shape s)
{
    const uint8_t *group = part->act->groups;
    const size_t stride = vq_matmul_row_bytes(part->w->type, part->w->n_in);
    const __m256i offsets = row_offsets(stride);
    for (uint32_t row = part->row; row < part->row_end; row += LANES) {
        const uint32_t at = vq_tile_row(part, row, LANES);
        const uint8_t *p = (const uint8_t *)part->w->data + at * stride, *a = group;
        stream next = next_tile(p, stride, 0);
        __m256 acc = _mm256_setzero_ps();
        for (uint32_t b = 0; b < part->act->n_blocks; b++) {
            record r;
            fetch(&next, LANES * block_bytes);
            block(&r, p, stride, offsets);
            multiply_record(&acc, r.q, &r.d, &r.m, a, 1, s);
            p += block_bytes;
            a += TOKEN_BYTES;
        }
        _mm256_maskstore_ps(part->out + at, own_lanes(row - at), acc);
    }
}

static void one_q8_0(const vq_matmul_part *part) { one_token(part, block_q8_0, 34, SHAPE_BYTES); }
static void one_q4_0(const vq_matmul_part *part) { one_token(part, block_q4_0, 18, SHAPE_Q4); }
static void one_q4_1(const vq_matmul_part *part) { one_token(part, block_q4_1, 20, SHAPE_Q4_MINIMA); }
static void one_q5_0(const vq_matmul_part *part) { one_token(part, block_q5_0, 22, SHAPE_Q5); }
static void one_q5_1(const vq_matmul_part *part) { one_token(part, block_q5_1, 24, SHAPE_Q5_MINIMA); }
static void one_iq4_nl(const vq_matmul_part *part) { one_token(part, block_iq4_nl, 18, SHAPE_BYTES); }

static void run(const vq_matmul_part *part, void *scratch)
{
    static const vq_tiling tiling = {
        .lanes = LANES,
        .side_int8 = 1,
        .side_f32 = SIDE_F32,
        .unpack = vq_unpack_avx2,
        .unpack_floats = vq_unpack_floats_avx2,
        .record_f32 = vq_record_f32_avx2,
        .multiply = {[VQ_TYPE_Q8_0] = tile_bytes,
                     [VQ_TYPE_Q4_0] = tile_q4,
                     [VQ_TYPE_Q4_1] = tile_q4_minima,
                     [VQ_TYPE_Q5_0] = tile_q5,
                     [VQ_TYPE_Q5_1] = tile_q5_minima,
                     [VQ_TYPE_IQ4_NL] = tile_bytes,
                     [VQ_TYPE_Q2_K] = tile_q2_k,
                     [VQ_TYPE_Q3_K] = tile_q3_k,
                     [VQ_TYPE_Q4_K] = tile_q4_minima,
                     [VQ_TYPE_Q5_K] = tile_q5_minima,
                     [VQ_TYPE_Q6_K] = tile_q6_k},
        .multiply_f32 = tile_f32,
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

const vq_matmul_tier vq_matmul_tier_avx2 = {.quantize = vq_quantize_avx2, .run = run};
