#include "quant/mixcode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/codes_sum.h"
#include "quant/wide_query.h"

enum { MAX_TILE = VQ_ROWCODE_MAX_D * VQ_CODES_ROWS, SUMS_AT_ONCE = 4 };

/* Unit errors of quantisers of a normal variable: Lloyd-Max, and from 5 bits on the best uniform ones, whose cells are
 * this wide (Max, 1960). */
static const float unit_error[VQ_MIXCODE_TOP_BITS + 1] = {1,        0.36338F, 0.11748F, 0.03454F,
                                                          0.00950F, 0.00349F, 0.00104F, 0.000304F};
static const float cell[VQ_MIXCODE_TOP_BITS + 1] = {1, 1, 1, 1, 1, 0.1881F, 0.1041F, 0.0569F};

static const vq_levels *levels_of(uint32_t bits)
{
    return bits <= VQ_MIXCODE_MAX_BITS ? &vq_levels_gaussian[bits - 1] : &vq_levels_uniform[bits - 1];
}

/* One step of the levels, which come back unshrunk. */
static float step_of(uint32_t bits) { return levels_of(bits)->step * cell[bits] / (1 - unit_error[bits]); }

/* Noise of unshrunk levels. */
static float noise(uint32_t bits) { return unit_error[bits] / (1 - unit_error[bits]); }

void vq_mix_allocate(uint8_t *bits, const float *variance, uint32_t n_groups, uint32_t n_bits)
{
    float of[VQ_MIXCODE_MAX_GROUPS];
    for (uint32_t g = 0; g < n_groups; g++) {
        of[g] = 0;
        for (uint32_t j = 0; j < VQ_CODES_GROUP; j++)
            of[g] += variance[g * VQ_CODES_GROUP + j];
    }
    memset(bits, 1, n_groups);
    for (uint32_t i = n_groups; i < n_bits; i++) {
        uint32_t best = n_groups;
        float most = -1;
        for (uint32_t g = 0; g < n_groups; g++) {
            const float less = bits[g] < VQ_MIXCODE_MAX_BITS ? of[g] * (noise(bits[g]) - noise(bits[g] + 1u)) : -1;
            if (less > most) {
                most = less;
                best = g;
            }
        }
        if (best == n_groups)
            return;
        bits[best]++;
    }
    /* groups of nearly equal variance may end in either order */
    for (uint32_t g = 1; g < n_groups; g++)
        for (uint32_t h = g; h > 0 && bits[h] > bits[h - 1]; h--) {
            const uint8_t swap = bits[h];
            bits[h] = bits[h - 1];
            bits[h - 1] = swap;
        }
}

uint32_t vq_mix_fill(uint8_t *bits, const float *variance, uint32_t n_groups, uint32_t n_bits, uint32_t most)
{
    float of[VQ_MIXCODE_MAX_GROUPS];
    for (uint32_t g = 0; g < n_groups; g++) {
        of[g] = 0;
        for (uint32_t j = 0; j < VQ_CODES_GROUP; j++)
            of[g] += variance[g * VQ_CODES_GROUP + j];
    }
    memset(bits, 0, n_groups);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_bits; i++) {
        uint32_t best = n_groups;
        float gain = -1;
        /* a group has as many bits as the one before it, or fewer */
        for (uint32_t g = 0; g < n_groups; g++) {
            const bool may = bits[g] < most && (g == 0 || bits[g] < bits[g - 1]);
            const float less = may ? of[g] * (unit_error[bits[g]] - unit_error[bits[g] + 1u]) : -1;
            if (less > gain) {
                gain = less;
                best = g;
            }
        }
        if (best == n_groups)
            break;
        n += bits[best]++ == 0;
    }
    return n;
}

void vq_mixcode_make(vq_mixcode *m, const uint8_t *bits, const float *scale, const vq_codes_kernels *k, uint32_t d,
                     bool keys)
{
    *m = (vq_mixcode){
        .k = k, .scale = scale, .d = d, .n_groups = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP, .keys = keys};
    m->width = m->n_groups * VQ_CODES_GROUP;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        vq_mix_segment *s = m->n_segments ? &m->segments[m->n_segments - 1] : NULL;
        if (!s || s->bits != bits[g]) {
            assert(bits[g] >= 1 && bits[g] <= VQ_MIXCODE_TOP_BITS && (!s || bits[g] < s->bits));
            s = &m->segments[m->n_segments++];
            *s = (vq_mix_segment){.bits = bits[g], .first_group = g, .at = m->page_bytes};
        }
        s->n_groups++;
        m->page_bytes += 2 * vq_codes_group_bytes(bits[g]);
    }
}

