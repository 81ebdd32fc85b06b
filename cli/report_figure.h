/* Figures: points in series, drawn by gnuplot as PNG and SVG, and as a table in the page.
 *
 * Three kinds.  Lines: numbers against numbers.  Bars: a group of bars for each category.  Heat: a cell for each
 * category and row, one grid for each series.  Every point may have an interval. */
#ifndef CLI_REPORT_FIGURE_H
#define CLI_REPORT_FIGURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum fig_kind { FIG_LINES, FIG_BARS, FIG_HEAT } fig_kind;

enum { FIG_MOST_SERIES = 40, FIG_MOST_NAMES = 64, FIG_NAME = 96 };

typedef struct fig_names {
    char at[FIG_MOST_NAMES][FIG_NAME];
    size_t n;
} fig_names;

typedef struct fig_point {
    size_t series;
    double x;            /* lines: the number; bars and heat: index of the category */
    size_t row;          /* heat: index of the row */
    double y, low, high; /* low = high = y without an interval */
} fig_point;

typedef struct figure {
    fig_kind kind;
    char id[FIG_NAME]; /* of its files */
    char title[160];
    const char *x_label, *y_label, *note; /* note: how to read it, one or two sentences */
    bool log_x, log_y;
    const char *format; /* of a figure in the table, "%.3f" */
    double least, most; /* heat: ends of the colour scale; equal: those of the data */
    fig_names series, columns, rows;
    fig_point *points;
    size_t n_points, room;
    bool drawn, failed; /* failed: memory or names ran out, and something is missing */
    fig_names sources;  /* results files that it shows */
} figure;

/* The number of a name, which is added when it is new. */
size_t fig_name(figure *f, fig_names *names, const char *name);
/* Lines: a point; not finite ones are left out. */
void fig_add(figure *f, const char *series, double x, double y, double low, double high);
/* Bars. */
void fig_add_bar(figure *f, const char *series, const char *category, double y, double low, double high);
/* Heat. */
void fig_add_cell(figure *f, const char *series, const char *column, const char *row, double y);

/* Writes DIR/ID.gp and runs gnuplot on it: DIR/ID.png and DIR/ID.svg.  Returns an exit status, having said what is
 * wrong. */
int fig_draw(figure *f, const char *dir);
/* The figures as an HTML table. */
void fig_table(const figure *f, FILE *to);
void fig_free(figure *f);

/* Text with &, <, > and quotes as HTML wants them. */
void html_text(const char *text, FILE *to);

#endif
