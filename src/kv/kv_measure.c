/* Where a cache's bytes are, and where its time goes. */
#include <time.h>
#include <unistd.h>

#include "kv/evict.h"
#include "kv/kv_inner.h"

double vq_kv_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void vq_kv_time(vq_kv *kv, vq_kv_times *times) { kv->times = times; }

static uint64_t count(const uint64_t *mask, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i += 64)
        sum += (uint64_t)__builtin_popcountll(vq_mask_bits(mask, i, n - i < 64 ? n - i : 64));
    return sum;
}

/* Rows of a head that count: those that are held exactly only, and those of codes. */
static void count_rows(const vq_kv_layer *l, uint32_t head, uint64_t *n_exact, uint64_t *n_coded)
{
    const vq_kv_head *h = &l->heads[head];
    *n_exact = count(h->sink_live, l->n_rows < l->sinks ? l->n_rows : l->sinks);
    for (uint32_t row = l->coded_end; row < l->n_rows; row += 64)
        *n_exact +=
            (uint64_t)__builtin_popcountll(vq_kv_exact_live(l, head, row, l->n_rows - row < 64 ? l->n_rows - row : 64));
    *n_coded = 0;
    for (uint32_t p = 0; p < h->n_pages; p++)
        *n_coded += (uint64_t)__builtin_popcountll(h->pages[p].live);
}

uint32_t vq_kv_count_live(const vq_kv_layer *l, uint32_t head)
{
    uint64_t n_exact, n_coded;
    count_rows(l, head, &n_exact, &n_coded);
    return (uint32_t)(n_exact + n_coded);
}

/* shared: what forks share counts here. */
static void measure_layer(const vq_kv *kv, const vq_kv_layer *l, bool pending, bool shared, vq_kv_bytes *out)
{
    const size_t row_bytes = (kv->d_k + kv->d_v) * kv->exact_bytes;
    /* While an append is pending, rows that have become codes are still held exactly, too.  Exact rows that were
     * evicted keep their place until they are coded. */
    uint64_t n_held = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    if (l->n_settled > l->exact_first)
        n_held += l->n_settled - l->exact_first;
    if (pending)
        n_held += l->n_rows - l->n_settled;
    out->exact += kv->n_kv_heads * n_held * row_bytes;
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        const vq_kv_head *h = &l->heads[i];
        uint64_t n_exact, n_coded, n_elsewhere = 0;
        count_rows(l, i, &n_exact, &n_coded);
        out->table += h->n_pages * sizeof(vq_kv_page);
        for (uint32_t p = 0; p < h->n_pages; p++) {
            const vq_kv_page *page = &h->pages[p];
            if (vq_kv_page_is_own(kv, l, page)) {
                out->codes += h->split.codes;
                out->scales += h->split.scales;
                out->table += page->offsets ? VQ_PAGE_ROWS * sizeof(uint16_t) : 0;
            } else if (!shared) {
                n_elsewhere += (uint64_t)__builtin_popcountll(page->live);
            }
        }
        out->n_rows += n_exact + n_coded;
        out->n_packed_rows += n_coded;
        out->n_values_packed += (n_coded - n_elsewhere) * (kv->d_k + kv->d_v);
    }
}

void vq_kv_measure(const vq_kv *kv, vq_kv_bytes *out)
{
    *out = (vq_kv_bytes){.shared = kv->n_shared, .table = kv->n_struct_bytes};
    /* Tables are laid out for all of n_ctx, scratch for the longest chunk: what was never touched is no memory yet. */
    uint64_t mapped = kv->n_struct_bytes + vq_store_resident(kv->rows_block, kv->n_rows_bytes) + kv->store.n_mapped +
                      (kv->evict ? kv->evict->n_bytes : 0);
    const bool shared = vq_kv_measure_shared(kv, out, &mapped);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        measure_layer(kv, &kv->layers[i], kv->pending == i, shared, out);
    out->reserved = mapped - out->codes - out->scales - out->exact - out->table;
}

uint32_t vq_kv_most_pages(const vq_kv *kv, const vq_kv_layer *l)
{
    const uint32_t n_coded = vq_kv_coded_end(l, kv->n_ctx) - l->sinks;
    uint64_t n = (n_coded + VQ_PAGE_ROWS - 1) / VQ_PAGE_ROWS;
    /* What the first query of a chunk sees and the last one has appended, and a page at each end. */
    const uint64_t seen = ((uint64_t)l->window + kv->n_batch) / VQ_PAGE_ROWS + 3;
    if (l->window && seen < n)
        n = seen;
    return (uint32_t)n;
}

uint64_t vq_kv_most_bytes(const vq_kv *kv)
{
    const uint64_t unit = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n = kv->n_struct_bytes + kv->n_rows_bytes + kv->store.n_area_bytes + kv->store.n_bit_bytes + kv->n_shared +
                 (kv->evict ? kv->evict->n_bytes : 0);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            const vq_kv_layer *l = &kv->layers[i];
            n += (vq_kv_most_pages(kv, l) * (uint64_t)l->heads[h].page_bytes + unit - 1) / unit * unit;
        }
    return n;
}

size_t vq_kv_mappings(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most)
{
    const void *fixed[3] = {kv, kv->rows_block, kv->evict};
    const size_t fixed_bytes[3] = {kv->n_struct_bytes, kv->n_rows_bytes, kv->evict ? kv->evict->n_bytes : 0};
    const size_t n_fixed = kv->evict ? 3 : 2;
    for (size_t i = 0; i < n_fixed && i < most; i++) {
        starts[i] = fixed[i];
        n_bytes[i] = fixed_bytes[i];
    }
    const size_t skip = most < n_fixed ? most : n_fixed;
    size_t n = n_fixed + vq_store_mappings(&kv->store, starts + skip, n_bytes + skip, most - skip);
    const size_t own = n < most ? n : most;
    return n + vq_kv_shared_mappings(kv, starts + own, n_bytes + own, most - own);
}