static vq_codes_levels grid_of(uint32_t bits)
{
    const bool uniform = bits > VQ_MIXCODE_MAX_BITS;
    const vq_levels *l = levels_of(bits);
    return (vq_codes_levels){.bounds = uniform ? NULL : l->bounds,
                             .v = uniform ? NULL : l->v,
                             .step = step_of(bits),
                             .n_bounds = (1u << bits) - 1};
}

/* A row that is not what the scales expect may need a larger gain than its rms, or its largest coordinates are cut off:
 * of a few gains the one whose levels make the smallest angle with the row is taken. */
float vq_mixcode_encode(const vq_mixcode *m, uint8_t *codes, const float *y)
{
    static const float wider[] = {1, 0.85F, 1.2F, 1.5F, 1.9F, 2.5F, 3.4F};
    enum { N_TRIES = sizeof wider / sizeof *wider };
    float z[VQ_ROWCODE_MAX_D], inv[N_TRIES], own[N_TRIES];
    float parts[N_TRIES][2][VQ_SUM_PARTS] = {{{0}}}, sums[N_TRIES][2];
    memset(codes, 0, m->width);
    for (uint32_t j = 0; j < m->width; j++)
        z[j] = y[j] / (m->scale[j] > 0 ? m->scale[j] : INFINITY);
    const float rms = sqrtf(m->k->sum_squares(z, m->width) / (float)m->d);
    if (!(rms >= 0x1p-40F))
        return 0;
    for (uint32_t t = 0; t < N_TRIES; t++)
        inv[t] = 1 / (rms * wider[t]);
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        const vq_codes_levels grid = grid_of(s->bits);
        const uint32_t first = s->first_group * VQ_CODES_GROUP;
        for (uint32_t t = 0; t < N_TRIES; t++)
            own[t] = inv[t] / cell[s->bits];
        m->k->fit_levels(parts, own, N_TRIES, z + first, y + first, m->scale + first, &grid,
                         s->n_groups * VQ_CODES_GROUP);
    }
    m->k->sum_parts(sums[0], (const float(*)[VQ_SUM_PARTS])parts, 2 * N_TRIES);
    uint32_t best = 0;
    float most = 0, best_along = 0;
    for (uint32_t t = 0; t < N_TRIES; t++) {
        const float along = sums[t][0], squares = sums[t][1];
        const float cosine = along > 0 && squares > 0 ? along / sqrtf(squares) : 0;
        if (cosine > most) {
            most = cosine;
            best = t;
            best_along = along;
        }
    }
    if (!(most > 0))
        return 0;
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        const uint32_t first = s->first_group * VQ_CODES_GROUP;
        m->k->count(codes + first, z + first, inv[best] / cell[s->bits], levels_of(s->bits)->bounds,
                    (1u << s->bits) - 1, s->n_groups * VQ_CODES_GROUP);
    }
    return m->k->sum_squares(y, m->width) / best_along;
}

void vq_mixcode_row(const vq_mixcode *m, const uint8_t *codes, float gain, float *y)
{
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        const vq_levels *l = levels_of(s->bits);
        const float step = step_of(s->bits);
        const uint32_t first = s->first_group * VQ_CODES_GROUP;
        for (uint32_t j = first; j < first + s->n_groups * VQ_CODES_GROUP; j++)
            y[j] = (float)l->v[codes[j]] * step * m->scale[j] * gain;
    }
}

void vq_mixcode_pack(const vq_mixcode *m, uint8_t *page, uint32_t granule, const uint8_t *codes)
{
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        (m->keys ? m->k->pack_keys
                 : m->k->pack_values)(page + s->at + granule * s->n_groups * vq_codes_group_bytes(s->bits),
                                      codes + s->first_group * VQ_CODES_GROUP, m->width, s->bits, s->n_groups);
    }
}

void vq_mixcode_decode(const vq_mixcode *m, const uint8_t *page, const float *gains, uint32_t n_granules,
                       uint32_t first, uint32_t n, float *y)
{
    const size_t width = m->width;
    uint8_t identity[256], tile[MAX_TILE];
    for (uint32_t i = 0; i < 256; i++)
        identity[i] = (uint8_t)i;
    memset(y, 0, n * width * sizeof *y);
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        const vq_levels *l = levels_of(s->bits);
        const float step = step_of(s->bits);
        const uint32_t from = s->first_group * VQ_CODES_GROUP, dims = s->n_groups * VQ_CODES_GROUP;
        const size_t n_lanes = vq_codes_lanes(dims);
        if (m->keys)
            m->k->unpack_keys(tile, page + s->at, s->bits, identity, s->n_groups, n_granules, 0);
        else
            m->k->unpack_values((int8_t *)tile, page + s->at, s->bits, (const int8_t *)identity, s->n_groups,
                                n_granules, 0);
        for (uint32_t r = 0; r < n; r++) {
            const size_t row = first + r;
            for (uint32_t j = 0; j < dims; j++) {
                const size_t at =
                    m->keys ? (j / 4 * VQ_CODES_ROWS + row) * 4 + j % 4 : (row / 4 * n_lanes + j) * 4 + row % 4;
                y[r * width + from + j] = (float)l->v[tile[at]] * step * m->scale[from + j] * gains[row];
            }
        }
    }
}

