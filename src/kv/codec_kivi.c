/* Page of keys:    codes of two granules; for each granule: zeros [d], scales [d], pinned rows [pins][d] (all f16),
 *                  row numbers of the pins, one byte each (padded to 2)
 * Page of values:  codes of two granules; zeros [groups][64], scales [groups][64] (f16)
 *
 * Scales fold into the query (keys) and into the weights (values), so the products are of bytes again. */
#include "kv/codec_kivi.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kv/codec_rows.h"

enum { MAX_TILE = VQ_MAX_HEAD_DIM * VQ_PAGE_ROWS, AT_ONCE = 4, MAX_GROUPS = VQ_MAX_HEAD_DIM / VQ_KIVI_GROUP };

struct kivi_state {
    const vq_codes_kernels *k;
    uint32_t d, n_groups;    /* of 8 dimensions: the packing's */
    uint32_t n_value_groups; /* of 32 channels: the quantiser's */
    uint32_t bits, pins;
    bool keys;
};

static const struct kivi_state *state(const vq_codec_state *s) { return (const struct kivi_state *)(const void *)s; }

vq_status vq_codec_kivi_create(vq_codec_state **out, const vq_codec_env *env, const char *codec, uint32_t bits,
                               uint32_t pins, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, codec, err));
    struct kivi_state *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a codec");
    *s = (struct kivi_state){
        .k = &env->kernels->codes,
        .d = env->d,
        .n_groups = (env->d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP,
        .n_value_groups = (env->d + VQ_KIVI_GROUP - 1) / VQ_KIVI_GROUP,
        .bits = bits,
        .pins = env->keys ? pins : 0,
        .keys = env->keys,
    };
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

void vq_codec_kivi_destroy(vq_codec_state *s) { free(s); }

static uint32_t padded(const struct kivi_state *c) { return VQ_CODES_GROUP * c->n_groups; }

static size_t granule_bytes(const struct kivi_state *c) { return c->n_groups * vq_codes_group_bytes(c->bits); }

/* f16 numbers that stand after the codes: of one granule of keys, or of a page of values. */
static size_t n_scales(const struct kivi_state *c)
{
    return c->keys ? 2 * (size_t)c->d + (size_t)c->pins * c->d + (c->pins + 1) / 2
                   : (size_t)2 * c->n_value_groups * VQ_PAGE_ROWS;
}

void vq_codec_kivi_page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    const struct kivi_state *c = state(s);
    *out = (vq_page_bytes){
        .codes = 2 * granule_bytes(c),
        .scales = (c->keys ? 2 : 1) * n_scales(c) * sizeof(uint16_t),
    };
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static uint16_t *scales_at(const struct kivi_state *c, void *page, uint32_t granule)
{
    return (uint16_t *)(void *)((uint8_t *)page + 2 * granule_bytes(c)) + (c->keys ? granule * n_scales(c) : 0);
}

static const uint16_t *scales_of(const struct kivi_state *c, const void *page, uint32_t granule)
{
    return (const uint16_t *)(const void *)((const uint8_t *)page + 2 * granule_bytes(c)) +
           (c->keys ? granule * n_scales(c) : 0);
}

/* Zero and scale of a group as they are stored, and what turns values into codes. */
static void fit_group(const struct kivi_state *c, float least, float most, uint16_t *zero, uint16_t *scale,
                      float *zero_f32, float *inv)
{
    *zero = vq_f16_from_f32_clamped(least);
    *scale = vq_f16_from_f32_clamped((most - least) / (float)((1u << c->bits) - 1));
    *zero_f32 = vq_f32_from_f16(*zero);
    const float s = vq_f32_from_f16(*scale);
    *inv = s > 0 ? 1 / s : 0;
}

/* The rows of a granule with the largest norms, ascending by number; ties go to the lower one. */
static uint32_t pick_pins(const struct kivi_state *c, const float *x, uint8_t *pins)
{
    uint32_t taken = 0;
    for (uint32_t p = 0; p < c->pins; p++) {
        uint32_t best = 0;
        float most = -1;
        for (uint32_t i = 0; i < VQ_GRANULE; i++) {
            const float squares = taken >> i & 1 ? -1 : c->k->sum_squares(x + (size_t)i * c->d, c->d);
            if (squares > most) {
                most = squares;
                best = i;
            }
        }
        taken |= 1u << best;
    }
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        if (taken >> i & 1)
            *pins++ = (uint8_t)i;
    return taken;
}

static void encode_keys(const struct kivi_state *c, uint8_t *codes, uint16_t *scales, const float *x)
{
    const uint32_t d = c->d;
    float least[VQ_MAX_HEAD_DIM], most[VQ_MAX_HEAD_DIM], inv[VQ_MAX_HEAD_DIM];
    uint16_t *pinned = scales + 2 * (size_t)d;
    uint8_t *pins = (uint8_t *)(pinned + (size_t)c->pins * d);
    if (c->pins % 2)
        pins[c->pins] = 0;
    const uint32_t taken = pick_pins(c, x, pins);
    for (uint32_t p = 0; p < c->pins; p++)
        for (uint32_t j = 0; j < d; j++)
            pinned[(size_t)p * d + j] = vq_f16_from_f32_clamped(x[(size_t)pins[p] * d + j]);

    const uint32_t start = (uint32_t)__builtin_ctz(~taken);
    memcpy(least, x + (size_t)start * d, d * sizeof *least);
    memcpy(most, least, d * sizeof *most);
    for (uint32_t i = start + 1; i < VQ_GRANULE; i++)
        if (!(taken >> i & 1))
            for (uint32_t j = 0; j < d; j++) {
                const float v = x[(size_t)i * d + j];
                least[j] = v < least[j] ? v : least[j];
                most[j] = v > most[j] ? v : most[j];
            }
    for (uint32_t j = 0; j < d; j++)
        fit_group(c, least[j], most[j], &scales[j], &scales[d + j], &least[j], &inv[j]);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        memset(codes + (size_t)i * padded(c), 0, padded(c));
        c->k->round_affine(codes + (size_t)i * padded(c), x + (size_t)i * d, least, inv, (1u << c->bits) - 1, d);
    }
}

