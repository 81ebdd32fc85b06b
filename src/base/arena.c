/* One zeroed block an object.  The block comes from calloc, whose large blocks are fresh pages: memory that the object
 * does not touch does not become resident. */
#include "base/arena.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/checked.h"
#include "veloxquant/tokenizer.h"

void *vq_arena_take(vq_arena *arena, size_t n, size_t each)
{
    size_t n_bytes, end;
    if (arena->overflow || !vq_mul_size(n, each, &n_bytes) || !vq_add_size(arena->at, n_bytes, &end) ||
        !vq_add_size(end, VQ_ALIGN - 1, &end)) {
        arena->overflow = true;
        return NULL;
    }
    end &= ~(size_t)(VQ_ALIGN - 1);
    if (!arena->base) {
        arena->at = end;
        return NULL;
    }

    assert(end <= arena->n_bytes); /* the layout took more than when it was measured */
    void *p = arena->base + arena->at;
    arena->at = end;
    return p;
}

vq_status vq_arena_alloc(vq_arena *arena, vq_error *err)
{
    assert(!arena->base);
    /* The pointer that calloc gave lies just below the aligned base. */
    size_t room;
    if (arena->overflow || !vq_add_size(arena->at, VQ_ALIGN + sizeof(void *), &room))
        return vq_fail(err, VQ_ERR_NOMEM, "sizes do not fit into an address space");
    unsigned char *block = calloc(1, room);
    if (!block)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes", room);

    const uintptr_t first = (uintptr_t)block + sizeof(void *);
    const uintptr_t base = (first + VQ_ALIGN - 1) & ~(uintptr_t)(VQ_ALIGN - 1);
    arena->base = block + (base - (uintptr_t)block);
    ((void **)(void *)arena->base)[-1] = block;
    arena->n_bytes = arena->at;
    arena->at = 0;
    return VQ_OK;
}

void vq_arena_free(vq_arena *arena)
{
    if (!arena)
        return;
    if (arena->base)
        free(((void **)(void *)arena->base)[-1]);
    *arena = (vq_arena){0};
}

void vq_free(void *p) { free(p); }
