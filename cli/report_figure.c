/* Points of figures, and figures as tables.  report_gnuplot.c draws them. */
#include "report_draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- points ---- */
size_t fig_name(figure *f, fig_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strncmp(names->at[i], name, FIG_NAME - 1) == 0)
            return i;
    if (names->n == FIG_MOST_NAMES) {
        f->failed = true;
        return 0;
    }
    snprintf(names->at[names->n], FIG_NAME, "%s", name);
    return names->n++;
}

static void add(figure *f, const fig_point *p)
{
    if (!isfinite(p->x) || !isfinite(p->y) || f->failed)
        return;
    if (f->n_points == f->room) {
        const size_t room = f->room ? 2 * f->room : 64;
        fig_point *points = realloc(f->points, room * sizeof *points);
        if (!points) {
            f->failed = true;
            return;
        }
        f->points = points;
        f->room = room;
    }
    f->points[f->n_points] = *p;
    if (!isfinite(p->low) || !isfinite(p->high))
        f->points[f->n_points].low = f->points[f->n_points].high = p->y;
    f->n_points++;
}

void fig_add(figure *f, const char *series, double x, double y, double low, double high)
{
    if (isfinite(x) && isfinite(y))
        add(f, &(fig_point){fig_name(f, &f->series, series), x, 0, y, low, high});
}

void fig_add_facet(figure *f, const char *facet, const char *series, double x, double y, double low, double high)
{
    if (isfinite(x) && isfinite(y))
        add(f, &(fig_point){fig_name(f, &f->series, series), x, fig_name(f, &f->rows, facet), y, low, high});
}

void fig_add_bar(figure *f, const char *series, const char *category, double y, double low, double high)
{
    if (isfinite(y))
        add(f,
            &(fig_point){fig_name(f, &f->series, series), (double)fig_name(f, &f->columns, category), 0, y, low, high});
}

void fig_add_cell(figure *f, const char *series, const char *column, const char *row, double y)
{
    if (isfinite(y))
        add(f, &(fig_point){fig_name(f, &f->series, series), (double)fig_name(f, &f->columns, column),
                            fig_name(f, &f->rows, row), y, y, y});
}

bool fig_keep_rank(figure *f, double rank)
{
    if (f->n_points > 0 && rank < f->rank)
        return false;
    if (f->n_points > 0 && rank > f->rank) {
        f->n_points = 0;
        f->series.n = f->columns.n = f->rows.n = 0;
    }
    f->rank = rank;
    return true;
}

static int by_x(const void *a, const void *b)
{
    const fig_point *p = a, *q = b;
    if (p->row != q->row)
        return p->row < q->row ? -1 : 1;
    if (p->series != q->series)
        return p->series < q->series ? -1 : 1;
    return p->x < q->x ? -1 : p->x > q->x;
}

void fig_sort(figure *f)
{
    if ((f->plan->kind == FIG_LINES || f->plan->kind == FIG_FACETS) && f->n_points > 0)
        qsort(f->points, f->n_points, sizeof *f->points, by_x);
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

size_t fig_places(const figure *f, size_t most, double out[FIG_MOST_NAMES])
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_points; i++) {
        bool seen = false;
        for (size_t k = 0; k < n && !seen; k++)
            seen = out[k] == f->points[i].x;
        if (!seen && (n == most || n == FIG_MOST_NAMES))
            return 0;
        if (!seen)
            out[n++] = f->points[i].x;
    }
    qsort(out, n, sizeof *out, by_number);
    return n;
}

void fig_settle(figure *f)
{
    double at[FIG_MOST_NAMES];
    if (f->plan->kind != FIG_LINES || !f->plan->even_x || f->series.n < 2 || fig_places(f, 1, at) != 1)
        return;
    const size_t n = strlen(f->title);
    char number[32];
    snprintf(f->title + n, sizeof f->title - n, ", %s %s", draw_number(at[0], number), f->plan->x_label);
    f->own = *f->plan;
    f->own.kind = FIG_BARS;
    f->own.x_label = "";
    f->plan = &f->own;
    f->columns = f->series;
    for (size_t i = 0; i < f->n_points; i++) {
        f->points[i].x = (double)f->points[i].series;
        f->points[i].series = 0;
    }
    f->series.n = 1; /* one bar each, which has its name beside it */
}

bool fig_has_interval(const figure *f, size_t series)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->points[i].series == series && f->points[i].low < f->points[i].high)
            return true;
    return false;
}

void fig_free(figure *f)
{
    free(f->points);
    f->points = NULL;
    f->n_points = f->room = 0;
}

