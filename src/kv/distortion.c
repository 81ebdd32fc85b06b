#include "kv/distortion.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

enum { N_PAGES = 2, N_ROWS = N_PAGES * VQ_PAGE_ROWS };

struct vq_distortion {
    vq_arena arena; /* holds this struct too */
    const vq_calibration *calibration;
    uint32_t d, group;
    bool keys;
    float *x, *y;    /* [N_ROWS][d] */
    double *metric;  /* [d][d]; keys: H */
    double *scratch; /* [d] */
    double *product; /* [d] */
    unsigned char *page;
    size_t page_room;
};

static vq_distortion *layout(vq_arena *arena, uint32_t d, bool keys)
{
    vq_distortion *m = vq_arena_take(arena, 1, sizeof *m), at = {.d = d, .keys = keys};
    at.x = vq_arena_take(arena, (size_t)N_ROWS * d, sizeof *at.x);
    at.y = vq_arena_take(arena, (size_t)N_ROWS * d, sizeof *at.y);
    at.metric = vq_arena_take(arena, keys ? (size_t)d * d : 0, sizeof *at.metric);
    at.scratch = vq_arena_take(arena, d, sizeof *at.scratch);
    at.product = vq_arena_take(arena, keys ? d : 0, sizeof *at.product);
    /* The largest pages are those of f32 rows; codecs of 8 bits with two scales a value come nowhere near. */
    at.page_room = (size_t)VQ_PAGE_ROWS * (4 * (size_t)d + 64);
    at.page = vq_arena_take(arena, at.page_room, 1);
    if (m)
        *m = at;
    return m;
}

vq_status vq_distortion_open(vq_distortion **out, const vq_calibration *calibration, uint32_t d, bool keys,
                             uint32_t group, vq_error *err)
{
    *out = NULL;
    vq_arena arena = {0};
    layout(&arena, d, keys);
    VQ_TRY(vq_arena_alloc(&arena, err));
    vq_distortion *m = layout(&arena, d, keys);
    m->arena = arena;
    m->calibration = calibration;
    m->group = group;
    *out = m;
    return VQ_OK;
}

void vq_distortion_close(vq_distortion *m)
{
    if (!m)
        return;
    vq_arena arena = m->arena;
    vq_arena_free(&arena);
}

/* x += sum of vectors j of the basis times a normal number of variance[j] */
static void add_normal(float *x, const float *basis, const float *variance, uint32_t d, vq_rng *rng)
{
    for (uint32_t j = 0; j < d; j++) {
        const float z = (float)(vq_rng_normal(rng) * sqrt(variance[j] > 0 ? variance[j] : 0));
        for (uint32_t i = 0; i < d; i++)
            x[i] += z * basis[(size_t)j * d + i];
    }
}

static void draw(vq_distortion *m, uint32_t layer, uint32_t head)
{
    const vq_calibration *c = m->calibration;
    const uint32_t d = m->d;
    vq_rng rng;
    vq_rng_seed(&rng, vq_hash64(layer, head, m->keys, 0, 0));
    float near[VQ_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < N_ROWS; i++) {
        float *x = m->x + (size_t)i * d;
        if (!c) {
            for (uint32_t j = 0; j < d; j++)
                x[j] = (float)vq_rng_normal(&rng);
        } else if (m->keys) { /* the mean, what 32 neighbours share, and the rest */
            const float *basis = vq_calibration_at(c, VQ_KEY_REST_BASIS, layer, head);
            if (i % VQ_GRANULE == 0) {
                memcpy(near, vq_calibration_at(c, VQ_KEY_MEAN, layer, head), d * sizeof *near);
                add_normal(near, basis, vq_calibration_at(c, VQ_KEY_NEAR_VARIANCE, layer, head), d, &rng);
            }
            memcpy(x, near, d * sizeof *x);
            add_normal(x, basis, vq_calibration_at(c, VQ_KEY_REST_SPECTRUM, layer, head), d, &rng);
        } else {
            memcpy(x, vq_calibration_at(c, VQ_VALUE_MEAN, layer, head), d * sizeof *x);
            add_normal(x, vq_calibration_at(c, VQ_VALUE_BASIS, layer, head),
                       vq_calibration_at(c, VQ_VALUE_SPECTRUM, layer, head), d, &rng);
        }
    }
}

/* H of a group. */
static void take_metric(vq_distortion *m, uint32_t layer, uint32_t head)
{
    const uint32_t d = m->d;
    memset(m->metric, 0, (size_t)d * d * sizeof *m->metric);
    for (uint32_t i = 0; !m->calibration && i < d; i++)
        m->metric[(size_t)i * d + i] = 1;
    for (uint32_t g = 0; m->calibration && g < m->group; g++) {
        const float *h = vq_calibration_at(m->calibration, VQ_QUERY_MOMENT, layer, head * m->group + g);
        for (size_t i = 0; i < (size_t)d * d; i++)
            m->metric[i] += h[i] / (double)m->group;
    }
}

void vq_distortion_choose(vq_distortion *m, uint32_t layer, uint32_t head)
{
    draw(m, layer, head);
    if (m->keys)
        take_metric(m, layer, head);
}

/* e' H e; row by row of H, which is symmetric, so that no sum waits for the one before it */
static double product(vq_distortion *m, const float *e)
{
    double *sums = m->product, sum = 0;
    memset(sums, 0, m->d * sizeof *sums);
    for (uint32_t i = 0; i < m->d; i++) {
        const double *row = m->metric + (size_t)i * m->d, by = e[i];
        for (uint32_t j = 0; j < m->d; j++)
            sums[j] += by * row[j];
    }
    for (uint32_t j = 0; j < m->d; j++)
        sum += sums[j] * e[j];
    return sum;
}

double vq_distortion_measure(vq_distortion *m, const vq_side *side)
{
    const uint32_t d = m->d, granule = vq_side_granule(side);
    vq_page_bytes bytes;
    side->codec->page_bytes(side->state, &bytes);
    if (bytes.codes + bytes.scales > m->page_room)
        return INFINITY;
    for (uint32_t p = 0; p < N_PAGES; p++) {
        float *y = m->y + (size_t)p * VQ_PAGE_ROWS * d;
        uint32_t pos[VQ_PAGE_ROWS];
        for (uint32_t i = 0; i < VQ_PAGE_ROWS; i++)
            pos[i] = p * VQ_PAGE_ROWS + i;
        memcpy(y, m->x + (size_t)p * VQ_PAGE_ROWS * d, (size_t)VQ_PAGE_ROWS * d * sizeof *y);
        memset(m->page, 0, bytes.codes + bytes.scales);
        for (uint32_t row = 0; row < VQ_PAGE_ROWS; row += granule)
            vq_side_encode(side, m->page, row, granule, y + (size_t)row * d, pos + row);
        vq_side_decode(side, m->page, 0, VQ_PAGE_ROWS, y, pos);
    }
    memset(m->scratch, 0, d * sizeof *m->scratch);
    double own = 0, sum = 0;
    for (size_t i = 0; i < (size_t)N_ROWS * d; i++) {
        m->y[i] -= m->x[i];
        m->scratch[i % d] += (double)m->y[i] / N_ROWS;
        own += (double)m->x[i] * m->x[i];
        sum += (double)m->y[i] * m->y[i];
    }
    if (!m->keys)
        return own > 0 ? sum / own : 0;
    sum = 0;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        for (uint32_t j = 0; j < d; j++)
            m->y[(size_t)i * d + j] -= (float)m->scratch[j];
        sum += product(m, m->y + (size_t)i * d);
    }
    return sum / N_ROWS;
}
