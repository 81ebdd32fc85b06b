/* Safetensors files: u64 bytes of a JSON header, the header, data.
 *
 *     {"NAME": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [from, to]}, .., "__metadata__": {..}}
 *
 * Offsets count from the end of the header.  Everything is checked when the file is opened: sizes, bounds, overlaps. */
#ifndef VQ_FORMATS_SAFETENSORS_H
#define VQ_FORMATS_SAFETENSORS_H

#include "veloxquant/gguf.h"

typedef struct vq_safetensors vq_safetensors;

vq_status vq_safetensors_open(vq_safetensors **out, const char *path, vq_error *err);
/* The same over bytes that the caller keeps alive; `name` is used in messages. */
vq_status vq_safetensors_read(vq_safetensors **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err);
void vq_safetensors_close(vq_safetensors *s); /* NULL is allowed */

/* Tensors, in the order of the header.  As in GGUF dims[0] varies fastest.  type is F32, F16 or BF16; VQ_N_TYPES for
 * any other dtype, whose data are then not to be read. */
uint64_t vq_safetensors_count(const vq_safetensors *s);
const vq_tensor *vq_safetensors_at(const vq_safetensors *s, uint64_t index);
const char *vq_safetensors_dtype(const vq_safetensors *s, uint64_t index);
vq_status vq_safetensors_check_whole(const vq_safetensors *s, vq_error *err);

#endif
