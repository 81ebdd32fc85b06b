/* The project's own calibrated codec.
 *
 * Keys: what 32 neighbours share is stored once and turns with the positions, as RoPE turns keys (quant/turned.h).
 * Rows that are sinks, on which most of attention rests, are not like their neighbours but like each other: from them
 * the sinks' key is taken instead (quant/sink.h), and a bit says so.  The calibration says what that key is, how much
 * each channel of the rest varies and how loudly queries hear it.  Channels are multiplied by the root of how loud they
 * are (the metric is the diagonal of the queries' moment, as the error of q.k asks), ordered by what then varies, bits
 * go to groups of 8 by reverse water-filling, and channels with equal bits are mixed by Hadamard matrices, which evens
 * out what the calibration's text and the one at hand differ in.  A row becomes a trellis code (quant/trelliscode.h)
 * with a gain.  No matrix is kept: at 1,024 tokens it would be half a bit a value in SmolLM2.
 *
 * Values: rotated as in TurboQuant.  Neither a mean (the values that much attention rests on are near zero, and would
 * get the mean's error) nor a basis paid; gains that do not shrink did, because attention sums over rows, where errors
 * average out and a shrinkage stays.
 *
 * Page: codes of two granules; for each granule 32 gains, a byte each, what 1 of them stands for in f16 and, for keys,
 * the scale of what neighbours share in f16, its codes (nibbles, coordinate j in the low and j + width/2 in the high
 * one of byte j) and 32 bits, one for each row, of those that are sinks. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "kv/codec_near.h"
#include "kv/codec_rows.h"
#include "quant/folded.h"
#include "quant/sink.h"
#include "quant/trelliscode.h"
#include "quant/turned.h"

enum {
    OPTION_BITS,
    OPTION_VALUES,
    N_OPTIONS,
    GROUP = VQ_CODES_GROUP,
    ORDER_BYTE = 256,
    MOST_FOLDED = 256,
    SINK_BYTES = VQ_GRANULE / 8
};

/* Bits of keys above the average, for each bit of it from the first on, and at least so many; another share where
 * perplexity prefers values: from HIGH on and, in heads below LONG, whose models don't normalise their keys, none from
 * EVEN_FROM on (docs/methods.md). */
static const double KEYS_MORE = 0.25, HIGH = 3.5, HIGH_KEYS_MORE = 0.125, EVEN_FROM = 2;
enum { LONG = 128 };
/* Below so many bits, 8 bits of a query are enough (docs/methods.md). */
static const double NARROW_BELOW = 2.75;

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a value, all that rows take counted, on average over keys and values",
                     .value = 3,
                     .min = 1,
                     .max = 5,
                     .fraction = true},
    [OPTION_VALUES] = {.name = "values",
                       .help = "those of values alone, bits then being those of keys; 0: both from the average",
                       .value = 0,
                       .min = 0,
                       .max = 5,
                       .fraction = true},
};

struct optimal_state {
    vq_arena arena; /* holds this struct too */
    const vq_codes_kernels *k;
    const vq_folded_kernels *folded; /* NULL: the rotation is not one matrix, or its sums may pass 16 bits */
    vq_trelliscode code;
    uint32_t d, width; /* width: d rounded up to 8 */
    bool keys;
    vq_rotation rotation; /* of values; for keys, of what neighbours share */
    /* keys */
    float *scales;      /* [width / 8] */
    uint8_t *order;     /* [d] the channel that coordinate j is made of, less 256 where .. */
    uint8_t *far;       /* .. bit j says so; NULL up to d = 256 */
    uint8_t *fold;      /* [d] what channel j is divided by (see put_folds) */
    uint8_t *near_fold; /* [d] the same for what neighbours share */
    uint8_t *signs;     /* bit j: coordinate j is flipped before coordinates are mixed */
    vq_turned turned;
    vq_sink sink;
    const vq_attention_kernels *attention;
};

static const struct optimal_state *state(const vq_codec_state *s)
{
    return (const struct optimal_state *)(const void *)s;
}

