/* Reservoirs: what is saved opens as the same model; every fault of a head, a header or a blob is refused by name; a
 * file that is cut while it is mapped ends in a message. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "formats/reservoir.h"
#include "model/model.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/reservoir.h"
#include "veloxquant/session.h"

static char folder[TEMPORARY_PATH], path[96], other[96];

static int make_folder(void **state)
{
    (void)state;
    temporary_folder(folder, "reservoir");
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

static vq_model *toy(toy_family family, uint64_t seed)
{
    toy_params p;
    toy_params_init(&p, family);
    p.seed = seed;
    return toy_open(&p);
}

/* Logits of every token of a short text, which the caller frees. */
static float *logits_of(const vq_model *m, size_t *n_bytes)
{
    static const int32_t ids[] = {1, 40, 41, 42, 100, 7, 260, 9};
    enum { N = sizeof ids / sizeof *ids };
    vq_error err;
    vq_session *s;
    vq_session_params p;
    vq_session_params_init(&p);
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
    return out;
}

static void assert_same_logits(const vq_model *a, const vq_model *b)
{
    size_t n, m;
    float *x = logits_of(a, &n), *y = logits_of(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void a_saved_model_is_the_same(void **state)
{
    (void)state;
    vq_error err;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_model *m = toy((toy_family)family, 1), *again;
        check(vq_model_save(m, path, NULL, NULL, &err), &err);
        check(vq_model_open(&again, path, &err), &err);
        assert_true(vq_gguf_is_reservoir(vq_model_gguf(again)));
        assert_same_logits(m, again);
        const vq_model_info *x = vq_model_get_info(m), *y = vq_model_get_info(again);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->n_params, y->n_params);
        assert_int_equal(x->weight_bytes, y->weight_bytes);
        assert_int_equal(vq_gguf_n_values(vq_model_gguf(m)), vq_gguf_n_values(vq_model_gguf(again)));
        check(vq_gguf_verify(vq_model_gguf(again), NULL, NULL, &err), &err);

        /* and once more, from the reservoir: the same bytes but for the name of the source */
        vq_model *third;
        check(vq_model_save(again, other, NULL, NULL, &err), &err);
        check(vq_model_open(&third, other, &err), &err);
        assert_true(vq_model_hash(again) == vq_model_hash(third));
        vq_model_close(third);
        vq_model_close(again);
        vq_model_close(m);
    }
}

static bool stop(void *user, uint64_t done, uint64_t all)
{
    assert_true(done <= all);
    return --*(int *)user > 0;
}

static void stopping_leaves_no_file(void **state)
{
    (void)state;
    vq_error err;
    int left = 3;
    vq_model *m = toy(TOY_LLAMA, 1);
    unlink(path);
    assert_int_equal(vq_model_save(m, path, stop, &left, &err), VQ_ERR_CANCELLED);
    vq_model_close(m);
    char command[128];
    snprintf(command, sizeof command, "test -z \"$(ls %s | grep a.vqr)\"", folder);
    assert_int_equal(system(command), 0);
}

static void grafted_layers_are_the_donors(void **state)
{
    (void)state;
    vq_error err;
    vq_model *donor = toy(TOY_LLAMA, 2), *m = toy(TOY_LLAMA, 1), *again;
    const uint64_t before = vq_model_hash(m);
    const vq_matrix embd = m->embd;
    check(vq_model_save(donor, path, NULL, NULL, &err), &err);
    check(vq_model_graft(m, path, &err), &err);
    assert_true(m->embd.data == embd.data);
    assert_true(vq_model_hash(m) != before);
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        assert_memory_equal(m->layers[i].q.data, donor->layers[i].q.data, 32 * 32 * sizeof(float));

    /* what is saved then opens as the grafted model */
    check(vq_model_save(m, other, NULL, NULL, &err), &err);
    check(vq_model_open(&again, other, &err), &err);
    assert_same_logits(m, again);
    vq_model_close(again);

    vq_model *qwen = toy(TOY_QWEN3, 1);
    assert_int_equal(vq_model_graft(qwen, path, &err), VQ_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "qwen3"));
    vq_model_close(qwen);

    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    p.n_ff = 64;
    vq_model *wide = toy_open(&p);
    assert_int_equal(vq_model_graft(wide, path, &err), VQ_ERR_MISMATCH);
    if (!strstr(err.text, "n_ff") || !strstr(err.text, "48") || !strstr(err.text, "64"))
        fail_msg("%s", err.text);
    vq_model_close(wide);
    vq_model_close(m);
    vq_model_close(donor);
}

