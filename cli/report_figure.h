/* Figures: points in series, drawn by gnuplot as PNG and SVG, and as a table in the page.
 *
 * Four kinds.  Lines: numbers against numbers.  Bars: a group of bars for each category, from top to bottom.  Heat: a
 * cell for each category and row, one grid for each series.  Facets: lines that share their axes, one plot beside the
 * other, each line with its name beside it instead of a legend.  Every point of lines, bars and facets may have an
 * interval. */
#ifndef CLI_REPORT_FIGURE_H
#define CLI_REPORT_FIGURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum fig_kind { FIG_LINES, FIG_BARS, FIG_HEAT, FIG_FACETS } fig_kind;

enum { FIG_MOST_NAMES = 64, FIG_NAME = 96 };

typedef struct fig_names {
    char at[FIG_MOST_NAMES][FIG_NAME];
    size_t n;
} fig_names;

typedef struct fig_point {
    size_t series;
    double x;            /* lines and facets: the number; bars and heat: index of the category */
    size_t row;          /* heat: index of the row; facets: of the plot */
    double y, low, high; /* low = high = y without an interval */
} fig_point;

/* A place that a figure shows beside its points: what was asked for. */
typedef struct fig_mark {
    double x, y;
} fig_mark;

/* What figures of one kind have in common; lives longer than they. */
typedef struct fig_plan {
    fig_kind kind;
    const char *id, *title, *x_label, *y_label;
    const char *note;   /* how to read it, one or two sentences */
    const char *format; /* of a number in the table and on bars, "%.3f" */
    bool log_x, log_y;
    bool timed;         /* times, which other programs spoil */
    bool even_x;        /* lines: the few places on the x axis stand equally far apart */
    double least, most; /* heat: ends of the colour scale; equal: those of the data */
    /* facets: ends of both axes (what lies beyond those of y is drawn at the edge), the series that stands out, marks.
     * lines: y_least is where the axis begins unless points lie below; 0: at 0, or at the points where they are far. */
    double x_least, x_most, y_least, y_most;
    const char *strong;
    const fig_mark *marks;
    size_t n_marks;
} fig_plan;

typedef struct figure {
    const fig_plan *plan;
    fig_plan own;      /* a plan that was changed for what is there (fig_settle) */
    char id[FIG_NAME]; /* of its files */
    char title[160];
    char model[FIG_NAME]; /* empty: of several */
    fig_names series, columns, rows;
    fig_point *points;
    size_t n_points, room;
    double rank;       /* figures that show one case of several: which one (fig_keep_rank) */
    double others;     /* timed: how many CPUs other programs took meanwhile, where the machine was not quiet; else 0 */
    bool failed;       /* memory or names ran out, and something is missing */
    fig_names sources; /* results files that it shows */
} figure;

/* The number of a name, which is added when it is new. */
size_t fig_name(figure *f, fig_names *names, const char *name);
/* Lines: a point; not finite ones are left out. */
void fig_add(figure *f, const char *series, double x, double y, double low, double high);
/* Facets: a point of the plot that is named. */
void fig_add_facet(figure *f, const char *facet, const char *series, double x, double y, double low, double high);
/* Bars. */
void fig_add_bar(figure *f, const char *series, const char *category, double y, double low, double high);
/* Heat. */
void fig_add_cell(figure *f, const char *series, const char *column, const char *row, double y);
/* False: points of a higher rank are there, and those of this one do not belong.  What has a lower rank goes. */
bool fig_keep_rank(figure *f, double rank);
/* Once all points are there: lines that have but one place on the x axis become bars. */
void fig_settle(figure *f);
/* Points of lines and facets by plot, series and x. */
void fig_sort(figure *f);
/* The different x of all points in order, at most FIG_MOST_NAMES; 0 when there are more than `most`. */
size_t fig_places(const figure *f, size_t most, double out[FIG_MOST_NAMES]);
bool fig_has_interval(const figure *f, size_t series);

/* The figures as an HTML table. */
void fig_table(const figure *f, FILE *to);
void fig_free(figure *f);

/* Writes DIR/ID.gp, and runs gnuplot on it when `draw`: DIR/ID.png and DIR/ID.svg.  Returns an exit status, having said
 * what is wrong. */
int fig_draw(figure *f, const char *dir, bool draw);
/* The same for several figures as the panels of one, their series in one legend; NULL panels are left out. */
int fig_draw_sheet(figure *const *panels, const char *const *names, size_t n, const char *id, const char *title,
                   const char *dir, bool draw);

/* Text with &, <, > and quotes as HTML wants them. */
void html_text(const char *text, FILE *to);

#endif
