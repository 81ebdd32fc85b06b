/* Two streams: the channels of most energy go apart, at a high rate, the others through any other codec.
 *
 * Which channels these are is said by the calibration, once for a head; without one by the first granule of each page,
 * for that page alone.  The original takes those that vary most; of a page that misses the channels whose mean is
 * large, and on SmolLM2 made no better than one stream (option `variance`).  A query meets each stream with the
 * channels that the stream holds, so that what the other codec makes of the places left empty is never heard.
 *
 * The rest is a row of d - k channels for the other codec; with `whole` it keeps its length, with zeros (keys: the
 * calibration's mean) where channels were taken out, as codecs need that are calibrated themselves.
 *
 * Page: the page of the rest; the page of the channels apart; without a calibration a bit for each channel. */
#include <string.h>

#include "base/rng.h"
#include "kv/codec_generic.h"
#include "kv/codec_rows.h"

enum { OPTION_K, OPTION_WIDE, OPTION_WHOLE, OPTION_VARIANCE, N_OPTIONS };

enum { LEAST_K = 8, BYTES = 8, AT_ONCE = 48, QUERY_ROOM = 32768, SUM_ROOM = 8192 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_K] = {.name = "k", .help = "channels that go apart", .value = 8, .min = LEAST_K, .max = 256},
    [OPTION_WIDE] = {.name = "wide",
                     .help = "their bits: 8 are bytes under one scale a row, fewer are turboquant-mse",
                     .value = BYTES,
                     .min = 1,
                     .max = BYTES},
    [OPTION_WHOLE] = {.name = "whole",
                      .help = "1: the other codec gets rows of full length, with zeros in these channels",
                      .value = 0,
                      .min = 0,
                      .max = 1},
    [OPTION_VARIANCE] = {.name = "variance",
                         .help = "1: the channels that vary most go apart, instead of those of most energy",
                         .value = 0,
                         .min = 0,
                         .max = 1},
};

struct outlier_state {
    vq_arena arena; /* holds this struct too */
    vq_side rest, apart;
    uint32_t d, k;
    bool fixed; /* one set of channels for all pages */
    bool whole, variance;
    size_t apart_at, map_at; /* in a page */
    size_t codes, scales;
    uint16_t *channels; /* [d], fixed: numbers of the k that go apart, ascending, then of the others */
    float *fill;        /* [d], fixed and whole: what stands in the rest where channels were taken out; NULL: zeros */
};

static const struct outlier_state *state(const vq_codec_state *s)
{
    return (const struct outlier_state *)(const void *)s;
}

/* ---- which channels ---- */

static void channels_of_map(const struct outlier_state *c, const uint8_t *map, uint16_t *out)
{
    uint32_t n_apart = 0, n_rest = c->k;
    for (uint32_t i = 0; i < c->d; i++) {
        /* A map may come from a file: exactly k are taken, whatever it says. */
        const bool must = c->d - i == c->k - n_apart, apart = n_apart < c->k && (must || map[i / 8] >> i % 8 & 1);
        out[apart ? n_apart++ : n_rest++] = (uint16_t)i;
    }
}

/* The k largest; ties go to the lower channel. */
static void map_of_largest(const struct outlier_state *c, const float *weight, uint8_t *map)
{
    memset(map, 0, (c->d + 7) / 8);
    for (uint32_t n = 0; n < c->k; n++) {
        uint32_t best = c->d;
        for (uint32_t i = 0; i < c->d; i++)
            if (!(map[i / 8] >> i % 8 & 1) && (best == c->d || weight[i] > weight[best]))
                best = i;
        map[best / 8] = (uint8_t)(map[best / 8] | 1u << best % 8);
    }
}

/* Past this, sums of squares overflow. */
static float within(float x) { return x > 0x1p50F ? 0x1p50F : x < -0x1p50F ? -0x1p50F : x; }

static void map_of_rows(const struct outlier_state *c, const float *x, uint32_t n, uint8_t *map)
{
    float mean[VQ_MAX_HEAD_DIM] = {0}, weight[VQ_MAX_HEAD_DIM] = {0};
    for (uint32_t r = 0; r < n && c->variance; r++)
        for (uint32_t i = 0; i < c->d; i++)
            mean[i] += within(x[(size_t)r * c->d + i]) / (float)n;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < c->d; i++) {
            const float off = within(x[(size_t)r * c->d + i]) - mean[i];
            weight[i] += off * off;
        }
    map_of_largest(c, weight, map);
}

