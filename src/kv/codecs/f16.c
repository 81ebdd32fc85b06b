/* f16: half precision, saturating at +-65504. */
#include "base/half.h"
#include "kv/dense.h"

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = (size_t)VQ_PAGE_ROWS * vq_dense_of(s)->d * sizeof(uint16_t)};
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const size_t d = dense->d, row_step = dense->keys ? 1 : d, column_step = dense->keys ? VQ_PAGE_ROWS : 1;
    uint16_t *to = (uint16_t *)page + first * row_step;
    for (size_t c = 0; c < d; c++)
        for (size_t j = 0; j < n; j++)
            to[j * row_step + c * column_step] = vq_f16_from_f32_clamped(x[j * d + c]);
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const size_t d = dense->d, row_step = dense->keys ? 1 : d, column_step = dense->keys ? VQ_PAGE_ROWS : 1;
    const uint16_t *from = (const uint16_t *)page + first * row_step;
    for (size_t j = 0; j < n; j++)
        for (size_t c = 0; c < d; c++)
            x[j * d + c] = vq_f32_from_f16(from[j * row_step + c * column_step]);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.score_cols_f16(queries, vq_dense_query_stride(s), n_queries, page, rows->n, dense->d,
                                             out);
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.mix_f16(weights, VQ_PAGE_ROWS, n_queries, page, rows->n, dense->d, acc);
}

const vq_codec vq_codec_f16 = {
    .name = "f16",
    .summary = "16-bit floats (IEEE), the usual cache",
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
};
