/* QJL: keys become the signs of m random projections and a norm; <q, k> is estimated without bias.
 *
 * The projections are the first m rows of a random rotation, sqrt(pi d / 2) / m |k| <S q, z>, or m rows of normal
 * draws, sqrt(pi / 2) / m |k| <S q, z>; orthonormal rows have half of the spread.  Values are reconstructed from the
 * same signs, S' z, with least-squares norms.
 *
 * With `outliers`, the channels of most energy in each granule of keys are taken apart, as in the paper: they are zero
 * in what the signs are of, and have a sketch of their own, 8 signs of normal projections a channel and a norm.
 *
 * Page: signs of both granules, 64 norms; for each granule of keys with outliers: their channels, ascending, 2 bytes
 * each; 32 norms of the outlying parts; 32 rows of their signs, one byte a channel, bit i of byte j: projection 8j + i.
 */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"

enum { OPTION_M, OPTION_GAUSSIAN, OPTION_OUTLIERS, N_OPTIONS, MOST_OUTLIERS = 32, SIGNS_EACH = 8 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_M] =
        {.name = "m", .help = "projections a row; 0: as many as the head size", .value = 0, .min = 0, .max = 512},
    [OPTION_GAUSSIAN] = {.name = "gaussian",
                         .help = "1: projections of normal draws, m x d numbers a head; 0: rows of a rotation",
                         .value = 0,
                         .min = 0,
                         .max = 1},
    [OPTION_OUTLIERS] = {.name = "outliers",
                         .help = "channels of most energy in every 32 keys that have a sketch of their own",
                         .value = 0,
                         .min = 0,
                         .max = MOST_OUTLIERS},
};

struct qjl_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    float *gaussian;           /* [m][d], or NULL */
    float *apart;              /* [8 n_outliers][n_outliers]: projections of outlying parts */
    vq_rowcode signs;          /* rows of m signs */
    uint32_t d, m, n_outliers; /* n_outliers: 0 for values */
    float factor;              /* of norm and level */
    bool keys;
};

static const struct qjl_state *state(const vq_codec_state *s) { return (const struct qjl_state *)(const void *)s; }

typedef struct pieces {
    vq_rotation rotation;
    float *gaussian, *apart;
} pieces;

static struct qjl_state *layout(vq_arena *arena, uint32_t d, uint32_t m, bool gaussian, uint32_t n_outliers, pieces *p)
{
    struct qjl_state *s = vq_arena_take(arena, 1, sizeof *s);
    *p = (pieces){.gaussian = NULL};
    if (gaussian)
        p->gaussian = vq_arena_take(arena, (size_t)m * d, sizeof(float));
    else
        vq_rotation_layout(&p->rotation, arena, d, false);
    p->apart = vq_arena_take(arena, (size_t)SIGNS_EACH * n_outliers * n_outliers, sizeof(float));
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "qjl", err));
    const bool gaussian = env->options[OPTION_GAUSSIAN] != 0;
    const uint32_t m = env->options[OPTION_M] > 0 ? (uint32_t)env->options[OPTION_M] : env->d;
    if (!gaussian && m > env->d)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "qjl: m is %u, a rotation has %u rows (take gaussian=1)", m, env->d);
    const uint32_t n_outliers = env->keys ? (uint32_t)env->options[OPTION_OUTLIERS] : 0;
    if (n_outliers >= env->d)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "qjl: outliers is %u, the head size %u", n_outliers, env->d);
    vq_arena arena = {0};
    pieces p;
    layout(&arena, env->d, m, gaussian, n_outliers, &p);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct qjl_state *s = layout(&arena, env->d, m, gaussian, n_outliers, &p);

    const vq_codes_kernels *k = &env->kernels->codes;
    const uint64_t seed = vq_hash64(env->seed, env->layer, env->head, env->keys, 0);
    if (gaussian) {
        vq_rng rng;
        vq_rng_seed(&rng, seed);
        for (size_t i = 0; i < (size_t)m * env->d; i++)
            p.gaussian[i] = (float)vq_rng_normal(&rng);
    } else {
        const vq_status status = vq_rotation_draw(&p.rotation, k, seed, err);
        if (status != VQ_OK) {
            vq_arena_free(&arena);
            return status;
        }
    }
    vq_rng apart;
    vq_rng_seed(&apart, vq_hash64(env->seed, env->layer, env->head, env->keys, 1));
    for (uint32_t i = 0; i < SIGNS_EACH * n_outliers * n_outliers; i++)
        p.apart[i] = (float)vq_rng_normal(&apart);
    *s = (struct qjl_state){
        .arena = arena,
        .apart = p.apart,
        .n_outliers = n_outliers,
        .rotation = p.rotation,
        .gaussian = p.gaussian,
        .signs = vq_rowcode_make(&vq_levels_uniform[0], NULL, k, m, env->keys, VQ_FIT_LEAST_SQUARES),
        .d = env->d,
        .m = m,
        .factor = (float)(sqrt(1.5707963267948966 * (gaussian ? 1.0 : env->d)) / m),
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

/* Of the outliers of one granule. */
static size_t apart_bytes(const struct qjl_state *c)
{
    const size_t n = c->n_outliers;
    return n ? (n + VQ_GRANULE) * sizeof(uint16_t) + VQ_GRANULE * n : 0;
}

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    const struct qjl_state *c = state(s);
    *out = (vq_page_bytes){
        .codes = 2 * vq_rowcode_granule_bytes(&c->signs) + VQ_PAGE_ROWS * (size_t)c->n_outliers,
        .scales = VQ_PAGE_ROWS * sizeof(uint16_t) + 2 * (apart_bytes(c) - VQ_GRANULE * (size_t)c->n_outliers),
    };
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct qjl_state *c = state(s);
    const size_t apart = (size_t)SIGNS_EACH * c->n_outliers * c->n_outliers * sizeof(float);
    return apart + (c->gaussian ? (size_t)c->m * c->d * sizeof(float) : vq_rotation_bytes(&c->rotation));
}

