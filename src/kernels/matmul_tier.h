/* What the tiers of the matrix product share: the traits of the weight types, the layout of prepared activations, and
 * the definition that every tier computes.
 *
 * int8 mode.  A row of weights is seen as blocks of 32 values b = 0, 1, ...; with codes q, scales d_w and minima m_w
 *
 *     one scale   w = d_w q                  Q8_0 Q4_0 Q5_0 IQ4_NL
 *     minimum     w = d_w q + m_w            Q4_1 Q5_1 Q4_K Q5_K
 *     halves      w = d_w[h] q               Q6_K Q3_K          h = 0, 1: values 0..15 and 16..31 of the block
 *     both        w = d_w[h] q + m_w[h]      Q2_K
 *
 * where d_w and m_w of the K types are products of an f16 and a small integer, exact in f32.  An activation block has a
 * scale d_x and codes a in -127..127.  With S = sum a and I = sum q a (integers, exact, over the block or its half):
 *
 *     for b ascending: for h ascending: acc = fma(I, d_w d_x, acc);  if minima: acc = fma(m_w, d_x S, acc)
 *
 * starting from 0, each product in brackets rounded to f32 once.  The same bits on every tier.
 *
 * Exact mode, and F32, F16 and BF16 weights in either mode (activations are then d_x a, rounded once):
 *
 *     for i ascending: acc = fma(w_i, x_i, acc)        w_i as vq_type_dequantize gives it
 *
 * on tiers with FMA; the plain C tier keeps 8 sums of every eighth product instead (see matmul_c.c), since without
 * the instruction a fused product is a call. */
#ifndef VQ_KERNELS_MATMUL_TIER_H
#define VQ_KERNELS_MATMUL_TIER_H

#include "kernels/matmul.h"

enum {
    VQ_MATMUL_BLOCK = 32,           /* values that share an activation scale */
    VQ_MATMUL_GROUP = 6,            /* tokens that are prepared side by side: a register tile of every tier */
    VQ_MATMUL_TOKEN_BYTES = 48,     /* of a block of one token: 32 codes, 4 words */
    VQ_MATMUL_SCRATCH = 192 * 1024, /* bytes of a thread; each tier asserts that its tiles fit */
};

typedef struct vq_matmul_traits {
    uint16_t block_len, block_bytes; /* 0: unknown type */
    uint8_t offset;                  /* codes are stored as q + offset >= 0 (128: as bytes of any sign) */
    bool halves, minima, floats, packed;
} vq_matmul_traits;

extern const vq_matmul_traits vq_matmul_traits_of[VQ_N_TYPES];

/* Prepared activations, in groups of n = 6 tokens (the last one fewer), so that a register tile reads one stream.
 * Exact: a group is [n_in][n] floats.  int8: it is [n_blocks] records of 48 n bytes,
 *
 *     codes [n][32] int8 | d [n] f32 | d S [n] f32 | -S [n] int32 | -S of values 0..15 [n] int32
 *
 * where values past n_in are zeros.  (Negative, since that is what sums of codes with an offset start from.) */
typedef struct vq_matmul_act {
    uint32_t n_in, n_blocks, n_tokens;
    vq_act kind;
    const uint8_t *groups; /* VQ_ACT_ROWS: tokens, see matmul_packed.h */
} vq_matmul_act;

/* Part of a product: rows [row, row_end) times tokens [token, token_end).  Rows begin at a multiple of 32, tokens at a
 * multiple of 6; they end at one, or with the matrix or the last token. */
typedef struct vq_matmul_part {
    const vq_matrix *w;
    const vq_matmul_act *act;
    uint32_t row, row_end, token, token_end;
    float *out; /* of token 0 and row 0 */
    size_t out_stride;
} vq_matmul_part;

typedef struct vq_matmul_tier {
    /* Token t of a group of n.
     *     d = max|x| / 127 over the block, zero block when that is below FLT_MIN;  a = x (127 / max|x|) to nearest even
     */
    void (*quantize)(uint8_t *group, uint32_t n, uint32_t t, const float *x, uint32_t n_in);
    void (*run)(const vq_matmul_part *part, void *scratch);
} vq_matmul_tier;

extern const vq_matmul_tier vq_matmul_tier_c;
#if defined(__x86_64__)
extern const vq_matmul_tier vq_matmul_tier_avx2, vq_matmul_tier_avx512;
#endif

static inline size_t vq_matmul_group_bytes(uint32_t n_in, vq_act kind)
{
    const size_t n_blocks = n_in / VQ_MATMUL_BLOCK + (n_in % VQ_MATMUL_BLOCK != 0);
    return VQ_MATMUL_GROUP * (kind == VQ_ACT_EXACT ? n_in * sizeof(float) : n_blocks * VQ_MATMUL_TOKEN_BYTES);
}

/* The group that begins with this token, and how many tokens it has. */
static inline const uint8_t *vq_matmul_group(const vq_matmul_act *act, uint32_t token, uint32_t *n)
{
    const uint32_t left = act->n_tokens - token;
    *n = left < VQ_MATMUL_GROUP ? left : VQ_MATMUL_GROUP;
    return act->groups + token / VQ_MATMUL_GROUP * vq_matmul_group_bytes(act->n_in, act->kind);
}

static inline size_t vq_matmul_row_bytes(vq_type type, uint32_t n_in)
{
    const vq_matmul_traits *t = &vq_matmul_traits_of[type];
    return (size_t)(n_in / t->block_len) * t->block_bytes;
}

#endif