/* ---- faults ---- */

typedef struct file {
    uint8_t *bytes;
    size_t n_bytes;
} file;

static file read_file(const char *name)
{
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    file out = {NULL, (size_t)ftell(f)};
    rewind(f);
    out.bytes = malloc(out.n_bytes);
    assert_int_equal(fread(out.bytes, 1, out.n_bytes, f), out.n_bytes);
    fclose(f);
    return out;
}

static void write_file(file f)
{
    FILE *out = fopen(other, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f.bytes, 1, f.n_bytes, out), f.n_bytes);
    fclose(out);
}

static vq_reservoir_head head_of(file f)
{
    vq_reservoir_head head;
    memcpy(&head, f.bytes, sizeof head);
    return head;
}

static void put_head(file f, vq_reservoir_head head, bool seal)
{
    if (seal)
        head.sum = XXH3_64bits(&head, offsetof(vq_reservoir_head, sum));
    memcpy(f.bytes, &head, sizeof head);
}

/* The same file with another header, all sums right. */
static void put_header(file *f, const char *text)
{
    vq_reservoir_head head = head_of(*f);
    head.n_header_bytes = strlen(text);
    head.n_bytes = f->n_bytes = head.header_at + head.n_header_bytes;
    head.header_sum = XXH3_64bits(text, head.n_header_bytes);
    f->bytes = realloc(f->bytes, f->n_bytes);
    assert_non_null(f->bytes);
    memcpy(f->bytes + head.header_at, text, head.n_header_bytes);
    put_head(*f, head, true);
}

static json_t *header_of(file f)
{
    const vq_reservoir_head head = head_of(f);
    json_t *header = json_loadb((const char *)f.bytes + head.header_at, head.n_header_bytes, 0, NULL);
    assert_non_null(header);
    return header;
}

static void refuses(const char *what, file f, vq_status want, const char *named)
{
    vq_gguf *g;
    vq_error err = {0};
    write_file(f);
    const vq_status got = vq_gguf_open(&g, other, &err);
    if (got != want || !strstr(err.text, named) || strncmp(err.text, other, strlen(other)))
        fail_msg("%s: want %s naming \"%s\", got %s: %s", what, vq_status_name(want), named, vq_status_name(got),
                 err.text);
    assert_null(g);
}

static void save_toy(void)
{
    vq_error err;
    vq_model *m = toy(TOY_LLAMA, 1);
    check(vq_model_save(m, path, NULL, NULL, &err), &err);
    vq_model_close(m);
}

static void faults_of_the_head_are_named(void **state)
{
    (void)state;
    save_toy();
    const file whole = read_file(path);
    enum { MAGIC, VERSION, SUM, PAGE, ZERO, LONG_HEADER, HEADER_AT, HEADER_SUM, CUT_HEAD, CUT_END, LONGER, N_FAULTS };
    static const struct {
        const char *what;
        vq_status want;
        const char *named;
    } faults[N_FAULTS] = {
        [MAGIC] = {"magic", VQ_ERR_MAGIC, "VQ-RESRV"},
        [VERSION] = {"version", VQ_ERR_VERSION, "version 2"},
        [SUM] = {"sum of the head", VQ_ERR_CHECKSUM, "first 64 bytes"},
        [PAGE] = {"page", VQ_ERR_ALIGN, "512"},
        [ZERO] = {"reserved bytes", VQ_ERR_VALUE, "24 to 31"},
        [LONG_HEADER] = {"huge header", VQ_ERR_LIMIT, "header of"},
        [HEADER_AT] = {"header elsewhere", VQ_ERR_BOUNDS, "end of the file"},
        [HEADER_SUM] = {"sum of the header", VQ_ERR_CHECKSUM, "header was altered"},
        [CUT_HEAD] = {"cut in the head", VQ_ERR_TRUNCATED, "40 bytes"},
        [CUT_END] = {"cut", VQ_ERR_TRUNCATED, "was cut"},
        [LONGER] = {"added to", VQ_ERR_BOUNDS, "added to"},
    };
    for (int i = 0; i < N_FAULTS; i++) {
        file f = {malloc(whole.n_bytes + 1), whole.n_bytes};
        memcpy(f.bytes, whole.bytes, whole.n_bytes);
        vq_reservoir_head head = head_of(f);
        switch (i) {
        case MAGIC: head.magic[7] = 'X'; break;
        case VERSION: head.version = 2; break;
        case SUM: head.n_bytes++; break;
        case PAGE: head.page = 512; break;
        case ZERO: head.zero = 1; break;
        case LONG_HEADER: head.n_header_bytes = UINT64_MAX; break;
        case HEADER_AT: head.header_at -= VQ_RESERVOIR_PAGE; break;
        case HEADER_SUM: f.bytes[head.header_at + 5] ^= 1; break;
        case CUT_HEAD: f.n_bytes = 40; break;
        case CUT_END: f.n_bytes--; break;
        case LONGER: f.bytes[f.n_bytes++] = '\n'; break;
        default: break;
        }
        put_head(f, head, i != SUM);
        refuses(faults[i].what, f, faults[i].want, faults[i].named);
        free(f.bytes);
    }
    free(whole.bytes);
}

