#include "kv/artifacts.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PATH = 4096, N_PLACES = 2 };

/* *out: of head size d, NULL when there is none. */
static vq_status find(vq_artifacts *a, uint32_t d, const vq_artifact **out, vq_error *err)
{
    const vq_artifact_info wanted = {.d = d, .qr = true, .seed = a->seed};
    char path[MOST_PATH];
    int i = 0;
    *out = NULL;
    VQ_TRY(vq_artifact_path(path, sizeof path, a->dir, &wanted, err));
    while (i < N_PLACES && a->at[i].d && a->at[i].d != d)
        i++;
    if (i == N_PLACES)
        return VQ_OK;
    if (!a->at[i].d) {
        if (access(path, F_OK) == 0 || errno != ENOENT)
            VQ_TRY(vq_artifact_open(&a->at[i].file, path, err));
        a->at[i].d = d;
    }
    const vq_artifact *file = a->at[i].file;
    if (!file)
        return VQ_OK;
    const vq_artifact_info *info = vq_artifact_get_info(file);
    if (info->d != d || !info->qr || info->seed != a->seed)
        return vq_fail(err, VQ_ERR_MISMATCH,
                       "%s: holds %s rotations of head size %u for seed %" PRIu64 ", not qr of %u for seed %" PRIu64,
                       path, info->qr ? "qr" : "hadamard", info->d, info->seed, d, a->seed);
    *out = file;
    return VQ_OK;
}

vq_status vq_codec_rotation(vq_rotation *r, const vq_codec_env *env, bool haar, vq_error *err)
{
    const vq_codes_kernels *k = &env->kernels->codes;
    const vq_artifact *file = NULL;
    if (haar && env->artifacts && env->artifacts->seed == env->seed)
        VQ_TRY(find(env->artifacts, env->d, &file, err));
    if (file) {
        const vq_artifact_info *info = vq_artifact_get_info(file);
        if (env->layer < info->n_layers && env->head < info->n_kv_heads) {
            vq_artifact_load(file, env->layer, env->head, env->keys, k, r);
            return VQ_OK;
        }
    }
    return vq_rotation_draw(r, k, vq_rotation_seed(env->seed, env->layer, env->head, env->keys), err);
}

void vq_artifacts_close(vq_artifacts *a)
{
    for (int i = 0; i < N_PLACES; i++)
        vq_artifact_close(a->at[i].file);
    memset(a->at, 0, sizeof a->at);
}
