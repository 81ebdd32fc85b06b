/* The project's own calibration-free codec on trellis codes (quant/trelliscode.h): what velox does with keys (their
 * mean over 32 neighbours stored once, then a rotation), and rows of codes whose error is 2 dB smaller than that of
 * Lloyd-Max codes of the same bits; or any number of bits between 1 and 5, some groups of 8 rotated dimensions having
 * one more than the others.
 *
 * Page: codes of two granules; 64 gains, one byte each; for each granule its gains' scale and, for keys, the mean; with
 * `channels` the scales of the channels after it (kv/codec_near.h).
 *
 * Queries: what the rows' codes ask for, then what the mean asks for: a head, and 14 bits a coordinate; with `channels`
 * the query waits for their scales, with which it is folded, rotated and rounded for every granule: in integers
 * (quant/folded.h) where the rotation is one Hadamard matrix. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kv/codec_near.h"
#include "kv/codec_rows.h"
#include "quant/folded.h"
#include "quant/trelliscode.h"
#include "quant/wide_query.h"

enum { OPTION_BITS, OPTION_VALUES, OPTION_CHANNELS, N_OPTIONS, QUERIES_AT_ONCE = 12 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a coordinate",
                     .value = 3,
                     .min = 1,
                     .max = VQ_TRELLIS_MAX_BITS,
                     .fraction = true},
    [OPTION_VALUES] = {.name = "values",
                       .help = "the same for values alone; 0: as keys",
                       .value = 0,
                       .min = 0,
                       .max = VQ_TRELLIS_MAX_BITS,
                       .fraction = true},
    [OPTION_CHANNELS] = {.name = "channels",
                         .help = VQ_NEAR_CHANNELS_HELP,
                         .value = VQ_NEAR_CHANNELS_AUTO,
                         .min = 0,
                         .max = VQ_NEAR_CHANNELS_AUTO},
};

/* Rotated coordinates vary alike.  Past d rows and queries are zeros, and sums are not read. */
static const float unit_scale[VQ_TRELLISCODE_MAX_GROUPS] = {[0 ... VQ_TRELLISCODE_MAX_GROUPS - 1] = 1};

struct trellis_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_trelliscode code;
    vq_rowcode mean;
    uint32_t d, width;
    bool keys, scales_channels;
    bool folds; /* queries, into integers */
    vq_folding folding;
    int16_t *steps; /* [width], where groups differ in bits */
};

static const struct trellis_state *state(const vq_codec_state *s)
{
    return (const struct trellis_state *)(const void *)s;
}

static struct trellis_state *layout(vq_arena *arena, uint32_t d, bool keys)
{
    const uint32_t width = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP * VQ_CODES_GROUP;
    struct trellis_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = d, .width = width};
    vq_rotation_layout(&at.rotation, arena, d, false);
    at.steps = keys ? vq_arena_take(arena, width, sizeof *at.steps) : NULL;
    if (s)
        *s = at;
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "trellis", err));
    const double own = env->options[OPTION_VALUES];
    const double bits = !env->keys && own > 0 ? own : env->options[OPTION_BITS];
    if (bits < 1)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "trellis: values is %g, must be 0, or 1 to %d", own,
                       VQ_TRELLIS_MAX_BITS);
    vq_arena arena = {0};
    layout(&arena, env->d, env->keys);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct trellis_state *s = layout(&arena, env->d, env->keys);
    s->arena = arena;
    s->keys = env->keys;
    s->scales_channels = env->keys && vq_near_scales(env->options[OPTION_CHANNELS], env->d);
    const vq_status status = vq_rotation_draw(&s->rotation, &env->kernels->codes,
                                              vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    const uint32_t n_groups = s->width / VQ_CODES_GROUP, n = (uint32_t)rint(bits * n_groups);
    uint8_t of[VQ_TRELLISCODE_MAX_GROUPS];
    for (uint32_t g = 0; g < n_groups; g++)
        of[g] = (uint8_t)(n / n_groups + (g < n % n_groups));
    vq_trelliscode_make(&s->code, of, unit_scale, env->kernels, env->d, env->keys, true);
    s->mean = vq_near_code(&env->kernels->codes, env->d, env->keys);
    s->folds = s->scales_channels && vq_folding_fits(&s->rotation);
    if (s->folds)
        s->folding = (vq_folding){.fold = &env->kernels->folded,
                                  .k = &env->kernels->codes,
                                  .rotation = &s->rotation,
                                  .d = env->d,
                                  .step = vq_trelliscode_steps(&s->code, s->steps),
                                  .steps = n % n_groups ? s->steps : NULL};
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

/* Of what a granule has besides codes and gains. */
static size_t extra_bytes(const struct trellis_state *c)
{
    return sizeof(uint16_t) + (c->keys ? vq_near_mean_bytes(c->width) : 0) + (c->scales_channels ? c->width / 2 : 0);
}

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){
        .codes = state(s)->code.page_bytes,
        .scales = VQ_PAGE_ROWS + 2 * extra_bytes(state(s)),
    };
}

