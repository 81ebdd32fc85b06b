/* The project's own calibrated codec.
 *
 * Keys: what the keys of a head have in common is not coded, or coded once.  Their mean comes from the calibration;
 * what 32 neighbours share beyond that is stored once, as in velox.  The rest is turned into the calibrated basis in
 * which its coordinates are uncorrelated (KLT), bits go to groups of 8 coordinates by reverse water-filling, at least
 * one each, and coordinates with equal bits are mixed by Hadamard matrices: that evens out what the calibration's text
 * and the one at hand differ in.  Without mixing, and with one gain from the row's rms, rows unlike the calibration's
 * were cut off, which cost more than the basis gains.
 *
 * Values: rotated as in TurboQuant.  Neither a mean (the values that much attention rests on are near zero, and would
 * get the mean's error) nor a basis paid; levels and gains that do not shrink did, because attention sums over rows,
 * where errors average out and a shrinkage stays.
 *
 * From 2.5 bits on keys take a quarter bit more and values a quarter less than the average.
 *
 * The basis takes 8 bits an entry under a scale for each vector, and is counted as shared.
 *
 * Page: codes of the segments (quant/mixcode.h); 64 gains, one byte each; for each granule its gains' scale in f16 and,
 * for keys, the gain of what neighbours share in f16 and its codes, coordinate j in the low and j + (padded d)/2 in the
 * high nibble of byte j. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"
#include "quant/mixcode.h"

enum { OPTION_BITS, OPTION_VALUES, N_OPTIONS, NEAR_BITS = 4 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a coordinate, on average over keys and values",
                     .value = 3,
                     .min = 1,
                     .max = 4,
                     .fraction = true},
    [OPTION_VALUES] = {.name = "values",
                       .help = "those of values alone, bits then being those of keys; 0: both from the average",
                       .value = 0,
                       .min = 0,
                       .max = 4,
                       .fraction = true},
};

struct optimal_state {
    vq_arena arena; /* holds this struct too */
    const vq_codes_kernels *k;
    vq_mixcode code;
    uint32_t d, width; /* width: d rounded up to 8 */
    bool keys;
    float *scale; /* [width] of the rest's coordinates, 0 past d */
    /* keys */
    int8_t *basis;      /* [d][width]: entry i of basis vector j at [i][j] */
    float *basis_scale; /* [width], 0 past d */
    float *mean;        /* [d] */
    float *near;        /* [width] of what neighbours share */
    /* values */
    vq_rotation rotation;
};

static const struct optimal_state *state(const vq_codec_state *s)
{
    return (const struct optimal_state *)(const void *)s;
}

static const vq_levels *near_levels(void) { return &vq_levels_gaussian[NEAR_BITS - 1]; }

static struct optimal_state *layout(vq_arena *arena, uint32_t d, bool keys)
{
    const size_t width = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP * VQ_CODES_GROUP;
    struct optimal_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = d, .width = (uint32_t)width, .keys = keys};
    at.scale = vq_arena_take(arena, width, sizeof(float));
    if (keys) {
        at.basis = vq_arena_take(arena, d * width, 1);
        at.basis_scale = vq_arena_take(arena, width, sizeof(float));
        at.mean = vq_arena_take(arena, d, sizeof(float));
        at.near = vq_arena_take(arena, width, sizeof(float));
    } else {
        vq_rotation_layout(&at.rotation, arena, d, false);
    }
    if (s)
        *s = at;
    return s;
}

/* Bits of all groups together. */
static uint32_t n_bits(const vq_codec_env *env, uint32_t n_groups)
{
    const double bits = env->options[OPTION_BITS], own = env->options[OPTION_VALUES];
    double keys = bits, values = own;
    if (own <= 0) {
        keys = bits >= 2.5 && bits < VQ_MIXCODE_MAX_BITS ? fmin(bits + 0.25, VQ_MIXCODE_MAX_BITS) : bits;
        values = 2 * bits - keys;
    }
    const uint32_t n = (uint32_t)rint((env->keys ? keys : values) * n_groups);
    return n > n_groups ? n : n_groups;
}

