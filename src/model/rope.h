/* Rotary positions: frequencies and turns, in double. */
#ifndef VQ_MODEL_ROPE_H
#define VQ_MODEL_ROPE_H

#include <stdint.h>

/* Stretches freq [n_pairs] as Llama 3.1 does for a trained context of n_ctx tokens. */
void vq_rope_llama3(double *freq, uint32_t n_pairs, double factor, double low, double high, double n_ctx);

/* cos and sin [n_pairs] of pos * freq. */
void vq_rope_turn(const double *freq, uint32_t n_pairs, uint32_t pos, float *cosine, float *sine);

#endif
