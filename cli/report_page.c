/* The page: one HTML file that loads nothing, with a summary, figures in groups, their numbers, and what made them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "report.h"

enum { MOST_IDS = 12 };

/* Figures by what they are about, in the order of the page. */
static const struct group {
    const char *id, *title, *ids[MOST_IDS];
} groups[] = {
    {"speed",
     "Speed",
     {"throughput", "prompt", "first-token", "token-time", "attention-share", "attend-layers", "encode-share",
      "prompt-share", "encode", "peak-bandwidth", "peak-products"}},
    {"quality",
     "Quality",
     {"all-methods-kl", "all-methods-ppl", "rate-kl", "rate-ppl", "distortion", "distortion-layers", "sides",
      "shared-out", "calibration-text", "bound"}},
    {"memory", "Memory", {"memory", "sharing", "sharing-start"}},
    {"text", "Generated text", {"finished", "distinct", "same-text"}},
    {"finding", "Finding again", {"needle-chosen", "needle-exact", "recall"}},
    {"eviction", "Eviction", {"eviction", "eviction-speed", "grid", "stream"}},
    {"filters", "Q-Filters", {"rank", "rank-layers", "recent", "anisotropy"}},
    {"weights", "Weights", {"weights"}},
    {"peers", "Peers", {"peer-perplexity", "peer-quality", "peer-held"}},
};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

/* What a full report shows, and what measures it. */
static const struct {
    const char *id, *name, *command;
} expected[] = {
    {"throughput", "Throughput", "veloxquant eval speed"},
    {"rate-kl", "Quality against compression", "veloxquant eval perplexity"},
    {"memory", "Memory at scale", "veloxquant eval memory"},
    {"distortion", "Attention distortion", "veloxquant eval distortion"},
    {"finished", "Tokens finished", "veloxquant eval generation"},
    {"needle-chosen", "Needle heat map", "veloxquant eval needle"},
    {"recall", "Recall", "veloxquant eval recall"},
    {"eviction", "Eviction", "veloxquant eval perplexity --evict"},
    {"rank", "Q-Filters: rank correlation", "veloxquant eval attention-rank"},
    {"anisotropy", "Q-Filters: anisotropy", "veloxquant eval anisotropy"},
    {"sharing", "Sharing", "veloxquant eval sharing"},
};

static bool any_figure(const report *r, const char *plan_id)
{
    for (size_t i = 0; i < r->n_figures; i++)
        if (strcmp(r->figures[i]->plan->id, plan_id) == 0)
            return true;
    return false;
}

/* ---- pieces ---- */
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

static int write_picture(const char *id, const char *title, const char *dir, FILE *to)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.svg", dir, id);
    FILE *picture = fopen(path, "rb");
    if (!picture)
        return cli_fail("%s: %s", path, strerror(errno));
    fputs("<img alt=\"", to);
    html_text(title, to);
    fputs("\" src=\"data:image/svg+xml;base64,", to);
    base64(picture, to);
    fclose(picture);
    fputs("\">\n", to);
    return CLI_FINE;
}