/* Mixes vectors [first, first + n) of the basis [d][d], n a power of two, and evens out their variances. */
static void mix_vectors(const struct optimal_state *s, float *basis, float *rest, float *near, uint32_t first,
                        uint32_t n)
{
    float column[VQ_MAX_HEAD_DIM], sum = 0, near_sum = 0;
    for (uint32_t j = first; j < first + n; j++) {
        sum += rest[j];
        near_sum += near[j];
    }
    for (uint32_t j = first; j < first + n; j++) {
        rest[j] = sum / (float)n;
        near[j] = near_sum / (float)n;
    }
    for (uint32_t i = 0; i < s->d; i++) {
        for (uint32_t j = 0; j < n; j++) {
            const float entry = basis[(size_t)(first + j) * s->d + i];
            column[j] = vq_hash64(first + j, 0, 0, 0, 0) & 1 ? -entry : entry;
        }
        s->k->hadamard(column, n);
        for (uint32_t j = 0; j < n; j++)
            basis[(size_t)(first + j) * s->d + i] = column[j];
    }
}

/* Each run of groups with the same bits, by powers of two; where d is no multiple of 8, its last group stays as it is.
 */
static void mix_basis(const struct optimal_state *s, const uint8_t *bits, float *basis, float *rest, float *near)
{
    const uint32_t n_whole = s->d / VQ_CODES_GROUP;
    for (uint32_t g = 0; g < n_whole;) {
        uint32_t n = 1;
        while (g + 2 * n <= n_whole && bits[g + 2 * n - 1] == bits[g])
            n *= 2;
        mix_vectors(s, basis, rest, near, g * VQ_CODES_GROUP, n * VQ_CODES_GROUP);
        g += n;
    }
}

/* Basis vectors as rows [d][d] -> 8 bits an entry. */
static void take_basis(struct optimal_state *s, const float *basis)
{
    for (uint32_t j = 0; j < s->d; j++) {
        const float *v = basis + (size_t)j * s->d;
        const float most = s->k->largest(v, s->d);
        s->basis_scale[j] = most / 127;
        for (uint32_t i = 0; i < s->d; i++)
            s->basis[(size_t)i * s->width + j] = (int8_t)(most > 0 ? rintf(v[i] * (127 / most)) : 0);
    }
}

static vq_status fit_keys(struct optimal_state *s, const vq_codec_env *env, uint8_t *bits, vq_error *err)
{
    const vq_calibration *c = env->calibration;
    const size_t n = (size_t)env->d * env->d;
    vq_arena scratch = {0};
    vq_arena_take(&scratch, n, sizeof(float));
    VQ_TRY(vq_arena_alloc(&scratch, err));
    float *basis = vq_arena_take(&scratch, n, sizeof(float)), rest[VQ_MAX_HEAD_DIM] = {0}, near[VQ_MAX_HEAD_DIM] = {0};
    memcpy(basis, vq_calibration_at(c, VQ_KEY_REST_BASIS, env->layer, env->head), n * sizeof *basis);
    memcpy(rest, vq_calibration_at(c, VQ_KEY_REST_SPECTRUM, env->layer, env->head), env->d * sizeof *rest);
    memcpy(near, vq_calibration_at(c, VQ_KEY_NEAR_VARIANCE, env->layer, env->head), env->d * sizeof *near);
    memcpy(s->mean, vq_calibration_at(c, VQ_KEY_MEAN, env->layer, env->head), env->d * sizeof *s->mean);
    vq_mix_allocate(bits, rest, s->width / VQ_CODES_GROUP, n_bits(env, s->width / VQ_CODES_GROUP));
    mix_basis(s, bits, basis, rest, near);
    take_basis(s, basis);
    for (uint32_t j = 0; j < s->d; j++) {
        s->scale[j] = sqrtf(rest[j]);
        s->near[j] = sqrtf(near[j]);
    }
    vq_arena_free(&scratch);
    return VQ_OK;
}

