/* Model file to reservoir, tensor by tensor and in pieces of rows: what is held is one packed matrix, a few rows as
 * floats, and the tables of the file. */
#include "model/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/reservoir.h"
#include "formats/rows.h"
#include "model/model.h"
#include "quant/feedback.h"

enum {
    PIECE_BYTES = 1 << 22, /* of rows as floats, and of bytes that are copied */
    MOST_WIDTHS = 64,
};

typedef struct place {
    uint32_t layer;
    uint64_t index;
} place;

typedef struct job {
    const vq_gguf *g;
    const vq_quantize_params *p;
    const vq_feedback_source *feedback;       /* NULL: none */
    const vq_sensitivity_source *sensitivity; /* likewise */
    vq_reservoir_writer *w;
    vq_codes_kernels k;
    vq_carry_kernels carry;
    vq_type *types;                            /* [tensors] */
    double *losses;                            /* [tensors] measured, or NAN */
    place *order;                              /* [tensors] */
    vq_input_rotation *rotations[MOST_WIDTHS]; /* one for each width of a packed matrix */
    uint32_t n_rotations;
    uint64_t done, all;

    /* of the tensor in progress */
    uint64_t index;
    const vq_tensor *t;
    uint64_t first;       /* row of the piece */
    uint32_t n_rows;      /* of the piece */
    float *x;             /* [n_rows][n_in] */
    uint8_t *blocks;      /* of a piece in Q8_0 */
    bool *fine;           /* [n_rows] all values are finite */
    vq_row_error *errors; /* [n_rows] */
} job;

static vq_status step(job *j, uint64_t n_bytes, vq_error *err)
{
    j->done += n_bytes;
    if (j->p->work && !j->p->work(j->p->user, j->done, j->all))
        return vq_fail(err, VQ_ERR_CANCELLED, "stopped");
    return vq_gguf_check_whole(j->g, err);
}

/* ---- rotations ---- */

static const vq_input_rotation *rotation_of(const job *j, uint32_t width)
{
    for (uint32_t i = 0; i < j->n_rotations; i++)
        if (j->rotations[i]->r.d == width)
            return j->rotations[i];
    return NULL;
}

static vq_status add_rotation(job *j, uint32_t width, vq_error *err)
{
    if (j->n_rotations == MOST_WIDTHS)
        return vq_fail(err, VQ_ERR_LIMIT, "matrices of more than %d widths", MOST_WIDTHS);
    vq_input_rotation *r;
    VQ_TRY(vq_input_rotation_open(&r, &j->k, width, j->p->qr, j->p->seed, err));
    j->rotations[j->n_rotations++] = r;
    const vq_stored_rotation stored = {.width = width,
                                       .haar = j->p->qr,
                                       .seed = j->p->seed,
                                       .hash = vq_input_rotation_hash(r),
                                       .matrix = j->p->qr && j->p->keep_rotations ? r->matrix : NULL};
    return vq_reservoir_writer_rotation(j->w, &stored, err);
}

/* Those of the widths that will be packed now; matrices that were packed before need theirs as well. */
static vq_status add_rotations(job *j, vq_error *err)
{
    const vq_reservoir *old = j->g->reservoir;
    for (uint32_t i = 0; old && i < old->n_rotations; i++)
        VQ_TRY(vq_reservoir_writer_rotation(j->w, &old->rotations[i], err));
    for (uint64_t i = 0; i < j->g->n_tensors; i++) {
        const vq_tensor *t = &j->g->tensors[i];
        const uint32_t width = (uint32_t)t->dims[0];
        if (!vq_type_packed_bits(j->types[i]) || vq_type_packed_bits(t->type) || rotation_of(j, width))
            continue;
        if (vq_reservoir_rotation(j->g, width))
            return vq_fail(err, VQ_ERR_ARG,
                           "%.*s: rows of %u values are packed in this reservoir already; quantise from its source",
                           (int)t->name.n_bytes, t->name.at, width);
        VQ_TRY(add_rotation(j, width, err));
    }
    return VQ_OK;
}

/* ---- pieces of rows ---- */

static void read_row(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    job *j = arg;
    const uint64_t n = j->t->dims[0];
    float *x = j->x + i * n;
    vq_type_dequantize(j->t->type, vq_gguf_raw_row(j->g, j->index, j->first + i), x, n);
    unsigned bad = 0;
    for (uint64_t c = 0; c < n; c++)
        bad |= !isfinite(x[c]);
    j->fine[i] = !bad;
}

