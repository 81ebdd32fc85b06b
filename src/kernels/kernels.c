#include "kernels/kernels.h"

void vq_kernels_init(vq_kernels *k, uint32_t cpu)
{
    *k = (vq_kernels){.cpu = cpu};
    vq_vec_kernels_init(&k->vec, cpu);
    vq_matmul_kernels_init(&k->matmul, cpu);
    vq_attention_kernels_init(&k->attention, cpu);
    vq_codes_kernels_init(&k->codes, cpu);
    vq_trellis_kernels_init(&k->trellis, cpu);
    vq_turned_kernels_init(&k->turned, cpu);
    vq_polar_kernels_init(&k->polar, cpu);
    vq_folded_kernels_init(&k->folded, cpu);
    vq_nearest_kernels_init(&k->nearest, cpu);
}