static int write_figure(const figure *f, const char *dir, FILE *to)
{
    fprintf(to, "<figure id=\"%s\">\n", f->id);
    char alt[480];
    const bool named = f->plan->kind == FIG_BARS || f->plan->kind == FIG_HEAT; /* labels of axes are names */
    snprintf(alt, sizeof alt, "%.100s. %s of %.90s%s%.90s; the numbers are in the table below.", f->title,
             f->plan->kind == FIG_BARS   ? "Bars"
             : f->plan->kind == FIG_HEAT ? "A map"
                                         : "Lines",
             f->plan->y_label, named ? " by " : " against ", f->plan->x_label[0] ? f->plan->x_label : "method");
    const int status = write_picture(f->id, alt, dir, to);
    fputs("<figcaption>", to);
    html_text(f->plan->note, to);
    fputs(" <span class=\"from\">From ", to);
    for (size_t i = 0; i < f->sources.n && i < 4; i++) {
        fputs(i ? ", " : "", to);
        html_text(f->sources.at[i], to);
    }
    if (f->sources.n > 4)
        fprintf(to, " and %zu more", f->sources.n - 4);
    fputs(".</span>", to);
    if (f->others > 0)
        fprintf(to,
                " <strong class=\"failed\">The machine was not quiet: other programs took %.2f CPUs. Trust ratios "
                "at most.</strong>",
                f->others);
    fputs("</figcaption>\n<details><summary>The numbers</summary>\n", to);
    fig_table(f, to);
    fputs("</details>\n</figure>\n", to);
    return status;
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

static void write_head(const char *name, const json_t *head, FILE *to)
{
    fputs("<details><summary><code>", to);
    html_text(name, to);
    fputs("</code> ", to);
    html_text(row_text(head, "what"), to);
    fputs("</summary>\n<pre>", to);
    write_command(json_object_get(head, "command"), to);
    fputs("</pre>\n<dl>\n", to);
    static const char *const fields[] = {"date", "commit", "modified", "build",  "machine",
                                         "load", "loads",  "versions", "version"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        write_field(fields[i], json_object_get(head, fields[i]), to);
    fputs("</dl>\n</details>\n", to);
}

/* A file has one head, or sections with a head each. */
static void write_source(const report_file *f, FILE *to)
{
    const char *name;
    json_t *section;
    if (json_is_array(json_object_get(f->json, "rows"))) {
        write_head(f->name, f->json, to);
        return;
    }
    json_object_foreach(f->json, name, section)
    {
        char full[FIG_NAME * 2];
        snprintf(full, sizeof full, "%.90s: %.90s", f->name, name);
        write_head(full, section, to);
    }
}

/* Rows of a kind in all files, one after the other; NULL at the end. */
static const json_t *next_row(const report *r, const char *kind, size_t *file, size_t *at)
{
    for (; *file < r->n_files; (*file)++, *at = 0) {
        const json_t *rows = json_object_get(r->files[*file].json, "rows");
        while (*at < json_array_size(rows)) {
            const json_t *row = json_array_get(rows, (*at)++);
            if (row_is(row, kind))
                return row;
        }
    }
    return NULL;
}

static void cell(const char *text, FILE *to)
{
    fputs("<td>", to);
    html_text(text, to);
    fputs("</td>", to);
}

/* ---- summary ---- */

/* Steps of `eval all`: those that failed by name, then all. */
static void write_steps(const report *r, FILE *to)
{
    size_t file = 0, at = 0, n = 0, n_failed = 0;
    double seconds = 0;
    const json_t *row;
    while ((row = next_row(r, "step", &file, &at)) != NULL) {
        n++;
        seconds += row_number(row, "seconds");
        if (strcmp(row_text(row, "status"), "failed") != 0)
            continue;
        fputs(n_failed++ ? ", " : "<p class=\"failed\">Failed: ", to);
        html_text(row_text(row, "name"), to);
        const char *message = row_text(row, "message");
        if (message[0]) {
            fputs(" (", to);
            html_text(message, to);
            fputc(')', to);
        }
    }
    fputs(n_failed ? "</p>\n" : "", to);
    if (n == 0)
        return;
    fprintf(to, "<details><summary>%zu steps, %.0f minutes", n, seconds / 60);
    fputs("</summary>\n<div class=\"wide\"><table><tr><th scope=\"col\">step</th><th scope=\"col\">status</th>"
          "<th scope=\"col\">seconds</th><th scope=\"col\" class=\"left\">command</th></tr>\n",
          to);
    file = at = 0;
    while ((row = next_row(r, "step", &file, &at)) != NULL) {
        fputs("<tr><th scope=\"row\">", to);
        html_text(row_text(row, "name"), to);
        fputs("</th>", to);
        cell(row_text(row, "status"), to);
        fprintf(to, "<td>%.0f</td><td class=\"left\"><code>", row_number(row, "seconds"));
        html_text(row_text(row, "command"), to);
        fputs("</code></td></tr>\n", to);
    }
    fputs("</table></div></details>\n", to);
}

/* Files whose times were taken beside other programs. */
static void write_busy(const report *r, FILE *to)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_files; i++) {
        bool timed = false;
        for (size_t k = 0; k < r->n_figures && !timed; k++)
            for (size_t s = 0; s < r->figures[k]->sources.n && r->files[i].others > 0 && !timed; s++)
                timed = r->figures[k]->others > 0 && strcmp(r->figures[k]->sources.at[s], r->files[i].name) == 0;
        if (!timed)
            continue;
        fputs(n++ ? ", " : "<p class=\"failed\">Times from a machine that was not quiet: ", to);
        html_text(r->files[i].name, to);
    }
    fputs(n ? ".</p>\n" : "", to);
}