static struct optimal_state *layout(vq_arena *arena, const vq_codec_env *env)
{
    const uint32_t d = env->d;
    const size_t width = (d + GROUP - 1) / GROUP * GROUP;
    struct optimal_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = d, .width = (uint32_t)width};
    vq_rotation_layout(&at.rotation, arena, d, false);
    if (env->keys) {
        at.scales = vq_arena_take(arena, width / GROUP, sizeof *at.scales);
        at.order = vq_arena_take(arena, d, 1);
        at.far = d > ORDER_BYTE ? vq_arena_take(arena, width / 8, 1) : NULL;
        at.fold = vq_arena_take(arena, d, 1);
        at.near_fold = vq_arena_take(arena, d, 1);
        at.signs = vq_arena_take(arena, width / 8, 1);
        vq_turned_layout(&at.turned, arena, d, env->rope);
        vq_sink_layout(&at.sink, arena, d, env->rope);
    }
    if (s)
        *s = at;
    return s;
}

/* ---- what a calibration says of keys ---- */

/* Folds are bytes.  How well they are met matters little, as keys are divided and queries multiplied by the same ones.
 */
static void put_folds(uint8_t *to, const float *x, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++) {
        uint32_t bits;
        memcpy(&bits, &x[j], sizeof bits);
        const int64_t code =
            (int64_t)((bits + (1u << (VQ_BYTE_FLOAT_SHIFT - 1))) >> VQ_BYTE_FLOAT_SHIFT) - VQ_BYTE_FLOAT_LEAST;
        to[j] = (uint8_t)(!(x[j] > 0) || code < 0 ? 0 : code > 255 ? 255 : code);
    }
}

static void get_folds(float *to, const uint8_t *from, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        to[j] = vq_byte_float(from[j]);
}

/* Coordinate j is made of this channel. */
static uint32_t channel_of(const struct optimal_state *s, uint32_t j)
{
    return s->order[j] + (s->far && s->far[j / 8] >> j % 8 & 1 ? ORDER_BYTE : 0);
}

static void put_order(struct optimal_state *s, const uint16_t *order)
{
    if (s->far)
        memset(s->far, 0, s->width / 8);
    for (uint32_t j = 0; j < s->d; j++) {
        s->order[j] = (uint8_t)(order[j] % ORDER_BYTE);
        if (order[j] >= ORDER_BYTE)
            s->far[j / 8] |= (uint8_t)(1u << j % 8);
    }
}

/* Of a pair that turns, both channels see the same over some positions: their mean. */
static void share_pairs(const vq_turned *t, float *x)
{
    for (uint32_t j = 0; j < t->shape.d; j++) {
        uint32_t other;
        if (vq_turned_pair(t, j, &other) && j < other)
            x[j] = x[other] = 0.5F * (x[j] + x[other]);
    }
}

/* No channel less than a share of the mean, so that none is divided by nothing. */
static void lift(float *x, uint32_t d, float share)
{
    float sum = 0;
    for (uint32_t j = 0; j < d; j++)
        sum += x[j];
    const float least = sum > 0 ? share * sum / (float)d : 1;
    for (uint32_t j = 0; j < d; j++)
        x[j] += least;
}

/* loud [d]: mean squares of the queries that a kv head gets. */
static void take_queries(const vq_codec_env *env, float *loud)
{
    const vq_calibration_info *info = vq_calibration_get_info(env->calibration);
    const uint32_t group = info->n_heads / info->n_kv_heads, d = env->d;
    memset(loud, 0, d * sizeof *loud);
    for (uint32_t h = 0; h < group; h++) {
        const float *moment = vq_calibration_at(env->calibration, VQ_QUERY_MOMENT, env->layer, env->head * group + h);
        for (uint32_t j = 0; j < d; j++)
            loud[j] += moment[(size_t)j * d + j];
    }
    for (uint32_t j = 0; j < d; j++)
        loud[j] = loud[j] > 0 ? loud[j] : 0;
}

