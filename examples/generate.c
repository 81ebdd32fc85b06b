/* Text from a model file, with a packed cache.
 *
 *     cc generate.c $(pkg-config --cflags --libs veloxquant) && ./a.out MODEL.gguf "Once upon a time"
 * turboquant-mse:bits=3 */
#include <stdio.h>
#include <string.h>

#include <veloxquant/veloxquant.h>

static bool print(void *arg, const char *utf8, size_t n_bytes)
{
    fwrite(utf8, 1, n_bytes, arg);
    return fflush(arg) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [METHOD]\n", argv[0]);
        return 2;
    }
    vq_error err = {0};
    vq_pool *pool = NULL;
    vq_model *model = NULL;
    vq_session *session = NULL;
    vq_sampler *sampler = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    vq_session_params params;
    vq_session_params_init(&params);
    params.kv_keys = params.kv_values = argc > 3 ? argv[3] : "f16";
    vq_sampler_params sampling;
    vq_sampler_params_init(&sampling);
    vq_generate_result result;
    const vq_generate_params generation = {.n_predict = 64, .text = print, .arg = stdout};

    vq_status status = vq_pool_open(&pool, 0, &err);
    params.pool = pool;
    if (status == VQ_OK)
        status = vq_model_open(&model, argv[1], &err);
    if (status == VQ_OK)
        status = vq_session_open(&session, model, &params, &err);
    if (status == VQ_OK)
        status = vq_sampler_open(&sampler, &sampling, vq_model_get_info(model)->n_vocab, &err);
    if (status == VQ_OK)
        status = vq_tokenize(vq_model_tokenizer(model), argv[2], strlen(argv[2]), VQ_TOKENIZE_BOS, &ids, &n, &err);
    if (status == VQ_OK)
        status = vq_generate(session, sampler, ids, n, &generation, &result, &err);
    puts("");
    if (status == VQ_OK)
        printf("[%zu new tokens, %.1f a second]\n", result.n_new, (double)result.n_new / result.decode_seconds);
    else
        fprintf(stderr, "%s\n", err.text);
    vq_free(ids);
    vq_sampler_close(sampler);
    vq_session_close(session);
    vq_model_close(model);
    vq_pool_close(pool);
    return status != VQ_OK;
}
