/* Forks of a cache, and saved caches whose pages stay in their file, over every codec that needs no calibration: each
 * goes on as a cache would that had been given all rows itself, to the last bit. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv/codec.h"
#include "kv_feed.h"
#include "support/temporary.h"

enum { LAYERS = 2, HEADS = 2, D = 32, N = 420, CHUNK = 50, WINDOW = 100 };

static const uint32_t windows[LAYERS] = {0, WINDOW};

/* The same rows up to row `same`, others from there on. */
static feed diverging(const feed *f, uint32_t same, uint64_t seed)
{
    feed g = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, seed);
    for (size_t l = 0; l < LAYERS; l++) {
        memcpy(g.k + l * N * HEADS * D, f->k + l * N * HEADS * D, (size_t)same * HEADS * D * sizeof *g.k);
        memcpy(g.v + l * N * HEADS * D, f->v + l * N * HEADS * D, (size_t)same * HEADS * D * sizeof *g.v);
    }
    return g;
}

static vq_kv *open_one(const feed *f, const char *name)
{
    const vq_kv_params p = {.sinks = VQ_KV_DEFAULT,
                            .residual = VQ_KV_DEFAULT,
                            .n_batch = CHUNK,
                            .keys = name,
                            .values = name,
                            .window = windows};
    return feed_open(f, p);
}

static vq_kv *fork_of(vq_kv *kv)
{
    vq_kv *out;
    vq_error err;
    if (vq_kv_fork(kv, &out, &err) != VQ_OK)
        fail_msg("fork: %s", err.text);
    return out;
}

/* The file of a cache, as bytes. */
static char *saved(const vq_kv *kv, size_t *n)
{
    char path[TEMPORARY_PATH];
    temporary_file(path, "fork");
    assert_int_equal(vq_kv_save(kv, path, NULL), VQ_OK);
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    unlink(path);
    return bytes;
}

static void check_same(const vq_kv *a, const vq_kv *b, const char *what)
{
    size_t n_a, n_b;
    char *x = saved(a, &n_a), *y = saved(b, &n_b);
    if (n_a != n_b || memcmp(x, y, n_a) != 0)
        fail_msg("%s: the caches differ (%zu and %zu bytes)", what, n_a, n_b);
    free(x);
    free(y);
}

static void check_outputs(const feed *f, const float *want, uint32_t from, const char *what)
{
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t at = (l * N + from) * 2 * HEADS * D, n = (size_t)(N - from) * 2 * HEADS * D;
        if (memcmp(f->out + at, want + at, n * sizeof *want) != 0)
            fail_msg("%s: outputs of layer %zu differ", what, l);
    }
}

/* What fresh caches give for both feeds. */
static float *outputs_of(feed *f, const char *name)
{
    vq_kv *kv = open_one(f, name);
    feed_run(f, kv, 0, N, CHUNK);
    vq_kv_close(kv);
    float *out = malloc(feed_out_bytes(f));
    memcpy(out, f->out, feed_out_bytes(f));
    memset(f->out, 0, feed_out_bytes(f));
    return out;
}

/* Cache and fork take turns after row `at`; then one of them is closed first. */
static void check_fork(const char *name, uint32_t at, bool close_parent_first)
{
    char what[96];
    snprintf(what, sizeof what, "%s forked at %u", name, at);
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 31), g = diverging(&f, at, 32);
    float *want_f = outputs_of(&f, name), *want_g = outputs_of(&g, name);
    vq_kv *a = open_one(&f, name);
    feed_run(&f, a, 0, at, CHUNK);
    vq_kv *b = fork_of(a);
    check_same(a, b, what);
    for (uint32_t i = at; i < N; i += CHUNK) {
        const uint32_t end = i + CHUNK < N ? i + CHUNK : N;
        feed_run(&f, a, i, end, 7);
        feed_run(&g, b, i, end, 11);
    }
    check_outputs(&f, want_f, at, what);
    check_outputs(&g, want_g, at, what);
    vq_kv *fresh = open_one(&g, name);
    feed_run(&g, fresh, 0, N, CHUNK);
    check_same(b, fresh, what);
    vq_kv_close(close_parent_first ? a : b);
    if (close_parent_first)
        check_same(b, fresh, "after the parent was closed");
    vq_kv_close(close_parent_first ? b : a);
    vq_kv_close(fresh);
    free(want_f);
    free(want_g);
    feed_free(&f);
    feed_free(&g);
}

