/* Calibrations: statistics of one model's queries, keys and values on a text, which some ways of storing and evicting
 * need.  `veloxquant calibrate` writes them; the format is in docs/formats.md. */
#ifndef VELOXQUANT_CALIBRATION_H
#define VELOXQUANT_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/model.h"
#include "veloxquant/status.h"

typedef struct vq_calibration vq_calibration;

/* What there is, each once for every layer and head: of queries for every query head, of the rest for every kv head.
 * Keys and queries count after RoPE, as they are scored, unless the name says before.  The first 32 tokens of each
 * context are left out everywhere (attention sinks are unlike the rest).
 *
 * Moments are E[x x'], not centred; a covariance is MOMENT - MEAN MEAN'.  A basis [d][d] has eigenvectors as rows, with
 * the largest eigenvalue first; the spectrum [d] holds the eigenvalues, none negative. */
typedef enum vq_statistic {
    VQ_KEY_MEAN,            /* [d_k] */
    VQ_KEY_MOMENT,          /* [d_k][d_k] */
    VQ_KEY_LEAST,           /* [d_k] smallest value of a channel */
    VQ_KEY_MOST,            /* [d_k] */
    VQ_KEY_SPECTRUM,        /* [d_k] of KEY_MOMENT */
    VQ_KEY_BASIS,           /* [d_k][d_k] */
    VQ_KEY_REST_MOMENT,     /* [d_k][d_k] of the rest: a key less the mean of the 32 neighbours that it stands among */
    VQ_KEY_REST_SPECTRUM,   /* [d_k] of KEY_REST_MOMENT */
    VQ_KEY_REST_BASIS,      /* [d_k][d_k] */
    VQ_KEY_NEAR_VARIANCE,   /* [d_k] along REST_BASIS: of those means of 32 about KEY_MEAN */
    VQ_KEY_BEFORE_MEAN,     /* [d_k] */
    VQ_KEY_BEFORE_MOMENT,   /* [d_k][d_k] */
    VQ_VALUE_MEAN,          /* [d_v] */
    VQ_VALUE_MOMENT,        /* [d_v][d_v] */
    VQ_VALUE_SPECTRUM,      /* [d_v] of the values' covariance */
    VQ_VALUE_BASIS,         /* [d_v][d_v] */
    VQ_VALUE_LEAST,         /* [d_v] */
    VQ_VALUE_MOST,          /* [d_v] */
    VQ_QUERY_MEAN,          /* [d_k] */
    VQ_QUERY_MOMENT,        /* [d_k][d_k]; H of a group is the mean over its query heads */
    VQ_QUERY_BEFORE_MEAN,   /* [d_k] */
    VQ_QUERY_BEFORE_MOMENT, /* [d_k][d_k] */
    /* The direction in which a group's queries lie, unit length: of each query head the first right singular vector of
     * its queries, uncentred, with the sign that makes the left one's sum positive; the mean over the group. */
    VQ_QUERY_FILTER,        /* [d_k], one for a kv head */
    VQ_QUERY_BEFORE_FILTER, /* [d_k], one for a kv head */
    /* Keys turned back by RoPE as if the first of 32 neighbours stood at position 0, where their mean is formed. */
    VQ_KEY_TURN_NEAR, /* [d_k] mean squares of those means */
    VQ_KEY_TURN_REST, /* [d_k] mean squares of keys less those means, in that frame */
    /* Of sinks inside of the text, keys that are nearer to 0 than to the mean of the 32 that they stand among; the two
     * above leave them out. */
    VQ_KEY_SINK, /* [d_k] their mean before RoPE; 0 where there are none */

    /* Codebooks, which are there on request (vq_codebooks).  A product codebook has 256 centroids for each sub-vector
     * of 4 or 8 values: [ceil(d / sub)][256][sub], centroid 0 being zero. */
    VQ_VALUE_CODEBOOK_4, /* of values */
    VQ_VALUE_CODEBOOK_8,
    VQ_KEY_SMOOTH_CODEBOOK_4, /* of keys divided by the root of their channel's largest size, then rotated */
    VQ_KEY_SMOOTH_CODEBOOK_8,
    VQ_KEY_FACTOR,            /* [d_k][d_k] lower L, L L' = E[q q'] of the group before RoPE, turned by A2ATS' offset */
    VQ_KEY_FACTOR_CODEBOOK_4, /* of L' k, k before RoPE */
    VQ_KEY_FACTOR_CODEBOOK_8,
    VQ_KEY_ATOMS_1, /* of keys before RoPE less their mean, 1 bit a value: [d_k / 8][4][8] (kv/codecs/commvq.c) */
    VQ_KEY_ATOMS_2, /* 2 bits: [d_k / 8][8][8] */
    VQ_VALUE_ATOMS_1,
    VQ_VALUE_ATOMS_2,
    VQ_N_STATISTICS
} vq_statistic;

