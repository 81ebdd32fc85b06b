/* The merging loop that both kinds of BPE share: of all adjacent pairs that some token spells, the one with the lowest
 * key (then the leftmost) becomes that token, until no pair is left.
 *
 * A linked list of nodes; short words look through it for the best pair, long ones (a pre-token may be the whole text)
 * keep a heap of (key, position), which makes it O(n log n).  Both give the same result. */
#ifndef VQ_TOKENIZER_MERGE_H
#define VQ_TOKENIZER_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { VQ_MERGE_END = UINT32_MAX, VQ_MERGE_NONE = UINT32_MAX, VQ_MERGE_SHORT = 24 };

typedef struct vq_merge_node {
    uint32_t start;      /* offset of its first byte in the word; its end is the start of the next */
    uint32_t next, prev; /* VQ_MERGE_END at the ends */
    int32_t id;          /* its token */
    uint32_t key;        /* of the pair (this, next); VQ_MERGE_NONE when no token spells it, or merged away */
    int32_t pair_id;     /* what that pair becomes */
} vq_merge_node;

typedef struct vq_merger {
    vq_merge_node *nodes; /* [n_room]; results are read from node 0 along next */
    uint64_t *heap;       /* [2 * n_heap_room] key << 32 | position */
    size_t n_room, n_heap_room;
    const char *word; /* for the pair function */
    uint32_t n_bytes;
} vq_merger;

/* Fills key and pair_id of nodes[left] for the pair (left, right). */
typedef void (*vq_merge_pair)(const void *arg, const vq_merger *m, vq_merge_node *left, const vq_merge_node *right);

/* Room for n nodes (n >= 1); the caller then sets start and id of each. */
vq_status vq_merger_reserve(vq_merger *m, size_t n, vq_error *err);
vq_status vq_merger_run(vq_merger *m, uint32_t n, vq_merge_pair pair, const void *arg, vq_error *err);
void vq_merger_free(vq_merger *m);

static inline uint32_t vq_merge_node_end(const vq_merger *m, const vq_merge_node *node)
{
    return node->next == VQ_MERGE_END ? m->n_bytes : m->nodes[node->next].start;
}

#endif