/* Rotated values vary alike everywhere; those of the last group past d are zero. */
static vq_status fit_values(struct optimal_state *s, const vq_codec_env *env, uint8_t *bits, vq_error *err)
{
    VQ_TRY(vq_rotation_draw(&s->rotation, s->k, vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err));
    const uint32_t n_groups = s->width / VQ_CODES_GROUP, n = n_bits(env, n_groups);
    for (uint32_t g = 0; g < n_groups; g++)
        bits[g] = (uint8_t)(n / n_groups + (g < n % n_groups));
    for (uint32_t j = 0; j < s->d; j++)
        s->scale[j] = 1;
    return VQ_OK;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "optimal", err));
    vq_arena arena = {0};
    layout(&arena, env->d, env->keys);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct optimal_state *s = layout(&arena, env->d, env->keys);
    s->arena = arena;
    s->k = &env->kernels->codes;
    uint8_t bits[VQ_MIXCODE_MAX_GROUPS];
    const vq_status status = (env->keys ? fit_keys : fit_values)(s, env, bits, err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    vq_mixcode_make(&s->code, bits, s->scale, s->k, env->d, env->keys);
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
static size_t extra_bytes(const struct optimal_state *c)
{
    return sizeof(uint16_t) + (c->keys ? sizeof(uint16_t) + c->width / 2 : 0);
}

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){
        .codes = state(s)->code.page_bytes,
        .scales = VQ_PAGE_ROWS + 2 * extra_bytes(state(s)),
    };
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct optimal_state *c = state(s);
    const size_t scales = c->width * sizeof(float);
    return c->keys ? (size_t)c->d * c->width + c->d * sizeof(float) + 3 * scales
                   : vq_rotation_bytes(&c->rotation) + scales;
}

static size_t gains_at(const struct optimal_state *c) { return c->code.page_bytes; }

static size_t extra_at(const struct optimal_state *c, uint32_t granule)
{
    return gains_at(c) + VQ_PAGE_ROWS + granule * extra_bytes(c);
}

/* y [width] = B x */
static void to_basis(const struct optimal_state *c, const float *x, float *y)
{
    memset(y, 0, c->width * sizeof *y);
    for (uint32_t i = 0; i < c->d; i++) {
        const int8_t *b = c->basis + (size_t)i * c->width;
        for (uint32_t j = 0; j < c->width; j++)
            y[j] += x[i] * (float)b[j];
    }
    for (uint32_t j = 0; j < c->width; j++)
        y[j] *= c->basis_scale[j];
}

/* x [d] = B' y; y [width] is overwritten */
static void from_basis(const struct optimal_state *c, float *y, float *x)
{
    for (uint32_t j = 0; j < c->width; j++)
        y[j] *= c->basis_scale[j];
    for (uint32_t i = 0; i < c->d; i++) {
        const int8_t *b = c->basis + (size_t)i * c->width;
        float part[VQ_CODES_GROUP] = {0};
        for (uint32_t j = 0; j < c->width; j += VQ_CODES_GROUP)
            for (uint32_t p = 0; p < VQ_CODES_GROUP; p++)
                part[p] += y[j + p] * (float)b[j + p];
        x[i] = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    }
}

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F

static float within(float x) { return x > HUGE_VALUE ? HUGE_VALUE : x < -HUGE_VALUE ? -HUGE_VALUE : x; }

/* Takes what the rows y [32][width] share off them; its gain and codes go to `to`. */
static void encode_near(const struct optimal_state *c, uint8_t *to, float *y)
{
    const vq_levels *l = near_levels();
    float mean[VQ_MAX_HEAD_DIM] = {0}, z[VQ_MAX_HEAD_DIM], squares = 0, along = 0, own = 0;
    uint8_t codes[VQ_MAX_HEAD_DIM] = {0};
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        for (uint32_t j = 0; j < c->width; j++)
            mean[j] += y[(size_t)i * c->width + j];
    for (uint32_t j = 0; j < c->width; j++) {
        mean[j] *= 1.0F / VQ_GRANULE;
        z[j] = c->near[j] > 0 ? mean[j] / c->near[j] : 0;
        squares += z[j] * z[j];
    }
    const float rms = sqrtf(squares / (float)c->d);
    float gain = 0;
    if (rms >= 0x1p-40F) {
        c->k->count(codes, z, 1 / rms, l->bounds, (1u << NEAR_BITS) - 1, c->width);
        for (uint32_t j = 0; j < c->width; j++) {
            const float level = (float)l->v[codes[j]] * l->step * c->near[j];
            along += mean[j] * level;
            own += level * level;
        }
        gain = own > 0 && along > 0 ? along / own : 0;
    }
    const uint16_t half = vq_f16_from_f32_clamped(gain);
    memcpy(to, &half, sizeof half);
    for (uint32_t j = 0; j < c->width / 2; j++)
        to[sizeof half + j] = (uint8_t)(codes[j] | codes[c->width / 2 + j] << 4);
    gain = vq_f32_from_f16(half);
    for (uint32_t j = 0; j < c->width; j++) {
        const float level = (float)l->v[codes[j]] * l->step * c->near[j] * gain;
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            y[(size_t)i * c->width + j] -= level;
    }
}

