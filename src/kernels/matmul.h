/* Matrix products with quantised weights.
 *
 * Weights are rows of blocks as GGUF has them, read in place.  Activations are prepared once an input and shared by the
 * matrices that read it: int8 with a scale for every 32 values, or kept in f32 (exact mode).
 *
 * The definition, for any number of tokens and threads: out[t][r] is a sum over blocks in ascending order, one
 * accumulator, so that results are the same bits for any chunk of tokens.  kernels/matmul_tier.h writes it out. */
#ifndef VQ_KERNELS_MATMUL_H
#define VQ_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "veloxquant/gguf.h"

typedef struct vq_matrix {
    vq_type type;
    uint32_t n_in, n_out;
    const void
        *data; /* [n_out] rows of vq_type_row_bytes(type, n_in); packed types: matmul_packed.h, 64-byte aligned */

    /* Packed types only (VQ_TYPE_VQ2 ..): made by quant/linear.h. */
    const uint8_t *levels; /* [2^bits]: (v + 127) / 2 */
    float step;
    const struct vq_rotation *rotation; /* the input is rotated before it is prepared; products don't look here */
} vq_matrix;

/* How activations are prepared. */
typedef enum vq_act {
    VQ_ACT_BLOCKS = 0, /* int8, a scale for every 32 values: block types */
    VQ_ACT_EXACT = 1,  /* f32: every type */
    VQ_ACT_ROWS = 2,   /* int8, one scale a token: packed types */
} vq_act;

/* One product of vq_matmul_many. */
typedef struct vq_matmul_job {
    const vq_matrix *w;
    float *out;        /* [n_tokens][w->n_out] */
    size_t out_stride; /* floats from one token's row to the next */
} vq_matmul_job;

enum { VQ_MATMUL_JOBS = 8 }; /* most products of one vq_matmul_many */

struct vq_matmul_part;

/* The inner kernels: owned by the matmul files (kernels/matmul*.c), see there. */
typedef struct vq_matmul_kernels {
    uint32_t cpu;
    const struct vq_matmul_tier *tier;
    void (*run_packed)(const struct vq_matmul_part *part, void *scratch);
    float (*quantise)(int8_t *out, int32_t *sum, const float *x, uint32_t n); /* of a whole row */
} vq_matmul_kernels;

void vq_matmul_kernels_init(vq_matmul_kernels *k, uint32_t cpu);

/* Whether this type and size is multiplied (on every tier); n_in is a multiple of the block length (any length for F32,
 * F16, BF16 and packed types). */
bool vq_matmul_supports(vq_type type, uint32_t n_in);

/* F32, F16 and BF16: multiplied in f32 in either mode, so that int8 activations lose accuracy and gain nothing.  A
 * model prepares exact activations for them where it can. */
bool vq_matmul_prefers_exact(vq_type type);

/* Rows of codes in a rotated space (VQ_TYPE_VQ2 ..): int8 activations are of the kind VQ_ACT_ROWS. */
bool vq_matmul_is_packed(vq_type type);

/* Bytes of prepared activations for n tokens of n_in values; a multiple of 64.  The product has been checked to fit by
 * whoever chose n_in and n_tokens.  `act` is 64-byte aligned wherever it is passed. */
size_t vq_matmul_act_bytes(uint32_t n_in, uint32_t n_tokens, vq_act kind);

/* x [n_tokens][n_in] -> act. Bit-exact on every tier. */
void vq_matmul_prepare(const vq_matmul_kernels *k, vq_pool *pool, void *act, const float *x, uint32_t n_in,
                       uint32_t n_tokens, vq_act kind);

/* out [n_tokens][n_out] (rows out_stride floats apart) = act times w.  kind and n_tokens as in prepare.  scratch
 * holds vq_matmul_scratch_bytes(n_threads) bytes, 64-byte aligned. */
void vq_matmul(const vq_matmul_kernels *k, vq_pool *pool, const vq_matrix *w, const void *act, uint32_t n_tokens,
               vq_act kind, float *out, size_t out_stride, void *scratch);

/* The same for up to VQ_MATMUL_JOBS matrices of one n_in that read the same activations, in one run of the pool: waking
 * it costs as much as a small matrix.  The same bits as one by one. */
void vq_matmul_many(const vq_matmul_kernels *k, vq_pool *pool, const vq_matmul_job *jobs, uint32_t n_jobs,
                    const void *act, uint32_t n_tokens, vq_act kind, void *scratch);

size_t vq_matmul_scratch_bytes(uint32_t n_threads);

#endif
