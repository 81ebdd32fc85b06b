/* Quantising to a reservoir: what is packed, how far off it is, rules and averages, and what must leave no file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "formats/reservoir.h"
#include "model/quantize.h"
#include "quant/linear.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

static char folder[TEMPORARY_PATH], source[96], path[96], other[96];

static int make_folder(void **state)
{
    (void)state;
    temporary_folder(folder, "quantize");
    snprintf(source, sizeof source, "%s/toy.gguf", folder);
    snprintf(path, sizeof path, "%s/a.vqr", folder);
    snprintf(other, sizeof other, "%s/b.vqr", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove_temporary_folder(folder);
}

static void check(vq_status status, const vq_error *err)
{
    if (status != VQ_OK)
        fail_msg("%s: %s", vq_status_name(status), err->text);
}

static vq_gguf *open_file(const char *name)
{
    vq_gguf *g;
    vq_error err;
    check(vq_gguf_open(&g, name, &err), &err);
    return g;
}

/* n_embd 96 = 3 x 32: a rotation of blocks. */
static vq_gguf *toy(vq_type type)
{
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    p.n_embd = 96;
    p.n_ff = 160;
    p.head_dim = 24;
    p.type = type;
    gguf_buffer b = toy_model_make(&p);
    assert_true(gguf_buffer_save(b, source));
    free(b.bytes);
    return open_file(source);
}

static vq_type type_of(const vq_gguf *g, const char *name)
{
    const vq_tensor *t = vq_gguf_tensor(g, name);
    assert_non_null(t);
    return t->type;
}

static double recorded_error(const vq_gguf *g, const char *name)
{
    return g->reservoir->errors[vq_gguf_tensor(g, name) - g->tensors];
}

/* |w - w^| / |w| of a packed tensor, with a rotation opened from what the file says. */
static double true_error(const vq_gguf *from, const vq_gguf *to, const char *name)
{
    const vq_tensor *a = vq_gguf_tensor(from, name), *b = vq_gguf_tensor(to, name);
    const uint32_t n_in = (uint32_t)a->dims[0], n_out = (uint32_t)a->dims[1];
    const vq_stored_rotation *stored = vq_reservoir_rotation(to, n_in);
    assert_non_null(stored);
    vq_codes_kernels k;
    vq_codes_kernels_init(&k, vq_cpu_detect());
    vq_input_rotation *r;
    vq_error err;
    check(stored->matrix ? vq_input_rotation_map(&r, &k, n_in, stored->matrix, &err)
                         : vq_input_rotation_open(&r, &k, n_in, stored->haar, stored->seed, &err),
          &err);
    assert_true(vq_input_rotation_hash(r) == stored->hash);
    const vq_linear l = {vq_type_packed_bits(b->type), n_in, n_out, &r->r, &k};
    float *x = malloc((size_t)n_in * n_out * sizeof *x), *y = malloc((size_t)n_in * n_out * sizeof *y);
    void *scratch = aligned_alloc(64, (vq_linear_scratch_bytes(n_in, 1) + 63) / 64 * 64);
    assert_true(x && y && scratch);
    vq_type_dequantize(a->type, a->data, x, (uint64_t)n_in * n_out);
    vq_linear_decode(&l, NULL, b->data, 0, n_out, y, scratch);
    double squares = 0, lost = 0;
    for (size_t i = 0; i < (size_t)n_in * n_out; i++) {
        squares += (double)x[i] * (double)x[i];
        lost += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    free(x);
    free(y);
    free(scratch);
    vq_input_rotation_close(r);
    return sqrt(lost / squares);
}

/* The table's error is the decoded matrix's, and near that of normal values: rows of 96 and 160 are fitted one by one,
 * which gains a little. */
static void packed_matrices_are_as_far_off_as_recorded(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    for (int bits = 2; bits <= 4; bits++) {
        for (int qr = 0; qr < 3; qr++) { /* hadamard; qr; qr, kept */
            p.bits = (float)bits;
            p.qr = qr > 0;
            p.keep_rotations = qr == 2;
            p.seed = 7;
            check(vq_quantize(g, path, &p, &err), &err);
            vq_gguf *r = open_file(path);
            check(vq_gguf_verify(r, NULL, NULL, &err), &err);
            static const char *const names[] = {"blk.0.attn_q.weight", "blk.1.ffn_down.weight", "blk.1.ffn_up.weight"};
            for (int i = 0; i < 3; i++) {
                assert_int_equal(type_of(r, names[i]), vq_linear_type((uint32_t)bits));
                const double e = true_error(g, r, names[i]), said = recorded_error(r, names[i]);
                const double most = vq_quantize_error((uint32_t)bits);
                if (!(fabs(e - said) < 1e-4 * e) || !(e < 1.01 * most) || !(e > 0.85 * most))
                    fail_msg("%s, %d bits, rotation %d: error %g, recorded %g, normal values have %g", names[i], bits,
                             qr, e, said, most);
            }
            assert_int_equal(type_of(r, "token_embd.weight"), VQ_TYPE_F32);
            assert_int_equal(type_of(r, "output.weight"), VQ_TYPE_F32);
            assert_int_equal(type_of(r, "blk.0.attn_norm.weight"), VQ_TYPE_F32);
            assert_int_equal(r->reservoir->n_rotations, 2);
            assert_true((r->reservoir->rotations[0].matrix != NULL) == (qr == 2));
            vq_gguf_close(r);
        }
    }
    vq_gguf_close(g);
}

static void compare_files(const char *a, const char *b)
{
    char command[256];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    assert_int_equal(system(command), 0);
}

static void bytes_do_not_depend_on_threads_or_runs(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_BF16);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    p.bits = 3;
    check(vq_quantize(g, path, &p, &err), &err);
    check(vq_pool_open(&p.pool, 3, &err), &err);
    check(vq_quantize(g, other, &p, &err), &err);
    vq_pool_close(p.pool);
    compare_files(path, other);
    vq_gguf_close(g);
}

