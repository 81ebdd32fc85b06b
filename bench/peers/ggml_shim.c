/* Matrix products of ggml behind four functions, for bench_weights: built by bench/weights-speed against the headers
 * and libraries that come with llama-cpp-python, and loaded at run time.
 *
 * A subject is many matrices of one type and shape and one graph that multiplies all of them with the same vector. With
 * `repack` they lie in the buffer type that llama.cpp itself prefers for them on this CPU (rows interleaved), where it
 * has one. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

typedef struct subject {
    ggml_backend_t backend;
    struct ggml_threadpool *pool;
    struct ggml_context *weights, *rest;
    ggml_backend_buffer_t weights_buffer, rest_buffer;
    struct ggml_cgraph *graph;
    struct ggml_tensor *x;
} subject;

void shim_close(void *p)
{
    subject *s = p;
    if (!s)
        return;
    if (s->weights_buffer)
        ggml_backend_buffer_free(s->weights_buffer);
    if (s->rest_buffer)
        ggml_backend_buffer_free(s->rest_buffer);
    if (s->weights)
        ggml_free(s->weights);
    if (s->rest)
        ggml_free(s->rest);
    if (s->backend)
        ggml_backend_free(s->backend);
    if (s->pool)
        ggml_threadpool_free(s->pool);
    free(s);
}

static void no_log(enum ggml_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)text;
    (void)arg;
}

static enum ggml_type type_by_name(const char *name)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++)
        if (strcasecmp(ggml_type_name((enum ggml_type)i), name) == 0)
            return (enum ggml_type)i;
    return GGML_TYPE_COUNT;
}

/* The first extra buffer type of the CPU that takes the matrix product, or NULL. */
static ggml_backend_buffer_type_t repacking(struct ggml_tensor *product)
{
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    ggml_backend_dev_get_extra_bufts_t get = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *types = get ? get(device) : NULL;
    for (; types && *types; types++) {
        ggml_backend_buffer_t empty = ggml_backend_buft_alloc_buffer(*types, 0);
        product->src[0]->buffer = empty;
        const bool takes = ggml_backend_dev_supports_op(device, product);
        product->src[0]->buffer = NULL;
        ggml_backend_buffer_free(empty);
        if (takes)
            return *types;
    }
    return NULL;
}

/* rows [n_out][n_in]: what each of the n matrices holds.  NULL when the type does not fit the shape, or with `repack`
 * where there is no such buffer. */
void *shim_open(const char *type_name, uint32_t n_in, uint32_t n_out, uint32_t n, uint32_t n_threads, bool repack,
                const float *rows)
{
    ggml_log_set(no_log, NULL);
    const enum ggml_type type = type_by_name(type_name);
    if (type == GGML_TYPE_COUNT || n_in % ggml_blck_size(type) != 0)
        return NULL;
    subject *s = calloc(1, sizeof *s);
    const struct ggml_init_params params = {
        ggml_tensor_overhead() * (2 * n + 8) + ggml_graph_overhead_custom(2 * n + 8, false), NULL, true};
    s->backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(s->backend, (int)n_threads);
    struct ggml_threadpool_params pool_params = ggml_threadpool_params_default((int)n_threads);
    s->pool = ggml_threadpool_new(&pool_params);
    ggml_backend_cpu_set_threadpool(s->backend, s->pool);
    s->weights = ggml_init(params);
    s->rest = ggml_init(params);
    s->graph = ggml_new_graph_custom(s->rest, 2 * n + 8, false);
    s->x = ggml_new_tensor_2d(s->rest, GGML_TYPE_F32, n_in, 1);
    struct ggml_tensor **w = calloc(n, sizeof *w), *last = NULL;
    for (uint32_t i = 0; i < n; i++) {
        w[i] = ggml_new_tensor_2d(s->weights, type, n_in, n_out);
        last = ggml_mul_mat(s->rest, w[i], s->x);
        ggml_build_forward_expand(s->graph, last);
    }
    const ggml_backend_buffer_type_t buffer_type = repack ? repacking(last) : ggml_backend_cpu_buffer_type();
    const size_t row_bytes = ggml_row_size(type, n_in);
    void *quantised = malloc(row_bytes * n_out);
    if (!buffer_type || !quantised) {
        free(quantised);
        free(w);
        shim_close(s);
        return NULL;
    }
    s->weights_buffer = ggml_backend_alloc_ctx_tensors_from_buft(s->weights, buffer_type);
    s->rest_buffer = ggml_backend_alloc_ctx_tensors_from_buft(s->rest, ggml_backend_cpu_buffer_type());
    ggml_quantize_chunk(type, rows, quantised, 0, n_out, n_in, NULL);
    for (uint32_t i = 0; i < n; i++)
        ggml_backend_tensor_set(w[i], quantised, 0, row_bytes * n_out);
    free(quantised);
    free(w);
    return s;
}

void shim_run(void *p, const float *x, uint32_t n_in)
{
    subject *s = p;
    ggml_backend_tensor_set(s->x, x, 0, n_in * sizeof *x);
    ggml_backend_graph_compute(s->backend, s->graph);
}

/* out [n_out]: of the last matrix. */
void shim_result(void *p, float *out, uint32_t n_out)
{
    const subject *s = p;
    ggml_backend_tensor_get(ggml_graph_node(s->graph, -1), out, 0, n_out * sizeof *out);
}
