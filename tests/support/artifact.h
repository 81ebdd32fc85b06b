/* A small artifact file's bytes, made by the writer. */
#ifndef TESTS_SUPPORT_ARTIFACT_H
#define TESTS_SUPPORT_ARTIFACT_H

#include <stdint.h>

#include "support/temporary.h"
#include "veloxquant/artifact.h"

/* Written to a folder that is gone afterwards; n_bytes are read into bytes [room].  Aborts when that fails. */
static inline size_t artifact_bytes(const vq_artifact_info *shape, uint8_t *bytes, size_t room)
{
    char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 64];
    vq_artifact_info info = *shape;
    temporary_folder(folder, "artifact");
    if (vq_precompute(&info, folder, NULL, NULL, NULL) != VQ_OK ||
        vq_artifact_path(path, sizeof path, folder, &info, NULL) != VQ_OK)
        abort();
    FILE *f = fopen(path, "rb");
    if (!f)
        abort();
    const size_t n = fread(bytes, 1, room, f);
    fclose(f);
    if (n != info.n_bytes || remove_temporary_folder(folder) != 0)
        abort();
    return n;
}

#endif
