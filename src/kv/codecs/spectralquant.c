/* SpectralQuant: rows in the calibrated basis of their second moment, not centred, where few coordinates hold most of
 * the energy.
 *
 * The first d_s coordinates, d_s being the participation ratio (sum l)^2 / sum l^2 of the spectrum l rounded up to a
 * group of 8, are the signal block; the others are the rest.  Each has a gain of its own in every row.  Bits go to
 * groups of 8 by reverse water-filling, b = max(0, log2(l / theta) / 2): groups under the water get none and come back
 * as zeros.  Keys may have a sign sketch of what the signal block lost (option `sketch`), whose estimate of a score is
 * unbiased.
 *
 * Values: the calibration's directions are those of their covariance; their second moments along these say the bits.
 *
 * Page: codes of the signal block, of the rest, of the sketch (quant/mixcode.h, quant/rowcode.h); 64 f16 norms of the
 * sketch; for each granule and block 32 gains, one byte each, after their scale in f16. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_rows.h"
#include "kv/codec_spectrum.h"
#include "quant/basis.h"
#include "quant/mixcode.h"

enum { OPTION_BITS, OPTION_SKETCH, N_OPTIONS, GAIN_BYTES = sizeof(uint16_t) + VQ_GRANULE };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a coordinate, on average",
                     .value = 3,
                     .min = 0.5,
                     .max = 6,
                     .fraction = true},
    [OPTION_SKETCH] = {.name = "sketch",
                       .help = "1: keys have one bit more for each coordinate of the signal block, unbiased",
                       .value = 0,
                       .min = 0,
                       .max = 1},
};

typedef struct block {
    vq_mixcode code;
    uint32_t first; /* coordinate */
    size_t at;      /* of its codes in a page */
} block;

struct spectral_state {
    vq_arena arena; /* holds this struct too */
    const vq_codes_kernels *k;
    vq_basis basis;
    float *scale; /* [width], 0 past d */
    uint32_t d, width, n_blocks;
    block blocks[2]; /* signal, rest; those that have bits */
    bool keys, sketched;
    vq_rotation rotation; /* of the sketch */
    vq_rowcode signs;
    size_t signs_at, norms_at, gains_at, page_bytes;
};

static const struct spectral_state *state(const vq_codec_state *s)
{
    return (const struct spectral_state *)(const void *)s;
}

/* ---- create ---- */