/* Fold and order of channels, and what coordinates then vary by: energy [width]. */
static void plan_keys(struct optimal_state *s, const vq_codec_env *env, float *energy)
{
    float loud[VQ_MAX_HEAD_DIM], rest[VQ_MAX_HEAD_DIM], near[VQ_MAX_HEAD_DIM], fold[VQ_MAX_HEAD_DIM];
    uint16_t order[VQ_MAX_HEAD_DIM];
    memcpy(rest, vq_calibration_at(env->calibration, VQ_KEY_TURN_REST, env->layer, env->head), s->d * sizeof *rest);
    memcpy(near, vq_calibration_at(env->calibration, VQ_KEY_TURN_NEAR, env->layer, env->head), s->d * sizeof *near);
    take_queries(env, loud);
    share_pairs(&s->turned, rest);
    share_pairs(&s->turned, near);
    lift(rest, s->d, 0x1p-13F);
    lift(near, s->d, 0x1p-13F);
    lift(loud, s->d, 0x1p-10F);
    for (uint32_t j = 0; j < s->d; j++) {
        fold[j] = 1 / sqrtf(loud[j]);
        near[j] = sqrtf(sqrtf(near[j]) * sqrtf(rest[j])); /* its error, which rows have to code, is like them then */
    }
    put_folds(s->fold, fold, s->d);
    put_folds(s->near_fold, near, s->d);
    get_folds(fold, s->fold, s->d);
    memset(energy, 0, s->width * sizeof *energy);
    for (uint32_t j = 0; j < s->d; j++) {
        order[j] = (uint16_t)j;
        energy[j] = rest[j] / (fold[j] * fold[j]);
    }
    for (uint32_t j = 1; j < s->d; j++) /* the largest first; equal ones stay in order */
        for (uint32_t i = j; i > 0 && energy[i] > energy[i - 1]; i--) {
            const float e = energy[i];
            const uint16_t o = order[i];
            energy[i] = energy[i - 1], order[i] = order[i - 1];
            energy[i - 1] = e, order[i - 1] = o;
        }
    put_order(s, order);
}

/* Bytes of a granule besides codes: gains, the largest one and, for keys, what neighbours share. */
static uint32_t granule_extra(const struct optimal_state *s, bool keys)
{
    return VQ_GRANULE + 2 + (keys ? 2 + s->width / 2 + SINK_BYTES : 0);
}

/* Bits of all groups together. */
static uint32_t n_bits(const struct optimal_state *s, const vq_codec_env *env)
{
    const double bits = env->options[OPTION_BITS], own = env->options[OPTION_VALUES];
    const double width = s->width, even = s->d < LONG && bits >= EVEN_FROM;
    const double more = even ? 0 : bits < HIGH ? KEYS_MORE * fmax(1, bits - 1) : HIGH_KEYS_MORE;
    const double extra_keys = granule_extra(s, true) * 8.0 / VQ_GRANULE;
    const double extra_values = granule_extra(s, false) * 8.0 / VQ_GRANULE;
    const double groups = width / GROUP, most = VQ_TRELLIS_MAX_BITS * groups;
    if (own > 0) {
        const double n = ((env->keys ? bits : own) * width - (env->keys ? extra_keys : extra_values)) / GROUP;
        return (uint32_t)fmin(fmax(floor(n), groups), most);
    }
    const double all = floor((2 * bits * width - extra_keys - extra_values) / GROUP);
    const double asked = fmin(rint(((bits + more) * width - extra_keys) / GROUP), all - groups);
    const double keys = fmin(fmax(asked, groups), most);
    return (uint32_t)(env->keys ? keys : fmin(fmax(all - keys, groups), most));
}

/* How many groups from this one on are mixed: as many as have its bits, to a power of two; 0 for a last one that d
 * cuts.
 */
static uint32_t n_mixed(const struct optimal_state *s, const uint8_t *bits, uint32_t group)
{
    const uint32_t n_whole = s->d / GROUP;
    uint32_t n = 1, same = 1;
    while (group + same < n_whole && bits[group + same] == bits[group])
        same++;
    while (2 * n <= same)
        n *= 2;
    return group < n_whole ? n : 0;
}

/* Coordinates from group g on that are coded alike: groups that are mixed, or what a cut one has. */
static uint32_t n_alike(const struct optimal_state *s, const uint8_t *bits, uint32_t group)
{
    const uint32_t n = n_mixed(s, bits, group);
    return n ? n * GROUP : s->d - group * GROUP;
}

/* No group has more bits than VQ_TRELLIS_MAX_BITS.  Where more would pay, folds do instead: channels that are mixed at
 * equal bits have errors in proportion to the squares of their folds, and the sum of these, weighed by the metric, is
 * smallest when fourth roots of what the channels vary by are folded too.  energy [width] -> what is left of it. */
