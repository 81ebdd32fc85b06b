/* f16: half precision, saturating at +-65504. */
#include "kv/dense.h"

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = (size_t)VQ_PAGE_ROWS * vq_dense_of(s)->d * sizeof(uint16_t)};
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const vq_vec_kernels *vec = &dense->kernels->vec;
    const size_t d = dense->d;
    if (!dense->keys) {
        vec->f32_to_f16((uint16_t *)page + first * d, x, (uint32_t)(n * d));
        return;
    }
    uint16_t row[VQ_MAX_HEAD_DIM];
    for (size_t j = 0; j < n; j++) {
        vec->f32_to_f16(row, x + j * d, (uint32_t)d);
        for (size_t c = 0; c < d; c++)
            ((uint16_t *)page)[c * VQ_PAGE_ROWS + first + j] = row[c];
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const vq_dense *dense = vq_dense_of(s);
    const vq_vec_kernels *vec = &dense->kernels->vec;
    const size_t d = dense->d;
    if (!dense->keys) {
        vec->f16_to_f32(x, (const uint16_t *)page + first * d, (uint32_t)(n * d));
        return;
    }
    uint16_t row[VQ_MAX_HEAD_DIM];
    for (size_t j = 0; j < n; j++) {
        for (size_t c = 0; c < d; c++)
            row[c] = ((const uint16_t *)page)[c * VQ_PAGE_ROWS + first + j];
        vec->f16_to_f32(x + j * d, row, (uint32_t)d);
    }
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.score_cols_f16(queries, vq_dense_query_stride(s), n_queries, page, rows->n, dense->d, out,
                                             rows->next);
}

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const vq_dense *dense = vq_dense_of(s);
    dense->kernels->attention.mix_f16(weights, VQ_PAGE_ROWS, n_queries, page, rows->n, dense->d, acc, rows->next);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    vq_dense_copy_row(s, dst, i, src, j, sizeof(uint16_t));
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
    .copy_row = copy_row,
};