/* Groups of the signal block. */
static uint32_t signal_groups(const float *moments, uint32_t d)
{
    double sum = 0, squares = 0;
    for (uint32_t j = 0; j < d; j++) {
        sum += (double)moments[j];
        squares += (double)moments[j] * (double)moments[j];
    }
    const double ratio = squares > 0 ? sum * sum / squares : d;
    const uint32_t n = (uint32_t)ceil(ratio), n_groups = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP;
    const uint32_t groups = (n + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP;
    return groups < n_groups ? groups : n_groups;
}

typedef struct plan {
    float moments[VQ_MAX_HEAD_DIM];
    uint16_t order[VQ_MAX_HEAD_DIM];
    uint8_t bits[VQ_MIXCODE_MAX_GROUPS];
    uint32_t n_signal, n_coded; /* groups */
} plan;

static plan make_plan(const vq_codec_env *env, const float *basis)
{
    plan p = {0};
    vq_codec_spectrum(env, basis, p.moments, p.order);
    const uint32_t n_groups = (env->d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP;
    const uint32_t n_bits = (uint32_t)rint(env->options[OPTION_BITS] * n_groups);
    p.n_coded = vq_mix_fill(p.bits, p.moments, n_groups, n_bits > 0 ? n_bits : 1, VQ_MIXCODE_TOP_BITS);
    p.n_signal = signal_groups(p.moments, env->d);
    return p;
}

static struct spectral_state *layout(vq_arena *arena, const vq_codec_env *env, const plan *p)
{
    struct spectral_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = env->d, .keys = env->keys};
    vq_basis_layout(&at.basis, arena, env->d);
    at.width = at.basis.width;
    at.scale = vq_arena_take(arena, at.width, sizeof(float));
    at.sketched = env->keys && env->options[OPTION_SKETCH] != 0;
    if (at.sketched)
        vq_rotation_layout(&at.rotation, arena, p->n_signal * VQ_CODES_GROUP, false);
    if (s)
        *s = at;
    return s;
}

static void add_block(struct spectral_state *s, const plan *p, uint32_t first, uint32_t n_groups)
{
    if (n_groups == 0)
        return;
    block *b = &s->blocks[s->n_blocks++];
    b->first = first * VQ_CODES_GROUP;
    b->at = s->page_bytes;
    const uint32_t most = s->d - b->first, dims = n_groups * VQ_CODES_GROUP;
    vq_mixcode_make(&b->code, p->bits + first, s->scale + b->first, s->k, dims < most ? dims : most, s->keys);
    s->page_bytes += b->code.page_bytes;
}

static void place(struct spectral_state *s, const plan *p)
{
    const uint32_t n_first = p->n_signal < p->n_coded ? p->n_signal : p->n_coded;
    add_block(s, p, 0, n_first);
    add_block(s, p, n_first, p->n_coded - n_first);
    s->signs_at = s->page_bytes;
    if (s->sketched)
        s->page_bytes += 2 * vq_rowcode_granule_bytes(&s->signs);
    s->norms_at = s->page_bytes;
    if (s->sketched)
        s->page_bytes += VQ_PAGE_ROWS * sizeof(uint16_t);
    s->gains_at = s->page_bytes;
    s->page_bytes += (size_t)2 * s->n_blocks * GAIN_BYTES;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "spectralquant", err));
    const float *basis = vq_codec_directions(env);
    const plan p = make_plan(env, basis);
    vq_arena arena = {0};
    layout(&arena, env, &p);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct spectral_state *s = layout(&arena, env, &p);
    s->arena = arena;
    s->k = &env->kernels->codes;
    vq_basis_take(&s->basis, s->k, basis, p.order);
    for (uint32_t j = 0; j < s->d; j++)
        s->scale[j] = sqrtf(p.moments[j]);
    if (s->sketched) {
        const vq_status status =
            vq_rotation_draw(&s->rotation, s->k, vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err);
        if (status != VQ_OK) {
            vq_arena_free(&arena);
            return status;
        }
        s->signs = vq_rowcode_make(&vq_levels_uniform[0], NULL, s->k, p.n_signal * VQ_CODES_GROUP, true, VQ_FIT_SKETCH);
    }
    place(s, &p);
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
    *out = (vq_page_bytes){.codes = state(s)->norms_at, .scales = state(s)->page_bytes - state(s)->norms_at};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct spectral_state *c = state(s);
    return vq_basis_bytes(&c->basis) + c->width * sizeof(float) + (c->sketched ? vq_rotation_bytes(&c->rotation) : 0);
}

/* ---- rows ---- */

static size_t gains_of(const struct spectral_state *c, uint32_t n_block, uint32_t granule)
{
    return c->gains_at + ((size_t)2 * n_block + granule) * GAIN_BYTES;
}

static void store_gains(uint8_t *to, const float *gains)
{
    float most = 0;
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        most = gains[i] > most ? gains[i] : most;
    const uint16_t half = vq_f16_from_f32_clamped(most / 255);
    const float scale = vq_f32_from_f16(half), inv = scale > 0 ? 1 / scale : 0;
    memcpy(to, &half, sizeof half);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const float n = gains[i] * inv + 0.5F;
        to[sizeof half + i] = (uint8_t)(n < 255 ? n : 255);
    }
}

/* gains [64], zeros past the granules */
static void open_gains(const struct spectral_state *c, const uint8_t *page, uint32_t n_block, uint32_t n_granules,
                       float *gains)
{
    memset(gains, 0, VQ_PAGE_ROWS * sizeof *gains);
    for (uint32_t g = 0; g < n_granules; g++) {
        const uint8_t *at = page + gains_of(c, n_block, g);
        uint16_t half;
        memcpy(&half, at, sizeof half);
        c->k->scale_bytes(gains + (size_t)VQ_GRANULE * g, at + sizeof half, vq_f32_from_f16(half), VQ_GRANULE);
    }
}

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F

