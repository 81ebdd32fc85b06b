/* The key/value cache: rows are stored packed, attention is computed on the codes.  It works without a model, on float
 * rows.
 *
 * For each (layer, kv head): S sink rows held exactly, pages of 64 tokens holding codes, and the most recent rows held
 * exactly.  Which rows are codes is a function of the number of rows alone (docs/architecture.md), so results don't
 * depend on how rows are cut into calls or on the number of threads. */
#ifndef VELOXQUANT_KV_H
#define VELOXQUANT_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/calibration.h"
#include "veloxquant/plan.h"
#include "veloxquant/status.h"
#include "veloxquant/threads.h"

typedef struct vq_kv vq_kv;

typedef enum vq_kv_exact { VQ_KV_EXACT_F16, VQ_KV_EXACT_BF16, VQ_KV_EXACT_F32 } vq_kv_exact;

/* How positions turn keys: pairs (i, i + n_rot/2) when halves, else (2i, 2i + 1), by position * freq[i]. */
typedef struct vq_kv_rope {
    const double *freq; /* [n_rot / 2] */
    uint32_t n_rot;
    bool halves;
} vq_kv_rope;

enum { VQ_KV_DEFAULT = UINT32_MAX }; /* for sinks and residual: what the method asks for */

typedef struct vq_kv_params {
    uint32_t n_layers, n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    uint32_t d_k, d_v;                      /* head sizes, 1..512 */
    uint32_t n_ctx;                         /* most rows a head will ever hold */
    uint32_t n_batch;                       /* most rows one append brings */
    const uint32_t *window;                 /* [n_layers] sliding window in tokens, 0 = all; NULL = all layers global */
    float scale;                            /* of q.k; 0 means 1/sqrt(d_k) */
    const char *keys, *values;              /* "f16", "turboquant-mse:bits=3" ...; NULL means "f16" */
    const vq_plan *plan;                    /* instead of keys and values, methods and bits of each head; NULL for
                                               none; it may go after vq_kv_open */
    const char *layers;                     /* overrides "0-1=f16,17=int8", both keys and values; NULL for none */
    uint32_t sinks, residual;               /* or VQ_KV_DEFAULT */
    vq_kv_exact exact;                      /* type of sinks and recent rows */
    uint64_t seed;                          /* of rotations and sketches */
    uint64_t model_hash;                    /* stored in saved caches; a mismatch is refused */
    float rope_base;                        /* likewise; 0 without a model */
    vq_pool *pool;                          /* may be NULL; must outlive the cache */
    const vq_calibration *calibration;      /* of methods that name none; may be NULL; must outlive the cache */
    const char *artifact_dir; /* folder of vq_precompute's files, read in vq_kv_open; NULL: all is drawn */
    const char *evict;        /* which rows stay: "snapkv:budget=25%" ...; NULL: all of them */
    const vq_kv_rope *ropes;  /* [n_layers], for codecs and policies that know about turns; may be NULL; it and
                                 what it points to must outlive the cache */
} vq_kv_params;

/* Where the bytes are.  codes .. reserved, less mapped, add up to what the cache took from the operating system;
 * reserved is the part that holds no rows now (free pages, room for exact rows, scratch of the attention).
 *
 * What forks share counts in the oldest one that is open, pages included that only younger ones still hold.  So the
 * sums of all forks add up to what the system gave, and closing one can make another's larger. */
typedef struct vq_kv_bytes {
    uint64_t codes, scales, exact, shared, table, reserved;
    uint64_t mapped;          /* of these, bytes of a file that codes lie in (vq_kv_load); not taken from the system */
    uint64_t n_rows;          /* rows held, over layers and kv heads */
    uint64_t n_packed_rows;   /* of these, held as codes */
    uint64_t n_values_packed; /* (keys + values) held as codes that count here */
} vq_kv_bytes;

/* VQ_ERR_MISMATCH for a calibration of another model or shape; VQ_ERR_ARG, saying how to make one, when a method needs
 * one and there is none.  A file of artifact_dir that is cut, altered or of another version is refused; one that is
 * not there is not missed. */
