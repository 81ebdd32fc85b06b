/* Speed of matrices of packed rows, one token at a time, beside ggml's of a type of like size where its shim is given
 * (bench/weights-speed builds it).
 *
 *     bench_weights BITS N_IN N_OUT THREADS ROUNDS [SHIM TYPE]
 *
 * One pass multiplies one vector with every matrix of a pool of 64 MiB, as a model's layers are met; rotating and
 * rounding the vector is done anew for each matrix on both sides.  Variants take turns; prints one line of JSON. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "quant/linear.h"
#include "veloxquant/measure.h"

enum { N_INPUTS = 8, POOL_BYTES = 64 << 20, MOST_VARIANTS = 4 };

typedef struct shim {
    void *(*open)(const char *, uint32_t, uint32_t, uint32_t, uint32_t, bool, const float *);
    void (*run)(void *, const float *, uint32_t);
    void (*result)(void *, float *, uint32_t);
    void (*close)(void *);
} shim;

typedef struct subject {
    uint32_t n_in, n_out, n_matrices;
    const float *x; /* [N_INPUTS][n_in] */
    float *out;

    vq_kernels *k;
    vq_pool *pool;
    vq_matrix *w;
    float *y, *turn;
    void *act, *scratch;

    const shim *peer;
    void *peer_subject;
} subject;

static void *take(size_t n_bytes)
{
    void *p = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "bench_weights: no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return p;
}

static vq_status run_own(void *arg, uint32_t input, vq_error *err)
{
    subject *s = arg;
    (void)err;
    for (uint32_t i = 0; i < s->n_matrices; i++) {
        memcpy(s->y, s->x + (size_t)input * s->n_in, s->n_in * sizeof *s->y);
        vq_rotation_apply(s->w[i].rotation, s->y, s->turn);
        vq_matmul_prepare(&s->k->matmul, s->pool, s->act, s->y, s->n_in, 1, VQ_ACT_ROWS);
        vq_matmul(&s->k->matmul, s->pool, &s->w[i], s->act, 1, VQ_ACT_ROWS, s->out, s->n_out, s->scratch);
    }
    return VQ_OK;
}

static vq_status run_peer(void *arg, uint32_t input, vq_error *err)
{
    subject *s = arg;
    (void)err;
    s->peer->run(s->peer_subject, s->x + (size_t)input * s->n_in, s->n_in);
    return VQ_OK;
}

static const void *input_bytes(void *arg, uint32_t input, size_t *n_bytes)
{
    const subject *s = arg;
    *n_bytes = s->n_in * sizeof *s->x;
    return s->x + (size_t)input * s->n_in;
}

static shim load_shim(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW);
    shim s = {0};
    if (!lib) {
        fprintf(stderr, "bench_weights: %s\n", dlerror());
        exit(1);
    }
    *(void **)&s.open = dlsym(lib, "shim_open");
    *(void **)&s.run = dlsym(lib, "shim_run");
    *(void **)&s.result = dlsym(lib, "shim_result");
    *(void **)&s.close = dlsym(lib, "shim_close");
    if (!s.open || !s.run || !s.result || !s.close) {
        fprintf(stderr, "bench_weights: %s is no shim\n", path);
        exit(1);
    }
    return s;
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, uint32_t n)
{
    double error = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        squares += (double)b[i] * (double)b[i];
    }
    return sqrt(error / squares);
}

static void print_variant(const char *name, const subject *s, const double *seconds, const double *own, size_t n,
                          double error)
{
    double *ratio = take(n * sizeof *ratio);
    for (size_t i = 0; i < n; i++)
        ratio[i] = seconds[i] / own[i];
    const vq_spread time = vq_spread_of(seconds, n), r = vq_spread_of(ratio, n);
    printf(
        ", \"%s\": {\"us_a_product\": [%.2f, %.2f, %.2f], \"seconds_over_ours\": [%.3f, %.3f, %.3f], \"error\": %.4f}",
        name, time.q1 * 1e6 / s->n_matrices, time.median * 1e6 / s->n_matrices, time.q3 * 1e6 / s->n_matrices, r.q1,
        r.median, r.q3, error);
    free(ratio);
}

