#include "kv/codec_generic.h"

#include <string.h>

/* A tile of decoded rows: 32 KiB beside the page and the queries, 16 rows of the largest head. */
enum { TILE_FLOATS = 8192, TILE_LEAST_ROWS = TILE_FLOATS / VQ_MAX_HEAD_DIM };

static uint32_t tile_rows(uint32_t d)
{
    const uint32_t n = TILE_FLOATS / d / TILE_LEAST_ROWS * TILE_LEAST_ROWS;
    return n < VQ_PAGE_ROWS ? n : VQ_PAGE_ROWS;
}

static size_t plain_query_bytes(uint32_t d) { return ((size_t)d * sizeof(float) + 63) & ~(size_t)63; }

uint32_t vq_side_granule(const vq_side *side)
{
    return side->codec->granule ? side->codec->granule(side->state) : VQ_GRANULE;
}

size_t vq_side_shared_bytes(const vq_side *side)
{
    return side->codec->shared_bytes ? side->codec->shared_bytes(side->state) : 0;
}

size_t vq_side_query_bytes(const vq_side *side)
{
    return side->codec->score ? side->codec->query_bytes(side->state) : plain_query_bytes(side->d);
}

size_t vq_side_acc_len(const vq_side *side)
{
    return side->codec->mix && side->codec->acc_len ? side->codec->acc_len(side->state) : side->d;
}

bool vq_side_copies_rows(const vq_side *side)
{
    return side->codec->copy_row && !(side->codec->shares && side->codec->shares(side->state));
}

void vq_side_prepare(const vq_side *side, void *query, const float *q)
{
    if (side->codec->score)
        side->codec->prepare(side->state, query, q);
    else
        memcpy(query, q, side->d * sizeof(float));
}

void vq_side_score(const vq_side *side, const void *page, const vq_rows *rows, const void *queries, uint32_t n_queries,
                   float *out)
{
    if (side->codec->score) {
        side->codec->score(side->state, page, rows, queries, n_queries, out);
        return;
    }
    _Alignas(64) float tile[TILE_FLOATS];
    const uint32_t step = tile_rows(side->d), stride = (uint32_t)(plain_query_bytes(side->d) / sizeof(float));
    for (uint32_t first = 0; first < rows->n; first += step) {
        const uint32_t n = rows->n - first < step ? rows->n - first : step;
        side->codec->decode(side->state, page, first, n, tile);
        side->kernels->attention.score_f32(queries, stride, n_queries, tile, n, side->d, out + first, VQ_PAGE_ROWS);
    }
}

void vq_side_mix(const vq_side *side, const void *page, const vq_rows *rows, const float *weights, uint32_t n_queries,
                 float *acc)
{
    if (side->codec->mix) {
        side->codec->mix(side->state, page, rows, weights, n_queries, acc);
        return;
    }
    _Alignas(64) float tile[TILE_FLOATS];
    const uint32_t step = tile_rows(side->d);
    for (uint32_t first = 0; first < rows->n; first += step) {
        const uint32_t n = rows->n - first < step ? rows->n - first : step;
        side->codec->decode(side->state, page, first, n, tile);
        side->kernels->attention.mix_f32(weights + first, VQ_PAGE_ROWS, n_queries, tile, n, side->d, acc, NULL);
    }
}

void vq_side_finish(const vq_side *side, const float *acc, float *out)
{
    if (side->codec->mix && side->codec->finish)
        side->codec->finish(side->state, acc, out);
    else
        memcpy(out, acc, side->d * sizeof(float));
}
