/* Opening a cache of dense rotations that are drawn, against one that reads what vq_precompute wrote.
 *
 *   bench_artifacts FOLDER      writes its files there; a few seconds
 *
 * Medians of 5, drawn and read in turns; the file lies in the page cache. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "veloxquant/artifact.h"
#include "veloxquant/kv.h"

enum { N_RUNS = 5 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of one opening; ends the program when that fails. */
static double open_once(const vq_artifact_info *i, const char *dir)
{
    const vq_kv_params p = {.n_layers = i->n_layers,
                            .n_heads = i->n_kv_heads,
                            .n_kv_heads = i->n_kv_heads,
                            .d_k = i->d,
                            .d_v = i->d,
                            .n_ctx = 1024,
                            .n_batch = 1,
                            .keys = "turboquant-mse:bits=3,haar=1",
                            .values = "turboquant-mse:bits=3,haar=1",
                            .sinks = VQ_KV_DEFAULT,
                            .residual = VQ_KV_DEFAULT,
                            .artifact_dir = dir};
    vq_kv *kv;
    vq_error err;
    const double start = seconds();
    if (vq_kv_open(&kv, &p, &err) != VQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    const double took = seconds() - start;
    vq_kv_close(kv);
    return took;
}

int main(int argc, char **argv)
{
    /* as in SmolLM2 135M, in Llama 3 8B (a quarter of its layers), in Gemma 3 270M */
    static const vq_artifact_info shapes[] = {
        {.d = 64, .qr = true, .n_layers = 30, .n_kv_heads = 3, .least_bits = 1, .most_bits = 4},
        {.d = 128, .qr = true, .n_layers = 8, .n_kv_heads = 8, .least_bits = 1, .most_bits = 4},
        {.d = 256, .qr = true, .n_layers = 18, .n_kv_heads = 1, .least_bits = 1, .most_bits = 4},
    };
    if (argc != 2) {
        fprintf(stderr, "usage: bench_artifacts FOLDER\n");
        return 2;
    }
    printf("head size  layers  kv heads  file, MiB  drawn, ms  read, ms\n");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        vq_artifact_info info = shapes[s];
        vq_error err;
        if (vq_precompute(&info, argv[1], NULL, NULL, &err) != VQ_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        double drawn[N_RUNS], read[N_RUNS];
        for (int i = 0; i < N_RUNS; i++) {
            drawn[i] = open_once(&info, NULL);
            read[i] = open_once(&info, argv[1]);
        }
        qsort(drawn, N_RUNS, sizeof *drawn, ascending);
        qsort(read, N_RUNS, sizeof *read, ascending);
        printf("%9u  %6u  %8u  %9.1f  %9.1f  %8.2f\n", info.d, info.n_layers, info.n_kv_heads,
               (double)info.n_bytes / (1 << 20), 1e3 * drawn[N_RUNS / 2], 1e3 * read[N_RUNS / 2]);
    }
    return 0;
}