static void encode_values(const struct kivi_state *c, uint8_t *codes, uint16_t *scales, uint32_t first, const float *x)
{
    const uint32_t d = c->d;
    float zero[VQ_MAX_HEAD_DIM], inv[VQ_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < VQ_GRANULE; i++, x += d, codes += padded(c)) {
        for (uint32_t g = 0; g < c->n_value_groups; g++) {
            const uint32_t from = g * VQ_KIVI_GROUP, to = from + VQ_KIVI_GROUP < d ? from + VQ_KIVI_GROUP : d;
            float least = x[from], most = x[from];
            for (uint32_t j = from + 1; j < to; j++) {
                least = x[j] < least ? x[j] : least;
                most = x[j] > most ? x[j] : most;
            }
            uint16_t *z = scales + (size_t)g * VQ_PAGE_ROWS + first + i;
            fit_group(c, least, most, z, z + (size_t)c->n_value_groups * VQ_PAGE_ROWS, &zero[from], &inv[from]);
            for (uint32_t j = from + 1; j < to; j++) {
                zero[j] = zero[from];
                inv[j] = inv[from];
            }
        }
        memset(codes, 0, padded(c));
        c->k->round_affine(codes, x, zero, inv, (1u << c->bits) - 1, d);
    }
}

void vq_codec_kivi_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct kivi_state *c = state(s);
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d) {
        uint8_t *to = (uint8_t *)page + row / VQ_GRANULE * granule_bytes(c);
        uint16_t *scales = scales_at(c, page, row / VQ_GRANULE);
        if (c->keys) {
            encode_keys(c, codes, scales, x);
            c->k->pack_keys(to, codes, padded(c), c->bits, c->n_groups);
        } else {
            encode_values(c, codes, scales, row, x);
            c->k->pack_values(to, codes, padded(c), c->bits, c->n_groups);
        }
    }
}

