/* veloxquant report: figures and one page from results files. */
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

struct args {
    const char *dir, *title;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'o', "out", CLI_TEXT, AT(dir), "DIR", "where the page and the figures go; made when it is not there", 0, 0},
    {0, "title", CLI_TEXT, AT(title), "TEXT", "of the page", 0, 0},
};

static const char intro[] =
    "Draws the figures that results files hold the rows for, through gnuplot: each as NAME.png and NAME.svg, with its "
    "gnuplot script, and index.html, one page that needs no other file, with all figures, their numbers as tables and "
    "the commands and machines that made them.\n"
    "\n"
    "Results files are those in results/ and what the commands of 'eval' write with --json.";

static const char ending[] = "Examples:\n"
                             "  veloxquant report results/*.json -o report\n"
                             "  veloxquant eval needle -m model.gguf -f book.txt --json needle.json\n"
                             "  veloxquant report needle.json -o needle\n"
                             "\n"
                             "gnuplot draws: apt-get install gnuplot-nox\n";

enum { MOST_FILES = 64 };

typedef struct results_file {
    const char *path, *name; /* name: without folders */
    json_t *json;
} results_file;

struct job {
    const struct args *args;
    results_file files[MOST_FILES];
    size_t n_files;
    report report;
};

/* false: there is no list of rows */
static bool take_rows(struct job *j, const json_t *results, const char *name, size_t *n_rows, size_t *n_taken)
{
    const json_t *rows = json_object_get(results, "rows"), *row;
    size_t i;
    json_array_foreach(rows, i, row) *n_taken += report_take(&j->report, row, name);
    *n_rows += json_array_size(rows);
    return json_is_array(rows);
}

static int read_file(struct job *j, const char *path)
{
    json_error_t error;
    const char *slash = strrchr(path, '/');
    results_file *f = &j->files[j->n_files];
    *f = (results_file){path, slash ? slash + 1 : path, json_load_file(path, JSON_REJECT_DUPLICATES, &error)};
    if (!f->json)
        return cli_fail("%s: line %d: %s", path, error.line, error.text);
    j->n_files++;
    size_t n_rows = 0, n_taken = 0;
    if (!take_rows(j, f->json, f->name, &n_rows, &n_taken)) {
        /* a file of sections, each with a head and rows of its own */
        const char *name;
        json_t *section;
        bool any = false;
        json_object_foreach(f->json, name, section) any |= take_rows(j, section, f->name, &n_rows, &n_taken);
        if (!any)
            return cli_fail("%s: no \"rows\": not a results file", path);
    }
    if (n_taken == 0)
        cli_say("note: %s: none of its %zu rows belongs into a figure", path, n_rows);
    return CLI_FINE;
}

/* ---- the page ---- */
static void base64(FILE *from, FILE *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char in[3];
    size_t n;
    while ((n = fread(in, 1, sizeof in, from)) > 0) {
        const unsigned bits =
            (unsigned)in[0] << 16 | (n > 1 ? (unsigned)in[1] << 8 : 0u) | (n > 2 ? (unsigned)in[2] : 0u);
        fputc(digits[bits >> 18], to);
        fputc(digits[bits >> 12 & 63], to);
        fputc(n > 1 ? digits[bits >> 6 & 63] : '=', to);
        fputc(n > 2 ? digits[bits & 63] : '=', to);
    }
}

static int write_figure(const figure *f, const char *dir, FILE *to)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.svg", dir, f->id);
    FILE *picture = fopen(path, "rb");
    if (!picture)
        return cli_fail("%s: %s", path, strerror(errno));
    fprintf(to, "<section id=\"%s\">\n<h2>", f->id);
    html_text(f->title, to);
    fputs("</h2>\n<img alt=\"", to);
    html_text(f->title, to);
    fputs("\" src=\"data:image/svg+xml;base64,", to);
    base64(picture, to);
    fclose(picture);
    fputs("\">\n<p>", to);
    html_text(f->note, to);
    fputs("</p>\n<details><summary>The numbers</summary>\n", to);
    fig_table(f, to);
    fputs("</details>\n<p class=\"from\">From ", to);
    for (size_t i = 0; i < f->sources.n; i++) {
        fputs(i ? ", " : "", to);
        html_text(f->sources.at[i], to);
    }
    fputs("</p>\n</section>\n", to);
    return CLI_FINE;
}

