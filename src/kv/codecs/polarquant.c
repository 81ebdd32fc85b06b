/* PolarQuant: a rotated row in blocks of 16 coordinates, each block a radius and 15 angles.  Level 1 has the angles of
 * 8 pairs on the circle (4 bits), levels 2, 3 and 4 those between the radii of the level below (2 bits each), which lie
 * in [0, pi/2] and crowd around pi/4.
 *
 * Page: for each row, 46 bits a block as one stream (quant/pack.h), rows 64; then radii in f16, d / 16 a row.
 *
 * Queries are rotated once and sums of values turned back once, so that a row that is read costs 15 lookups a block and
 * no rotation: a page's rows go through a tile in L1, rotated as they are, to the f32 kernels. */
#include <endian.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"
#include "quant/pack.h"
#include "quant/polar.h"

enum { BLOCK = 16, BLOCK_BITS = 8 * 4 + 7 * 2, CIRCLE_BITS = 4, QUARTER_BITS = 2 };

struct polar_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_rowcode limits; /* for vq_rowcode_limit */
    const vq_attention_kernels *attention;
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
        .attention = &env->kernels->attention,
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

/* Sector of (a, b): the half plane first, then the edges that the point has passed.  No arc tangent: its last bit
 * differs from library to library. */
static uint32_t sector(float a, float b)
{
    const uint32_t start = b < 0 || (b == 0 && a < 0) ? 8 : 0;
    uint32_t k = start;
    for (uint32_t e = start + 1; e < start + 8; e++)
        k += vq_polar_circle_edges[e][0] * b >= vq_polar_circle_edges[e][1] * a;
    return k;
}

/* Cell of the angle between radii a and b. */
static uint32_t quarter(uint32_t level, float a, float b)
{
    uint32_t k = 0;
    for (uint32_t e = 0; e < 3; e++)
        k += b * vq_polar_quarter_bounds[level][e][0] > a * vq_polar_quarter_bounds[level][e][1];
    return k;
}

/* Codes in stream order: 8 of level 1, then 4, 2 and 1. */
static void block_codes(uint8_t codes[15], const float *y)
{
    float r[8];
    for (uint32_t i = 0; i < 8; i++) {
        codes[i] = (uint8_t)sector(y[2 * i], y[2 * i + 1]);
        r[i] = sqrtf(y[2 * i] * y[2 * i] + y[2 * i + 1] * y[2 * i + 1]);
    }
    codes += 8;
    for (uint32_t level = 0, n = 4; level < 3; level++, codes += n, n /= 2)
        for (uint32_t i = 0; i < n; i++) {
            codes[i] = (uint8_t)quarter(level, r[2 * i], r[2 * i + 1]);
            r[i] = sqrtf(r[2 * i] * r[2 * i] + r[2 * i + 1] * r[2 * i + 1]);
        }
}

/* The unit vector that 15 codes stand for. */
static void block_unit(float y[BLOCK], const uint8_t codes[15])
{
    float r[8] = {1}, next[8];
    for (uint32_t level = 3, n = 1; level-- > 0; n *= 2) {
        const uint8_t *c = codes + 16 - 2 * n;
        for (uint32_t i = 0; i < n; i++) {
            next[2 * i] = r[i] * vq_polar_quarter[level][c[i]][0];
            next[2 * i + 1] = r[i] * vq_polar_quarter[level][c[i]][1];
        }
        memcpy(r, next, 2 * n * sizeof *r);
    }
    for (uint32_t i = 0; i < 8; i++) {
        y[2 * i] = r[i] * vq_polar_circle[codes[i]][0];
        y[2 * i + 1] = r[i] * vq_polar_circle[codes[i]][1];
    }
}

