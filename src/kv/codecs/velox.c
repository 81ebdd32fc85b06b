/* The project's own calibration-free codec: rows of Lloyd-Max codes in a rotated space (TurboQuant's), and what the
 * rows of 32 neighbouring keys have in common stored once.
 *
 * Keys are not centred: in SmolLM2, 71 % of a key's energy is the mean of its 32 neighbours.  The mean (4-bit codes,
 * 1/8 bit a value) goes to every score through one product with the query, so that the rows' codes spend their bits on
 * the rest: 2-bit keys have the error of 3-bit ones.  Values have little of a mean (18 %).  Norms take 8 bits under one
 * scale a granule, which pays for the mean where heads are small.
 *
 * Page: codes of two granules; 64 norms, one byte each; for each granule its norms' scale and, for keys, the mean
 * (kv/codec_near.h).  A mean of 64 rows stands in the first granule.
 *
 * With `channels`, what the rows of a granule differ by is first divided, channel by channel, by the root of its
 * deviation (2^(-k/4) of the largest, k in 4 bits, nibbles after the mean's), and the query is multiplied by the same.
 * So a few channels that vary much do not spread their error over all others, to which queries may listen: in Gemma 3,
 * whose keys are normalised, that divides the error of scores at 2 bits by 1.5, in its global layers by 3.  A query is
 * then folded, rotated and rounded for every granule: in integers (quant/folded.h) where the rotation is one Hadamard
 * matrix and 8 bits of a query will do, else as any query is. */
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_near.h"
#include "kv/codec_rows.h"
#include "quant/folded.h"

enum { OPTION_BITS, OPTION_VALUES, OPTION_MEAN, OPTION_CHANNELS, N_OPTIONS, QUERIES_AT_ONCE = 4 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a coordinate", .value = 3, .min = 1, .max = 8},
    [OPTION_VALUES] =
        {.name = "values", .help = "the same for values alone; 0: as keys", .value = 0, .min = 0, .max = 8},
    [OPTION_MEAN] = {.name = "mean",
                     .help = "rows of keys that share a mean: 32, 64, or 0 for none",
                     .value = VQ_GRANULE,
                     .min = 0,
                     .max = VQ_PAGE_ROWS},
    [OPTION_CHANNELS] = {.name = "channels",
                         .help = VQ_NEAR_CHANNELS_HELP,
                         .value = VQ_NEAR_CHANNELS_AUTO,
                         .min = 0,
                         .max = VQ_NEAR_CHANNELS_AUTO},
};

struct velox_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_rowcode code, mean;
    uint32_t mean_rows; /* 0, 32 or 64; 0 for values */
    bool scales_channels;
    bool folds; /* .. into integers */
    vq_folding folding;
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
    const double channels = env->options[OPTION_CHANNELS];
    const bool without = channels == VQ_NEAR_CHANNELS_AUTO && mean_rows != VQ_GRANULE;
    const bool scales_channels = !without && vq_near_scales(channels, env->d);
    if (scales_channels && mean_rows != VQ_GRANULE)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "velox: channels=1 goes with mean=32, not %u", mean_rows);
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
    /* A least-squares norm has the smaller error, but it shrinks every row, and a sum of values adds the shrinking up
     * while it averages the rest away.  Of 1-bit values the rest is too much. */
    s->code = vq_rowcode_make(&vq_levels_gaussian[bits - 1], &s->rotation, k, env->d, env->keys,
                              env->keys || bits > 1 ? VQ_FIT_UNBIASED : VQ_FIT_LEAST_SQUARES);
    s->mean = vq_near_code(k, env->d, env->keys);
    s->mean_rows = env->keys ? mean_rows : 0;
    s->scales_channels = env->keys && scales_channels;
    s->folds = s->scales_channels && !s->code.wide_query && vq_folding_fits(&s->rotation);
    s->folding = (vq_folding){
        .fold = &env->kernels->folded, .k = k, .rotation = &s->rotation, .d = env->d, .step = s->code.levels->step};
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
    return sizeof(uint16_t) + (has_mean(c, granule) ? vq_near_mean_bytes((uint32_t)padded(c)) : 0) +
           (c->scales_channels ? padded(c) / 2 : 0);
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

