/* Reservoirs (.vqr): a model's weights, packed once, with its hyper-parameters and tokenizer in one file that every
 * process maps read-only and shares.  docs/formats.md draws the file.
 *
 * vq_model_open and vq_gguf_open take a reservoir like a GGUF file.  Opening checks the head, the header, the metadata
 * and all bounds, and computes nothing; vq_gguf_verify reads every byte. */
#ifndef VELOXQUANT_RESERVOIR_H
#define VELOXQUANT_RESERVOIR_H

#include "veloxquant/model.h"

/* Called between pieces of work, on the caller's thread: bytes done of all.  False stops: VQ_ERR_CANCELLED. */
typedef bool (*vq_work_fn)(void *user, uint64_t done, uint64_t all);

/* Reads the whole file.  A reservoir: the sums of all tensors and kept rotations (VQ_ERR_CHECKSUM names the one that
 * was altered).  A GGUF file, which has no sums: that no value or scale is a NaN or an infinity.  work may be NULL. */
VQ_API vq_status vq_gguf_verify(const vq_gguf *gguf, vq_work_fn work, void *user, vq_error *err);

/* Writes an open model to a reservoir as it is: packed matrices packed, others in their own types.  A whole file or
 * none. */
VQ_API vq_status vq_model_save(const vq_model *model, const char *path, vq_work_fn work, void *user, vq_error *err);

/* Puts the layers of another model file (a reservoir, or GGUF) under an open model, which keeps its tokenizer,
 * embeddings, last norm and head.  VQ_ERR_MISMATCH when family or any hyper-parameter of the layers differs; the model
 * is then as it was.  To be called before sessions are opened on it; changes vq_model_hash. */
VQ_API vq_status vq_model_graft(vq_model *model, const char *path, vq_error *err);

/* ---- quantising ---- */

/* What became of one tensor. */
typedef struct vq_quantized {
    vq_str name;
    uint64_t dims[2]; /* of a row, rows */
    vq_type from, to;
    uint64_t n_bytes_before, n_bytes;
    double error; /* |w - w^| / |w| over the whole tensor; NAN where it was kept as it was */
    double loss;  /* KL divergence in nats a token when it alone has 2 bits; NAN where it was not measured */
} vq_quantized;

typedef struct vq_quantize_params {
    /* Of the matrices of layers: 2, 3 or 4.  Between 2 and 4: that many on average, more for the matrices where a bit
     * more saves the most for its bytes; 3 is such an average when sensitivity is measured.  0: kept as they are, but
     * for the rules. */
    float bits;
    /* "GLOB=VALUE" over names of tensors, such as "blk.*.ffn_down*=4"; VALUE is 2, 3, 4, 8 (Q8_0) or keep.  The last
     * one that matches a matrix decides.  Embeddings can be kept or take 8. */
    const char *const *rules;
    size_t n_rules;
    bool qr;             /* the input is rotated by Haar matrices, O(n^2); otherwise by Hadamard blocks, O(n log n) */
    bool keep_rotations; /* qr only: put them into the file; otherwise opening draws them again */
    uint64_t seed;       /* at most INT64_MAX */
    /* Error feedback: the source as an open model, and a text of at least 64 tokens.  Values are coded one after the
     * other, each moved by what the ones before it have lost, so that the products on such texts are nearer.  Costs
     * runs of the text through the model, and memory for moments: feedback_bytes (0: 256 MiB), one n x n matrix at
     * least.  model or ids NULL: each value to the nearest code. */
    const vq_model *model;
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    size_t feedback_bytes;
    /* Sensitivity, for averages: the source as an open model (above), and a text of at least 32 tokens, the first 2048
     * of which are looked at.  For each matrix the KL divergence is measured, against the source, of the model in which
     * it alone has 2 bits, and what bits save is judged by that: one run of the text for each matrix, n_vocab floats of
     * memory for each token.  NULL: a matrix's relative error counts the same for all. */
    const int32_t *sensitivity_ids; /* [n_sensitivity_ids] */
    size_t n_sensitivity_ids;
    vq_work_fn measured; /* while that goes on: matrices done of all; NULL: `work` is asked whether to stop */
    vq_pool *pool;       /* may be NULL; bytes don't depend on it */
    vq_work_fn work;     /* in bytes of the source; may be NULL */
    void (*each)(void *user, const vq_quantized *tensor); /* in the order of the file; may be NULL */
    void *user;
} vq_quantize_params;

VQ_API void vq_quantize_params_init(vq_quantize_params *params); /* 4 bits, Hadamard, seed 0 */

/* Writes a reservoir from an open model file, tensor by tensor: memory stays near the largest packed matrix.  A whole
 * file or none.  VQ_ERR_ARG for bits or rules that cannot be, VQ_ERR_NONFINITE for weights that are no numbers. */
VQ_API vq_status vq_quantize(const vq_gguf *source, const char *path, const vq_quantize_params *params, vq_error *err);

#endif
