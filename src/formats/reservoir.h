/* Reservoirs: one file with quantised weights, hyper-parameters and tokenizer, which is mapped and never computed on.
 *
 *     0      "VQ-RESRV"  u32 version  u32 page (4096)  u64 bytes of the file
 *     32     u64 offset of the header, u64 its bytes, u64 its sum, u64 sum of bytes 0 .. 55
 *     4096   blobs, each from a multiple of 4096 on, zeros between them:
 *                metadata: u64 n, then n records of keys and values as in GGUF, verbatim from the source
 *                rotations that are kept, tensors
 *     header: JSON, the last thing in the file
 *         {"writer": "veloxquant 0.1.0", "source": {"file": .., "hash": "..", "types": "Q4_1, F32"},
 *          "metadata": {"offset": 4096, "bytes": .., "sum": ".."},
 *          "rotations": [{"width": 576, "kind": "hadamard" | "qr", "seed": 0, "hash": "..",
 *                         "offset": .., "bytes": .., "sum": ".."}],    (the last three only where a qr one is kept)
 *          "tensors": [{"name": .., "type": "VQ3", "dims": [576, 1536], "offset": .., "bytes": .., "sum": "..",
 *                       "error": 0.186}]}
 *
 * Little-endian; sums are XXH3 of 64 bits, in JSON as 16 hexadecimal digits.  The hash of a rotation is that of
 * vq_input_rotation_hash, so that one which is drawn again can be held to it.
 *
 * Opening checks the first 64 bytes, the header, the metadata and every bound; blobs are not read.  vq_gguf_verify
 * reads them all.  Other versions are refused: a reservoir is made again from its source in minutes. */
#ifndef VQ_FORMATS_RESERVOIR_H
#define VQ_FORMATS_RESERVOIR_H

#include <jansson.h>

#include "formats/gguf_object.h"

enum { VQ_RESERVOIR_VERSION = 1, VQ_RESERVOIR_PAGE = 4096 };

#define VQ_RESERVOIR_MAGIC "VQ-RESRV"

typedef struct vq_reservoir_head {
    char magic[8];
    uint32_t version, page;
    uint64_t n_bytes;
    uint64_t zero;
    uint64_t header_at, n_header_bytes, header_sum;
    uint64_t sum;
} vq_reservoir_head;

_Static_assert(sizeof(vq_reservoir_head) == 64, "the head is 64 bytes");

/* How the input of packed matrices of this width is rotated: one for each width in a file, so that matrices which read
 * the same activations share the rotated ones. */
typedef struct vq_stored_rotation {
    uint32_t width;
    bool haar; /* "qr": a matrix drawn from the Haar measure; else Hadamard blocks */
    uint64_t seed;
    uint64_t hash;       /* vq_input_rotation_hash, of a kept one too */
    const float *matrix; /* [width][width] of qr where it is kept, 64-byte aligned; NULL: to be drawn from the seed */
    uint64_t sum;        /* of the matrix's bytes */
} vq_stored_rotation;

static inline uint64_t vq_stored_rotation_bytes(const vq_stored_rotation *r)
{
    return r->matrix ? (uint64_t)r->width * r->width * sizeof(float) : 0;
}

typedef struct vq_reservoir {
    json_t *header; /* names of tensors point into it */
    uint64_t metadata_at, n_metadata_bytes, metadata_sum;
    uint32_t n_rotations;
    vq_stored_rotation *rotations; /* [n_rotations] */
    uint64_t *sums;                /* [n_tensors] */
    double *errors;                /* [n_tensors] relative error of packed ones; NAN: kept as it was */
} vq_reservoir;

/* Fills the object from its bytes, as vq_gguf_parse does for GGUF. */
vq_status vq_reservoir_parse(vq_gguf *gguf, vq_error *err);
void vq_reservoir_free(vq_reservoir *r);

/* NULL when the file has none for this width, or is no reservoir. */
const vq_stored_rotation *vq_reservoir_rotation(const vq_gguf *gguf, uint32_t width);

/* ---- writing: streams, in the order of the calls ---- */
typedef struct vq_reservoir_writer vq_reservoir_writer;

/* Copies the metadata of `source`. `source` is no longer needed afterwards. */
vq_status vq_reservoir_writer_open(vq_reservoir_writer **out, const char *path, const vq_gguf *source, vq_error *err);
/* With its matrix, if it has one; its sum is computed here. */
vq_status vq_reservoir_writer_rotation(vq_reservoir_writer *w, const vq_stored_rotation *rotation, vq_error *err);
/* begin, its bytes in pieces, end.  like: name, type, dims and n_bytes.  error: NAN for a tensor that was not packed.
 */
vq_status vq_reservoir_writer_begin(vq_reservoir_writer *w, const vq_tensor *like, vq_error *err);
vq_status vq_reservoir_writer_add(vq_reservoir_writer *w, const void *bytes, size_t n_bytes, vq_error *err);
vq_status vq_reservoir_writer_end(vq_reservoir_writer *w, double error, vq_error *err);
/* Writes the header; the file appears under its name, whole.  Frees w, also on failure. */
vq_status vq_reservoir_writer_commit(vq_reservoir_writer *w, vq_error *err);
void vq_reservoir_writer_abort(vq_reservoir_writer *w); /* NULL is allowed */
uint64_t vq_reservoir_writer_offset(const vq_reservoir_writer *w);

#endif