static void encode_granule(const struct optimal_state *c, uint8_t *page, uint32_t granule, const float *x)
{
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM], row[VQ_MAX_HEAD_DIM], gains[VQ_GRANULE], most = 0;
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    uint8_t *extra = page + extra_at(c, granule), *bytes = page + gains_at(c) + (size_t)VQ_GRANULE * granule;
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        float *to = y + (size_t)i * c->width;
        memset(to, 0, c->width * sizeof *to);
        for (uint32_t j = 0; j < c->d; j++)
            row[j] = within(x[(size_t)i * c->d + j]) - (c->keys ? c->mean[j] : 0);
        if (c->keys) {
            to_basis(c, row, to);
        } else {
            memcpy(to, row, c->d * sizeof *to);
            vq_rotation_apply(&c->rotation, to, row);
        }
    }
    if (c->keys)
        encode_near(c, extra + sizeof(uint16_t), y);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        gains[i] = vq_mixcode_encode(&c->code, codes + (size_t)i * c->width, y + (size_t)i * c->width);
        most = gains[i] > most ? gains[i] : most;
    }
    vq_mixcode_pack(&c->code, page, granule, codes);

    const uint16_t half = vq_f16_from_f32_clamped(most / 255);
    const float scale = vq_f32_from_f16(half), inv = scale > 0 ? 1 / scale : 0;
    memcpy(extra, &half, sizeof half);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const float n = gains[i] * inv + 0.5F;
        bytes[i] = (uint8_t)(n < 255 ? n : 255);
    }
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct optimal_state *c = state(s);
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d)
        encode_granule(c, page, row / VQ_GRANULE, x);
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static float half_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vq_f32_from_f16(half);
}

static void open_gains(const struct optimal_state *c, const uint8_t *page, uint32_t n_granules, float *gains)
{
    memset(gains, 0, VQ_PAGE_ROWS * sizeof *gains);
    for (uint32_t g = 0; g < n_granules; g++)
        c->k->scale_bytes(gains + (size_t)VQ_GRANULE * g, page + gains_at(c) + (size_t)VQ_GRANULE * g,
                          half_at(page + extra_at(c, g)), VQ_GRANULE);
}

/* What neighbours share, as unsigned bytes u [width]; returns its gain. */
static float open_near(const struct optimal_state *c, const uint8_t *page, uint32_t granule, uint8_t *u)
{
    const uint8_t *at = page + extra_at(c, granule) + sizeof(uint16_t);
    c->k->nibbles(u, at + sizeof(uint16_t), near_levels()->key[1], c->width / 2);
    return half_at(at);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct optimal_state *c = state(s);
    const uint32_t n_granules = granules(first + n);
    float gains[VQ_PAGE_ROWS], y[VQ_MAX_HEAD_DIM], near[2] = {0};
    uint8_t u[2][VQ_MAX_HEAD_DIM];
    open_gains(c, page, n_granules, gains);
    for (uint32_t g = 0; c->keys && g < n_granules; g++)
        near[g] = open_near(c, page, g, u[g]) * near_levels()->step;
    for (uint32_t i = 0; i < n; i++, x += c->d) {
        const uint32_t g = (first + i) / VQ_GRANULE;
        vq_mixcode_decode(&c->code, page, gains, n_granules, first + i, 1, y);
        for (uint32_t j = 0; c->keys && j < c->width; j++)
            y[j] += (float)(2 * u[g][j] - VQ_NARROW_TOP) * near[g] * c->near[j];
        if (c->keys) {
            from_basis(c, y, x);
            for (uint32_t j = 0; j < c->d; j++)
                x[j] += c->mean[j];
        } else {
            memcpy(x, y, c->d * sizeof *x);
            vq_rotation_invert(&c->rotation, x, y);
        }
    }
}

