/* Golden files (drawn in reference.py), and running a model over ids in chosen chunks. */
#ifndef TESTS_GOLDEN_GOLDEN_H
#define TESTS_GOLDEN_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/kv.h"
#include "veloxquant/model.h"

typedef struct golden {
    unsigned char *bytes; /* the file */
    uint32_t n, n_top, n_fixed;
    const int32_t *ids;       /* [n] */
    const int32_t *fixed_ids; /* [n_fixed] */
    const unsigned char *rows;
} golden;

/* tests/golden/NAME.golden below $VQ_SOURCE_ROOT; ends the program when it is missing or malformed. */
golden golden_load(const char *name);
void golden_free(golden *g);

/* The largest absolute difference of logits [n][n_vocab] from the golden ones, and of their log-sum-exp.  NaN counts as
 * infinite. */
double golden_difference(const golden *g, const float *logits, uint32_t n_vocab);

typedef struct golden_run {
    const vq_model *model;
    uint32_t chunk; /* tokens a forward pass; 0: all at once */
    bool exact;
    const char *cache; /* codec of keys and values */
    vq_pool *pool;
} golden_run;

/* Logits [n][n_vocab] of all positions, malloc'ed; ends the program on failure. */
float *golden_logits(const golden_run *run, const int32_t *ids, uint32_t n);

/* Mean over rows of KL(p || q) of two sets of logits [n][n_vocab], in nats. */
double golden_mean_kl(const float *p, const float *q, uint32_t n, uint32_t n_vocab);

#endif