static void fix_channels(struct outlier_state *c, const vq_codec_env *env)
{
    const float *mean =
        vq_calibration_at(env->calibration, env->keys ? VQ_KEY_MEAN : VQ_VALUE_MEAN, env->layer, env->head);
    const float *moment =
        vq_calibration_at(env->calibration, env->keys ? VQ_KEY_MOMENT : VQ_VALUE_MOMENT, env->layer, env->head);
    float weight[VQ_MAX_HEAD_DIM];
    uint8_t map[VQ_MAX_HEAD_DIM / 8];
    for (uint32_t i = 0; i < c->d; i++) {
        weight[i] = moment[(size_t)i * c->d + i] - (c->variance ? mean[i] * mean[i] : 0);
        if (c->fill)
            c->fill[i] = mean[i];
    }
    map_of_largest(c, weight, map);
    channels_of_map(c, map, c->channels);
}

/* ---- create ---- */

static vq_status create_stream(vq_side *side, const vq_codec_env *env, const vq_codec *codec, const double *values,
                               uint32_t d, uint64_t number, vq_error *err)
{
    vq_codec_env own = *env;
    own.d = d;
    own.options = values;
    own.seed = vq_hash64(env->seed, number, 0, 0, 0);
    own.inner = NULL;
    own.calibration = d == env->d ? env->calibration : NULL;
    *side = (vq_side){.codec = codec, .kernels = env->kernels, .d = d};
    const vq_status status = codec->create(&side->state, &own, err);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "outlier: %s", number ? "channels apart" : "inner");
}

static vq_status create_streams(struct outlier_state *c, const vq_codec_env *env, vq_error *err)
{
    const bool bytes = env->options[OPTION_WIDE] == BYTES;
    const vq_codec *codec = bytes ? vq_codec_find("int8", 4) : vq_codec_find("turboquant-mse", 14);
    double apart_options[VQ_MAX_CODEC_OPTIONS];
    for (size_t i = 0; i < codec->n_options; i++)
        apart_options[i] =
            strcmp(codec->options[i].name, "bits") == 0 ? env->options[OPTION_WIDE] : codec->options[i].value;
    VQ_TRY(create_stream(&c->rest, env, env->inner, env->inner_options, c->whole ? c->d : c->d - c->k, 0, err));
    VQ_TRY(create_stream(&c->apart, env, codec, apart_options, c->k, 1, err));
    if (!c->fixed && env->keys && vq_side_query_bytes(&c->rest) > QUERY_ROOM)
        return vq_fail(err, VQ_ERR_UNSUPPORTED,
                       "outlier: queries of %s take %zu bytes, without a calibration at most %d are done",
                       env->inner->name, vq_side_query_bytes(&c->rest), QUERY_ROOM);
    if (!c->fixed && !env->keys && vq_side_acc_len(&c->rest) > SUM_ROOM)
        return vq_fail(err, VQ_ERR_UNSUPPORTED,
                       "outlier: sums of %s take %zu floats, without a calibration at most %d are done",
                       env->inner->name, vq_side_acc_len(&c->rest), SUM_ROOM);
    return VQ_OK;
}

static void destroy(vq_codec_state *s)
{
    if (!s)
        return;
    const struct outlier_state *c = state(s);
    if (c->rest.state)
        c->rest.codec->destroy(c->rest.state);
    if (c->apart.state)
        c->apart.codec->destroy(c->apart.state);
    vq_arena arena = c->arena;
    vq_arena_free(&arena);
}

static struct outlier_state *layout(vq_arena *arena, const vq_codec_env *env)
{
    struct outlier_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = env->d};
    at.k = (uint32_t)env->options[OPTION_K];
    at.whole = env->options[OPTION_WHOLE] != 0;
    at.variance = env->options[OPTION_VARIANCE] != 0;
    at.fixed = env->calibration != NULL;
    if (at.fixed)
        at.channels = vq_arena_take(arena, env->d, sizeof(uint16_t));
    if (at.fixed && at.whole && env->keys)
        at.fill = vq_arena_take(arena, env->d, sizeof(float));
    if (s)
        *s = at;
    return s;
}

