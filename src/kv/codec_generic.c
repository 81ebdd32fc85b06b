#include "kv/codec_generic.h"

#include <math.h>
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

uint32_t vq_side_retrieves(const vq_side *side)
{
    return side->codec->retrieves ? side->codec->retrieves(side->state) : 0;
}

bool vq_side_copies_rows(const vq_side *side)
{
    return side->codec->copy_row && !(side->codec->shares && side->codec->shares(side->state));
}

/* From one position to the next the turn is multiplied on in double, which is exact to far below a float over the 64
 * rows of a page. */
void vq_turn_rows(const vq_kv_rope *rope, const vq_kernels *k, const uint32_t *pos, uint32_t n, bool back, uint32_t d,
                  float *x)
{
    const uint32_t n_pairs = rope->n_rot / 2;
    double c[VQ_MAX_HEAD_DIM / 2], s[VQ_MAX_HEAD_DIM / 2], step_c[VQ_MAX_HEAD_DIM / 2], step_s[VQ_MAX_HEAD_DIM / 2];
    float cosine[VQ_MAX_HEAD_DIM / 2], sine[VQ_MAX_HEAD_DIM / 2];
    bool has_step = false;
    for (uint32_t i = 0; i < n; i++) {
        const bool follows = i > 0 && pos[i] == pos[i - 1] + 1;
        for (uint32_t p = 0; follows && !has_step && p < n_pairs; p++)
            sincos(rope->freq[p], &step_s[p], &step_c[p]);
        has_step |= follows;
        for (uint32_t p = 0; p < n_pairs; p++) {
            if (follows) {
                const double turned = c[p] * step_c[p] - s[p] * step_s[p];
                s[p] = s[p] * step_c[p] + c[p] * step_s[p];
                c[p] = turned;
            } else {
                sincos(pos[i] * rope->freq[p], &s[p], &c[p]);
            }
            cosine[p] = (float)c[p];
            sine[p] = back ? -(float)s[p] : (float)s[p];
        }
        k->vec.rope(x + (size_t)i * d, cosine, sine, 1, d, rope->n_rot, rope->halves);
    }
}

void vq_turn_by(const vq_kv_rope *rope, const vq_kernels *k, double n_positions, uint32_t d, float *x)
{
    float cosine[VQ_MAX_HEAD_DIM / 2], sine[VQ_MAX_HEAD_DIM / 2];
    for (uint32_t p = 0; p < rope->n_rot / 2; p++) {
        double c, s;
        sincos(n_positions * rope->freq[p], &s, &c);
        cosine[p] = (float)c;
        sine[p] = (float)s;
    }
    k->vec.rope(x, cosine, sine, 1, d, rope->n_rot, rope->halves);
}

void vq_side_encode(const vq_side *side, void *page, uint32_t first, uint32_t n, float *x, const uint32_t *pos)
{
    if (side->rope)
        vq_turn_rows(side->rope, side->kernels, pos, n, true, side->d, x);
    if (side->codec->encode_at)
        side->codec->encode_at(side->state, page, first, n, x, pos);
    else
        side->codec->encode(side->state, page, first, n, x);
}

void vq_side_decode(const vq_side *side, const void *page, uint32_t first, uint32_t n, float *x, const uint32_t *pos)
{
    if (side->codec->decode_at)
        side->codec->decode_at(side->state, page, first, n, x, pos);
    else
        side->codec->decode(side->state, page, first, n, x);
    if (side->rope)
        vq_turn_rows(side->rope, side->kernels, pos, n, false, side->d, x);
}

void vq_side_prepare(const vq_side *side, void *query, const float *q) { vq_side_prepare_at(side, query, q, 0); }

void vq_side_prepare_at(const vq_side *side, void *query, const float *q, uint32_t pos)
{
    if (side->codec->prepare_at)
        side->codec->prepare_at(side->state, query, q, pos);
    else if (side->codec->score)
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
        vq_side_decode(side, page, first, n, tile, rows->pos + (side->rope ? first : 0));
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
