/* Choosing rows: the best by score, exactly as many as were asked for, the lower position where scores tie. */
#include <math.h>
#include <string.h>

#include "kv/evict.h"

/* A key that is smaller for what stays first: higher scores, then lower numbers.  NaN is the worst. */
static uint64_t key_of(float score, uint32_t number)
{
    const float x = isnan(score) ? -INFINITY : score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | number;
}

/* The m-th smallest of n different keys, m from 1; the keys change places. */
static uint64_t mth_key(uint64_t *keys, uint32_t n, uint32_t m)
{
    uint32_t low = 0, high = n - 1;
    const uint32_t want = m - 1;
    while (low < high) {
        const uint64_t a = keys[low], b = keys[low + (high - low) / 2], c = keys[high];
        const uint64_t least = a < b ? a : b, most = a < b ? b : a;
        const uint64_t pivot = c < least ? least : c > most ? most : c;
        uint32_t i = low, j = high;
        for (;;) {
            while (keys[i] < pivot)
                i++;
            while (keys[j] > pivot)
                j--;
            if (i >= j)
                break;
            const uint64_t key = keys[i];
            keys[i++] = keys[j];
            keys[j--] = key;
        }
        /* Keys before i are below the pivot, those after j above it; i == j is the pivot itself. */
        if (i == j && want == i)
            break;
        if (want < i)
            high = i - 1;
        else
            low = j + 1;
    }
    return keys[want];
}

static bool is_protected(const vq_evict_bounds *b, uint32_t pos)
{
    return pos >= b->seen_from && (pos < b->sinks_end || pos >= b->recent_from);
}

uint32_t vq_evict_n_protected(const vq_evictor *e, uint32_t head, const vq_evict_bounds *b)
{
    const uint32_t *pos = e->pos + head * e->stride;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_live[head]; i++)
        n += is_protected(b, pos[i]);
    return n;
}

static uint64_t *keep_of(const vq_evictor *e, uint32_t head) { return e->keep + head * (e->stride / 64 + 1); }

static float score_of(const vq_evictor *e, uint32_t head, uint32_t i, const vq_evict_bounds *b)
{
    return e->pos[head * e->stride + i] < b->seen_from ? -INFINITY : e->score[head * e->stride + i];
}

/* The best m rows that are neither protected nor kept yet. */
static void keep_best(vq_evictor *e, uint32_t head, const vq_evict_bounds *b, uint32_t m)
{
    const uint32_t *pos = e->pos + head * e->stride;
    uint64_t *keep = keep_of(e, head), *keys = e->order + head * e->stride;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_live[head]; i++)
        if (!is_protected(b, pos[i]))
            keys[n++] = key_of(score_of(e, head, i, b), i);
    if (m == 0 || n == 0)
        return;
    const uint64_t last = mth_key(keys, n, m < n ? m : n);
    for (uint32_t i = 0; i < n; i++)
        if (keys[i] <= last)
            vq_mask_put(keep, (uint32_t)keys[i], true);
}

static void keep_protected(vq_evictor *e, uint32_t head, const vq_evict_bounds *b)
{
    uint64_t *keep = keep_of(e, head);
    memset(keep, 0, (e->n_live[head] / 64 + 1) * sizeof *keep);
    for (uint32_t i = 0; i < e->n_live[head]; i++)
        if (is_protected(b, e->pos[head * e->stride + i]))
            vq_mask_put(keep, i, true);
}

void vq_evict_choose(vq_evictor *e, uint32_t head, const vq_evict_bounds *b, uint32_t quota)
{
    const uint32_t n_protected = vq_evict_n_protected(e, head, b);
    keep_protected(e, head, b);
    keep_best(e, head, b, quota > n_protected ? quota - n_protected : 0);
}

void vq_evict_choose_flat(vq_evictor *e, uint32_t n_heads, const vq_evict_bounds *b, uint32_t quota, float floor)
{
    uint32_t n_kept = 0, n = 0;
    const uint32_t least = (uint32_t)((float)quota * floor);
    for (uint32_t h = 0; h < n_heads; h++) {
        const uint32_t n_protected = vq_evict_n_protected(e, h, b);
        keep_protected(e, h, b);
        keep_best(e, h, b, least > n_protected ? least - n_protected : 0);
        for (uint32_t i = 0; i < e->n_live[h]; i++)
            n_kept += vq_mask_bit(keep_of(e, h), i);
    }
    /* All other rows of all heads in one list; of equal scores the lower number, then the lower head. */
    for (uint32_t h = 0; h < n_heads; h++)
        for (uint32_t i = 0; i < e->n_live[h]; i++)
            if (!vq_mask_bit(keep_of(e, h), i))
                e->order[n++] = key_of(score_of(e, h, i, b), i * n_heads + h);
    const uint64_t all = (uint64_t)quota * n_heads;
    if (n == 0 || all <= n_kept)
        return;
    const uint64_t m = all - n_kept, last = mth_key(e->order, n, m < n ? (uint32_t)m : n);
    for (uint32_t i = 0; i < n; i++)
        if (e->order[i] <= last)
            vq_mask_put(keep_of(e, (uint32_t)e->order[i] % n_heads), (uint32_t)e->order[i] / n_heads, true);
}