static void even_out(struct optimal_state *s, const uint8_t *bits, float *energy)
{
    float fold[VQ_MAX_HEAD_DIM], was[VQ_MAX_HEAD_DIM], sum = 0;
    uint32_t n = 0;
    for (uint32_t j = 0; j < s->d; j++)
        if (bits[j / GROUP] == VQ_TRELLIS_MAX_BITS)
            sum += energy[j], n++;
    get_folds(was, s->fold, s->d);
    memcpy(fold, was, sizeof fold);
    for (uint32_t j = 0; j < s->d; j++)
        if (bits[j / GROUP] == VQ_TRELLIS_MAX_BITS)
            fold[channel_of(s, j)] *= sqrtf(sqrtf(energy[j] * (float)n / sum));
    put_folds(s->fold, fold, s->d);
    get_folds(fold, s->fold, s->d);
    for (uint32_t j = 0; j < s->d; j++) {
        const float by = was[channel_of(s, j)] / fold[channel_of(s, j)];
        energy[j] *= by * by;
    }
}

static void fit_keys(struct optimal_state *s, const vq_codec_env *env, uint8_t *bits)
{
    const uint32_t n_groups = s->width / GROUP;
    float energy[VQ_MAX_HEAD_DIM], of[VQ_TRELLISCODE_MAX_GROUPS] = {0};
    vq_turned_fill(&s->turned, env->kernels, env->rope);
    vq_sink_fill(&s->sink, env->rope, vq_calibration_at(env->calibration, VQ_KEY_SINK, env->layer, env->head));
    plan_keys(s, env, energy);
    for (uint32_t j = 0; j < s->width; j++)
        of[j / GROUP] += energy[j];
    vq_trelliscode_fill(bits, of, n_groups, n_bits(s, env));
    even_out(s, bits, energy);
    for (uint32_t g = 0; g < n_groups; g++)
        s->signs[g] = (uint8_t)vq_hash64(env->seed, env->layer, env->head, g, 1);
    for (uint32_t g = 0, n; g < n_groups; g += (n + GROUP - 1) / GROUP) {
        float sum = 0;
        n = n_alike(s, bits, g);
        for (uint32_t j = 0; j < n; j++)
            sum += energy[g * GROUP + j];
        for (uint32_t j = 0; j < n; j += GROUP)
            s->scales[g + j / GROUP] = sqrtf(sum / (float)n);
    }
}

/* Rotated values vary alike everywhere. */
static void fit_values(const struct optimal_state *s, const vq_codec_env *env, uint8_t *bits)
{
    const uint32_t n_groups = s->width / GROUP, n = n_bits(s, env);
    for (uint32_t g = 0; g < n_groups; g++)
        bits[g] = (uint8_t)(n / n_groups + (g < n % n_groups));
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    static const float ones[VQ_TRELLISCODE_MAX_GROUPS] = {[0 ... VQ_TRELLISCODE_MAX_GROUPS - 1] = 1};
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "optimal", err));
    vq_arena arena = {0};
    layout(&arena, env);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct optimal_state *s = layout(&arena, env);
    s->arena = arena;
    s->k = &env->kernels->codes;
    s->attention = &env->kernels->attention;
    s->keys = env->keys;
    const vq_status status =
        vq_rotation_draw(&s->rotation, s->k, vq_hash64(env->seed, env->layer, env->head, env->keys, 0), err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    s->folded = env->d <= MOST_FOLDED && vq_folding_fits(&s->rotation) ? &env->kernels->folded : NULL;
    uint8_t bits[VQ_TRELLISCODE_MAX_GROUPS] = {0};
    if (s->keys)
        fit_keys(s, env, bits);
    else
        fit_values(s, env, bits);
    vq_trelliscode_make(&s->code, bits, s->keys ? s->scales : ones, env->kernels, env->d, env->keys,
                        env->options[OPTION_BITS] < NARROW_BELOW);
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

static uint32_t extra_bytes(const struct optimal_state *c) { return granule_extra(c, c->keys); }

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = state(s)->code.page_bytes, .scales = 2 * (size_t)extra_bytes(state(s))};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct optimal_state *c = state(s);
    const size_t of_keys = c->code.n_groups * sizeof *c->scales + (size_t)3 * c->d + c->width / 8 * (c->far ? 2 : 1) +
                           vq_turned_bytes(&c->turned) + vq_sink_bytes(&c->sink);
    return vq_rotation_bytes(&c->rotation) + (c->keys ? of_keys : 0);
}

static size_t extra_at(const struct optimal_state *c, uint32_t granule)
{
    return c->code.page_bytes + (size_t)granule * extra_bytes(c);
}

/* ---- between channels and coordinates ---- */

