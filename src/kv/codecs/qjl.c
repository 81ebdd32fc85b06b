/* QJL: keys become the signs of m random projections and a norm; <q, k> is estimated without bias.
 *
 * The projections are the first m rows of a random rotation, sqrt(pi d / 2) / m |k| <S q, z>, or m rows of normal
 * draws, sqrt(pi / 2) / m |k| <S q, z>; orthonormal rows have half of the spread.  (The paper also takes outlying
 * channels apart; that is not done here.)  Values are reconstructed from the same signs, S' z, with least-squares
 * norms.
 *
 * Page: signs of both granules, 64 norms. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"

enum { OPTION_M, OPTION_GAUSSIAN, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_M] =
        {.name = "m", .help = "projections a row; 0: as many as the head size", .value = 0, .min = 0, .max = 512},
    [OPTION_GAUSSIAN] = {.name = "gaussian",
                         .help = "1: projections of normal draws, m x d numbers a head; 0: rows of a rotation",
                         .value = 0,
                         .min = 0,
                         .max = 1},
};

struct qjl_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    float *gaussian;  /* [m][d], or NULL */
    vq_rowcode signs; /* rows of m signs */
    uint32_t d, m;
    float factor; /* of norm and level */
    bool keys;
};

static const struct qjl_state *state(const vq_codec_state *s) { return (const struct qjl_state *)(const void *)s; }

typedef struct pieces {
    vq_rotation rotation;
    float *gaussian;
} pieces;

static struct qjl_state *layout(vq_arena *arena, uint32_t d, uint32_t m, bool gaussian, pieces *p)
{
    struct qjl_state *s = vq_arena_take(arena, 1, sizeof *s);
    *p = (pieces){.gaussian = NULL};
    if (gaussian)
        p->gaussian = vq_arena_take(arena, (size_t)m * d, sizeof(float));
    else
        vq_rotation_layout(&p->rotation, arena, d, false);
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
    vq_arena arena = {0};
    pieces p;
    layout(&arena, env->d, m, gaussian, &p);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct qjl_state *s = layout(&arena, env->d, m, gaussian, &p);

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
    *s = (struct qjl_state){
        .arena = arena,
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

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){
        .codes = 2 * vq_rowcode_granule_bytes(&state(s)->signs),
        .scales = VQ_PAGE_ROWS * sizeof(uint16_t),
    };
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct qjl_state *c = state(s);
    return c->gaussian ? (size_t)c->m * c->d * sizeof(float) : vq_rotation_bytes(&c->rotation);
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

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct qjl_state *c = state(s);
    const size_t each = vq_rowcode_granule_bytes(&c->signs), stride = (size_t)VQ_CODES_GROUP * c->signs.n_groups;
    uint16_t *norms = (uint16_t *)(void *)((uint8_t *)page + 2 * each);
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    float limited[VQ_MAX_HEAD_DIM], y[VQ_MAX_HEAD_DIM];
    vq_rowcode row_of_d = c->signs;
    row_of_d.d = c->d;
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE) {
        for (uint32_t i = 0; i < VQ_GRANULE; i++, x += c->d) {
            memcpy(limited, x, c->d * sizeof *limited);
            vq_rowcode_limit(&row_of_d, limited);
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
}

static size_t query_bytes(const vq_codec_state *s) { return vq_rowcode_query_bytes(&state(s)->signs); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    float y[VQ_MAX_HEAD_DIM];
    project(state(s), y, q);
    vq_rowcode_prepare_rotated(&state(s)->signs, query, y);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct qjl_state *c = state(s);
    float norms[VQ_PAGE_ROWS];
    vq_rowcode_norms(&c->signs, norms, norms_of(c, page), granules(rows->n));
    const vq_rowcode_page p = {.packed = page, .next = rows->next, .norms = norms, .n_granules = granules(rows->n)};
    vq_rowcode_score(&c->signs, &p, queries, query_bytes(s), n_queries, out);
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
};