static vq_status read_piece(job *j, uint64_t first, uint32_t n_rows, vq_error *err)
{
    j->first = first;
    j->n_rows = n_rows;
    vq_pool_run(j->p->pool, n_rows, read_row, j);
    for (uint32_t i = 0; i < n_rows; i++)
        if (!j->fine[i])
            return vq_fail(err, VQ_ERR_NONFINITE, "tensor %.*s (%s): row %llu holds a NaN or an infinity",
                           (int)j->t->name.n_bytes, j->t->name.at, vq_type_name(j->t->type),
                           (unsigned long long)(first + i));
    return VQ_OK;
}

static uint32_t rows_of_piece(const vq_tensor *t)
{
    const uint64_t n = PIECE_BYTES / (t->dims[0] * sizeof(float)), n_rows = t->dims[1];
    return (uint32_t)(n < 1 ? 1 : n < n_rows ? n : n_rows);
}

/* ---- 2, 3, 4 bits ---- */

bool vq_quantize_place(vq_str name, uint32_t *layer, vq_input_kind *kind, size_t *at)
{
    static const struct {
        const char *name;
        vq_input_kind kind;
        size_t at;
    } rows[] = {
        {"attn_q.weight", VQ_INPUT_QKV, offsetof(vq_layer, q)},
        {"attn_k.weight", VQ_INPUT_QKV, offsetof(vq_layer, k)},
        {"attn_v.weight", VQ_INPUT_QKV, offsetof(vq_layer, v)},
        {"attn_output.weight", VQ_INPUT_O, offsetof(vq_layer, o)},
        {"ffn_gate.weight", VQ_INPUT_GATE_UP, offsetof(vq_layer, gate)},
        {"ffn_up.weight", VQ_INPUT_GATE_UP, offsetof(vq_layer, up)},
        {"ffn_down.weight", VQ_INPUT_DOWN, offsetof(vq_layer, down)},
    };
    char text[80];
    int used = 0;
    snprintf(text, sizeof text, "%.*s", (int)name.n_bytes, name.at);
    if (sscanf(text, "blk.%4u.%n", layer, &used) != 1 || !used)
        return false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, text + used) == 0) {
            *kind = rows[i].kind;
            *at = rows[i].at;
            return true;
        }
    }
    return false;
}

static vq_status find_factor(const job *j, const vq_linear *l, const float **out, vq_error *err)
{
    uint32_t layer;
    vq_input_kind kind;
    size_t at;
    *out = NULL;
    if (!j->feedback || !vq_quantize_place(j->t->name, &layer, &kind, &at))
        return VQ_OK;
    return j->feedback->factor(j->feedback->arg, layer, kind, l->rotation, out, err);
}

static vq_status encode(job *j, const vq_linear *l, void *data, void *scratch, double *error, vq_error *err)
{
    const float *factor;
    VQ_TRY(find_factor(j, l, &factor, err));
    const uint32_t most = rows_of_piece(j->t);
    const uint64_t row_bytes = vq_type_row_bytes(j->t->type, l->n_in);
    double squares = 0, lost = 0;
    for (uint64_t first = 0; first < l->n_out; first += most) {
        const uint32_t n = l->n_out - first < most ? (uint32_t)(l->n_out - first) : most;
        VQ_TRY(read_piece(j, first, n, err));
        if (factor)
            vq_feedback_encode(l, &j->carry, j->p->pool, data, (uint32_t)first, n, j->x, factor, j->errors, scratch);
        else
            vq_linear_encode(l, j->p->pool, data, (uint32_t)first, n, j->x, j->errors, scratch);
        for (uint32_t i = 0; i < n; i++) {
            squares += j->errors[i].squares;
            lost += j->errors[i].error;
        }
        VQ_TRY(step(j, n * row_bytes, err));
    }
    *error = squares > 0 ? sqrt(lost / squares) : 0;
    return VQ_OK;
}

static vq_status pack(job *j, uint32_t bits, vq_tensor *to, double *error, vq_error *err)
{
    const vq_linear l = {.bits = bits,
                         .n_in = (uint32_t)j->t->dims[0],
                         .n_out = (uint32_t)j->t->dims[1],
                         .rotation = &rotation_of(j, (uint32_t)j->t->dims[0])->r,
                         .k = &j->k};
    to->n_bytes = vq_linear_bytes(bits, l.n_in, l.n_out);
    void *data = aligned_alloc(64, to->n_bytes);
    const uint32_t n_threads = vq_pool_n_threads(j->p->pool);
    const size_t plain = vq_linear_scratch_bytes(l.n_in, n_threads),
                 fed = j->feedback ? vq_feedback_scratch_bytes(l.n_in, n_threads) : 0;
    void *scratch = aligned_alloc(64, ((plain > fed ? plain : fed) + 63) / 64 * 64);
    vq_status status = VQ_OK;
    if (data && scratch)
        status = encode(j, &l, data, scratch, error, err);
    else
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu bytes", (unsigned long long)to->n_bytes);
    if (status == VQ_OK)
        status = vq_reservoir_writer_begin(j->w, to, err);
    if (status == VQ_OK)
        status = vq_reservoir_writer_add(j->w, data, to->n_bytes, err);
    free(data);
    free(scratch);
    return status;
}