static const uint16_t *norms_of(const struct qjl_state *c, const void *page)
{
    return (const uint16_t *)(const void *)((const uint8_t *)page + 2 * vq_rowcode_granule_bytes(&c->signs));
}

/* y [m] = S x */
static void project(const struct qjl_state *c, float *y, const float *x)
{
    if (!c->gaussian) {
        float all[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
        memcpy(all, x, c->d * sizeof *all);
        vq_rotation_apply(&c->rotation, all, scratch);
        memcpy(y, all, c->m * sizeof *y);
        return;
    }
    for (uint32_t i = 0; i < c->m; i++) {
        float sum = 0;
        for (uint32_t j = 0; j < c->d; j++)
            sum += c->gaussian[(size_t)i * c->d + j] * x[j];
        y[i] = sum;
    }
}

/* x [d] = S' y */
static void project_back(const struct qjl_state *c, float *x, const float *y)
{
    float scratch[VQ_MAX_HEAD_DIM], sum[VQ_MAX_HEAD_DIM] = {0};
    if (!c->gaussian) {
        memcpy(sum, y, c->m * sizeof *sum);
        vq_rotation_invert(&c->rotation, sum, scratch);
    } else {
        for (uint32_t i = 0; i < c->m; i++)
            for (uint32_t j = 0; j < c->d; j++)
                sum[j] += c->gaussian[(size_t)i * c->d + j] * y[i];
    }
    memcpy(x, sum, c->d * sizeof *x);
}

/* The factor of a row's signs: levels are +-1/2. */
static float fit(const struct qjl_state *c, const uint8_t *codes, const float *x)
{
    const float squares = c->signs.k->sum_squares(x, c->d);
    if (c->keys)
        return 2 * c->factor * sqrtf(squares);
    float z[VQ_MAX_HEAD_DIM], back[VQ_MAX_HEAD_DIM], dot = 0;
    for (uint32_t i = 0; i < c->m; i++)
        z[i] = codes[i] ? 0.5F : -0.5F;
    project_back(c, back, z);
    for (uint32_t j = 0; j < c->d; j++)
        dot += back[j] * x[j];
    return dot > 0 ? dot / c->signs.k->sum_squares(back, c->d) : 0;
}

/* The parts of what a granule has apart: channels [n], norms [32], signs [32][n]. */
typedef struct apart {
    uint16_t *channels, *norms;
    uint8_t *signs;
} apart;

static apart apart_of(const struct qjl_state *c, const void *page, uint32_t granule)
{
    uint8_t *at = (uint8_t *)(uintptr_t)page + 2 * vq_rowcode_granule_bytes(&c->signs) +
                  VQ_PAGE_ROWS * sizeof(uint16_t) + granule * apart_bytes(c); /* a part that is only read stays so */
    apart a = {.channels = (uint16_t *)(void *)at};
    a.norms = a.channels + c->n_outliers;
    a.signs = (uint8_t *)(a.norms + VQ_GRANULE);
    return a;
}

static uint32_t channel_of(const struct qjl_state *c, const apart *a, uint32_t i)
{
    return a->channels[i] < c->d ? a->channels[i] : c->d - 1; /* whatever a file says */
}

/* y [8 n] = projections of x [n] */
static void project_apart(const struct qjl_state *c, float *y, const float *x)
{
    for (uint32_t i = 0; i < SIGNS_EACH * c->n_outliers; i++) {
        float sum = 0;
        for (uint32_t j = 0; j < c->n_outliers; j++)
            sum += c->apart[(size_t)i * c->n_outliers + j] * x[j];
        y[i] = sum;
    }
}

/* Takes the channels of most energy out of x [32][d]; ties go to the lower ones. */
static void encode_apart(const struct qjl_state *c, void *page, uint32_t granule, float *x)
{
    const uint32_t n = c->n_outliers;
    const apart a = apart_of(c, page, granule);
    float energy[VQ_MAX_HEAD_DIM] = {0}, part[MOST_OUTLIERS], y[SIGNS_EACH * MOST_OUTLIERS];
    bool taken[VQ_MAX_HEAD_DIM] = {false};
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        for (uint32_t j = 0; j < c->d; j++)
            energy[j] += x[(size_t)i * c->d + j] * x[(size_t)i * c->d + j];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = 0;
        while (taken[best])
            best++;
        for (uint32_t j = best + 1; j < c->d; j++)
            best = !taken[j] && energy[j] > energy[best] ? j : best;
        taken[best] = true;
    }
    for (uint32_t j = 0, i = 0; j < c->d; j++)
        if (taken[j])
            a.channels[i++] = (uint16_t)j;
    for (uint32_t row = 0; row < VQ_GRANULE; row++) {
        float squares = 0;
        for (uint32_t i = 0; i < n; i++) {
            float *from = &x[(size_t)row * c->d + a.channels[i]];
            part[i] = *from;
            squares += *from * *from;
            *from = 0;
        }
        project_apart(c, y, part);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t byte = 0;
            for (uint32_t b = 0; b < SIGNS_EACH; b++)
                byte |= (uint32_t)(y[SIGNS_EACH * i + b] > 0) << b;
            a.signs[row * n + i] = (uint8_t)byte;
        }
        a.norms[row] = vq_f16_from_f32_clamped(sqrtf(squares) * 1.2533141F / (float)(SIGNS_EACH * n)); /* sqrt(pi/2) */
    }
}