void vq_codec_kivi_decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct kivi_state *c = state(s);
    const uint32_t d = c->d;
    const size_t n_lanes = vq_codes_lanes(padded(c));
    uint8_t identity[256], tile[MAX_TILE];
    for (uint32_t i = 0; i < 256; i++)
        identity[i] = (uint8_t)i;
    if (c->keys)
        c->k->unpack_keys(tile, page, c->bits, identity, c->n_groups, granules(first + n), 0);
    else
        c->k->unpack_values((int8_t *)tile, page, c->bits, (const int8_t *)identity, c->n_groups, granules(first + n),
                            0);
    for (size_t row = first; row < first + n; row++, x += d) {
        const uint16_t *scales = scales_of(c, page, (uint32_t)row / VQ_GRANULE);
        for (uint32_t j = 0; j < d; j++) {
            const uint16_t *z = c->keys ? scales + j : scales + (size_t)j / VQ_KIVI_GROUP * VQ_PAGE_ROWS + row;
            const float zero = vq_f32_from_f16(*z);
            const float scale = vq_f32_from_f16(z[c->keys ? d : (size_t)c->n_value_groups * VQ_PAGE_ROWS]);
            const size_t at =
                c->keys ? (j / 4 * VQ_PAGE_ROWS + row) * 4 + j % 4 : (row / 4 * n_lanes + j) * 4 + row % 4;
            x[j] = zero + scale * (float)tile[at];
        }
        const uint16_t *pinned = scales + 2 * (size_t)d;
        const uint8_t *pins = (const uint8_t *)(pinned + (size_t)c->pins * d);
        for (uint32_t p = 0; p < c->pins; p++)
            if (pins[p] == row % VQ_GRANULE)
                c->k->f16_to_f32(x, pinned + (size_t)p * d, d);
    }
}

/* A query is kept as it is: what it meets differs from granule to granule. */
size_t vq_codec_kivi_query_bytes(const vq_codec_state *s) { return (state(s)->d * sizeof(float) + 63) / 64 * 64; }

void vq_codec_kivi_prepare(const vq_codec_state *s, void *query, const float *q)
{
    memcpy(query, q, state(s)->d * sizeof *q);
}

static void score_granule(const struct kivi_state *c, const uint8_t *tile, const uint16_t *scales, const void *queries,
                          size_t stride, uint32_t n, float *out)
{
    const uint32_t d = c->d, n_quads = padded(c) / 4;
    /* codes are in the tile with an offset (quant/levels.h), 8-bit ones without */
    const int32_t offset = c->bits == 8 ? 0 : 64 - (1 << (c->bits - 1));
    float zero[VQ_MAX_HEAD_DIM], scale[VQ_MAX_HEAD_DIM], folded[VQ_MAX_HEAD_DIM];
    int8_t halves[AT_ONCE][2][VQ_MAX_HEAD_DIM];
    int32_t high[AT_ONCE * VQ_GRANULE], low[AT_ONCE * VQ_GRANULE], sums[AT_ONCE];
    float unit[AT_ONCE], base[AT_ONCE];
    c->k->f16_to_f32(zero, scales, d);
    c->k->f16_to_f32(scale, scales + d, d);
    for (uint32_t i = 0; i < n; i += AT_ONCE) {
        const uint32_t now = n - i < AT_ONCE ? n - i : AT_ONCE;
        for (uint32_t j = 0; j < now; j++) {
            const float *q = (const float *)(const void *)((const uint8_t *)queries + (i + j) * stride);
            for (uint32_t t = 0; t < d; t++)
                folded[t] = q[t] * scale[t];
            memset(halves[j][0] + d, 0, padded(c) - d);
            memset(halves[j][1] + d, 0, padded(c) - d);
            unit[j] = c->k->quantise_wide(halves[j][0], VQ_MAX_HEAD_DIM, &sums[j], folded, d);
            base[j] = c->k->dot(q, zero, d);
        }
        c->k->dots_us(high, VQ_GRANULE, tile, VQ_PAGE_ROWS * 4, VQ_GRANULE, n_quads, halves[0][0], sizeof halves[0],
                      now);
        c->k->dots_us(low, VQ_GRANULE, tile, VQ_PAGE_ROWS * 4, VQ_GRANULE, n_quads, halves[0][1], sizeof halves[0],
                      now);
        for (uint32_t j = 0; j < now; j++) {
            float *o = out + (size_t)(i + j) * VQ_PAGE_ROWS;
            const int32_t *h = high + (size_t)j * VQ_GRANULE, *l = low + (size_t)j * VQ_GRANULE;
            for (uint32_t t = 0; t < VQ_GRANULE; t++)
                o[t] = base[j] + unit[j] * (float)(128 * h[t] + l[t] - offset * sums[j]);
        }
    }
    const uint16_t *pinned = scales + 2 * (size_t)d;
    const uint8_t *pins = (const uint8_t *)(pinned + (size_t)c->pins * d);
    for (uint32_t p = 0; p < c->pins; p++) {
        c->k->f16_to_f32(folded, pinned + (size_t)p * d, d);
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)i * VQ_PAGE_ROWS + pins[p]] =
                c->k->dot((const float *)(const void *)((const uint8_t *)queries + i * stride), folded, d);
    }
}

