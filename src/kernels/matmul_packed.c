/* Packed rows: the layout, and the product in plain C, which is its definition. */
#include "kernels/matmul_packed.h"

#include <string.h>

#include "base/half.h"

enum { BLOCK = 32, LANES = 8 };

/* Where the low bits of the codes of dword k of a block are: register, and shift in its bytes. */
static uint32_t low_register(uint32_t bits, uint32_t k) { return bits == 4 ? k % 4 : k % 2; }
static uint32_t low_shift(uint32_t bits, uint32_t k) { return bits == 4 ? k / 4 * 4 : k / 2 * 2; }

void vq_packed_put(uint8_t *tile, uint32_t r, uint32_t bits, const uint8_t *codes, uint32_t n_in)
{
    const uint32_t low_bits = bits == 4 ? 4 : 2, mask = (1u << low_bits) - 1;
    for (uint32_t first = 0; first < n_in; first += BLOCK, tile += (size_t)64 * bits) {
        uint8_t *row = tile + (size_t)4 * r;
        for (uint32_t plane = 0; plane < bits; plane++)
            memset(row + (size_t)64 * plane, 0, 4);
        for (uint32_t i = 0; i < BLOCK && first + i < n_in; i++) {
            const uint32_t k = i / 4, j = i % 4, code = codes[first + i];
            uint8_t *low = row + (size_t)64 * low_register(bits, k) + j;
            *low = (uint8_t)(*low | (code & mask) << low_shift(bits, k));
            if (bits == 3)
                row[128 + j] = (uint8_t)(row[128 + j] | code >> 2 << k);
        }
    }
}

void vq_packed_get(uint8_t *codes, const uint8_t *tile, uint32_t r, uint32_t bits, uint32_t n_in)
{
    const uint32_t low_bits = bits == 4 ? 4 : 2, mask = (1u << low_bits) - 1;
    for (uint32_t first = 0; first < n_in; first += BLOCK, tile += (size_t)64 * bits) {
        const uint8_t *row = tile + (size_t)4 * r;
        for (uint32_t i = 0; i < BLOCK && first + i < n_in; i++) {
            const uint32_t k = i / 4, j = i % 4;
            uint32_t code = row[(size_t)64 * low_register(bits, k) + j] >> low_shift(bits, k) & mask;
            if (bits == 3)
                code |= (row[128 + j] >> k & 1u) << 2;
            codes[first + i] = (uint8_t)code;
        }
    }
}

static int32_t dot(const int8_t *v, const int8_t *a, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i] * a[i];
    return sum;
}

/* One row times one token, activations [n_in] that are n_side floats apart, in 8 sums as matmul_c.c has them. */
static float dot_f32(const int8_t *v, float scale, const float *x, uint32_t n_side, uint32_t n)
{
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        s[i % LANES] += (float)v[i] * scale * x[(size_t)i * n_side];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

void vq_packed_run_c(const vq_matmul_part *part, void *scratch)
{
    const vq_matrix *w = part->w;
    const uint32_t bits = vq_packed_bits(w->type), n_in = w->n_in;
    const uint8_t *norms = w->data;
    int8_t *v = scratch;
    for (uint32_t r = part->row; r < part->row_end; r++) {
        vq_packed_get(scratch, vq_packed_tile(w, r), r % VQ_PACKED_LANES, bits, n_in);
        for (uint32_t i = 0; i < n_in; i++)
            v[i] = (int8_t)(2 * w->levels[(uint8_t)v[i]] - 127);
        const uint16_t norm = (uint16_t)(norms[(size_t)2 * r] | norms[(size_t)2 * r + 1] << 8);
        const float scale = vq_f32_from_f16(norm) * w->step;
        for (uint32_t t = part->token; t < part->token_end; t++) {
            float *out = part->out + t * part->out_stride + r;
            if (part->act->kind == VQ_ACT_EXACT) {
                uint32_t n;
                const uint8_t *group = vq_matmul_group(part->act, t / VQ_MATMUL_GROUP * VQ_MATMUL_GROUP, &n);
                *out = dot_f32(v, scale, (const float *)(const void *)group + t % VQ_MATMUL_GROUP, n, n_in);
                continue;
            }
            const uint8_t *token = part->act->groups + t * vq_packed_token_bytes(n_in);
            vq_packed_head head;
            memcpy(&head, token, sizeof head);
            *out = (float)dot(v, (const int8_t *)token + VQ_PACKED_HEAD, n_in) * (scale * head.d);
        }
    }
}
_Static_assert((int)VQ_PACKED_MOST_IN <= (int)VQ_MATMUL_SCRATCH, "a row of codes");
