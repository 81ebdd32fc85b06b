#include "quant/trelliscode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "quant/wide_query.h"

enum { MAX_TILE = VQ_ROWCODE_MAX_D * VQ_CODES_ROWS, QUERIES_AT_ONCE = 12, SUMS_AT_ONCE = VQ_TRELLIS_FUSED };

float vq_trelliscode_noise(uint32_t bits)
{
    const float error = bits ? vq_trellis_gaussian[bits - 1].error : 0.5F; /* without codes: all of a row's energy */
    return error / (1 - error);
}

void vq_trelliscode_fill(uint8_t *bits, const float *energy, uint32_t n_groups, uint32_t n_bits)
{
    memset(bits, 0, n_groups);
    for (uint32_t i = 0; i < n_bits; i++) {
        uint32_t best = 0;
        float most = -1;
        for (uint32_t g = 0; g < n_groups; g++) {
            const float less = bits[g] < VQ_TRELLIS_MAX_BITS
                                   ? energy[g] * (vq_trelliscode_noise(bits[g]) - vq_trelliscode_noise(bits[g] + 1u))
                                   : -1;
            if (less > most) {
                most = less;
                best = g;
            }
        }
        bits[best]++;
    }
}

static float step_of(uint32_t bits) { return bits ? vq_trellis_gaussian[bits - 1].step : 0; }

void vq_trelliscode_make(vq_trelliscode *m, const uint8_t *bits, const float *scale, const vq_kernels *k, uint32_t d,
                         bool keys, bool narrow)
{
    *m = (vq_trelliscode){.k = &k->codes,
                          .trellis = &k->trellis,
                          .scale = scale,
                          .d = d,
                          .n_groups = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP,
                          .keys = keys,
                          .narrow = narrow};
    m->width = m->n_groups * VQ_CODES_GROUP;
    assert(m->n_groups <= VQ_TRELLISCODE_MAX_GROUPS);
    for (uint32_t g = 0; g < m->n_groups; g++) {
        assert(bits[g] <= VQ_TRELLIS_MAX_BITS);
        m->bits[g] = bits[g];
    }
    for (uint32_t g = m->n_groups; g-- > 0;)
        m->alike[g] = (uint8_t)(g + 1 < m->n_groups && m->bits[g + 1] == m->bits[g] ? m->alike[g + 1] + 1 : 1);
    m->row_bytes = vq_trellis_row_bytes(m->bits, m->n_groups);
    m->page_bytes = (size_t)VQ_CODES_ROWS * m->row_bytes;
}

/* ---- rows ---- */

/* How well Lloyd-Max levels l of z * inv fit y: <y,l>^2 / <l,l>. */
static float scalar_fit(const vq_trelliscode *m, const float *y, const float *z, float inv)
{
    uint8_t codes[VQ_CODES_GROUP];
    float along = 0, own = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        if (!m->bits[g])
            continue;
        const vq_levels *l = &vq_levels_gaussian[m->bits[g] - 1];
        const uint32_t first = g * VQ_CODES_GROUP;
        m->k->count(codes, z + first, inv, l->bounds, (1u << m->bits[g]) - 1, VQ_CODES_GROUP);
        for (uint32_t p = 0; p < VQ_CODES_GROUP; p++) {
            const float level = (float)l->v[codes[p]] * l->step * m->scale[g];
            along += y[first + p] * level;
            own += level * level;
        }
    }
    return along > 0 && own > 0 ? along * along / own : 0;
}

/* A row that is not what the scales expect may need a larger gain than its rms, or its largest coordinates are cut off:
 * the one that scalar codes want. */
static float widened(const vq_trelliscode *m, const float *y, const float *z, float rms)
{
    static const float wider[] = {1, 1.25F, 1.6F, 2.1F, 3};
    float best = 1, most = 0;
    for (uint32_t t = 0; t < sizeof wider / sizeof *wider; t++) {
        const float fit = scalar_fit(m, y, z, 1 / (rms * wider[t]));
        if (fit > most) {
            most = fit;
            best = wider[t];
        }
    }
    return best;
}

/* Rows side by side, [width][32]: what is done to all of them is done in vectors, each row's sums in the order of its
 * coordinates. */
typedef struct lanes {
    float y[VQ_ROWCODE_MAX_D][VQ_TRELLIS_ROWS];
    float z[VQ_ROWCODE_MAX_D][VQ_TRELLIS_ROWS]; /* over the scales, then over the gain, then what was found */
} lanes;

static void load_lanes(const vq_trelliscode *m, lanes *s, const float *y, size_t stride)
{
    for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++)
        for (uint32_t j = 0; j < m->d; j++)
            s->y[j][r] = y[r * stride + j];
    memset(s->y[m->d], 0, (m->width - m->d) * sizeof s->y[0]);
    for (uint32_t j = 0; j < m->width; j++) {
        const float scale = m->bits[j / VQ_CODES_GROUP] ? m->scale[j / VQ_CODES_GROUP] : 0;
        for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++)
            s->z[j][r] = scale > 0 ? s->y[j][r] / scale : 0;
    }
}