static float within(float x) { return x > HUGE_VALUE ? HUGE_VALUE : x < -HUGE_VALUE ? -HUGE_VALUE : x; }

/* Signs of what the signal block of y [32][width] lost. */
static void encode_sketch(const struct spectral_state *c, uint8_t *page, uint32_t granule, float *y)
{
    const uint32_t n = c->signs.d;
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    uint16_t *norms = (uint16_t *)(void *)(page + c->norms_at) + (size_t)VQ_GRANULE * granule;
    float back[VQ_MAX_HEAD_DIM], gains[VQ_PAGE_ROWS], scratch[VQ_MAX_HEAD_DIM];
    const block *signal = &c->blocks[0];
    open_gains(c, page, 0, granule + 1, gains);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        float *row = y + (size_t)i * c->width;
        vq_mixcode_decode(&signal->code, page + signal->at, gains, granule + 1, granule * VQ_GRANULE + i, 1, back);
        for (uint32_t j = 0; j < signal->code.width; j++)
            row[j] -= back[j];
        vq_rotation_apply(&c->rotation, row, scratch);
        norms[i] = vq_rowcode_encode_rotated(&c->signs, codes + (size_t)i * n, row);
    }
    vq_rowcode_pack(&c->signs, page + c->signs_at + granule * vq_rowcode_granule_bytes(&c->signs), codes);
}

static void encode_granule(const struct spectral_state *c, uint8_t *page, uint32_t granule, const float *x)
{
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM], rows[VQ_GRANULE * VQ_MAX_HEAD_DIM], gains[VQ_GRANULE];
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (size_t i = 0; i < (size_t)VQ_GRANULE * c->d; i++)
        rows[i] = within(x[i]);
    vq_basis_to(&c->basis, rows, VQ_GRANULE, y);
    for (uint32_t n = 0; n < c->n_blocks; n++) {
        const block *b = &c->blocks[n];
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            gains[i] =
                vq_mixcode_encode(&b->code, codes + (size_t)i * b->code.width, y + (size_t)i * c->width + b->first);
        vq_mixcode_pack(&b->code, page + b->at, granule, codes);
        store_gains(page + gains_of(c, n, granule), gains);
    }
    if (c->sketched)
        encode_sketch(c, page, granule, y);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct spectral_state *c = state(s);
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d)
        encode_granule(c, page, row / VQ_GRANULE, x);
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

