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

#endif
