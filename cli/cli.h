/* What the subcommands share: exit statuses, messages, output that is checked, signals, model options. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "veloxquant/veloxquant.h"

enum { CLI_FINE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

typedef struct cli_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit status */
} cli_command;

int cli_generate(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_perplexity(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_calibrate(int argc, char **argv);
int cli_methods(int argc, char **argv);
int cli_fidelity(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_quantize(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_precompute(int argc, char **argv);
int cli_recommend(int argc, char **argv);

#define CLI_TRY(call)                                                                                                  \
    do {                                                                                                               \
        const vq_status cli_try_ = (call);                                                                             \
        if (cli_try_ != VQ_OK)                                                                                         \
            return cli_try_;                                                                                           \
    } while (0)

/* ---- messages: "veloxquant: TEXT" on standard error ---- */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2))); /* returns CLI_FAILED */
int cli_fail_with(const vq_error *err);                                      /* the library's message */
/* Says what is wrong with the words of a command line, and where the help is; returns CLI_USAGE. */
int cli_usage(const cli_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Parses; on false *status is what the program should end with (help has then been printed). */
bool cli_parse(const cli_page *page, int argc, char **argv, size_t *n_operands, int *status);

/* ---- standard output ---- */
/* Bytes now; false when they could not be written.  The reason is kept for cli_finish_output. */
bool cli_write(const char *bytes, size_t n_bytes);
/* Flushes and closes; a failure is said and turns CLI_FINE into CLI_FAILED. */
int cli_finish_output(int status);

/* ---- signals ---- */
/* SIGBUS says that the model file changed and ends; SIGPIPE ends quietly. */
void cli_signals_init(void);
void cli_signals_model(const char *path); /* named in the message of SIGBUS */
/* From here on Ctrl-C (and SIGTERM) only sets a flag; `most` times, then it ends the program at once, with 128 +
 * signal.
 */
void cli_catch_interrupt(int most);
bool cli_interrupted(void);
void cli_forget_interrupt(void);

/* ---- files and numbers ---- */
/* The whole of a file, "-" for standard input; *bytes is freed with free. Says what is wrong and returns false. */
bool cli_read_file(const char *path, char **bytes, size_t *n_bytes);
/* Whether both name one regular file, so that writing one would destroy the other. NULL: no. */
bool cli_same_file(const char *a, const char *b);
/* "12.3 MiB" into out. */
const char *cli_bytes(uint64_t n_bytes, char out[16]);
double cli_seconds(void);                  /* monotonic */
double cli_rate(size_t n, double seconds); /* a second; 0 when no time was measured */
/* \n, \t, \r, \\ and \" of text become what they mean; in place. */
void cli_unescape(char *text);
bool cli_stderr_is_terminal(void);

/* ---- progress on standard error: a line that is rewritten on a terminal, else a line every 10 seconds ---- */
typedef struct cli_progress {
    const char *what;
    double start, last;
    bool shown;
} cli_progress;
void cli_progress_start(cli_progress *p, const char *what);
void cli_progress_step(cli_progress *p, uint64_t done, uint64_t all, const char *remark);
void cli_progress_end(cli_progress *p);

/* ---- model, cache and session ---- */
typedef struct cli_model_args {
    const char *model;
    uint32_t n_ctx, n_threads, n_batch;
    const char *kv, *kv_keys, *kv_values, *kv_layers, *kv_exact, *evict, *calibration, *artifact_dir;
    const char *kv_memory, *kv_losses; /* of --kv auto */
    float kv_bits;
    uint32_t sinks, residual;
    int64_t kv_seed;
    bool exact;
} cli_model_args;

extern const cli_option cli_model_options[];
extern const size_t cli_n_model_options;
extern const cli_option cli_cache_options[];
extern const size_t cli_n_cache_options;
void cli_model_args_init(cli_model_args *args);

typedef struct cli_engine {
    vq_pool *pool;
    vq_model *model;
    vq_session *session;
    vq_calibration *calibration; /* NULL without --calibration */
} cli_engine;

/* Pool and model.  Returns CLI_FINE, or says what is wrong. cli_engine_close takes what there is. */
int cli_engine_open(cli_engine *e, const cli_page *page, const cli_model_args *args);
/* A session as the options say, with a method for keys and values in place of the --kv options when not NULL. */
int cli_session_open(vq_session **out, const cli_engine *e, const cli_page *page, const cli_model_args *args,
                     const char *method);
void cli_engine_close(cli_engine *e);

/* What the cache of a session holds, for people and for JSON. */
typedef struct cli_cache {
    vq_kv_bytes bytes;
    uint64_t used;      /* all but reserved */
    uint64_t f16;       /* what 16-bit rows alone would take */
    double bits;        /* of all used bytes, a value held */
    double packed_bits; /* codes, scales and shared tables a packed value; 0 without any */
} cli_cache;
void cli_cache_measure(vq_session *s, cli_cache *out);
void cli_cache_print(const cli_cache *c); /* a table on standard error */

#endif
