/* Streams of bits: the least significant bit first, no bit wasted, so codes of 3 bits cross bytes. */
#ifndef VQ_QUANT_PACK_H
#define VQ_QUANT_PACK_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of n codes. */
size_t vq_pack_bytes(size_t n, uint32_t bits);

/* One code of 1..8 bits at bit `at`.  put sets the code's bits and no others. */
void vq_pack_put(uint8_t *stream, size_t at, uint32_t bits, uint32_t code);
uint32_t vq_pack_get(const uint8_t *stream, size_t at, uint32_t bits);

#endif