static size_t align16(size_t n) { return (n + 15) & ~(size_t)15; }

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "outlier", err));
    const uint32_t k = (uint32_t)env->options[OPTION_K];
    if (env->d < k + LEAST_K)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "outlier: k is %u, of rows of %u at most %u can go apart", k, env->d,
                       env->d > LEAST_K ? env->d - LEAST_K : 0);
    if (env->inner->calibrated && env->options[OPTION_WHOLE] == 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "outlier: %s is calibrated for whole rows: whole is 0, must be 1",
                       env->inner->name);
    vq_arena arena = {0};
    layout(&arena, env);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct outlier_state *c = layout(&arena, env);
    c->arena = arena;
    if (c->fixed)
        fix_channels(c, env);
    const vq_status status = create_streams(c, env, err);
    if (status != VQ_OK) {
        destroy((vq_codec_state *)c);
        return status;
    }
    vq_page_bytes rest, apart;
    c->rest.codec->page_bytes(c->rest.state, &rest);
    c->apart.codec->page_bytes(c->apart.state, &apart);
    c->apart_at = align16(rest.codes + rest.scales);
    c->map_at = c->apart_at + apart.codes + apart.scales;
    c->codes = rest.codes + apart.codes;
    c->scales = c->map_at + (c->fixed ? 0 : (c->d + 7) / 8) - c->codes;
    *out = (vq_codec_state *)c;
    return VQ_OK;
}

static uint32_t granule(const vq_codec_state *s) { return vq_side_granule(&state(s)->rest); }

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = state(s)->codes, .scales = state(s)->scales};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct outlier_state *c = state(s);
    const size_t own = (c->channels ? c->d * sizeof(uint16_t) : 0) + (c->fill ? c->d * sizeof(float) : 0);
    return vq_side_shared_bytes(&c->rest) + vq_side_shared_bytes(&c->apart) + own;
}

/* ---- rows ---- */

/* Of a page, in `own` [d] unless they are those of all pages. */
static const uint16_t *channels_of(const struct outlier_state *c, const void *page, uint16_t *own)
{
    if (c->fixed)
        return c->channels;
    channels_of_map(c, (const uint8_t *)page + c->map_at, own);
    return own;
}

/* x [d] -> rest, `fill` standing where channels are taken out of whole rows (NULL: zeros). */
static void take_rest(const struct outlier_state *c, const uint16_t *ch, const float *x, const float *fill, float *rest)
{
    if (!c->whole) {
        for (uint32_t i = c->k; i < c->d; i++)
            rest[i - c->k] = x[ch[i]];
        return;
    }
    memcpy(rest, x, c->d * sizeof *rest);
    for (uint32_t i = 0; i < c->k; i++)
        rest[ch[i]] = fill ? fill[ch[i]] : 0;
}

static void take_apart(const struct outlier_state *c, const uint16_t *ch, const float *x, float *apart)
{
    for (uint32_t i = 0; i < c->k; i++)
        apart[i] = x[ch[i]];
}

/* x [d] += both parts; what the rest has in the place of channels apart is dropped. */
static void add_rest(const struct outlier_state *c, const uint16_t *ch, const float *rest, float *x)
{
    for (uint32_t i = c->k; i < c->d; i++)
        x[ch[i]] += rest[c->whole ? ch[i] : i - c->k];
}

static void add_apart(const struct outlier_state *c, const uint16_t *ch, const float *apart, float *x)
{
    for (uint32_t i = 0; i < c->k; i++)
        x[ch[i]] += apart[i];
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct outlier_state *c = state(s);
    uint8_t *bytes = page;
    float rest[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], apart[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM];
    if (!c->fixed && first == 0)
        map_of_rows(c, x, granule(s), bytes + c->map_at);
    uint16_t own_channels[VQ_MAX_HEAD_DIM];
    const uint16_t *ch = channels_of(c, page, own_channels);
    for (uint32_t r = 0; r < n; r++) {
        take_rest(c, ch, x + (size_t)r * c->d, c->fill, rest + (size_t)r * c->rest.d);
        take_apart(c, ch, x + (size_t)r * c->d, apart + (size_t)r * c->k);
    }
    c->rest.codec->encode(c->rest.state, bytes, first, n, rest);
    c->apart.codec->encode(c->apart.state, bytes + c->apart_at, first, n, apart);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct outlier_state *c = state(s);
    float rest[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], apart[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM];
    uint16_t own_channels[VQ_MAX_HEAD_DIM];
    const uint16_t *ch = channels_of(c, page, own_channels);
    c->rest.codec->decode(c->rest.state, page, first, n, rest);
    c->apart.codec->decode(c->apart.state, (const uint8_t *)page + c->apart_at, first, n, apart);
    memset(x, 0, (size_t)n * c->d * sizeof *x);
    for (uint32_t r = 0; r < n; r++) {
        add_rest(c, ch, rest + (size_t)r * c->rest.d, x + (size_t)r * c->d);
        add_apart(c, ch, apart + (size_t)r * c->k, x + (size_t)r * c->d);
    }
}

