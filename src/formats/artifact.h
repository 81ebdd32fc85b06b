/* Artifact files from inside: where a rotation lies, for reader and writer. */
#ifndef VQ_FORMATS_ARTIFACT_H
#define VQ_FORMATS_ARTIFACT_H

#include "quant/rotation.h"
#include "veloxquant/artifact.h"

enum {
    VQ_ARTIFACT_VERSION = 1,
    VQ_ARTIFACT_HEADER_BYTES = 64,
    VQ_ARTIFACT_SUMMED_FROM = 16,
    VQ_ARTIFACT_SIGN_BYTES = 64, /* of the largest head size; the matrix behind is aligned */
};
extern const char vq_artifact_magic[8];

/* Where parts of the file lie; every size follows from the head. */
typedef struct vq_artifact_layout {
    uint32_t m;                          /* the matrices are m x m; 1: there are none */
    size_t rotations, each, n_rotations; /* where they begin; bytes of one */
    size_t n_bytes;
} vq_artifact_layout;

/* VQ_ERR_LIMIT, naming field, value and limit, for a shape that the format can't hold; `name` begins the message. */
vq_status vq_artifact_lay_out(vq_artifact_layout *out, const vq_artifact_info *info, const char *name, vq_error *err);
/* The codebooks of info, as the file has them: n numbers into out, which has room for VQ_ARTIFACT_MOST_LEVELS. */
enum { VQ_ARTIFACT_MOST_LEVELS = 510 };
size_t vq_artifact_levels(double *out, const vq_artifact_info *info);

/* Copies a rotation of the file's head size and kind into one that was laid out (vq_rotation_layout). */
void vq_artifact_load(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys, const vq_codes_kernels *k,
                      vq_rotation *out);

#endif
