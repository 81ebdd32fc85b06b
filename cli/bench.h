/* What `bench` measures and how it reports. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli.h"
#include "veloxquant/measure.h"

typedef struct bench_args {
    const char *json;
    uint32_t n_prompt, n_decode, n_samples;
    cli_counts depths, threads;
    cli_texts methods;
    bool need_quiet;
} bench_args;

/* Seconds of one row's samples, in the order in which they were taken. */
typedef struct bench_samples {
    double *prompt, *decode; /* [n]: of n_prompt tokens in one go; of n_decode single ones */
    double *token;           /* [n][n_decode]: of each single token */
    size_t n;
} bench_samples;

/* One method with so many threads at one depth. */
typedef struct bench_row {
    const char *method;
    size_t method_index;
    uint32_t n_threads, depth;
    vq_session *session;
    bench_samples taken, again; /* again: of the first method, a second time in each round: the control */
    cli_cache cache;            /* after `depth` tokens */
} bench_row;

/* The first method's row of the same depth and threads. */
const bench_row *bench_base(const bench_args *a, const bench_row *rows, size_t i);
void bench_print(const bench_args *a, const bench_row *rows, size_t n_rows, const vq_load *load);
/* Returns an exit status. */
int bench_write_json(const bench_args *a, const cli_model_args *model, const vq_model *weights, const bench_row *rows,
                     size_t n_rows, const vq_load *load, int argc, char **argv);

#endif
