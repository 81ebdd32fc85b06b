/* Between the files of the kernels of vectors that turn. */
#ifndef VQ_KERNELS_TURNED_INNER_H
#define VQ_KERNELS_TURNED_INNER_H

#include "kernels/turned.h"

void vq_turned_kernels_init_avx2(vq_turned_kernels *k);
void vq_turned_kernels_init_avx512(vq_turned_kernels *k);

#endif
