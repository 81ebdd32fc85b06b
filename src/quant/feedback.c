#include "quant/feedback.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "quant/lapack.h"
#include "quant/levels.h"
#include "quant/linear_inner.h"

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
    const vq_carry_kernels *k;
    float *sum;
    const float *x;
    uint32_t n, n_in;
} add_args;

enum { PANEL = 64 };

/* Rows [PANEL index, PANEL (index + 1)) of the upper triangle. */
static void add_task(void *arg, uint32_t index, uint32_t thread)
{
    const add_args *a = arg;
    const uint32_t first = index * PANEL, left = a->n_in - first;
    (void)thread;
    a->k->add_moments(a->sum, a->x, a->n, a->n_in, first, first + (left < PANEL ? left : PANEL));
}

void vq_feedback_add(const vq_carry_kernels *k, float *sum, vq_pool *pool, const float *x, uint32_t n, uint32_t n_in)
{
    add_args a = {.k = k, .sum = sum, .x = x, .n = n, .n_in = n_in};
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
    float *diagonal = moment + (size_t)n * n;
    for (uint32_t i = 0; i < n; i++)
        diagonal[i] = moment[(size_t)i * n + i];
    int info = 1;
    float damping = 0.01F;
    for (; damping < 2 && info != 0; damping *= 4) {
        for (uint32_t i = 0; i < n; i++) {
            moment[(size_t)i * n + i] = diagonal[i] + damping * mean;
            for (uint32_t j = 0; j < i; j++)
                moment[(size_t)i * n + j] = moment[(size_t)j * n + i];
        }
        info = vq_lapack_cholesky(moment, n);
        if (info < 0)
            break;
    }
    if (info != 0)
        return vq_fail(err, VQ_ERR_VALUE, "moments of %u values can't be factored: spotrf gives %d", n, info);
    reverse(diagonal, n);
    for (uint32_t i = 0; i < n; i++)
        diagonal[i] = 1 / (diagonal[i] + damping / 4 * mean);
    reverse(moment, (size_t)n * n);
    transpose(moment, n); /* row j: column j of the upper factor; above the diagonal: the moments, as they were */
    for (uint32_t j = 0; j < n; j++) {
        float *row = moment + (size_t)j * n;
        const float d = row[j];
        for (uint32_t k = 0; k < j; k++)
            row[k] /= d;
        row[j] = d * d;
    }
    return VQ_OK;
}

/* ---- coding ---- */

enum {
    ROWS = VQ_CARRY_LANES, /* that are coded side by side */
    N_STRETCHES = 4,
    LANES = ROWS * N_STRETCHES, /* of the first pass: copies of a row with different norms, ROWS apart */
    N_MORE = 2,                 /* passes */
};

/* Of one thread, [n_in][LANES] or, once the best norms are known, [n_in][ROWS]. */
typedef struct lane_scratch {
    float *values, *lost, *left, *scaled; /* scaled: rows as `left` would be if all of them were lost */
    float *row, *other;                   /* [n_in] */
    uint8_t *codes, *unused;
} lane_scratch;

static size_t lane_scratch_bytes(uint32_t n_in)
{
    return ((size_t)n_in * ((3 * LANES + ROWS + 2) * sizeof(float) + 2 * LANES) + 63) / 64 * 64;
}

static lane_scratch scratch_of(void *scratch, uint32_t n_in, uint32_t thread)
{
    float *p = (float *)(void *)((char *)scratch + thread * lane_scratch_bytes(n_in));
    const size_t all = (size_t)n_in * LANES;
    lane_scratch s = {.values = p, .lost = p + all, .left = p + 2 * all, .scaled = p + 3 * all};
    s.row = s.scaled + (size_t)n_in * ROWS;
    s.other = s.row + n_in;
    s.codes = (uint8_t *)(s.other + n_in);
    s.unused = s.codes + all;
    return s;
}

size_t vq_feedback_scratch_bytes(uint32_t n_in, uint32_t n_threads) { return n_threads * lane_scratch_bytes(n_in); }

typedef struct feedback_args {
    const vq_linear *l;
    const vq_carry_kernels *k;
    uint8_t *data;
    const float *x, *factor;
    uint32_t first, n;
    vq_row_error *errors;
    void *scratch;
} feedback_args;

/* Rows in work.  Lane i has the norm[i]. */
typedef struct lanes {
    const feedback_args *a;
    lane_scratch s;
    vq_carry carry;
    uint16_t norm[LANES];
    float scale[LANES], inverse[LANES];
} lanes;

