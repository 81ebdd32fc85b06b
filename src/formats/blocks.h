/* Blocks of quantised weights as GGUF stores them, byte by byte, and their plain C dequantisation.
 *
 * `d` and `m` are f16.  Two 4-bit codes share a byte; in which order is said beside each block. */
#ifndef VQ_FORMATS_BLOCKS_H
#define VQ_FORMATS_BLOCKS_H

#include <stdint.h>

enum { VQ_BLOCK = 32, VQ_SUPER_BLOCK = 256 };

/* 32 values: low nibbles are values 0 .. 15, high nibbles 16 .. 31. */
typedef struct vq_block_q4_0 {
    uint16_t d;
    uint8_t qs[16]; /* (q - 8) d */
} vq_block_q4_0;

typedef struct vq_block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16]; /* q d + m */
} vq_block_q4_1;

typedef struct vq_block_q5_0 {
    uint16_t d;
    uint8_t qh[4];  /* bit i is the fifth bit of value i */
    uint8_t qs[16]; /* (q - 16) d */
} vq_block_q5_0;

typedef struct vq_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16]; /* q d + m */
} vq_block_q5_1;

typedef struct vq_block_q8_0 {
    uint16_t d;
    int8_t qs[32]; /* q d */
} vq_block_q8_0;

typedef struct vq_block_iq4_nl {
    uint16_t d;
    uint8_t qs[16]; /* iq4_nl_values[q] d */
} vq_block_iq4_nl;

/* 256 values in 16 groups of 16.  Codes of 2 bits: in each half of qs, byte i holds values i, i + 32, i + 64, i + 96 of
 * that half of the block, from the lowest bits on. */
typedef struct vq_block_q2_k {
    uint8_t scales[16]; /* low nibble: scale, high nibble: minimum */
    uint8_t qs[64];     /* q d scale - m minimum */
    uint16_t d, m;
} vq_block_q2_k;

typedef struct vq_block_q3_k {
    uint8_t hmask[32];  /* bit j of byte i is the third bit of value 32 j + i; the code is q - 4 */
    uint8_t qs[64];     /* two low bits, as in q2_k */
    uint8_t scales[12]; /* 16 of 6 bits, minus 32: low four bits in bytes 0 .. 7, high two in 8 .. 11 */
    uint16_t d;
} vq_block_q3_k;

/* 256 values in 8 groups of 32.  In each 32 bytes of qs low nibbles are the first group, high ones the next. */
typedef struct vq_block_q4_k {
    uint16_t d, m;
    uint8_t scales[12]; /* 8 scales and 8 minima of 6 bits: see k4_scale in blocks.c */
    uint8_t qs[128];    /* q d scale - m minimum */
} vq_block_q4_k;

typedef struct vq_block_q5_k {
    uint16_t d, m;
    uint8_t scales[12];
    uint8_t qh[32]; /* bit j of byte i is the fifth bit of value i of group j */
    uint8_t qs[128];
} vq_block_q5_k;

/* 256 values in 16 groups of 16.  In each half, values i, i + 32, i + 64, i + 96 (i < 32) take the low nibbles of ql[i]
 * and ql[i + 32], then their high nibbles, and bits 0-1, 2-3, 4-5, 6-7 of qh[i]. */
typedef struct vq_block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d; /* (q - 32) d scale */
} vq_block_q6_k;

_Static_assert(sizeof(vq_block_q4_0) == 18, "q4_0");
_Static_assert(sizeof(vq_block_q4_1) == 20, "q4_1");
_Static_assert(sizeof(vq_block_q5_0) == 22, "q5_0");
_Static_assert(sizeof(vq_block_q5_1) == 24, "q5_1");
_Static_assert(sizeof(vq_block_q8_0) == 34, "q8_0");
_Static_assert(sizeof(vq_block_iq4_nl) == 18, "iq4_nl");
_Static_assert(sizeof(vq_block_q2_k) == 84, "q2_k");
_Static_assert(sizeof(vq_block_q3_k) == 110, "q3_k");
_Static_assert(sizeof(vq_block_q4_k) == 144, "q4_k");
_Static_assert(sizeof(vq_block_q5_k) == 176, "q5_k");
_Static_assert(sizeof(vq_block_q6_k) == 210, "q6_k");

/* n_blocks blocks at src (aligned to 2 bytes) to f32. */
typedef void (*vq_dequantize_fn)(const void *src, float *out, uint64_t n_blocks);

void vq_dequantize_f32(const void *src, float *out, uint64_t n); /* n values: "blocks" of one */
void vq_dequantize_f16(const void *src, float *out, uint64_t n);
void vq_dequantize_bf16(const void *src, float *out, uint64_t n);
void vq_dequantize_q4_0(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q4_1(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q5_0(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q5_1(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q8_0(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_iq4_nl(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q2_k(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q3_k(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q4_k(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q5_k(const void *src, float *out, uint64_t n_blocks);
void vq_dequantize_q6_k(const void *src, float *out, uint64_t n_blocks);

#endif
