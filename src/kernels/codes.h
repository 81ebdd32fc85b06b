/* Kernels of the packed codecs: packing, rotation, scores and weighted sums over codes. */
#ifndef VQ_KERNELS_CODES_H
#define VQ_KERNELS_CODES_H

#include <stdint.h>

typedef struct vq_codes_kernels {
    /* In place: x = H x / sqrt(n), H the Sylvester-Hadamard matrix, n a power of two. */
    void (*hadamard)(float *x, uint32_t n);
} vq_codes_kernels;

void vq_codes_kernels_init(vq_codes_kernels *k, uint32_t cpu);

#endif
