/* What `bench` measures and how it reports. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli.h"

typedef struct bench_args {
    const char *json;
    uint32_t n_prompt, n_decode, n_samples;
    cli_counts depths, threads;
    cli_texts methods;
} bench_args;

/* One method with so many threads at one depth. */
typedef struct bench_row {
    const char *method;
    size_t method_index;
    uint32_t n_threads, depth;
    vq_session *session;
    double *prompt, *decode; /* [n_samples] tokens a second */
    size_t n_samples;
    cli_cache cache; /* after `depth` tokens */
} bench_row;

typedef struct bench_summary {
    double median, low, high; /* low, high: quartiles */
} bench_summary;

bench_summary bench_summarise(const double *samples, size_t n);
double bench_noise(bench_summary s); /* half the distance of the quartiles, as a share of the median */

void bench_print(const bench_args *a, const bench_row *rows, size_t n_rows);
/* Returns an exit status. */
int bench_write_json(const bench_args *a, const cli_model_args *model, const vq_model *weights, const bench_row *rows,
                     size_t n_rows, int argc, char **argv);

#endif
