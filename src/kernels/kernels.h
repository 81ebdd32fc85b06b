/* The tables of kernels that an object keeps from the time it is opened: C definitions first, then replaced tier by
 * tier up to what the processor has.  No CPU tests after that. */
#ifndef VQ_KERNELS_KERNELS_H
#define VQ_KERNELS_KERNELS_H

#include <stdint.h>

#include "kernels/attention.h"
#include "kernels/codes.h"
#include "kernels/folded.h"
#include "kernels/matmul.h"
#include "kernels/nearest.h"
#include "kernels/polar.h"
#include "kernels/trellis.h"
#include "kernels/turned.h"
#include "kernels/vec.h"

typedef struct vq_kernels {
    uint32_t cpu; /* set of vq_cpu bits that the tables were filled for */
    vq_vec_kernels vec;
    vq_matmul_kernels matmul;
    vq_attention_kernels attention;
    vq_codes_kernels codes;
    vq_trellis_kernels trellis;
    vq_turned_kernels turned;
    vq_polar_kernels polar;
    vq_folded_kernels folded;
    vq_nearest_kernels nearest;
} vq_kernels;

/* `cpu` as from vq_cpu_detect(); 0 gives the definitions. */
void vq_kernels_init(vq_kernels *k, uint32_t cpu);

#endif
