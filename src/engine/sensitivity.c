/* One matrix after the other takes its packed form in a copy of the model's table of layers; the weights themselves are
 * the open model's.  All runs see the same tokens, so that what they differ in is the matrix. */
#include "engine/sensitivity.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "engine/divergence.h"
#include "engine/session.h"
#include "model/model.h"

enum { PIECE_BYTES = 1 << 22, MOST_WIDTHS = 3, UNSCORED = 8 /* the first of so many parts of the text */ };

typedef struct prober {
    const vq_quantize_params *p;
    vq_model model;      /* with layers of its own */
    vq_session *session; /* of that */
    uint32_t n, first;   /* tokens, the first one that is scored */
    float *expected;     /* [n - first][n_vocab] logits of the source */
    double *norms;       /* [n - first] of those */
    double sum;          /* of divergences in the run that goes on */
    bool has_expected;
    vq_vec_kernels vec;
    vq_codes_kernels codes;
    vq_input_rotation *rotations[MOST_WIDTHS];
    uint32_t n_rotations;
    void *packed; /* the matrix that is tried */
} prober;

/* ---- the matrix ---- */

static vq_status rotation_of(prober *b, uint32_t width, const vq_rotation **out, vq_error *err)
{
    uint32_t i = 0;
    while (i < b->n_rotations && b->rotations[i]->r.d != width)
        i++;
    if (i == MOST_WIDTHS)
        return vq_fail(err, VQ_ERR_LIMIT, "matrices of more than %d widths", MOST_WIDTHS);
    if (i == b->n_rotations) {
        VQ_TRY(vq_input_rotation_open(&b->rotations[i], &b->codes, width, b->p->qr, b->p->seed, err));
        b->n_rotations++;
    }
    *out = &b->rotations[i]->r;
    return VQ_OK;
}

static void encode(const prober *b, const vq_linear *l, const vq_matrix *from, float *x, uint32_t most, void *scratch)
{
    const size_t row_bytes = vq_type_row_bytes(from->type, from->n_in);
    for (uint32_t first = 0; first < l->n_out; first += most) {
        const uint32_t n = l->n_out - first < most ? l->n_out - first : most;
        vq_type_dequantize(from->type, (const char *)from->data + first * row_bytes, x, (uint64_t)n * l->n_in);
        vq_linear_encode(l, b->p->pool, b->packed, first, n, x, NULL, scratch);
    }
}

/* from, with few bits. */
static vq_status pack(prober *b, const vq_matrix *from, vq_matrix *out, vq_error *err)
{
    const vq_rotation *rotation = NULL;
    VQ_TRY(vq_linear_check(VQ_SENSITIVITY_BITS, from->n_in, from->n_out, err));
    VQ_TRY(rotation_of(b, from->n_in, &rotation, err));
    const vq_linear l = {VQ_SENSITIVITY_BITS, from->n_in, from->n_out, rotation, &b->codes};
    const size_t of_piece = PIECE_BYTES / (l.n_in * sizeof(float));
    const uint32_t most = of_piece < 1 ? 1 : of_piece < l.n_out ? (uint32_t)of_piece : l.n_out;
    const size_t scratch_bytes = (vq_linear_scratch_bytes(l.n_in, vq_pool_n_threads(b->p->pool)) + 63) / 64 * 64;
    free(b->packed);
    b->packed = aligned_alloc(64, vq_linear_bytes(l.bits, l.n_in, l.n_out));
    void *scratch = aligned_alloc(64, scratch_bytes);
    float *x = malloc((size_t)most * l.n_in * sizeof *x);
    const bool fine = b->packed && scratch && x;
    if (fine) {
        encode(b, &l, from, x, most, scratch);
        *out = vq_linear_matrix(&l, b->packed);
    }
    free(scratch);
    free(x);
    return fine ? VQ_OK : vq_fail(err, VQ_ERR_NOMEM, "no memory for a matrix of %u x %u", l.n_in, l.n_out);
}

/* ---- runs ---- */

static bool see(void *arg, size_t index, const float *logits)
{
    prober *b = arg;
    const size_t i = index - b->first, n_vocab = b->model.hp.n_vocab;
    float *expected = b->expected + i * n_vocab;
    const double norm = vq_log_sum_exp(&b->vec, logits, n_vocab);
    if (!b->has_expected) {
        memcpy(expected, logits, n_vocab * sizeof *logits);
        b->norms[i] = norm;
    } else {
        b->sum += vq_kl_divergence(&b->vec, expected, b->norms[i], logits, norm, n_vocab);
    }
    return true;
}

static vq_status run(prober *b, vq_error *err)
{
    b->sum = 0;
    VQ_TRY(vq_session_truncate(b->session, 0, err));
    return vq_session_eval(b->session, b->p->sensitivity_ids, b->n, see, b->first, b, err);
}

