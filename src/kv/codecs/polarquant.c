/* PolarQuant: a rotated row in blocks of 16 coordinates, each block a radius and 15 angles.  Level 1 has the angles of
 * 8 pairs on the circle (4 bits), levels 2, 3 and 4 those between the radii of the level below (2 bits each), which lie
 * in [0, pi/2] and crowd around pi/4 (kernels/polar.h).
 *
 * Page: for each row, 46 bits a block as one stream (quant/pack.h), rows 64; then radii in f16, d / 16 a row.
 *
 * Queries are rotated once and sums of values turned back once, so that a row that is read costs 15 lookups a block and
 * no rotation: a page's rows go through a tile in L1, rotated as they are, to the f32 kernels. */
#include <endian.h>
#include <string.h>

#include "base/rng.h"
#include "kv/codec_rows.h"
#include "quant/pack.h"

enum { BLOCK = VQ_POLAR_BLOCK, BLOCK_BITS = VQ_POLAR_BITS, MOST_BLOCKS = VQ_MAX_HEAD_DIM / BLOCK };

struct polar_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_rowcode limits; /* for vq_rowcode_limit */
    const vq_kernels *kernels;
    uint32_t d, n_blocks;
    bool keys;
};

static const struct polar_state *state(const vq_codec_state *s) { return (const struct polar_state *)(const void *)s; }

static struct polar_state *layout(vq_arena *arena, uint32_t d, vq_rotation *rotation)
{
    struct polar_state *s = vq_arena_take(arena, 1, sizeof *s);
    vq_rotation_layout(rotation, arena, d, false);
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "polarquant", err));
    if (env->d % BLOCK != 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "polarquant: head size %u is no multiple of %d", env->d, BLOCK);
    vq_arena arena = {0};
    vq_rotation rotation;
    layout(&arena, env->d, &rotation);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct polar_state *s = layout(&arena, env->d, &rotation);
    const vq_codes_kernels *k = &env->kernels->codes;
    const vq_status status =
        vq_rotation_draw(&rotation, k, vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    *s = (struct polar_state){
        .arena = arena,
        .rotation = rotation,
        .limits = vq_rowcode_make(&vq_levels_uniform[0], NULL, k, env->d, env->keys, VQ_FIT_LEAST_SQUARES),
        .kernels = env->kernels,
        .d = env->d,
        .n_blocks = env->d / BLOCK,
        .keys = env->keys,
    };
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

static void destroy(vq_codec_state *s)
{
    if (!s)
        return;
    vq_arena arena = state(s)->arena;
    vq_arena_free(&arena);
}

static size_t row_bytes(const struct polar_state *c) { return vq_pack_bytes((size_t)c->n_blocks * BLOCK_BITS, 1); }

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    const struct polar_state *c = state(s);
    *out = (vq_page_bytes){
        .codes = VQ_PAGE_ROWS * row_bytes(c),
        .scales = VQ_PAGE_ROWS * c->n_blocks * sizeof(uint16_t),
    };
}

static size_t shared_bytes(const vq_codec_state *s) { return vq_rotation_bytes(&state(s)->rotation); }

static const uint16_t *radii_of(const struct polar_state *c, const void *page, size_t row)
{
    return (const uint16_t *)(const void *)((const uint8_t *)page + VQ_PAGE_ROWS * row_bytes(c)) + row * c->n_blocks;
}

/* The codes of one row as one stream. */
static void put_row(const struct polar_state *c, uint8_t *stream, const uint64_t *codes)
{
    uint8_t row[MOST_BLOCKS * BLOCK_BITS / 8 + sizeof *codes] = {0};
    for (uint32_t b = 0; b < c->n_blocks; b++) {
        const uint32_t at = b * BLOCK_BITS;
        const uint64_t bits = htole64(codes[b] << at % 8 | row[at / 8]); /* the rest of the block before */
        memcpy(row + at / 8, &bits, sizeof bits);
    }
    memcpy(stream, row, row_bytes(c));
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct polar_state *c = state(s);
    const uint32_t n_blocks = VQ_GRANULE * c->n_blocks;
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM], radii[VQ_GRANULE * MOST_BLOCKS];
    uint64_t codes[VQ_GRANULE * MOST_BLOCKS];
    for (size_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d) {
        memcpy(y, x, (size_t)VQ_GRANULE * c->d * sizeof *y);
        for (uint32_t i = 0; i < VQ_GRANULE; i++) {
            vq_rowcode_limit(&c->limits, y + (size_t)i * c->d);
            vq_rotation_apply(&c->rotation, y + (size_t)i * c->d, scratch);
        }
        /* unbiased for keys, least squares for values (quant/rowcode.h) */
        c->kernels->polar.encode(codes, radii, y, n_blocks, c->keys);
        c->kernels->vec.f32_to_f16((uint16_t *)(uintptr_t)radii_of(c, page, row), radii, n_blocks);
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            put_row(c, (uint8_t *)page + (row + i) * row_bytes(c), codes + (size_t)i * c->n_blocks);
    }
}

