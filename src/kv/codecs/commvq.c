/* CommVQ: keys as they were before RoPE, in additive codes whose atoms commute with it (quant/atoms.h); values in the
 * same codes.  Atoms are those of the calibration, which trains them by expectation and maximisation.
 *
 * The rows of a page are turned after their codes were opened, once for all queries.  A row is its mean plus what its
 * codes say; codes that are all ones mean a row of zeros.
 *
 * Page: for each granule the codes of its rows, byte after byte. */
#include <string.h>

#include "kv/codec_rows.h"
#include "quant/atoms.h"

enum { OPTION_BITS, N_OPTIONS, ONES = 255 };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a value", .value = 2, .min = 1, .max = VQ_ATOM_MOST_BITS},
};

struct commvq_state {
    vq_arena arena; /* holds this struct too */
    uint32_t d;
    vq_atoms atoms;
    float *z, *mean; /* [vq_atoms_floats], [d] in the order of pairs */
    uint16_t *order; /* [d] channel of each value in that order */
};

static const struct commvq_state *state(const vq_codec_state *s)
{
    return (const struct commvq_state *)(const void *)s;
}

static struct commvq_state *layout(vq_arena *arena, const vq_kernels *k, uint32_t d, uint32_t bits)
{
    struct commvq_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = d};
    at.atoms = (vq_atoms){.n_sub = d / VQ_ATOM_VALUES, .bits = bits, .k = &k->nearest};
    at.z = vq_arena_take(arena, vq_atoms_floats(at.atoms.n_sub, bits), sizeof *at.z);
    at.mean = vq_arena_take(arena, d, sizeof *at.mean);
    at.order = vq_arena_take(arena, d, sizeof *at.order);
    at.atoms.z = at.z;
    if (s)
        *s = at;
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "commvq", err));
    if (env->d % VQ_ATOM_VALUES)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "commvq: head size %u is no multiple of %d", env->d, VQ_ATOM_VALUES);
    const uint32_t bits = (uint32_t)env->options[OPTION_BITS];
    const vq_statistic book =
        env->keys ? (bits == 1 ? VQ_KEY_ATOMS_1 : VQ_KEY_ATOMS_2) : (bits == 1 ? VQ_VALUE_ATOMS_1 : VQ_VALUE_ATOMS_2);
    vq_arena arena = {0};
    layout(&arena, env->kernels, env->d, bits);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct commvq_state *s = layout(&arena, env->kernels, env->d, bits);
    s->arena = arena;
    vq_atoms_order(s->order, env->d, env->keys && env->rope ? env->rope->n_rot : 0, env->rope && env->rope->halves);
    const float *mean =
        vq_calibration_at(env->calibration, env->keys ? VQ_KEY_BEFORE_MEAN : VQ_VALUE_MEAN, env->layer, env->head);
    for (uint32_t j = 0; j < env->d; j++)
        s->mean[j] = mean[s->order[j]];
    memcpy(s->z, vq_calibration_at(env->calibration, book, env->layer, env->head),
           vq_atoms_floats(s->atoms.n_sub, bits) * sizeof *s->z);
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
    *out = (vq_page_bytes){.codes = 2 * vq_atoms_granule_bytes(&state(s)->atoms)};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct commvq_state *c = state(s);
    return vq_atoms_floats(c->atoms.n_sub, c->atoms.bits) * sizeof *c->z + c->d * (sizeof *c->mean + sizeof *c->order);
}

static bool is_zero(const float *x, uint32_t d)
{
    for (uint32_t j = 0; j < d; j++)
        if (x[j] != 0)
            return false;
    return true;
}

static bool all_ones(const struct commvq_state *c, const uint8_t *page, uint32_t row)
{
    for (uint32_t b = 0; b < c->atoms.n_sub * c->atoms.bits; b++)
        if (page[vq_atoms_at(&c->atoms, row, b)] != ONES)
            return false;
    return true;
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct commvq_state *c = state(s);
    const uint32_t n_bytes = c->atoms.n_sub * c->atoms.bits;
    uint8_t *codes = page;
    float y[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d) {
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            for (uint32_t j = 0; j < c->d; j++)
                y[i * c->d + j] = x[i * c->d + c->order[j]] - c->mean[j];
        vq_atoms_encode(&c->atoms, codes + vq_atoms_at(&c->atoms, row, 0), y);
        for (uint32_t i = 0; i < VQ_GRANULE; i++) {
            const bool zero = is_zero(x + (size_t)i * c->d, c->d);
            for (uint32_t b = 0; zero && b < n_bytes; b++)
                codes[vq_atoms_at(&c->atoms, row + i, b)] = ONES;
            if (!zero && all_ones(c, codes, row + i))
                codes[vq_atoms_at(&c->atoms, row + i, n_bytes - 1)] = ONES - 1;
        }
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct commvq_state *c = state(s);
    float y[VQ_MAX_HEAD_DIM];
    vq_atoms_decode(&c->atoms, page, first, n, x);
    for (uint32_t i = 0; i < n; i++, x += c->d) {
        const bool zero = all_ones(c, page, first + i);
        for (uint32_t j = 0; j < c->d; j++)
            y[c->order[j]] = zero ? 0 : x[j] + c->mean[j];
        memcpy(x, y, c->d * sizeof *x);
    }
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const struct commvq_state *c = state(s);
    for (uint32_t b = 0; b < c->atoms.n_sub * c->atoms.bits; b++)
        ((uint8_t *)dst)[vq_atoms_at(&c->atoms, i, b)] = ((const uint8_t *)src)[vq_atoms_at(&c->atoms, j, b)];
}

const vq_codec vq_codec_commvq = {
    .name = "commvq",
    .summary = "additive codes that commute with RoPE, of keys before it; needs codebooks",
    .paper = "Li et al. 2025, CommVQ (arXiv 2506.18879)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .calibrated = true,
    .key_codebooks = VQ_CODEBOOKS_ATOMS,
    .value_codebooks = VQ_CODEBOOKS_ATOMS,
    .before_rope = true,
    .create = create,
    .destroy = destroy,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .copy_row = copy_row,
};
