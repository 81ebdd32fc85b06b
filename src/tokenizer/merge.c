/* Merging pairs in order of their keys. */
#include "tokenizer/merge.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"

vq_status vq_merger_reserve(vq_merger *m, size_t n, vq_error *err)
{
    if (n <= m->n_room)
        return VQ_OK;
    size_t room = n + n / 2, n_bytes;
    if (room < 256)
        room = 256;
    vq_merge_node *nodes =
        room < UINT32_MAX && vq_mul_size(room, sizeof *nodes, &n_bytes) ? realloc(m->nodes, n_bytes) : NULL;
    if (!nodes)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a word of %zu symbols", n);
    m->nodes = nodes;
    m->n_room = room;
    return VQ_OK;
}

/* Every merge takes one entry from the heap and adds two at most, so that 2 n entries always suffice. */
static vq_status reserve_heap(vq_merger *m, size_t n, vq_error *err)
{
    if (n <= m->n_heap_room)
        return VQ_OK;
    free(m->heap);
    m->n_heap_room = 0;
    m->heap = malloc(2 * n * sizeof *m->heap);
    if (!m->heap)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to merge a word of %zu symbols", n);
    m->n_heap_room = n;
    return VQ_OK;
}

void vq_merger_free(vq_merger *m)
{
    free(m->nodes);
    free(m->heap);
    *m = (vq_merger){0};
}

/* nodes[at] and the one after it become one; the keys of both its pairs are renewed. */
static void join(vq_merger *m, uint32_t at, vq_merge_pair pair, const void *arg)
{
    vq_merge_node *left = &m->nodes[at];
    vq_merge_node *right = &m->nodes[left->next];
    left->id = left->pair_id;
    left->next = right->next;
    left->key = VQ_MERGE_NONE;
    right->key = VQ_MERGE_NONE;
    if (left->next != VQ_MERGE_END) {
        m->nodes[left->next].prev = at;
        pair(arg, m, left, &m->nodes[left->next]);
    }
    if (left->prev != VQ_MERGE_END)
        pair(arg, m, &m->nodes[left->prev], left);
}

static void run_short(vq_merger *m, vq_merge_pair pair, const void *arg)
{
    for (;;) {
        uint32_t best = VQ_MERGE_END, key = VQ_MERGE_NONE;
        for (uint32_t i = 0; i != VQ_MERGE_END; i = m->nodes[i].next)
            if (m->nodes[i].key < key) {
                key = m->nodes[i].key;
                best = i;
            }
        if (best == VQ_MERGE_END)
            return;
        join(m, best, pair, arg);
    }
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    const uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void sift_up(uint64_t *heap, size_t at)
{
    const uint64_t value = heap[at];
    for (size_t parent; at > 0 && heap[parent = (at - 1) / 2] > value; at = parent)
        heap[at] = heap[parent];
    heap[at] = value;
}

static size_t push(vq_merger *m, size_t n_heap, uint32_t at)
{
    const uint32_t key = m->nodes[at].key;
    if (key == VQ_MERGE_NONE)
        return n_heap;
    m->heap[n_heap] = (uint64_t)key << 32 | at;
    sift_up(m->heap, n_heap);
    return n_heap + 1;
}

static void run_long(vq_merger *m, uint32_t n, vq_merge_pair pair, const void *arg)
{
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        if (m->nodes[i].key != VQ_MERGE_NONE)
            m->heap[n_heap++] = (uint64_t)m->nodes[i].key << 32 | i;
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(m->heap, n_heap, i);
    while (n_heap > 0) {
        const uint32_t at = (uint32_t)m->heap[0], key = (uint32_t)(m->heap[0] >> 32);
        m->heap[0] = m->heap[--n_heap];
        if (n_heap > 0)
            sift_down(m->heap, n_heap, 0);
        if (m->nodes[at].key != key)
            continue; /* one of the two has meanwhile become part of another token */
        join(m, at, pair, arg);
        n_heap = push(m, n_heap, at);
        if (m->nodes[at].prev != VQ_MERGE_END)
            n_heap = push(m, n_heap, m->nodes[at].prev);
    }
}

vq_status vq_merger_run(vq_merger *m, uint32_t n, vq_merge_pair pair, const void *arg, vq_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        m->nodes[i].prev = i == 0 ? VQ_MERGE_END : i - 1;
        m->nodes[i].next = i + 1 == n ? VQ_MERGE_END : i + 1;
        m->nodes[i].key = VQ_MERGE_NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        pair(arg, m, &m->nodes[i], &m->nodes[i + 1]);
    if (n <= VQ_MERGE_SHORT) {
        run_short(m, pair, arg);
        return VQ_OK;
    }
    VQ_TRY(reserve_heap(m, n, err));
    run_long(m, n, pair, arg);
    return VQ_OK;
}