static size_t shared_bytes(const vq_codec_state *s) { return vq_rotation_bytes(&state(s)->rotation); }

static size_t gains_at(const struct trellis_state *c, uint32_t granule)
{
    return c->code.page_bytes + (size_t)VQ_GRANULE * granule;
}

static size_t extra_at(const struct trellis_state *c, uint32_t granule)
{
    return c->code.page_bytes + VQ_PAGE_ROWS + granule * extra_bytes(c);
}

static const uint8_t *mean_at(const struct trellis_state *c, const void *page, uint32_t granule)
{
    return (const uint8_t *)page + extra_at(c, granule) + sizeof(uint16_t);
}

static const uint8_t *channels_at(const struct trellis_state *c, const void *page, uint32_t granule)
{
    return mean_at(c, page, granule) + vq_near_mean_bytes(c->width);
}

static void encode_granule(const struct trellis_state *c, uint8_t *page, uint32_t granule, const float *x)
{
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM], gains[VQ_GRANULE];
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM / VQ_CODES_GROUP * VQ_TRELLIS_MAX_BITS];
    uint8_t *extra = page + extra_at(c, granule), *mean = extra + sizeof(uint16_t);
    memcpy(y, x, (size_t)VQ_GRANULE * c->d * sizeof *y);
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        vq_rowcode_limit(&c->mean, y + (size_t)i * c->d);
    if (c->scales_channels)
        vq_near_scale_channels(mean + vq_near_mean_bytes(c->width), y, c->d);
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        vq_rotation_apply(&c->rotation, y + (size_t)i * c->d, scratch);
    if (c->keys)
        vq_near_take_mean(&c->mean, mean, y, VQ_GRANULE);
    vq_trelliscode_encode(&c->code, codes, gains, y, c->d);
    vq_trelliscode_pack(&c->code, page, granule, codes);
    vq_near_pack_gains(page + gains_at(c, granule), extra, gains);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct trellis_state *c = state(s);
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d)
        encode_granule(c, page, row / VQ_GRANULE, x);
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

/* gains [64], 0 past the granules */
static void open_gains(const struct trellis_state *c, const uint8_t *page, uint32_t n_granules, float *gains)
{
    memset(gains, 0, VQ_PAGE_ROWS * sizeof *gains);
    for (uint32_t g = 0; g < n_granules; g++)
        vq_near_open_gains(c->code.k, page + gains_at(c, g), page + extra_at(c, g), gains + (size_t)VQ_GRANULE * g);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct trellis_state *c = state(s);
    const uint32_t n_granules = granules(first + n);
    float gains[VQ_PAGE_ROWS], y[VQ_MAX_HEAD_DIM], scales[VQ_MAX_HEAD_DIM];
    vq_rowcode_mean means[2];
    open_gains(c, page, n_granules, gains);
    for (uint32_t g = 0; c->keys && g < n_granules; g++)
        vq_near_open_mean(&c->mean, mean_at(c, page, g), &means[g]);
    for (uint32_t i = 0; i < n; i++, x += c->d) {
        const uint32_t g = (first + i) / VQ_GRANULE;
        vq_trelliscode_decode(&c->code, page, gains, first + i, 1, y);
        memcpy(x, y, c->d * sizeof *x);
        for (uint32_t j = 0; c->keys && j < c->d; j++)
            x[j] += (float)(2 * means[g].u[j] - VQ_NARROW_TOP) * means[g].scale;
        vq_rotation_invert(&c->rotation, x, y);
        if (c->scales_channels) {
            vq_near_open_channels(channels_at(c, page, g), scales, c->d);
            for (uint32_t j = 0; j < c->d; j++)
                x[j] *= scales[j];
        }
    }
}