static void mix(const struct optimal_state *c, float *y, bool back)
{
    if (!back)
        c->k->flip(y, c->signs, c->width);
    for (uint32_t g = 0, n; g < c->code.n_groups; g += n ? n : 1) {
        n = n_mixed(c, c->code.bits, g);
        if (n)
            c->k->hadamard(y + (size_t)g * GROUP, n * GROUP);
    }
    if (back)
        c->k->flip(y, c->signs, c->width);
}

/* x [d] -> y [width]: divided by folds (a key), or multiplied (a query) */
static void to_coordinates(const struct optimal_state *c, const float *x, float *y, bool query)
{
    float fold[VQ_MAX_HEAD_DIM];
    get_folds(fold, c->fold, c->d);
    memset(y + c->d, 0, (c->width - c->d) * sizeof *y);
    for (uint32_t j = 0; j < c->d; j++)
        y[j] = query ? x[channel_of(c, j)] * fold[channel_of(c, j)] : x[channel_of(c, j)] / fold[channel_of(c, j)];
    mix(c, y, false);
}

/* y [width], which is overwritten, -> x [d], a key */
static void from_coordinates(const struct optimal_state *c, float *y, float *x)
{
    float fold[VQ_MAX_HEAD_DIM];
    get_folds(fold, c->fold, c->d);
    mix(c, y, true);
    for (uint32_t j = 0; j < c->d; j++)
        x[channel_of(c, j)] = y[j] * fold[channel_of(c, j)];
}

/* ---- what neighbours share ---- */

static const vq_levels *near_levels(void) { return &vq_levels_gaussian[3]; }

/* The vector [d] that scale and codes at `from` stand for, as it was taken off rows: floats rounded in one order. */
static void open_near(const struct optimal_state *c, const uint8_t *from, float *near)
{
    uint8_t codes[VQ_MAX_HEAD_DIM];
    float scratch[VQ_MAX_HEAD_DIM];
    uint16_t half;
    memcpy(&half, from, sizeof half);
    const float scale = vq_f32_from_f16(half);
    from += sizeof half;
    c->k->nibbles(codes, from, near_levels()->key[1], c->width / 2);
    c->k->centre_bytes(near, codes, 2, VQ_NARROW_TOP, scale, c->d);
    vq_rotation_invert(&c->rotation, near, scratch);
    c->k->times_byte_floats(near, c->near_fold, c->d);
}

/* The same for a query to meet, to within the rounding of floats: codes are small integers, whose sums are exact. */
static void open_near_at_once(const struct optimal_state *c, const uint8_t *from, float *near)
{
    uint8_t codes[VQ_MAX_HEAD_DIM];
    uint16_t half;
    if (!c->folded) {
        open_near(c, from, near);
        return;
    }
    memcpy(&half, from, sizeof half);
    from += sizeof half;
    c->k->nibbles(codes, from, near_levels()->key[1], c->width / 2);
    c->folded->turn_back(near, codes, 2, VQ_NARROW_TOP, vq_f32_from_f16(half) / sqrtf((float)c->d), c->rotation.signs,
                         c->near_fold, c->d);
}

/* near [d], divided by its folds and rotated, -> scale and codes at `to` */
static void put_near(const struct optimal_state *c, uint8_t *to, const float *z)
{
    uint8_t codes[VQ_MAX_HEAD_DIM] = {0};
    const vq_levels *l = near_levels();
    float squares = 0, along = 0, own = 0;
    for (uint32_t j = 0; j < c->d; j++)
        squares += z[j] * z[j];
    const float rms = sqrtf(squares / (float)c->d);
    if (rms >= 0x1p-40F) {
        c->k->count(codes, z, 1 / rms, l->bounds, 15, c->d);
        for (uint32_t j = 0; j < c->d; j++) {
            const float level = (float)l->v[codes[j]];
            along += z[j] * level;
            own += level * level;
        }
    }
    const uint16_t half = vq_f16_from_f32_clamped(own > 0 && along > 0 ? along / own : 0);
    memcpy(to, &half, sizeof half);
    for (uint32_t j = 0; j < c->width / 2; j++)
        to[sizeof half + j] = (uint8_t)(codes[j] | codes[c->width / 2 + j] << 4);
}

/* ---- rows that are sinks: their key is taken off instead ---- */

