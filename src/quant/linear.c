#include "quant/linear.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/half.h"
#include "base/rng.h"
#include "kernels/matmul_packed.h"
#include "quant/levels.h"
#include "quant/linear_inner.h"

bool vq_input_rotation_fits(uint32_t n_in)
{
    return n_in >= 1 && n_in <= VQ_ROTATION_MAX_D && n_in / (n_in & -n_in) <= VQ_ROTATION_MAX_M;
}

vq_status vq_input_rotation_open(vq_input_rotation **out, const vq_codes_kernels *k, uint32_t n_in, bool haar,
                                 uint64_t seed, vq_error *err)
{
    *out = NULL;
    if (haar && (n_in < 1 || n_in > VQ_INPUT_HAAR_MOST))
        return vq_fail(err, VQ_ERR_ARG, "a Haar rotation of %u values, must be 1 to %d", n_in, VQ_INPUT_HAAR_MOST);
    if (!haar && !vq_input_rotation_fits(n_in))
        return vq_fail(err, VQ_ERR_ARG, "rows of %u values can't be rotated: the odd factor must be at most %d", n_in,
                       VQ_ROTATION_MAX_M);
    vq_input_rotation *r = calloc(1, sizeof *r);
    if (!r)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a rotation");
    r->haar = haar;
    vq_rotation_layout(&r->r, &r->arena, n_in, haar);
    vq_status status = vq_arena_alloc(&r->arena, err);
    if (status == VQ_OK) {
        vq_rotation_layout(&r->r, &r->arena, n_in, haar);
        status = vq_rotation_draw(&r->r, k, vq_hash64(seed, n_in, haar, 0, 0), err);
    }
    if (status != VQ_OK) {
        vq_input_rotation_close(r);
        return status;
    }
    if (haar) /* a Haar matrix with other signs of its columns is one as well: without them it is all there is to keep
               */
        memset(r->r.signs, 0, (n_in + 7) / 8);
    r->matrix = haar ? r->r.across : NULL;
    *out = r;
    return VQ_OK;
}

vq_status vq_input_rotation_map(vq_input_rotation **out, const vq_codes_kernels *k, uint32_t n_in, const float *matrix,
                                vq_error *err)
{
    *out = NULL;
    if (n_in < 1 || n_in > VQ_INPUT_HAAR_MOST)
        return vq_fail(err, VQ_ERR_ARG, "a Haar rotation of %u values, must be 1 to %d", n_in, VQ_INPUT_HAAR_MOST);
    vq_input_rotation *r = calloc(1, sizeof *r);
    if (!r)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a rotation");
    vq_arena_take(&r->arena, (n_in + 7) / 8, 1);
    const vq_status status = vq_arena_alloc(&r->arena, err);
    if (status != VQ_OK) {
        vq_input_rotation_close(r);
        return status;
    }
    r->haar = true;
    r->matrix = matrix;
    r->r = (vq_rotation){.d = n_in, .m = n_in, .n_block = 1, .k = k};
    r->r.signs = vq_arena_take(&r->arena, (n_in + 7) / 8, 1);
    r->r.across = (float *)(uintptr_t)matrix; /* read only */
    *out = r;
    return VQ_OK;
}

void vq_input_rotation_close(vq_input_rotation *rotation)
{
    if (!rotation)
        return;
    vq_arena_free(&rotation->arena);
    free(rotation);
}

uint64_t vq_input_rotation_hash(const vq_input_rotation *rotation)
{
    const vq_rotation *r = &rotation->r;
    const XXH64_hash_t h = XXH3_64bits_withSeed(r->signs, (r->d + 7) / 8, r->d);
    return r->across ? XXH3_64bits_withSeed(r->across, (size_t)r->m * r->m * sizeof(float), h) : h;
}

vq_type vq_linear_type(uint32_t bits)
{
    assert(bits >= 2 && bits <= 4);
    return bits == 2 ? VQ_TYPE_VQ2 : bits == 3 ? VQ_TYPE_VQ3 : VQ_TYPE_VQ4;
}

vq_status vq_linear_check(uint32_t bits, uint32_t n_in, uint32_t n_out, vq_error *err)
{
    if (bits < 2 || bits > 4)
        return vq_fail(err, VQ_ERR_ARG, "weights of %u bits, must be 2, 3 or 4", bits);
    if (n_in < 1 || n_in > VQ_PACKED_MOST_IN)
        return vq_fail(err, VQ_ERR_ARG, "rows of %u weights, must be 1 to %d", n_in, VQ_PACKED_MOST_IN);
    if (n_out < 1 || n_out > VQ_LINEAR_MOST_OUT)
        return vq_fail(err, VQ_ERR_ARG, "%u rows of weights, must be 1 to %d", n_out, VQ_LINEAR_MOST_OUT);
    return VQ_OK;
}