static ptrdiff_t ahead(const void *page, const void *next)
{
    return next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
}

void vq_codec_kivi_score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                         uint32_t n_queries, float *out)
{
    const struct kivi_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    uint8_t tile[MAX_TILE];
    const uint8_t *table = c->bits == 8 ? NULL : vq_levels_uniform[c->bits - 1].key[1];
    c->k->unpack_keys(tile, page, c->bits, table, c->n_groups, n_granules, ahead(page, rows->next));
    for (uint32_t g = 0; g < n_granules; g++)
        score_granule(c, tile + (size_t)g * VQ_GRANULE * 4, scales_of(c, page, g), queries,
                      vq_codec_kivi_query_bytes(s), n_queries, out + (size_t)g * VQ_GRANULE);
    const size_t n_done = (size_t)VQ_GRANULE * n_granules;
    for (uint32_t i = 0; i < n_queries; i++)
        memset(out + (size_t)i * VQ_PAGE_ROWS + n_done, 0, (VQ_PAGE_ROWS - n_done) * sizeof *out);
}

void vq_codec_kivi_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                       uint32_t n_queries, float *acc)
{
    const struct kivi_state *c = state(s);
    const uint32_t d = c->d, n_granules = granules(rows->n), n_lanes = vq_codes_lanes(padded(c));
    const uint16_t *scales = scales_of(c, page, 0);
    int8_t tile[MAX_TILE];
    uint8_t bytes[AT_ONCE][2][VQ_PAGE_ROWS];
    float zero[VQ_PAGE_ROWS] = {0}, scale[VQ_PAGE_ROWS] = {0}, unit[AT_ONCE];
    int32_t dots[2][AT_ONCE * VQ_KIVI_GROUP], sum;
    const float half = (float)(1 << (c->bits - 1)); /* what the table takes off the codes */
    c->k->unpack_values(tile, page, c->bits, vq_levels_uniform[c->bits - 1].value[1], c->n_groups, n_granules,
                        ahead(page, rows->next));
    for (uint32_t g = 0; g < c->n_value_groups; g++) {
        const uint32_t from = g * VQ_KIVI_GROUP, n = d - from < VQ_KIVI_GROUP ? d - from : VQ_KIVI_GROUP;
        c->k->f16_to_f32(zero, scales + (size_t)g * VQ_PAGE_ROWS, VQ_GRANULE * n_granules);
        c->k->f16_to_f32(scale, scales + (size_t)(c->n_value_groups + g) * VQ_PAGE_ROWS, VQ_GRANULE * n_granules);
        for (uint32_t t = 0; t < VQ_GRANULE * n_granules; t++)
            zero[t] += half * scale[t];
        for (uint32_t i = 0; i < n_queries; i += AT_ONCE) {
            const uint32_t now = n_queries - i < AT_ONCE ? n_queries - i : AT_ONCE;
            for (uint32_t j = 0; j < now; j++)
                unit[j] = c->k->weigh_wide(bytes[j][0], &sum, weights + (size_t)(i + j) * VQ_PAGE_ROWS, scale);
            for (uint32_t part = 0; part < 2; part++)
                c->k->dots_su(dots[part], VQ_KIVI_GROUP, tile + (size_t)from * 4, (size_t)n_lanes * 4,
                              vq_codes_lanes(n), n_granules * 8, bytes[0][part], sizeof bytes[0], now);
            for (uint32_t j = 0; j < now; j++) {
                const float base = c->k->dot(weights + (size_t)(i + j) * VQ_PAGE_ROWS, zero, VQ_PAGE_ROWS);
                float *a = acc + (size_t)(i + j) * d + from;
                for (uint32_t t = 0; t < n; t++) {
                    const size_t at = (size_t)j * VQ_KIVI_GROUP + t;
                    a[t] += base + (float)(128 * dots[0][at] + dots[1][at]) * unit[j];
                }
            }
        }
    }
}
