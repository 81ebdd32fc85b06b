/* Quantising with error feedback: moments of what matrices read are made for as many layers at a time as memory allows,
 * each time by a run of the text, and factored when the first matrix asks for them. */
#include "model/quantize.h"

#include <stdlib.h>
#include <string.h>

#include "engine/input_moments.h"
#include "engine/sensitivity.h"
#include "quant/feedback.h"

enum { N_KINDS = VQ_INPUT_DOWN + 1, DEFAULT_BYTES = 256 << 20 };

typedef struct feeder {
    const vq_quantize_params *p;
    vq_input_moment *moments; /* [n] of consecutive layers and kinds */
    bool *factored;           /* [n] */
    size_t n;
    float *scratch;
} feeder;

void vq_quantize_params_init(vq_quantize_params *params) { *params = (vq_quantize_params){.bits = 4}; }

static void drop_moments(feeder *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->moments[i].sum);
    f->n = 0;
}

static size_t moment_bytes(const vq_model *model, vq_input_kind kind)
{
    const size_t width = vq_input_width(model, kind);
    return (vq_feedback_floats((uint32_t)width) * sizeof(float) + 63) / 64 * 64;
}

/* Asks whether to stop; the bytes of the source are no further. */
static bool go_on(void *arg, size_t done, size_t all)
{
    (void)all;
    const vq_quantize_params *p = arg;
    return done == 0 || !p->work || p->work(p->user, 0, 1);
}

/* From one layer and kind on. */
static vq_status make_moments(feeder *f, uint32_t layer, vq_input_kind kind, vq_error *err)
{
    const vq_model *m = f->p->model;
    const uint32_t n_layers = vq_model_get_info(m)->n_layers;
    size_t left = f->p->feedback_bytes ? f->p->feedback_bytes : DEFAULT_BYTES;
    drop_moments(f);
    for (uint32_t at = layer * N_KINDS + (uint32_t)kind; at < n_layers * N_KINDS; at++) {
        const vq_input_kind next = (vq_input_kind)(at % N_KINDS);
        const size_t n_bytes = moment_bytes(m, next);
        if (f->n > 0 && n_bytes > left)
            break;
        left -= n_bytes < left ? n_bytes : left;
        float *sum = aligned_alloc(64, n_bytes);
        if (!sum)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for moments of %zu bytes", n_bytes);
        memset(sum, 0, n_bytes);
        f->factored[f->n] = false;
        f->moments[f->n++] = (vq_input_moment){at / N_KINDS, next, sum};
    }
    const vq_input_moments_params p = {.pool = f->p->pool, .progress = go_on, .arg = (void *)(uintptr_t)f->p};
    return vq_input_moments(m, f->p->ids, f->p->n_ids, &p, f->moments, f->n, err);
}

static size_t find(const feeder *f, uint32_t layer, vq_input_kind kind)
{
    size_t i = 0;
    while (i < f->n && (f->moments[i].layer != layer || f->moments[i].kind != kind))
        i++;
    return i;
}

static vq_status factor(void *arg, uint32_t layer, vq_input_kind kind, const vq_rotation *rotation, const float **out,
                        vq_error *err)
{
    feeder *f = arg;
    if (layer >= vq_model_get_info(f->p->model)->n_layers || vq_input_width(f->p->model, kind) != rotation->d)
        return vq_fail(err, VQ_ERR_MISMATCH, "the model for feedback is not the source: layer %u, rows of %u values",
                       layer, rotation->d);
    if (find(f, layer, kind) == f->n)
        VQ_TRY(make_moments(f, layer, kind, err));
    const size_t i = find(f, layer, kind);
    if (!f->factored[i])
        VQ_TRY(vq_feedback_factor(f->moments[i].sum, rotation, f->scratch, err));
    f->factored[i] = true;
    *out = f->moments[i].sum;
    return VQ_OK;
}

static vq_status with_feedback(const vq_gguf *source, const char *path, const vq_quantize_params *params,
                               const vq_sensitivity_source *sensitivity, vq_error *err)
{
    const vq_model_info *info = vq_model_get_info(params->model);
    uint32_t widest = 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        const uint32_t width = vq_input_width(params->model, (vq_input_kind)kind);
        widest = width > widest ? width : widest;
    }
    feeder f = {.p = params,
                .moments = calloc((size_t)info->n_layers * N_KINDS, sizeof *f.moments),
                .factored = calloc((size_t)info->n_layers * N_KINDS, sizeof *f.factored),
                .scratch = calloc((size_t)widest, sizeof *f.scratch)};
    const vq_feedback_source feedback = {&f, factor};
    const vq_status status = f.moments && f.factored && f.scratch
                                 ? vq_quantize_file(source, path, params, &feedback, sensitivity, err)
                                 : vq_fail(err, VQ_ERR_NOMEM, "no memory for the moments of %u layers", info->n_layers);
    drop_moments(&f);
    free(f.moments);
    free(f.factored);
    free(f.scratch);
    return status;
}

static vq_status measure(void *arg, const vq_gguf *source, const bool *wanted, double *losses, vq_error *err)
{
    return vq_sensitivity(arg, source, wanted, losses, err);
}

vq_status vq_quantize(const vq_gguf *source, const char *path, const vq_quantize_params *params, vq_error *err)
{
    const vq_sensitivity_source sensitivity = {(void *)(uintptr_t)params, measure};
    const vq_sensitivity_source *measures = params->model && params->sensitivity_ids ? &sensitivity : NULL;
    return params->model && params->ids ? with_feedback(source, path, params, measures, err)
                                        : vq_quantize_file(source, path, params, NULL, measures, err);
}
