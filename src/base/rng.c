/* xoshiro256++ and the finaliser of splitmix64. */
#include "base/rng.h"

#include <math.h>

static const uint64_t golden = 0x9e3779b97f4a7c15;

static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, unsigned k) { return (x << k) | (x >> (64 - k)); }

void vq_rng_seed(vq_rng *rng, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++) {
        seed += golden;
        rng->s[i] = mix64(seed);
    }
}

uint64_t vq_rng_next(vq_rng *rng)
{
    uint64_t *s = rng->s;
    const uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    const uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double vq_rng_uniform(vq_rng *rng) { return (double)(vq_rng_next(rng) >> 11) * 0x1p-53; }

double vq_rng_normal(vq_rng *rng)
{
    const double radius = sqrt(-2 * log(1 - vq_rng_uniform(rng))); /* of (0, 1]: log 0 never happens */
    const double turn = vq_rng_uniform(rng);
    return radius * cos(2 * 3.14159265358979323846 * turn);
}

uint64_t vq_hash64(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    const uint64_t words[5] = {a, b, c, d, e};
    uint64_t h = 0;
    for (unsigned i = 0; i < 5; i++)
        h = mix64((h ^ words[i]) + golden);
    return h;
}