/* ---- keys ---- */

enum { MAX_PREPARED = 2 * (VQ_WIDE_QUERY_HEAD + 2 * VQ_MAX_HEAD_DIM) };

/* The query as codes are asked, then as means are. */
static size_t prepared_bytes(const struct trellis_state *c)
{
    return vq_trelliscode_query_bytes(&c->code) + vq_wide_query_bytes(c->width);
}

/* q [d] is rotated in place */
static void prepare_rotated(const struct trellis_state *c, uint8_t *query, float *q)
{
    float scratch[VQ_MAX_HEAD_DIM];
    vq_rotation_apply(&c->rotation, q, scratch);
    memset(q + c->d, 0, (c->width - c->d) * sizeof *q);
    vq_trelliscode_prepare(&c->code, query, q);
    vq_wide_query_prepare(c->code.k, query + vq_trelliscode_query_bytes(&c->code), q, c->width);
}

static float mean_product(const struct trellis_state *c, const uint8_t *query, const vq_rowcode_mean *mean)
{
    const uint8_t *own = query + vq_trelliscode_query_bytes(&c->code);
    return vq_wide_query_dot(c->code.k, own, mean->u, c->width) * mean->scale;
}

static size_t query_bytes(const vq_codec_state *s)
{
    const struct trellis_state *c = state(s);
    if (c->folds)
        return vq_folding_query_bytes(&c->folding);
    return c->scales_channels ? (c->d * sizeof(float) + 63) / 64 * 64 : prepared_bytes(c);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct trellis_state *c = state(s);
    if (c->folds) {
        vq_folding_prepare(&c->folding, query, q);
        return;
    }
    if (c->scales_channels) {
        memcpy(query, q, c->d * sizeof *q);
        return;
    }
    float rotated[VQ_MAX_HEAD_DIM];
    memcpy(rotated, q, c->d * sizeof *q);
    prepare_rotated(c, query, rotated);
}

static void fetch_next(const struct trellis_state *c, const vq_rows *rows)
{
    if (rows->next)
        for (size_t i = 0; i < VQ_PAGE_ROWS + 2 * extra_bytes(c); i += 64)
            __builtin_prefetch((const uint8_t *)rows->next + gains_at(c, 0) + i);
}

/* Granules [first, first + n_granules), for at most QUERIES_AT_ONCE prepared queries. */
static void score_granules(const struct trellis_state *c, const uint8_t *page, const vq_rows *rows, uint32_t first,
                           uint32_t n_granules, const float *gains, const uint8_t *prepared, uint32_t n, float *out)
{
    const size_t each = prepared_bytes(c), at = first * (c->code.page_bytes / 2);
    const uint8_t *next = rows->next;
    float bases[2 * QUERIES_AT_ONCE] = {0};
    for (uint32_t g = 0; g < n_granules; g++) {
        vq_rowcode_mean mean;
        vq_near_open_mean(&c->mean, mean_at(c, page, first + g), &mean);
        for (uint32_t i = 0; i < n; i++)
            bases[2 * i + g] = mean_product(c, prepared + i * each, &mean);
    }
    vq_trelliscode_score(&c->code, page + at, next ? next + at : NULL, gains + (size_t)VQ_GRANULE * first, n_granules,
                         prepared, each, n, bases, out);
}