/* near [d] = R(i)' x(i), the mean over rows that are no sinks; rows [32][d] is scratch. */
static void take_near(const struct optimal_state *c, const float *x, uint32_t sinks, float *near, float *rows)
{
    const uint32_t n = VQ_GRANULE - (uint32_t)__builtin_popcount(sinks);
    memset(near, 0, c->d * sizeof *near);
    if (sinks) {
        memcpy(rows, x, (size_t)VQ_GRANULE * c->d * sizeof *x);
        for (uint32_t left = sinks; left; left &= left - 1)
            memset(rows + (size_t)__builtin_ctz(left) * c->d, 0, c->d * sizeof *rows);
        x = rows;
    }
    vq_turned_back(&c->turned, x, near);
    for (uint32_t j = 0; j < c->d; j++)
        near[j] *= n ? 1.0F / (float)n : 0;
}

/* Bit i: row i of x [32][d] is nearer to the sinks' key, where it stands, than to what the others share. */
static uint32_t find_sinks(const struct optimal_state *c, const float *x, const uint32_t *pos, const float *near,
                           float *rows)
{
    memset(rows, 0, (size_t)VQ_GRANULE * c->d * sizeof *rows);
    vq_turned_add(&c->turned, 0, VQ_GRANULE, 1, near, rows);
    return vq_sink_find(&c->sink, x, rows, pos, VQ_GRANULE);
}

/* Takes what the rows x [32][d] share off them, or the sinks' key; what is shared goes to `to`.  Returns which rows are
 * sinks.  pos NULL: not known, and none is.  rows [32][d] is scratch. */
static uint32_t encode_near(const struct optimal_state *c, uint8_t *to, float *x, const uint32_t *pos, float *rows)
{
    float near[VQ_MAX_HEAD_DIM], fold[VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM];
    uint32_t sinks = 0;
    take_near(c, x, 0, near, rows);
    for (int t = 0; t < 2 && pos && c->sink.n_pairs; t++) { /* again, once they are not in what others share */
        const uint32_t before = sinks;
        sinks = find_sinks(c, x, pos, near, rows);
        if (sinks == before)
            break;
        take_near(c, x, sinks, near, rows);
    }
    for (uint32_t left = sinks; left; left &= left - 1) {
        const uint32_t i = (uint32_t)__builtin_ctz(left);
        float *row = x + (size_t)i * c->d, *less = rows + (size_t)i * c->d;
        vq_sink_at(&c->sink, pos[i], less);
        for (uint32_t j = 0; j < c->d; j++)
            less[j] = row[j] - less[j];
    }
    get_folds(fold, c->near_fold, c->d);
    for (uint32_t j = 0; j < c->d; j++)
        near[j] /= fold[j];
    vq_rotation_apply(&c->rotation, near, scratch);
    put_near(c, to, near);
    open_near(c, to, near);
    vq_turned_add(&c->turned, 0, VQ_GRANULE, -1, near, x);
    for (uint32_t left = sinks; left; left &= left - 1) {
        const size_t at = (size_t)__builtin_ctz(left) * c->d;
        memcpy(x + at, rows + at, c->d * sizeof *x);
    }
    return sinks;
}

/* ---- gains: half a byte each would lose small rows, and err along long ones as much as codes do ---- */

/* gains [64], 0 for rows of granules that are not there */
static void open_gains(const struct optimal_state *c, const uint8_t *page, uint32_t n_granules, float *gains)
{
    memset(gains, 0, VQ_PAGE_ROWS * sizeof *gains);
    for (uint32_t g = 0; g < n_granules; g++, gains += VQ_GRANULE) {
        const uint8_t *from = page + extra_at(c, g);
        uint16_t half;
        memcpy(&half, from + VQ_GRANULE, sizeof half);
        c->k->scale_bytes(gains, from, vq_f32_from_f16(half), VQ_GRANULE);
    }
}

/* ---- rows ---- */

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F

static float within(float x) { return x > HUGE_VALUE ? HUGE_VALUE : x < -HUGE_VALUE ? -HUGE_VALUE : x; }

static const uint8_t *near_at(const struct optimal_state *c, const uint8_t *page, uint32_t granule)
{
    return page + extra_at(c, granule) + VQ_GRANULE + sizeof(uint16_t);
}

/* Bit i: row i of a granule is a sink. */
static uint32_t get_sinks(const struct optimal_state *c, const uint8_t *page, uint32_t granule)
{
    uint32_t sinks = 0;
    for (uint32_t i = 0; c->sink.n_pairs && i < SINK_BYTES; i++)
        sinks |= (uint32_t)page[extra_at(c, granule + 1) - SINK_BYTES + i] << 8 * i;
    return sinks;
}

