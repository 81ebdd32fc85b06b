/* What codecs lose at which bits, measured on real models: what a plan is chosen by. */
#ifndef VQ_KV_RATES_H
#define VQ_KV_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VQ_RATE_MOST = 24 };

/* The loss is the KL divergence of the next token's distribution from that with an f16 cache, in nats, of one side:
 * keys alone or values alone.  Small losses add up. */
typedef struct vq_rate {
    double bits; /* the option; 0: the method has none */
    double loss;
} vq_rate;

typedef struct vq_rate_curve {
    const char *method; /* without its bits */
    bool is_candidate;  /* loses least at some bits: others are for who names them */
    uint32_t n;
    vq_rate keys[VQ_RATE_MOST], values[VQ_RATE_MOST]; /* [n], bits ascending */
} vq_rate_curve;

/* rates_table.c, generated */
extern const vq_rate_curve vq_rate_curves[];
extern const size_t vq_n_rate_curves;

#endif
