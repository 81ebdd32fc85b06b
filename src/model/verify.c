/* Reading a whole model file once: sums of reservoirs, finite values of GGUF files. */
#include <inttypes.h>
#include <xxhash.h>

#include "formats/reservoir.h"
#include "model/model.h"
#include "veloxquant/reservoir.h"

enum { PIECE_BYTES = 1 << 22 };

typedef struct verifier {
    const vq_gguf *g;
    XXH3_state_t *sum;
    vq_work_fn work;
    void *user;
    uint64_t done, all;
} verifier;

static vq_status step(verifier *v, uint64_t n_bytes, vq_error *err)
{
    v->done += n_bytes;
    if (v->work && !v->work(v->user, v->done, v->all))
        return vq_fail(err, VQ_ERR_CANCELLED, "stopped");
    return vq_gguf_check_whole(v->g, err);
}

static vq_status sum_of(verifier *v, const void *bytes, uint64_t n_bytes, uint64_t *sum, vq_error *err)
{
    XXH3_64bits_reset(v->sum);
    for (uint64_t at = 0; at < n_bytes; at += PIECE_BYTES) {
        const uint64_t n = n_bytes - at < PIECE_BYTES ? n_bytes - at : PIECE_BYTES;
        XXH3_64bits_update(v->sum, (const char *)bytes + at, n);
        VQ_TRY(step(v, n, err));
    }
    *sum = XXH3_64bits_digest(v->sum);
    return VQ_OK;
}

static vq_status altered(const char *what, int n_name, const char *name, uint64_t is, uint64_t was, vq_error *err)
{
    return vq_fail(err, VQ_ERR_CHECKSUM, "%s %.*s was altered: its sum is %016" PRIx64 ", was written as %016" PRIx64,
                   what, n_name, name, is, was);
}

/* The metadata were summed when the file was opened. */
static vq_status check_sums(verifier *v, vq_error *err)
{
    const vq_reservoir *r = v->g->reservoir;
    uint64_t sum;
    for (uint32_t i = 0; i < r->n_rotations; i++) {
        const vq_stored_rotation *s = &r->rotations[i];
        if (!s->matrix)
            continue;
        char width[16];
        const int n = snprintf(width, sizeof width, "%u", s->width);
        VQ_TRY(sum_of(v, s->matrix, vq_stored_rotation_bytes(s), &sum, err));
        if (sum != s->sum)
            return altered("the rotation of width", n, width, sum, s->sum, err);
    }
    for (uint64_t i = 0; i < v->g->n_tensors; i++) {
        const vq_tensor *t = &v->g->tensors[i];
        VQ_TRY(sum_of(v, t->data, t->n_bytes, &sum, err));
        if (sum != r->sums[i])
            return altered("tensor", (int)t->name.n_bytes, t->name.at, sum, r->sums[i], err);
    }
    return VQ_OK;
}

static vq_status check_values(verifier *v, vq_error *err)
{
    for (uint64_t i = 0; i < v->g->n_tensors; i++) {
        VQ_TRY(vq_tensor_check_finite(&v->g->tensors[i], err));
        VQ_TRY(step(v, v->g->tensors[i].n_bytes, err));
    }
    return VQ_OK;
}

vq_status vq_gguf_verify(const vq_gguf *g, vq_work_fn work, void *user, vq_error *err)
{
    verifier v = {.g = g, .work = work, .user = user, .sum = XXH3_createState()};
    if (!v.sum)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a sum");
    for (uint64_t i = 0; i < g->n_tensors; i++)
        v.all += g->tensors[i].n_bytes;
    for (uint32_t i = 0; g->reservoir && i < g->reservoir->n_rotations; i++)
        v.all += vq_stored_rotation_bytes(&g->reservoir->rotations[i]);
    vq_status status = vq_gguf_check_whole(g, err);
    if (status == VQ_OK)
        status = g->reservoir ? check_sums(&v, err) : check_values(&v, err);
    XXH3_freeState(v.sum);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "%s", vq_gguf_path(g));
}
