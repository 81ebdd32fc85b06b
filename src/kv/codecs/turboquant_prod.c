/* TurboQuant for inner products: b - 1 bits of Lloyd-Max codes, and one bit for the sign of a random projection of what
 * they leave (QJL), whose estimate of <q, residual> is unbiased.  One bit in all means the sketch alone.
 *
 * Page: codes of both granules, signs of both granules, 64 norms of the coded rows, 64 of the residuals. Values take
 * least-squares norms for the signs: unbiased ones would add more noise than they remove. */
#include <string.h>

#include "base/rng.h"
#include "kv/codec_rows.h"

enum { OPTION_BITS, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] =
        {.name = "bits", .help = "bits of a coordinate, the sign's included", .value = 4, .min = 1, .max = 8},
};

struct prod_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation, projection;
    vq_rowcode codes, signs; /* of rotated rows, of projected residuals: both without a rotation of their own */
    bool coded;              /* more than the signs */
};

static const struct prod_state *state(const vq_codec_state *s) { return (const struct prod_state *)(const void *)s; }

static struct prod_state *layout(vq_arena *arena, uint32_t d, vq_rotation rotations[2])
{
    struct prod_state *s = vq_arena_take(arena, 1, sizeof *s);
    vq_rotation_layout(&rotations[0], arena, d, false);
    vq_rotation_layout(&rotations[1], arena, d, false);
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "turboquant-prod", err));
    const uint32_t bits = (uint32_t)env->options[OPTION_BITS];
    const vq_codes_kernels *k = &env->kernels->codes;
    vq_arena arena = {0};
    vq_rotation rotations[2];
    layout(&arena, env->d, rotations);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct prod_state *s = layout(&arena, env->d, rotations);
    for (uint64_t i = 0; i < 2; i++) {
        const vq_status status =
            vq_rotation_draw(&rotations[i], k, vq_hash64(env->seed, env->layer, env->head, env->keys, i), err);
        if (status != VQ_OK) {
            vq_arena_free(&arena);
            return status;
        }
    }
    s->arena = arena;
    s->rotation = rotations[0];
    s->projection = rotations[1];
    s->coded = bits > 1;
    s->codes =
        vq_rowcode_make(&vq_levels_gaussian[bits > 1 ? bits - 2 : 0], NULL, k, env->d, env->keys, VQ_FIT_LEAST_SQUARES);
    s->signs = vq_rowcode_make(&vq_levels_uniform[0], NULL, k, env->d, env->keys,
                               env->keys ? VQ_FIT_SKETCH : VQ_FIT_LEAST_SQUARES);
    s->signs.wide_query = s->codes.wide_query && s->coded;
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

typedef struct parts {
    uint8_t *codes[2], *signs[2];
    uint16_t *norms, *rests;
} parts;

static parts parts_of(const struct prod_state *c, const void *page)
{
    const size_t codes = c->coded ? vq_rowcode_granule_bytes(&c->codes) : 0;
    const size_t signs = vq_rowcode_granule_bytes(&c->signs);
    uint8_t *at = (uint8_t *)(uintptr_t)page; /* a part that is only read stays so */
    parts p = {.codes = {at, at + codes}, .signs = {at + 2 * codes, at + 2 * codes + signs}};
    p.norms = (uint16_t *)(void *)(at + 2 * codes + 2 * signs);
    p.rests = c->coded ? p.norms + VQ_PAGE_ROWS : p.norms;
    return p;
}

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    const struct prod_state *c = state(s);
    const size_t codes = c->coded ? vq_rowcode_granule_bytes(&c->codes) : 0;
    *out = (vq_page_bytes){
        .codes = 2 * (codes + vq_rowcode_granule_bytes(&c->signs)),
        .scales = (c->coded ? 2 : 1) * VQ_PAGE_ROWS * sizeof(uint16_t),
    };
}

static size_t shared_bytes(const vq_codec_state *s)
{
    return vq_rotation_bytes(&state(s)->rotation) + vq_rotation_bytes(&state(s)->projection);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct prod_state *c = state(s);
    const parts p = parts_of(c, page);
    const uint32_t d = c->signs.d;
    const size_t stride = (size_t)VQ_CODES_GROUP * c->signs.n_groups;
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM], signs[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    float y[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE) {
        for (uint32_t i = 0; i < VQ_GRANULE; i++, x += d) {
            memcpy(y, x, d * sizeof *y);
            vq_rowcode_limit(&c->signs, y);
            vq_rotation_apply(&c->rotation, y, scratch);
            if (c->coded) {
                p.norms[row + i] = vq_rowcode_encode_rotated(&c->codes, codes + i * stride, y);
                vq_rowcode_subtract(&c->codes, codes + i * stride, p.norms[row + i], y);
            }
            vq_rotation_apply(&c->projection, y, scratch);
            p.rests[row + i] = vq_rowcode_encode_rotated(&c->signs, signs + i * stride, y);
        }
        if (c->coded)
            vq_rowcode_pack(&c->codes, p.codes[row / VQ_GRANULE], codes);
        vq_rowcode_pack(&c->signs, p.signs[row / VQ_GRANULE], signs);
    }
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct prod_state *c = state(s);
    const parts p = parts_of(c, page);
    const uint32_t d = c->signs.d;
    const uint32_t n_granules = granules(first + n);
    float y[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM], norms[VQ_PAGE_ROWS];
    vq_rowcode_norms(&c->signs, norms, p.rests, n_granules);
    vq_rowcode_decode_rotated(&c->signs, p.signs[0], norms, n_granules, first, n, x);
    if (c->coded) {
        vq_rowcode_norms(&c->codes, norms, p.norms, n_granules);
        vq_rowcode_decode_rotated(&c->codes, p.codes[0], norms, n_granules, first, n, y);
    }
    for (uint32_t i = 0; i < n; i++, x += d) {
        vq_rotation_invert(&c->projection, x, scratch);
        for (uint32_t j = 0; c->coded && j < d; j++)
            x[j] += y[(size_t)i * d + j];
        vq_rotation_invert(&c->rotation, x, scratch);
    }
}

