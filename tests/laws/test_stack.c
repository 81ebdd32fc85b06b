/* How deep calls go into the stack of the thread that makes them: a library may be called from threads whose stacks are
 * small.  Each case runs on a stack of its own, which was zeros before, on one thread; what it touched is what isn't
 * zero afterwards. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kv/codec.h"
#include "support/calibration.h"
#include "support/sanitizer.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"
#include "veloxquant/tokenizer.h"

/* Sanitizers put their own things between variables; the pool's threads have twice as much for that. */
enum { LIMIT = (SANITIZED ? 2 : 1) * VQ_STACK_BYTES };

enum { STACK = 16 << 20, ROWS = 200, HEADS = 2 };

typedef struct call {
    void (*run)(struct call *c);
    char name[128];
    vq_kv_params params;
    const vq_model *model;
    vq_status status;
    vq_error err;
} call;

static void *start(void *arg)
{
    call *c = arg;
    c->run(c);
    return NULL;
}

/* Bytes of the stack that the call touched. */
static size_t depth_of(call *c)
{
    pthread_t thread;
    pthread_attr_t attr;
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    assert_true(stack != MAP_FAILED);
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstack(&attr, stack, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, start, c), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    size_t first = 0;
    while (first < STACK && !stack[first])
        first++;
    munmap(stack, STACK);
    return STACK - first;
}

static size_t check_depth(call *c)
{
    c->status = VQ_OK;
    const size_t depth = depth_of(c);
    if (c->status != VQ_OK && c->status != VQ_ERR_UNSUPPORTED)
        fail_msg("%s: %s", c->name, c->err.text);
    if (depth > LIMIT)
        fail_msg("%s takes %zu bytes of stack, the limit is %d", c->name, depth, LIMIT);
    return c->status == VQ_OK ? depth : 0;
}

/* ---- a cache ---- */

static void fill(float *x, size_t n, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng);
}

static void use_cache(call *c)
{
    const size_t n = (size_t)ROWS * HEADS * c->params.d_k;
    float *rows = malloc(3 * n * sizeof *rows);
    char path[TEMPORARY_PATH];
    vq_kv *kv;
    fill(rows, 3 * n, 1);
    temporary_file(path, "stack");
    c->status = vq_kv_open(&kv, &c->params, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_append(kv, 0, 0, rows, rows + n, ROWS, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_attend(kv, 0, rows + 2 * n, ROWS, rows + 2 * n, &c->err);
    if (c->status == VQ_OK) /* into the middle of a granule, which is decoded */
        c->status = vq_kv_truncate(kv, ROWS - 90, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_append(kv, 0, ROWS - 90, rows, rows + n, 1, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_attend(kv, 0, rows, 1, rows + 2 * n, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_save(kv, path, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_kv_load(kv, path, &c->err);
    vq_kv_close(kv);
    unlink(path);
    free(rows);
}

static void caches(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {64, 256, VQ_MAX_HEAD_DIM};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t most = 0;
        char deepest[sizeof(call){0}.name] = "";
        for (size_t k = 0; k < vq_n_codecs + 1;
             k++) { /* and the one that hands rows on, to the one that asks for most */
            const char *method = k < vq_n_codecs ? vq_codecs[k]->name : "outlier:inner=optimal,whole=1";
            call c = {.run = use_cache,
                      .params = {.n_layers = 1,
                                 .n_heads = HEADS,
                                 .n_kv_heads = HEADS,
                                 .d_k = sizes[i],
                                 .d_v = sizes[i],
                                 .n_ctx = ROWS,
                                 .n_batch = ROWS,
                                 .keys = method,
                                 .values = method,
                                 .sinks = VQ_KV_DEFAULT,
                                 .residual = 32}};
            c.params.calibration = toy_calibration_of(&c.params);
            snprintf(c.name, sizeof c.name, "a cache with %s, d %u,", method, sizes[i]);
            const size_t depth = check_depth(&c);
            if (k == vq_n_codecs && depth == 0)
                fail_msg("%s: %s", c.name, c.err.text);
            if (depth > most) {
                most = depth;
                memcpy(deepest, c.name, sizeof deepest);
            }
        }
        assert_true(most > 0);
        printf("deepest of %zu codecs: %s %zu bytes\n", vq_n_codecs, deepest, most);
    }
}

/* ---- a model ---- */

static void use_model(call *c)
{
    static const char text[] = "The capital of France is, as everybody knows, a large town on a river (2,161,000).";
    vq_session *s = NULL;
    vq_session_params p;
    int32_t *ids = NULL;
    size_t n = 0;
    vq_session_params_init(&p);
    c->status = vq_tokenize(vq_model_tokenizer(c->model), text, sizeof text - 1, 0, &ids, &n, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_session_open(&s, c->model, &p, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_session_eval(s, ids, n < 100 ? n : 100, NULL, 0, NULL, &c->err);
    if (c->status == VQ_OK)
        c->status = vq_session_eval(s, ids, 1, NULL, 0, NULL, &c->err);
    vq_session_close(s);
    vq_free(ids);
}

static void calibrate(call *c)
{
    enum { TOKENS = 600 };
    int32_t ids[TOKENS];
    char path[TEMPORARY_PATH];
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(vq_rng_next(&rng) % vq_model_get_info(c->model)->n_vocab);
    temporary_file(path, "stack");
    const vq_calibrate_params p = {.n_ctx = 100, .codebooks = VQ_CODEBOOKS_ALL};
    c->status = vq_calibrate(c->model, ids, TOKENS, &p, path, &c->err);
    unlink(path);
}

static void models(void **state)
{
    (void)state;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        toy_params toy;
        toy_params_init(&toy, (toy_family)family);
        vq_model *m = toy_open(&toy);
        call c = {.run = use_model, .model = m};
        snprintf(c.name, sizeof c.name, "a session of %s", toy_family_name((toy_family)family));
        const size_t session = check_depth(&c);
        c.run = calibrate;
        snprintf(c.name, sizeof c.name, "calibrating %s", toy_family_name((toy_family)family));
        printf("%s: %zu bytes in a session, %zu for calibrating\n", toy_family_name((toy_family)family), session,
               check_depth(&c));
        vq_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(caches), cmocka_unit_test(models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
