/* One byte a value and one f16 scale a row.  Queries and weights meet the bytes with 14 bits, so that 8-bit rows are
 * the only rounding to be heard.
 *
 * Page: the codes of two granules (8-bit planes of kernels/codes.h), then 64 scales. */
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kv/codec_rows.h"

enum {
    MAX_TILE = VQ_MAX_HEAD_DIM * VQ_PAGE_ROWS,
    QUERIES_AT_ONCE = 12,
    SUMS_AT_ONCE = 4,
    OFFSET = 8192, /* queries are stored unsigned: integer + OFFSET = 128 high + low */
};

struct int8_state {
    const vq_codes_kernels *k;
    uint32_t d, n_groups;
    bool keys;
};

typedef struct query_head {
    float scale;
    uint8_t unused[60];
} query_head;

static const struct int8_state *state(const vq_codec_state *s) { return (const struct int8_state *)(const void *)s; }

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "int8", err));
    struct int8_state *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a codec");
    *s = (struct int8_state){
        .k = &env->kernels->codes,
        .d = env->d,
        .n_groups = (env->d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP,
        .keys = env->keys,
    };
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

static void destroy(vq_codec_state *s) { free(s); }

static uint32_t padded(const struct int8_state *c) { return VQ_CODES_GROUP * c->n_groups; }

static size_t granule_bytes(const struct int8_state *c) { return c->n_groups * vq_codes_group_bytes(8); }

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = 2 * granule_bytes(state(s)), .scales = VQ_PAGE_ROWS * sizeof(uint16_t)};
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static const uint16_t *scales_of(const struct int8_state *c, const void *page)
{
    return (const uint16_t *)(const void *)((const uint8_t *)page + 2 * granule_bytes(c));
}

static uint16_t encode_row(const struct int8_state *c, uint8_t *codes, const float *x)
{
    const float most = c->k->largest(x, c->d);
    memset(codes, 0, padded(c));
    const uint16_t half = vq_f16_from_f32_clamped(most / 127);
    if (half)
        c->k->round_signed((int8_t *)codes, x, 1 / vq_f32_from_f16(half), c->d);
    return half;
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct int8_state *c = state(s);
    uint16_t *scales = (uint16_t *)(void *)((uint8_t *)page + 2 * granule_bytes(c));
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE) {
        for (uint32_t i = 0; i < VQ_GRANULE; i++, x += c->d)
            scales[row + i] = encode_row(c, codes + (size_t)i * padded(c), x);
        uint8_t *to = (uint8_t *)page + row / VQ_GRANULE * granule_bytes(c);
        if (c->keys)
            c->k->pack_keys(to, codes, padded(c), 8, c->n_groups);
        else
            c->k->pack_values(to, codes, padded(c), 8, c->n_groups);
    }
}

static void unpack(const struct int8_state *c, int8_t *tile, const void *page, uint32_t n_granules, const void *next)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    if (c->keys)
        c->k->unpack_keys((uint8_t *)tile, page, 8, NULL, c->n_groups, n_granules, ahead);
    else
        c->k->unpack_values(tile, page, 8, NULL, c->n_groups, n_granules, ahead);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct int8_state *c = state(s);
    const size_t n_lanes = vq_codes_lanes(padded(c));
    int8_t tile[MAX_TILE];
    unpack(c, tile, page, granules(first + n), NULL);
    for (size_t row = first; row < first + n; row++) {
        const float scale = vq_f32_from_f16(scales_of(c, page)[row]);
        for (uint32_t j = 0; j < c->d; j++) {
            const size_t at =
                c->keys ? (j / 4 * VQ_PAGE_ROWS + row) * 4 + j % 4 : (row / 4 * n_lanes + j) * 4 + row % 4;
            *x++ = (float)tile[at] * scale;
        }
    }
}

static size_t half_bytes(const struct int8_state *c) { return (padded(c) + 63) / 64 * 64; }

