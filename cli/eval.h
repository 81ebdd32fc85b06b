/* The family `veloxquant eval NAME`: measurements of quality.  A member is a row of the table in eval.c; what they
 * share is here: the caches and policies under test, texts, results as a table and as JSON. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "cli.h"
#include "json.h"

int eval_perplexity(int argc, char **argv);
int eval_needle(int argc, char **argv);
int eval_recall(int argc, char **argv);
int eval_attention_rank(int argc, char **argv);
int eval_speed(int argc, char **argv);
int eval_anisotropy(int argc, char **argv);
int eval_sharing(int argc, char **argv);
int eval_generation(int argc, char **argv);
int eval_memory(int argc, char **argv);
int eval_distortion(int argc, char **argv);
int eval_invariance(int argc, char **argv);
int eval_all(int argc, char **argv);

/* ---- what is tested: every --kv with every --evict ---- */
typedef struct eval_args {
    cli_texts kv, evict, files;
    const char *reference; /* the cache that others are held against */
    const char *json;
} eval_args;

extern const cli_option eval_cache_options[]; /* into eval_args */
extern const size_t eval_n_cache_options;
extern const cli_option eval_model_options[]; /* into cli_model_args; without -c, which means other things here */
extern const size_t eval_n_model_options, eval_n_short_model_options; /* short: without those of caches */

enum { EVAL_MOST_CONFIGS = 64 };

typedef struct eval_config {
    const char *kv, *evict; /* evict: NULL for none */
    char name[200];
} eval_config;

/* Every cache with every policy, f16 and no policy where none is named.  Returns CLI_FINE, or says that there are too
 * many. */
int eval_configs(const cli_page *page, const eval_args *a, eval_config *out, size_t *n);
/* A cache of "KEYS+VALUES" has unlike ones. */
int eval_session_open(vq_session **out, const cli_engine *e, const cli_page *page, const cli_model_args *model,
                      const eval_config *c);
/* Widest name, for tables. */
int eval_name_width(const eval_config *c, size_t n);

/* ---- texts ---- */
typedef struct eval_text {
    const char *path;
    char *bytes;
    size_t n_bytes;
    int32_t *ids;
    size_t n;
} eval_text;

int eval_text_read(eval_text *t, const char *path, const vq_model *model);
void eval_text_free(eval_text *t);

/* ---- results ---- */
/* The object that every results file is (results/README.md), with an empty "rows". */
json_t *eval_results(const char *what, const cli_model_args *model, const vq_model *weights, int argc, char **argv);
void eval_add_row(json_t *results, json_t *row);               /* takes the row */
json_t *eval_interval(double mean, double error, bool of_log); /* [value, low, high] of a 95 % interval */
/* What the session's cache holds, into a row. */
void eval_add_cache(json_t *row, vq_session *s);
/* Bits of a packed value: codes, scales, shared tables; of f16, bf16 and f32 what they are. null when nothing is
 * packed.
 */
json_t *eval_packed_bits(const cli_cache *c);
/* Bytes that the system has given to the cache's mappings, files left out; 0 when /proc does not say. */
uint64_t eval_resident_bytes(vq_session *s);
uint64_t eval_process_bytes(void); /* resident, of this process; 0 when /proc does not say */
/* The least of x [n], n >= 1, that `percent` of all do not exceed. */
double eval_percentile(const double *x, size_t n, uint32_t percent);
const char *eval_model_name(const char *path); /* the file's name without folders */

#endif
