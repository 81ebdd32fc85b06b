/* AMC: three tiers of precision by token.  Of every 32 rows a fixed share gets more bits than the middle ones and a
 * fixed share fewer, so that a page has one size; which rows these are is said by their saliency.
 *
 * Rows are turned into the calibrated directions of their second moment (the offline SVD), whose order is that of
 * energy.  Each tier shares its bits among them by water-filling from 0 up, so that a tier of fewer bits has a lower
 * rank too.
 *
 * Saliency of a key is the logarithm of the weight that the calibration's queries give it on average, m.k/sqrt(d) +
 * k'Sk/2d with the mean m and the covariance S of its group's queries, S by its diagonal along the directions: it does
 * not saturate, and needs no attention weights, so that rows that come in decoding get theirs as those of a prompt do.
 * A value's is its energy.  Only the order within 32 rows counts; ties go to the earlier row.
 *
 * Page, for each granule: tiers of the rows, 2 bits each; the scale of gains in f16; 32 gains, one byte each; rows of
 * the high tier, of the middle one, of the low one, each a stream of bits (quant/pack.h). */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kv/codec_rows.h"
#include "kv/codec_spectrum.h"
#include "quant/basis.h"
#include "quant/mixcode.h"
#include "quant/pack.h"

enum { OPTION_BITS, OPTION_SPREAD, OPTION_HIGH, OPTION_LOW, N_OPTIONS, N_TIERS = 3 };

enum {
    TIERS_BYTES = VQ_GRANULE / 4,
    GAINS_BYTES = sizeof(uint16_t) + VQ_GRANULE,
    HEAD_BYTES = TIERS_BYTES + GAINS_BYTES
};

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a coordinate, on average over the tiers",
                     .value = 3,
                     .min = 1,
                     .max = 6,
                     .fraction = true},
    [OPTION_SPREAD] = {.name = "spread",
                       .help = "bits of a coordinate from one tier to the next",
                       .value = 1,
                       .min = 0,
                       .max = 3,
                       .fraction = true},
    [OPTION_HIGH] = {.name = "high", .help = "rows of 32 in the high tier", .value = 8, .min = 0, .max = 16},
    [OPTION_LOW] = {.name = "low", .help = "rows of 32 in the low tier", .value = 8, .min = 0, .max = 16},
};

typedef struct tier {
    vq_mixcode code;
    const uint8_t *bits;       /* [n_groups] */
    uint32_t n_rows, n_groups; /* of a granule; with bits */
    size_t row_bytes, at;      /* at: of its first row in a granule */
} tier;

struct amc_state {
    vq_arena arena; /* holds this struct too */
    const vq_codes_kernels *k;
    vq_basis basis;
    float *scale;           /* [width], 0 past d */
    float *along, *squared; /* [width]: saliency = along.y + squared.y^2; NULL for values */
    uint8_t *bits;          /* [N_TIERS][n_groups] */
    tier tiers[N_TIERS];
    uint32_t d, width;
    size_t granule_bytes;
};

static const struct amc_state *state(const vq_codec_state *s) { return (const struct amc_state *)(const void *)s; }

static struct amc_state *layout(vq_arena *arena, const vq_codec_env *env)
{
    struct amc_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = env->d};
    vq_basis_layout(&at.basis, arena, env->d);
    at.width = at.basis.width;
    at.scale = vq_arena_take(arena, at.width, sizeof(float));
    at.bits = vq_arena_take(arena, N_TIERS, at.width / VQ_CODES_GROUP);
    if (env->keys) {
        at.along = vq_arena_take(arena, at.width, sizeof(float));
        at.squared = vq_arena_take(arena, at.width, sizeof(float));
    }
    if (s)
        *s = at;
    return s;
}

/* Mean and diagonal covariance of the group's queries along the directions, as saliency takes them. */
static void fit_saliency(struct amc_state *s, const vq_codec_env *env, const float *directions, const uint16_t *order)
{
    const vq_calibration_info *info = vq_calibration_get_info(env->calibration);
    const uint32_t group = info->n_heads / info->n_kv_heads, d = env->d;
    for (uint32_t j = 0; j < d; j++) {
        const float *v = directions + (size_t)order[j] * d;
        double mean = 0, moment = 0;
        for (uint32_t h = env->head * group; h < (env->head + 1) * group; h++) {
            const float *m = vq_calibration_at(env->calibration, VQ_QUERY_MEAN, env->layer, h);
            const float *square = vq_calibration_at(env->calibration, VQ_QUERY_MOMENT, env->layer, h);
            for (uint32_t a = 0; a < d; a++) {
                double row = 0;
                for (uint32_t b = 0; b < d; b++)
                    row += (double)square[(size_t)a * d + b] * (double)v[b];
                mean += (double)m[a] * (double)v[a] / group;
                moment += row * (double)v[a] / group;
            }
        }
        const double variance = moment - mean * mean;
        s->along[j] = (float)(mean / sqrt(d));
        s->squared[j] = variance > 0 ? (float)(variance / (2.0 * d)) : 0;
    }
}