static size_t query_bytes(const vq_codec_state *s) { return sizeof(query_head) + 2 * half_bytes(state(s)); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct int8_state *c = state(s);
    const size_t half = half_bytes(c);
    memset(query, 0, query_bytes(s));
    query_head *head = query;
    uint8_t *u = (uint8_t *)query + sizeof *head;
    int8_t high[2][VQ_MAX_HEAD_DIM];
    int32_t sum;
    head->scale = c->k->quantise_wide(high[0], VQ_MAX_HEAD_DIM, &sum, q, c->d) / 2; /* scores doubles its sums */
    for (uint32_t i = 0; i < c->d; i++) {
        const int32_t value = 128 * high[0][i] + high[1][i] + OFFSET;
        u[i] = (uint8_t)(value >> 7);
        u[half + i] = (uint8_t)(value & 127);
    }
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct int8_state *c = state(s);
    const uint32_t n_granules = granules(rows->n), n_lanes = VQ_GRANULE * n_granules, n_quads = padded(c) / 4;
    const size_t stride = query_bytes(s);
    int8_t tile[MAX_TILE];
    uint8_t ones[VQ_MAX_HEAD_DIM];
    float scales[VQ_PAGE_ROWS];
    int32_t total[VQ_PAGE_ROWS], high[QUERIES_AT_ONCE * VQ_PAGE_ROWS], low[QUERIES_AT_ONCE * VQ_PAGE_ROWS];

    unpack(c, tile, page, n_granules, rows->next);
    c->k->f16_to_f32(scales, scales_of(c, page), n_lanes);
    memset(ones, 1, sizeof ones);
    c->k->dots_su(total, VQ_PAGE_ROWS, tile, VQ_PAGE_ROWS * 4, n_lanes, n_quads, ones, 0, 1);
    for (uint32_t i = 0; i < n_queries; i += QUERIES_AT_ONCE) {
        const uint32_t now = n_queries - i < QUERIES_AT_ONCE ? n_queries - i : QUERIES_AT_ONCE;
        const uint8_t *q = (const uint8_t *)queries + i * stride, *u = q + sizeof(query_head);
        c->k->dots_su(high, VQ_PAGE_ROWS, tile, VQ_PAGE_ROWS * 4, n_lanes, n_quads, u, stride, now);
        c->k->dots_su(low, VQ_PAGE_ROWS, tile, VQ_PAGE_ROWS * 4, n_lanes, n_quads, u + half_bytes(c), stride, now);
        for (uint32_t j = 0; j < now; j++) {
            const query_head *head = (const query_head *)(const void *)(q + j * stride);
            int32_t *sum = high + (size_t)j * VQ_PAGE_ROWS;
            for (uint32_t t = 0; t < n_lanes; t++)
                sum[t] = 128 * sum[t] + low[(size_t)j * VQ_PAGE_ROWS + t] - OFFSET * total[t];
            float *o = out + (size_t)(i + j) * VQ_PAGE_ROWS;
            c->k->scores(o, sum, 0, head->scale, scales, 0, n_lanes);
            memset(o + n_lanes, 0, (VQ_PAGE_ROWS - n_lanes) * sizeof *o);
        }
    }
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct int8_state *c = state(s);
    const uint32_t n_granules = granules(rows->n), n_lanes = vq_codes_lanes(padded(c));
    int8_t tile[MAX_TILE];
    float scales[VQ_PAGE_ROWS] = {0}, unit[SUMS_AT_ONCE];
    uint8_t bytes[SUMS_AT_ONCE][2][VQ_PAGE_ROWS];
    int32_t dots[2][SUMS_AT_ONCE * VQ_MAX_HEAD_DIM], sum;

    unpack(c, tile, page, n_granules, rows->next);
    c->k->f16_to_f32(scales, scales_of(c, page), VQ_GRANULE * n_granules);
    for (uint32_t i = 0; i < n_queries; i += SUMS_AT_ONCE) {
        const uint32_t now = n_queries - i < SUMS_AT_ONCE ? n_queries - i : SUMS_AT_ONCE;
        for (uint32_t j = 0; j < now; j++)
            unit[j] = c->k->weigh_wide(bytes[j][0], &sum, weights + (size_t)(i + j) * VQ_PAGE_ROWS, scales);
        for (uint32_t part = 0; part < 2; part++)
            c->k->dots_su(dots[part], VQ_MAX_HEAD_DIM, tile, (size_t)n_lanes * 4, n_lanes, n_granules * 8,
                          bytes[0][part], sizeof bytes[0], now);
        for (uint32_t j = 0; j < now; j++) {
            int32_t *high = dots[0] + (size_t)j * VQ_MAX_HEAD_DIM, *low = dots[1] + (size_t)j * VQ_MAX_HEAD_DIM;
            for (uint32_t t = 0; t < c->d; t++)
                high[t] = 128 * high[t] + low[t];
            c->k->add_scaled(acc + (size_t)(i + j) * c->d, high, 0, unit[j] / 2, c->d);
        }
    }
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct int8_state *c = state(s);
    vq_codes_copy_row(dst, i, src, j, 8, c->n_groups, c->keys);
    ((uint16_t *)(void *)((uint8_t *)dst + 2 * granule_bytes(c)))[i] = scales_of(c, src)[j];
}

const vq_codec vq_codec_int8 = {
    .name = "int8",
    .summary = "one byte a value, one f16 scale a row",
    .paper = "",
    .score_error = 5e-4F,
    .mix_error = 5e-4F,
    .create = create,
    .destroy = destroy,
    .page_bytes = page_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .mix = mix,
    .copy_row = copy_row,
};