/* y [n][width] += the sketch's estimate of what the signal block lost */
static void add_sketch(const struct spectral_state *c, const uint8_t *page, uint32_t first, uint32_t n, float *y)
{
    float back[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], norms[VQ_PAGE_ROWS], scratch[VQ_MAX_HEAD_DIM];
    const uint32_t n_granules = granules(first + n);
    vq_rowcode_norms(&c->signs, norms, (const uint16_t *)(const void *)(page + c->norms_at), n_granules);
    vq_rowcode_decode_rotated(&c->signs, page + c->signs_at, norms, n_granules, first, n, back);
    for (uint32_t i = 0; i < n; i++) {
        float *row = back + (size_t)i * c->signs.d;
        vq_rotation_invert(&c->rotation, row, scratch);
        for (uint32_t j = 0; j < c->signs.d; j++)
            y[(size_t)i * c->width + j] += row[j];
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct spectral_state *c = state(s);
    const uint8_t *bytes = page;
    float y[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], part[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM], gains[VQ_PAGE_ROWS];
    const uint32_t n_granules = granules(first + n);
    memset(y, 0, (size_t)n * c->width * sizeof *y);
    for (uint32_t m = 0; m < c->n_blocks; m++) {
        const block *b = &c->blocks[m];
        open_gains(c, bytes, m, n_granules, gains);
        vq_mixcode_decode(&b->code, bytes + b->at, gains, n_granules, first, n, part);
        for (uint32_t i = 0; i < n; i++)
            memcpy(y + (size_t)i * c->width + b->first, part + (size_t)i * b->code.width, b->code.width * sizeof *y);
    }
    if (c->sketched)
        add_sketch(c, bytes, first, n, y);
    for (uint32_t i = 0; i < n; i++)
        vq_basis_from(&c->basis, y + (size_t)i * c->width, x + (size_t)i * c->d);
}

/* ---- keys ---- */

static size_t query_at(const struct spectral_state *c, uint32_t n_block)
{
    size_t at = 0;
    for (uint32_t i = 0; i < n_block && i < c->n_blocks; i++)
        at += vq_mixcode_query_bytes(&c->blocks[i].code);
    return at;
}

static size_t query_bytes(const vq_codec_state *s)
{
    const struct spectral_state *c = state(s);
    return query_at(c, c->n_blocks) + (c->sketched ? vq_rowcode_query_bytes(&c->signs) : 0);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct spectral_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    uint8_t *to = query;
    vq_basis_to(&c->basis, q, 1, y);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        vq_mixcode_prepare(&c->blocks[i].code, to + query_at(c, i), y + c->blocks[i].first);
    if (c->sketched) {
        vq_rotation_apply(&c->rotation, y, scratch);
        vq_rowcode_prepare_rotated(&c->signs, to + query_at(c, c->n_blocks), y);
    }
}

enum { QUERIES_AT_ONCE = 48 };

static void score_some(const struct spectral_state *c, const uint8_t *page, const vq_rows *rows, const uint8_t *queries,
                       size_t stride, uint32_t n, float *out)
{
    float gains[VQ_PAGE_ROWS], more[QUERIES_AT_ONCE * VQ_PAGE_ROWS];
    const uint8_t *next = rows->next;
    const uint32_t n_granules = granules(rows->n);
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        const block *b = &c->blocks[i];
        open_gains(c, page, i, n_granules, gains);
        vq_mixcode_score(&b->code, page + b->at, next ? next + b->at : NULL, gains, n_granules,
                         queries + query_at(c, i), stride, n, NULL, i ? more : out);
        for (uint32_t j = 0; i > 0 && j < n * VQ_PAGE_ROWS; j++)
            out[j] += more[j];
    }
    if (!c->sketched)
        return;
    vq_rowcode_norms(&c->signs, gains, (const uint16_t *)(const void *)(page + c->norms_at), n_granules);
    const vq_rowcode_page part = {.packed = page + c->signs_at,
                                  .next = next ? next + c->signs_at : NULL,
                                  .norms = gains,
                                  .n_granules = n_granules};
    vq_rowcode_score(&c->signs, &part, queries + query_at(c, c->n_blocks), stride, n, more);
    for (uint32_t j = 0; j < n * VQ_PAGE_ROWS; j++)
        out[j] += more[j];
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const size_t stride = query_bytes(s);
    for (uint32_t at = 0; at < n_queries; at += QUERIES_AT_ONCE) {
        const uint32_t now = n_queries - at < QUERIES_AT_ONCE ? n_queries - at : QUERIES_AT_ONCE;
        score_some(state(s), page, rows, (const uint8_t *)queries + at * stride, stride, now,
                   out + (size_t)at * VQ_PAGE_ROWS);
    }
}

/* ---- values ---- */

static size_t acc_len(const vq_codec_state *s) { return state(s)->width; }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct spectral_state *c = state(s);
    const uint8_t *bytes = page, *next = rows->next;
    const uint32_t n_granules = granules(rows->n);
    float gains[VQ_PAGE_ROWS];
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        const block *b = &c->blocks[i];
        open_gains(c, bytes, i, n_granules, gains);
        vq_mixcode_mix(&b->code, bytes + b->at, next ? next + b->at : NULL, gains, n_granules, weights, n_queries,
                       acc + b->first, c->width);
    }
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct spectral_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < c->width; j++)
        y[j] = acc[j] * c->scale[j];
    vq_basis_from(&c->basis, y, out);
}

const vq_codec vq_codec_spectralquant = {
    .name = "spectralquant",
    .summary = "calibrated: principal axes, bits by water-filling from 0 up, gains for signal and rest",
    .paper = "SpectralQuant, as in VeloxQuant-MLX",
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