/* ---- tables ---- */
void html_text(const char *text, FILE *to)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*text, to);
        }
    }
}

static void cell(const figure *f, const fig_point *p, FILE *to)
{
    char text[64];
    snprintf(text, sizeof text, f->plan->format, p->y);
    fprintf(to, "<td>%s", text);
    if (p->low < p->high) {
        char low[64], high[64];
        snprintf(low, sizeof low, f->plan->format, p->low);
        snprintf(high, sizeof high, f->plan->format, p->high);
        fprintf(to, " <small>%s&ndash;%s</small>", low, high);
    }
    fputs("</td>", to);
}

static const fig_point *find(const figure *f, size_t series, double x, size_t row)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->points[i].series == series && f->points[i].x == x && f->points[i].row == row)
            return &f->points[i];
    return NULL;
}

static void pairs_table(const figure *f, FILE *to)
{
    fputs("<tr><td></td><th scope=\"col\">", to);
    html_text(f->plan->x_label, to);
    fputs("</th><th scope=\"col\">", to);
    html_text(f->plan->y_label, to);
    fputs("</th></tr>\n", to);
    for (size_t i = 0; i < f->n_points; i++) {
        fputs("<tr><th scope=\"row\">", to);
        if (f->plan->kind == FIG_FACETS) {
            html_text(f->rows.at[f->points[i].row], to);
            fputs(" &middot; ", to);
        }
        html_text(f->series.at[f->points[i].series], to);
        fprintf(to, "</th><td>%.4g</td>", f->points[i].x);
        cell(f, &f->points[i], to);
        fputs("</tr>\n", to);
    }
}

enum { MOST_COLUMNS = 16 };

/* Bars: categories downwards, as they are drawn. */
static void bars_table(const figure *f, FILE *to)
{
    fputs("<tr><td></td>", to);
    for (size_t s = 0; s < f->series.n; s++) {
        fputs("<th scope=\"col\">", to);
        html_text(f->series.n > 1 ? f->series.at[s] : f->plan->y_label, to);
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    for (size_t c = 0; c < f->columns.n; c++) {
        fputs("<tr><th scope=\"row\">", to);
        html_text(f->columns.at[c], to);
        fputs("</th>", to);
        for (size_t s = 0; s < f->series.n; s++) {
            const fig_point *p = find(f, s, (double)c, 0);
            if (p)
                cell(f, p, to);
            else
                fputs("<td></td>", to);
        }
        fputs("</tr>\n", to);
    }
}

/* Series downwards, places (lines) or categories (heat) to the right. */
static void grid_table(const figure *f, const double *x, size_t n, FILE *to)
{
    fputs("<tr><td></td>", to);
    for (size_t c = 0; c < n; c++) {
        fputs("<th scope=\"col\">", to);
        if (f->plan->kind == FIG_LINES)
            fprintf(to, "%.6g", x[c]);
        else
            html_text(f->columns.at[c], to);
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    const size_t n_rows = f->plan->kind == FIG_HEAT ? f->rows.n : 1;
    for (size_t s = 0; s < f->series.n; s++) {
        for (size_t r = 0; r < n_rows; r++) {
            fputs("<tr><th scope=\"row\">", to);
            html_text(f->series.at[s], to);
            if (f->plan->kind == FIG_HEAT) {
                fputs(" &middot; ", to);
                html_text(f->rows.at[r], to);
            }
            fputs("</th>", to);
            for (size_t c = 0; c < n; c++) {
                const fig_point *p = find(f, s, x[c], r);
                if (p)
                    cell(f, p, to);
                else
                    fputs("<td></td>", to);
            }
            fputs("</tr>\n", to);
        }
    }
}

void fig_table(const figure *f, FILE *to)
{
    double x[FIG_MOST_NAMES] = {0};
    fputs("<div class=\"wide\"><table aria-label=\"", to);
    html_text(f->title, to);
    fputs("\">\n", to);
    if (f->plan->kind == FIG_BARS) {
        bars_table(f, to);
    } else if (f->plan->kind == FIG_FACETS) {
        pairs_table(f, to);
    } else if (f->plan->kind == FIG_HEAT) {
        for (size_t i = 0; i < f->columns.n; i++)
            x[i] = (double)i;
        grid_table(f, x, f->columns.n, to);
    } else {
        /* columns where series share their x; a list of pairs where they don't */
        const size_t n = fig_places(f, MOST_COLUMNS, x);
        if (n > 0 && f->n_points >= n * f->series.n / 2)
            grid_table(f, x, n, to);
        else
            pairs_table(f, to);
    }
    fputs("</table></div>\n", to);
}