/* What z is multiplied with: one over the gain, 0 for rows that vanish. */
static void find_gains(const vq_trelliscode *m, const lanes *s, float *inv)
{
    float squares[VQ_TRELLIS_ROWS] = {0}, most[VQ_TRELLIS_ROWS] = {0};
    uint32_t n = 0;
    for (uint32_t j = 0; j < m->width; j++) {
        n += m->bits[j / VQ_CODES_GROUP] && j < m->d;
        for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++) {
            const float z = s->z[j][r], size = fabsf(z);
            squares[r] += z * z;
            most[r] = size > most[r] ? size : most[r];
        }
    }
    for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++) {
        const float rms = n ? sqrtf(squares[r] / (float)n) : 0;
        float wider = 1;
        if (most[r] > 3 * rms) {
            float y[VQ_ROWCODE_MAX_D], z[VQ_ROWCODE_MAX_D];
            for (uint32_t j = 0; j < m->width; j++) {
                y[j] = s->y[j][r];
                z[j] = s->z[j][r];
            }
            wider = widened(m, y, z, rms);
        }
        inv[r] = rms >= 0x1p-40F ? 1 / (rms * wider) : 0;
    }
}

void vq_trelliscode_encode(const vq_trelliscode *m, uint8_t *codes, float *gains, const float *y, size_t stride)
{
    lanes s;
    float inv[VQ_TRELLIS_ROWS], along[VQ_TRELLIS_ROWS] = {0}, whole[VQ_TRELLIS_ROWS] = {0};
    load_lanes(m, &s, y, stride);
    find_gains(m, &s, inv);
    for (uint32_t j = 0; j < m->width; j++)
        for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++)
            s.z[j][r] *= inv[r];
    vq_trellis_search(m->trellis, codes, s.z[0], m->bits, m->n_groups);
    for (uint32_t j = 0; j < m->width; j++) {
        const float scale = m->scale[j / VQ_CODES_GROUP];
        for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++)
            along[r] += s.y[j][r] * s.z[j][r] * scale;
        for (uint32_t r = 0; m->bits[j / VQ_CODES_GROUP] && r < VQ_TRELLIS_ROWS; r++)
            whole[r] += s.y[j][r] * s.y[j][r];
    }
    for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++) {
        gains[r] = inv[r] > 0 && along[r] > 0 ? whole[r] / along[r] : 0;
        if (!(inv[r] > 0))
            memset(codes + r * m->row_bytes, 0, m->row_bytes);
    }
}

void vq_trelliscode_pack(const vq_trelliscode *m, uint8_t *page, uint32_t granule, const uint8_t *codes)
{
    page += granule * (m->page_bytes / 2);
    for (uint32_t r = 0; r < VQ_CODES_GRANULE; r++, codes += m->row_bytes)
        for (size_t i = 0; i < m->row_bytes; i++)
            page[i * VQ_CODES_GRANULE + vq_trellis_place(r)] = codes[i];
}

/* Of a row: its first byte; the others follow 32 bytes apart. */
static size_t row_at(const vq_trelliscode *m, uint32_t row)
{
    return row / VQ_CODES_GRANULE * (m->page_bytes / 2) + vq_trellis_place(row % VQ_CODES_GRANULE);
}

void vq_trelliscode_copy_row(const vq_trelliscode *m, uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j)
{
    dst += row_at(m, i);
    src += row_at(m, j);
    for (size_t t = 0; t < m->row_bytes; t++)
        dst[t * VQ_CODES_GRANULE] = src[t * VQ_CODES_GRANULE];
}

void vq_trelliscode_decode(const vq_trelliscode *m, const uint8_t *page, const float *gains, uint32_t first, uint32_t n,
                           float *y)
{
    uint8_t codes[VQ_ROWCODE_MAX_D / 8 * VQ_TRELLIS_MAX_BITS];
    for (uint32_t r = first; r < first + n; r++, y += m->width) {
        const uint8_t *from = page + row_at(m, r);
        for (size_t i = 0; i < m->row_bytes; i++)
            codes[i] = from[i * VQ_CODES_GRANULE];
        vq_trellis_levels(m->trellis, y, codes, m->bits, m->n_groups);
        for (uint32_t j = 0; j < m->width; j++)
            y[j] *= m->scale[j / VQ_CODES_GROUP] * gains[r];
    }
}

/* ---- keys ---- */

size_t vq_trelliscode_query_bytes(const vq_trelliscode *m)
{
    return m->narrow ? vq_narrow_query_bytes(m->width) : vq_wide_query_bytes(m->width);
}

void vq_trelliscode_prepare(const vq_trelliscode *m, void *query, const float *q)
{
    float scaled[VQ_ROWCODE_MAX_D];
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const float factor = m->scale[g] * step_of(m->bits[g]);
        for (uint32_t j = g * VQ_CODES_GROUP; j < (g + 1) * VQ_CODES_GROUP; j++)
            scaled[j] = q[j] * factor;
    }
    if (m->narrow)
        vq_narrow_query_prepare(m->k, query, scaled, m->width);
    else
        vq_wide_query_prepare(m->k, query, scaled, m->width);
}

