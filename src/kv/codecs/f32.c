/* f32: rows as they come. */
#include "kv/dense.h"

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = (size_t)VQ_PAGE_ROWS * vq_dense_of(s)->d * sizeof(float)};
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const size_t d = dense->d, row_step = dense->keys ? 1 : d, column_step = dense->keys ? VQ_PAGE_ROWS : 1;
    float *to = (float *)page + first * row_step;
    for (size_t c = 0; c < d; c++)
        for (size_t j = 0; j < n; j++)
            to[j * row_step + c * column_step] = x[j * d + c];
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const size_t d = dense->d, row_step = dense->keys ? 1 : d, column_step = dense->keys ? VQ_PAGE_ROWS : 1;
    const float *from = (const float *)page + first * row_step;
    for (size_t j = 0; j < n; j++)
        for (size_t c = 0; c < d; c++)
            x[j * d + c] = from[j * row_step + c * column_step];
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.score_cols_f32(queries, vq_dense_query_stride(s), n_queries, page, rows->n, dense->d, out,
                                             rows->next);
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.mix_f32(weights, VQ_PAGE_ROWS, n_queries, page, rows->n, dense->d, acc, rows->next);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    vq_dense_copy_row(s, dst, i, src, j, sizeof(float));
}

const vq_codec vq_codec_f32 = {
    .name = "f32",
    .summary = "32-bit floats",
    .paper = "",
    .create = vq_dense_create,
    .destroy = vq_dense_destroy,
    .page_bytes = page_bytes,
    .shared_bytes = vq_dense_shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = vq_dense_query_bytes,
    .prepare = vq_dense_prepare,
    .score = score,
    .mix = mix,
    .copy_row = copy_row,
};
