/* Folders as Hugging Face has them (config.json, tokenizer.json, *.safetensors), opened as the same object as a GGUF
 * file: keys and tensors get the names and forms that GGUF gives them.  For quantising: matrices stay in their maps,
 * and some are to be read through formats/rows.h. */
#ifndef VQ_FORMATS_HF_H
#define VQ_FORMATS_HF_H

#include <jansson.h>

#include "formats/gguf_object.h"

/* Records of keys and values as in GGUF, which grow. */
typedef struct vq_key_records {
    uint8_t *at;
    size_t n_bytes, room;
    uint64_t n; /* records */
    bool no_memory;
} vq_key_records;

void vq_put_u32(vq_key_records *r, const char *key, uint32_t x);
void vq_put_f32(vq_key_records *r, const char *key, float x);
void vq_put_bool(vq_key_records *r, const char *key, bool x);
void vq_put_text(vq_key_records *r, const char *key, vq_str x);
/* An array of fixed-size values, as they lie in memory. */
void vq_put_array(vq_key_records *r, const char *key, vq_gguf_kind kind, uint64_t n, const void *values, size_t each);
void vq_put_texts(vq_key_records *r, const char *key, uint64_t n, const vq_str *texts);

/* What config.json says, for those who come after. */
typedef struct vq_hf_config {
    const char *family; /* "llama", "qwen2", "qwen3", "gemma3" */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    bool tied, norms_less_one; /* gemma's files hold norm weights less one */
    bool permuted;             /* q and k rows are by halves where GGUF wants neighbours */
} vq_hf_config;

vq_status vq_hf_read_config(vq_key_records *r, vq_hf_config *out, const json_t *config,
                            vq_error *err); /* hf_config.c */

/* tokenizer.json; settings is tokenizer_config.json or NULL; template_text chat_template.jinja or nothing.  n_rows: of
 * the embedding, which may be more than there are tokens.  hf_tokenizer.c */
vq_status vq_hf_read_tokenizer(vq_key_records *r, const json_t *tokenizer, const json_t *settings, vq_str template_text,
                               uint32_t n_rows, vq_error *err);

/* hf_folder.c */
struct vq_folder;
vq_status vq_hf_open(vq_gguf **out, const char *path, vq_error *err);
void vq_hf_free(struct vq_folder *f);
vq_status vq_hf_check_whole(const struct vq_folder *f, vq_error *err);

#endif