/* ---- 8 bits ---- */

/* One row: blocks of 32 with the scale max|x| / 127, rounded to f16 before codes are made of it. */
static void encode_row(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    job *j = arg;
    const uint64_t n = j->t->dims[0];
    const float *x = j->x + i * n;
    vq_block_q8_0 *b = (vq_block_q8_0 *)(void *)(j->blocks + i * vq_type_row_bytes(VQ_TYPE_Q8_0, n));
    double squares = 0, lost = 0;
    for (uint64_t at = 0; at < n; at += VQ_BLOCK, b++) {
        float most = 0;
        for (uint64_t c = at; c < at + VQ_BLOCK; c++)
            most = fmaxf(most, fabsf(x[c]));
        b->d = vq_f16_from_f32_clamped(most / 127);
        const float d = vq_f32_from_f16(b->d);
        for (uint64_t c = 0; c < VQ_BLOCK; c++) {
            const float q = d > 0 ? rintf(x[at + c] / d) : 0;
            b->qs[c] = (int8_t)fmaxf(-127, fminf(127, q));
            const double off = (double)x[at + c] - (double)d * b->qs[c];
            squares += (double)x[at + c] * (double)x[at + c];
            lost += off * off;
        }
    }
    j->errors[i] = (vq_row_error){squares, lost};
}

static vq_status round_to_8(job *j, vq_tensor *to, double *error, vq_error *err)
{
    const uint64_t n_rows = j->t->dims[1], row_bytes = vq_type_row_bytes(VQ_TYPE_Q8_0, j->t->dims[0]);
    const uint32_t most = rows_of_piece(j->t);
    double squares = 0, lost = 0;
    to->n_bytes = n_rows * row_bytes;
    VQ_TRY(vq_reservoir_writer_begin(j->w, to, err));
    for (uint64_t first = 0; first < n_rows; first += most) {
        const uint32_t n = n_rows - first < most ? (uint32_t)(n_rows - first) : most;
        VQ_TRY(read_piece(j, first, n, err));
        vq_pool_run(j->p->pool, n, encode_row, j);
        VQ_TRY(vq_reservoir_writer_add(j->w, j->blocks, n * row_bytes, err));
        for (uint32_t i = 0; i < n; i++) {
            squares += j->errors[i].squares;
            lost += j->errors[i].error;
        }
        VQ_TRY(step(j, n * vq_type_row_bytes(j->t->type, j->t->dims[0]), err));
    }
    *error = squares > 0 ? sqrt(lost / squares) : 0;
    return VQ_OK;
}

/* ---- as it is ---- */

static vq_status copy(job *j, vq_error *err)
{
    const vq_tensor *t = j->t;
    VQ_TRY(vq_tensor_check_finite(t, err));
    VQ_TRY(vq_reservoir_writer_begin(j->w, t, err));
    const bool in_order = vq_gguf_rows_in_order(j->g, j->index);
    const uint64_t most = in_order ? PIECE_BYTES : vq_type_row_bytes(t->type, t->dims[0]);
    for (uint64_t at = 0; at < t->n_bytes; at += most) {
        const uint64_t n = t->n_bytes - at < most ? t->n_bytes - at : most;
        const void *from = in_order ? (const char *)t->data + at : vq_gguf_raw_row(j->g, j->index, at / most);
        VQ_TRY(vq_reservoir_writer_add(j->w, from, n, err));
        VQ_TRY(step(j, n, err));
    }
    return VQ_OK;
}

/* ---- all of it ---- */

static vq_status add_tensor(job *j, uint64_t index, vq_error *err)
{
    const vq_tensor *t = &j->g->tensors[index];
    vq_tensor to = *t;
    double error = j->g->reservoir ? j->g->reservoir->errors[index] : (double)NAN;
    j->index = index;
    j->t = t;
    to.type = j->types[index];
    if (to.type == t->type)
        VQ_TRY(copy(j, err));
    else if (to.type == VQ_TYPE_Q8_0)
        VQ_TRY(round_to_8(j, &to, &error, err));
    else
        VQ_TRY(pack(j, vq_type_packed_bits(to.type), &to, &error, err));
    VQ_TRY(vq_reservoir_writer_end(j->w, error, err));
    const vq_quantized row = {.name = t->name,
                              .dims = {t->dims[0], t->dims[1]},
                              .from = t->type,
                              .to = to.type,
                              .n_bytes_before = t->n_bytes,
                              .n_bytes = to.n_bytes,
                              .error = error,
                              .loss = j->losses[index]};
    if (j->p->each)
        j->p->each(j->p->user, &row);
    return VQ_OK;
}

