/* A2ATS: keys as they were before RoPE in product codes, seen through a window.
 *
 * Keys nearer to a query than the window are turned to their true distance.  All others are seen from one distance,
 * VQ_A2ATS_OFFSET: the query is turned by it and keys are not turned at all, so that a query's table of products
 * with the centroids holds for every far row.  Codes are of L' k, where L L' is the queries' second moment, turned by
 * the same distance: the nearest centroid is the one whose error such queries hear least (quant/factor.h).
 *
 * Values are product codes as VecInfer's.  With top > 0 only so many coded rows of a head, those with the largest
 * scores, take part in a query's softmax (retrieval).  There is no exact store beside the codes: scores that choose
 * rows are those that weigh them.
 *
 * Page: the codes of two granules. */
#include <string.h>

#include "kv/codec_generic.h"
#include "kv/codec_product.h"
#include "kv/codec_rows.h"
#include "quant/factor.h"

enum { OPTION_BITS, OPTION_WINDOW, OPTION_TOP, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a value: 2 is 256 centroids for 4 values, 1 for 8",
                     .value = 2,
                     .min = 1,
                     .max = 2},
    [OPTION_WINDOW] = {.name = "window",
                       .help = "keys nearer than so many positions are seen at their true distance",
                       .value = 512,
                       .min = 0,
                       .max = 1 << 20},
    [OPTION_TOP] = {.name = "top",
                    .help = "coded rows that take part in a softmax, those with the largest scores; 0: all",
                    .value = 0,
                    .min = 0,
                    .max = 4096},
};

struct a2ats_state {
    vq_product_state base;
    const vq_kernels *kernels;
    uint32_t window, top;
    float *factor; /* [d][d] of keys */
    vq_kv_rope rope;
    double *freq; /* [d / 2] of rope */
};

/* A prepared query: its table, then itself and where it stands. */
typedef struct near_query {
    uint32_t pos, unused[15];
    float q[];
} near_query;

static const struct a2ats_state *state(const vq_codec_state *s) { return (const struct a2ats_state *)(const void *)s; }

static struct a2ats_state *layout(vq_arena *arena, const vq_codec_env *env, uint32_t sub, uint16_t **centroids)
{
    struct a2ats_state *s = vq_arena_take(arena, 1, sizeof *s);
    struct a2ats_state at = {.kernels = env->kernels,
                             .window = (uint32_t)env->options[OPTION_WINDOW],
                             .top = (uint32_t)env->options[OPTION_TOP]};
    vq_codec_product_layout(&at.base, arena, env, sub, centroids);
    if (env->keys) {
        at.factor = vq_arena_take(arena, (size_t)env->d * env->d, sizeof *at.factor);
        at.freq = vq_arena_take(arena, env->d / 2, sizeof *at.freq);
    }
    if (env->keys && env->rope) {
        at.rope = *env->rope;
        at.rope.freq = at.freq;
    }
    if (s)
        *s = at;
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    uint32_t sub;
    VQ_TRY(vq_codec_check_d(env, "a2ats", err));
    VQ_TRY(vq_codec_product_sub(&sub, env, env->options[OPTION_BITS], "a2ats", err));
    const vq_calibration *c = env->calibration;
    const vq_statistic book = env->keys ? (sub == 4 ? VQ_KEY_FACTOR_CODEBOOK_4 : VQ_KEY_FACTOR_CODEBOOK_8)
                                        : (sub == 4 ? VQ_VALUE_CODEBOOK_4 : VQ_VALUE_CODEBOOK_8);
    vq_arena arena = {0};
    uint16_t *centroids;
    layout(&arena, env, sub, &centroids);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct a2ats_state *s = layout(&arena, env, sub, &centroids);
    s->base.arena = arena;
    vq_product_take(centroids, sub, env->d / sub, vq_calibration_at(c, book, env->layer, env->head));
    if (env->keys)
        memcpy(s->factor, vq_calibration_at(c, VQ_KEY_FACTOR, env->layer, env->head),
               (size_t)env->d * env->d * sizeof *s->factor);
    if (env->keys && env->rope)
        memcpy(s->freq, env->rope->freq, env->rope->n_rot / 2 * sizeof *s->freq);
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct a2ats_state *c = state(s);
    const size_t d = c->base.d;
    return vq_product_bytes(&c->base.product) +
           (c->base.keys ? d * d * sizeof *c->factor + d / 2 * sizeof *c->freq : 0);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct a2ats_state *c = state(s);
    const uint32_t d = c->base.d;
    if (!c->base.keys) {
        vq_codec_product_encode(s, page, first, n, x);
        return;
    }
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * d) {
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            vq_factor_key(c->factor, d, x + (size_t)i * d, y + (size_t)i * d);
        vq_codec_product_encode(s, page, row, VQ_GRANULE, y);
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct a2ats_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    vq_product_decode(&c->base.product, page, first, n, x);
    for (uint32_t i = 0; c->base.keys && i < n; i++, x += c->base.d) {
        memcpy(y, x, c->base.d * sizeof *y);
        vq_factor_back(c->factor, c->base.d, y, x);
    }
}

