#include "kernels/matmul_tiles.h"

#include <string.h>

enum {
    BLOCK = VQ_MATMUL_BLOCK,
    GROUP = VQ_MATMUL_GROUP,
    TOKEN_BYTES = VQ_MATMUL_TOKEN_BYTES,
    RECORD_MOST = (8 + 4) * 4 * VQ_TILE_LANES,
    UNPACKED_MOST = VQ_TILES * VQ_TILE_LANES * VQ_TILE_FLOATS * 4,
};
_Static_assert(VQ_TILES *VQ_TILE_BLOCKS *RECORD_MOST <= VQ_MATMUL_SCRATCH, "unpacked codes");
_Static_assert(UNPACKED_MOST + VQ_TILE_FLOATS * GROUP * 4 + 8 * RECORD_MOST <= VQ_MATMUL_SCRATCH,
               "unpacked floats, activations in f32, records");

typedef struct loop {
    const vq_tiling *tiling;
    const vq_matmul_part *part;
    size_t stride; /* of the rows of weights */
    size_t record_bytes;
    uint32_t lanes, side;
} loop;

static loop make_loop(const vq_tiling *tiling, const vq_matmul_part *part, uint32_t side)
{
    return (loop){.tiling = tiling,
                  .part = part,
                  .stride = vq_matmul_row_bytes(part->w->type, part->w->n_in),
                  .record_bytes = vq_record_bytes(&vq_matmul_traits_of[part->w->type], tiling->lanes),
                  .lanes = tiling->lanes,
                  .side = side};
}

/* Points `tile` at the results of the tile number g beside `row` and returns its rows of weights; NULL when there are
 * none of its own left, then tile 0 is multiplied again and nothing is written. */
static const uint8_t *place(const loop *l, vq_tile *tile, uint32_t g, uint32_t row)
{
    const uint32_t wanted = row + g * l->lanes, at = vq_tile_row(l->part, wanted, l->lanes);
    tile->out[g] = l->part->out + at + l->part->token * l->part->out_stride;
    tile->skip[g] = wanted - at < l->lanes ? wanted - at : l->lanes;
    return wanted - at < l->lanes ? (const uint8_t *)l->part->w->data + at * l->stride : NULL;
}

static void next_group(const loop *l, vq_tile *tile)
{
    for (uint32_t g = 0; g < l->side; g++)
        tile->out[g] += GROUP * l->part->out_stride;
}

/* Values [i, i + n) of a group of int8 activations as f32 [n][n_tokens]; i is a multiple of 32. */
static void expand(float *out, const uint8_t *group, uint32_t n_tokens, uint32_t i, uint32_t n)
{
    for (uint32_t j = 0; j < n; j += BLOCK) {
        const uint8_t *record = group + (size_t)((i + j) / BLOCK) * n_tokens * TOKEN_BYTES;
        const uint32_t len = n - j < BLOCK ? n - j : BLOCK;
        for (uint32_t t = 0; t < n_tokens; t++) {
            const int8_t *codes = (const int8_t *)record + t * BLOCK;
            float *to = out + (size_t)j * n_tokens + t, d;
            memcpy(&d, record + (n_tokens * BLOCK + t * 4), sizeof d);
            for (uint32_t k = 0; k < len; k++)
                to[(size_t)k * n_tokens] = d * (float)codes[k];
        }
    }
}

static void unpack_f32(const loop *l, float *out, const uint8_t *rows, uint32_t i, uint32_t n, uint8_t *records)
{
    const vq_type type = l->part->w->type;
    const vq_matmul_traits *traits = &vq_matmul_traits_of[type];
    if (traits->floats) {
        l->tiling->unpack_floats(type, out, rows, l->stride, i, n);
        return;
    }
    for (uint32_t b = i / BLOCK, end = (i + n) / BLOCK; b < end; b += 8) {
        const uint32_t n_blocks = end - b < 8 ? end - b : 8;
        l->tiling->unpack[type](records, rows, l->stride, b, n_blocks);
        for (uint32_t j = 0; j < n_blocks; j++, out += BLOCK * l->lanes)
            l->tiling->record_f32(out, records + j * l->record_bytes, traits);
    }
}

