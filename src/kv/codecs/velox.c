/* The project's own calibration-free codec: rows of Lloyd-Max codes in a rotated space (TurboQuant's), and what the
 * rows of 32 neighbouring keys have in common stored once.
 *
 * Keys are not centred: in SmolLM2, 71 % of a key's energy is the mean of its 32 neighbours.  The mean (4-bit codes,
 * 1/8 bit a value) goes to every score through one product with the query, so that the rows' codes spend their bits on
 * the rest: 2-bit keys have the error of 3-bit ones.  Values have little of a mean (18 %).  Norms take 8 bits under one
 * scale a granule, which pays for the mean where heads are small.
 *
 * Page: codes of two granules; 64 norms, one byte each; for each granule its norms' scale in f16 and, for keys, the
 * mean's norm in f16 and the mean's codes, dimension j in the low and j + (padded d)/2 in the high nibble of byte j.
 * A mean of 64 rows stands in the first granule. */
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"

enum { OPTION_BITS, OPTION_VALUES, OPTION_MEAN, N_OPTIONS, MEAN_BITS = 4 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a coordinate", .value = 3, .min = 1, .max = 8},
    [OPTION_VALUES] =
        {.name = "values", .help = "the same for values alone; 0: as keys", .value = 0, .min = 0, .max = 8},
    [OPTION_MEAN] = {.name = "mean",
                     .help = "rows of keys that share a mean: 32, 64, or 0 for none",
                     .value = VQ_GRANULE,
                     .min = 0,
                     .max = VQ_PAGE_ROWS},
};

struct velox_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_rowcode code, mean;
    uint32_t mean_rows; /* 0, 32 or 64; 0 for values */
};

static const struct velox_state *state(const vq_codec_state *s) { return (const struct velox_state *)(const void *)s; }

static struct velox_state *layout(vq_arena *arena, uint32_t d, vq_rotation *rotation)
{
    struct velox_state *s = vq_arena_take(arena, 1, sizeof *s);
    vq_rotation_layout(rotation, arena, d, false);
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "velox", err));
    const uint32_t mean_rows = (uint32_t)env->options[OPTION_MEAN];
    if (mean_rows != 0 && mean_rows != VQ_GRANULE && mean_rows != VQ_PAGE_ROWS)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "velox: mean is %u, must be 0, 32 or 64", mean_rows);
    const bool own = !env->keys && env->options[OPTION_VALUES] > 0;
    const uint32_t bits = (uint32_t)env->options[own ? OPTION_VALUES : OPTION_BITS];
    const vq_codes_kernels *k = &env->kernels->codes;
    vq_arena arena = {0};
    vq_rotation rotation;
    layout(&arena, env->d, &rotation);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct velox_state *s = layout(&arena, env->d, &rotation);
    const vq_status status =
        vq_rotation_draw(&rotation, k, vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    s->arena = arena;
    s->rotation = rotation;
    s->code = vq_rowcode_make(&vq_levels_gaussian[bits - 1], &s->rotation, k, env->d, env->keys,
                              env->keys ? VQ_FIT_UNBIASED : VQ_FIT_LEAST_SQUARES);
    s->mean = vq_rowcode_make(&vq_levels_gaussian[MEAN_BITS - 1], NULL, k, env->d, env->keys, VQ_FIT_LEAST_SQUARES);
    s->mean_rows = env->keys ? mean_rows : 0;
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

static size_t padded(const struct velox_state *c) { return (size_t)VQ_CODES_GROUP * c->code.n_groups; }

static uint32_t granule(const vq_codec_state *s)
{
    return state(s)->mean_rows == VQ_PAGE_ROWS ? VQ_PAGE_ROWS : VQ_GRANULE;
}

static bool has_mean(const struct velox_state *c, uint32_t granule)
{
    return c->mean_rows == VQ_GRANULE || (c->mean_rows == VQ_PAGE_ROWS && granule == 0);
}

/* Of what a granule has besides codes and norms. */
static size_t extra_bytes(const struct velox_state *c, uint32_t granule)
{
    return sizeof(uint16_t) + (has_mean(c, granule) ? sizeof(uint16_t) + padded(c) / 2 : 0);
}

static size_t extras_bytes(const struct velox_state *c) { return extra_bytes(c, 0) + extra_bytes(c, 1); }

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){
        .codes = 2 * vq_rowcode_granule_bytes(&state(s)->code),
        .scales = VQ_PAGE_ROWS + extras_bytes(state(s)),
    };
}