static void forks_go_on_as_caches_of_their_own(void **state)
{
    (void)state;
    static const uint32_t at[] = {0, 1, 40, 100, 165, 233, 292};
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (size_t i = 0; i < sizeof at / sizeof at[0] && !vq_codecs[c]->calibrated; i++)
            check_fork(vq_codecs[c]->name, at[i], i % 2);
}

/* A tree of forks, each cut back and given other rows, closed in an odd order. */
static void trees_of_forks_may_be_cut_and_closed_in_any_order(void **state)
{
    (void)state;
    enum { DEPTH = 6 };
    const char *name = "turboquant-mse:bits=3";
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 41);
    vq_kv *kv[DEPTH], *fresh[DEPTH];
    feed feeds[DEPTH];
    static const uint32_t all_windows[LAYERS] = {0};
    const vq_kv_params p = {.sinks = 4,
                            .residual = 32,
                            .n_batch = CHUNK,
                            .keys = name,
                            .values = name,
                            .window = all_windows}; /* windows forbid going far back */
    for (uint32_t i = 0; i < DEPTH; i++) {
        /* fork i shares the rows before 300 - 40 i with the one before it */
        feeds[i] = diverging(&f, 300 - 40 * i, 50 + i);
        fresh[i] = feed_open(&f, p);
        if (i == 0) {
            kv[0] = feed_open(&f, p);
            feed_run(&f, kv[0], 0, 300, CHUNK);
        } else {
            kv[i] = fork_of(kv[i - 1]);
            assert_int_equal(vq_kv_truncate(kv[i], 300 - 40 * i, NULL), VQ_OK);
            feed_run(&feeds[i], kv[i], 300 - 40 * i, 300, CHUNK);
            /* as a cache that went the same way: the cuts leave their mark on what is exact */
            feed_run(&f, fresh[i], 0, 300, CHUNK);
            for (uint32_t j = 1; j <= i; j++) {
                assert_int_equal(vq_kv_truncate(fresh[i], 300 - 40 * j, NULL), VQ_OK);
                feed_run(&feeds[j], fresh[i], 300 - 40 * j, 300, CHUNK);
            }
            check_same(kv[i], fresh[i], "a fork of a fork");
        }
    }
    static const uint32_t order[DEPTH] = {2, 0, 5, 1, 4, 3};
    for (uint32_t i = 0; i < DEPTH; i++) {
        vq_kv_close(kv[order[i]]);
        kv[order[i]] = NULL;
        for (uint32_t j = 1; j < DEPTH; j++)
            if (kv[j])
                check_same(kv[j], fresh[j], "after others were closed");
    }
    for (uint32_t i = 0; i < DEPTH; i++) {
        vq_kv_close(fresh[i]);
        feed_free(&feeds[i]);
    }
    feed_free(&f);
}

/* Between append and attend, and into a cache that is loaded or cleared afterwards. */
static void forks_may_come_at_any_moment(void **state)
{
    (void)state;
    const char *name = "velox:bits=2";
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 61);
    vq_kv *a = open_one(&f, name);
    feed_run(&f, a, 0, 200, CHUNK);
    const size_t row = (size_t)HEADS * D;
    float *out[2];
    for (int i = 0; i < 2; i++)
        out[i] = calloc((size_t)CHUNK * 2 * HEADS * D, sizeof(float));
    assert_int_equal(vq_kv_append(a, 0, 200, f.k + 200 * row, f.v + 200 * row, CHUNK, NULL), VQ_OK);
    vq_kv *b = fork_of(a);
    assert_int_equal(vq_kv_attend(a, 0, f.q + 400 * row, CHUNK, out[0], NULL), VQ_OK);
    assert_int_equal(vq_kv_attend(b, 0, f.q + 400 * row, CHUNK, out[1], NULL), VQ_OK);
    assert_memory_equal(out[0], out[1], (size_t)CHUNK * 2 * HEADS * D * sizeof(float));

    char path[TEMPORARY_PATH];
    temporary_file(path, "fork");
    assert_int_equal(vq_kv_save(a, path, NULL), VQ_OK);
    vq_kv *c = fork_of(b);
    vq_kv_clear(b);
    assert_int_equal(vq_kv_n_rows(b, 0), 0);
    feed_run(&f, b, 0, 100, CHUNK);
    check_same(a, c, "after another was cleared");
    assert_int_equal(vq_kv_load(b, path, NULL), VQ_OK);
    check_same(a, b, "loaded into a fork");
    unlink(path);
    vq_kv_close(a);
    check_same(b, c, "after the oldest was closed");
    vq_kv_close(c);
    vq_kv_close(b);
    free(out[0]);
    free(out[1]);
    feed_free(&f);
}

