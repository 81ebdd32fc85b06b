/* What an open model file is, GGUF or reservoir: keys, values and tensors by name.  For src/formats only, except for
 * what is said of rotations and sums, which binding and saving read. */
#ifndef VQ_FORMATS_GGUF_OBJECT_H
#define VQ_FORMATS_GGUF_OBJECT_H

#include "base/cursor.h"
#include "base/file.h"
#include "veloxquant/gguf.h"

/* Names in sorted order, for lookup and for finding duplicates.  Sorted and not hashed: no choice of names in a file
 * makes it slow. */
typedef struct gguf_name {
    vq_str name;
    uint64_t index;
} gguf_name;

struct vq_gguf {
    char *path;
    vq_file_map map; /* zeroed when the caller keeps the bytes */
    const uint8_t *bytes;
    size_t n_bytes;
    uint32_t version, alignment;

    uint64_t n_values;
    vq_gguf_value *values; /* [n_values] */
    vq_str *strings;       /* [n_values], what .strings of a single string points to */
    gguf_name *keys;       /* [n_values], sorted */

    const uint8_t *metadata; /* the records of the values as they lie in the file */
    uint64_t n_metadata_bytes;

    uint64_t n_tensors;
    vq_tensor *tensors; /* [n_tensors] */
    gguf_name *names;   /* [n_tensors], sorted */

    const uint32_t *halves;         /* [n_tensors] formats/rows.c; NULL: rows are in order everywhere */
    struct vq_reservoir *reservoir; /* NULL: no reservoir */
    struct vq_folder *folder;       /* NULL: no folder of safetensors */
};

/* Fills everything below n_bytes from the bytes.  On failure what it has allocated stays in the object for
 * vq_gguf_close. */
vq_status vq_gguf_parse(vq_gguf *gguf, vq_error *err);

/* n records of keys and values at the cursor, as GGUF has them.  n is checked against what is left. */
vq_status vq_gguf_parse_values(vq_gguf *gguf, vq_cursor *c, uint64_t n, vq_error *err);

/* n_bytes of a tensor from its type and dimensions, which are checked (products, whole blocks). */
vq_status vq_gguf_measure_tensor(vq_tensor *t, vq_error *err);

/* Sorts; VQ_ERR_DUPLICATE when two are the same. */
vq_status vq_gguf_sort_names(gguf_name *names, uint64_t n, const char *what, vq_error *err);

/* VQ_ERR_OVERLAP when the data of two tensors share a byte.  offsets [n_tensors], from any one place. */
vq_status vq_gguf_check_overlap(const vq_gguf *gguf, const uint64_t *offsets, vq_error *err);

/* < 0, 0, > 0: shorter names first, then by bytes. */
int vq_gguf_compare_names(vq_str a, vq_str b);

/* As vq_gguf_get_u32, with a message that does not name the file: while parsing, vq_gguf_open adds the name. */
vq_status vq_gguf_read_u32(const vq_gguf_value *value, uint32_t *out, vq_error *err);

#endif