static void rules_decide(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F16);
    vq_error err;
    static const char *const rules[] = {"blk.*.ffn_down*=4", "blk.1.*=8", "blk.1.attn_q*=keep", "output*=3",
                                        "token_embd.weight=8"};
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    p.bits = 2;
    p.rules = rules;
    p.n_rules = 5;
    check(vq_quantize(g, path, &p, &err), &err);
    vq_gguf *r = open_file(path);
    assert_int_equal(type_of(r, "blk.0.ffn_down.weight"), VQ_TYPE_VQ4);
    assert_int_equal(type_of(r, "blk.0.ffn_up.weight"), VQ_TYPE_VQ2);
    assert_int_equal(type_of(r, "blk.1.ffn_down.weight"), VQ_TYPE_Q8_0);
    assert_int_equal(type_of(r, "blk.1.attn_q.weight"), VQ_TYPE_F16);
    assert_int_equal(type_of(r, "blk.1.ffn_norm.weight"), VQ_TYPE_F32);
    assert_int_equal(type_of(r, "output.weight"), VQ_TYPE_VQ3);
    assert_int_equal(type_of(r, "token_embd.weight"), VQ_TYPE_Q8_0);
    /* 8 bits with one scale for 32 values: the largest of 32 normal ones is about 2.1; 2.1 / 127 / sqrt(12) */
    const double e = recorded_error(r, "token_embd.weight");
    if (!(e > 0.003 && e < 0.007))
        fail_msg("token_embd.weight: error %g", e);
    vq_gguf_close(r);

    static const struct {
        const char *rule, *named;
    } wrong[] = {
        {"token_embd.weight=3", "looked up"},
        {"blk.*", "GLOB=BITS"},
        {"=3", "GLOB=BITS"},
        {"blk.*=5", "'5'"},
        {"nothing*=3", "nothing"},
        {"blk.0.attn_norm*=4", "matches no matrix"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        p.rules = &wrong[i].rule;
        p.n_rules = 1;
        unlink(other);
        if (vq_quantize(g, other, &p, &err) != VQ_ERR_ARG || !strstr(err.text, wrong[i].named))
            fail_msg("rule %s: %s", wrong[i].rule, err.text);
        assert_int_equal(access(other, F_OK), -1);
    }
    vq_gguf_close(g);
}

static double average_bits(const vq_gguf *g)
{
    double bits = 0, n = 0;
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        const double values = (double)(t->dims[0] * t->dims[1]);
        if (!vq_type_packed_bits(t->type))
            continue;
        bits += vq_type_packed_bits(t->type) * values;
        n += values;
    }
    return bits / n;
}

static void averages_are_met_from_below(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    static const float averages[] = {2.1F, 2.5F, 3.25F, 3.9F};
    double before = 2;
    for (int i = 0; i < 4; i++) {
        p.bits = averages[i];
        check(vq_quantize(g, path, &p, &err), &err);
        vq_gguf *r = open_file(path);
        const double got = average_bits(r);
        /* the largest of 14 matrices is a tenth of all values */
        if (!(got <= (double)averages[i] + 1e-6 && got > (double)averages[i] - 0.12 && got >= before))
            fail_msg("asked for %g bits, got %g", (double)averages[i], got);
        before = got;
        /* a small matrix gets no fewer bits than a large one */
        assert_true(type_of(r, "blk.0.attn_k.weight") >= type_of(r, "blk.1.ffn_up.weight"));
        vq_gguf_close(r);
    }
    for (int i = 0; i < 3; i++) {
        p.bits = ((const float[]){1.5F, 4.5F, NAN})[i];
        assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_ARG);
    }
    vq_gguf_close(g);
}

