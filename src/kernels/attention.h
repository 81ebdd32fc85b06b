/* Scores, softmax and weighted sums of attention over rows of floats (exact rows, pages of f16, bf16 and f32).
 *
 * One query's result does not depend on how many queries are given at once, nor on the rows that lie beside a row, so a
 * cache may cut its work into tiles as it likes.  Per query:
 *   score       one sum over the d channels for each row
 *   mix         one sum over the rows for each channel, in ascending order, so that rows may come in several calls
 *   softmax     over some blocks of VQ_BLOCK_ROWS rows at once */
#ifndef VQ_KERNELS_ATTENTION_H
#define VQ_KERNELS_ATTENTION_H

#include <stdint.h>

enum { VQ_BLOCK_ROWS = 64, VQ_SOFTMAX_BLOCKS = 4 };

typedef struct vq_attention_kernels {
    /* out[i][j] = q_i . k_j for q [nq][d], k [n][d]; rows of q are q_stride floats apart, rows of out out_stride */
    void (*score_f16)(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                      float *out, uint32_t out_stride);
    void (*score_bf16)(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                       float *out, uint32_t out_stride);
    void (*score_f32)(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                      float *out, uint32_t out_stride);

    /* The same for a block stored by columns, k [d][VQ_BLOCK_ROWS], of which the first n rows count (others may
     * get a score too); rows of q are q_stride floats apart, rows of out VQ_BLOCK_ROWS.  `next` is what will be read
     * next in the same way, to be fetched meanwhile, or NULL. */
    void (*score_cols_f16)(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                           float *out, const void *next);
    void (*score_cols_bf16)(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                            float *out, const void *next);
    void (*score_cols_f32)(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                           float *out, const void *next);

    /* acc[i] += sum_j w[i][j] v_j for v [n][d], acc [nq][d]; rows of w are w_stride floats apart */
    void (*mix_f16)(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                    float *acc, const void *next);
    void (*mix_bf16)(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                     float *acc, const void *next);
    void (*mix_f32)(const float *w, uint32_t w_stride, uint32_t nq, const float *v, uint32_t n, uint32_t d, float *acc,
                    const void *next);

    /* Up to VQ_SOFTMAX_BLOCKS blocks more of a running softmax.  s [n_blocks][nq][VQ_BLOCK_ROWS] scores -> weights
     * exp(s
     * - max), 0 where bit j of live [n_blocks][nq] is 0 (whatever s holds there).  max [nq] and sum [nq] go on (start:
     * -inf, 0); what was summed up under an old maximum is to be multiplied by rescale [nq], which is exactly 1 where
     * nothing has to be done.  A block without live rows changes nothing, nor whether it is given at all. */
    void (*softmax)(float *s, uint32_t n_blocks, uint32_t nq, const uint64_t *live, float *max, float *sum,
                    float *rescale);
} vq_attention_kernels;

void vq_attention_kernels_init(vq_attention_kernels *k, uint32_t cpu);
void vq_attention_init_avx2(vq_attention_kernels *k);
void vq_attention_init_avx512(vq_attention_kernels *k);

#endif
