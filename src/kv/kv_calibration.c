/* Which calibration a method uses: the one that it names, opened once, or the one that the cache was given. */
#include <inttypes.h>
#include <string.h>

#include "base/rng.h"
#include "kv/kv_inner.h"

static vq_status check(const vq_kv *kv, const vq_calibration *c, vq_error *err)
{
    const vq_calibration_info *i = vq_calibration_get_info(c);
    const char *path = vq_calibration_path(c);
    if (kv->model_hash != 0 && i->model_hash != kv->model_hash)
        return vq_fail(err, VQ_ERR_MISMATCH,
                       "%s: belongs to the model with hash %016" PRIx64 ", this one has %016" PRIx64, path,
                       i->model_hash, kv->model_hash);
    const struct {
        const char *name;
        uint32_t file, cache;
    } fields[] = {{"layers", i->n_layers, kv->n_layers},
                  {"heads", i->n_heads, kv->n_heads},
                  {"kv heads", i->n_kv_heads, kv->n_kv_heads},
                  {"values a key", i->d_k, kv->d_k},
                  {"values a value", i->d_v, kv->d_v}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        if (fields[f].file != fields[f].cache)
            return vq_fail(err, VQ_ERR_MISMATCH, "%s: has %u %s, the cache has %u", path, fields[f].file,
                           fields[f].name, fields[f].cache);
    return VQ_OK;
}

static vq_status open_named(vq_kv *kv, const char *path, const vq_calibration **out, vq_error *err)
{
    for (uint32_t i = 0; i < VQ_MAX_OWN; i++) {
        if (!kv->own[i])
            VQ_TRY(vq_calibration_open(&kv->own[i], path, err));
        if (strcmp(vq_calibration_path(kv->own[i]), path) == 0) {
            *out = kv->own[i];
            return VQ_OK;
        }
    }
    return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s: methods of one cache may name %d calibrations", path, VQ_MAX_OWN);
}

vq_status vq_kv_calibration_of(vq_kv *kv, const char *method, bool needed, uint32_t codebooks, const char *named,
                               const vq_calibration **out, vq_error *err)
{
    *out = NULL;
    if (!needed) {
        if (named[0])
            return vq_fail(err, VQ_ERR_ARG, "%s: takes no calibration", method);
        return VQ_OK;
    }
    const vq_calibration *c = kv->calibration;
    if (named[0])
        VQ_TRY(open_named(kv, named, &c, err));
    if (!c)
        return vq_fail(
            err, VQ_ERR_ARG,
            "%s needs a calibration of the model: 'veloxquant calibrate MODEL --text FILE%s%s -o FILE.vqc' makes "
            "it, then --calibration FILE.vqc",
            method, codebooks ? " --codebooks " : "", codebooks ? method : "");
    VQ_TRY(check(kv, c, err));
    if (codebooks & ~vq_calibration_get_info(c)->codebooks)
        return vq_fail(
            err, VQ_ERR_ARG,
            "%s: has no codebooks for %s: 'veloxquant calibrate MODEL --text FILE --codebooks %s -o FILE.vqc' "
            "makes a calibration that has",
            vq_calibration_path(c), method, method);
    kv->calibration_hash = vq_hash64(kv->calibration_hash, vq_calibration_get_info(c)->hash, 0, 0, 0);
    *out = c;
    return VQ_OK;
}

void vq_kv_close_calibrations(vq_kv *kv)
{
    for (uint32_t i = 0; i < VQ_MAX_OWN; i++)
        vq_calibration_close(kv->own[i]);
}
