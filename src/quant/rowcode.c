#include "quant/rowcode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"

enum {
    MAX_TILE = VQ_ROWCODE_MAX_D * VQ_CODES_ROWS,
    QUERIES_AT_ONCE = 12,
    SUMS_AT_ONCE = 4,
    FUSED_QUERIES = VQ_CODES_FUSED / 2, /* wide ones are two rows each */
};

typedef struct query_head {
    float unit;  /* of the query's integers */
    float scale; /* the unit times one step of the levels */
    int32_t sum; /* of the query's integers */
    uint8_t unused[52];
} query_head;
_Static_assert(sizeof(query_head) == 64, "queries are read in vectors");

static uint32_t padded(const vq_rowcode *rc) { return VQ_CODES_GROUP * rc->n_groups; }

/* Bytes of one half of a query's integers. */
static size_t half_bytes(const vq_rowcode *rc) { return (padded(rc) + 63) / 64 * 64; }

vq_rowcode vq_rowcode_make(const vq_levels *levels, const vq_rotation *rotation, const vq_codes_kernels *k, uint32_t d,
                           bool keys, vq_rowcode_fit fit)
{
    assert(d >= 1 && d <= VQ_ROWCODE_MAX_D);
    return (vq_rowcode){
        .levels = levels,
        .rotation = rotation,
        .k = k,
        .d = d,
        .n_groups = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP,
        .keys = keys,
        .wide_query = levels->wide || levels->bits > 4,
        .fit = fit,
    };
}

size_t vq_rowcode_granule_bytes(const vq_rowcode *rc) { return rc->n_groups * vq_codes_group_bytes(rc->levels->bits); }

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F
/* Below this, the norm is zero in f16. */
#define TINY_VALUE 0x1p-26F

void vq_rowcode_limit(const vq_rowcode *rc, float *y)
{
    if (rc->k->largest(y, rc->d) <= HUGE_VALUE)
        return;
    for (uint32_t i = 0; i < rc->d; i++)
        y[i] = y[i] > HUGE_VALUE ? HUGE_VALUE : y[i] < -HUGE_VALUE ? -HUGE_VALUE : y[i];
}

/* The reciprocal of the grid's spacing that gives the largest cosine, out of N_SCALES around the spacing that is best
 * for normal values: a row of few values deviates from it. */
static float search_scale(const vq_rowcode *rc, const float *y, float inv)
{
    enum { N_SCALES = 16 };
    static const float spacing[8] = {1.5958F, 0.9957F, 0.5860F, 0.3352F, 0.1881F, 0.1041F, 0.0568F, 0.0308F};
    const uint32_t bits = rc->levels->bits;
    const float usual = inv / spacing[bits - 1];
    float best = 0, best_inv = usual, tried[N_SCALES], cosines[N_SCALES];
    if (bits == 1)
        return usual;
    for (uint32_t i = 0; i < N_SCALES; i++)
        tried[i] = usual * (0.7F + 0.04F * (float)i);
    rc->k->fit_grid(cosines, tried, N_SCALES, y, bits, rc->d);
    for (uint32_t i = 0; i < N_SCALES; i++) { /* no branches: where the best one lies cannot be foretold */
        const bool better = cosines[i] > best;
        best = better ? cosines[i] : best;
        best_inv = better ? tried[i] : best_inv;
    }
    return best_inv;
}

uint16_t vq_rowcode_encode_rotated(const vq_rowcode *rc, uint8_t *codes, const float *y)
{
    const vq_levels *levels = rc->levels;
    const uint32_t n_bounds = (1u << levels->bits) - 1;
    const float squares = rc->k->sum_squares(y, rc->d);
    memset(codes + rc->d, 0, padded(rc) - rc->d);
    /* With twice as much in all, one value at least is large enough. */
    if (!(squares > 2 * (float)rc->d * TINY_VALUE * TINY_VALUE) && rc->k->largest(y, rc->d) < TINY_VALUE) {
        memset(codes, 0, rc->d);
        return 0;
    }
    float inv = 1 / sqrtf(squares / (float)rc->d);
    if (rc->search)
        inv = search_scale(rc, y, inv);
    if (rc->fit == VQ_FIT_SKETCH) {
        rc->k->count(codes, y, inv, levels->bounds, n_bounds, rc->d);
        return vq_f16_from_f32_clamped(sqrtf(squares) * sqrtf(1.57079633F / (float)rc->d) / levels->step);
    }
    float level_squares;
    const float sum = rc->k->count_fit(codes, &level_squares, y, inv, levels->bounds, levels->v, n_bounds, rc->d);
    const float dot = sum * levels->step;
    level_squares = level_squares * levels->step * levels->step;
    return vq_f16_from_f32_clamped(rc->fit == VQ_FIT_UNBIASED ? squares / dot : dot / level_squares);
}