static void write_missing(const report *r, FILE *to)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        if (any_figure(r, expected[i].id))
            continue;
        fputs(n++ ? ", " : "<p class=\"from\">Not in these results: ", to);
        fprintf(to, "%s (<code>%s</code>)", expected[i].name, expected[i].command);
    }
    fputs(n ? ".</p>\n" : "", to);
}

/* Where it was measured: machines once each, first and last day. */
static void write_machines(const report *r, FILE *to)
{
    const json_t *seen[8];
    size_t n_seen = 0, n_rows = 0;
    char first[16] = "", last[16] = "";
    for (size_t i = 0; i < r->n_files; i++) {
        const json_t *head = r->files[i].json;
        const char *name;
        json_t *section;
        n_rows += json_array_size(json_object_get(head, "rows"));
        if (!json_object_get(head, "rows"))
            json_object_foreach(r->files[i].json, name, section)
            {
                head = json_object_get(section, "machine") ? section : head;
                n_rows += json_array_size(json_object_get(section, "rows"));
            }
        const json_t *machine = json_object_get(head, "machine");
        char day[16];
        snprintf(day, sizeof day, "%.10s", row_text(head, "date"));
        if (day[0] && (!first[0] || strcmp(day, first) < 0))
            memcpy(first, day, sizeof day);
        if (strcmp(day, last) > 0)
            memcpy(last, day, sizeof day);
        bool there = !machine || n_seen == sizeof seen / sizeof seen[0];
        for (size_t k = 0; k < n_seen && !there; k++)
            there = strcmp(row_text(seen[k], "cpu"), row_text(machine, "cpu")) == 0 &&
                    row_number(seen[k], "cores") == row_number(machine, "cores");
        if (!there)
            seen[n_seen++] = machine;
    }
    fprintf(to, "<p>%zu measurements in %zu file%s", n_rows, r->n_files, r->n_files == 1 ? "" : "s");
    if (first[0])
        fprintf(to, strcmp(first, last) == 0 ? ", %s" : ", %s to %s", first, last);
    for (size_t k = 0; k < n_seen; k++) {
        fputs(k ? "; " : ", on ", to);
        html_text(row_text(seen[k], "cpu"), to);
        fprintf(to, ", %.0f cores, %.3g GiB", row_number(seen[k], "cores"), row_number(seen[k], "memory_gib"));
    }
    fputs(".</p>\n", to);
}

static int write_summary(const report *r, const char *dir, FILE *to)
{
    int status = CLI_FINE;
    fputs("<section id=\"summary\">\n", to);
    write_machines(r, to);
    write_busy(r, to);
    write_steps(r, to);
    for (size_t i = 0; i < r->models.n && status == CLI_FINE; i++) {
        const char *model = r->models.at[i];
        figure *panels[REPORT_PANELS];
        char id[FIG_NAME], title[160];
        bool facts = false;
        for (size_t k = 0; k < r->n_caches && !facts; k++)
            facts = strcmp(r->caches[k].model, model) == 0;
        if (!facts)
            continue;
        fputs("<h2>", to);
        html_text(model, to);
        fputs(": caches at a glance</h2>\n", to);
        if (report_has_sheet(r, model, id)) {
            snprintf(title, sizeof title, "%.60s: the panels on one sheet", model);
            fputs("<figure>\n", to);
            status = write_picture(id, title, dir, to);
            fputs("<figcaption>", to);
            report_sheet(r, model, panels);
            const char *between = "Not measured: ";
            for (size_t k = 0; k < REPORT_PANELS; k++) {
                if (panels[k])
                    continue;
                fprintf(to, "%s%s", between, report_panel_names[k]);
                between = ", ";
            }
            fputs("</figcaption>\n</figure>\n", to);
        }
        report_table(r, model, to);
    }
    write_missing(r, to);
    fputs("</section>\n", to);
    return status;
}

