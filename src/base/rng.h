/* xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64.  Every random choice of the library comes from
 * here, so that a cache file means the same everywhere. */
#ifndef VQ_BASE_RNG_H
#define VQ_BASE_RNG_H

#include <stdint.h>

typedef struct vq_rng {
    uint64_t s[4];
} vq_rng;

void vq_rng_seed(vq_rng *rng, uint64_t seed);
uint64_t vq_rng_next(vq_rng *rng);
double vq_rng_uniform(vq_rng *rng); /* [0, 1), 53 bits */
double vq_rng_normal(vq_rng *rng);  /* N(0, 1), Box-Muller, one value a call, no state kept */

/* A hash of up to five words, for draws that must not depend on the order of evaluation. */
uint64_t vq_hash64(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e);

#endif
