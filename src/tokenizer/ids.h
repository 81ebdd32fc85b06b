/* A growing list of token ids. */
#ifndef VQ_TOKENIZER_IDS_H
#define VQ_TOKENIZER_IDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

typedef struct vq_ids {
    int32_t *at; /* malloc'ed, freed by the owner */
    size_t n, room;
} vq_ids;

/* Room for n more. */
static inline vq_status vq_ids_reserve(vq_ids *ids, size_t n, vq_error *err)
{
    if (ids->at && n <= ids->room - ids->n)
        return VQ_OK;
    const size_t room = ids->n + n + ids->room / 2 + 64;
    int32_t *grown = realloc(ids->at, room * sizeof *grown);
    if (!grown) {
        vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu token ids", room);
        return VQ_ERR_NOMEM;
    }
    ids->at = grown;
    ids->room = room;
    return VQ_OK;
}

static inline vq_status vq_ids_push(vq_ids *ids, int32_t id, vq_error *err)
{
    VQ_TRY(vq_ids_reserve(ids, 1, err));
    ids->at[ids->n++] = id;
    return VQ_OK;
}

#endif