void vq_rowcode_subtract(const vq_rowcode *rc, const uint8_t *codes, uint16_t norm, float *y)
{
    rc->k->subtract(y, codes, rc->levels->v, vq_f32_from_f16(norm) * rc->levels->step, rc->d);
}

void vq_rowcode_pack(const vq_rowcode *rc, uint8_t *packed, const uint8_t *codes)
{
    (rc->keys ? rc->k->pack_keys : rc->k->pack_values)(packed, codes, padded(rc), rc->levels->bits, rc->n_groups);
}

void vq_rowcode_copy_row(const vq_rowcode *rc, uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j)
{
    vq_codes_copy_row(dst, i, src, j, rc->levels->bits, rc->n_groups, rc->keys);
}

void vq_rowcode_encode(const vq_rowcode *rc, uint8_t *packed, uint16_t *norms, const float *x)
{
    uint8_t codes[VQ_CODES_GRANULE * VQ_ROWCODE_MAX_D];
    float y[VQ_ROWCODE_MAX_D], scratch[VQ_ROWCODE_MAX_D];
    for (uint32_t i = 0; i < VQ_CODES_GRANULE; i++) {
        memcpy(y, x + (size_t)i * rc->d, rc->d * sizeof *y);
        vq_rowcode_limit(rc, y);
        if (rc->rotation)
            vq_rotation_apply(rc->rotation, y, scratch);
        norms[i] = vq_rowcode_encode_rotated(rc, codes + (size_t)i * padded(rc), y);
    }
    vq_rowcode_pack(rc, packed, codes);
}

void vq_rowcode_decode_rotated(const vq_rowcode *rc, const uint8_t *packed, const float *norms, uint32_t n_granules,
                               uint32_t first, uint32_t n, float *y)
{
    uint8_t identity[256], tile[MAX_TILE];
    for (uint32_t i = 0; i < 256; i++)
        identity[i] = (uint8_t)i;
    const size_t n_lanes = vq_codes_lanes(padded(rc));
    if (rc->keys)
        rc->k->unpack_keys(tile, packed, rc->levels->bits, identity, rc->n_groups, n_granules, 0);
    else
        rc->k->unpack_values((int8_t *)tile, packed, rc->levels->bits, (const int8_t *)identity, rc->n_groups,
                             n_granules, 0);
    for (uint32_t i = 0; i < n; i++) {
        const size_t row = first + i;
        const float scale = norms[row] * rc->levels->step;
        for (uint32_t j = 0; j < rc->d; j++) {
            const size_t at =
                rc->keys ? (j / 4 * VQ_CODES_ROWS + row) * 4 + j % 4 : (row / 4 * n_lanes + j) * 4 + row % 4;
            y[(size_t)i * rc->d + j] = (float)rc->levels->v[tile[at]] * scale;
        }
    }
}

void vq_rowcode_decode(const vq_rowcode *rc, const uint8_t *packed, const uint16_t *norms, uint32_t n_granules,
                       uint32_t first, uint32_t n, float *x)
{
    float scratch[VQ_ROWCODE_MAX_D], norms_f32[VQ_CODES_ROWS];
    vq_rowcode_norms(rc, norms_f32, norms, n_granules);
    vq_rowcode_decode_rotated(rc, packed, norms_f32, n_granules, first, n, x);
    if (rc->rotation)
        for (uint32_t i = 0; i < n; i++)
            vq_rotation_invert(rc->rotation, x + (size_t)i * rc->d, scratch);
}

size_t vq_rowcode_query_bytes(const vq_rowcode *rc)
{
    return sizeof(query_head) + half_bytes(rc) * (rc->wide_query ? 2 : 1);
}

void vq_rowcode_prepare_rotated(const vq_rowcode *rc, void *query, const float *y)
{
    memset(query, 0, vq_rowcode_query_bytes(rc));
    query_head *head = query;
    int8_t *q = (int8_t *)query + sizeof *head;
    head->unit = rc->wide_query ? rc->k->quantise_wide(q, half_bytes(rc), &head->sum, y, rc->d)
                                : rc->k->quantise_narrow(q, &head->sum, y, rc->d);
    head->scale = head->unit * rc->levels->step;
}

