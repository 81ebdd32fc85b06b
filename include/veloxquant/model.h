/* Model files: hyper-parameters and weights, mapped read-only and shared by every process that opens them. */
#ifndef VELOXQUANT_MODEL_H
#define VELOXQUANT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "veloxquant/gguf.h"
#include "veloxquant/status.h"
#include "veloxquant/threads.h"
#include "veloxquant/tokenizer.h"

typedef struct vq_model vq_model;

typedef struct vq_model_info {
    const char *family; /* "llama", "qwen2", "qwen3", "gemma3" */
    const char *name;   /* general.name, or "" */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx_train;
    uint32_t window; /* of sliding-window layers, in tokens; 0 when all layers are global */
    uint64_t n_params, weight_bytes;
} vq_model_info;

/* Maps and checks the file; weights stay in the map.  Multi-latent attention, mixture of experts and unknown
 * architectures are refused by name. Thread-safe once open; several sessions may share one model. */
VQ_API vq_status vq_model_open(vq_model **out, const char *path, vq_error *err);
VQ_API void vq_model_close(vq_model *model);
VQ_API const vq_model_info *vq_model_get_info(const vq_model *model);
VQ_API const vq_tokenizer *vq_model_tokenizer(const vq_model *model);
VQ_API const vq_gguf *vq_model_gguf(const vq_model *model);
VQ_API uint64_t
vq_model_hash(const vq_model *model); /* of hyper-parameters, tensor names, types and samples of the data */

#endif