/* Where a granule's scales of channels begin, in its extra bytes. */
static size_t channels_at(const struct velox_state *c) { return 2 * sizeof(uint16_t) + padded(c) / 2; }

/* Rows y [32][d], rotated and less their mean. */
static void encode_rows(const struct velox_state *c, uint8_t *page, uint32_t granule, const float *y)
{
    const uint32_t d = c->code.d;
    float norms[VQ_GRANULE];
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        norms[i] = vq_f32_from_f16(vq_rowcode_encode_rotated(&c->code, codes + i * padded(c), y + (size_t)i * d));
    }
    vq_rowcode_pack(&c->code, page + granule * vq_rowcode_granule_bytes(&c->code), codes);
    vq_near_pack_gains(page + norms_at(c) + (size_t)VQ_GRANULE * granule, page + extra_at(c, granule), norms);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct velox_state *c = state(s);
    const uint32_t d = c->code.d, step = granule(s);
    float y[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += step, x += (size_t)step * d) {
        uint8_t *extra = (uint8_t *)page + extra_at(c, row / VQ_GRANULE);
        memcpy(y, x, (size_t)step * d * sizeof *y);
        for (uint32_t i = 0; i < step; i++)
            vq_rowcode_limit(&c->code, y + (size_t)i * d);
        if (c->scales_channels)
            vq_near_scale_channels(extra + channels_at(c), y, d);
        for (uint32_t i = 0; i < step; i++)
            vq_rotation_apply(&c->rotation, y + (size_t)i * d, scratch);
        if (c->mean_rows)
            vq_near_take_mean(&c->mean, extra + sizeof(uint16_t), y, c->mean_rows);
        for (uint32_t i = 0; i < step; i += VQ_GRANULE)
            encode_rows(c, page, (row + i) / VQ_GRANULE, y + (size_t)i * d);
    }
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

