/* Measuring speed so that the figure means something: variants take turns within one run, on a rotating pool of inputs,
 * the first one runs twice in each round as its own control, and what else the machine does is recorded.  Every
 * benchmark of the tree uses it. */
#ifndef VELOXQUANT_MEASURE_H
#define VELOXQUANT_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

/* ---- what was taken: medians and quartiles ---- */

typedef struct vq_spread {
    double least, q1, median, q3; /* quartiles are interpolated between neighbours */
    size_t n;
} vq_spread;

/* Of samples [n], which stay as they are; zeros when n is 0. */
VQ_API vq_spread vq_spread_of(const double *samples, size_t n);

typedef enum vq_verdict { VQ_NOT_DISTINGUISHABLE, VQ_FASTER, VQ_SLOWER } vq_verdict;

/* "not distinguishable", "faster", "slower" */
VQ_API const char *vq_verdict_name(vq_verdict verdict);

/* Seconds of a variant against seconds of the base, round by round: what disturbs a round disturbs both. */
typedef struct vq_versus {
    vq_spread speed;  /* base / variant: above 1 the variant is faster */
    double low, high; /* interval of the median of `speed`, at least 95 %, from order statistics */
    vq_spread noise;  /* base / base again, in the same rounds: what 1.00 looks like here */
    double noise_low, noise_high;
    vq_verdict verdict;
} vq_versus;

/* base, again and variant [n]: seconds of the same rounds.  The verdict is faster or slower only when the interval of
 * the ratio lies outside that of the noise and does not hold 1; below 6 rounds no interval reaches 95 %, so nothing is
 * distinguishable. */
VQ_API vq_versus vq_versus_of(const double *base, const double *again, const double *variant, size_t n);

/* ---- what else the machine did ---- */

typedef struct vq_load_mark { /* counters at one moment */
    double wall, own;         /* seconds; `own` is this process and its finished children */
    double busy, steal;       /* seconds of all CPUs since the start of the machine */
    double runnable;          /* processes that run or wait now, this one not counted */
} vq_load_mark;

typedef struct vq_load {
    double others;  /* CPUs' worth of time that other processes took between the marks */
    double steal;   /* CPUs' worth of time that the host gave to other machines */
    double waiting; /* mean number of other processes that ran or waited, at the marks given */
    bool known;     /* false: /proc could not be read */
    bool quiet;     /* known, and all of them below the limits */
} vq_load;

/* More than this, and times are not to be trusted. */
#define VQ_QUIET_OTHERS 0.10
#define VQ_QUIET_STEAL 0.02
#define VQ_QUIET_WAITING 0.5

VQ_API void vq_load_take(vq_load_mark *mark);
/* Between the first and the last of marks [n], in order of time; n >= 2. */
VQ_API vq_load vq_load_between(const vq_load_mark *marks, size_t n);

/* ---- time ---- */

typedef enum vq_clock { VQ_CLOCK_WALL, VQ_CLOCK_THREAD, VQ_CLOCK_PROCESS } vq_clock; /* CPU time of the last two */

/* Seconds since some moment, for what cannot take turns within one process. */
VQ_API double vq_clock_seconds(vq_clock clock);

/* ---- taking turns ---- */

typedef struct vq_variant {
    const char *name;
    /* One pass over input `input` (below n_inputs). */
    vq_status (*run)(void *arg, uint32_t input, vq_error *err);
    void *arg;
} vq_variant;

typedef struct vq_turns {
    const vq_variant *variants; /* [n_variants]; the first is the base, and runs again as its own control */
    size_t n_variants;
    uint32_t n_inputs; /* the pool that passes rotate through; at least 2 */
    /* The bytes of an input, so that a pool of equal ones is refused: it would be answered from caches and branch
     * history.  NULL: the caller vouches for them. */
    const void *(*input)(void *arg, uint32_t input, size_t *n_bytes);
    void *input_arg;
    uint32_t n_rounds;
    double sample_seconds; /* passes are repeated within a sample until it is as long */
    bool cpu_time;         /* of this thread, instead of wall time: for kernels that run on one thread */
    bool need_quiet;       /* fail when the machine was not quiet */
    bool (*progress)(void *arg, uint32_t done, uint32_t all); /* after each round; false cancels; may be NULL */
    void *progress_arg;
} vq_turns;

/* seconds [n_variants + 1][n_rounds] of one pass each, the control last; *load of the whole run.  VQ_ERR_ARG: fewer
 * than two inputs, or equal ones, named; VQ_ERR_UNSUPPORTED: need_quiet, and it was not; VQ_ERR_CANCELLED.  What was
 * taken until then is in `seconds`. */
VQ_API vq_status vq_take_turns(const vq_turns *turns, double *seconds, vq_load *load, vq_error *err);

#endif