/* <y, z> of a row's signs z, times its norm. */
static float dot_apart(const struct qjl_state *c, const apart *a, uint32_t row, const float *y)
{
    float sum = 0;
    for (uint32_t i = 0; i < SIGNS_EACH * c->n_outliers; i++)
        sum += a->signs[row * c->n_outliers + i / SIGNS_EACH] >> i % SIGNS_EACH & 1 ? y[i] : -y[i];
    return sum * vq_f32_from_f16(a->norms[row]);
}

/* What the outlying channels add to a decoded row: S' z, so that products with it are the estimates. */
static void decode_apart(const struct qjl_state *c, const void *page, uint32_t row, float *x)
{
    const apart a = apart_of(c, page, row / VQ_GRANULE);
    for (uint32_t j = 0; j < c->n_outliers; j++) {
        float column[SIGNS_EACH * MOST_OUTLIERS];
        for (uint32_t i = 0; i < SIGNS_EACH * c->n_outliers; i++)
            column[i] = c->apart[(size_t)i * c->n_outliers + j];
        x[channel_of(c, &a, j)] += dot_apart(c, &a, row % VQ_GRANULE, column);
    }
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct qjl_state *c = state(s);
    const size_t each = vq_rowcode_granule_bytes(&c->signs), stride = (size_t)VQ_CODES_GROUP * c->signs.n_groups;
    uint16_t *norms = (uint16_t *)(void *)((uint8_t *)page + 2 * each);
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    float rows[VQ_GRANULE * VQ_MAX_HEAD_DIM], y[VQ_MAX_HEAD_DIM];
    vq_rowcode row_of_d = c->signs;
    row_of_d.d = c->d;
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE) {
        memcpy(rows, x, (size_t)VQ_GRANULE * c->d * sizeof *rows);
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            vq_rowcode_limit(&row_of_d, rows + (size_t)i * c->d);
        if (c->n_outliers)
            encode_apart(c, page, row / VQ_GRANULE, rows);
        for (uint32_t i = 0; i < VQ_GRANULE; i++, x += c->d) {
            const float *limited = rows + (size_t)i * c->d;
            project(c, y, limited);
            vq_rowcode_encode_rotated(&c->signs, codes + i * stride, y);
            norms[row + i] = vq_f16_from_f32_clamped(fit(c, codes + i * stride, limited));
        }
        vq_rowcode_pack(&c->signs, (uint8_t *)page + row / VQ_GRANULE * each, codes);
    }
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct qjl_state *c = state(s);
    float y[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], norms[VQ_PAGE_ROWS];
    vq_rowcode_norms(&c->signs, norms, norms_of(c, page), granules(first + n));
    vq_rowcode_decode_rotated(&c->signs, page, norms, granules(first + n), first, n, y);
    for (uint32_t i = 0; i < n; i++)
        project_back(c, x + (size_t)i * c->d, y + (size_t)i * c->m);
    for (uint32_t i = 0; c->n_outliers && i < n; i++)
        decode_apart(c, page, first + i, x + (size_t)i * c->d);
}