/* ---- keys ---- */

/* Fixed channels: the prepared queries of both streams, one after the other.  Else the query as it is: each page
 * prepares it for its own channels. */
static size_t query_bytes(const vq_codec_state *s)
{
    const struct outlier_state *c = state(s);
    return c->fixed ? vq_side_query_bytes(&c->rest) + vq_side_query_bytes(&c->apart)
                    : (c->d * sizeof(float) + 63) & ~(size_t)63;
}

static void prepare_rest(const struct outlier_state *c, const uint16_t *ch, void *query, const float *q)
{
    float rest[VQ_MAX_HEAD_DIM];
    take_rest(c, ch, q, NULL, rest);
    vq_side_prepare(&c->rest, query, rest);
}

static void prepare_apart(const struct outlier_state *c, const uint16_t *ch, void *query, const float *q)
{
    float apart[VQ_MAX_HEAD_DIM];
    take_apart(c, ch, q, apart);
    vq_side_prepare(&c->apart, query, apart);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct outlier_state *c = state(s);
    if (!c->fixed) {
        memset(query, 0, query_bytes(s));
        memcpy(query, q, c->d * sizeof *q);
        return;
    }
    prepare_rest(c, c->channels, query, q);
    prepare_apart(c, c->channels, (uint8_t *)query + vq_side_query_bytes(&c->rest), q);
}

static const void *offset(const void *p, size_t n) { return p ? (const uint8_t *)p + n : NULL; }

/* out [n][64] of one stream, `at_once` queries a time (codecs read queries that lie one after the other). */
static void score_stream(const struct outlier_state *c, bool rest, const void *page, const vq_rows *rows,
                         const uint8_t *queries, size_t stride, uint32_t n, float *out)
{
    _Alignas(64) uint8_t gathered[QUERY_ROOM];
    const vq_side *side = rest ? &c->rest : &c->apart;
    const size_t each = vq_side_query_bytes(side), skip = rest ? 0 : vq_side_query_bytes(&c->rest);
    const uint32_t fit = (uint32_t)(QUERY_ROOM / each), at_once = fit < 1 ? 1 : fit;
    uint16_t own_channels[VQ_MAX_HEAD_DIM];
    const uint16_t *ch = channels_of(c, page, own_channels);
    const size_t from = rest ? 0 : c->apart_at;
    const vq_rows own = {.pos = rows->pos, .live = rows->live, .n = rows->n, .next = offset(rows->next, from)};
    for (uint32_t at = 0; at < n; at += at_once) {
        const uint32_t now = n - at < at_once ? n - at : at_once;
        const uint8_t *q = queries + at * stride, *use = gathered;
        for (uint32_t i = 0; i < now; i++)
            if (!c->fixed)
                (rest ? prepare_rest : prepare_apart)(c, ch, gathered + i * each,
                                                      (const float *)(const void *)(q + i * stride));
            else if (fit < 1)
                use = q + skip;
            else
                memcpy(gathered + i * each, q + i * stride + skip, each);
        vq_side_score(side, offset(page, from), &own, use, now, out + (size_t)at * VQ_PAGE_ROWS);
    }
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct outlier_state *c = state(s);
    const size_t stride = query_bytes(s);
    float apart[AT_ONCE * VQ_PAGE_ROWS];
    score_stream(c, true, page, rows, queries, stride, n_queries, out);
    for (uint32_t at = 0; at < n_queries; at += AT_ONCE) {
        const uint32_t now = n_queries - at < AT_ONCE ? n_queries - at : AT_ONCE;
        score_stream(c, false, page, rows, (const uint8_t *)queries + at * stride, stride, now, apart);
        for (uint32_t i = 0; i < now; i++)
            for (uint32_t r = 0; r < rows->n; r++)
                out[(size_t)(at + i) * VQ_PAGE_ROWS + r] += apart[(size_t)i * VQ_PAGE_ROWS + r];
    }
}

