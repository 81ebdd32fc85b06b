/* Rotations of the inputs of packed matrices: mapped where a reservoir keeps them, else drawn again and held to the
 * hash that the writer noted. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "formats/reservoir.h"
#include "model/model.h"

/* LAPACK is not asked and every sum has one order, but a library's sqrt, log or cosine may differ in a last bit. */
static vq_status check_hash(const vq_gguf *g, const vq_stored_rotation *stored, uint64_t hash, vq_error *err)
{
    if (hash == stored->hash)
        return VQ_OK;
    return vq_fail(err, VQ_ERR_MISMATCH,
                   "the rotation of width %u drawn here (%016" PRIx64
                   ") is not the one that %s was packed with (%016" PRIx64
                   "); quantise again here, or with --rotation qr --persist-rotation, which keeps it in the file",
                   stored->width, hash, vq_gguf_path(g), stored->hash);
}

static vq_status open_one(vq_model *m, const vq_stored_rotation *stored, vq_error *err)
{
    vq_input_rotation **out = &m->rotations[m->n_rotations];
    if (stored->matrix)
        VQ_TRY(vq_input_rotation_map(out, &m->codes, stored->width, stored->matrix, err));
    else
        VQ_TRY(vq_input_rotation_open(out, &m->codes, stored->width, stored->haar, stored->seed, err));
    m->n_rotations++;
    return stored->matrix ? VQ_OK : check_hash(m->gguf, stored, vq_input_rotation_hash(*out), err);
}

vq_status vq_rotations_open(vq_model *m, vq_error *err)
{
    const vq_reservoir *r = m->gguf->reservoir;
    if (!r || !r->n_rotations)
        return VQ_OK;
    vq_codes_kernels_init(&m->codes, vq_cpu_detect());
    m->rotations = calloc(r->n_rotations, sizeof *m->rotations);
    if (!m->rotations)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u rotations", r->n_rotations);
    for (uint32_t i = 0; i < r->n_rotations; i++)
        VQ_TRY(open_one(m, &r->rotations[i], err));
    return VQ_OK;
}

void vq_rotations_close(vq_model *m)
{
    for (uint32_t i = 0; i < m->n_rotations; i++)
        vq_input_rotation_close(m->rotations[i]);
    free(m->rotations);
    m->rotations = NULL;
    m->n_rotations = 0;
}

const vq_rotation *vq_rotation_find(const vq_model *m, uint32_t width)
{
    for (uint32_t i = 0; i < m->n_rotations; i++)
        if (m->rotations[i]->r.d == width)
            return &m->rotations[i]->r;
    return NULL;
}