/* Logits of each token of a short text; freed by the caller. */
static float *logits_of(const char *file, size_t *n_bytes)
{
    static const int32_t ids[] = {1, 40, 41, 42, 100, 7, 260, 9};
    enum { N = sizeof ids / sizeof *ids };
    vq_error err;
    vq_model *m;
    vq_session *s;
    vq_session_params p;
    vq_session_params_init(&p);
    check(vq_model_open(&m, file, &err), &err);
    check(vq_session_open(&s, m, &p, &err), &err);
    const uint32_t n_vocab = vq_model_get_info(m)->n_vocab;
    *n_bytes = N * n_vocab * sizeof(float);
    float *out = malloc(*n_bytes);
    assert_non_null(out);
    for (uint32_t i = 0; i < N; i++) {
        check(vq_session_eval(s, &ids[i], 1, NULL, 0, NULL, &err), &err);
        memcpy(out + i * n_vocab, vq_session_logits(s), n_vocab * sizeof *out);
    }
    vq_session_close(s);
    vq_model_close(m);
    return out;
}

/* Rotations drawn again and rotations that were kept; quantised, and saved from the open model. */
static void logits_are_the_same_bits_from_every_file(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F16);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    for (int bits = 2; bits <= 4; bits++) {
        for (int qr = 0; qr < 2; qr++) {
            size_t n, n_other;
            p.bits = (float)bits;
            p.qr = qr;
            p.keep_rotations = false;
            check(vq_quantize(g, path, &p, &err), &err);
            float *x = logits_of(path, &n);
            if (qr) {
                p.keep_rotations = true;
                check(vq_quantize(g, other, &p, &err), &err);
            } else {
                vq_model *m;
                check(vq_model_open(&m, path, &err), &err);
                check(vq_model_save(m, other, NULL, NULL, &err), &err);
                vq_model_close(m);
            }
            float *y = logits_of(other, &n_other);
            assert_int_equal(n, n_other);
            assert_memory_equal(x, y, n);
            for (size_t i = 0; i < n / sizeof *x; i++)
                assert_true(isfinite(x[i]));
            free(x);
            free(y);
        }
    }
    vq_gguf_close(g);
}

enum { N_IDS = 400 };

static void make_ids(int32_t ids[N_IDS])
{
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(3 + (i * i * 7 + i * 13) % 250);
}

/* Squares of the difference of two models' logits over a text, in float activations. */
static double distance(const char *a, const char *b)
{
    enum { N = 100 };
    int32_t ids[N_IDS];
    double sum = 0;
    vq_error err;
    vq_model *m[2];
    vq_session *s[2];
    vq_session_params p;
    make_ids(ids);
    vq_session_params_init(&p);
    p.exact = true;
    for (int i = 0; i < 2; i++) {
        check(vq_model_open(&m[i], i ? b : a, &err), &err);
        check(vq_session_open(&s[i], m[i], &p, &err), &err);
    }
    for (uint32_t i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++)
            check(vq_session_eval(s[k], &ids[i], 1, NULL, 0, NULL, &err), &err);
        for (uint32_t v = 0; v < vq_model_get_info(m[0])->n_vocab; v++) {
            const double d = (double)vq_session_logits(s[0])[v] - (double)vq_session_logits(s[1])[v];
            sum += d * d;
        }
    }
    for (int i = 0; i < 2; i++) {
        vq_session_close(s[i]);
        vq_model_close(m[i]);
    }
    return sum;
}

/* Nearer to the source on the text that it saw, the same bytes for any number of threads and any memory. */
static void feedback_brings_products_nearer(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    vq_error err;
    vq_model *m;
    int32_t ids[N_IDS];
    vq_quantize_params p;
    make_ids(ids);
    check(vq_model_open(&m, source, &err), &err);
    vq_quantize_params_init(&p);
    for (int bits = 2; bits <= 4; bits++) {
        p.bits = (float)bits;
        p.model = NULL;
        check(vq_quantize(g, path, &p, &err), &err);
        p.model = m;
        p.ids = ids;
        p.n_ids = N_IDS;
        check(vq_quantize(g, other, &p, &err), &err);
        const double plain = distance(source, path), fed = distance(source, other);
        if (!(fed < plain))
            fail_msg("%d bits: squares of %g with feedback, %g without", bits, fed, plain);
    }
    check(vq_pool_open(&p.pool, 3, &err), &err);
    p.feedback_bytes = 1; /* one matrix of moments at a time */
    check(vq_quantize(g, path, &p, &err), &err);
    vq_pool_close(p.pool);
    compare_files(path, other);
    p.pool = NULL;
    p.n_ids = 10;
    assert_int_equal(vq_quantize(g, path, &p, &err), VQ_ERR_ARG);
    vq_model_close(m);
    vq_gguf_close(g);
}