/* ---- keys ---- */

size_t vq_mixcode_query_bytes(const vq_mixcode *m) { return vq_wide_query_bytes(m->width); }

void vq_mixcode_prepare(const vq_mixcode *m, void *query, const float *q)
{
    float scaled[VQ_ROWCODE_MAX_D];
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        const uint32_t first = s->first_group * VQ_CODES_GROUP;
        for (uint32_t j = first; j < first + s->n_groups * VQ_CODES_GROUP; j++)
            scaled[j] = q[j] * m->scale[j] * step_of(s->bits);
    }
    vq_wide_query_prepare(m->k, query, scaled, m->width);
}

void vq_mixcode_score(const vq_mixcode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                      uint32_t n_granules, const void *queries, size_t stride, uint32_t n, const float *bases,
                      float *out)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    uint8_t tile[MAX_TILE];
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        m->k->unpack_keys(tile + (size_t)s->first_group * VQ_CODES_GROUP * VQ_CODES_ROWS, page + s->at, s->bits,
                          levels_of(s->bits)->key[1], s->n_groups, n_granules, ahead);
    }
    vq_wide_query_score(m->k, tile, m->width, n_granules, queries, stride, n, gains, bases, out);
}

/* ---- values ---- */

typedef struct weighed {
    uint8_t bytes[SUMS_AT_ONCE][VQ_CODES_ROWS];
    int32_t sums[SUMS_AT_ONCE];
    float unit[SUMS_AT_ONCE];
} weighed;

static void mix_segment(const vq_mixcode *m, const vq_mix_segment *s, const int8_t *tile, uint32_t n_granules,
                        const weighed *w, uint32_t n, float *acc, size_t acc_stride)
{
    int32_t dots[SUMS_AT_ONCE * VQ_ROWCODE_MAX_D];
    const uint32_t dims = s->n_groups * VQ_CODES_GROUP, n_lanes = vq_codes_lanes(dims);
    m->k->dots_su(dots, VQ_ROWCODE_MAX_D, tile, (size_t)n_lanes * 4, n_lanes, VQ_CODES_GRANULE / 4 * n_granules,
                  w->bytes[0], sizeof w->bytes[0], n);
    for (uint32_t i = 0; i < n; i++)
        m->k->add_scaled(acc + i * acc_stride + s->first_group * VQ_CODES_GROUP, dots + (size_t)i * VQ_ROWCODE_MAX_D,
                         w->sums[i], w->unit[i] * step_of(s->bits), dims);
}

void vq_mixcode_mix(const vq_mixcode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                    uint32_t n_granules, const float *weights, uint32_t n, float *acc, size_t acc_stride)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    int8_t tile[MAX_TILE + VQ_MIXCODE_TOP_BITS * VQ_CODES_GROUP * VQ_CODES_ROWS]; /* segments are padded to 16 lanes */
    size_t at[VQ_MIXCODE_TOP_BITS], used = 0;
    for (uint32_t i = 0; i < m->n_segments; i++) {
        const vq_mix_segment *s = &m->segments[i];
        at[i] = used;
        used += (size_t)vq_codes_lanes(s->n_groups * VQ_CODES_GROUP) * VQ_CODES_ROWS;
        m->k->unpack_values(tile + at[i], page + s->at, s->bits, levels_of(s->bits)->value[1], s->n_groups, n_granules,
                            ahead);
    }
    for (uint32_t q = 0; q < n; q += SUMS_AT_ONCE) {
        const uint32_t now = n - q < SUMS_AT_ONCE ? n - q : SUMS_AT_ONCE;
        weighed w;
        for (uint32_t i = 0; i < now; i++)
            w.unit[i] = m->k->weigh_narrow(w.bytes[i], &w.sums[i], weights + (size_t)(q + i) * VQ_CODES_ROWS, gains);
        for (uint32_t i = 0; i < m->n_segments; i++)
            mix_segment(m, &m->segments[i], tile + at[i], n_granules, &w, now, acc + q * acc_stride, acc_stride);
    }
}