static void fit_tiers(struct amc_state *s, const vq_codec_env *env, const float *moments)
{
    const uint32_t n_groups = s->width / VQ_CODES_GROUP;
    const double spread = env->options[OPTION_SPREAD], high = env->options[OPTION_HIGH], low = env->options[OPTION_LOW];
    const double middle = env->options[OPTION_BITS] - spread * (high - low) / VQ_GRANULE;
    s->granule_bytes = HEAD_BYTES;
    for (uint32_t t = 0; t < N_TIERS; t++) {
        tier *to = &s->tiers[t];
        uint8_t *bits = s->bits + (size_t)t * n_groups;
        const double n = rint((middle + spread * (1 - (double)t)) * n_groups);
        to->n_groups = vq_mix_fill(bits, moments, n_groups, n > 1 ? (uint32_t)n : 1, VQ_MIXCODE_TOP_BITS);
        to->bits = bits;
        to->n_rows = (uint32_t)(t == 0 ? high : t == 2 ? low : VQ_GRANULE - high - low);
        const uint32_t dims = to->n_groups * VQ_CODES_GROUP;
        vq_mixcode_make(&to->code, bits, s->scale, s->k, dims < s->d ? dims : s->d, env->keys);
        size_t n_bits = 0;
        for (uint32_t g = 0; g < to->n_groups; g++)
            n_bits += (size_t)bits[g] * VQ_CODES_GROUP;
        to->row_bytes = n_bits / 8;
        to->at = s->granule_bytes;
        s->granule_bytes += to->n_rows * to->row_bytes;
    }
    s->granule_bytes += s->granule_bytes & 1; /* f16 scales lie even */
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "amc", err));
    const float *directions = vq_codec_directions(env);
    float moments[VQ_MAX_HEAD_DIM] = {0};
    uint16_t order[VQ_MAX_HEAD_DIM];
    vq_codec_spectrum(env, directions, moments, order);
    vq_arena arena = {0};
    layout(&arena, env);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct amc_state *s = layout(&arena, env);
    s->arena = arena;
    s->k = &env->kernels->codes;
    vq_basis_take(&s->basis, s->k, directions, order);
    for (uint32_t j = 0; j < s->d; j++)
        s->scale[j] = sqrtf(moments[j]);
    if (env->keys)
        fit_saliency(s, env, directions, order);
    fit_tiers(s, env, moments);
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
    *out = (vq_page_bytes){.codes = 2 * (state(s)->granule_bytes - HEAD_BYTES), .scales = (size_t)2 * HEAD_BYTES};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct amc_state *c = state(s);
    return vq_basis_bytes(&c->basis) + (c->along ? 3 : 1) * c->width * sizeof(float) +
           N_TIERS * (size_t)(c->width / VQ_CODES_GROUP);
}

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F

static float within(float x) { return x > HUGE_VALUE ? HUGE_VALUE : x < -HUGE_VALUE ? -HUGE_VALUE : x; }

static float saliency(const struct amc_state *c, const float *y)
{
    float sum = 0;
    for (uint32_t j = 0; j < c->d; j++)
        sum += c->along ? c->along[j] * y[j] + c->squared[j] * (y[j] * y[j]) : y[j] * y[j];
    return sum;
}

/* Tiers of 32 rows by rank: the high ones first, then the low ones from the end. */
static void choose_tiers(const struct amc_state *c, const float *weight, uint8_t *tiers)
{
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        uint32_t rank = 0;
        for (uint32_t o = 0; o < VQ_GRANULE; o++)
            rank += weight[o] > weight[i] || (weight[o] == weight[i] && o < i);
        tiers[i] = (uint8_t)(rank < c->tiers[0].n_rows ? 0 : rank < VQ_GRANULE - c->tiers[2].n_rows ? 1 : 2);
    }
}

/* Eight codes of a group are as many bytes as a code has bits. */
static void put_row(const tier *t, uint8_t *to, const uint8_t *codes)
{
    for (uint32_t g = 0; g < t->n_groups; g++, codes += VQ_CODES_GROUP) {
        const uint32_t bits = t->bits[g];
        uint64_t word = 0;
        for (uint32_t p = 0; p < VQ_CODES_GROUP; p++)
            word |= (uint64_t)codes[p] << p * bits;
        for (uint32_t b = 0; b < bits; b++)
            *to++ = (uint8_t)(word >> 8 * b);
    }
}

