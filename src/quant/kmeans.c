#include "quant/kmeans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

typedef struct work {
    const vq_kmeans_rows *rows;
    uint32_t k, padded;
    float *columns, *half; /* [d][padded], [padded] */
    float *off;            /* [n] squared distance of each row from its centroid */
    uint32_t *cluster;     /* [n] */
    uint32_t *count;       /* [k] */
    double *sum;           /* [k][d] */
    vq_arena arena;
} work;

static void lay_out(work *w)
{
    const size_t n = w->rows->n, d = w->rows->d;
    w->columns = vq_arena_take(&w->arena, d * w->padded, sizeof(float));
    w->half = vq_arena_take(&w->arena, w->padded, sizeof(float));
    w->off = vq_arena_take(&w->arena, n, sizeof(float));
    w->cluster = vq_arena_take(&w->arena, n, sizeof(uint32_t));
    w->count = vq_arena_take(&w->arena, w->k, sizeof(uint32_t));
    w->sum = vq_arena_take(&w->arena, w->k * d, sizeof(double));
}

static const float *row(const work *w, uint32_t i) { return w->rows->x + (size_t)i * w->rows->stride; }

static float squared_distance(const float *a, const float *b, uint32_t d)
{
    float sum = 0;
    for (uint32_t j = 0; j < d; j++)
        sum += (a[j] - b[j]) * (a[j] - b[j]);
    return sum;
}

/* Each next centroid is a row, drawn in proportion to its squared distance from those there are. */
static void choose_first(work *w, float *centroids, vq_rng *rng)
{
    const uint32_t n = w->rows->n, d = w->rows->d;
    uint32_t chosen = (uint32_t)(vq_rng_uniform(rng) * n);
    for (uint32_t i = 0; i < n; i++)
        w->off[i] = INFINITY;
    for (uint32_t c = 0; c < w->k; c++) {
        float *to = centroids + (size_t)c * d;
        memcpy(to, row(w, chosen), d * sizeof *to);
        double all = 0;
        for (uint32_t i = 0; i < n; i++) {
            const float off = squared_distance(row(w, i), to, d);
            w->off[i] = off < w->off[i] ? off : w->off[i];
            all += (double)w->off[i];
        }
        double left = vq_rng_uniform(rng) * all;
        chosen = n - 1;
        for (uint32_t i = 0; i < n; i++) {
            left -= (double)w->off[i];
            if (left < 0) {
                chosen = i;
                break;
            }
        }
    }
}

static void transpose(work *w, const float *centroids)
{
    const uint32_t d = w->rows->d;
    for (uint32_t c = 0; c < w->padded; c++) {
        float squares = 0;
        for (uint32_t j = 0; j < d; j++) {
            const float x = c < w->k ? centroids[(size_t)c * d + j] : 0;
            w->columns[(size_t)j * w->padded + c] = x;
            squares += x * x;
        }
        w->half[c] = c < w->k ? squares / 2 : INFINITY;
    }
}

/* How many rows changed their cluster. */
static uint32_t assign(work *w, const float *centroids)
{
    const uint32_t d = w->rows->d;
    uint32_t n_changed = 0;
    transpose(w, centroids);
    for (uint32_t i = 0; i < w->rows->n; i++) {
        float score;
        const uint32_t c = vq_nearest(w->columns, w->half, w->padded, d, row(w, i), &score);
        n_changed += c != w->cluster[i];
        w->cluster[i] = c;
        w->off[i] = squared_distance(row(w, i), centroids + (size_t)c * d, d);
    }
    return n_changed;
}

static void move(work *w, float *centroids)
{
    const uint32_t n = w->rows->n, d = w->rows->d;
    memset(w->count, 0, w->k * sizeof *w->count);
    memset(w->sum, 0, (size_t)w->k * d * sizeof *w->sum);
    for (uint32_t i = 0; i < n; i++) {
        w->count[w->cluster[i]]++;
        for (uint32_t j = 0; j < d; j++)
            w->sum[(size_t)w->cluster[i] * d + j] += (double)row(w, i)[j];
    }
    for (uint32_t c = 0; c < w->k; c++) {
        float *to = centroids + (size_t)c * d;
        for (uint32_t j = 0; j < d && w->count[c] > 0; j++)
            to[j] = (float)(w->sum[(size_t)c * d + j] / w->count[c]);
        if (w->count[c] > 0)
            continue;
        uint32_t far = 0;
        for (uint32_t i = 1; i < n; i++)
            far = w->off[i] > w->off[far] ? i : far;
        if (w->off[far] > 0)
            memcpy(to, row(w, far), d * sizeof *to);
        w->off[far] = 0; /* the next empty one takes another */
    }
}

vq_status vq_kmeans(float *centroids, uint32_t k, const vq_kmeans_rows *rows, uint32_t n_rounds, uint64_t seed,
                    vq_error *err)
{
    if (rows->n == 0 || k == 0 || rows->d == 0 || rows->d > VQ_KMEANS_MOST_D)
        return vq_fail(err, VQ_ERR_ARG, "%u centroids of %u rows of %u values; rows have 1 to %d", k, rows->n, rows->d,
                       VQ_KMEANS_MOST_D);
    work w = {.rows = rows, .k = k, .padded = (k + VQ_NEAREST_LANES - 1) / VQ_NEAREST_LANES * VQ_NEAREST_LANES};
    lay_out(&w);
    VQ_TRY(vq_arena_alloc(&w.arena, err));
    lay_out(&w);
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    choose_first(&w, centroids, &rng);
    memset(w.cluster, 0xff, rows->n * sizeof *w.cluster);
    for (uint32_t i = 0; i < n_rounds && assign(&w, centroids) > 0; i++)
        move(&w, centroids);
    vq_arena_free(&w.arena);
    return VQ_OK;
}