static size_t shared_bytes(const vq_codec_state *s) { return vq_rotation_bytes(&state(s)->rotation); }

static size_t norms_at(const struct velox_state *c) { return 2 * vq_rowcode_granule_bytes(&c->code); }

static size_t extra_at(const struct velox_state *c, uint32_t granule)
{
    return norms_at(c) + VQ_PAGE_ROWS + (granule ? extra_bytes(c, 0) : 0);
}

/* Takes the mean of the rotated rows y [mean_rows][d] off them; its norm and codes go to `to`. */
static void encode_mean(const struct velox_state *c, uint8_t *to, float *y)
{
    const uint32_t d = c->code.d;
    uint8_t codes[VQ_MAX_HEAD_DIM];
    float mean[VQ_MAX_HEAD_DIM] = {0};
    for (uint32_t i = 0; i < c->mean_rows; i++)
        for (uint32_t j = 0; j < d; j++)
            mean[j] += y[(size_t)i * d + j];
    for (uint32_t j = 0; j < d; j++)
        mean[j] *= 1.0F / (float)c->mean_rows;
    const uint16_t norm = vq_rowcode_encode_rotated(&c->mean, codes, mean);
    memcpy(to, &norm, sizeof norm);
    for (size_t j = 0; j < padded(c) / 2; j++)
        to[sizeof norm + j] = (uint8_t)(codes[j] | codes[padded(c) / 2 + j] << 4);
    for (uint32_t i = 0; i < c->mean_rows; i++)
        vq_rowcode_subtract(&c->mean, codes, norm, y + (size_t)i * d);
}

/* Rows y [32][d], rotated and less their mean. */
static void encode_rows(const struct velox_state *c, uint8_t *page, uint32_t granule, const float *y)
{
    const uint32_t d = c->code.d;
    float norms[VQ_GRANULE], most = 0;
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    uint8_t *bytes = page + norms_at(c) + (size_t)VQ_GRANULE * granule;
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        norms[i] = vq_f32_from_f16(vq_rowcode_encode_rotated(&c->code, codes + i * padded(c), y + (size_t)i * d));
        most = norms[i] > most ? norms[i] : most;
    }
    vq_rowcode_pack(&c->code, page + granule * vq_rowcode_granule_bytes(&c->code), codes);

    const uint16_t half = vq_f16_from_f32_clamped(most / 255);
    const float scale = vq_f32_from_f16(half), inv = scale > 0 ? 1 / scale : 0;
    memcpy(page + extra_at(c, granule), &half, sizeof half);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const float n = norms[i] * inv + 0.5F;
        bytes[i] = (uint8_t)(n < 255 ? n : 255);
    }
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct velox_state *c = state(s);
    const uint32_t d = c->code.d, step = granule(s);
    float y[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += step, x += (size_t)step * d) {
        memcpy(y, x, (size_t)step * d * sizeof *y);
        for (uint32_t i = 0; i < step; i++) {
            vq_rowcode_limit(&c->code, y + (size_t)i * d);
            vq_rotation_apply(&c->rotation, y + (size_t)i * d, scratch);
        }
        if (c->mean_rows)
            encode_mean(c, (uint8_t *)page + extra_at(c, row / VQ_GRANULE) + sizeof(uint16_t), y);
        for (uint32_t i = 0; i < step; i += VQ_GRANULE)
            encode_rows(c, page, (row + i) / VQ_GRANULE, y + (size_t)i * d);
    }
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static float half_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vq_f32_from_f16(half);
}