void vq_rowcode_prepare(const vq_rowcode *rc, void *query, const float *q)
{
    float y[VQ_ROWCODE_MAX_D], scratch[VQ_ROWCODE_MAX_D];
    memcpy(y, q, rc->d * sizeof *y);
    if (rc->rotation)
        vq_rotation_apply(rc->rotation, y, scratch);
    vq_rowcode_prepare_rotated(rc, query, y);
}

void vq_rowcode_norms(const vq_rowcode *rc, float *out, const uint16_t *norms, uint32_t n_granules)
{
    const uint32_t n = VQ_CODES_GRANULE * n_granules;
    rc->k->f16_to_f32(out, norms, n);
    memset(out + n, 0, (VQ_CODES_ROWS - n) * sizeof *out);
}

/* What a granule's mean adds to the scores of a query. */
static float mean_score(const vq_rowcode *rc, const vq_rowcode_mean *mean, const query_head *head)
{
    const int8_t *q = (const int8_t *)(head + 1);
    int32_t dot = rc->k->dot_us(mean->u, q, padded(rc));
    if (rc->wide_query)
        dot = 128 * dot + rc->k->dot_us(mean->u, q + half_bytes(rc), padded(rc));
    return (float)(2 * dot - VQ_NARROW_TOP * head->sum) * (head->unit * mean->scale);
}

/* One batch of queries when levels take two bytes: exact in 64 bits, rounded once. */
static void score_wide(const vq_rowcode *rc, const vq_rowcode_page *page, const uint8_t *high, const uint8_t *low,
                       const uint8_t *queries, size_t stride, uint32_t n, float *out)
{
    const uint32_t n_lanes = VQ_CODES_GRANULE * page->n_granules;
    int32_t dots[4][QUERIES_AT_ONCE * VQ_CODES_ROWS];
    const int8_t *q = (const int8_t *)queries + sizeof(query_head);
    for (uint32_t part = 0; part < 4; part++)
        rc->k->dots_us(dots[part], VQ_CODES_ROWS, part & 1 ? low : high, VQ_CODES_ROWS * 4, n_lanes, padded(rc) / 4,
                       q + (part & 2 ? half_bytes(rc) : 0), stride, n);
    for (uint32_t i = 0; i < n; i++) {
        const query_head *head = (const query_head *)(const void *)(queries + i * stride);
        const int64_t centre = (int64_t)VQ_WIDE_TOP * head->sum;
        for (uint32_t g = 0; g < page->n_granules; g++) {
            const float base = page->means ? mean_score(rc, &page->means[g], head) : 0;
            const size_t at = (size_t)i * VQ_CODES_ROWS + g * VQ_CODES_GRANULE;
            float *o = out + at;
            rc->k->join_wide(o, dots[0] + at, sizeof dots[0] / sizeof dots[0][0], -centre, VQ_CODES_GRANULE);
            for (uint32_t t = 0; t < VQ_CODES_GRANULE; t++)
                o[t] = o[t] * head->scale * page->norms[g * VQ_CODES_GRANULE + t] + base;
        }
    }
}

static ptrdiff_t ahead(const vq_rowcode_page *page)
{
    return page->next ? (ptrdiff_t)((uintptr_t)page->next - (uintptr_t)page->packed) : 0;
}

/* The products of the two halves of wide queries become one. */
static void join_halves(int32_t *high, const int32_t *low, size_t stride, uint32_t n, uint32_t n_lanes)
{
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = i * stride; at < i * stride + n_lanes; at++)
            high[at] = 128 * high[at] + low[at];
}

/* Products with few queries. */
static void dots_fused(const vq_rowcode *rc, const vq_rowcode_page *page, const int8_t *q, size_t stride, uint32_t n,
                       int32_t *dots)
{
    const vq_levels *levels = rc->levels;
    int8_t halves[VQ_CODES_FUSED][VQ_ROWCODE_MAX_D];
    uint32_t n_rows = n;
    if (rc->wide_query) { /* high ones, then low ones */
        for (uint32_t i = 0; i < n; i++) {
            memcpy(halves[i], q + i * stride, padded(rc));
            memcpy(halves[n + i], q + i * stride + half_bytes(rc), padded(rc));
        }
        q = halves[0];
        stride = sizeof halves[0];
        n_rows = 2 * n;
    }
    rc->k->dots_keys(dots, page->packed, levels->bits, levels->key[1], rc->n_groups, page->n_granules, q, stride,
                     n_rows, ahead(page));
    if (rc->wide_query)
        join_halves(dots, dots + (size_t)n * VQ_CODES_ROWS, VQ_CODES_ROWS, n, VQ_CODES_GRANULE * page->n_granules);
}

