/* The loops around packed rows of the tiers that keep 16 rows in lanes: one token reads a tile from start to end and
 * multiplies in registers; many tokens unpack a cut of two tiles once, which then stays in L1. */
#include "kernels/matmul_packed.h"

#include <string.h>

#include "base/half.h"

enum {
    TILE = VQ_PACKED_LANES,
    SIDE = VQ_PACKED_SIDE,
    CUT_BYTES = VQ_PACKED_CUT * VQ_PACKED_LANES,
    FLOATS = 256, /* values of a cut in exact mode */
};
_Static_assert(SIDE *CUT_BYTES <= VQ_MATMUL_SCRATCH, "unpacked tiles");
_Static_assert(FLOATS *TILE *(1 + sizeof(float)) <= VQ_MATMUL_SCRATCH, "unpacked codes, and as floats");

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void scales(float out[TILE], const vq_matrix *w, uint32_t row)
{
    const uint8_t *norms = (const uint8_t *)w->data + (size_t)2 * row; /* padded to whole tiles */
    for (uint32_t r = 0; r < TILE; r++)
        out[r] = vq_f32_from_f16((uint16_t)(norms[2 * r] | norms[2 * r + 1] << 8)) * w->step;
}

static void run_one(const vq_packed_tier *tier, const vq_matmul_part *part)
{
    const vq_matrix *w = part->w;
    const uint32_t bits = vq_packed_bits(w->type), n_blocks = vq_packed_blocks(w->n_in);
    const uint8_t *token = part->act->groups + part->token * vq_packed_token_bytes(w->n_in);
    for (uint32_t row = part->row; row < part->row_end; row += TILE) {
        float scale[TILE];
        scales(scale, w, row);
        tier->one[bits - 2](part->out + part->token * part->out_stride + row, least(TILE, part->row_end - row),
                            vq_packed_tile(w, row), n_blocks, w->levels, scale, token);
    }
}

static void run_rows(const vq_packed_tier *tier, const vq_matmul_part *part, uint8_t *scratch)
{
    const vq_matrix *w = part->w;
    const uint32_t bits = vq_packed_bits(w->type), n_blocks = vq_packed_blocks(w->n_in);
    const size_t token_bytes = vq_packed_token_bytes(w->n_in);
    for (uint32_t row = part->row; row < part->row_end; row += SIDE * TILE) {
        vq_packed_step step = {.out_stride = part->out_stride, .token_bytes = token_bytes};
        for (uint32_t g = 0; g < SIDE; g++) {
            const uint32_t at = row + g * TILE;
            step.n_rows[g] = at < part->row_end ? least(TILE, part->row_end - at) : 0;
            step.w[g] = step.n_rows[g] ? scratch + g * CUT_BYTES : scratch;
            if (step.n_rows[g])
                scales(step.scale[g], w, at);
        }
        for (uint32_t b = 0; b < n_blocks; b += VQ_PACKED_CUT / 32) {
            const uint32_t n = least(VQ_PACKED_CUT / 32, n_blocks - b);
            step.first = b == 0;
            step.last = b + n == n_blocks;
            step.first_dword = 8 * b;
            step.n_dwords = 8 * n;
            for (uint32_t g = 0; g < SIDE; g++)
                if (step.n_rows[g])
                    tier->unpack[bits - 2](scratch + g * CUT_BYTES,
                                           vq_packed_tile(w, row + g * TILE) + (size_t)b * 64 * bits, n, w->levels);
            for (uint32_t t = part->token; t < part->token_end; t += VQ_MATMUL_GROUP) {
                step.n_tokens = least(VQ_MATMUL_GROUP, part->token_end - t);
                step.tokens = part->act->groups + t * token_bytes;
                for (uint32_t g = 0; g < SIDE; g++)
                    step.out[g] = part->out + t * part->out_stride + row + (step.n_rows[g] ? g * TILE : 0);
                tier->multiply(&step);
            }
        }
    }
}

static void run_exact(const vq_packed_tier *tier, const vq_matmul_part *part, uint8_t *scratch)
{
    const vq_matrix *w = part->w;
    const uint32_t bits = vq_packed_bits(w->type), n_in = w->n_in;
    float *floats = (float *)(void *)(scratch + FLOATS * TILE);
    for (uint32_t row = part->row; row < part->row_end; row += TILE) {
        vq_packed_step step = {.out_stride = part->out_stride,
                               .n_rows = {least(TILE, part->row_end - row)},
                               .w = {(const uint8_t *)floats}};
        scales(step.scale[0], w, row);
        for (uint32_t i = 0; i < n_in; i += FLOATS) {
            const uint32_t n = least(FLOATS, n_in - i), n_blocks = vq_packed_blocks(n);
            step.first = i == 0;
            step.n_dwords = n;
            tier->unpack[bits - 2](scratch, vq_packed_tile(w, row) + (size_t)(i / 32) * 64 * bits, n_blocks, w->levels);
            tier->floats(floats, scratch, 8 * n_blocks, step.scale[0]);
            for (uint32_t t = part->token; t < part->token_end; t += VQ_MATMUL_GROUP) {
                const uint8_t *group = vq_matmul_group(part->act, t, &step.n_tokens);
                step.tokens = group + (size_t)i * step.n_tokens * sizeof(float);
                step.out[0] = part->out + t * part->out_stride + row;
                tier->multiply_f32(&step);
            }
        }
    }
}

void vq_packed_run_tiles(const vq_packed_tier *tier, const vq_matmul_part *part, void *scratch)
{
    if (part->act->kind == VQ_ACT_EXACT)
        run_exact(tier, part, scratch);
    else if (part->token_end - part->token == 1)
        run_one(tier, part);
    else
        run_rows(tier, part, scratch);
}
