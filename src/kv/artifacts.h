/* Where codecs get their dense rotations: from a file of the cache's artifact_dir, or drawn. */
#ifndef VQ_KV_ARTIFACTS_H
#define VQ_KV_ARTIFACTS_H

#include "formats/artifact.h"
#include "kv/codec.h"

/* Files that have been looked for, while the codecs of one cache are made. */
typedef struct vq_artifacts {
    const char *dir;
    uint64_t seed; /* codecs with another one (parts of a row) draw */
    struct {
        uint32_t d;        /* 0: this place is free */
        vq_artifact *file; /* NULL: there is none */
    } at[2];               /* rows of keys, rows of values */
} vq_artifacts;

/* The first rotation of env's layer, head and side into r, which was laid out.  A Haar matrix is copied from
 * env->artifacts where that has a file for it: the same bits that drawing gives.  A missing file, or layers and heads
 * that it lacks, are drawn; a file that is not right is an error that names it. */
vq_status vq_codec_rotation(vq_rotation *r, const vq_codec_env *env, bool haar, vq_error *err);
void vq_artifacts_close(vq_artifacts *a);

#endif
