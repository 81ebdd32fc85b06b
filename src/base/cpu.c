/* Which tiers of kernels may run here: what the processor has, what the operating system saves on a context switch
 * (XGETBV; without it a kernel would lose its registers), and the ceiling that VQ_CPU sets. */
#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t detect(void)
{
    enum { YMM_STATE = 0x6, ZMM_STATE = 0xe6 };
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const uint32_t bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8;                      /* leaf 7, ebx */
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;           /* leaf 7, ebx */
    const uint32_t vbmi = 1u << 1, gfni = 1u << 8, vnni = 1u << 11;                     /* leaf 7, ecx */
    const uint32_t vpopcntdq = 1u << 14, popcnt = 1u << 23;                             /* leaf 7, ecx; leaf 1 */

    uint32_t a, b, c, d, b7, c7;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const uint32_t want1 = fma | osxsave | avx | f16c | popcnt;
    if ((c & want1) != want1)
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d))
        return 0;
    const uint64_t saved = xcr0();
    const uint32_t want7 = avx2 | bmi1 | bmi2;
    if ((saved & YMM_STATE) != YMM_STATE || (b7 & want7) != want7)
        return 0;

    uint32_t cpu = VQ_CPU_AVX2;
    const uint32_t want512 = f | dq | bw | vl, want7c = vbmi | gfni | vnni;
    if ((saved & ZMM_STATE) == ZMM_STATE && (b7 & want512) == want512 && (c7 & want7c) == want7c) {
        cpu |= VQ_CPU_AVX512;
        if (c7 & vpopcntdq)
            cpu |= VQ_CPU_VPOPCNT;
    }
    return cpu;
}
#elif defined(__aarch64__)
static uint32_t detect(void) { return VQ_CPU_NEON; /* part of the base instruction set */ }
#else
static uint32_t detect(void) { return 0; }
#endif

uint32_t vq_cpu_detect(void)
{
    uint32_t ceiling = UINT32_MAX;
    const char *name = getenv("VQ_CPU");
    if (name) {
        if (!strcmp(name, "c"))
            ceiling = 0;
        else if (!strcmp(name, "avx2"))
            ceiling = VQ_CPU_AVX2;
        else if (!strcmp(name, "avx512"))
            ceiling = VQ_CPU_AVX2 | VQ_CPU_AVX512 | VQ_CPU_VPOPCNT;
        else if (!strcmp(name, "neon"))
            ceiling = VQ_CPU_NEON;
    }
    return detect() & ceiling;
}

const char *vq_cpu_name(uint32_t cpu)
{
    if (cpu & VQ_CPU_AVX512)
        return "avx512";
    if (cpu & VQ_CPU_AVX2)
        return "avx2";
    if (cpu & VQ_CPU_NEON)
        return "neon";
    return "c";
}
