/* The order in which sums of products are formed on every tier: sixteen interleaved parts, then halves are added. */
#ifndef VQ_KERNELS_CODES_SUM_H
#define VQ_KERNELS_CODES_SUM_H

enum { VQ_SUM_PARTS = 16 };

static inline float vq_sum_parts(float *part)
{
    for (unsigned h = VQ_SUM_PARTS / 2; h > 0; h /= 2)
        for (unsigned i = 0; i < h; i++)
            part[i] += part[i + h];
    return part[0];
}

/* Products of weights and norms below this are no weights at all: 16383 over them must stay finite. */
#define VQ_CODES_SMALLEST 1e-34F

/* What narrow weights add before they are rounded, by row % 16: (bit-reversed i + 1/2) / 16 - 1/2. */
static const float vq_codes_dither[16] = {
    -0.46875F, 0.03125F, -0.21875F, 0.28125F, -0.34375F, 0.15625F, -0.09375F, 0.40625F,
    -0.40625F, 0.09375F, -0.15625F, 0.34375F, -0.28125F, 0.21875F, -0.03125F, 0.46875F,
};

#endif
