/* One block an object: the same layout code runs twice, first to measure, then to place.
 *
 *     vq_arena a = {0};                       // measuring: no base, takes return NULL
 *     layout(&a, obj, params);                // obj->q = vq_arena_take(&a, n, sizeof *obj->q); ...
 *     VQ_TRY(vq_arena_alloc(&a, err));        // one aligned, zeroed block
 *     layout(&a, obj, params);                // placing
 */
#ifndef VQ_BASE_ARENA_H
#define VQ_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { VQ_ALIGN = 64 }; /* of every take */

typedef struct vq_arena {
    unsigned char *base; /* NULL while measuring; owned, freed by vq_arena_free */
    size_t at, n_bytes;
    bool overflow; /* a product did not fit; vq_arena_alloc then fails */
} vq_arena;

/* n * each bytes, 64-byte aligned.  NULL while measuring.  Products are checked. */
void *vq_arena_take(vq_arena *arena, size_t n, size_t each);
vq_status vq_arena_alloc(vq_arena *arena, vq_error *err);
void vq_arena_free(vq_arena *arena);

#endif
