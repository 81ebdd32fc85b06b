/* A codec turns rows of keys or values into pages of codes and answers queries about them.
 *
 * One codec is one file in kv/codecs/ that ends in one const struct, and one word in the list in meson.build.  A codec
 * with only encode and decode works (generic score and mix run on tiles that stay in L1, see kv/codec_generic.h); the
 * fast hooks come with kernels.  A state is made for one (layer, kv head) and is immutable after create, so
 * many threads may use it at once.
 *
 * A page holds up to VQ_PAGE_ROWS rows.  Its bytes are zeroed, then written by encode, in granules from row 0 upwards,
 * and are the same on every tier.  They may also come from a file: decode, score and mix stay inside their arrays
 * whatever the bytes are. */
#ifndef VQ_KV_CODEC_H
#define VQ_KV_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"
#include "veloxquant/calibration.h"
#include "veloxquant/kv.h"

enum { VQ_PAGE_ROWS = VQ_BLOCK_ROWS, VQ_GRANULE = 32, VQ_MAX_HEAD_DIM = 512 };

/* Which rows of a page are there, and where they stand in the text. */
typedef struct vq_rows {
    const uint32_t *pos; /* [n] true positions */
    uint64_t live;       /* bit i: row i counts */
    uint32_t n;          /* rows that hold codes; bits of live at or above n are 0 */
    const void *next;    /* the page that will be read next, for kernels to fetch meanwhile; NULL: not known */
} vq_rows;

typedef struct vq_codec_state vq_codec_state; /* each codec has its own struct behind this name */

typedef struct vq_codec_env {
    uint32_t layer, head;   /* kv head */
    uint32_t d;             /* length of a row */
    bool keys;              /* rows are keys (scored); else values (mixed) */
    uint64_t seed;          /* of this cache; mix in what must differ, through vq_hash64 */
    const double *options;  /* [n_options] values, parsed and inside their ranges */
    const vq_kv_rope *rope; /* how positions turned this layer's keys, for the time of create; NULL: not known */
    const vq_calibration *calibration; /* of the cache's shape, for the time of create; NULL: none was given */
    struct vq_artifacts *artifacts; /* of the cache, for the time of create (kv/artifacts.h); NULL: none were given */
    const struct vq_codec *inner;   /* of codecs that take one, with its options */
    const double *inner_options;
    const vq_kernels *kernels; /* outlives the state */
} vq_codec_env;

typedef struct vq_page_bytes {
    size_t codes, scales; /* of one full page; scales are norms, scales, zeros, means */
} vq_page_bytes;

