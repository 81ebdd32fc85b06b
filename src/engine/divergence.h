/* How far the next token's distribution is from another one's: from logits, summed in f64. */
#ifndef VQ_ENGINE_DIVERGENCE_H
#define VQ_ENGINE_DIVERGENCE_H

#include <stddef.h>

#include "kernels/vec.h"

/* log of the sum of exp(logits [n]) */
double vq_log_sum_exp(const vq_vec_kernels *k, const float *logits, size_t n);

/* sum of P (log P - log Q), in nats, of logits p and q [n] with their vq_log_sum_exp. */
double vq_kl_divergence(const vq_vec_kernels *k, const float *p, double p_norm, const float *q, double q_norm,
                        size_t n);

#endif