/* ---- reading rows where they lie, in the rotated space ---- */

enum { TILE_FLOATS = 8192 }; /* 32 KiB beside the page and the queries */

static uint32_t tile_rows(const struct polar_state *c)
{
    return TILE_FLOATS / c->d < VQ_PAGE_ROWS ? TILE_FLOATS / c->d : VQ_PAGE_ROWS;
}

/* Rows [first, first + n) before they are turned back, at most a tile.  Rows of whole bytes, as those of 4 blocks,
 * follow each other without a gap. */
static void read_rows(const struct polar_state *c, const void *page, uint32_t first, uint32_t n, float *x)
{
    uint64_t codes[TILE_FLOATS / BLOCK];
    float radii[TILE_FLOATS / BLOCK];
    const size_t each = row_bytes(c);
    const uint32_t at_once = each * 8 == (size_t)c->n_blocks * BLOCK_BITS ? n : 1;
    for (uint32_t i = 0; i < n; i += at_once)
        c->kernels->polar.unpack(codes + (size_t)i * c->n_blocks, (const uint8_t *)page + (first + i) * each,
                                 at_once * c->n_blocks);
    c->kernels->vec.f16_to_f32(radii, radii_of(c, page, first), n * c->n_blocks);
    c->kernels->polar.decode(x, codes, radii, n * c->n_blocks);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct polar_state *c = state(s);
    const uint32_t step = tile_rows(c);
    float scratch[VQ_MAX_HEAD_DIM];
    for (uint32_t at = 0; at < n; at += step)
        read_rows(c, page, first + at, n - at < step ? n - at : step, x + (size_t)at * c->d);
    for (uint32_t i = 0; i < n; i++)
        vq_rotation_invert(&c->rotation, x + (size_t)i * c->d, scratch);
}

static size_t query_stride(const struct polar_state *c) { return ((size_t)c->d + 15) / 16 * 16; }

static size_t query_bytes(const vq_codec_state *s) { return query_stride(state(s)) * sizeof(float); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct polar_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(query, q, c->d * sizeof *q);
    vq_rotation_apply(&c->rotation, query, scratch);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct polar_state *c = state(s);
    _Alignas(64) float tile[TILE_FLOATS];
    const uint32_t step = tile_rows(c);
    for (uint32_t first = 0; first < rows->n; first += step) {
        const uint32_t n = rows->n - first < step ? rows->n - first : step;
        read_rows(c, page, first, n, tile);
        c->kernels->attention.score_f32(queries, (uint32_t)query_stride(c), n_queries, tile, n, c->d, out + first,
                                        VQ_PAGE_ROWS);
    }
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct polar_state *c = state(s);
    _Alignas(64) float tile[TILE_FLOATS];
    const uint32_t step = tile_rows(c);
    for (uint32_t first = 0; first < rows->n; first += step) {
        const uint32_t n = rows->n - first < step ? rows->n - first : step;
        read_rows(c, page, first, n, tile);
        c->kernels->attention.mix_f32(weights + first, VQ_PAGE_ROWS, n_queries, tile, n, c->d, acc, NULL);
    }
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct polar_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, c->d * sizeof *out);
    vq_rotation_invert(&c->rotation, out, scratch);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct polar_state *c = state(s);
    const size_t bytes = row_bytes(c), radii = VQ_PAGE_ROWS * bytes, radii_bytes = c->n_blocks * sizeof(uint16_t);
    memmove((uint8_t *)dst + i * bytes, (const uint8_t *)src + j * bytes, bytes);
    memmove((uint8_t *)dst + radii + i * radii_bytes, (const uint8_t *)src + radii + j * radii_bytes, radii_bytes);
}

const vq_codec vq_codec_polarquant = {
    .name = "polarquant",
    .summary = "rotated rows, blocks of 16 as a radius and recursive angles of 4, 2, 2 and 2 bits",
    .paper = "Han, Kacham, Karbasi, Mirrokni, Zandieh: PolarQuant, 2025 (arXiv:2502.02617)",
    .sinks = 4,
    .residual = 32,
    .create = create,
    .destroy = destroy,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .mix = mix,
    .finish = finish,
    .copy_row = copy_row,
};
