#include "quant/feedback.h"

#include <assert.h>
#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "quant/levels.h"
#include "quant/linear_inner.h"

enum { LANES = 16 }; /* rows that are coded side by side */

static void transpose(float *a, uint32_t n)
{
    enum { EDGE = 32 }; /* of a square that stays in L1 */
    for (uint32_t i0 = 0; i0 < n; i0 += EDGE)
        for (uint32_t j0 = i0; j0 < n; j0 += EDGE)
            for (uint32_t i = i0; i < i0 + EDGE && i < n; i++)
                for (uint32_t j = j0 > i ? j0 : i + 1; j < j0 + EDGE && j < n; j++) {
                    const float swap = a[(size_t)i * n + j];
                    a[(size_t)i * n + j] = a[(size_t)j * n + i];
                    a[(size_t)j * n + i] = swap;
                }
}

static void reverse(float *a, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const float swap = a[i];
        a[i] = a[n - 1 - i];
        a[n - 1 - i] = swap;
    }
}

typedef struct add_args {
    float *sum;
    const float *x;
    uint32_t n, n_in;
} add_args;

enum { PANEL = 128 };

/* Rows [PANEL index, PANEL (index + 1)) of the upper triangle. */
static void add_task(void *arg, uint32_t index, uint32_t thread)
{
    const add_args *a = arg;
    const uint32_t first = index * PANEL, left = a->n_in - first, n_rows = left < PANEL ? left : PANEL;
    (void)thread;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)n_rows, (int)left, (int)a->n, 1, a->x + first,
                (int)a->n_in, a->x + first, (int)a->n_in, 1, a->sum + (size_t)first * a->n_in + first, (int)a->n_in);
}

void vq_feedback_add(float *sum, vq_pool *pool, const float *x, uint32_t n, uint32_t n_in)
{
    add_args a = {.sum = sum, .x = x, .n = n, .n_in = n_in};
    vq_pool_run(pool, (n_in + PANEL - 1) / PANEL, add_task, &a);
}

vq_status vq_feedback_factor(float *moment, const vq_rotation *rotation, float *scratch, vq_error *err)
{
    const uint32_t n = rotation->d;
    double trace = 0;
    for (uint32_t i = 0; i < n; i++) {
        trace += (double)moment[(size_t)i * n + i];
        for (uint32_t j = i + 1; j < n; j++)
            moment[(size_t)j * n + i] = moment[(size_t)i * n + j];
    }
    if (!isfinite(trace))
        return vq_fail(err, VQ_ERR_NONFINITE, "moments of %u values hold a NaN or an infinity", n);
    const float mean = trace > 0 ? (float)(trace / n) : 1;
    for (uint32_t side = 0; side < 2; side++) { /* R H R' */
        for (uint32_t i = 0; i < n; i++)
            vq_rotation_apply(rotation, moment + (size_t)i * n, scratch);
        transpose(moment, n);
    }

    /* Both triangles hold the matrix: a failed attempt spoils one of them, and the next begins from the other. Reversed
     * in both orders, its lower factor is the upper one that is wanted, reversed. */
    reverse(moment, (size_t)n * n);
    float *diagonal = scratch;
    for (uint32_t i = 0; i < n; i++)
        diagonal[i] = moment[(size_t)i * n + i];
    lapack_int info = 1;
    for (float damping = 0.01F; damping < 2 && info != 0; damping *= 4) {
        for (uint32_t i = 0; i < n; i++) {
            moment[(size_t)i * n + i] = diagonal[i] + damping * mean;
            for (uint32_t j = 0; j < i; j++)
                moment[(size_t)i * n + j] = moment[(size_t)j * n + i];
        }
        /* row-major lower is column-major upper: no copy */
        info = LAPACKE_spotrf(LAPACK_COL_MAJOR, 'U', (lapack_int)n, moment, (lapack_int)n);
        if (info < 0)
            break;
    }
    if (info != 0)
        return vq_fail(err, VQ_ERR_VALUE, "moments of %u values can't be factored: spotrf gives %d", n, (int)info);
    reverse(moment, (size_t)n * n);
    transpose(moment, n); /* row j: column j of the upper factor */
    for (uint32_t j = 0; j < n; j++) {
        float *row = moment + (size_t)j * n;
        const float d = row[j];
        for (uint32_t k = 0; k < j; k++)
            row[k] /= d;
        row[j] = d * d;
    }
    return VQ_OK;
}

/* Of one thread: values and what coding lost of them, side by side [n_in][LANES]; one row; codes of all lanes, also of
 * the best norm so far. */
typedef struct lane_scratch {
    float *values, *lost, *row, *other;
    uint8_t *codes, *best;
} lane_scratch;

static size_t lane_scratch_bytes(uint32_t n_in)
{
    return ((size_t)n_in * (2 * LANES * 4 + 8 + 2 * LANES) + 63) / 64 * 64;
}

static lane_scratch scratch_of(void *scratch, uint32_t n_in, uint32_t thread)
{
    float *p = (float *)(void *)((char *)scratch + thread * lane_scratch_bytes(n_in));
    lane_scratch s = {.values = p, .lost = p + (size_t)n_in * LANES, .row = p + (size_t)n_in * 2 * LANES};
    s.other = s.row + n_in;
    s.codes = (uint8_t *)(s.other + n_in);
    s.best = s.codes + (size_t)n_in * LANES;
    return s;
}

size_t vq_feedback_scratch_bytes(uint32_t n_in, uint32_t n_threads) { return n_threads * lane_scratch_bytes(n_in); }

