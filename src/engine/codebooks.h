/* Codebooks for a calibration: a sample of rows is kept while a text runs through the model, and clustered at the end.
 *
 * The sample is one of tokens, VQ_SAMPLE_ROWS of each layer whatever the length of the text (reservoir sampling, drawn
 * from a row's number), in f16; so memory is O(sample + codebooks), and nothing depends on the number of threads. */
#ifndef VQ_ENGINE_CODEBOOKS_H
#define VQ_ENGINE_CODEBOOKS_H

#include "base/arena.h"
#include "formats/calibration.h"
#include "kernels/kernels.h"
#include "model/observer.h"
#include "veloxquant/kv.h"

enum { VQ_SAMPLE_ROWS = 4096 };

typedef struct vq_samples {
    uint32_t codebooks; /* set of vq_codebooks; 0: nothing is kept */
    uint16_t
        *rows[VQ_ROWS_V + 1]; /* [n_layers][n_kv_heads][VQ_SAMPLE_ROWS][d] of the kinds that they need; else NULL */
    uint64_t *n_seen[VQ_ROWS_V + 1]; /* [n_layers] */
    vq_kernels kernels;
} vq_samples;

/* Runs twice, like every layout. */
void vq_samples_layout(vq_samples *s, vq_arena *arena, const vq_calibration_info *shape);
/* Rows [skip, n) of x [n][n_heads][d]; kinds that nobody needs are ignored. */
void vq_samples_add(vq_samples *s, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t skip, uint32_t n);

typedef struct vq_codebooks_job {
    const vq_samples *samples;
    vq_calibration *calibration; /* whose other statistics are there */
    const vq_kv_rope *ropes;     /* [n_layers] */
    vq_pool *pool;
    bool (*progress)(void *arg, size_t done, size_t all); /* may be NULL; false cancels */
    void *arg;
} vq_codebooks_job;

vq_status vq_codebooks_make(const vq_codebooks_job *job, vq_error *err);

#endif