static void set_norm(lanes *w, uint32_t lane, float norm)
{
    w->norm[lane] = vq_f16_from_f32_clamped(norm);
    w->scale[lane] = vq_f32_from_f16(w->norm[lane]) * vq_levels_gaussian[w->a->l->bits - 1].step;
    w->inverse[lane] = w->scale[lane] > 0 ? 1 / w->scale[lane] : 0;
}

/* [n_in][ROWS] <-> [n_in][LANES], of which all copies of a row are the same. */
static void repeat_rows(float *x, uint32_t n_in)
{
    for (uint32_t j = n_in; j-- > 0;)
        for (uint32_t i = N_STRETCHES; i-- > 0;)
            memmove(x + (size_t)j * LANES + (size_t)i * ROWS, x + (size_t)j * ROWS, ROWS * sizeof *x);
}

static void keep_rows(float *x, uint32_t n_in)
{
    for (uint32_t j = 1; j < n_in; j++)
        memmove(x + (size_t)j * ROWS, x + (size_t)j * LANES, ROWS * sizeof *x);
}

/* left = what `left` is when so much is lost: lost [n_in][ROWS], with the same sums as when coding. */
static void transform(const lanes *w, const float *lost, float *left, float *unused)
{
    static const float none[ROWS];
    vq_carry c = w->carry;
    c.n_lanes = ROWS;
    c.unit = NULL;
    c.values = lost;
    c.lost = unused;
    c.left = left;
    c.codes = w->s.unused;
    c.scale = c.inverse = none;
    c.n_bounds = 0;
    c.levels[0] = 0;
    w->a->k->encode(&c);
}

/* The factor of a lane's scale that makes its error least, codes staying what they are: 1 + p / q.  Returns the error
 * that is then left. */
static double best_factor(const lanes *w, uint32_t lane, double *factor)
{
    const uint32_t n_in = w->carry.n;
    double error = 0, p = 0, q = 0;
    for (uint32_t j = 0; j < n_in; j++) {
        const double left = (double)w->s.left[(size_t)j * w->carry.n_lanes + lane];
        const double coded = (double)w->s.scaled[(size_t)j * ROWS + lane % ROWS] - left;
        const double weight = (double)w->a->factor[(size_t)j * n_in + j];
        error += weight * left * left;
        p += weight * left * coded;
        q += weight * coded * coded;
    }
    *factor = q > 0 ? 1 + p / q : 1;
    return q > 0 ? error - p * p / q : error;
}

/* values [n_in][ROWS] and the norms of all lanes, of rows [first, first + n) of the call. */
static void load_rows(lanes *w, uint32_t first, uint32_t n)
{
    /* Values that carry the errors of others have a larger spread than the row. */
    static const float stretch[N_STRETCHES] = {1.0F, 1.06F, 0.95F, 1.13F};
    const vq_linear *l = w->a->l;
    memset(w->s.values, 0, (size_t)l->n_in * ROWS * sizeof *w->s.values);
    for (uint32_t lane = 0; lane < n; lane++) {
        vq_row_error unused;
        vq_linear_rotate(l, w->s.row, w->a->x + (size_t)(first + lane) * l->n_in, w->s.other);
        const float norm = vq_f32_from_f16(vq_linear_encode_rotated(l, w->s.row, w->s.codes, &unused));
        for (uint32_t i = 0; i < N_STRETCHES; i++)
            set_norm(w, i * ROWS + lane, norm * stretch[i]);
        for (uint32_t j = 0; j < l->n_in; j++)
            w->s.values[(size_t)j * ROWS + lane] = w->s.row[j];
    }
}

/* Takes for each row the best of its lanes, with the norm that suits its codes; from here on there are ROWS lanes. */
static void choose_norms(lanes *w, uint32_t n)
{
    const uint32_t n_in = w->carry.n;
    for (uint32_t lane = 0; lane < n; lane++) {
        double least = INFINITY, factor;
        float norm = 0;
        uint32_t best = lane;
        for (uint32_t at = lane; at < LANES; at += ROWS) {
            const double error = best_factor(w, at, &factor);
            if (error < least) {
                least = error;
                best = at;
                norm = vq_f32_from_f16(w->norm[at]) * (float)factor;
            }
        }
        set_norm(w, lane, norm);
        for (uint32_t j = 0; j < n_in; j++)
            w->s.codes[(size_t)j * LANES + lane] = w->s.codes[(size_t)j * LANES + best];
    }
    for (uint32_t j = 1; j < n_in; j++)
        memmove(w->s.codes + (size_t)j * ROWS, w->s.codes + (size_t)j * LANES, ROWS);
    keep_rows(w->s.values, n_in);
    w->carry.n_lanes = ROWS;
}