/* Value j of all lanes: what the values before it lost, each times its factor. */
static void moved(float out[LANES], const float *lost, const float *factor, uint32_t j)
{
    float sum[LANES] = {0};
    for (uint32_t k = 0; k < j; k++)
        for (uint32_t lane = 0; lane < LANES; lane++)
            sum[lane] += lost[(size_t)k * LANES + lane] * factor[k];
    memcpy(out, sum, sizeof sum);
}

/* Codes of all lanes with these norms (times step: scale); error [LANES] is what the header calls so. */
static void encode_lanes(const vq_linear *l, const lane_scratch *s, const float *factor, const float scale[LANES],
                         double error[LANES])
{
    const vq_levels *levels = &vq_levels_gaussian[l->bits - 1];
    const uint32_t n_in = l->n_in, n_bounds = (1u << l->bits) - 1;
    float bounds[15][LANES];
    for (uint32_t b = 0; b < n_bounds; b++) /* halfway between neighbouring levels */
        for (uint32_t lane = 0; lane < LANES; lane++)
            bounds[b][lane] = (float)(levels->v[b] + levels->v[b + 1]) * 0.5F * scale[lane];
    memset(error, 0, LANES * sizeof *error);
    for (uint32_t j = 0; j < n_in; j++) {
        float aim[LANES];
        int32_t code[LANES] = {0};
        const float *value = s->values + (size_t)j * LANES;
        float *lost = s->lost + (size_t)j * LANES;
        moved(aim, s->lost, factor + (size_t)j * n_in, j);
        for (uint32_t lane = 0; lane < LANES; lane++)
            aim[lane] += value[lane];
        for (uint32_t b = 0; b < n_bounds; b++)
            for (uint32_t lane = 0; lane < LANES; lane++)
                code[lane] += aim[lane] > bounds[b][lane];
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const float got = (float)levels->v[code[lane]] * scale[lane], left = aim[lane] - got;
            lost[lane] = value[lane] - got;
            error[lane] += (double)(factor[(size_t)j * n_in + j] * left * left);
            s->codes[(size_t)lane * n_in + j] = (uint8_t)code[lane];
        }
    }
}

typedef struct feedback_args {
    const vq_linear *l;
    uint8_t *data;
    const float *x, *factor;
    uint32_t first, n;
    vq_row_error *errors;
    void *scratch;
} feedback_args;

static vq_row_error plain_error(const vq_linear *l, const float *values, const uint8_t *codes, float scale)
{
    vq_row_error e = {0};
    for (uint32_t i = 0; i < l->n_in; i++) {
        const double y = (double)values[(size_t)i * LANES];
        const double left = y - (double)((float)vq_levels_gaussian[l->bits - 1].v[codes[i]] * scale);
        e.squares += y * y;
        e.error += left * left;
    }
    return e;
}

/* Rows [LANES index, LANES (index + 1)) of the call. */
static void encode_task(void *arg, uint32_t index, uint32_t thread)
{
    /* Values that carry the errors of others have a larger spread than the row. */
    static const float stretch[] = {1.0F, 1.06F, 0.95F, 1.13F};
    const feedback_args *a = arg;
    const vq_linear *l = a->l;
    const lane_scratch s = scratch_of(a->scratch, l->n_in, thread);
    const float step = vq_levels_gaussian[l->bits - 1].step;
    const uint32_t first = index * LANES, n = a->n - first < LANES ? a->n - first : LANES;
    float plain[LANES] = {0}, scale[LANES], best_scale[LANES];
    uint16_t norm[LANES] = {0}, best_norm[LANES] = {0};
    double error[LANES], least[LANES];

    memset(s.values, 0, (size_t)l->n_in * LANES * sizeof *s.values);
    for (uint32_t lane = 0; lane < n; lane++) {
        vq_row_error unused;
        vq_linear_rotate(l, s.row, a->x + (size_t)(first + lane) * l->n_in, s.other);
        plain[lane] = vq_f32_from_f16(vq_linear_encode_rotated(l, s.row, s.codes, &unused));
        for (uint32_t j = 0; j < l->n_in; j++)
            s.values[(size_t)j * LANES + lane] = s.row[j];
    }
    for (uint32_t i = 0; i < sizeof stretch / sizeof *stretch; i++) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            norm[lane] = vq_f16_from_f32_clamped(plain[lane] * stretch[i]);
            scale[lane] = vq_f32_from_f16(norm[lane]) * step;
        }
        encode_lanes(l, &s, a->factor, scale, error);
        for (uint32_t lane = 0; lane < n; lane++)
            if (i == 0 || error[lane] < least[lane]) {
                least[lane] = error[lane];
                best_norm[lane] = norm[lane];
                best_scale[lane] = scale[lane];
                memcpy(s.best + (size_t)lane * l->n_in, s.codes + (size_t)lane * l->n_in, l->n_in);
            }
    }
    for (uint32_t lane = 0; lane < n; lane++) {
        const uint8_t *codes = s.best + (size_t)lane * l->n_in;
        vq_linear_put(l, a->data, a->first + first + lane, codes, best_norm[lane]);
        if (a->errors)
            a->errors[first + lane] = plain_error(l, s.values + lane, codes, best_scale[lane]);
    }
}

void vq_feedback_encode(const vq_linear *l, vq_pool *pool, void *data, uint32_t first, uint32_t n, const float *x,
                        const float *factor, vq_row_error *errors, void *scratch)
{
    feedback_args a = {
        .l = l, .data = data, .x = x, .factor = factor, .first = first, .n = n, .errors = errors, .scratch = scratch};
    assert(first <= l->n_out && n <= l->n_out - first && l->rotation->d == l->n_in);
    vq_pool_run(n > LANES ? pool : NULL, (n + LANES - 1) / LANES, encode_task, &a);
    if (first + n == l->n_out)
        vq_linear_clear_padding(l, data);
}
