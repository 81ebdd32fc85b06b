/* Reading model files: GGUF (versions 2 and 3, little-endian) and reservoirs (reservoir.h), told apart by their first
 * bytes; and folders with config.json, tokenizer.json and safetensors, which are for quantising only (version 0).
 *
 * The file is mapped and checked once, here: every count, length, offset, type, name and alignment.  What the accessors
 * return points into the map or into the object and lives until vq_gguf_close.  A model that is split into several
 * files is refused (VQ_ERR_SPLIT).
 *
 * The map is shared and private copies are not made: a file that another process makes shorter while it is open is
 * noticed before the next pass through the model, which fails with VQ_ERR_TRUNCATED.  What is cut off in the middle of
 * a pass raises SIGBUS in the thread that reads the lost part: the library installs no handler; a program that wants a
 * message instead of a plain end of the process installs one (the `veloxquant` program does).  Replace model files by
 * renaming a new file into place, which leaves open maps whole. */
#ifndef VELOXQUANT_GGUF_H
#define VELOXQUANT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

/* Tensor types by GGUF number. */
typedef enum vq_type {
    VQ_TYPE_F32 = 0,
    VQ_TYPE_F16 = 1,
    VQ_TYPE_Q4_0 = 2,
    VQ_TYPE_Q4_1 = 3,
    VQ_TYPE_Q5_0 = 6,
    VQ_TYPE_Q5_1 = 7,
    VQ_TYPE_Q8_0 = 8,
    VQ_TYPE_Q2_K = 10,
    VQ_TYPE_Q3_K = 11,
    VQ_TYPE_Q4_K = 12,
    VQ_TYPE_Q5_K = 13,
    VQ_TYPE_Q6_K = 14,
    VQ_TYPE_IQ4_NL = 20,
    VQ_TYPE_BF16 = 30,
    /* Not of GGUF: rows of 2, 3, 4-bit codes in a rotated space.  No GGUF file may hold them. */
    VQ_TYPE_VQ2 = 61,
    VQ_TYPE_VQ3 = 62,
    VQ_TYPE_VQ4 = 63,
    VQ_N_TYPES = 64
} vq_type;

typedef enum vq_gguf_kind {
    VQ_GGUF_U8 = 0,
    VQ_GGUF_I8,
    VQ_GGUF_U16,
    VQ_GGUF_I16,
    VQ_GGUF_U32,
    VQ_GGUF_I32,
    VQ_GGUF_F32,
    VQ_GGUF_BOOL,
    VQ_GGUF_STRING,
    VQ_GGUF_ARRAY,
    VQ_GGUF_U64,
    VQ_GGUF_I64,
    VQ_GGUF_F64,
    VQ_N_GGUF_KINDS
} vq_gguf_kind;

typedef struct vq_str {
    const char *at; /* not NUL-terminated; may hold NUL bytes */
    size_t n_bytes;
} vq_str;

typedef struct vq_gguf_value {
    vq_str key;
    vq_gguf_kind kind;
    vq_gguf_kind array_kind; /* of the elements, when kind is VQ_GGUF_ARRAY; nested arrays are refused */
    uint64_t n;              /* elements of an array, else 1 */
    const void *raw;         /* first byte of the value in the file */
    const vq_str *strings;   /* [n], for arrays of strings and (n = 1) strings */
} vq_gguf_value;

enum { VQ_MAX_DIMS = 4 };

typedef struct vq_tensor {
    vq_str name;
    vq_type type;
    uint32_t n_dims;
    uint64_t dims[VQ_MAX_DIMS]; /* dims[0] varies fastest (the input size of a matrix); unused ones are 1 */
    const void *data;
    uint64_t n_bytes;
} vq_tensor;

typedef struct vq_gguf vq_gguf;

VQ_API vq_status vq_gguf_open(vq_gguf **out, const char *path, vq_error *err);
/* The same over bytes that the caller keeps alive (fuzzing, embedded files), at an address that is
 * a multiple of 8.  `name` is used in messages. */
VQ_API vq_status vq_gguf_open_memory(vq_gguf **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err);
VQ_API void vq_gguf_close(vq_gguf *gguf);

VQ_API const char *vq_gguf_path(const vq_gguf *gguf);
VQ_API bool vq_gguf_is_reservoir(const vq_gguf *gguf);
/* VQ_ERR_TRUNCATED when the file is shorter now than when it was opened. */
VQ_API vq_status vq_gguf_check_whole(const vq_gguf *gguf, vq_error *err);
VQ_API uint32_t vq_gguf_version(const vq_gguf *gguf);
VQ_API uint64_t vq_gguf_file_bytes(const vq_gguf *gguf);
VQ_API uint32_t vq_gguf_alignment(const vq_gguf *gguf);
VQ_API uint64_t vq_gguf_n_values(const vq_gguf *gguf);
VQ_API const vq_gguf_value *vq_gguf_value_at(const vq_gguf *gguf, uint64_t index);
VQ_API const vq_gguf_value *vq_gguf_find(const vq_gguf *gguf, const char *key); /* NULL when absent */
VQ_API uint64_t vq_gguf_n_tensors(const vq_gguf *gguf);
VQ_API const vq_tensor *vq_gguf_tensor_at(const vq_gguf *gguf, uint64_t index);
VQ_API const vq_tensor *vq_gguf_tensor(const vq_gguf *gguf, const char *name); /* NULL when absent; O(log n) */

/* Typed reads.  Missing: VQ_ERR_MISSING_KEY.  Wrong type: VQ_ERR_TYPE.  Does not fit or is not finite: VQ_ERR_VALUE.
 * Integers of any width and sign convert when they fit. */
VQ_API vq_status vq_gguf_get_u32(const vq_gguf *gguf, const char *key, uint32_t *out, vq_error *err);
VQ_API vq_status vq_gguf_get_f32(const vq_gguf *gguf, const char *key, float *out, vq_error *err);
VQ_API vq_status vq_gguf_get_bool(const vq_gguf *gguf, const char *key, bool *out, vq_error *err);
VQ_API vq_status vq_gguf_get_str(const vq_gguf *gguf, const char *key, vq_str *out, vq_error *err);

/* "Q4_K", "VQ3"; "?" for a number that is no type. */
VQ_API const char *vq_type_name(vq_type type);
VQ_API vq_type vq_type_find(const char *name);     /* VQ_N_TYPES when no type that is read has this name */
VQ_API uint32_t vq_type_packed_bits(vq_type type); /* 2, 3, 4 for VQ_TYPE_VQ*, else 0 */
VQ_API bool vq_type_known(uint32_t type);          /* one that this library reads from GGUF files */
VQ_API uint32_t vq_type_block_len(vq_type type);   /* values in a block */
VQ_API uint32_t vq_type_block_bytes(vq_type type);
VQ_API size_t vq_type_row_bytes(vq_type type, uint64_t n); /* n is a multiple of the block length */

/* n values (whole blocks) to f32: the definition of every weight type. */
VQ_API void vq_type_dequantize(vq_type type, const void *src, float *out, uint64_t n);

#endif