VQ_API vq_status vq_kv_open(vq_kv **out, const vq_kv_params *params, vq_error *err);
VQ_API void vq_kv_close(vq_kv *kv);
/* A second cache that goes on from the same rows, as if it had been given them itself; also between append and attend.
 * Full pages are shared and copied only when one of the two writes to them, so a fork costs tables, exact rows and
 * scratch.  Forks may be forked, used on different threads (a pool runs one of them at a time) and closed in any order;
 * 64 of a family may be open (VQ_ERR_FULL). */
VQ_API vq_status vq_kv_fork(vq_kv *kv, vq_kv **out, vq_error *err);

/* Rows go to the end of one layer, at positions pos .. pos + n - 1, which follow those of the rows before.  k
 * [n][n_kv_heads][d_k] and v [n][n_kv_heads][d_v] are copied; n is at most n_batch.  VQ_ERR_FULL when they do not all
 * fit into n_ctx, VQ_ERR_ARG, VQ_ERR_NOMEM; nothing is stored then. */
VQ_API vq_status vq_kv_append(vq_kv *kv, uint32_t layer, uint32_t pos, const float *k, const float *v, uint32_t n,
                              vq_error *err);

/* Causal attention of the last n rows of the newest append, which was to this layer: q [n][n_heads][d_k] -> out
 * [n][n_heads][d_v].  Changes nothing in the cache. */
VQ_API vq_status vq_kv_attend(vq_kv *kv, uint32_t layer, const float *q, uint32_t n, float *out, vq_error *err);

/* ---- eviction ----
 * A policy (vq_kv_params.evict) decides which rows stay once a layer holds more than its budget.  Positions stay true:
 * what is evicted leaves a gap.  Nothing is evicted but by vq_kv_compact, which the session calls:
 *   - in a prompt, after every multiple of the policy's option `prompt` (0, the default: never) rows;
 *   - when the prompt is over;
 *   - when decoding, after every multiple of the option `every` rows.
 * All layers must hold the same number of rows then.  Counting rows absolutely makes the result independent of how a
 * prompt is cut. */
typedef enum vq_kv_phase { VQ_KV_PROMPT, VQ_KV_PROMPT_END, VQ_KV_DECODE } vq_kv_phase;

/* Says what the rows of the next appends are: of a prompt or generated (VQ_KV_DECODE).  A new cache is in a prompt. */
VQ_API void vq_kv_begin(vq_kv *kv, vq_kv_phase phase);
/* Shows the policy the queries q [n][n_heads][d_k] of the last n rows of the newest append, which vq_kv_attend does
 * anyway: for those whose attention nobody needs. */
VQ_API void vq_kv_observe(vq_kv *kv, uint32_t layer, const float *q, uint32_t n);
/* Evicts down to the budget, merges sparse pages and gives memory back.  VQ_ERR_NOMEM; the cache is usable then, with
 * the right rows, in more memory.  Without a policy nothing happens. */
VQ_API vq_status vq_kv_compact(vq_kv *kv, vq_kv_phase phase, vq_error *err);
/* After multiples of how many rows vq_kv_compact is due in this phase; 0: never before its end. */
VQ_API uint32_t vq_kv_compact_step(const vq_kv *kv, vq_kv_phase phase);

/* What eviction took so far. */
typedef struct vq_kv_evict_stats {
    double observe_seconds; /* computing the weights that the policy looks at, while appending and compacting */
    double compact_seconds; /* the rest of compacting: scores, choice, merging pages */
    uint64_t n_compactions, n_evicted; /* calls that evicted anything; rows, over layers and kv heads */
} vq_kv_evict_stats;
VQ_API void vq_kv_get_evict_stats(const vq_kv *kv, vq_kv_evict_stats *out);

