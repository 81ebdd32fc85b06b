#include "quant/folded.h"

#include <math.h>
#include <string.h>

#include "quant/levels.h"

typedef struct query_head {
    float unit; /* of the query's integers */
    uint8_t unused[60];
} query_head;
_Static_assert(sizeof(query_head) == 64, "queries are read in vectors");

bool vq_folding_fits(const vq_rotation *rotation)
{
    const uint32_t d = rotation->d;
    return rotation->n_block == d && d >= VQ_FOLDED_LEAST_N && d <= VQ_FOLDED_MOST_N;
}

size_t vq_folding_query_bytes(const vq_folding *f) { return sizeof(query_head) + f->d * sizeof(int16_t); }

void vq_folding_prepare(const vq_folding *f, void *query, const float *q)
{
    query_head *head = query;
    int16_t *to = (int16_t *)(void *)(head + 1);
    float flipped[VQ_FOLDED_MOST_N];
    int8_t halves[2][VQ_FOLDED_MOST_N];
    int32_t sum;
    memcpy(flipped, q, f->d * sizeof *q);
    f->k->flip(flipped, f->rotation->signs, f->d);
    const float unit = f->k->quantise_wide(halves[0], VQ_FOLDED_MOST_N, &sum, flipped, f->d);
    *head = (query_head){.unit = unit / 4};
    for (uint32_t j = 0; j < f->d; j++) /* 14 bits; two more leave what folding rounds off below them */
        to[j] = (int16_t)(4 * (128 * halves[0][j] + halves[1][j]));
}

void vq_folding_meet(const vq_folding *f, vq_folded_page *page, uint32_t granule, const void *queries, size_t stride,
                     uint32_t n, const uint8_t *channels, const vq_rowcode_mean *mean)
{
    vq_folded of[VQ_FOLDED_AT_ONCE];
    const query_head *head = queries;
    const int16_t *first = (const int16_t *)(const void *)(head + 1);
    f->fold->fold(of, page->rounded[0][granule], sizeof page->rounded[0], first, stride / sizeof *first, n, channels,
                  mean->u, f->steps, f->d);
    /* In scales and steps 32767 stands for 1; the matrix was not divided by its root. */
    const float turned = 0x1p15F / 32767 / sqrtf((float)f->d), step = f->step * (f->steps ? 0x1p15F / 32767 : 1);
    for (uint32_t i = 0; i < n; i++) {
        const query_head *own = (const query_head *)(const void *)((const uint8_t *)queries + i * stride);
        const float unit = own->unit * turned * (0x1p15F / (float)of[i].level); /* of y */
        const int64_t near = 2 * (int64_t)of[i].near - (int64_t)VQ_NARROW_TOP * of[i].total;
        page->base[i][granule] = (float)near * (unit * mean->scale);
        page->scale[i][granule] = unit * (0x1p15F / (float)of[i].round) * step;
        page->centre[i][granule] = VQ_NARROW_TOP * of[i].sum;
    }
}

void vq_folding_finish(const vq_folding *f, const vq_folded_page *page, const int32_t *dots, uint32_t n_granules,
                       uint32_t n, const float *gains, float *out)
{
    for (uint32_t i = 0; i < n; i++, dots += VQ_CODES_ROWS, out += VQ_CODES_ROWS) {
        for (uint32_t g = 0, t = 0; g < n_granules; g++, t += VQ_CODES_GRANULE)
            f->k->scores(out + t, dots + t, page->centre[i][g], page->scale[i][g], gains + t, page->base[i][g],
                         VQ_CODES_GRANULE);
        if (n_granules < 2)
            memset(out + VQ_CODES_GRANULE, 0, VQ_CODES_GRANULE * sizeof *out);
    }
}
