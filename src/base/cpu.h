/* What the processor and the operating system offer (CPUID and XGETBV), under the ceiling of the environment
 * variable VQ_CPU (c, avx2, avx512, neon), which is read when an object is opened and nowhere else. */
#ifndef VQ_BASE_CPU_H
#define VQ_BASE_CPU_H

#include <stdint.h>

typedef enum vq_cpu {
    VQ_CPU_AVX2 = 1 << 0,    /* AVX2, FMA, F16C, BMI2 */
    VQ_CPU_AVX512 = 1 << 1,  /* F, BW, DQ, VL, VNNI, VBMI and GFNI together */
    VQ_CPU_VPOPCNT = 1 << 2, /* AVX512_VPOPCNTDQ; only with VQ_CPU_AVX512 */
    VQ_CPU_NEON = 1 << 3,
} vq_cpu;

/* A set of vq_cpu bits; 0 is the plain C tier. */
uint32_t vq_cpu_detect(void);

/* "c", "avx2", "avx512" or "neon": the highest tier in the set. */
const char *vq_cpu_name(uint32_t cpu);

#endif