/* tile: NULL with few queries. */
static void score_narrow(const vq_rowcode *rc, const vq_rowcode_page *page, const uint8_t *tile, const uint8_t *queries,
                         size_t stride, uint32_t n, float *out)
{
    const uint32_t n_lanes = VQ_CODES_GRANULE * page->n_granules;
    int32_t dots[QUERIES_AT_ONCE * VQ_CODES_ROWS], more[QUERIES_AT_ONCE * VQ_CODES_ROWS];
    const int8_t *q = (const int8_t *)queries + sizeof(query_head);
    if (!tile)
        dots_fused(rc, page, q, stride, n, dots);
    else
        rc->k->dots_us(dots, VQ_CODES_ROWS, tile, VQ_CODES_ROWS * 4, n_lanes, padded(rc) / 4, q, stride, n);
    if (tile && rc->wide_query) {
        rc->k->dots_us(more, VQ_CODES_ROWS, tile, VQ_CODES_ROWS * 4, n_lanes, padded(rc) / 4, q + half_bytes(rc),
                       stride, n);
        join_halves(dots, more, VQ_CODES_ROWS, n, n_lanes);
    }
    for (uint32_t i = 0; i < n; i++) {
        const query_head *head = (const query_head *)(const void *)(queries + i * stride);
        const size_t at = (size_t)i * VQ_CODES_ROWS;
        const uint32_t n_each = page->means ? VQ_CODES_GRANULE : n_lanes;
        for (uint32_t t = 0; t < n_lanes; t += n_each)
            rc->k->scores(out + at + t, dots + at + t, VQ_NARROW_TOP * head->sum, head->scale, page->norms + t,
                          page->means ? mean_score(rc, &page->means[t / n_each], head) : 0, n_each);
    }
}

void vq_rowcode_score(const vq_rowcode *rc, const vq_rowcode_page *page, const void *queries, size_t stride, uint32_t n,
                      float *out)
{
    const vq_levels *levels = rc->levels;
    const uint32_t n_lanes = VQ_CODES_GRANULE * page->n_granules;
    const bool fused = !levels->wide && n <= FUSED_QUERIES;
    uint8_t low[MAX_TILE], high[MAX_TILE];
    if (!fused)
        rc->k->unpack_keys(low, page->packed, levels->bits, levels->key[1], rc->n_groups, page->n_granules,
                           ahead(page));
    if (levels->wide)
        rc->k->unpack_keys(high, page->packed, levels->bits, levels->key[0], rc->n_groups, page->n_granules, 0);
    for (uint32_t i = 0; i < n; i += QUERIES_AT_ONCE) {
        const uint32_t now = n - i < QUERIES_AT_ONCE ? n - i : QUERIES_AT_ONCE;
        const uint8_t *q = (const uint8_t *)queries + i * stride;
        float *o = out + (size_t)i * VQ_CODES_ROWS;
        if (levels->wide)
            score_wide(rc, page, high, low, q, stride, now, o);
        else
            score_narrow(rc, page, fused ? NULL : low, q, stride, now, o);
    }
    if (n_lanes < VQ_CODES_ROWS)
        for (uint32_t i = 0; i < n; i++)
            memset(out + (size_t)i * VQ_CODES_ROWS + n_lanes, 0, (VQ_CODES_ROWS - n_lanes) * sizeof *out);
}

void vq_rowcode_unpack_keys(const vq_rowcode *rc, const vq_rowcode_page *page, uint8_t *tile)
{
    rc->k->unpack_keys(tile, page->packed, rc->levels->bits, rc->levels->key[1], rc->n_groups, page->n_granules,
                       ahead(page));
}

void vq_rowcode_dots(const vq_rowcode *rc, const vq_rowcode_page *page, const uint8_t *tile, uint32_t granule,
                     const int8_t *b, size_t stride, uint32_t n, int32_t *dots)
{
    const uint32_t first = granule * VQ_CODES_GRANULE;
    if (tile)
        rc->k->dots_us(dots + first, VQ_CODES_ROWS, tile + (size_t)4 * first, VQ_CODES_ROWS * 4, VQ_CODES_GRANULE,
                       padded(rc) / 4, b, stride, n);
    else
        rc->k->dots_keys(dots + first, page->packed + granule * vq_rowcode_granule_bytes(rc), rc->levels->bits,
                         rc->levels->key[1], rc->n_groups, 1, b, stride, n, ahead(page));
}