static void run_f32(const vq_tiling *tiling, const vq_matmul_part *part, uint8_t *scratch)
{
    const loop l = make_loop(tiling, part, tiling->side_f32);
    const vq_matmul_act *act = part->act;
    float *x = (float *)(void *)(scratch + UNPACKED_MOST);
    uint8_t *records = (uint8_t *)(x + VQ_TILE_FLOATS * GROUP);

    for (uint32_t row = part->row; row < part->row_end; row += l.side * l.lanes) {
        for (uint32_t i = 0; i < act->n_in; i += VQ_TILE_FLOATS) {
            vq_tile tile = {.n = act->n_in - i < VQ_TILE_FLOATS ? act->n_in - i : VQ_TILE_FLOATS,
                            .first = i == 0,
                            .out_stride = part->out_stride};
            for (uint32_t g = 0; g < l.side; g++) {
                float *to = (float *)(void *)scratch + g * l.lanes * VQ_TILE_FLOATS;
                const uint8_t *rows = place(&l, &tile, g, row);
                tile.w[g] = rows ? to : tile.w[0];
                if (rows)
                    unpack_f32(&l, to, rows, i, tile.n, records);
            }
            for (uint32_t t = part->token; t < part->token_end; t += GROUP, next_group(&l, &tile)) {
                const uint8_t *group = vq_matmul_group(act, t, &tile.n_tokens);
                tile.group = (const float *)(const void *)group + (size_t)i * tile.n_tokens;
                if (act->kind != VQ_ACT_EXACT) {
                    expand(x, group, tile.n_tokens, i, tile.n);
                    tile.group = x;
                }
                tiling->multiply_f32(&tile);
            }
        }
    }
}

static void run_int8(const vq_tiling *tiling, const vq_matmul_part *part, uint8_t *scratch)
{
    const loop l = make_loop(tiling, part, tiling->side_int8);
    const vq_matmul_act *act = part->act;
    const vq_type type = part->w->type;
    const uint8_t offset = vq_matmul_traits_of[type].offset;

    for (uint32_t row = part->row; row < part->row_end; row += l.side * l.lanes) {
        for (uint32_t b = 0; b < act->n_blocks; b += VQ_TILE_BLOCKS) {
            vq_tile tile = {.n = act->n_blocks - b < VQ_TILE_BLOCKS ? act->n_blocks - b : VQ_TILE_BLOCKS,
                            .first = b == 0,
                            .shift = offset ? (uint32_t)__builtin_ctz(offset) : 0,
                            .out_stride = part->out_stride};
            for (uint32_t g = 0; g < l.side; g++) {
                uint8_t *to = scratch + g * VQ_TILE_BLOCKS * l.record_bytes;
                const uint8_t *rows = place(&l, &tile, g, row);
                tile.w[g] = rows ? to : tile.w[0];
                if (rows)
                    tiling->unpack[type](to, rows, l.stride, b, tile.n);
            }
            for (uint32_t t = part->token; t < part->token_end; t += GROUP, next_group(&l, &tile)) {
                const uint8_t *group = vq_matmul_group(act, t, &tile.n_tokens);
                tile.group = group + (size_t)b * tile.n_tokens * TOKEN_BYTES;
                tiling->multiply[type](&tile);
            }
        }
    }
}

void vq_tiles_run(const vq_tiling *tiling, const vq_matmul_part *part, void *scratch)
{
    if (part->act->kind == VQ_ACT_EXACT || vq_matmul_traits_of[part->w->type].floats)
        run_f32(tiling, part, scratch);
    else
        run_int8(tiling, part, scratch);
}
