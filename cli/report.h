/* From rows of results files to figures and a page.
 *
 * A panel (report_panels.c, report_caches.c, report_bench.c) looks at a row and adds a point to a figure if the row is
 * its own; report_rows.c is what panels share, report_sheet.c joins what is known of each cache, report_page.c writes
 * the page, and report.c reads files and runs all of it. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>

#include "report_figure.h"

enum { REPORT_MOST_FIGURES = 160, REPORT_MOST_FILES = 256, REPORT_MOST_CACHES = 256 };

typedef struct report_file {
    const char *path, *name; /* name: without folders */
    json_t *json;
    bool evicts;   /* some of its speeds are of evicting caches */
    double others; /* CPUs that other programs took where the machine was not quiet, the most of all marks; else 0 */
} report_file;

/* What is known of one cache of one model, of all files. */
typedef enum report_fact {
    FACT_BITS,
    FACT_RATIO,
    FACT_KL,
    FACT_SAME_TOP,
    FACT_DECODE,
    FACT_BYTES,
    FACT_DISTORTION,
    FACT_COMPLETED,
    FACT_SAME_TOKENS,
    N_FACTS
} report_fact;

typedef struct report_cache {
    char model[FIG_NAME], name[FIG_NAME];
    double facts[N_FACTS]; /* NaN: not known */
    double at[N_FACTS];    /* of what: decoding at a depth, bytes of so many tokens */
} report_cache;

typedef struct report {
    report_file files[REPORT_MOST_FILES];
    size_t n_files;
    figure *figures[REPORT_MOST_FIGURES];
    size_t n_figures;
    fig_names models;
    report_cache *caches; /* [REPORT_MOST_CACHES] */
    size_t n_caches;
    bool failed; /* too many figures or no memory */
} report;

/* Offers a row of a file to every panel; returns how many took it. */
size_t report_take(report *r, const json_t *row, const report_file *source);
void report_free(report *r);

/* ---- for panels ---- */
typedef size_t report_panel(report *r, const json_t *row, const report_file *source); /* how often it took the row */
/* end with NULL */
extern report_panel *const report_cache_panels[], *const report_other_panels[], *const report_bench_panels[];

const char *row_text(const json_t *row, const char *key);
double row_number(const json_t *row, const char *key); /* NaN without one */
bool row_is(const json_t *row, const char *kind);
bool row_evicts(const json_t *row);

typedef struct interval {
    double value, low, high;
} interval;
/* [value, low, high], {"median", "q1", "q3"} or a number alone. */
interval row_interval(const json_t *row, const char *key);

/* The model of a row as the report names it: without folder, ending and type of its weights, and as it was spelled
 * first. */
const char *row_model(report *r, const json_t *row);
/* "snapkv" of "snapkv:budget=25%,recent=32" */
const char *policy_name(const char *spec, char out[FIG_NAME]);
/* A method without its number of bits: "velox:bits=2,mean=0" -> "velox:mean=0". */
const char *method_family(const char *spec, char out[FIG_NAME]);
/* The number of an option of a policy or method; NaN without it. */
double option_of(const char *spec, const char *name);
/* The method of a row's cache without what says nothing of it: files of calibrations, and exact rows that are as usual.
 */
const char *row_method(const json_t *row, char out[FIG_NAME]);
/* A cache as legends name it: what is not there is not said. */
const char *row_cache(const json_t *row, char out[FIG_NAME]);

/* The figure of a plan for a model (and a further part of its name), made when it is new; NULL when there is no room.
 */
figure *report_figure(report *r, const fig_plan *p, const char *model, const char *part, const report_file *source);
/* Keeps what is new of a cache; of facts at several places the last one counts. */
void report_note(report *r, const char *model, const char *cache, report_fact fact, double value, double at);

/* ---- the page ---- */
enum { REPORT_PANELS = 5 };
/* The figures of a model that the sheet shows, NULL for those that are missing; how many there are. */
size_t report_sheet(const report *r, const char *model, figure *out[REPORT_PANELS]);
extern const char *const report_panel_names[REPORT_PANELS];
/* Whether enough was measured for the sheet of a model, and the name of its files. */
bool report_has_sheet(const report *r, const char *model, char id[FIG_NAME]);
/* Draws it: ID.png, ID.svg. */
int report_draw_sheet(const report *r, const char *model, const char *dir, bool draw);
/* What is known of the caches of a model, as an HTML table; nothing when nothing is. */
void report_table(const report *r, const char *model, FILE *to);
/* Writes DIR/index.html, with the pictures that lie there. */
int report_page(const report *r, const char *title, const char *dir);

#endif
