/* Artifacts: what codecs compute from a seed alone, written once and read again.  `veloxquant precompute` writes them;
 * the format is in docs/formats.md.
 *
 * A file holds, for one head size, kind of rotation and seed, the rotation of every layer, kv head and side as caches
 * with that seed draw it, and Lloyd-Max codebooks.  A cache that is opened with vq_kv_params.artifact_dir reads dense
 * (Haar) matrices there instead of drawing them: the same bits, sooner.  Everything else is drawn in less time than a
 * file takes to open; it is there for other programs. */
#ifndef VELOXQUANT_ARTIFACT_H
#define VELOXQUANT_ARTIFACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

typedef struct vq_artifact vq_artifact;

typedef struct vq_artifact_info {
    uint32_t d;                     /* head size, 1 to 512 */
    bool qr;                        /* matrices drawn from the Haar measure; else signs, and Hadamard blocks */
    uint64_t seed;                  /* of caches: vq_kv_params.seed */
    uint32_t n_layers, n_kv_heads;  /* up to 1024 and 4096 */
    uint32_t least_bits, most_bits; /* codebooks: from 1 to 8 bits */
    uint64_t n_bytes;               /* of the file; set by what fills this in */
} vq_artifact_info;

/* Maps the file and checks all of it: its sum, finite numbers, codebooks equal to this program's, and each rotation's
 * signs and first row against its seed (the row to 1e-6: another machine's cosine may round otherwise). */
VQ_API vq_status vq_artifact_open(vq_artifact **out, const char *path, vq_error *err);
/* The same over bytes, which are copied; `name` is used in messages. */
VQ_API vq_status vq_artifact_read(vq_artifact **out, const char *name, const void *bytes, size_t n_bytes,
                                  vq_error *err);
VQ_API void vq_artifact_close(vq_artifact *a);

VQ_API const vq_artifact_info *vq_artifact_get_info(const vq_artifact *a);
/* Levels [2^bits] of N(0, 1), ascending; NULL when the file lacks that many bits. */
VQ_API const double *vq_artifact_codebook(const vq_artifact *a, uint32_t bits);
/* A row x [d] is rotated so: where bit i of signs [d / 8, rounded up] is 1, x[i] changes its sign; then with n = d / m
 * each of the m blocks of n values is multiplied by the normalised Hadamard matrix of that size; then block i becomes
 * the sum over j of matrix[i][j] times block j.  m is d with qr, else d's largest odd divisor.  The caller keeps layer
 * and head inside the shape. */
VQ_API const uint8_t *vq_artifact_signs(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys);
/* [m][m]; NULL for m = 1. */
VQ_API const float *vq_artifact_matrix(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys);

/* DIR/qr-d128-seed0.vqa: where caches look.  VQ_ERR_ARG when that takes more than n bytes. */
VQ_API vq_status vq_artifact_path(char *out, size_t n, const char *dir, const vq_artifact_info *info, vq_error *err);

/* Draws everything and writes DIR/NAME, whole or not at all; sets info->n_bytes.  The folder must be there.  progress
 * (may be NULL) is told rotations; false cancels. */
VQ_API vq_status vq_precompute(vq_artifact_info *info, const char *dir,
                               bool (*progress)(void *arg, size_t done, size_t all), void *arg, vq_error *err);

#endif