/* ---- values ---- */

/* Fixed channels: the sums of both streams as they are; else a row, into which each page adds finished sums. */
static size_t acc_len(const vq_codec_state *s)
{
    const struct outlier_state *c = state(s);
    return c->fixed ? vq_side_acc_len(&c->rest) + vq_side_acc_len(&c->apart) : c->d;
}

static void mix_stream(const struct outlier_state *c, bool rest, const void *page, const vq_rows *rows,
                       const float *weights, uint32_t n, float *acc, size_t stride)
{
    float sums[SUM_ROOM], row[VQ_MAX_HEAD_DIM];
    const vq_side *side = rest ? &c->rest : &c->apart;
    const size_t each = vq_side_acc_len(side), skip = rest || !c->fixed ? 0 : vq_side_acc_len(&c->rest);
    const uint32_t fit = (uint32_t)(SUM_ROOM / each), at_once = fit < 1 ? 1 : fit;
    uint16_t own_channels[VQ_MAX_HEAD_DIM];
    const uint16_t *ch = channels_of(c, page, own_channels);
    const size_t from = rest ? 0 : c->apart_at;
    const vq_rows own = {.pos = rows->pos, .live = rows->live, .n = rows->n, .next = offset(rows->next, from)};
    for (uint32_t at = 0; at < n; at += at_once) {
        const uint32_t now = n - at < at_once ? n - at : at_once;
        float *to = acc + at * stride + skip;
        if (fit < 1) { /* one query's sums lie where they belong */
            vq_side_mix(side, offset(page, from), &own, weights + (size_t)at * VQ_PAGE_ROWS, 1, to);
            continue;
        }
        memset(sums, 0, now * each * sizeof *sums);
        vq_side_mix(side, offset(page, from), &own, weights + (size_t)at * VQ_PAGE_ROWS, now, sums);
        for (uint32_t i = 0; i < now; i++) {
            if (c->fixed) {
                for (size_t j = 0; j < each; j++)
                    to[i * stride + j] += sums[i * each + j];
            } else {
                vq_side_finish(side, sums + i * each, row);
                (rest ? add_rest : add_apart)(c, ch, row, to + i * stride);
            }
        }
    }
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    mix_stream(state(s), true, page, rows, weights, n_queries, acc, acc_len(s));
    mix_stream(state(s), false, page, rows, weights, n_queries, acc, acc_len(s));
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct outlier_state *c = state(s);
    if (!c->fixed) {
        memcpy(out, acc, c->d * sizeof *out);
        return;
    }
    float row[VQ_MAX_HEAD_DIM];
    memset(out, 0, c->d * sizeof *out);
    vq_side_finish(&c->rest, acc, row);
    add_rest(c, c->channels, row, out);
    vq_side_finish(&c->apart, acc + vq_side_acc_len(&c->rest), row);
    add_apart(c, c->channels, row, out);
}

static bool shares(const vq_codec_state *s)
{
    const struct outlier_state *c = state(s);
    return !c->fixed || !vq_side_copies_rows(&c->rest) || !vq_side_copies_rows(&c->apart);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct outlier_state *c = state(s);
    c->rest.codec->copy_row(c->rest.state, dst, i, src, j);
    c->apart.codec->copy_row(c->apart.state, (uint8_t *)dst + c->apart_at, i, offset(src, c->apart_at), j);
}

const vq_codec vq_codec_outlier = {
    .name = "outlier",
    .summary = "two streams: the channels of most energy at 8 bits, the others through any other method",
    .paper = "as in VeloxQuant-MLX and in TurboQuant's 2.5 and 3.5 bits",
    .options = options,
    .n_options = N_OPTIONS,
    .calibratable = true,
    .inner = "turboquant-mse",
    .sinks = 4,
    .residual = 32,
    .score_error = 0.016F, /* what both streams have */
    .mix_error = 0.031F,
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
    .acc_len = acc_len,
    .mix = mix,
    .finish = finish,
    .copy_row = copy_row,
    .shares = shares,
};
