/* The full sheet: what is known of each cache of a model as one table, and its panels as one picture. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "cli.h"
#include "report.h"

const char *const report_panel_names[REPORT_PANELS] = {"Throughput", "Quality against compression", "Memory at scale",
                                                       "Attention distortion", "Tokens finished"};

static const char *const panel_ids[REPORT_PANELS] = {"throughput", "rate-kl", "memory", "distortion", "finished"};

/* The figure of a plan for a model that shows most: of speeds the one with the deepest cache, else that with most
 * points. */
static figure *panel_of(const report *r, const char *model, const char *id)
{
    figure *best = NULL;
    double most = -1;
    for (size_t i = 0; i < r->n_figures; i++) {
        figure *f = r->figures[i];
        if (strcmp(f->plan->id, id) != 0 || strcmp(f->model, model) != 0 || f->n_points == 0)
            continue;
        double shown = strcmp(id, "throughput") == 0 ? 0 : (double)f->n_points;
        for (size_t k = 0; strcmp(id, "throughput") == 0 && k < f->n_points; k++)
            shown = fmax(shown, f->points[k].x);
        if (shown > most) {
            best = f;
            most = shown;
        }
    }
    return best;
}

size_t report_sheet(const report *r, const char *model, figure *out[REPORT_PANELS])
{
    size_t n = 0;
    for (size_t i = 0; i < REPORT_PANELS; i++) {
        out[i] = panel_of(r, model, panel_ids[i]);
        n += out[i] != NULL;
    }
    return n;
}

bool report_has_sheet(const report *r, const char *model, char id[FIG_NAME])
{
    figure *panels[REPORT_PANELS];
    size_t n = (size_t)snprintf(id, FIG_NAME, "sheet-");
    for (const char *at = model; *at && n + 1 < FIG_NAME; at++)
        id[n++] = isalnum((unsigned char)*at) ? (char)tolower((unsigned char)*at) : '-';
    id[n] = 0;
    return report_sheet(r, model, panels) >= 2;
}

int report_draw_sheet(const report *r, const char *model, const char *dir, bool draw)
{
    figure *panels[REPORT_PANELS];
    char title[160], id[FIG_NAME];
    report_has_sheet(r, model, id);
    report_sheet(r, model, panels);
    snprintf(title, sizeof title, "%s: caches at a glance", model);
    return fig_draw_sheet(panels, report_panel_names, REPORT_PANELS, id, title, dir, draw);
}

/* ---- the table ---- */
static const struct {
    const char *head, *format, *at; /* at: how the place of a value is said, for those that have one */
} columns[N_FACTS] = {
    [FACT_BITS] = {"bits a packed value", "%.2f", NULL},
    [FACT_RATIO] = {"perplexity against f16", "%.4f", NULL},
    [FACT_KL] = {"KL from f16", "%.5f", NULL},
    [FACT_SAME_TOP] = {"same likeliest token", "%.1f %%", NULL},
    [FACT_DECODE] = {"decoding, tokens a second", "%.1f", "%g tokens deep"},
    [FACT_BYTES] = {"memory, MiB", "%.1f", "%g tokens"},
    [FACT_DISTORTION] = {"error of attention", "%.4f", NULL},
    [FACT_COMPLETED] = {"tokens finished", "%.0f", NULL},
    [FACT_SAME_TOKENS] = {"tokens as with f16", "%.0f %%", NULL},
};

void report_table(const report *r, const char *model, FILE *to)
{
    bool any[N_FACTS] = {false}, shown = false;
    double at[N_FACTS]; /* the place of a column when all rows share it; NaN when they don't */
    for (int k = 0; k < N_FACTS; k++)
        at[k] = NAN;
    for (size_t i = 0; i < r->n_caches; i++) {
        const report_cache *c = &r->caches[i];
        if (strcmp(c->model, model) != 0)
            continue;
        for (int k = 0; k < N_FACTS; k++) {
            if (!isfinite(c->facts[k]))
                continue;
            at[k] = !any[k] || at[k] == c->at[k] ? c->at[k] : NAN;
            any[k] = shown = true;
        }
    }
    if (!shown)
        return;
    fputs("<div class=\"wide\"><table class=\"facts\">\n<tr><th scope=\"col\">cache</th>", to);
    for (int k = 0; k < N_FACTS; k++) {
        if (!any[k])
            continue;
        fprintf(to, "<th scope=\"col\">%s", columns[k].head);
        if (columns[k].at && isfinite(at[k])) {
            fputs("<br><small>", to);
            fprintf(to, columns[k].at, at[k]);
            fputs("</small>", to);
        }
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    for (size_t i = 0; i < r->n_caches; i++) {
        const report_cache *c = &r->caches[i];
        if (strcmp(c->model, model) != 0)
            continue;
        fputs("<tr><th scope=\"row\"><code>", to);
        html_text(c->name, to);
        fputs("</code></th>", to);
        for (int k = 0; k < N_FACTS; k++) {
            if (!any[k])
                continue;
            fputs("<td>", to);
            if (isfinite(c->facts[k]))
                fprintf(to, columns[k].format, c->facts[k]);
            if (isfinite(c->facts[k]) && columns[k].at && !isfinite(at[k])) {
                fputs(" <small>", to);
                fprintf(to, columns[k].at, c->at[k]);
                fputs("</small>", to);
            }
            fputs("</td>", to);
        }
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}