/* ---- groups ---- */

/* Whether results stay the same where they must: rows of `eval invariance`. */
static void write_invariance(const report *r, FILE *to)
{
    size_t file = 0, at = 0, n = 0;
    const json_t *row;
    while ((row = next_row(r, "invariance", &file, &at)) != NULL) {
        if (n++ == 0)
            fputs("<h3 id=\"invariance\">The same text with other threads, batches and instruction sets</h3>\n"
                  "<div class=\"wide\"><table aria-labelledby=\"invariance\">\n<tr><th scope=\"col\">cache</th>"
                  "<th scope=\"col\">against</th><th scope=\"col\">identical</th><th scope=\"col\">must be</th>"
                  "<th scope=\"col\">same tokens</th><th scope=\"col\">same likeliest token</th></tr>\n",
                  to);
        const bool same = json_is_true(json_object_get(row, "identical"));
        const bool must = json_is_true(json_object_get(row, "must_be_identical"));
        char kv[FIG_NAME];
        fputs("<tr><th scope=\"row\"><code>", to);
        html_text(row_method(row, kv), to);
        fputs("</code></th>", to);
        cell(row_text(row, "what"), to);
        fprintf(to, "<td%s>%s</td><td>%s</td>", must && !same ? " class=\"failed\"" : "", same ? "yes" : "no",
                must ? "yes" : "no");
        fprintf(to, "<td>%.1f %%</td>", 100 * row_number(row, "same_tokens"));
        if (isfinite(row_number(row, "same_top")))
            fprintf(to, "<td>%.1f %%</td></tr>\n", 100 * row_number(row, "same_top"));
        else
            fputs("<td></td></tr>\n", to);
    }
    fputs(n ? "</table></div>\n" : "", to);
}

static void write_texts(const report *r, FILE *to)
{
    size_t file = 0, at = 0;
    const json_t *row;
    while ((row = next_row(r, "generation", &file, &at)) != NULL) {
        if (!row_text(row, "text")[0])
            continue;
        char kv[FIG_NAME];
        fputs("<details><summary>Text with <code>", to);
        html_text(row_method(row, kv), to);
        fputs("</code></summary><pre>", to);
        html_text(row_text(row, "text"), to);
        fputs("</pre></details>\n", to);
    }
}

static bool in_group(const report *r, const struct group *g)
{
    for (size_t k = 0; k < MOST_IDS && g->ids[k]; k++)
        if (any_figure(r, g->ids[k]))
            return true;
    return false;
}

static int write_group(const report *r, const struct group *g, const char *dir, FILE *to)
{
    int status = CLI_FINE;
    fprintf(to, "<section id=\"%s\">\n<h2>%s</h2>\n", g->id, g->title);
    for (size_t k = 0; k < MOST_IDS && g->ids[k]; k++)
        for (size_t i = 0; i < r->n_figures && status == CLI_FINE; i++)
            if (strcmp(r->figures[i]->plan->id, g->ids[k]) == 0)
                status = write_figure(r->figures[i], dir, to);
    if (strcmp(g->id, "text") == 0) {
        write_texts(r, to);
        write_invariance(r, to);
    }
    fputs("</section>\n", to);
    return status;
}

static void write_nav(const report *r, FILE *to)
{
    fputs("<nav aria-label=\"Contents\">\n<a href=\"#summary\">Summary</a>\n", to);
    for (size_t g = 0; g < N_GROUPS; g++) {
        if (!in_group(r, &groups[g]))
            continue;
        fprintf(to, "<details><summary><a href=\"#%s\">%s</a></summary>\n", groups[g].id, groups[g].title);
        for (size_t k = 0; k < MOST_IDS && groups[g].ids[k]; k++) {
            for (size_t i = 0; i < r->n_figures; i++) {
                if (strcmp(r->figures[i]->plan->id, groups[g].ids[k]) != 0)
                    continue;
                fprintf(to, "<a class=\"one\" href=\"#%s\">", r->figures[i]->id);
                html_text(r->figures[i]->title, to);
                fputs("</a>\n", to);
            }
        }
        fputs("</details>\n", to);
    }
    fputs("<a href=\"#commands\">Commands and machines</a>\n</nav>\n", to);
}