static void put_sinks(const struct optimal_state *c, uint8_t *page, uint32_t granule, uint32_t sinks)
{
    for (uint32_t i = 0; i < SINK_BYTES; i++)
        page[extra_at(c, granule + 1) - SINK_BYTES + i] = (uint8_t)(sinks >> 8 * i);
}

static void encode_granule(const struct optimal_state *c, uint8_t *page, uint32_t granule, const float *rows,
                           const uint32_t *pos)
{
    float x[VQ_GRANULE * VQ_MAX_HEAD_DIM], rotated[VQ_GRANULE * VQ_MAX_HEAD_DIM], scratch[VQ_MAX_HEAD_DIM],
        gains[VQ_GRANULE];
    uint8_t codes[VQ_GRANULE * VQ_MAX_HEAD_DIM / 8 * VQ_TRELLIS_MAX_BITS];
    for (size_t i = 0; i < (size_t)VQ_GRANULE * c->d; i++)
        x[i] = within(rows[i]);
    if (c->keys)
        put_sinks(c, page, granule, encode_near(c, (uint8_t *)(uintptr_t)near_at(c, page, granule), x, pos, rotated));
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        float *y = rotated + (size_t)i * c->width;
        if (c->keys) {
            to_coordinates(c, x + (size_t)i * c->d, y, false);
        } else {
            memset(y + c->d, 0, (c->width - c->d) * sizeof *y);
            memcpy(y, x + (size_t)i * c->d, c->d * sizeof *y);
            vq_rotation_apply(&c->rotation, y, scratch);
        }
    }
    vq_trelliscode_encode(&c->code, codes, gains, rotated, c->width);
    vq_trelliscode_pack(&c->code, page, granule, codes);
    uint8_t *to = page + extra_at(c, granule);
    vq_near_pack_gains(to, to + VQ_GRANULE, gains);
}

static void encode_at(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x,
                      const uint32_t *pos)
{
    const struct optimal_state *c = state(s);
    for (uint32_t i = 0; i < n; i += VQ_GRANULE)
        encode_granule(c, page, (first + i) / VQ_GRANULE, x + (size_t)i * c->d, pos ? pos + i : NULL);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    encode_at(s, page, first, n, x, NULL);
}

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static void decode_at(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x,
                      const uint32_t *pos)
{
    const struct optimal_state *c = state(s);
    float gains[VQ_PAGE_ROWS], y[VQ_MAX_HEAD_DIM], near[VQ_MAX_HEAD_DIM];
    open_gains(c, page, granules(first + n), gains);
    for (uint32_t i = 0; i < n; i++) {
        float *row = x + (size_t)i * c->d;
        vq_trelliscode_decode(&c->code, page, gains, first + i, 1, y);
        if (c->keys) {
            from_coordinates(c, y, row);
        } else {
            memcpy(row, y, c->d * sizeof *row);
            vq_rotation_invert(&c->rotation, row, y);
        }
    }
    for (uint32_t now; c->keys && n; first += now, n -= now, x += (size_t)now * c->d) {
        const uint32_t at = first % VQ_GRANULE;
        now = n < VQ_GRANULE - at ? n : VQ_GRANULE - at;
        open_near(c, near_at(c, page, first / VQ_GRANULE), near);
        const uint32_t sinks = pos ? get_sinks(c, page, first / VQ_GRANULE) >> at : 0;
        if (!sinks)
            vq_turned_add(&c->turned, at, now, 1, near, x);
        for (uint32_t i = 0; sinks && i < now; i++) {
            float *row = x + (size_t)i * c->d;
            if (!(sinks >> i & 1)) {
                vq_turned_add(&c->turned, at + i, 1, 1, near, row);
                continue;
            }
            vq_sink_at(&c->sink, pos[i], y);
            for (uint32_t j = 0; j < c->d; j++)
                row[j] += y[j];
        }
        pos = pos ? pos + now : NULL;
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    decode_at(s, page, first, n, x, NULL);
}

static void fetch_next(const struct optimal_state *c, const vq_rows *rows)
{
    if (rows->next)
        for (size_t i = 0; i < 2 * extra_bytes(c); i += 64)
            __builtin_prefetch((const uint8_t *)rows->next + extra_at(c, 0) + i);
}

/* ---- keys: a query as it came, which meets what neighbours share, the turns, then that of the rows' codes ---- */

static size_t plain_bytes(const struct optimal_state *c) { return (c->d * sizeof(float) + 63) / 64 * 64; }

static size_t head_bytes(const struct optimal_state *c)
{
    return plain_bytes(c) + (c->turned.shape.n_pairs * sizeof(vq_turned_steps) + 63) / 64 * 64;
}

static size_t query_bytes(const vq_codec_state *s)
{
    return head_bytes(state(s)) + vq_trelliscode_query_bytes(&state(s)->code);
}

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct optimal_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    memset(query, 0, head_bytes(c));
    memcpy(query, q, c->d * sizeof *q);
    vq_turned_open(&c->turned, (vq_turned_steps *)(void *)((uint8_t *)query + plain_bytes(c)));
    to_coordinates(c, q, y, true);
    vq_trelliscode_prepare(&c->code, (uint8_t *)query + head_bytes(c), y);
}