static void mix_wide(const vq_rowcode *rc, const int8_t *high, const int8_t *low, const float *norms, uint32_t n_quads,
                     const float *weights, uint32_t n, float *acc, size_t acc_stride)
{
    int32_t dots[4][SUMS_AT_ONCE * VQ_ROWCODE_MAX_D], sums[SUMS_AT_ONCE];
    uint8_t bytes[SUMS_AT_ONCE][2][VQ_CODES_ROWS];
    float unit[SUMS_AT_ONCE];
    const uint32_t n_lanes = vq_codes_lanes(padded(rc));
    for (uint32_t i = 0; i < n; i++)
        unit[i] = rc->k->weigh_wide(bytes[i][0], &sums[i], weights + (size_t)i * VQ_CODES_ROWS, norms);
    for (uint32_t part = 0; part < 4; part++)
        rc->k->dots_su(dots[part], VQ_ROWCODE_MAX_D, part & 1 ? low : high, (size_t)n_lanes * 4, n_lanes, n_quads,
                       bytes[0][part / 2], sizeof bytes[0], n);
    for (uint32_t i = 0; i < n; i++) {
        const float scale = unit[i] * rc->levels->step;
        float sum[VQ_ROWCODE_MAX_D];
        rc->k->join_wide(sum, dots[0] + (size_t)i * VQ_ROWCODE_MAX_D, sizeof dots[0] / sizeof dots[0][0], sums[i],
                         rc->d);
        for (uint32_t j = 0; j < rc->d; j++)
            acc[i * acc_stride + j] += sum[j] * scale;
    }
}

/* Above 4 bits, 8 bits of weight would be heard (the query is wide there for the same reason). */
static void mix_narrow(const vq_rowcode *rc, const vq_rowcode_page *page, const int8_t *tile, const float *weights,
                       uint32_t n, float *acc, size_t acc_stride)
{
    const vq_levels *levels = rc->levels;
    const uint32_t n_lanes = vq_codes_lanes(padded(rc)), n_halves = rc->wide_query ? 2 : 1;
    int32_t dots[VQ_CODES_FUSED * VQ_ROWCODE_MAX_D], sums[SUMS_AT_ONCE];
    uint8_t bytes[VQ_CODES_FUSED][VQ_CODES_ROWS];
    float unit[SUMS_AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        const float *w = weights + (size_t)i * VQ_CODES_ROWS;
        unit[i] = rc->wide_query ? rc->k->weigh_wide(bytes[2 * i], &sums[i], w, page->norms)
                                 : rc->k->weigh_narrow(bytes[i], &sums[i], w, page->norms);
    }
    if (tile)
        rc->k->dots_su(dots, n_lanes, tile, (size_t)n_lanes * 4, n_lanes, VQ_CODES_GRANULE / 4 * page->n_granules,
                       bytes[0], sizeof bytes[0], n_halves * n);
    else
        rc->k->dots_values(dots, n_lanes, page->packed, levels->bits, levels->value[1], rc->n_groups, page->n_granules,
                           bytes[0], sizeof bytes[0], n_halves * n, ahead(page));
    for (uint32_t i = 0; i < n; i++) {
        int32_t *sum = dots + (size_t)i * n_halves * n_lanes;
        if (rc->wide_query)
            join_halves(sum, sum + n_lanes, 0, 1, rc->d);
        rc->k->add_scaled(acc + i * acc_stride, sum, sums[i], unit[i] * levels->step, rc->d);
    }
}

void vq_rowcode_mix(const vq_rowcode *rc, const vq_rowcode_page *page, const float *weights, uint32_t n, float *acc,
                    size_t acc_stride)
{
    const vq_levels *levels = rc->levels;
    const uint32_t n_quads = VQ_CODES_GRANULE / 4 * page->n_granules;
    const bool fused = !levels->wide && n <= FUSED_QUERIES;
    int8_t low[MAX_TILE], high[MAX_TILE];
    if (!fused)
        rc->k->unpack_values(low, page->packed, levels->bits, levels->value[1], rc->n_groups, page->n_granules,
                             ahead(page));
    if (levels->wide)
        rc->k->unpack_values(high, page->packed, levels->bits, levels->value[0], rc->n_groups, page->n_granules, 0);
    for (uint32_t i = 0; i < n; i += SUMS_AT_ONCE) {
        const uint32_t now = n - i < SUMS_AT_ONCE ? n - i : SUMS_AT_ONCE;
        const float *w = weights + (size_t)i * VQ_CODES_ROWS;
        if (levels->wide)
            mix_wide(rc, high, low, page->norms, n_quads, w, now, acc + i * acc_stride, acc_stride);
        else
            mix_narrow(rc, page, fused ? NULL : low, w, now, acc + i * acc_stride, acc_stride);
    }
}
