/* Writing an open model to a reservoir, and putting another file's layers under it. */
#include "veloxquant/reservoir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/reservoir.h"
#include "model/model.h"

enum { PIECE_BYTES = 1 << 22 }; /* between two looks at whether to stop */

static bool in_layer(vq_str name) { return name.n_bytes > 4 && memcmp(name.at, "blk.", 4) == 0; }

/* ---- saving ---- */

typedef struct saver {
    const vq_model *model;
    vq_reservoir_writer *w;
    vq_work_fn work;
    void *user;
    uint64_t done, all;
} saver;

static vq_status add_tensor(saver *s, const vq_gguf *from, uint64_t index, vq_error *err)
{
    const vq_tensor *t = vq_gguf_tensor_at(from, index);
    VQ_TRY(vq_reservoir_writer_begin(s->w, t, err));
    for (uint64_t at = 0; at < t->n_bytes; at += PIECE_BYTES) {
        const uint64_t n = t->n_bytes - at < PIECE_BYTES ? t->n_bytes - at : PIECE_BYTES;
        VQ_TRY(vq_reservoir_writer_add(s->w, (const char *)t->data + at, n, err));
        s->done += n;
        if (s->work && !s->work(s->user, s->done, s->all))
            return vq_fail(err, VQ_ERR_CANCELLED, "stopped");
    }
    return vq_reservoir_writer_end(s->w, from->reservoir ? from->reservoir->errors[index] : NAN, err);
}

/* The file that a tensor of the model comes from. */
static const vq_gguf *home(const vq_model *m, vq_str name)
{
    return m->grafted && in_layer(name) ? m->grafted->gguf : m->gguf;
}

static vq_status add_tensors(saver *s, const vq_gguf *from, vq_error *err)
{
    for (uint64_t i = 0; i < vq_gguf_n_tensors(from); i++)
        if (home(s->model, vq_gguf_tensor_at(from, i)->name) == from)
            VQ_TRY(add_tensor(s, from, i, err));
    return VQ_OK;
}

static vq_status add_rotations(saver *s, const vq_gguf *from, vq_error *err)
{
    for (uint32_t i = 0; from->reservoir && i < from->reservoir->n_rotations; i++)
        VQ_TRY(vq_reservoir_writer_rotation(s->w, &from->reservoir->rotations[i], err));
    return VQ_OK;
}

static void count_bytes(saver *s, const vq_gguf *from)
{
    for (uint64_t i = 0; i < vq_gguf_n_tensors(from); i++)
        if (home(s->model, vq_gguf_tensor_at(from, i)->name) == from)
            s->all += vq_gguf_tensor_at(from, i)->n_bytes;
}

static vq_status save(saver *s, vq_error *err)
{
    const vq_model *m = s->model;
    const vq_gguf *grafted = m->grafted ? m->grafted->gguf : NULL;
    count_bytes(s, m->gguf);
    if (grafted)
        count_bytes(s, grafted);
    VQ_TRY(add_rotations(s, grafted ? grafted : m->gguf, err));
    VQ_TRY(add_tensors(s, m->gguf, err));
    return grafted ? add_tensors(s, grafted, err) : VQ_OK;
}

vq_status vq_model_save(const vq_model *model, const char *path, vq_work_fn work, void *user, vq_error *err)
{
    saver s = {.model = model, .work = work, .user = user};
    VQ_TRY(vq_model_check_whole(model, err));
    VQ_TRY(vq_reservoir_writer_open(&s.w, path, model->gguf, err));
    const vq_status status = save(&s, err);
    if (status == VQ_OK)
        return vq_reservoir_writer_commit(s.w, err);
    vq_reservoir_writer_abort(s.w);
    return status;
}

/* ---- grafting ---- */

#define SAME(field)                                                                                                    \
    if (a->field != b->field)                                                                                          \
    return vq_fail(err, VQ_ERR_MISMATCH, "layers with " #field " %g do not go under a model with %g",                  \
                   (double)b->field, (double)a->field)

static vq_status check_shapes(const vq_model *model, const vq_model *donor, vq_error *err)
{
    const vq_hparams *a = &model->hp, *b = &donor->hp;
    if (model->family != donor->family)
        return vq_fail(err, VQ_ERR_MISMATCH, "layers of the family %s do not go under a %s model", donor->family->name,
                       model->family->name);
    SAME(n_layers);
    SAME(n_embd);
    SAME(n_ff);
    SAME(n_heads);
    SAME(n_kv_heads);
    SAME(d_k);
    SAME(d_v);
    SAME(n_rot);
    SAME(window);
    SAME(norm_eps);
    SAME(attn_scale);
    SAME(embd_scale);
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (model->layers[i].window != donor->layers[i].window || model->layers[i].rope != donor->layers[i].rope)
            return vq_fail(err, VQ_ERR_MISMATCH, "layer %u sees another window or turns otherwise in the two files", i);
    for (int rope = 0; rope < VQ_N_ROPES; rope++) {
        const double *x = model->ropes[rope].freq, *y = donor->ropes[rope].freq;
        if (!x != !y || (x && memcmp(x, y, a->n_rot / 2 * sizeof *x) != 0))
            return vq_fail(err, VQ_ERR_MISMATCH, "the two files turn positions by other frequencies");
    }
    return VQ_OK;
}

vq_status vq_model_graft(vq_model *m, const char *path, vq_error *err)
{
    vq_model *donor;
    VQ_TRY(vq_model_open(&donor, path, err));
    const vq_status status = check_shapes(m, donor, err);
    if (status != VQ_OK) {
        vq_fail_prefix(err, status, "%s", path);
        vq_model_close(donor);
        return status;
    }
    vq_model_close(m->grafted);
    m->grafted = donor;
    memcpy(m->layers, donor->layers, m->hp.n_layers * sizeof *m->layers);
    vq_model_describe(m);
    return VQ_OK;
}