/* Rows and values of the largest piece. */
static vq_status make_room(job *j, vq_error *err)
{
    uint64_t n_values = 1, n_rows = 1;
    for (uint64_t i = 0; i < j->g->n_tensors; i++) {
        const vq_tensor *t = &j->g->tensors[i];
        j->all += t->n_bytes;
        if (j->types[i] == t->type)
            continue;
        const uint64_t n = rows_of_piece(t);
        n_rows = n > n_rows ? n : n_rows;
        n_values = n * t->dims[0] > n_values ? n * t->dims[0] : n_values;
    }
    j->x = calloc(n_values, sizeof *j->x);
    j->blocks = calloc(n_values / VQ_BLOCK + 1, sizeof(vq_block_q8_0));
    j->fine = calloc(n_rows, sizeof *j->fine);
    j->errors = calloc(n_rows, sizeof *j->errors);
    if (!j->x || !j->blocks || !j->fine || !j->errors)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu values of rows", (unsigned long long)n_values);
    return VQ_OK;
}

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->index > y->index) - (x->index < y->index);
}

/* As in the file, or layer by layer where moments are made for a few layers at a time. */
static vq_status choose_order(job *j, vq_error *err)
{
    const uint64_t n = j->g->n_tensors;
    j->order = calloc(n + 1, sizeof *j->order);
    if (!j->order)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        vq_input_kind kind;
        size_t at;
        j->order[i].index = i;
        if (!j->feedback || !vq_quantize_place(j->g->tensors[i].name, &j->order[i].layer, &kind, &at))
            j->order[i].layer = 0;
    }
    qsort(j->order, n, sizeof *j->order, compare_places);
    return VQ_OK;
}

static vq_status run(job *j, const char *path, vq_error *err)
{
    VQ_TRY(choose_order(j, err));
    VQ_TRY(vq_reservoir_writer_open(&j->w, path, j->g, err)); /* first: measuring for the plan can take minutes */
    VQ_TRY(vq_quantize_plan(j->types, j->losses, j->g, j->p, j->sensitivity, err));
    VQ_TRY(make_room(j, err));
    VQ_TRY(add_rotations(j, err));
    for (uint64_t i = 0; i < j->g->n_tensors; i++)
        VQ_TRY(add_tensor(j, j->order[i].index, err));
    vq_reservoir_writer *w = j->w;
    j->w = NULL;
    return vq_reservoir_writer_commit(w, err);
}

vq_status vq_quantize_file(const vq_gguf *source, const char *path, const vq_quantize_params *params,
                           const vq_feedback_source *feedback, const vq_sensitivity_source *sensitivity, vq_error *err)
{
    if (params->seed > INT64_MAX)
        return vq_fail(err, VQ_ERR_ARG, "seed %llu is above 2^63 - 1", (unsigned long long)params->seed);
    if (params->keep_rotations && !params->qr)
        return vq_fail(err, VQ_ERR_ARG, "only qr rotations can be kept: the others are drawn in no time");
    job j = {.g = source,
             .p = params,
             .feedback = feedback,
             .sensitivity = sensitivity,
             .types = calloc(vq_gguf_n_tensors(source) + 1, sizeof *j.types),
             .losses = calloc(vq_gguf_n_tensors(source) + 1, sizeof *j.losses)};
    vq_codes_kernels_init(&j.k, vq_cpu_detect());
    vq_carry_kernels_init(&j.carry, vq_cpu_detect());
    vq_status status =
        j.types && j.losses ? run(&j, path, err) : vq_fail(err, VQ_ERR_NOMEM, "no memory for the tensors");
    vq_reservoir_writer_abort(j.w);
    for (uint32_t i = 0; i < j.n_rotations; i++)
        vq_input_rotation_close(j.rotations[i]);
    free(j.types);
    free(j.losses);
    free(j.order);
    free(j.x);
    free(j.blocks);
    free(j.fine);
    free(j.errors);
    if (status != VQ_OK && status != VQ_ERR_CANCELLED && status != VQ_ERR_IO)
        vq_fail_prefix(err, status, "%s", vq_gguf_path(source));
    return status;
}