/* Which codebooks a calibration has: those of values are used by several methods. */
typedef enum vq_codebooks {
    VQ_CODEBOOKS_VALUES = 1,
    VQ_CODEBOOKS_SMOOTH = 2,
    VQ_CODEBOOKS_FACTOR = 4,
    VQ_CODEBOOKS_ATOMS = 8,
    VQ_CODEBOOKS_ALL = 15,
} vq_codebooks;

typedef struct vq_calibration_info {
    uint64_t model_hash; /* vq_model_hash of the model that it belongs to */
    uint64_t hash;       /* of the calibration itself; saved caches carry it */
    uint32_t n_layers, n_heads, n_kv_heads, d_k, d_v;
    uint32_t codebooks; /* set of vq_codebooks */
    uint64_t n_tokens;  /* that were counted */
} vq_calibration_info;

/* Maps the file and checks all of it.  Thread-safe once open; it must outlive what uses it. */
VQ_API vq_status vq_calibration_open(vq_calibration **out, const char *path, vq_error *err);
/* The same over bytes, which are copied; `name` is used in messages. */
VQ_API vq_status vq_calibration_read(vq_calibration **out, const char *name, const void *bytes, size_t n_bytes,
                                     vq_error *err);
VQ_API void vq_calibration_close(vq_calibration *c);

VQ_API const vq_calibration_info *vq_calibration_get_info(const vq_calibration *c);
VQ_API const char *vq_calibration_path(const vq_calibration *c); /* or name */
/* VQ_ERR_MISMATCH, naming what differs, when it belongs to another model. */
VQ_API vq_status vq_calibration_check(const vq_calibration *c, const vq_model *model, vq_error *err);
/* One statistic of a layer and head (a query head or kv head, as above); 64-byte aligned.  The caller keeps inside the
 * shape, and asks for codebooks that are there. */
VQ_API const float *vq_calibration_at(const vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head);

typedef struct vq_calibrate_params {
    uint32_t n_ctx; /* tokens of a context: the text is cut into contexts; 0: 2048, or the trained context if less */
    size_t most;    /* tokens at most; 0: all of the text */
    vq_pool *pool;  /* may be NULL */
    uint32_t codebooks;                                   /* set of vq_codebooks to make from a sample of the rows */
    bool (*progress)(void *arg, size_t done, size_t all); /* in tokens; may be NULL; false cancels */
    bool (*codebook_progress)(void *arg, size_t done, size_t all); /* then in codebooks; likewise */
    void *arg;
} vq_calibrate_params;

/* Runs ids [n] through the model once and writes the calibration to path, whole or not at all.  VQ_ERR_ARG when there
 * are fewer than VQ_CALIBRATE_LEAST tokens to count. */
enum { VQ_CALIBRATE_LEAST = 256 };
VQ_API vq_status vq_calibrate(const vq_model *model, const int32_t *ids, size_t n, const vq_calibrate_params *params,
                              const char *path, vq_error *err);

#endif