static const char style[] =
    ":root{color-scheme:light "
    "dark;--page:#fff;--ink:#1c1e21;--soft:#5c6370;--line:#dfe2e6;--card:#f6f7f9;--link:#0a5cad}"
    "@media(prefers-color-scheme:dark){:root{--page:#15181c;--ink:#e4e6ea;--soft:#9aa3af;--line:#31363d;--card:#1e2227;"
    "--link:#7db7f5}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}"
    "a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}"
    "header,main{max-width:1240px;margin:0 auto;padding:0 1.5rem}header{padding-top:1.5rem}"
    "@media(max-width:700px){header,main,nav{padding-left:.8rem;padding-right:.8rem}figure{margin:1em 0}}"
    "nav{border-bottom:1px solid var(--line);padding:1rem 1.5rem;font-size:15px}"
    "nav>a,nav details{display:block;margin:.15em 0}nav "
    ".one{display:block;margin-left:1.4em;color:var(--soft);font-size:14px}"
    "@media(min-width:1500px){nav{position:fixed;top:0;bottom:0;left:0;width:250px;overflow:auto;border:0;"
    "border-right:1px solid var(--line)}header,main{margin-left:max(280px,calc(50vw - 500px))}}"
    "h1{margin:.2em 0;font-size:2em}h2{margin:2.2em 0 .6em;padding-bottom:.2em;border-bottom:1px solid var(--line)}"
    "section{scroll-margin-top:1em}figure{margin:1.6em 0;scroll-margin-top:1em}"
    "img{display:block;width:auto;max-width:100%;height:auto;background:#fff;border:1px solid "
    "var(--line);border-radius:8px}"
    "figcaption{margin:.5em 0;color:var(--soft);max-width:75ch}"
    ".wide{overflow-x:auto;margin:.8em 0}table{border-collapse:collapse;font-size:14px;"
    "font-variant-numeric:tabular-nums}"
    "th,td{padding:.28em .8em;border-bottom:1px solid "
    "var(--line);text-align:right;white-space:nowrap;vertical-align:bottom}"
    "th{font-weight:600}tr>th:first-child,tr>td:first-child,.left{text-align:left}tr:hover td,tr:hover "
    "th{background:var(--card)}"
    ".facts th:not(:first-child){white-space:normal;max-width:9em;line-height:1.25}"
    "small,.from,dl{color:var(--soft)}small{font-weight:400}dl{font-size:14px}summary{cursor:pointer;margin:.2em 0}"
    "pre,code{font:13px/1.5 ui-monospace,monospace}pre{background:var(--card);border-radius:8px;padding:.8em;"
    "white-space:pre-wrap;overflow-wrap:anywhere}dt{float:left;width:6.5em}dd{margin-left:7em;overflow-wrap:anywhere}"
    ".failed{color:#c62828;font-weight:600}@media(prefers-color-scheme:dark){.failed{color:#ff8a80}}"
    "@media print{nav{display:none}details{display:block}}";

int report_page(const report *r, const char *title, const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/index.html", dir);
    FILE *to = fopen(path, "w");
    if (!to)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
          to);
    html_text(title, to);
    fprintf(to, "</title>\n<style>%s</style>\n</head>\n<body>\n", style);
    write_nav(r, to);
    fputs("<header>\n<h1>", to);
    html_text(title, to);
    fputs("</h1>\n</header>\n<main>\n", to);
    int status = write_summary(r, dir, to);
    for (size_t g = 0; g < N_GROUPS && status == CLI_FINE; g++)
        if (in_group(r, &groups[g]))
            status = write_group(r, &groups[g], dir, to);
    fputs("<section id=\"commands\">\n<h2>Commands and machines</h2>\n"
          "<p>Each file says what to run to get it again.</p>\n",
          to);
    for (size_t i = 0; i < r->n_files; i++)
        write_source(&r->files[i], to);
    fputs("</section>\n</main>\n</body>\n</html>\n", to);
    const bool fine = ferror(to) == 0;
    if ((fclose(to) != 0 || !fine) && status == CLI_FINE)
        status = cli_fail("%s: cannot write: %s", path, strerror(errno));
    return status;
}