/* With outliers the query itself follows: which of its channels they meet differs from granule to granule. */
static size_t query_bytes(const vq_codec_state *s)
{
    const struct qjl_state *c = state(s);
    return vq_rowcode_query_bytes(&c->signs) + (c->n_outliers ? (c->d * sizeof(float) + 63) / 64 * 64 : 0);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct qjl_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    project(c, y, q);
    vq_rowcode_prepare_rotated(&c->signs, query, y);
    if (c->n_outliers)
        memcpy((uint8_t *)query + vq_rowcode_query_bytes(&c->signs), q, c->d * sizeof *q);
}

static void score_apart(const struct qjl_state *c, const void *page, uint32_t granule, const float *q, float *out)
{
    const apart a = apart_of(c, page, granule);
    float part[MOST_OUTLIERS], y[SIGNS_EACH * MOST_OUTLIERS];
    for (uint32_t i = 0; i < c->n_outliers; i++)
        part[i] = q[channel_of(c, &a, i)];
    project_apart(c, y, part);
    for (uint32_t row = 0; row < VQ_GRANULE; row++)
        out[row] += dot_apart(c, &a, row, y);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct qjl_state *c = state(s);
    float norms[VQ_PAGE_ROWS];
    vq_rowcode_norms(&c->signs, norms, norms_of(c, page), granules(rows->n));
    const vq_rowcode_page p = {.packed = page, .next = rows->next, .norms = norms, .n_granules = granules(rows->n)};
    vq_rowcode_score(&c->signs, &p, queries, query_bytes(s), n_queries, out);
    for (uint32_t i = 0; c->n_outliers && i < n_queries; i++)
        for (uint32_t g = 0; g < p.n_granules; g++) {
            const uint8_t *q = (const uint8_t *)queries + i * query_bytes(s) + vq_rowcode_query_bytes(&c->signs);
            score_apart(c, page, g, (const float *)(const void *)q, out + (size_t)i * VQ_PAGE_ROWS + VQ_GRANULE * g);
        }
}

static size_t acc_len(const vq_codec_state *s) { return state(s)->m; }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct qjl_state *c = state(s);
    float norms[VQ_PAGE_ROWS];
    vq_rowcode_norms(&c->signs, norms, norms_of(c, page), granules(rows->n));
    const vq_rowcode_page p = {.packed = page, .next = rows->next, .norms = norms, .n_granules = granules(rows->n)};
    vq_rowcode_mix(&c->signs, &p, weights, n_queries, acc, c->m);
}

static void finish(const vq_codec_state *s, const float *acc, float *out) { project_back(state(s), out, acc); }

static bool shares(const vq_codec_state *s) { return state(s)->n_outliers > 0; }

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct qjl_state *c = state(s);
    vq_rowcode_copy_row(&c->signs, dst, i, src, j);
    ((uint16_t *)(void *)((uint8_t *)dst + 2 * vq_rowcode_granule_bytes(&c->signs)))[i] = norms_of(c, src)[j];
}

const vq_codec vq_codec_qjl = {
    .name = "qjl",
    .summary = "signs of random projections and a norm; unbiased inner products",
    .paper = "Zandieh, Daliri, Han: QJL, 2024 (arXiv:2406.03482)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .unbiased = true,
    .score_error = 0.02F,
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
    .shares = shares,
};
