/* Writing artifact files (formats/artifact.c has the format): one rotation in memory at a time. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "formats/artifact.h"

enum { MOST_PATH = 4096, HEAD_MOST = VQ_ARTIFACT_HEADER_BYTES + 4096 };

/* Head and codebooks, at.rotations bytes, without the sum. */
static void fill_head(uint8_t *bytes, const vq_artifact_info *info)
{
    const uint32_t words[8] = {VQ_ARTIFACT_VERSION, info->d,          info->qr,        info->n_layers,
                               info->n_kv_heads,    info->least_bits, info->most_bits, 0};
    memcpy(bytes, vq_artifact_magic, sizeof vq_artifact_magic);
    memcpy(bytes + VQ_ARTIFACT_SUMMED_FROM, words, sizeof words);
    memcpy(bytes + VQ_ARTIFACT_SUMMED_FROM + sizeof words, &info->seed, sizeof info->seed);
    double levels[VQ_ARTIFACT_MOST_LEVELS];
    const size_t n = vq_artifact_levels(levels, info);
    memcpy(bytes + VQ_ARTIFACT_HEADER_BYTES, levels, n * sizeof *levels);
}

typedef struct job {
    const vq_artifact_info *info;
    vq_artifact_layout at;
    vq_file_writer *w;
    XXH64_state_t *sum;
    vq_rotation rotation;
    uint8_t *record;
    bool (*progress)(void *arg, size_t done, size_t all);
    void *arg;
} job;

static vq_status write_rotation(job *j, size_t i, vq_error *err)
{
    const uint32_t layer = (uint32_t)(i / 2 / j->info->n_kv_heads), head = (uint32_t)(i / 2 % j->info->n_kv_heads);
    VQ_TRY(vq_rotation_draw(&j->rotation, NULL, vq_rotation_seed(j->info->seed, layer, head, i % 2 == 0), err));
    memcpy(j->record, j->rotation.signs, (j->info->d + 7) / 8);
    if (j->rotation.across)
        memcpy(j->record + VQ_ARTIFACT_SIGN_BYTES, j->rotation.across, (size_t)j->at.m * j->at.m * sizeof(float));
    XXH64_update(j->sum, j->record, j->at.each);
    return vq_file_writer_write(j->w, j->record, j->at.each, err);
}

static vq_status write_all(job *j, vq_error *err)
{
    _Alignas(8) uint8_t head[HEAD_MOST] = {0};
    fill_head(head, j->info);
    XXH64_reset(j->sum, 0);
    XXH64_update(j->sum, head + VQ_ARTIFACT_SUMMED_FROM, j->at.rotations - VQ_ARTIFACT_SUMMED_FROM);
    VQ_TRY(vq_file_writer_write(j->w, head, j->at.rotations, err));
    for (size_t i = 0; i < j->at.n_rotations; i++) {
        if (j->progress && !j->progress(j->arg, i, j->at.n_rotations))
            return vq_fail(err, VQ_ERR_CANCELLED, "stopped");
        VQ_TRY(write_rotation(j, i, err));
    }
    const uint64_t sum = XXH64_digest(j->sum);
    return vq_file_writer_patch(j->w, sizeof vq_artifact_magic, &sum, sizeof sum, err);
}

/* The rotation and one record of the file. */
static void lay_out_scratch(job *j, vq_arena *arena)
{
    vq_rotation_layout(&j->rotation, arena, j->info->d, j->info->qr);
    j->record = vq_arena_take(arena, j->at.each, 1);
}

vq_status vq_precompute(vq_artifact_info *info, const char *dir, bool (*progress)(void *arg, size_t done, size_t all),
                        void *arg, vq_error *err)
{
    char path[MOST_PATH];
    job j = {.info = info, .progress = progress, .arg = arg};
    VQ_TRY(vq_artifact_path(path, sizeof path, dir, info, err));
    VQ_TRY(vq_artifact_lay_out(&j.at, info, path, err));
    vq_arena arena = {0};
    lay_out_scratch(&j, &arena);
    VQ_TRY(vq_arena_alloc(&arena, err));
    lay_out_scratch(&j, &arena);
    j.sum = XXH64_createState();
    vq_status status =
        j.sum ? vq_file_writer_open(&j.w, path, err) : vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to write it", path);
    if (status == VQ_OK) {
        status = write_all(&j, err);
        if (status == VQ_OK)
            status = vq_file_writer_commit(j.w, err);
        else
            vq_file_writer_abort(j.w);
    }
    if (status == VQ_OK)
        info->n_bytes = j.at.n_bytes;
    XXH64_freeState(j.sum);
    vq_arena_free(&arena);
    return status;
}
