/* Sharing a budget out: of every item one choice, so that costs together stay within the budget and losses are small.
 *
 * Each item starts at its cheapest choice.  Steps along the lower convex hull of (cost, loss) are then taken in the
 * order of loss saved by cost, over all items; what is left goes into single changes that save most.  Between two steps
 * of the first part no other choices of the same cost lose less, and where all steps cost the same the result is the
 * best there is.  The same numbers give the same choices everywhere: ties go to the lower item. */
#ifndef VQ_QUANT_ALLOCATE_H
#define VQ_QUANT_ALLOCATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct vq_choice {
    uint64_t cost;
    double loss; /* finite */
} vq_choice;

/* choices [n_items][n_choices], n_choices at least 1 -> picked [n_items].  VQ_ERR_FULL when the cheapest choices exceed
 * the budget, which are then picked; VQ_ERR_NOMEM. */
vq_status vq_allocate(uint32_t *picked, const vq_choice *choices, size_t n_items, uint32_t n_choices, uint64_t budget,
                      vq_error *err);
/* The cheapest choices; returns what they cost. */
uint64_t vq_allocate_least(uint32_t *picked, const vq_choice *choices, size_t n_items, uint32_t n_choices);

#endif