/* Rows of a granule that are sinks: their key's product with the queries in the place of what the others share. */
static void score_sinks(const struct optimal_state *c, uint32_t sinks, const uint32_t *pos, const float *near,
                        const float *q, uint32_t stride, uint32_t n_queries, float *out)
{
    enum { AT_ONCE = 16 };
    float less[VQ_MAX_HEAD_DIM], more[AT_ONCE * VQ_PAGE_ROWS];
    for (; sinks; sinks &= sinks - 1) {
        const uint32_t i = (uint32_t)__builtin_ctz(sinks);
        vq_sink_at(&c->sink, pos[i], less);
        vq_turned_add(&c->turned, i, 1, -1, near, less);
        for (uint32_t first = 0, n; first < n_queries; first += n) {
            n = n_queries - first < AT_ONCE ? n_queries - first : AT_ONCE;
            c->attention->score_f32(q + (size_t)first * stride, stride, n, less, 1, c->d, more, VQ_PAGE_ROWS);
            for (uint32_t k = 0; k < n; k++)
                out[(size_t)(first + k) * VQ_PAGE_ROWS + i] += more[(size_t)k * VQ_PAGE_ROWS];
        }
    }
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct optimal_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    const size_t stride = query_bytes(s);
    float gains[VQ_PAGE_ROWS], near[2][VQ_TURNED_MAX_D];
    fetch_next(c, rows);
    open_gains(c, page, n_granules, gains);
    vq_trelliscode_score(&c->code, page, rows->next, gains, n_granules, (const uint8_t *)queries + head_bytes(c),
                         stride, n_queries, NULL, out);
    for (uint32_t g = 0; g < n_granules; g++)
        open_near_at_once(c, near_at(c, page, g), near[g]);
    const void *turns = (const uint8_t *)queries + plain_bytes(c);
    vq_turned_scores(&c->turned, turns, near[0], n_granules, queries, stride / sizeof(float), n_queries, out);
    for (uint32_t g = 0; g < n_granules; g++) {
        const uint32_t sinks = get_sinks(c, page, g) & (uint32_t)(rows->live >> g * VQ_GRANULE);
        if (sinks)
            score_sinks(c, sinks, rows->pos + (size_t)g * VQ_GRANULE, near[g], queries,
                        (uint32_t)(stride / sizeof(float)), n_queries, out + (size_t)g * VQ_GRANULE);
    }
}

/* ---- values ---- */

static size_t acc_len(const vq_codec_state *s) { return state(s)->width; }

static void mix_values(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                       uint32_t n_queries, float *acc)
{
    const struct optimal_state *c = state(s);
    const uint32_t n_granules = granules(rows->n);
    float gains[VQ_PAGE_ROWS];
    fetch_next(c, rows);
    open_gains(c, page, n_granules, gains);
    vq_trelliscode_mix(&c->code, page, rows->next, gains, n_granules, weights, n_queries, acc, c->width);
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    const struct optimal_state *c = state(s);
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, c->d * sizeof *out);
    vq_rotation_invert(&c->rotation, out, scratch);
}

const vq_codec vq_codec_optimal = {
    .name = "optimal",
    .summary = "calibrated: keys less what 32 share and RoPE turns, bits by water-filling, trellis codes",
    .paper = "this project",
    .options = options,
    .n_options = N_OPTIONS,
    .format = 6,
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
    .encode_at = encode_at,
    .decode_at = decode_at,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .acc_len = acc_len,
    .mix = mix_values,
    .finish = finish,
};
