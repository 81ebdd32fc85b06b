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

void vq_narrow_query_prepare(const vq_codes_kernels *k, void *query, const float *x, uint32_t width)
{
    memset(query, 0, vq_narrow_query_bytes(width));
    query_head *head = query;
    head->unit = k->quantise_narrow((int8_t *)query + sizeof *head, &head->sum, x, width);
}

void vq_wide_query_finish(const vq_codes_kernels *k, const int32_t *dots, uint32_t n_granules, const void *queries,
                          size_t stride, uint32_t n, const float *gains, const float *bases, float *out)
{
    const uint8_t *q = queries;
    for (uint32_t i = 0; i < n; i++, dots += VQ_CODES_ROWS, out += VQ_CODES_ROWS, q += stride) {
        const query_head *head = (const query_head *)(const void *)q;
        const int32_t centre = VQ_NARROW_TOP * head->sum;
        if (!bases || n_granules < 2 || bases[2 * i] == bases[2 * i + 1])
            k->scores(out, dots, centre, head->unit, gains, bases ? bases[2 * i] : 0, VQ_CODES_GRANULE * n_granules);
        else
            for (uint32_t g = 0, t = 0; g < 2; g++, t += VQ_CODES_GRANULE)
                k->scores(out + t, dots + t, centre, head->unit, gains + t, bases[2 * i + g], VQ_CODES_GRANULE);
        if (n_granules < 2)
            memset(out + VQ_CODES_GRANULE, 0, VQ_CODES_GRANULE * sizeof *out);
    }
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
        vq_wide_query_finish(k, dots, n_granules, q, stride, now, gains, bases ? bases + (size_t)2 * at : NULL,
                             out + (size_t)at * VQ_CODES_ROWS);
    }
}

float vq_wide_query_dot(const vq_codes_kernels *k, const void *query, const uint8_t *u, uint32_t width)
{
    const query_head *head = query;
    const int8_t *b = (const int8_t *)query + sizeof *head;
    const int32_t dot = k->dot_wide(u, b, b + vq_wide_query_half(width), width);
    return (float)(2 * dot - VQ_NARROW_TOP * head->sum) * head->unit;
}