/* With a packed matrix in place: its scratch belongs to the session then. */
static vq_status open_session(prober *b, vq_error *err)
{
    vq_session_params s;
    vq_session_params_init(&s);
    s.n_ctx = b->n;
    s.pool = b->p->pool;
    s.exact = true;
    return vq_session_open(&b->session, &b->model, &s, err);
}

/* *place: one of b's own layers. */
static vq_status measure_one(prober *b, vq_matrix *place, double *loss, vq_error *err)
{
    const vq_matrix own = *place;
    vq_matrix packed;
    VQ_TRY(pack(b, &own, &packed, err));
    *place = packed;
    vq_status status = b->session ? VQ_OK : open_session(b, err);
    if (status == VQ_OK && !b->has_expected) {
        *place = own;
        status = run(b, err);
        b->has_expected = true;
        *place = packed;
    }
    if (status == VQ_OK)
        status = run(b, err);
    *place = own;
    const double mean = b->sum / (b->n - b->first);
    *loss = mean > 0 ? mean : 0; /* rounding; no number where logits are none */
    if (status == VQ_OK && !(mean < 1e30))
        status = vq_fail(err, VQ_ERR_NONFINITE, "logits are no numbers when it has %d bits", VQ_SENSITIVITY_BITS);
    return status;
}

static vq_status find(prober *b, const vq_tensor *t, vq_matrix **out, vq_error *err)
{
    uint32_t layer;
    vq_input_kind kind;
    size_t at;
    if (!vq_quantize_place(t->name, &layer, &kind, &at))
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "what this matrix does is not known");
    *out = layer < b->model.hp.n_layers ? (vq_matrix *)(void *)((char *)&b->model.layers[layer] + at) : NULL;
    if (!*out || (*out)->n_in != t->dims[0] || (*out)->n_out != t->dims[1] || (*out)->type != t->type)
        return vq_fail(err, VQ_ERR_MISMATCH, "the model that sensitivity is measured with is not the source");
    if (vq_type_packed_bits(t->type))
        return vq_fail(err, VQ_ERR_ARG, "is %s already: quantise from the source of this reservoir",
                       vq_type_name(t->type));
    return VQ_OK;
}

static vq_status measure(prober *b, const vq_gguf *source, const bool *wanted, double *losses, vq_error *err)
{
    uint64_t done = 0, all = 0;
    for (uint64_t i = 0; i < vq_gguf_n_tensors(source); i++)
        all += wanted[i];
    for (uint64_t i = 0; i < vq_gguf_n_tensors(source); i++) {
        if (!wanted[i])
            continue;
        const vq_tensor *t = vq_gguf_tensor_at(source, i);
        vq_matrix *place = NULL;
        vq_status status = find(b, t, &place, err);
        if (status == VQ_OK)
            status = measure_one(b, place, &losses[i], err);
        if (status != VQ_OK)
            return vq_fail_prefix(err, status, "%.*s", (int)t->name.n_bytes, t->name.at);
        done++;
        const bool goes_on =
            b->p->measured ? b->p->measured(b->p->user, done, all) : !b->p->work || b->p->work(b->p->user, 0, 1);
        if (!goes_on)
            return vq_fail(err, VQ_ERR_CANCELLED, "stopped");
    }
    return VQ_OK;
}

vq_status vq_sensitivity(const vq_quantize_params *p, const vq_gguf *source, const bool *wanted, double *losses,
                         vq_error *err)
{
    const vq_hparams *hp = &p->model->hp;
    size_t n = p->n_sensitivity_ids;
    if (n < VQ_SENSITIVITY_LEAST)
        return vq_fail(err, VQ_ERR_ARG, "%zu tokens to measure sensitivity with, must be %d or more", n,
                       VQ_SENSITIVITY_LEAST);
    n = n < VQ_SENSITIVITY_MOST ? n : VQ_SENSITIVITY_MOST;
    n = n < hp->n_ctx_train ? n : hp->n_ctx_train;
    prober b = {.p = p, .model = *p->model, .n = (uint32_t)n, .first = (uint32_t)n / UNSCORED};
    const size_t n_scored = b.n - b.first;
    b.model.layers = calloc(hp->n_layers, sizeof *b.model.layers);
    b.expected = malloc(n_scored * hp->n_vocab * sizeof *b.expected);
    b.norms = malloc(n_scored * sizeof *b.norms);
    vq_vec_kernels_init(&b.vec, vq_cpu_detect());
    vq_codes_kernels_init(&b.codes, vq_cpu_detect());
    vq_status status = VQ_OK;
    if (b.model.layers && b.expected && b.norms) {
        memcpy(b.model.layers, p->model->layers, hp->n_layers * sizeof *b.model.layers);
        status = measure(&b, source, wanted, losses, err);
    } else {
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for the logits of %zu tokens", n_scored);
    }
    vq_session_close(b.session);
    for (uint32_t i = 0; i < b.n_rotations; i++)
        vq_input_rotation_close(b.rotations[i]);
    free(b.packed);
    free(b.model.layers);
    free(b.expected);
    free(b.norms);
    return status;
}