/* Rows appended to a layer and not truncated, those evicted or out of a sliding window included. */
VQ_API uint32_t vq_kv_n_rows(const vq_kv *kv, uint32_t layer);
/* First rows of a layer that are held exactly: what was asked for, or what the method asks for; 0 with a window. */
VQ_API uint32_t vq_kv_n_sinks(const vq_kv *kv, uint32_t layer);
/* Drops the newest rows of every layer until n are left.  Codes stay codes, also where a cache that never held more
 * than n rows would hold them exactly; only when the cut splits a granule of codes, its rows (fewer than 32, or 64) are
 * decoded, held exactly and packed again once their granule is full.  So with a codec that loses nothing and residual 0
 * the cache is as if the dropped rows had never been there.  VQ_ERR_UNSUPPORTED, and nothing changed, when a sliding
 * window has already dropped rows that would be visible again. */
VQ_API vq_status vq_kv_truncate(vq_kv *kv, uint32_t n, vq_error *err);
VQ_API void vq_kv_clear(vq_kv *kv);
VQ_API void vq_kv_measure(const vq_kv *kv, vq_kv_bytes *out);
/* What the cache takes from the system at most, while it is filled from its start up to n_ctx rows: vq_kv_measure's
 * codes .. reserved never add up to more.  Gathering the rows that a policy leaves may take more for a moment. */
VQ_API uint64_t vq_kv_most_bytes(const vq_kv *kv);

/* Seconds that a layer took.  append: taking rows in, encoding what became old enough; attend: attention. */
typedef struct vq_kv_times {
    double append_seconds, attend_seconds;
} vq_kv_times;
/* From here on every append and every attention adds what it took to times [n_layers], which must outlive that; NULL
 * ends it.  Without it no clock is read.  Forks are not timed. */
VQ_API void vq_kv_time(vq_kv *kv, vq_kv_times *times);

/* The address ranges that the pool maps, for comparing with /proc/self/smaps; returns how many there are. */
VQ_API size_t vq_kv_mappings(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most);

/* The rows that one kv head holds, as attention sees them (exact rows as they are, codes decoded): k [n][d_k], v
 * [n][d_v], pos [n], ascending; any of them may be NULL.  Returns n, at most vq_kv_n_rows: rows that were evicted or
 * whose page left the sliding window are gone. */
VQ_API uint32_t vq_kv_read(const vq_kv *kv, uint32_t layer, uint32_t head, float *k, float *v, uint32_t *pos);

/* A versioned, checksummed file with everything that determines its meaning. */
VQ_API vq_status vq_kv_save(const vq_kv *kv, const char *path, vq_error *err);
/* Into a cache opened with the same parameters; VQ_ERR_MISMATCH names the field that differs, and the cache is then
 * unchanged.
 *
 * Saved caches are written without permission to write to them.  Pages of such a file stay in a read-only map of it,
 * once its checksum is verified, so processes that load one file share them in memory; any other file is copied, since
 * cutting a file under a map kills its reader.  Replacing or removing the file is safe: the map keeps the old one. */
VQ_API vq_status vq_kv_load(vq_kv *kv, const char *path, vq_error *err);
/* The address ranges of files that pages of this cache or its forks lie in. */
VQ_API size_t vq_kv_files(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most);

/* Registered codecs, for listings and help. */
typedef struct vq_kv_option_info {
    const char *name, *help;
    double value, min, max; /* default and range */
    bool fraction;          /* takes any number of the range; else whole ones only */
} vq_kv_option_info;
typedef struct vq_kv_codec_info {
    const char *name, *summary, *paper;
    const vq_kv_option_info *options;
    size_t n_options;
    const char *inner; /* the codec that it hands rows to unless inner=NAME is given; NULL: none */
} vq_kv_codec_info;
VQ_API size_t vq_kv_n_codecs(void);
VQ_API void vq_kv_codec_at(size_t index, vq_kv_codec_info *out);

/* Registered eviction policies.  Besides its own options each takes those of vq_kv_policy_common. */
typedef struct vq_kv_policy_info {
    const char *name, *summary, *paper;
    const vq_kv_option_info *options;
    size_t n_options;
    bool needs_calibration; /* the option calibration=FILE */
} vq_kv_policy_info;
VQ_API size_t vq_kv_n_policies(void);
VQ_API void vq_kv_policy_at(size_t index, vq_kv_policy_info *out);
VQ_API const vq_kv_option_info *vq_kv_policy_common(size_t *n);

#endif
