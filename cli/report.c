/* veloxquant report: figures and one page from results files. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

struct args {
    const char *dir, *title;
    bool scripts;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'o', "out", CLI_TEXT, AT(dir), "DIR", "where the page and the figures go; made when it is not there", 0, 0},
    {0, "title", CLI_TEXT, AT(title), "TEXT", "of the page", 0, 0},
    {0, "scripts", CLI_FLAG, AT(scripts), NULL, "only the gnuplot scripts, without pictures and page", 0, 0},
};

static const char intro[] =
    "Draws the figures that results files hold the rows for, through gnuplot: each as NAME.png and NAME.svg, with its "
    "gnuplot script, and index.html, one page that needs no other file. It begins with what is known of each cache, as "
    "a "
    "table and as a sheet of five panels (sheet-MODEL.png); then come the figures by subject, their numbers as tables, "
    "and the commands and machines that made them. What the files do not hold is left out and named.\n"
    "\n"
    "Results files are those in results/ and what the commands of 'eval' write with --json.";

static const char ending[] = "Examples:\n"
                             "  veloxquant report results/*.json -o report\n"
                             "  veloxquant eval needle -m model.gguf -f book.txt --json needle.json\n"
                             "  veloxquant report needle.json -o needle\n"
                             "\n"
                             "gnuplot draws: apt-get install gnuplot-nox\n";

/* The mark of the busiest machine in a head, wherever its program put it ("load", "loads", "cells", rows). */
static double busiest(json_t *value)
{
    double most = 0;
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_array(value)) {
        json_array_foreach(value, i, inner) most = fmax(most, busiest(inner));
        return most;
    }
    if (json_is_false(json_object_get(value, "quiet"))) {
        const double others = row_number(value, "others_cpus");
        most = others > 0 ? others : 0.01; /* the host or a queue then */
    }
    json_object_foreach(value, key, inner) most = fmax(most, busiest(inner));
    return most;
}

/* false: there is no list of rows */
static bool take_rows(report *r, const json_t *results, report_file *f, size_t *n_rows, size_t *n_taken)
{
    const json_t *rows = json_object_get(results, "rows"), *row;
    size_t i;
    json_array_foreach(rows, i, row) f->evicts |= row_is(row, "speed") && row_evicts(row);
    json_array_foreach(rows, i, row) *n_taken += report_take(r, row, f);
    *n_rows += json_array_size(rows);
    return json_is_array(rows);
}

static int read_file(report *r, const char *path)
{
    json_error_t error;
    const char *slash = strrchr(path, '/');
    report_file *f = &r->files[r->n_files];
    *f = (report_file){.path = path, .name = slash ? slash + 1 : path};
    f->json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!f->json && access(path, R_OK) != 0)
        return cli_fail("%s: cannot open: %s", path, strerror(errno));
    if (!f->json)
        return cli_fail("%s: line %d: not JSON: %s", path, error.line, error.text);
    r->n_files++;
    f->others = busiest(f->json);
    size_t n_rows = 0, n_taken = 0;
    if (!take_rows(r, f->json, f, &n_rows, &n_taken)) {
        /* a file of sections, each with a head and rows of its own */
        const char *name;
        json_t *section;
        bool any = false;
        json_object_foreach(f->json, name, section) any |= take_rows(r, section, f, &n_rows, &n_taken);
        if (!any)
            return cli_fail("%s: no \"rows\": not a results file", path);
    }
    if (n_taken == 0)
        cli_say("note: %s: none of its %zu rows belongs into a figure", path, n_rows);
    return CLI_FINE;
}

/* Of figures with one title each says where it is from. */
static void name_apart(report *r)
{
    bool twice[REPORT_MOST_FIGURES] = {false};
    for (size_t i = 0; i < r->n_figures; i++)
        for (size_t k = 0; k < r->n_figures; k++)
            twice[i] |= k != i && strcmp(r->figures[i]->title, r->figures[k]->title) == 0;
    for (size_t i = 0; i < r->n_figures; i++) {
        figure *f = r->figures[i];
        const size_t end = strlen(f->title);
        if (twice[i])
            snprintf(f->title + end, sizeof f->title - end, " (%.*s)", (int)strcspn(f->sources.at[0], "."),
                     f->sources.at[0]);
    }
}

/* Figures that got no point, as those of rows whose values are null, go; the others are settled. */
static void settle(report *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_figures; i++) {
        if (r->figures[i]->n_points > 0 || r->figures[i]->failed) {
            r->figures[n++] = r->figures[i];
        } else {
            fig_free(r->figures[i]);
            free(r->figures[i]);
        }
    }
    r->n_figures = n;
    for (size_t i = 0; i < n; i++)
        fig_settle(r->figures[i]);
    name_apart(r);
}

static int run(report *r, const struct args *a, char **paths, size_t n)
{
    int status = CLI_FINE;
    for (size_t i = 0; i < n && status == CLI_FINE; i++)
        status = read_file(r, paths[i]);
    if (status != CLI_FINE)
        return status;
    if (r->failed)
        return cli_fail("more than %d figures, %d models or %d caches, or no memory", REPORT_MOST_FIGURES,
                        FIG_MOST_NAMES, REPORT_MOST_CACHES);
    settle(r);
    if (r->n_figures == 0)
        return cli_fail("no row of these files belongs into a figure");
    if (mkdir(a->dir, 0777) != 0 && errno != EEXIST)
        return cli_fail("%s: cannot make the folder: %s", a->dir, strerror(errno));
    for (size_t i = 0; i < r->n_figures && status == CLI_FINE; i++)
        status = fig_draw(r->figures[i], a->dir, !a->scripts);
    size_t n_sheets = 0;
    for (size_t i = 0; i < r->models.n && status == CLI_FINE; i++) {
        char id[FIG_NAME];
        if (!report_has_sheet(r, r->models.at[i], id))
            continue;
        status = report_draw_sheet(r, r->models.at[i], a->dir, !a->scripts);
        n_sheets++;
    }
    if (status == CLI_FINE && !a->scripts)
        status = report_page(r, a->title, a->dir);
    if (status == CLI_FINE)
        printf("%zu figures, %zu sheets%s%s%s\n", r->n_figures, n_sheets, a->scripts ? "" : ", ",
               a->scripts ? "" : a->dir, a->scripts ? "" : "/index.html");
    return status;
}

int cli_report(int argc, char **argv)
{
    struct args a = {.title = "VeloxQuant: measured"};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"report", "RESULTS... -o DIR", intro, groups, 1, ending, 1, REPORT_MOST_FILES};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.dir)
        return cli_usage(&page, "no folder: -o DIR says where");
    report *r = calloc(1, sizeof *r);
    if (!r)
        return cli_fail("no memory");
    status = run(r, &a, argv + 1, n_operands);
    report_free(r);
    free(r);
    return status;
}