/* norms [64] as floats, and the means [n_granules] of keys that have them */
static void open_page(const struct velox_state *c, const uint8_t *page, uint32_t n_granules, float *norms,
                      vq_rowcode_mean *means)
{
    memset(norms, 0, VQ_PAGE_ROWS * sizeof *norms);
    for (uint32_t g = 0; g < n_granules; g++) {
        const uint8_t *extra = page + extra_at(c, g);
        vq_near_open_gains(c->code.k, page + norms_at(c) + (size_t)VQ_GRANULE * g, extra,
                           norms + (size_t)VQ_GRANULE * g);
        if (has_mean(c, g)) {
            vq_near_open_mean(&c->mean, extra + sizeof(uint16_t), &means[g]);
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
        if (c->scales_channels) {
            vq_near_open_channels((const uint8_t *)page + extra_at(c, (first + i) / VQ_GRANULE) + channels_at(c),
                                  scratch, c->code.d);
            for (uint32_t j = 0; j < c->code.d; j++)
                x[j] *= scratch[j];
        }
    }
}

/* With scales of channels a query waits for them. */
static size_t query_bytes(const vq_codec_state *s)
{
    const struct velox_state *c = state(s);
    if (c->folds)
        return vq_folding_query_bytes(&c->folding);
    return c->scales_channels ? (c->code.d * sizeof(float) + 63) / 64 * 64 : vq_rowcode_query_bytes(&c->code);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct velox_state *c = state(s);
    if (c->folds)
        vq_folding_prepare(&c->folding, query, q);
    else if (c->scales_channels)
        memcpy(query, q, c->code.d * sizeof *q);
    else
        vq_rowcode_prepare(&c->code, query, q);
}

static void fetch_next(const struct velox_state *c, const vq_rows *rows)
{
    if (rows->next)
        for (size_t i = 0; i < VQ_PAGE_ROWS + extras_bytes(c); i += 64)
            __builtin_prefetch((const uint8_t *)rows->next + norms_at(c) + i);
}

/* Queries in integers, which are folded granule by granule. */
static void score_folded(const struct velox_state *c, const vq_rowcode_page *p, const uint8_t *page,
                         const uint8_t *queries, size_t stride, uint32_t n_queries, float *out)
{
    vq_folded_page folded;
    uint8_t tile[VQ_MAX_HEAD_DIM * VQ_PAGE_ROWS];
    int32_t dots[VQ_FOLDED_AT_ONCE * VQ_PAGE_ROWS];
    const size_t each = sizeof folded.rounded[0];
    const bool few = n_queries <= QUERIES_AT_ONCE;
    if (!few)
        vq_rowcode_unpack_keys(&c->code, p, tile);
    for (uint32_t now; n_queries > 0; n_queries -= now, queries += now * stride, out += (size_t)now * VQ_PAGE_ROWS) {
        now = n_queries < VQ_FOLDED_AT_ONCE ? n_queries : VQ_FOLDED_AT_ONCE;
        for (uint32_t g = 0; g < p->n_granules; g++) {
            const uint8_t *channels = page + extra_at(c, g) + channels_at(c);
            vq_folding_meet(&c->folding, &folded, g, queries, stride, now, channels, &p->means[g]);
            vq_rowcode_dots(&c->code, p, few ? NULL : tile, g, folded.rounded[0][g], each, now, dots);
        }
        vq_folding_finish(&c->folding, &folded, dots, p->n_granules, now, p->norms, out);
    }
}

/* One granule, whose rows are numbered from 0 in `part`, for queries as they came. */
static void score_scaled(const struct velox_state *c, const uint8_t *channels, const vq_rowcode_page *part,
                         const uint8_t *queries, size_t stride, uint32_t n, float *out)
{
    _Alignas(64) uint8_t prepared[QUERIES_AT_ONCE * (64 + 2 * VQ_MAX_HEAD_DIM)];
    float scales[VQ_MAX_HEAD_DIM], folded[VQ_MAX_HEAD_DIM], sums[QUERIES_AT_ONCE * VQ_PAGE_ROWS];
    const size_t each = vq_rowcode_query_bytes(&c->code);
    vq_near_open_channels(channels, scales, c->code.d);
    for (uint32_t i = 0; i < n; i += QUERIES_AT_ONCE) {
        const uint32_t now = n - i < QUERIES_AT_ONCE ? n - i : QUERIES_AT_ONCE;
        for (uint32_t t = 0; t < now; t++) {
            const float *q = (const float *)(const void *)(queries + (i + t) * stride);
            for (uint32_t j = 0; j < c->code.d; j++)
                folded[j] = q[j] * scales[j];
            vq_rowcode_prepare(&c->code, prepared + t * each, folded);
        }
        vq_rowcode_score(&c->code, part, prepared, each, now, sums);
        for (uint32_t t = 0; t < now; t++)
            memcpy(out + (size_t)(i + t) * VQ_PAGE_ROWS, sums + (size_t)t * VQ_PAGE_ROWS, VQ_GRANULE * sizeof *out);
    }
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
    if (!c->scales_channels) {
        vq_rowcode_score(&c->code, &p, queries, vq_rowcode_query_bytes(&c->code), n_queries, out);
        return;
    }
    if (c->folds) {
        score_folded(c, &p, page, queries, query_bytes(s), n_queries, out);
        return;
    }
    for (uint32_t i = 0; i < n_queries; i++)
        memset(out + (size_t)i * VQ_PAGE_ROWS, 0, VQ_PAGE_ROWS * sizeof *out);
    for (uint32_t g = 0; g < p.n_granules; g++) {
        float part_norms[VQ_PAGE_ROWS] = {0};
        memcpy(part_norms, norms + (size_t)VQ_GRANULE * g, VQ_GRANULE * sizeof *norms);
        const vq_rowcode_page part = {.packed = (const uint8_t *)page + g * vq_rowcode_granule_bytes(&c->code),
                                      .next = rows->next,
                                      .norms = part_norms,
                                      .means = means + g,
                                      .n_granules = 1};
        score_scaled(c, (const uint8_t *)page + extra_at(c, g) + channels_at(c), &part, queries, query_bytes(s),
                     n_queries, out + (size_t)VQ_GRANULE * g);
    }
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