/* A rotation that comes out otherwise on this machine is not used. */
static void a_rotation_of_another_hash_is_refused(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F16);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    check(vq_quantize(g, path, &p, &err), &err);
    vq_gguf *r = open_file(path);
    r->reservoir->rotations[0].hash ^= 1;
    vq_reservoir_writer *w; /* the same file with that hash: and all the rest as it is */
    check(vq_reservoir_writer_open(&w, other, r, &err), &err);
    for (uint32_t i = 0; i < r->reservoir->n_rotations; i++)
        check(vq_reservoir_writer_rotation(w, &r->reservoir->rotations[i], &err), &err);
    for (uint64_t i = 0; i < r->n_tensors; i++) {
        check(vq_reservoir_writer_begin(w, &r->tensors[i], &err), &err);
        check(vq_reservoir_writer_add(w, r->tensors[i].data, r->tensors[i].n_bytes, &err), &err);
        check(vq_reservoir_writer_end(w, 0.1, &err), &err);
    }
    check(vq_reservoir_writer_commit(w, &err), &err);
    vq_model *m;
    assert_int_equal(vq_model_open(&m, other, &err), VQ_ERR_MISMATCH);
    if (!strstr(err.text, "--persist-rotation") || !strstr(err.text, "width 96"))
        fail_msg("%s", err.text);
    vq_gguf_close(r);
    vq_gguf_close(g);
}

static void packing_twice_is_refused(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    p.bits = 3;
    check(vq_quantize(g, path, &p, &err), &err);
    vq_gguf *r = open_file(path);
    p.bits = 2;
    assert_int_equal(vq_quantize(r, other, &p, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "source"));
    p.bits = 0; /* all kept: a copy */
    check(vq_quantize(r, other, &p, &err), &err);
    vq_gguf *copy = open_file(other);
    assert_int_equal(type_of(copy, "blk.0.attn_q.weight"), VQ_TYPE_VQ3);
    assert_true(recorded_error(copy, "blk.0.attn_q.weight") == recorded_error(r, "blk.0.attn_q.weight"));
    vq_gguf_close(copy);
    vq_gguf_close(r);
    vq_gguf_close(g);
}

static bool stop(void *user, uint64_t done, uint64_t all)
{
    assert_true(done <= all);
    return --*(int *)user > 0;
}

static void stopping_leaves_what_was_there(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    check(vq_quantize(g, path, &p, &err), &err);
    check(vq_quantize(g, other, &p, &err), &err);
    int left = 5;
    p.bits = 2;
    p.work = stop;
    p.user = &left;
    assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_CANCELLED);
    compare_files(path, other);
    char command[128];
    snprintf(command, sizeof command, "test -z \"$(ls %s | grep tmp)\"", folder);
    assert_int_equal(system(command), 0);
    vq_gguf_close(g);
}

static void bad_weights_are_named(void **state)
{
    (void)state;
    vq_gguf *g = toy(VQ_TYPE_F32);
    const vq_tensor *t = vq_gguf_tensor(g, "blk.1.ffn_up.weight");
    FILE *f = fopen(source, "r+b");
    assert_non_null(f);
    const float nan_value = NAN;
    fseek(f, (long)((const uint8_t *)t->data - g->bytes) + 4 * (96 * 5 + 3), SEEK_SET);
    assert_int_equal(fwrite(&nan_value, 4, 1, f), 1);
    fclose(f);
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    unlink(other);
    assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_NONFINITE);
    if (!strstr(err.text, "blk.1.ffn_up.weight") || !strstr(err.text, "row 5"))
        fail_msg("%s", err.text);
    assert_int_equal(access(other, F_OK), -1);
    vq_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_matrices_are_as_far_off_as_recorded),
        cmocka_unit_test(bytes_do_not_depend_on_threads_or_runs),
        cmocka_unit_test(rules_decide),
        cmocka_unit_test(averages_are_met_from_below),
        cmocka_unit_test(logits_are_the_same_bits_from_every_file),
        cmocka_unit_test(feedback_brings_products_nearer),
        cmocka_unit_test(a_rotation_of_another_hash_is_refused),
        cmocka_unit_test(packing_twice_is_refused),
        cmocka_unit_test(stopping_leaves_what_was_there),
        cmocka_unit_test(bad_weights_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
