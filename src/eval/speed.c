/* Speed of one session: filling, prompts, decoding. */
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "base/status.h"
#include "engine/session.h"
#include "model/forward.h"
#include "veloxquant/eval.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Any ids do: speed doesn't depend on which, but repeating one token would keep its embedding in the caches. */
static vq_status draw_ids(const vq_session *s, uint32_t n, uint64_t seed, int32_t **out, vq_error *err)
{
    int32_t *ids = malloc((n ? n : 1) * sizeof *ids);
    if (!ids)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u tokens", n);
    const uint32_t n_vocab = vq_model_get_info(vq_session_model(s))->n_vocab;
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(vq_rng_next(&rng) % n_vocab);
    *out = ids;
    return VQ_OK;
}

vq_status vq_eval_fill(vq_session *s, uint32_t n, uint64_t seed, vq_error *err)
{
    const uint32_t held = vq_session_n_tokens(s);
    if (n < held)
        return vq_fail(err, VQ_ERR_ARG, "filling to %u tokens, the session holds %u", n, held);
    int32_t *ids = NULL;
    VQ_TRY(draw_ids(s, n - held, seed, &ids, err));
    const vq_status status = vq_session_eval(s, ids, n - held, NULL, 0, NULL, err);
    free(ids);
    return status;
}

/* Rows lie at places drawn from a pool of normal values: drawing each would take longer than packing it. */
enum { POOL_FLOATS = 1 << 18, ROWS_AT_ONCE = 32 };

static vq_status append_rows(vq_session *s, uint32_t n, const float *pool, vq_rng *rng, vq_error *err)
{
    vq_kv_params shape = {0};
    vq_forward_kv_params(vq_session_model(s), &shape);
    const size_t n_k = (size_t)ROWS_AT_ONCE * shape.n_kv_heads * shape.d_k;
    const size_t n_v = (size_t)ROWS_AT_ONCE * shape.n_kv_heads * shape.d_v;
    if (n_k >= POOL_FLOATS || n_v >= POOL_FLOATS)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%u heads of %u and %u values make rows that are too long",
                       shape.n_kv_heads, shape.d_k, shape.d_v);
    for (uint32_t at = vq_session_n_tokens(s); at < n;) {
        const uint32_t chunk = n - at < ROWS_AT_ONCE ? n - at : ROWS_AT_ONCE;
        for (uint32_t l = 0; l < shape.n_layers; l++) {
            const float *k = pool + vq_rng_next(rng) % (POOL_FLOATS - n_k);
            const float *v = pool + vq_rng_next(rng) % (POOL_FLOATS - n_v);
            VQ_TRY(vq_kv_append(vq_session_kv(s), l, at, k, v, chunk, err));
        }
        at += chunk;
    }
    return VQ_OK;
}

vq_status vq_eval_fill_rows(vq_session *s, uint32_t n, uint64_t seed, vq_error *err)
{
    const uint32_t held = vq_session_n_tokens(s);
    if (n < held || n > vq_session_n_ctx(s))
        return vq_fail(err, VQ_ERR_ARG, "filling to %u tokens, the session holds %u of %u", n, held,
                       vq_session_n_ctx(s));
    int32_t *ids = NULL;
    float *pool = malloc(POOL_FLOATS * sizeof *pool);
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    vq_status status =
        pool ? draw_ids(s, n, seed, &ids, err) : vq_fail(err, VQ_ERR_NOMEM, "no memory for %d values", POOL_FLOATS);
    if (status == VQ_OK) {
        for (size_t i = 0; i < POOL_FLOATS; i++)
            pool[i] = (float)vq_rng_normal(&rng);
        for (uint32_t i = 0; i < held; i++)
            ids[i] = vq_session_ids(s)[i];
        status = append_rows(s, n, pool, &rng, err);
        if (status == VQ_OK)
            vq_session_set_ids(s, ids, n);
        else
            vq_session_truncate(s, 0, NULL); /* some layers hold more than others */
    }
    free(pool);
    free(ids);
    return status;
}

vq_status vq_eval_prompt_speed(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err)
{
    *seconds = 0;
    int32_t *ids = NULL;
    VQ_TRY(draw_ids(s, n, seed, &ids, err));
    const double start = now();
    const vq_status status = vq_session_eval(s, ids, n, NULL, 0, NULL, err);
    *seconds = now() - start;
    free(ids);
    return status;
}

vq_status vq_eval_decode_times(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err)
{
    int32_t *ids = NULL;
    VQ_TRY(draw_ids(s, n, seed, &ids, err));
    vq_status status = VQ_OK;
    double at = now();
    for (uint32_t i = 0; i < n && status == VQ_OK; i++) {
        status = vq_session_decode(s, ids + i, 1, NULL, 0, NULL, err);
        const double then = now();
        seconds[i] = then - at;
        at = then;
    }
    free(ids);
    return status;
}

vq_status vq_eval_decode_speed(vq_session *s, uint32_t n, uint64_t seed, double *seconds, vq_error *err)
{
    *seconds = 0;
    int32_t *ids = NULL;
    VQ_TRY(draw_ids(s, n, seed, &ids, err));
    vq_status status = VQ_OK;
    const double start = now();
    for (uint32_t i = 0; i < n && status == VQ_OK; i++)
        status = vq_session_decode(s, ids + i, 1, NULL, 0, NULL, err);
    *seconds = now() - start;
    free(ids);
    return status;
}
