#include "kv/codec_rows.h"

#include <string.h>

#include "kv/artifacts.h"

vq_status vq_codec_check_d(const vq_codec_env *env, const char *codec, vq_error *err)
{
    if (env->d < 8 || env->d > VQ_MAX_HEAD_DIM)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s: head size %u is outside 8..%d", codec, env->d, VQ_MAX_HEAD_DIM);
    return VQ_OK;
}

static vq_rows_state *layout(vq_arena *arena, const vq_codec_env *env, bool haar, vq_rotation *rotation)
{
    vq_rows_state *s = vq_arena_take(arena, 1, sizeof *s);
    vq_rotation_layout(rotation, arena, env->d, haar);
    return s;
}

vq_status vq_codec_rows_create(vq_codec_state **out, const vq_codec_env *env, const vq_rows_plan *plan, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, plan->codec, err));
    vq_arena arena = {0};
    vq_rotation rotation;
    layout(&arena, env, plan->haar, &rotation);
    VQ_TRY(vq_arena_alloc(&arena, err));
    vq_rows_state *s = layout(&arena, env, plan->haar, &rotation);

    const vq_codes_kernels *k = &env->kernels->codes;
    const vq_status status = vq_codec_rotation(&rotation, env, plan->haar, err);
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    s->arena = arena;
    s->rotation = rotation;
    s->code = vq_rowcode_make(plan->levels, &s->rotation, k, env->d, env->keys,
                              env->keys ? plan->keys : VQ_FIT_LEAST_SQUARES);
    s->code.search = plan->search;
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

static const vq_rows_state *state(const vq_codec_state *s) { return (const vq_rows_state *)(const void *)s; }

void vq_codec_rows_destroy(vq_codec_state *s)
{
    if (!s)
        return;
    vq_arena arena = state(s)->arena;
    vq_arena_free(&arena);
}

void vq_codec_rows_page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){
        .codes = 2 * vq_rowcode_granule_bytes(&state(s)->code),
        .scales = VQ_PAGE_ROWS * sizeof(uint16_t),
    };
}

size_t vq_codec_rows_shared_bytes(const vq_codec_state *s) { return vq_rotation_bytes(&state(s)->rotation); }

static uint32_t granules(uint32_t n_rows) { return (n_rows + VQ_GRANULE - 1) / VQ_GRANULE; }

static const uint16_t *norms_of(const vq_rowcode *code, const void *page)
{
    return (const uint16_t *)(const void *)((const uint8_t *)page + 2 * vq_rowcode_granule_bytes(code));
}

void vq_codec_rows_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const vq_rowcode *code = &state(s)->code;
    const size_t each = vq_rowcode_granule_bytes(code);
    uint16_t *norms = (uint16_t *)(void *)((uint8_t *)page + 2 * each);
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * code->d)
        vq_rowcode_encode(code, (uint8_t *)page + row / VQ_GRANULE * each, norms + row, x);
}

void vq_codec_rows_decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const vq_rowcode *code = &state(s)->code;
    vq_rowcode_decode(code, page, norms_of(code, page), granules(first + n), first, n, x);
}

size_t vq_codec_rows_query_bytes(const vq_codec_state *s) { return vq_rowcode_query_bytes(&state(s)->code); }

void vq_codec_rows_prepare(const vq_codec_state *s, void *query, const float *q)
{
    vq_rowcode_prepare(&state(s)->code, query, q);
}

/* A page as the row code reads it, its norms in norms [64]. */
static vq_rowcode_page open_page(const vq_rowcode *code, const void *page, const vq_rows *rows, float *norms)
{
    const uint32_t n_granules = granules(rows->n);
    vq_rowcode_norms(code, norms, norms_of(code, page), n_granules);
    if (rows->next)
        for (uint32_t i = 0; i < 2; i++)
            __builtin_prefetch(norms_of(code, rows->next) + 32 * i);
    return (vq_rowcode_page){.packed = page, .next = rows->next, .norms = norms, .n_granules = n_granules};
}

void vq_codec_rows_score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                         uint32_t n_queries, float *out)
{
    const vq_rowcode *code = &state(s)->code;
    float norms[VQ_PAGE_ROWS];
    const vq_rowcode_page p = open_page(code, page, rows, norms);
    vq_rowcode_score(code, &p, queries, vq_rowcode_query_bytes(code), n_queries, out);
}

void vq_codec_rows_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                       uint32_t n_queries, float *acc)
{
    const vq_rowcode *code = &state(s)->code;
    float norms[VQ_PAGE_ROWS];
    const vq_rowcode_page p = open_page(code, page, rows, norms);
    vq_rowcode_mix(code, &p, weights, n_queries, acc, code->d);
}

void vq_codec_rows_finish(const vq_codec_state *s, const float *acc, float *out)
{
    const vq_rowcode *code = &state(s)->code;
    float scratch[VQ_MAX_HEAD_DIM];
    memcpy(out, acc, code->d * sizeof *out);
    vq_rotation_invert(code->rotation, out, scratch);
}

void vq_codec_rows_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    const vq_rowcode *code = &state(s)->code;
    vq_rowcode_copy_row(code, dst, i, src, j);
    ((uint16_t *)(void *)((uint8_t *)dst + 2 * vq_rowcode_granule_bytes(code)))[i] = norms_of(code, src)[j];
}
