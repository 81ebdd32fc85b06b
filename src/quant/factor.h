/* Keys weighted by what queries ask of them (A2ATS): with L L' = H, the queries' second moment, an error e of a key
 * costs E[(q.e)^2] = e' H e = |L' e|^2.  So L' k is coded, and L^-1 q asked: (L^-1 q) . (L' k) = q . k. */
#ifndef VQ_QUANT_FACTOR_H
#define VQ_QUANT_FACTOR_H

#include <stddef.h>
#include <stdint.h>

/* Where the codebooks' H is taken: queries stand so many positions after the keys that they are asked about. */
enum { VQ_A2ATS_OFFSET = 512 };

/* Lower L [d][d] of h [d][d], upper triangle read, to whose diagonal `ridge` times its mean is added first.  In place.
 */
void vq_factor(double *h, uint32_t d, double ridge);

/* out [d] = L' x, L^-1 x, L'^-1 x; out is not x. */
void vq_factor_key(const float *l, uint32_t d, const float *x, float *out);
void vq_factor_query(const float *l, uint32_t d, const float *x, float *out);
void vq_factor_back(const float *l, uint32_t d, const float *x, float *out);

#endif