static void too_many_forks_are_refused(void **state)
{
    (void)state;
    feed f = feed_make(1, 1, 1, 8, 8, 70, 71);
    vq_kv *kv[64], *more;
    kv[0] = feed_open(&f, (vq_kv_params){.keys = "f16", .values = "f16"});
    feed_run(&f, kv[0], 0, 70, 70);
    for (uint32_t i = 1; i < 64; i++)
        kv[i] = fork_of(kv[i / 2]);
    vq_error err = {0};
    assert_int_equal(vq_kv_fork(kv[9], &more, &err), VQ_ERR_FULL);
    assert_null(more);
    assert_string_equal(err.text, "64 forks of one cache are open, at most 64");
    vq_kv_close(kv[9]);
    kv[9] = fork_of(kv[63]);
    for (uint32_t i = 0; i < 64; i++)
        vq_kv_close(kv[i]);
    feed_free(&f);
}

typedef struct runner {
    feed f;
    vq_kv *kv;
} runner;

static void *run_on(void *arg)
{
    runner *r = arg;
    feed_run(&r->f, r->kv, 100, N, CHUNK);
    vq_kv *again;
    if (vq_kv_fork(r->kv, &again, NULL) == VQ_OK)
        vq_kv_close(again);
    vq_kv_close(r->kv);
    return NULL;
}

static void forks_run_on_threads_of_their_own(void **state)
{
    (void)state;
    enum { N_FORKS = 4 };
    const char *name = "int8";
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 81);
    runner r[N_FORKS];
    float *want[N_FORKS];
    vq_kv *a = open_one(&f, name);
    feed_run(&f, a, 0, 100, CHUNK);
    for (uint32_t i = 0; i < N_FORKS; i++) {
        r[i].f = diverging(&f, 100, 90 + i);
        want[i] = outputs_of(&r[i].f, name);
        r[i].kv = fork_of(a);
    }
    pthread_t threads[N_FORKS];
    for (uint32_t i = 0; i < N_FORKS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_on, &r[i]), 0);
    vq_kv_close(a);
    for (uint32_t i = 0; i < N_FORKS; i++) {
        pthread_join(threads[i], NULL);
        check_outputs(&r[i].f, want[i], 100, "on a thread of its own");
        feed_free(&r[i].f);
        free(want[i]);
    }
    feed_free(&f);
}

/* ---- files ---- */

static void save_to(const vq_kv *kv, const char *path)
{
    vq_error err;
    if (vq_kv_save(kv, path, &err) != VQ_OK)
        fail_msg("%s", err.text);
}

static void load_from(vq_kv *kv, const char *path)
{
    vq_error err;
    if (vq_kv_load(kv, path, &err) != VQ_OK)
        fail_msg("%s", err.text);
}

/* Loaded, gone on, forked, cut and saved again: as the cache that was saved. */
static void pages_in_a_file_serve_like_others(void **state)
{
    (void)state;
    for (size_t c = 0; c < vq_n_codecs; c++) {
        const char *name = vq_codecs[c]->name;
        if (vq_codecs[c]->calibrated)
            continue;
        feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 101);
        char path[TEMPORARY_PATH];
        float *want = outputs_of(&f, name);
        vq_kv *a = open_one(&f, name), *b = open_one(&f, name);
        feed_run(&f, a, 0, 233, CHUNK);
        temporary_file(path, "fork");
        save_to(a, path);
        load_from(b, path);
        vq_kv_bytes bytes;
        vq_kv_measure(b, &bytes);
        assert_int_equal(bytes.mapped, bytes.codes + bytes.scales);
        assert_true(bytes.mapped > 0);
        check_same(a, b, name);
        vq_kv *fork = fork_of(b);
        save_to(b, path); /* the file is replaced, the map keeps the old one */
        feed_run(&f, b, 233, N, CHUNK);
        check_outputs(&f, want, 233, name);
        vq_kv_measure(b, &bytes);
        assert_true(bytes.mapped > 0 && bytes.mapped < bytes.codes + bytes.scales);
        vq_kv_close(b);
        check_same(a, fork, name);
        vq_kv_measure(fork, &bytes);
        assert_true(bytes.mapped > 0);
        vq_kv_clear(fork);
        vq_kv_measure(fork, &bytes);
        assert_int_equal(bytes.mapped, 0);
        const void *start;
        size_t n;
        assert_int_equal(vq_kv_files(fork, &start, &n, 1), 0);
        vq_kv_close(fork);
        vq_kv_close(a);
        unlink(path);
        free(want);
        feed_free(&f);
    }
}