void vq_trelliscode_score(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                          uint32_t n_granules, const void *queries, size_t stride, uint32_t n, const float *bases,
                          float *out)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    _Alignas(64) uint8_t tile[MAX_TILE];
    int32_t dots[QUERIES_AT_ONCE * VQ_CODES_ROWS];
    const uint8_t *q = queries;
    m->trellis->unpack_keys(tile, page, m->bits, m->n_groups, n_granules, m->trellis->tables, ahead);
    for (uint32_t now; n > 0; n -= now, q += now * stride, out += (size_t)now * VQ_CODES_ROWS) {
        now = n < QUERIES_AT_ONCE ? n : QUERIES_AT_ONCE;
        m->trellis->dots_keys(dots, tile, m->n_groups, n_granules, (const int8_t *)q + VQ_WIDE_QUERY_HEAD,
                              m->narrow ? 0 : vq_wide_query_half(m->width), 0, stride, now);
        vq_wide_query_finish(m->k, dots, n_granules, q, stride, now, gains, bases, out);
        bases = bases ? bases + (size_t)2 * now : NULL;
    }
}

float vq_trelliscode_steps(const vq_trelliscode *m, int16_t *steps)
{
    float most = 0;
    for (uint32_t g = 0; g < m->n_groups; g++)
        most = fmaxf(most, m->scale[g] * step_of(m->bits[g]));
    for (uint32_t j = 0; j < m->width; j++)
        steps[j] = (int16_t)rintf(32767 * (m->scale[j / VQ_CODES_GROUP] * step_of(m->bits[j / VQ_CODES_GROUP]) / most));
    return most;
}

void vq_trelliscode_unpack_keys(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, uint32_t n_granules,
                                uint8_t *tile)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    m->trellis->unpack_keys(tile, page, m->bits, m->n_groups, n_granules, m->trellis->tables, ahead);
}

void vq_trelliscode_dots(const vq_trelliscode *m, const uint8_t *tile, uint32_t n_granules, const int8_t *b,
                         size_t second, size_t stride, uint32_t n, int32_t *dots)
{
    m->trellis->dots_keys(dots, tile, m->n_groups, n_granules, b, 0, second, stride, n);
}

/* ---- values ---- */

/* Groups of the same bits, which have the same step, go together. */
static void add_sums(const vq_trelliscode *m, float *acc, const int32_t *dots, int32_t sum, float unit)
{
    for (uint32_t g = 0, n; g < m->n_groups; g += n) {
        n = m->alike[g];
        const uint32_t first = g * VQ_CODES_GROUP;
        if (m->bits[g])
            m->k->add_scaled(acc + first, dots + first, sum, unit * step_of(m->bits[g]), n * VQ_CODES_GROUP);
    }
}

void vq_trelliscode_mix(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                        uint32_t n_granules, const float *weights, uint32_t n, float *acc, size_t acc_stride)
{
    const ptrdiff_t ahead = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)page) : 0;
    const uint32_t n_lanes = vq_codes_lanes(m->width);
    const bool fused = n <= VQ_TRELLIS_FUSED;
    _Alignas(64) int8_t tile[MAX_TILE];
    int32_t dots[SUMS_AT_ONCE * VQ_ROWCODE_MAX_D];
    if (!fused)
        m->trellis->unpack_values(tile, page, m->bits, m->n_groups, n_granules, m->trellis->tables, ahead);
    for (uint32_t q = 0; q < n; q += SUMS_AT_ONCE) {
        const uint32_t now = n - q < SUMS_AT_ONCE ? n - q : SUMS_AT_ONCE;
        uint8_t bytes[SUMS_AT_ONCE][VQ_CODES_ROWS];
        int32_t sums[SUMS_AT_ONCE];
        float unit[SUMS_AT_ONCE];
        for (uint32_t i = 0; i < now; i++)
            unit[i] = m->k->weigh_narrow(bytes[i], &sums[i], weights + (size_t)(q + i) * VQ_CODES_ROWS, gains);
        if (fused)
            m->trellis->dots_values(dots, VQ_ROWCODE_MAX_D, page, m->bits, m->n_groups, n_granules, m->trellis->tables,
                                    bytes[0], sizeof bytes[0], now, ahead);
        else
            m->k->dots_su(dots, VQ_ROWCODE_MAX_D, tile, (size_t)n_lanes * 4, n_lanes, VQ_CODES_GRANULE / 4 * n_granules,
                          bytes[0], sizeof bytes[0], now);
        for (uint32_t i = 0; i < now; i++)
            add_sums(m, acc + (q + i) * acc_stride, dots + (size_t)i * VQ_ROWCODE_MAX_D, sums[i], unit[i]);
    }
}
