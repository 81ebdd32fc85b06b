/* Where a cache's bytes are. */
#include "kv/kv_inner.h"

static void measure_layer(const vq_kv *kv, const vq_kv_layer *l, bool pending, vq_kv_bytes *out)
{
    const size_t row_bytes = (kv->d_k + kv->d_v) * kv->exact_bytes;
    const uint32_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const uint32_t n_pages = vq_kv_end_page(l, l->coded_end) - l->first_page;
    const uint64_t n_coded = l->coded_end - l->sinks - l->first_page * VQ_PAGE_ROWS;
    /* While an append is pending, rows that have become codes are still held exactly, too. */
    uint64_t n_exact = n_sinks;
    if (l->n_settled > l->exact_first)
        n_exact += l->n_settled - l->exact_first;
    if (pending)
        n_exact += l->n_rows - l->n_settled;

    out->codes += (uint64_t)kv->n_kv_heads * n_pages * l->split.codes;
    out->scales += (uint64_t)kv->n_kv_heads * n_pages * l->split.scales;
    out->exact += kv->n_kv_heads * n_exact * row_bytes;
    out->table += (uint64_t)kv->n_kv_heads * n_pages * sizeof(vq_kv_page);
    out->n_rows += kv->n_kv_heads * (uint64_t)(l->n_rows - l->first_page * VQ_PAGE_ROWS);
    out->n_packed_rows += kv->n_kv_heads * n_coded;
    out->n_values_packed += kv->n_kv_heads * n_coded * (kv->d_k + kv->d_v);
}

void vq_kv_measure(const vq_kv *kv, vq_kv_bytes *out)
{
    *out = (vq_kv_bytes){.shared = kv->n_shared, .table = kv->n_struct_bytes};
    for (uint32_t i = 0; i < kv->n_layers; i++)
        measure_layer(kv, &kv->layers[i], kv->pending == i, out);
    const uint64_t mapped = kv->n_struct_bytes + kv->n_rows_bytes + kv->store.n_mapped;
    out->reserved = mapped - out->codes - out->scales - out->exact - out->table;
}

size_t vq_kv_mappings(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most)
{
    const void *fixed[2] = {kv, kv->rows_block};
    const size_t fixed_bytes[2] = {kv->n_struct_bytes, kv->n_rows_bytes};
    for (size_t i = 0; i < 2 && i < most; i++) {
        starts[i] = fixed[i];
        n_bytes[i] = fixed_bytes[i];
    }
    const size_t skip = most < 2 ? most : 2;
    return 2 + vq_store_mappings(&kv->store, starts + skip, n_bytes + skip, most - skip);
}