/* A command is a string, or a list of words. */
static void write_command(const json_t *command, FILE *to)
{
    const json_t *word;
    size_t i;
    if (json_is_string(command))
        html_text(json_string_value(command), to);
    json_array_foreach(command, i, word)
    {
        fputs(i ? " " : "", to);
        html_text(json_string_value(word) ? json_string_value(word) : "", to);
    }
}

static void write_field(const char *name, const json_t *value, FILE *to)
{
    char *text = json_is_string(value) ? strdup(json_string_value(value))
                 : value               ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY)
                                       : NULL;
    if (!text)
        return;
    fprintf(to, "<dt>%s</dt><dd>", name);
    html_text(text, to);
    fputs("</dd>\n", to);
    free(text);
}

static void write_source(const results_file *f, FILE *to)
{
    fputs("<h3>", to);
    html_text(f->name, to);
    fputs("</h3>\n<pre>", to);
    write_command(json_object_get(f->json, "command"), to);
    fputs("</pre>\n<dl>\n", to);
    static const char *const fields[] = {"what", "date", "commit", "modified", "machine", "versions", "version"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        write_field(fields[i], json_object_get(f->json, fields[i]), to);
    fputs("</dl>\n", to);
}

static const char style[] =
    "body{font:16px/1.5 sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}"
    "img{max-width:100%;height:auto}section{margin:2.5em 0}nav{columns:2}nav a{display:block}"
    "table{border-collapse:collapse;font-size:14px;display:block;overflow-x:auto}"
    "th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "th:first-child{text-align:left;font-weight:normal}small{color:#666}"
    "pre{background:#f4f4f4;padding:.7em;white-space:pre-wrap}.from,dl{color:#666;font-size:14px}"
    "dt{float:left;width:6em}dd{margin-left:7em;overflow-wrap:anywhere}";

static int write_page(const struct job *j)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/index.html", j->args->dir);
    FILE *to = fopen(path, "w");
    if (!to)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
          to);
    html_text(j->args->title, to);
    fprintf(to, "</title>\n<style>%s</style>\n</head>\n<body>\n<h1>", style);
    html_text(j->args->title, to);
    fputs("</h1>\n<nav>\n", to);
    int status = CLI_FINE;
    for (size_t i = 0; i < j->report.n_figures; i++) {
        fprintf(to, "<a href=\"#%s\">", j->report.figures[i]->id);
        html_text(j->report.figures[i]->title, to);
        fputs("</a>\n", to);
    }
    fputs("<a href=\"#commands\">Commands and machines</a>\n</nav>\n", to);
    for (size_t i = 0; i < j->report.n_figures && status == CLI_FINE; i++)
        status = write_figure(j->report.figures[i], j->args->dir, to);
    fputs("<section id=\"commands\">\n<h2>Commands and machines</h2>\n", to);
    for (size_t i = 0; i < j->n_files; i++)
        write_source(&j->files[i], to);
    fputs("</section>\n</body>\n</html>\n", to);
    const bool fine = ferror(to) == 0;
    if ((fclose(to) != 0 || !fine) && status == CLI_FINE)
        status = cli_fail("%s: cannot write: %s", path, strerror(errno));
    return status;
}

static int run(struct job *j, char **paths, size_t n)
{
    int status = CLI_FINE;
    for (size_t i = 0; i < n && status == CLI_FINE; i++)
        status = read_file(j, paths[i]);
    if (status != CLI_FINE)
        return status;
    if (j->report.failed)
        return cli_fail("more than %d figures", REPORT_MOST_FIGURES);
    if (j->report.n_figures == 0)
        return cli_fail("no row of these files belongs into a figure");
    if (mkdir(j->args->dir, 0777) != 0 && errno != EEXIST)
        return cli_fail("%s: cannot make the folder: %s", j->args->dir, strerror(errno));
    for (size_t i = 0; i < j->report.n_figures && status == CLI_FINE; i++)
        status = fig_draw(j->report.figures[i], j->args->dir);
    if (status == CLI_FINE)
        status = write_page(j);
    if (status == CLI_FINE)
        printf("%zu figures, %s/index.html\n", j->report.n_figures, j->args->dir);
    return status;
}

int cli_report(int argc, char **argv)
{
    struct args a = {.title = "VeloxQuant: measured"};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"report", "RESULTS... -o DIR", intro, groups, 1, ending, 1, MOST_FILES};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.dir)
        return cli_usage(&page, "no folder: -o DIR says where");
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run(j, argv + 1, n_operands);
    for (size_t i = 0; i < j->n_files; i++)
        json_decref(j->files[i].json);
    report_free(&j->report);
    free(j);
    return status;
}