static size_t query_bytes(const vq_codec_state *s)
{
    const size_t n = sizeof(near_query) + state(s)->base.d * sizeof(float);
    return vq_codec_product_table_floats(s) * sizeof(float) + (n + 63) / 64 * 64;
}

static near_query *near_of(const vq_codec_state *s, const void *query)
{
    return (near_query *)(uintptr_t)((const float *)query + vq_codec_product_table_floats(s));
}

/* The table is of the query as far keys see it: at VQ_A2ATS_OFFSET from where they stand. */
static void prepare_at(const vq_codec_state *s, void *query, const float *q, uint32_t pos)
{
    const struct a2ats_state *c = state(s);
    const uint32_t d = c->base.d;
    float far[VQ_MAX_HEAD_DIM], asked[VQ_MAX_HEAD_DIM];
    near_query *near = near_of(s, query);
    memset(near, 0, sizeof *near);
    near->pos = pos;
    memcpy(near->q, q, d * sizeof *q);
    memcpy(far, q, d * sizeof *q);
    if (c->rope.freq)
        vq_turn_by(&c->rope, c->kernels, (double)VQ_A2ATS_OFFSET - pos, d, far);
    vq_factor_query(c->factor, d, far, asked);
    vq_product_table(&c->base.product, asked, query);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct a2ats_state *c = state(s);
    const uint32_t d = c->base.d;
    const size_t each = query_bytes(s);
    float near_rows[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM];
    bool open = false;
    for (uint32_t i = 0; i < n_queries; i++) {
        const void *query = (const char *)queries + i * each;
        const near_query *near = near_of(s, query);
        float *to = out + (size_t)i * VQ_PAGE_ROWS;
        vq_product_score(&c->base.product, page, rows->n, query, to);
        for (uint32_t r = 0; c->rope.freq && r < rows->n; r++) {
            if (!(rows->live >> r & 1) || near->pos - rows->pos[r] >= c->window)
                continue;
            if (!open) {
                decode(s, page, 0, rows->n, near_rows);
                vq_turn_rows(&c->rope, c->kernels, rows->pos, rows->n, false, d, near_rows);
                open = true;
            }
            to[r] = c->kernels->vec.dot(near->q, near_rows + (size_t)r * d, d);
        }
    }
}

static uint32_t retrieves(const vq_codec_state *s) { return state(s)->top; }

const vq_codec vq_codec_a2ats = {
    .name = "a2ats",
    .summary =
        "product codes of keys before RoPE, weighted by the queries' moment, seen through a window; needs codebooks",
    .paper = "He et al. 2025, A2ATS (arXiv 2502.12665)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .calibrated = true,
    .key_codebooks = VQ_CODEBOOKS_FACTOR,
    .value_codebooks = VQ_CODEBOOKS_VALUES,
    .before_rope = true,
    .score_error = 1e-4F, /* (L^-1 q) . (L' k) has larger terms than q . k */
    .create = create,
    .destroy = vq_codec_product_destroy,
    .page_bytes = vq_codec_product_page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare_at = prepare_at,
    .score = score,
    .retrieves = retrieves,
    .acc_len = vq_codec_product_acc_len,
    .mix = vq_codec_product_mix,
    .finish = vq_codec_product_finish,
    .copy_row = vq_codec_product_copy_row,
};