int main(int argc, char **argv)
{
    if (argc != 6 && argc != 8) {
        fprintf(stderr, "usage: bench_weights BITS N_IN N_OUT THREADS ROUNDS [SHIM TYPE]\n");
        return 2;
    }
    const uint32_t bits = (uint32_t)atoi(argv[1]), n_in = (uint32_t)atoi(argv[2]), n_out = (uint32_t)atoi(argv[3]);
    const uint32_t n_threads = (uint32_t)atoi(argv[4]), n_rounds = (uint32_t)atoi(argv[5]);
    const char *type = argc > 7 ? argv[7] : NULL;
    vq_error err;
    if (vq_linear_check(bits, n_in, n_out, &err) != VQ_OK || n_threads < 1 || n_rounds < 1) {
        fprintf(stderr, "bench_weights: %s\n", err.text);
        return 2;
    }
    static vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    vq_input_rotation *rotation;
    vq_pool *pool;
    if (vq_input_rotation_open(&rotation, &k.codes, n_in, false, 1, &err) != VQ_OK ||
        vq_pool_open(&pool, n_threads, &err) != VQ_OK) {
        fprintf(stderr, "bench_weights: %s\n", err.text);
        return 1;
    }

    const size_t n_bytes = vq_linear_bytes(bits, n_in, n_out);
    subject s = {
        .n_in = n_in, .n_out = n_out, .n_matrices = (uint32_t)(POOL_BYTES / n_bytes) + 1, .k = &k, .pool = pool};
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    float *rows = take((size_t)n_in * n_out * sizeof *rows), *x = take((size_t)N_INPUTS * n_in * sizeof *x);
    for (size_t i = 0; i < (size_t)n_in * n_out; i++)
        rows[i] = (float)vq_rng_normal(&rng) * 0.02F;
    for (size_t i = 0; i < (size_t)N_INPUTS * n_in; i++)
        x[i] = (float)vq_rng_normal(&rng);
    s.x = x;
    s.out = take(n_out * sizeof *s.out);
    s.y = take(n_in * sizeof *s.y);
    s.turn = take(n_in * sizeof *s.turn);
    s.act = take(vq_matmul_act_bytes(n_in, 1, VQ_ACT_ROWS));
    s.scratch = take(vq_matmul_scratch_bytes(n_threads));
    s.w = take(s.n_matrices * sizeof *s.w);
    const vq_linear l = {.bits = bits, .n_in = n_in, .n_out = n_out, .rotation = &rotation->r, .k = &k.codes};
    uint8_t *data = take(n_bytes * s.n_matrices);
    void *encode_scratch = take(vq_linear_scratch_bytes(n_in, n_threads));
    vq_linear_encode(&l, pool, data, 0, n_out, rows, NULL, encode_scratch);
    for (uint32_t i = 0; i < s.n_matrices; i++) {
        if (i > 0)
            memcpy(data + i * n_bytes, data, n_bytes);
        s.w[i] = vq_linear_matrix(&l, data + i * n_bytes);
    }
    float *want = take(n_out * sizeof *want), *got = take(n_out * sizeof *got);
    for (uint32_t r = 0; r < n_out; r++)
        want[r] = k.vec.dot(rows + (size_t)r * n_in, x, n_in);

    vq_variant variants[MOST_VARIANTS] = {{"ours", run_own, &s}};
    subject peers[2] = {s, s};
    shim peer = {0};
    uint32_t n_variants = 1;
    if (type) {
        static const char *const names[] = {"peer", "peer_repacked"};
        peer = load_shim(argv[6]);
        for (uint32_t repack = 0; repack < 2; repack++) {
            subject *p = &peers[n_variants - 1];
            p->peer = &peer;
            p->peer_subject = peer.open(type, n_in, n_out, s.n_matrices, n_threads, repack, rows);
            if (p->peer_subject)
                variants[n_variants++] = (vq_variant){names[repack], run_peer, p};
        }
    }
    double *seconds = take((MOST_VARIANTS + 1) * n_rounds * sizeof *seconds);
    vq_load load;
    const vq_turns turns = {.variants = variants,
                            .n_variants = n_variants,
                            .n_inputs = N_INPUTS,
                            .input = input_bytes,
                            .input_arg = &s,
                            .n_rounds = n_rounds,
                            .sample_seconds = 0.02};
    if (vq_take_turns(&turns, seconds, &load, &err) != VQ_OK) {
        fprintf(stderr, "bench_weights: %s\n", err.text);
        return 1;
    }
    printf("{\"bits\": %u, \"n_in\": %u, \"n_out\": %u, \"threads\": %u, \"tier\": \"%s\", \"bits_a_weight\": %.3f, "
           "\"type\": \"%s\", \"others\": %.2f",
           bits, n_in, n_out, n_threads, vq_cpu_name(k.cpu), 8.0 * (double)n_bytes / ((double)n_in * n_out),
           type ? type : "", load.others);
    for (uint32_t v = 0; v < n_variants; v++) {
        variants[v].run(variants[v].arg, 0, &err);
        if (v == 0)
            memcpy(got, s.out, n_out * sizeof *got);
        else
            peer.result(((subject *)variants[v].arg)->peer_subject, got, n_out);
        print_variant(variants[v].name, &s, seconds + (size_t)v * n_rounds, seconds, n_rounds,
                      distance(got, want, n_out));
    }
    print_variant("ours_again", &s, seconds + (size_t)n_variants * n_rounds, seconds, n_rounds, 0);
    printf("}\n");
    for (uint32_t v = 1; v < n_variants; v++)
        peer.close(((subject *)variants[v].arg)->peer_subject);
    vq_pool_close(pool);
    vq_input_rotation_close(rotation);
    return 0;
}