static void get_row(const tier *t, const uint8_t *from, uint8_t *codes)
{
    for (uint32_t g = 0; g < t->n_groups; g++, codes += VQ_CODES_GROUP) {
        const uint32_t bits = t->bits[g];
        uint64_t word = 0;
        for (uint32_t b = 0; b < bits; b++)
            word |= (uint64_t)*from++ << 8 * b;
        for (uint32_t p = 0; p < VQ_CODES_GROUP; p++)
            codes[p] = (uint8_t)(word >> p * bits & ((1u << bits) - 1));
    }
}

/* The gain makes <y,y^> = <y,y>; of a row that few bits fit badly, y^ is then far longer than y.  Past this much its
 * square, least squares are taken. */
#define MOST_LONGER 1.1F

static float limit_gain(const tier *t, const uint8_t *codes, const float *y, float gain)
{
    float back[VQ_MAX_HEAD_DIM], own = 0, along = 0;
    vq_mixcode_row(&t->code, codes, gain, back);
    for (uint32_t j = 0; j < t->code.width; j++) {
        own += back[j] * back[j];
        along += back[j] * y[j];
    }
    return own > MOST_LONGER * along ? gain * (along / own) : gain;
}

static void encode_granule(const struct amc_state *c, uint8_t *to, const float *x)
{
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM], rows[VQ_GRANULE * VQ_MAX_HEAD_DIM], weight[VQ_GRANULE], gains[VQ_GRANULE],
        most = 0;
    uint8_t tiers[VQ_GRANULE], codes[VQ_MAX_HEAD_DIM];
    for (size_t i = 0; i < (size_t)VQ_GRANULE * c->d; i++)
        rows[i] = within(x[i]);
    vq_basis_to(&c->basis, rows, VQ_GRANULE, y);
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        weight[i] = saliency(c, y + (size_t)i * c->width);
    choose_tiers(c, weight, tiers);
    memset(to, 0, c->granule_bytes);
    uint32_t used[N_TIERS] = {0};
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const tier *t = &c->tiers[tiers[i]];
        gains[i] = vq_mixcode_encode(&t->code, codes, y + (size_t)i * c->width);
        gains[i] = limit_gain(t, codes, y + (size_t)i * c->width, gains[i]);
        most = gains[i] > most ? gains[i] : most;
        put_row(t, to + t->at + used[tiers[i]]++ * t->row_bytes, codes);
        vq_pack_put(to, (size_t)2 * i, 2, tiers[i]);
    }
    const uint16_t half = vq_f16_from_f32_clamped(most / 255);
    const float scale = vq_f32_from_f16(half), inv = scale > 0 ? 1 / scale : 0;
    memcpy(to + TIERS_BYTES, &half, sizeof half);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const float n = gains[i] * inv + 0.5F;
        to[TIERS_BYTES + sizeof half + i] = (uint8_t)(n < 255 ? n : 255);
    }
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct amc_state *c = state(s);
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d)
        encode_granule(c, (uint8_t *)page + row / VQ_GRANULE * c->granule_bytes, x);
}

/* Rows of tier `own` before row i. */
static uint32_t rows_before(const uint8_t *tiers, uint32_t i, uint32_t own)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < i; o++)
        n += (tiers[o / 4] >> o % 4 * 2 & 3u) == own;
    return n;
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct amc_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    uint8_t codes[VQ_MAX_HEAD_DIM];
    for (uint32_t r = first; r < first + n; r++, x += c->d) {
        const uint8_t *from = (const uint8_t *)page + r / VQ_GRANULE * c->granule_bytes;
        const uint32_t i = r % VQ_GRANULE, own = vq_pack_get(from, (size_t)2 * i, 2);
        const uint32_t before = rows_before(from, i, own);
        memset(y, 0, c->width * sizeof *y);
        /* bytes from a file may name more rows of a tier than it has, or a fourth tier */
        if (own < N_TIERS && before < c->tiers[own].n_rows) {
            const tier *t = &c->tiers[own];
            uint16_t half;
            memcpy(&half, from + TIERS_BYTES, sizeof half);
            const float gain = vq_f32_from_f16(half) * (float)from[TIERS_BYTES + sizeof half + i];
            get_row(t, from + t->at + before * t->row_bytes, codes);
            vq_mixcode_row(&t->code, codes, gain, y);
        }
        vq_basis_from(&c->basis, y, x);
    }
}

const vq_codec vq_codec_amc = {
    .name = "amc",
    .summary = "calibrated: rows in three tiers of precision and rank, by saliency",
    .paper = "AMC, as in VeloxQuant-MLX",
    .options = options,
    .n_options = N_OPTIONS,
    .calibrated = true,
    .sinks = 4,
    .residual = 32,
    .create = create,
    .destroy = destroy,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
};