/* A path of names and numbers, and what is put there (NULL: taken away). */
typedef struct change {
    const char *list;
    int index; /* -1: the object itself */
    const char *field, *value;
    vq_status want;
    const char *named;
} change;

static const change changes[] = {
    {NULL, -1, "tensors", NULL, VQ_ERR_MISSING_KEY, "'tensors' is missing"},
    {NULL, -1, "tensors", "{}", VQ_ERR_TYPE, "'tensors' must be a list"},
    {NULL, -1, "rotations", NULL, VQ_ERR_MISSING_KEY, "'rotations'"},
    {NULL, -1, "metadata", NULL, VQ_ERR_MISSING_KEY, "'metadata'"},
    {NULL, -1, "metadata", "[1]", VQ_ERR_TYPE, "'metadata'"},
    {"metadata", -1, "offset", "8192", VQ_ERR_CHECKSUM, "metadata were altered"},
    {"metadata", -1, "offset", "4097", VQ_ERR_ALIGN, "4097"},
    {"metadata", -1, "offset", "-4096", VQ_ERR_VALUE, "-4096"},
    {"metadata", -1, "offset", "0", VQ_ERR_BOUNDS, "offset 0"},
    {"metadata", -1, "bytes", "9223372036854775807", VQ_ERR_BOUNDS, "9223372036854775807"},
    {"metadata", -1, "sum", "\"123\"", VQ_ERR_VALUE, "16 digits"},
    {"metadata", -1, "sum", "7", VQ_ERR_TYPE, "'sum'"},
    {"metadata", -1, "sum", "\"0000000000000000\"", VQ_ERR_CHECKSUM, "metadata"},
    {"tensors", 3, "name", NULL, VQ_ERR_MISSING_KEY, "tensors[3]: 'name'"},
    {"tensors", 3, "name", "\"\"", VQ_ERR_LIMIT, "'name'"},
    {"tensors", 3, "name", "\"0123456789012345678901234567890123456789012345678901234567890123456789\"", VQ_ERR_LIMIT,
     "70 bytes"},
    {"tensors", 3, "name", "\"token_embd.weight\"", VQ_ERR_DUPLICATE, "token_embd.weight"},
    {"tensors", 3, "type", "\"Q9_9\"", VQ_ERR_TYPE, "Q9_9"},
    {"tensors", 3, "type", "0", VQ_ERR_TYPE, "'type'"},
    {"tensors", 3, "dims", "[]", VQ_ERR_SHAPE, "0 dimensions"},
    {"tensors", 3, "dims", "[1,2,3,4,5]", VQ_ERR_SHAPE, "5 dimensions"},
    {"tensors", 3, "dims", "[0, 4]", VQ_ERR_SHAPE, "dimension 0"},
    {"tensors", 3, "dims", "[32, 1.5]", VQ_ERR_SHAPE, "dimension 1"},
    {"tensors", 3, "dims", "[4294967296, 4294967296]", VQ_ERR_OVERFLOW, "4294967296"},
    {"tensors", 3, "dims", "[32, 7]", VQ_ERR_SHAPE, "need 896"},
    {"tensors", 3, "offset", "1073741824", VQ_ERR_BOUNDS, "1073741824"},
    {"tensors", 3, "offset", "4098", VQ_ERR_ALIGN, "4098"},
    {"tensors", 3, "offset", "\"x\"", VQ_ERR_TYPE, "'offset'"},
    {"tensors", 3, "bytes", "12", VQ_ERR_SHAPE, "12 bytes"},
    {"tensors", 3, "sum", NULL, VQ_ERR_MISSING_KEY, "'sum'"},
    {"tensors", 3, "error", "\"small\"", VQ_ERR_TYPE, "'error'"},
    {"tensors", 3, "type", "\"VQ3\"", VQ_ERR_MISSING_KEY, "no rotation of width 32"},
};

