/* Calibration files from inside: shapes, and writing. */
#ifndef VQ_FORMATS_CALIBRATION_H
#define VQ_FORMATS_CALIBRATION_H

#include "veloxquant/calibration.h"

/* Floats of one statistic for one layer and head, and heads of a layer that have it: 0 where the file lacks it. */
typedef struct vq_statistic_shape {
    size_t n_floats;
    uint32_t n_heads;
    uint32_t codebooks;  /* the one of vq_codebooks that it belongs to; 0: always there */
    bool values, square; /* of values; a matrix [d][d] */
} vq_statistic_shape;
vq_statistic_shape vq_statistic_shape_of(const vq_calibration_info *info, vq_statistic what);

/* A new one with everything zero, to be filled through vq_calibration_edit and written.  info->hash is not read.
 * VQ_ERR_LIMIT for shapes that the format can't hold, VQ_ERR_NOMEM. */
vq_status vq_calibration_make(vq_calibration **out, const vq_calibration_info *info, vq_error *err);
float *vq_calibration_edit(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head);
/* The bytes of the file, checksum and hash set; owned by c.  Refused (VQ_ERR_NONFINITE) with what is not finite. */
vq_status vq_calibration_seal(vq_calibration *c, const void **bytes, size_t *n_bytes, vq_error *err);
vq_status vq_calibration_write(vq_calibration *c, const char *path, vq_error *err);

#endif