/* ---- keys ---- */

typedef struct near_head {
    float unit, base; /* base: of the mean over all keys */
    int32_t sum;
    uint8_t unused[52];
} near_head;
_Static_assert(sizeof(near_head) == 64, "queries are read in vectors");

static size_t near_bytes(const struct optimal_state *c) { return ((size_t)c->width + 63) / 64 * 64; }

/* The query of the rows' codes, then what meets the neighbours' mean: a head, and 14 bits a coordinate. */
static size_t query_bytes(const vq_codec_state *s)
{
    const struct optimal_state *c = state(s);
    return vq_mixcode_query_bytes(&c->code) + sizeof(near_head) + 2 * near_bytes(c);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct optimal_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM], near[VQ_MAX_HEAD_DIM];
    to_basis(c, q, y);
    vq_mixcode_prepare(&c->code, query, y);
    near_head *head = (near_head *)(void *)((uint8_t *)query + vq_mixcode_query_bytes(&c->code));
    memset(head, 0, sizeof *head + 2 * near_bytes(c));
    for (uint32_t j = 0; j < c->width; j++)
        near[j] = y[j] * c->near[j] * near_levels()->step;
    head->unit = c->k->quantise_wide((int8_t *)(head + 1), near_bytes(c), &head->sum, near, c->width);
    for (uint32_t j = 0; j < c->d; j++)
        head->base += q[j] * c->mean[j];
}

static void fetch_next(const struct optimal_state *c, const vq_rows *rows)
{
    if (rows->next)
        for (size_t i = 0; i < VQ_PAGE_ROWS + 2 * extra_bytes(c); i += 64)
            __builtin_prefetch((const uint8_t *)rows->next + gains_at(c) + i);
}

enum { QUERIES_AT_ONCE = 48 };

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct optimal_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    const size_t stride = query_bytes(s), half = near_bytes(c);
    float gains[VQ_PAGE_ROWS], near[2] = {0}, bases[2 * QUERIES_AT_ONCE];
    uint8_t u[2][VQ_MAX_HEAD_DIM];
    fetch_next(c, rows);
    open_gains(c, page, n_granules, gains);
    for (uint32_t g = 0; g < n_granules; g++)
        near[g] = open_near(c, page, g, u[g]);
    for (uint32_t at = 0; at < n_queries; at += QUERIES_AT_ONCE) {
        const uint32_t now = n_queries - at < QUERIES_AT_ONCE ? n_queries - at : QUERIES_AT_ONCE;
        const uint8_t *q = (const uint8_t *)queries + at * stride;
        for (uint32_t i = 0; i < now; i++) {
            const near_head *head =
                (const near_head *)(const void *)(q + i * stride + vq_mixcode_query_bytes(&c->code));
            const int8_t *b = (const int8_t *)(head + 1);
            for (uint32_t g = 0; g < 2; g++) {
                int32_t dot = 0;
                if (g < n_granules)
                    dot = 128 * c->k->dot_us(u[g], b, c->width) + c->k->dot_us(u[g], b + half, c->width);
                bases[2 * i + g] = head->base + (float)(2 * dot - VQ_NARROW_TOP * head->sum) * head->unit * near[g];
            }
        }
        vq_mixcode_score(&c->code, page, rows->next, gains, n_granules, q, stride, now, bases,
                         out + (size_t)at * VQ_PAGE_ROWS);
    }
}

/* ---- values ---- */

static size_t acc_len(const vq_codec_state *s) { return state(s)->width; }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct optimal_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    float gains[VQ_PAGE_ROWS];
    fetch_next(c, rows);
    open_gains(c, page, n_granules, gains);
    vq_mixcode_mix(&c->code, page, rows->next, gains, n_granules, weights, n_queries, acc, c->width);
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct optimal_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < c->d; j++)
        out[j] = acc[j] * c->scale[j];
    vq_rotation_invert(&c->rotation, out, scratch);
}

const vq_codec vq_codec_optimal = {
    .name = "optimal",
    .summary = "calibrated: means taken off, principal axes, bits by water-filling, Lloyd-Max codes",
    .paper = "this project",
    .options = options,
    .n_options = N_OPTIONS,
    .calibrated = true,
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