static void faults_of_the_header_are_named(void **state)
{
    (void)state;
    save_toy();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change *c = &changes[i];
        file f = read_file(path);
        json_t *header = header_of(f), *at = header;
        if (c->list)
            at = json_object_get(at, c->list);
        if (c->index >= 0)
            at = json_array_get(at, (size_t)c->index);
        assert_non_null(at);
        if (c->value)
            json_object_set_new(at, c->field, json_loads(c->value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(at, c->field);
        char *text = json_dumps(header, JSON_COMPACT), what[128];
        put_header(&f, text);
        snprintf(what, sizeof what, "%s %s = %s", c->list ? c->list : "header", c->field, c->value ? c->value : "-");
        refuses(what, f, c->want, c->named);
        free(text);
        json_decref(header);
        free(f.bytes);
    }
}

static void odd_headers_are_named(void **state)
{
    (void)state;
    save_toy();
    static const struct {
        const char *text;
        vq_status want;
        const char *named;
    } texts[] = {
        {"", VQ_ERR_VALUE, "not JSON"},
        {"[]", VQ_ERR_TYPE, "not a JSON object"},
        {"{\"a\": 1, \"a\": 2}", VQ_ERR_VALUE, "not JSON"},
        {"{\"metadata\": {\"offset\": 4096", VQ_ERR_VALUE, "line 1"},
        {"\xff\xfe", VQ_ERR_VALUE, "not JSON"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        file f = read_file(path);
        put_header(&f, texts[i].text);
        refuses(texts[i].text, f, texts[i].want, texts[i].named);
        free(f.bytes);
    }
    /* two tensors in one place */
    file f = read_file(path);
    json_t *header = header_of(f), *tensors = json_object_get(header, "tensors");
    json_object_set(json_array_get(tensors, 3), "offset", json_object_get(json_array_get(tensors, 2), "offset"));
    char *text = json_dumps(header, 0);
    put_header(&f, text);
    refuses("overlap", f, VQ_ERR_OVERLAP, "overlap");
    free(text);
    json_decref(header);
    free(f.bytes);
}

static void an_altered_blob_opens_and_does_not_verify(void **state)
{
    (void)state;
    save_toy();
    file f = read_file(path);
    json_t *header = header_of(f), *tensor = json_array_get(json_object_get(header, "tensors"), 3);
    f.bytes[json_integer_value(json_object_get(tensor, "offset")) + 7] ^= 4;
    write_file(f);
    vq_gguf *g;
    vq_error err;
    check(vq_gguf_open(&g, other, &err), &err);
    assert_int_equal(vq_gguf_verify(g, NULL, NULL, &err), VQ_ERR_CHECKSUM);
    if (!strstr(err.text, json_string_value(json_object_get(tensor, "name"))) || !strstr(err.text, other))
        fail_msg("%s", err.text);
    vq_gguf_close(g);
    json_decref(header);
    free(f.bytes);
}

/* Reservoir and GGUF: the next pass through the model notices, and reads nothing. */
static void a_file_cut_while_open_is_an_error(void **state)
{
    (void)state;
    save_toy();
    vq_error err;
    vq_model *m;
    vq_session *s;
    vq_session_params p;
    vq_session_params_init(&p);
    check(vq_model_open(&m, path, &err), &err);
    check(vq_session_open(&s, m, &p, &err), &err);
    const int32_t id = 40;
    check(vq_session_eval(s, &id, 1, NULL, 0, NULL, &err), &err);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(vq_session_eval(s, &id, 1, NULL, 0, NULL, &err), VQ_ERR_TRUNCATED);
    if (!strstr(err.text, path) || !strstr(err.text, "4096"))
        fail_msg("%s", err.text);
    assert_int_equal(vq_model_save(m, other, NULL, NULL, &err), VQ_ERR_TRUNCATED);
    vq_session_close(s);
    vq_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_model_is_the_same),
        cmocka_unit_test(stopping_leaves_no_file),
        cmocka_unit_test(grafted_layers_are_the_donors),
        cmocka_unit_test(faults_of_the_head_are_named),
        cmocka_unit_test(faults_of_the_header_are_named),
        cmocka_unit_test(odd_headers_are_named),
        cmocka_unit_test(an_altered_blob_opens_and_does_not_verify),
        cmocka_unit_test(a_file_cut_while_open_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