/* lost, from codes and norms. */
static void lose(lanes *w)
{
    for (uint32_t j = 0; j < w->carry.n; j++)
        for (uint32_t i = 0; i < ROWS; i++) {
            const size_t at = (size_t)j * ROWS + i;
            w->s.lost[at] = w->s.values[at] - w->carry.levels[w->s.codes[at]] * w->scale[i];
        }
}

/* Every value once more, with what all others of its row have lost by now; then norms that suit the new codes. */
static void code_again(lanes *w, uint32_t n)
{
    const uint32_t n_in = w->carry.n;
    vq_carry c = w->carry;
    c.unit = w->a->factor + (size_t)n_in * n_in;
    w->a->k->encode(&c);
    transform(w, w->s.lost, w->s.left, w->s.lost + (size_t)n_in * ROWS);
    for (uint32_t lane = 0; lane < n; lane++) {
        double factor;
        best_factor(w, lane, &factor);
        set_norm(w, lane, vq_f32_from_f16(w->norm[lane]) * (float)factor);
    }
    lose(w);
}

static void store_rows(const lanes *w, uint32_t first, uint32_t n)
{
    const vq_linear *l = w->a->l;
    for (uint32_t lane = 0; lane < n; lane++) {
        vq_row_error e = {0};
        for (uint32_t j = 0; j < l->n_in; j++) {
            const size_t at = (size_t)j * ROWS + lane;
            w->s.unused[j] = w->s.codes[at];
            e.squares += (double)w->s.values[at] * (double)w->s.values[at];
            e.error += (double)w->s.lost[at] * (double)w->s.lost[at];
        }
        vq_linear_put(l, w->a->data, w->a->first + first + lane, w->s.unused, w->norm[lane]);
        if (w->a->errors)
            w->a->errors[first + lane] = e;
    }
}

/* Rows [ROWS index, ROWS (index + 1)) of the call. */
static void encode_task(void *arg, uint32_t index, uint32_t thread)
{
    const feedback_args *a = arg;
    const uint32_t n_in = a->l->n_in, first = index * ROWS, n = a->n - first < ROWS ? a->n - first : ROWS;
    const vq_levels *levels = &vq_levels_gaussian[a->l->bits - 1];
    lanes w = {.a = a, .s = scratch_of(a->scratch, n_in, thread)};
    w.carry = (vq_carry){.n = n_in,
                         .n_lanes = LANES,
                         .matrix = a->factor,
                         .values = w.s.values,
                         .lost = w.s.lost,
                         .left = w.s.left,
                         .codes = w.s.codes,
                         .scale = w.scale,
                         .inverse = w.inverse,
                         .n_bounds = (1u << a->l->bits) - 1};
    for (uint32_t i = 0; i <= w.carry.n_bounds; i++)
        w.carry.levels[i] = (float)levels->v[i];
    for (uint32_t i = 0; i < w.carry.n_bounds; i++) /* halfway between neighbouring levels */
        w.carry.bounds[i] = (float)(levels->v[i] + levels->v[i + 1]) * 0.5F;
    load_rows(&w, first, n);
    transform(&w, w.s.values, w.s.scaled, w.s.lost);
    repeat_rows(w.s.values, n_in);
    a->k->encode(&w.carry);
    choose_norms(&w, n);
    lose(&w);
    for (uint32_t i = 0; i < N_MORE; i++)
        code_again(&w, n);
    store_rows(&w, first, n);
}

void vq_feedback_encode(const vq_linear *l, const vq_carry_kernels *k, vq_pool *pool, void *data, uint32_t first,
                        uint32_t n, const float *x, const float *factor, vq_row_error *errors, void *scratch)
{
    feedback_args a = {.l = l,
                       .k = k,
                       .data = data,
                       .x = x,
                       .factor = factor,
                       .first = first,
                       .n = n,
                       .errors = errors,
                       .scratch = scratch};
    assert(first <= l->n_out && n <= l->n_out - first && l->rotation->d == l->n_in);
    vq_pool_run(n > ROWS ? pool : NULL, (n + ROWS - 1) / ROWS, encode_task, &a);
    if (first + n == l->n_out)
        vq_linear_clear_padding(l, data);
}
