/* An eviction policy rates the rows of a cache; the cache keeps the best.
 *
 * One policy is one file in kv/policies/ that ends in one const struct, and one word in the list in meson.build
 * (docs/adding-a-policy.md).  It sees positions, attention weights of real queries and, where its paper needs them,
 * keys and values as attention sees them; never codes.  Budgets, sinks, the recent window, ties and memory are the
 * cache's business (kv/evict.c).
 *
 * Rows of a kv head are given in ascending order of position.  Those with the highest score stay; equal scores: the
 * lower position. */
#ifndef VQ_KV_POLICY_H
#define VQ_KV_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"
#include "veloxquant/kv.h"

typedef struct vq_policy_state vq_policy_state; /* each policy has its own struct behind this name */

enum {
    VQ_MAX_POLICY_OPTIONS = 16,
    VQ_POLICY_BLOCK = 64,                /* most rows that `rate` is given at once */
    VQ_POLICY_MAX_DIM = 512,             /* of a head */
    VQ_RATES_GROUP_AND_ONE = UINT32_MAX, /* as n_rates: one for each query head of a group, and one more */
};

typedef struct vq_policy_env {
    uint32_t n_layers, n_heads, n_kv_heads, group, d_k, d_v;
    float scale; /* of q.k */
    uint64_t seed, model_hash;
    const double *options;             /* [n_options] values, inside their ranges */
    const vq_calibration *calibration; /* of this model, for those that need one; else NULL */
    const vq_kv_rope *ropes;           /* [n_layers] or NULL; like the kernels it outlives the state */
    const vq_kernels *kernels;
} vq_policy_env;

/* Which weights of queries a policy looks at. */
typedef enum vq_policy_sees {
    VQ_SEES_NOTHING,
    VQ_SEES_LAST, /* the last n_queries, recomputed whenever the cache is compacted */
    VQ_SEES_ALL,  /* every query, from its append on */
    VQ_SEES_LATER /* as VQ_SEES_ALL, but not those of a prompt itself: of generated and of probing tokens */
} vq_policy_sees;

/* The normalised attention weights of one token's queries that share a kv head. */
typedef struct vq_policy_query {
    uint32_t layer, head, pos; /* kv head; position of the query */
    uint32_t step;             /* tokens generated before it; 0 in the first prompt */
    uint32_t n, group;
    const uint32_t *row_pos; /* [n] positions of the rows */
    float *weights;          /* [group][stride], n of each; 0 for rows that the query does not see */
    size_t stride;
} vq_policy_query;

/* One kv head when the cache is compacted. */
typedef struct vq_policy_head {
    uint32_t layer, head, n;
    uint32_t d_k, d_v;
    uint32_t next_pos;   /* of the next query */
    const uint32_t *pos; /* [n] */
    const float *seen;   /* [n] the weights seen, added up or their maximum, over queries and the group; or NULL */
    const float *rates;  /* [n_rates][stride], n of each, what `rate` gave; or NULL */
    size_t stride;
} vq_policy_head;

typedef struct vq_policy {
    const char *name, *summary, *paper;
    const vq_kv_option_info *options;
    size_t n_options;
    /* Newest rows that stay when the user says nothing: a count, at most half of the budget, or a share of it. */
    uint32_t recent;
    float recent_share;

    vq_policy_sees sees;
    uint32_t n_queries; /* of VQ_SEES_LAST */
    bool takes_maximum; /* of the weights, instead of their sum */
    bool one_mask;      /* scores are added up over kv heads, which then keep the same rows */
    bool is_flat;       /* a layer's budget goes to the best rows of all its kv heads, after `floor` of it to each */
    float floor;
    bool keeps_all; /* nothing is ever evicted */
    bool needs_calibration;
    bool needs_probe; /* the session lets the model repeat the prompt and takes it back (kvzip) */
    bool renumbers;   /* option 0 says whether sinks are seen from where they would be without a gap */

    /* Everything below may be NULL. */
    vq_status (*create)(vq_policy_state **out, const vq_policy_env *env, vq_error *err);
    void (*destroy)(vq_policy_state *s);
    /* Changes weights before they are added up. */
    void (*reweigh)(const vq_policy_state *s, const vq_policy_query *q);
    /* Numbers of single rows, k [n][d_k], v [n][d_v] at positions pos [n], n up to VQ_POLICY_BLOCK: out
     * [n_rates][stride]. */
    uint32_t n_rates;
    void (*rate)(const vq_policy_state *s, const vq_policy_head *h, const float *k, const float *v, const uint32_t *pos,
                 uint32_t n, float *out, size_t stride);
    /* score [n]; NULL: `seen`, or the first rate where nothing is seen. */
    void (*score)(const vq_policy_state *s, const vq_policy_head *h, float *score);
    /* How many of `most` rows a head of this layer keeps besides the protected ones, when the mean is `free`. */
    uint32_t (*layer_budget)(const vq_policy_state *s, uint32_t layer, uint32_t n_layers, uint32_t free, uint32_t most);
    /* The layer whose scores this one takes over; itself: none. */
    uint32_t (*leader)(const vq_policy_state *s, uint32_t layer);
} vq_policy;

/* The registry, generated from the list in src/kv/policies/meson.build. */
extern const vq_policy *const vq_policies[];
extern const size_t vq_n_policies;

/* A parsed "NAME" or "NAME:option=value,option=value". */
typedef struct vq_policy_choice {
    const vq_policy *policy; /* NULL: none */
    double values[VQ_MAX_POLICY_OPTIONS];
    bool is_percent;
    double budget;          /* rows a head, or percent of the rows so far */
    uint32_t sinks, recent; /* VQ_KV_DEFAULT where the text says nothing */
    uint32_t every, prompt; /* rows between compactions */
    char calibration[512];  /* path, "" for none */
} vq_policy_choice;

/* Names, ranges and their sense together are checked; messages list what is allowed. */
vq_status vq_policy_parse(vq_policy_choice *out, const char *text, vq_error *err);

#endif
