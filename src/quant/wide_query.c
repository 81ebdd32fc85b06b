#include "quant/wide_query.h"

#include <string.h>

#include "quant/levels.h"

enum { QUERIES_AT_ONCE = 12 };

typedef struct query_head {
    float unit;
    int32_t sum;
    uint8_t unused[56];
} query_head;
_Static_assert(sizeof(query_head) == VQ_WIDE_QUERY_HEAD, "queries are read in vectors");

void vq_wide_query_prepare(const vq_codes_kernels *k, void *query, const float *x, uint32_t width)
{
    memset(query, 0, vq_wide_query_bytes(width));
    query_head *head = query;
    head->unit = k->quantise_wide((int8_t *)query + sizeof *head, vq_wide_query_half(width), &head->sum, x, width);
}

void vq_wide_query_score(const vq_codes_kernels *k, const uint8_t *tile, uint32_t width, uint32_t n_granules,
                         const void *queries, size_t stride, uint32_t n, const float *gains, const float *bases,
                         float *out)
{
    const uint32_t n_lanes = VQ_CODES_GRANULE * n_granules, n_quads = width / 4;
    int32_t dots[QUERIES_AT_ONCE * VQ_CODES_ROWS], more[QUERIES_AT_ONCE * VQ_CODES_ROWS];
    for (uint32_t at = 0; at < n; at += QUERIES_AT_ONCE) {
        const uint32_t now = n - at < QUERIES_AT_ONCE ? n - at : QUERIES_AT_ONCE;
        const uint8_t *q = (const uint8_t *)queries + at * stride;
        const int8_t *b = (const int8_t *)q + sizeof(query_head);
        k->dots_us(dots, VQ_CODES_ROWS, tile, VQ_CODES_ROWS * 4, n_lanes, n_quads, b, stride, now);
        k->dots_us(more, VQ_CODES_ROWS, tile, VQ_CODES_ROWS * 4, n_lanes, n_quads, b + vq_wide_query_half(width),
                   stride, now);
        for (uint32_t i = 0; i < now; i++)
            for (size_t j = (size_t)i * VQ_CODES_ROWS; j < (size_t)i * VQ_CODES_ROWS + n_lanes; j++)
                dots[j] = 128 * dots[j] + more[j];
        for (uint32_t i = 0; i < now; i++) {
            const query_head *head = (const query_head *)(const void *)(q + i * stride);
            float *o = out + (size_t)(at + i) * VQ_CODES_ROWS;
            for (uint32_t g = 0; g < n_granules; g++) {
                const uint32_t t = g * VQ_CODES_GRANULE;
                k->scores(o + t, dots + (size_t)i * VQ_CODES_ROWS + t, VQ_NARROW_TOP * head->sum, head->unit, gains + t,
                          bases ? bases[2 * (at + i) + g] : 0, VQ_CODES_GRANULE);
            }
            if (n_lanes < VQ_CODES_ROWS)
                memset(o + n_lanes, 0, (VQ_CODES_ROWS - n_lanes) * sizeof *o);
        }
    }
}

float vq_wide_query_dot(const vq_codes_kernels *k, const void *query, const uint8_t *u, uint32_t width)
{
    const query_head *head = query;
    const int8_t *b = (const int8_t *)query + sizeof *head;
    const int32_t dot = 128 * k->dot_us(u, b, width) + k->dot_us(u, b + vq_wide_query_half(width), width);
    return (float)(2 * dot - VQ_NARROW_TOP * head->sum) * head->unit;
}