static void move_codes(uint8_t *stream, uint32_t block, uint8_t codes[15], bool put)
{
    size_t at = (size_t)block * BLOCK_BITS;
    for (uint32_t i = 0; i < 15; i++) {
        const uint32_t bits = i < 8 ? CIRCLE_BITS : QUARTER_BITS;
        if (put)
            vq_pack_put(stream, at, bits, codes[i]);
        else
            codes[i] = (uint8_t)vq_pack_get(stream, at, bits);
        at += bits;
    }
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct polar_state *c = state(s);
    uint16_t *radii = (uint16_t *)(void *)((uint8_t *)page + VQ_PAGE_ROWS * row_bytes(c));
    float y[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM], unit[BLOCK];
    for (size_t row = first; row < first + n; row++, x += c->d) {
        uint8_t *stream = (uint8_t *)page + row * row_bytes(c), codes[15];
        memcpy(y, x, c->d * sizeof *y);
        vq_rowcode_limit(&c->limits, y);
        vq_rotation_apply(&c->rotation, y, scratch);
        memset(stream, 0, row_bytes(c));
        for (uint32_t b = 0; b < c->n_blocks; b++) {
            const float *block = y + (size_t)b * BLOCK;
            block_codes(codes, block);
            block_unit(unit, codes);
            move_codes(stream, b, codes, true);
            float dot = 0, squares = 0;
            for (uint32_t j = 0; j < BLOCK; j++) {
                dot += block[j] * unit[j];
                squares += block[j] * block[j];
            }
            /* unbiased for keys, least squares for values (quant/rowcode.h) */
            const float radius = !(dot > 0) ? 0 : c->keys ? squares / dot : dot;
            radii[row * c->n_blocks + b] = vq_f16_from_f32_clamped(radius);
        }
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct polar_state *c = state(s);
    const uint16_t *radii = (const uint16_t *)(const void *)((const uint8_t *)page + VQ_PAGE_ROWS * row_bytes(c));
    float scratch[VQ_MAX_HEAD_DIM];
    for (size_t row = first; row < first + n; row++, x += c->d) {
        uint8_t codes[15];
        for (uint32_t b = 0; b < c->n_blocks; b++) {
            float *block = x + (size_t)b * BLOCK;
            move_codes((uint8_t *)(uintptr_t)page + row * row_bytes(c), b, codes, false);
            block_unit(block, codes);
            const float radius = vq_f32_from_f16(radii[row * c->n_blocks + b]);
            for (uint32_t j = 0; j < BLOCK; j++)
                block[j] *= radius;
        }
        vq_rotation_invert(&c->rotation, x, scratch);
    }
}

/* ---- reading rows where they lie, in the rotated space ---- */

enum { TILE_FLOATS = 8192 }; /* 32 KiB beside the page and the queries */

static uint32_t tile_rows(const struct polar_state *c)
{
    return TILE_FLOATS / c->d < VQ_PAGE_ROWS ? TILE_FLOATS / c->d : VQ_PAGE_ROWS;
}

/* block_unit times the radius, from the 46 bits themselves. */
static void block_values(float y[BLOCK], uint64_t bits, float radius)
{
    const float *top = vq_polar_quarter[2][bits >> 44 & 3];
    const float *left = vq_polar_quarter[1][bits >> 40 & 3], *right = vq_polar_quarter[1][bits >> 42 & 3];
    const float r[4] = {radius * top[0] * left[0], radius * top[0] * left[1], radius * top[1] * right[0],
                        radius * top[1] * right[1]};
    for (uint32_t i = 0; i < 4; i++) {
        const float *q = vq_polar_quarter[0][bits >> (32 + 2 * i) & 3];
        const float *a = vq_polar_circle[bits >> (8 * i) & 15], *b = vq_polar_circle[bits >> (8 * i + 4) & 15];
        const float first = r[i] * q[0], second = r[i] * q[1];
        y[4 * i] = first * a[0];
        y[4 * i + 1] = first * a[1];
        y[4 * i + 2] = second * b[0];
        y[4 * i + 3] = second * b[1];
    }
}

/* Rows [first, first + n) before they are turned back.  A block's bits are read as eight bytes, which may reach beyond
 * its row, but not beyond the radii that follow the rows. */
static void read_rows(const struct polar_state *c, const void *page, uint32_t first, uint32_t n, float *x)
{
    const uint8_t *codes = page;
    const uint16_t *radii = (const uint16_t *)(const void *)(codes + VQ_PAGE_ROWS * row_bytes(c));
    for (size_t row = first; row < first + n; row++) {
        const uint8_t *stream = codes + row * row_bytes(c);
        for (uint32_t b = 0; b < c->n_blocks; b++, x += BLOCK) {
            const uint32_t at = b * BLOCK_BITS;
            uint64_t bits;
            memcpy(&bits, stream + at / 8, sizeof bits);
            block_values(x, le64toh(bits) >> at % 8, vq_f32_from_f16(radii[row * c->n_blocks + b]));
        }
    }
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
        c->attention->score_f32(queries, (uint32_t)query_stride(c), n_queries, tile, n, c->d, out + first,
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
        c->attention->mix_f32(weights + first, VQ_PAGE_ROWS, n_queries, tile, n, c->d, acc, NULL);
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