size_t vq_linear_bytes(uint32_t bits, uint32_t n_in, uint32_t n_out)
{
    const size_t n_tiles = ((size_t)n_out + VQ_PACKED_LANES - 1) / VQ_PACKED_LANES;
    return vq_packed_norm_bytes(n_out) + n_tiles * vq_packed_tile_bytes(bits, n_in);
}

/* Of one thread: a row, what rotating it needs, its codes and the best ones. */
typedef struct row_scratch {
    float *y, *other;
    uint8_t *codes;
} row_scratch;

static size_t row_scratch_bytes(uint32_t n_in) { return ((size_t)n_in * 9 + 63) / 64 * 64 + 64; }

static row_scratch scratch_of(void *scratch, uint32_t n_in, uint32_t thread)
{
    float *y = (float *)(void *)((char *)scratch + thread * row_scratch_bytes(n_in));
    return (row_scratch){.y = y, .other = y + n_in, .codes = (uint8_t *)(y + 2 * (size_t)n_in)};
}

size_t vq_linear_scratch_bytes(uint32_t n_in, uint32_t n_threads) { return n_threads * row_scratch_bytes(n_in); }

/* Past this, squares and sums overflow. */
#define HUGE_VALUE 0x1p40F
/* Below this, the norm is zero in f16. */
#define TINY_VALUE 0x1p-26F

static double sum_of_level_squares(const vq_levels *levels, const uint8_t *codes, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (uint64_t)(levels->v[codes[i]] * levels->v[codes[i]]);
    return (double)sum;
}

/* The codes of a rotated row, and its norm: the spacing of the levels, of some around the one for normal values, that
 * gives the largest cosine, and the factor that then leaves the smallest error. */
uint16_t vq_linear_encode_rotated(const vq_linear *l, const float *y, uint8_t *codes, vq_row_error *error)
{
    static const float spacings[] = {1.0F, 0.96F, 1.04F, 0.92F, 1.08F};
    enum { N_SPACINGS = sizeof spacings / sizeof *spacings };
    const vq_levels *levels = &vq_levels_gaussian[l->bits - 1];
    const uint32_t n = l->n_in, n_bounds = (1u << l->bits) - 1;
    const double squares = (double)l->k->sum_squares(y, n);
    *error = (vq_row_error){squares, squares};
    memset(codes, 0, n);
    if (l->k->largest(y, n) < TINY_VALUE)
        return 0;

    const float inv = 1 / sqrtf((float)squares / (float)n);
    uint32_t best = 0;
    double best_cosine = -1, dot = 0, level_squares = 1;
    for (uint32_t i = 0; i <= N_SPACINGS; i++) {
        const uint32_t at = i < N_SPACINGS ? i : best; /* in the end the best one again */
        float rounded;                                 /* with many inputs the sum of squares needs more than 24 bits */
        dot = (double)l->k->count_fit(codes, &rounded, y, inv * spacings[at], levels->bounds, levels->v, n_bounds, n);
        level_squares = sum_of_level_squares(levels, codes, n);
        const double cosine = dot / sqrt(level_squares);
        if (cosine > best_cosine) {
            best_cosine = cosine;
            best = at;
        }
    }
    const uint16_t norm = vq_f16_from_f32_clamped((float)(dot / level_squares / (double)levels->step));
    const double scale = (double)(vq_f32_from_f16(norm) * levels->step);
    error->error = squares - 2 * scale * dot + scale * scale * level_squares;
    return norm;
}

void vq_linear_rotate(const vq_linear *l, float *y, const float *x, float *other)
{
    memcpy(y, x, l->n_in * sizeof *y);
    if (l->k->largest(y, l->n_in) > HUGE_VALUE)
        for (uint32_t j = 0; j < l->n_in; j++)
            y[j] = y[j] > HUGE_VALUE ? HUGE_VALUE : y[j] < -HUGE_VALUE ? -HUGE_VALUE : y[j];
    vq_rotation_apply(l->rotation, y, other);
}

void vq_linear_put(const vq_linear *l, uint8_t *data, uint32_t row, const uint8_t *codes, uint16_t norm)
{
    uint8_t *tiles = data + vq_packed_norm_bytes(l->n_out);
    data[(size_t)2 * row] = (uint8_t)norm;
    data[(size_t)2 * row + 1] = (uint8_t)(norm >> 8);
    vq_packed_put(tiles + row / VQ_PACKED_LANES * vq_packed_tile_bytes(l->bits, l->n_in), row % VQ_PACKED_LANES,
                  l->bits, codes, l->n_in);
}

