/* NumPy array files (.npy, versions 1 to 3): little-endian floats of 2, 4 or 8 bytes in C order.
 * Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef VELOXQUANT_NPY_H
#define VELOXQUANT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

enum { VQ_NPY_MAX_DIMS = 4 };

typedef struct vq_npy {
    uint32_t n_dims; /* 0 to VQ_NPY_MAX_DIMS */
    uint64_t dims[VQ_NPY_MAX_DIMS];
    float *data; /* the values as f32; owned, freed by vq_npy_free */
} vq_npy;

/* On failure *out is zeroed.  Refused: other types, Fortran order, more dimensions, a file whose size is not what its
 * header says, and values that are not finite (or not as f32). */
VQ_API vq_status vq_npy_read(vq_npy *out, const char *path, vq_error *err);
/* The same over bytes; `name` is used in messages. */
VQ_API vq_status vq_npy_read_memory(vq_npy *out, const char *name, const void *bytes, size_t n_bytes, vq_error *err);
VQ_API void vq_npy_free(vq_npy *npy);

/* f32, version 1; whole or not at all. */
VQ_API vq_status vq_npy_write(const char *path, const float *data, const uint64_t *dims, uint32_t n_dims,
                              vq_error *err);

#endif