typedef struct vq_codec {
    const char *name, *summary, *paper;
    const vq_kv_option_info *options;
    size_t n_options;
    uint32_t sinks, residual; /* what the method asks for when the user says nothing; residual 0 is legal */
    uint32_t format;          /* raised when the same page bytes come to mean something else; saved caches carry it */
    bool calibrated;          /* needs a calibration: create is not called without one */
    bool calibratable;        /* uses one where it is given */
    /* Keys are given to encode, and come from decode, as they were before positions turned them (where the cache knows
     * how they do); queries are given to prepare as they are, and score turns one or the other by rows->pos.  Without a
     * score the core does all of that. */
    bool before_rope;
    /* Sets of vq_codebooks that the calibration of a calibrated one has to have. */
    uint32_t key_codebooks, value_codebooks;
    const char *inner; /* it hands part of each row to another codec, to this one by default; NULL: it does not */
    bool unbiased;     /* score estimates q.k without bias; tests/unit/test_codecs.c checks the slope */
    /* What the hooks may add to f32 roundings, where they compute in integers:  |score - q.k^| <= score_error |q| |k^|
     * (Euclidean norms), and |mix - sum w v^| <= mix_error (sum w) max |v^|, v^ being what decode gives. */
    float score_error, mix_error;

    /* VQ_ERR_UNSUPPORTED, naming codec, head size and limit, when d or an option can't be done. */
    vq_status (*create)(vq_codec_state **out, const vq_codec_env *env, vq_error *err);
    void (*destroy)(vq_codec_state *s);
    uint32_t (*granule)(const vq_codec_state *s); /* NULL: VQ_GRANULE. 32 or 64 */
    void (*page_bytes)(const vq_codec_state *s, vq_page_bytes *out);
    size_t (*shared_bytes)(const vq_codec_state *s); /* codebooks, bases, signs; NULL: none */

    /* Rows [first, first + n) of a page from x [n][d]; first and n are multiples of the granule.  The cache always
     * passes one granule a call, in ascending order, on one thread a page; so a page may hold what its granules share.
     * After a truncation a granule is encoded again: whatever its bytes held is overwritten. */
    void (*encode)(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x);
    /* Any rows [first, first + n) back to x [n][d]. */
    void (*decode)(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x);
    /* The same where codes depend on where rows stand, pos [n]; NULL: they don't.  encode and decode are then for those
     * who do not know. */
    void (*encode_at)(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x,
                      const uint32_t *pos);
    void (*decode_at)(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x,
                      const uint32_t *pos);

    /* Keys.  prepare: once a query (rotate, tables, int8). score: out [n_queries][VQ_PAGE_ROWS] = q . k^ for rows below
     * rows->n; entries at or above it, and of rows that are not live, may hold anything finite.  `queries` are
     * n_queries prepared ones, query_bytes apart (a multiple of 64).  A query's result does not depend on n_queries. */
    size_t (*query_bytes)(const vq_codec_state *s);
    void (*prepare)(const vq_codec_state *s, void *query, const float *q);
    /* Instead of it, where scores depend on where the query stands. */
    void (*prepare_at)(const vq_codec_state *s, void *query, const float *q, uint32_t pos);
    void (*score)(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out);

    /* At most so many coded rows of a head, those with the largest scores, take part in a query's softmax; 0: all. Rows
     * that tie with the last of them do as well. */
    uint32_t (*retrieves)(const vq_codec_state *s);

    /* Values. mix: acc [n_queries][acc_len] += sum over rows below rows->n of weights [n_queries][VQ_PAGE_ROWS] times
     * the coded row, in the codec's own space.  Weights are >= 0, and 0 for rows that do not count (up to
     * VQ_PAGE_ROWS).  finish is linear: acc -> out [d], once a query after everything is merged. */
    size_t (*acc_len)(const vq_codec_state *s); /* NULL: d */
    void (*mix)(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc);
    void (*finish)(const vq_codec_state *s, const float *acc, float *out); /* NULL: copy */

    /* Row i of dst becomes row j of src and decodes to the same bits; the other rows of dst stay (merging sparse
     * pages).  i and j are below VQ_PAGE_ROWS, dst may be src.  NULL where rows share what is stored. */
    void (*copy_row)(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j);
    bool (*shares)(const vq_codec_state *s); /* with these options they do; NULL: never.  vq_side_copies_rows asks */
} vq_codec;

/* The registry, generated from the list in src/kv/codecs/meson.build. */
extern const vq_codec *const vq_codecs[];
extern const size_t vq_n_codecs;
/* NULL: there is none of that name. */
const vq_codec *vq_codec_find(const char *name, size_t n);

/* A parsed "NAME" or "NAME:option=value,option=value".  Besides its own options every codec takes `sinks` and
 * `residual` (counts of exact rows), and `calibration` (a file); where the text doesn't say, they are what the codec
 * asks for and what the cache was given.  A codec that hands rows on takes `inner`, a name, and then also the options
 * of that codec which are called like none of its own. */
enum { VQ_MAX_CODEC_OPTIONS = 16, VQ_MAX_SINKS = 1024, VQ_MAX_RESIDUAL = 65536, VQ_MAX_METHOD_PATH = 256 };

typedef struct vq_method {
    const vq_codec *codec;
    double values[VQ_MAX_CODEC_OPTIONS]; /* in the order of codec->options */
    const vq_codec *inner;               /* NULL: codec takes none */
    double inner_values[VQ_MAX_CODEC_OPTIONS];
    uint32_t sinks, residual;
    char calibration[VQ_MAX_METHOD_PATH]; /* "": the cache's */
} vq_method;

/* Names and ranges are checked; messages list what is allowed.  On failure *out is unchanged. */
vq_status vq_method_parse(vq_method *out, const char *text, vq_error *err);
/* How many bits a value takes, by which a plan tells heads apart: the method's option `bits`, or that of the codec that
 * it hands rows on to.  NULL: it has none. */
double *vq_method_bits(vq_method *m, const vq_kv_option_info **info);

#endif