typedef struct rows_args {
    const vq_linear *l;
    uint8_t *data;
    const float *x;
    float *out;
    uint32_t first, n, rows_each;
    vq_row_error *errors;
    void *scratch;
} rows_args;

static void encode_task(void *arg, uint32_t index, uint32_t thread)
{
    const rows_args *a = arg;
    const vq_linear *l = a->l;
    const row_scratch s = scratch_of(a->scratch, l->n_in, thread);
    for (uint32_t i = index * a->rows_each; i < a->n && i < (index + 1) * a->rows_each; i++) {
        const uint32_t row = a->first + i;
        vq_linear_rotate(l, s.y, a->x + (size_t)i * l->n_in, s.other);
        vq_row_error error;
        const uint16_t norm = vq_linear_encode_rotated(l, s.y, s.codes, &error);
        vq_linear_put(l, a->data, row, s.codes, norm);
        if (a->errors)
            a->errors[i] = error;
    }
}

static void decode_task(void *arg, uint32_t index, uint32_t thread)
{
    const rows_args *a = arg;
    const vq_linear *l = a->l;
    const vq_levels *levels = &vq_levels_gaussian[l->bits - 1];
    const row_scratch s = scratch_of(a->scratch, l->n_in, thread);
    const uint8_t *tiles = a->data + vq_packed_norm_bytes(l->n_out);
    for (uint32_t i = index * a->rows_each; i < a->n && i < (index + 1) * a->rows_each; i++) {
        const uint32_t row = a->first + i;
        const uint16_t norm = (uint16_t)(a->data[(size_t)2 * row] | a->data[(size_t)2 * row + 1] << 8);
        const float scale = vq_f32_from_f16(norm) * levels->step;
        float *x = a->out + (size_t)i * l->n_in;
        vq_packed_get(s.codes, tiles + row / VQ_PACKED_LANES * vq_packed_tile_bytes(l->bits, l->n_in),
                      row % VQ_PACKED_LANES, l->bits, l->n_in);
        for (uint32_t j = 0; j < l->n_in; j++)
            x[j] = (float)levels->v[s.codes[j]] * scale;
        vq_rotation_invert(l->rotation, x, s.other);
    }
}

static void run_rows(rows_args *a, vq_pool *pool, vq_task task)
{
    a->rows_each = 4;
    assert(a->first <= a->l->n_out && a->n <= a->l->n_out - a->first && a->l->rotation->d == a->l->n_in);
    vq_pool_run(a->n > a->rows_each ? pool : NULL, (a->n + a->rows_each - 1) / a->rows_each, task, a);
}

/* Norms and codes of rows past n_out. */
void vq_linear_clear_padding(const vq_linear *l, uint8_t *data)
{
    const size_t norm_bytes = vq_packed_norm_bytes(l->n_out);
    memset(data + (size_t)2 * l->n_out, 0, norm_bytes - (size_t)2 * l->n_out);
    const uint32_t n_used = l->n_out % VQ_PACKED_LANES;
    if (n_used == 0)
        return;
    const size_t tile_bytes = vq_packed_tile_bytes(l->bits, l->n_in);
    uint8_t *tile = data + norm_bytes + l->n_out / VQ_PACKED_LANES * tile_bytes;
    for (size_t at = 0; at < tile_bytes; at += 64)
        memset(tile + at + (size_t)4 * n_used, 0, 64 - (size_t)4 * n_used);
}

void vq_linear_encode(const vq_linear *l, vq_pool *pool, void *data, uint32_t first, uint32_t n, const float *x,
                      vq_row_error *errors, void *scratch)
{
    rows_args a = {.l = l, .data = data, .first = first, .n = n, .x = x, .errors = errors, .scratch = scratch};
    run_rows(&a, pool, encode_task);
    if (first + n == l->n_out)
        vq_linear_clear_padding(l, data);
}

void vq_linear_decode(const vq_linear *l, vq_pool *pool, const void *data, uint32_t first, uint32_t n, float *x,
                      void *scratch)
{
    rows_args a = {.l = l, .data = (uint8_t *)(uintptr_t)data, .first = first, .n = n, .out = x, .scratch = scratch};
    run_rows(&a, pool, decode_task);
}

vq_matrix vq_linear_matrix(const vq_linear *l, const void *data)
{
    const vq_levels *levels = &vq_levels_gaussian[l->bits - 1];
    assert(!levels->wide && (uintptr_t)data % 64 == 0);
    return (vq_matrix){.type = vq_linear_type(l->bits),
                       .n_in = l->n_in,
                       .n_out = l->n_out,
                       .data = data,
                       .levels = levels->key[1],
                       .step = levels->step,
                       .rotation = l->rotation};
}
