/* The packed cache on its own, without a model: rows of floats go in, attention over their codes comes out.
 *
 *     cc kv_cache.c $(pkg-config --cflags --libs veloxquant) && ./a.out turboquant-mse:bits=3 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <veloxquant/veloxquant.h>

enum { TOKENS = 1024, HEADS = 4, KV_HEADS = 2, D = 64 };

static float noise(uint32_t *state) /* anything will do */
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

int main(int argc, char **argv)
{
    const char *method = argc > 1 ? argv[1] : "f16";
    static float k[TOKENS][KV_HEADS][D], v[TOKENS][KV_HEADS][D], q[TOKENS][HEADS][D], out[TOKENS][HEADS][D];
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof k / sizeof(float); i++) {
        (&k[0][0][0])[i] = noise(&state);
        (&v[0][0][0])[i] = noise(&state);
    }
    for (size_t i = 0; i < sizeof q / sizeof(float); i++)
        (&q[0][0][0])[i] = 4 * noise(&state);

    vq_error err;
    vq_kv *kv;
    const vq_kv_params params = {.n_layers = 1,
                                 .n_heads = HEADS,
                                 .n_kv_heads = KV_HEADS,
                                 .d_k = D,
                                 .d_v = D,
                                 .n_ctx = TOKENS,
                                 .n_batch = TOKENS,
                                 .keys = method,
                                 .values = method,
                                 .sinks = VQ_KV_DEFAULT,
                                 .residual = VQ_KV_DEFAULT};
    if (vq_kv_open(&kv, &params, &err) != VQ_OK ||
        vq_kv_append(kv, 0, 0, &k[0][0][0], &v[0][0][0], TOKENS, &err) != VQ_OK ||
        vq_kv_attend(kv, 0, &q[0][0][0], TOKENS, &out[0][0][0], &err) != VQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    vq_kv_bytes bytes;
    vq_kv_measure(kv, &bytes);
    printf("%s: %" PRIu64 " of %" PRIu64
           " rows are codes, %.3f bits a value; the last token attends to %+.4f %+.4f ...\n",
           method, bytes.n_packed_rows, bytes.n_rows,
           bytes.n_values_packed ? 8.0 * (double)(bytes.codes + bytes.scales) / (double)bytes.n_values_packed : 0.0,
           out[TOKENS - 1][0][0], out[TOKENS - 1][0][1]);
    vq_kv_close(kv);
    return 0;
}