/* With scales of channels: queries in integers, which are folded granule by granule. */
static void score_folded(const struct trellis_state *c, const uint8_t *page, const vq_rows *rows, const float *gains,
                         const uint8_t *queries, size_t stride, uint32_t n_queries, float *out)
{
    const uint32_t n_granules = granules(rows->n);
    _Alignas(64) uint8_t tile[VQ_MAX_HEAD_DIM * VQ_PAGE_ROWS];
    int32_t dots[VQ_FOLDED_AT_ONCE * VQ_PAGE_ROWS];
    vq_folded_page folded;
    vq_rowcode_mean means[2];
    vq_trelliscode_unpack_keys(&c->code, page, rows->next, n_granules, tile);
    for (uint32_t g = 0; g < n_granules; g++)
        vq_near_open_mean(&c->mean, mean_at(c, page, g), &means[g]);
    for (uint32_t now; n_queries > 0; n_queries -= now, queries += now * stride, out += (size_t)now * VQ_PAGE_ROWS) {
        now = n_queries < VQ_FOLDED_AT_ONCE ? n_queries : VQ_FOLDED_AT_ONCE;
        for (uint32_t g = 0; g < n_granules; g++)
            vq_folding_meet(&c->folding, &folded, g, queries, stride, now, channels_at(c, page, g), &means[g]);
        vq_trelliscode_dots(&c->code, tile, n_granules, folded.rounded[0][0], sizeof folded.rounded[0][0],
                            sizeof folded.rounded[0], now, dots);
        vq_folding_finish(&c->folding, &folded, dots, n_granules, now, gains, out);
    }
}

/* The same for queries as they came. */
static void score_scaled(const struct trellis_state *c, const uint8_t *page, const vq_rows *rows, const float *gains,
                         const uint8_t *queries, size_t stride, uint32_t n, float *out)
{
    _Alignas(64) uint8_t prepared[QUERIES_AT_ONCE * MAX_PREPARED];
    float scales[VQ_MAX_HEAD_DIM], folded[VQ_MAX_HEAD_DIM], sums[QUERIES_AT_ONCE * VQ_PAGE_ROWS];
    memset(out, 0, (size_t)n * VQ_PAGE_ROWS * sizeof *out);
    for (uint32_t g = 0; g < granules(rows->n); g++) {
        vq_near_open_channels(channels_at(c, page, g), scales, c->d);
        for (uint32_t i = 0; i < n; i++) {
            const float *q = (const float *)(const void *)(queries + i * stride);
            for (uint32_t j = 0; j < c->d; j++)
                folded[j] = q[j] * scales[j];
            prepare_rotated(c, prepared + i * prepared_bytes(c), folded);
        }
        score_granules(c, page, rows, g, 1, gains, prepared, n, sums);
        for (uint32_t i = 0; i < n; i++)
            memcpy(out + (size_t)i * VQ_PAGE_ROWS + (size_t)VQ_GRANULE * g, sums + (size_t)i * VQ_PAGE_ROWS,
                   VQ_GRANULE * sizeof *out);
    }
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct trellis_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    const size_t stride = query_bytes(s);
    float gains[VQ_PAGE_ROWS];
    fetch_next(c, rows);
    open_gains(c, page, n_granules, gains);
    if (c->folds) {
        score_folded(c, page, rows, gains, queries, stride, n_queries, out);
        return;
    }
    for (uint32_t at = 0; at < n_queries; at += QUERIES_AT_ONCE) {
        const uint32_t now = n_queries - at < QUERIES_AT_ONCE ? n_queries - at : QUERIES_AT_ONCE;
        const uint8_t *q = (const uint8_t *)queries + at * stride;
        float *to = out + (size_t)at * VQ_PAGE_ROWS;
        if (c->scales_channels)
            score_scaled(c, page, rows, gains, q, stride, now, to);
        else
            score_granules(c, page, rows, 0, n_granules, gains, q, now, to);
    }
}

/* ---- values ---- */

static size_t acc_len(const vq_codec_state *s) { return state(s)->width; }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct trellis_state *c = state(s);
    float gains[VQ_PAGE_ROWS];
    fetch_next(c, rows);
    open_gains(c, page, granules(rows->n), gains);
    vq_trelliscode_mix(&c->code, page, rows->next, gains, granules(rows->n), weights, n_queries, acc, c->width);
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct trellis_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, c->d * sizeof *out);
    vq_rotation_invert(&c->rotation, out, scratch);
}

const vq_codec vq_codec_trellis = {
    .name = "trellis",
    .summary = "keys less the mean of 32 neighbours; rotated rows, trellis codes, 1 to 5 bits in fractions",
    .paper = "this project; trellises as in Marcellin and Fischer, 1990",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .score_error = 0.03F,
    .mix_error = 0.03F,
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
};