/* Cutting a file that is mapped would kill its reader: what can be written is copied. */
static void files_that_can_be_written_are_copied(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 102);
    char path[TEMPORARY_PATH];
    vq_kv *a = open_one(&f, "f16"), *b = open_one(&f, "f16");
    feed_run(&f, a, 0, N, CHUNK);
    temporary_file(path, "fork");
    save_to(a, path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0222, 0);
    assert_int_equal(chmod(path, 0640), 0);
    load_from(b, path);
    vq_kv_bytes bytes;
    vq_kv_measure(b, &bytes);
    assert_int_equal(bytes.mapped, 0);
    assert_int_equal(truncate(path, 100), 0);
    check_same(a, b, "after its file was cut");
    unlink(path);
    vq_kv_close(a);
    vq_kv_close(b);
    feed_free(&f);
}

/* Rss and Pss, in KiB, of the mapping that begins at `start`. */
static void smaps_of(const void *start, uint64_t *rss, uint64_t *pss)
{
    char line[256];
    bool inside = false;
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    *rss = *pss = 0;
    while (fgets(line, sizeof line, file)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from == (uintptr_t)start;
        if (inside) {
            sscanf(line, "Rss: %" SCNu64, rss);
            sscanf(line, "Pss: %" SCNu64, pss);
        }
    }
    fclose(file);
}

static void processes_share_a_saved_cache(void **state)
{
    (void)state;
    enum { MANY = 2000 };
    feed f = feed_make(1, 8, 8, 64, 64, MANY, 103);
    char path[TEMPORARY_PATH];
    const vq_kv_params p = {.n_batch = 500, .keys = "int8", .values = "int8"};
    vq_kv *kv = feed_open(&f, p);
    feed_run(&f, kv, 0, MANY, 500);
    temporary_file(path, "fork");
    save_to(kv, path);
    vq_kv_close(kv);
    int ready[2], done[2];
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(done), 0);
    fflush(stdout);
    const pid_t other = fork();
    kv = feed_open(&f, p);
    const vq_status status = vq_kv_load(kv, path, NULL); /* reads all of the file, for its checksum */
    char byte = (char)status;
    if (other == 0) {
        (void)!write(ready[1], &byte, 1);
        (void)!read(done[0], &byte, 1);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    const void *start;
    size_t n_bytes;
    uint64_t rss, pss;
    assert_int_equal(status, VQ_OK);
    assert_int_equal(byte, VQ_OK);
    assert_int_equal(vq_kv_files(kv, &start, &n_bytes, 1), 1);
    smaps_of(start, &rss, &pss);
    printf("a file of %zu bytes in two processes: %" PRIu64 " KiB resident in each, %" PRIu64 " KiB its share\n",
           n_bytes, rss, pss);
    (void)!write(done[1], &byte, 1);
    assert_int_equal(waitpid(other, NULL, 0), other);
    assert_true(rss * 1024 + 4096 > n_bytes);
    assert_true(2 * pss <= rss + 4);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
    unlink(path);
    vq_kv_close(kv);
    feed_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_go_on_as_caches_of_their_own),
        cmocka_unit_test(trees_of_forks_may_be_cut_and_closed_in_any_order),
        cmocka_unit_test(forks_may_come_at_any_moment),
        cmocka_unit_test(too_many_forks_are_refused),
        cmocka_unit_test(forks_run_on_threads_of_their_own),
        cmocka_unit_test(pages_in_a_file_serve_like_others),
        cmocka_unit_test(files_that_can_be_written_are_copied),
        cmocka_unit_test(processes_share_a_saved_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