/* norms [64] as floats, and the means [n_granules] of keys that have them */
static void open_page(const struct velox_state *c, const uint8_t *page, uint32_t n_granules, float *norms,
                      vq_rowcode_mean *means)
{
    memset(norms, 0, VQ_PAGE_ROWS * sizeof *norms);
    for (uint32_t g = 0; g < n_granules; g++) {
        const uint8_t *extra = page + extra_at(c, g), *bytes = page + norms_at(c) + (size_t)VQ_GRANULE * g;
        const float scale = half_at(extra);
        c->code.k->scale_bytes(norms + (size_t)VQ_GRANULE * g, bytes, scale, VQ_GRANULE);
        if (has_mean(c, g)) {
            const vq_levels *levels = c->mean.levels;
            means[g].scale = half_at(extra + sizeof(uint16_t)) * levels->step;
            c->code.k->nibbles(means[g].u, extra + 2 * sizeof(uint16_t), levels->key[1], (uint32_t)(padded(c) / 2));
        } else if (c->mean_rows) {
            means[g] = means[0];
        }
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct velox_state *c = state(s);
    const uint32_t n_granules = granules(first + n);
    float norms[VQ_PAGE_ROWS], scratch[VQ_MAX_HEAD_DIM];
    vq_rowcode_mean means[2];
    open_page(c, page, n_granules, norms, means);
    vq_rowcode_decode_rotated(&c->code, page, norms, n_granules, first, n, x);
    for (uint32_t i = 0; i < n; i++, x += c->code.d) {
        const vq_rowcode_mean *mean = &means[(first + i) / VQ_GRANULE];
        for (uint32_t j = 0; c->mean_rows && j < c->code.d; j++)
            x[j] += (float)(2 * mean->u[j] - VQ_NARROW_TOP) * mean->scale;
        vq_rotation_invert(&c->rotation, x, scratch);
    }
}

static size_t query_bytes(const vq_codec_state *s) { return vq_rowcode_query_bytes(&state(s)->code); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    vq_rowcode_prepare(&state(s)->code, query, q);
}

static void fetch_next(const struct velox_state *c, const vq_rows *rows)
{
    if (rows->next)
        for (size_t i = 0; i < VQ_PAGE_ROWS + extras_bytes(c); i += 64)
            __builtin_prefetch((const uint8_t *)rows->next + norms_at(c) + i);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct velox_state *c = state(s);
    float norms[VQ_PAGE_ROWS];
    vq_rowcode_mean means[2];
    const vq_rowcode_page p = {.packed = page,
                               .next = rows->next,
                               .norms = norms,
                               .means = c->mean_rows ? means : NULL,
                               .n_granules = granules(rows->n)};
    fetch_next(c, rows);
    open_page(c, page, p.n_granules, norms, means);
    vq_rowcode_score(&c->code, &p, queries, vq_rowcode_query_bytes(&c->code), n_queries, out);
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct velox_state *c = state(s);
    float norms[VQ_PAGE_ROWS];
    const vq_rowcode_page p = {.packed = page, .next = rows->next, .norms = norms, .n_granules = granules(rows->n)};
    fetch_next(c, rows);
    open_page(c, page, p.n_granules, norms, NULL);
    vq_rowcode_mix(&c->code, &p, weights, n_queries, acc, c->code.d);
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct velox_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, c->code.d * sizeof *out);
    vq_rotation_invert(&c->rotation, out, scratch);
}

const vq_codec vq_codec_velox = {
    .name = "velox",
    .summary = "keys less the mean of 32 neighbours; rotated rows, Lloyd-Max codes, 8-bit norms",
    .paper = "this project; rows as in TurboQuant, 2025 (arXiv:2504.19874)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .score_error = 0.03F,
    .mix_error = 0.03F,
    .create = create,
    .destroy = destroy,
    .granule = granule,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .mix = mix,
    .finish = finish,
};