static size_t query_bytes(const vq_codec_state *s)
{
    const struct prod_state *c = state(s);
    return vq_rowcode_query_bytes(&c->signs) + (c->coded ? vq_rowcode_query_bytes(&c->codes) : 0);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct prod_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    memcpy(y, q, c->signs.d * sizeof *y);
    vq_rotation_apply(&c->rotation, y, scratch);
    if (c->coded)
        vq_rowcode_prepare_rotated(&c->codes, (uint8_t *)query + vq_rowcode_query_bytes(&c->signs), y);
    vq_rotation_apply(&c->projection, y, scratch);
    vq_rowcode_prepare_rotated(&c->signs, query, y);
}

/* One part of a page as its row code reads it. */
static vq_rowcode_page open_part(const vq_rowcode *code, const uint8_t *packed, const uint16_t *norms,
                                 const uint8_t *next, uint32_t n_granules, float *norms_f32)
{
    vq_rowcode_norms(code, norms_f32, norms, n_granules);
    return (vq_rowcode_page){.packed = packed, .next = next, .norms = norms_f32, .n_granules = n_granules};
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    enum { AT_ONCE = 8 };
    const struct prod_state *c = state(s);
    const parts p = parts_of(c, page), next = parts_of(c, rows->next ? rows->next : page);
    const size_t stride = query_bytes(s);
    float norms[VQ_PAGE_ROWS], coded[AT_ONCE * VQ_PAGE_ROWS];
    vq_rowcode_page part =
        open_part(&c->signs, p.signs[0], p.rests, rows->next ? next.signs[0] : NULL, granules(rows->n), norms);
    vq_rowcode_score(&c->signs, &part, queries, stride, n_queries, out);
    if (!c->coded)
        return;
    part = open_part(&c->codes, p.codes[0], p.norms, rows->next ? next.codes[0] : NULL, granules(rows->n), norms);
    const uint8_t *q = (const uint8_t *)queries + vq_rowcode_query_bytes(&c->signs);
    for (uint32_t i = 0; i < n_queries; i += AT_ONCE) {
        const uint32_t now = n_queries - i < AT_ONCE ? n_queries - i : AT_ONCE;
        vq_rowcode_score(&c->codes, &part, q + i * stride, stride, now, coded);
        for (uint32_t j = 0; j < now * VQ_PAGE_ROWS; j++)
            out[(size_t)i * VQ_PAGE_ROWS + j] += coded[j];
    }
}

static size_t acc_len(const vq_codec_state *s) { return (size_t)state(s)->signs.d * (state(s)->coded ? 2 : 1); }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct prod_state *c = state(s);
    const parts p = parts_of(c, page), next = parts_of(c, rows->next ? rows->next : page);
    float norms[VQ_PAGE_ROWS];
    vq_rowcode_page part =
        open_part(&c->signs, p.signs[0], p.rests, rows->next ? next.signs[0] : NULL, granules(rows->n), norms);
    vq_rowcode_mix(&c->signs, &part, weights, n_queries, acc, acc_len(s));
    if (!c->coded)
        return;
    part = open_part(&c->codes, p.codes[0], p.norms, rows->next ? next.codes[0] : NULL, granules(rows->n), norms);
    vq_rowcode_mix(&c->codes, &part, weights, n_queries, acc + c->codes.d, acc_len(s));
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct prod_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, c->signs.d * sizeof *out);
    vq_rotation_invert(&c->projection, out, scratch);
    for (uint32_t j = 0; c->coded && j < c->signs.d; j++)
        out[j] += acc[c->signs.d + j];
    vq_rotation_invert(&c->rotation, out, scratch);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct prod_state *c = state(s);
    const parts to = parts_of(c, dst), from = parts_of(c, src);
    if (c->coded) {
        vq_rowcode_copy_row(&c->codes, to.codes[0], i, from.codes[0], j);
        to.norms[i] = from.norms[j];
    }
    vq_rowcode_copy_row(&c->signs, to.signs[0], i, from.signs[0], j);
    to.rests[i] = from.rests[j];
}

const vq_codec vq_codec_turboquant_prod = {
    .name = "turboquant-prod",
    .summary = "rotated rows, b - 1 bits of Lloyd-Max codes and a sign sketch of the residual; unbiased",
    .paper = "Zandieh, Daliri, Hadian, Mirrokni: TurboQuant, 2025 (arXiv:2504.19874)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .unbiased = true,
    .score_error = 0.03F,
    .mix_error = 0.06F,
    .create = create,
    .destroy = destroy,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .acc_len = acc_len,
    .mix = mix,
    .finish = finish,
    .copy_row = copy_row,
};
