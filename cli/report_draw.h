/* What the files share that turn figures into gnuplot scripts (report_gnuplot.c, report_facets.c). */
#ifndef CLI_REPORT_DRAW_H
#define CLI_REPORT_DRAW_H

#include "report_figure.h"

typedef struct style {
    const char *colour; /* "#rrggbb" */
    int mark, dash;     /* as gnuplot numbers them */
    double fill;        /* density of bars */
} style;

/* How a name looks among those that a figure shows; one that is not there looks like the first of its family. */
style style_of(const fig_names *names, const char *name);

/* A string of gnuplot in single quotes, in which only the quote itself is special. */
void draw_quote(const char *text, FILE *to);
/* 32768 as 32,768, and 1e-05 as 0.00001 */
const char *draw_number(double x, char out[32]);

/* Ends of an axis. */
typedef struct range {
    double low, high;
} range;

/* A logarithmic axis with round tics, a little wider than the range; false, and nothing written, where a linear axis
 * reads better. */
bool draw_log_axis(char axis, range r, FILE *to);

/* Figures of kind FIG_FACETS: the size of the picture, and its plots. */
void facets_size(const figure *f, size_t *width, size_t *height);
void draw_facets(const figure *f, size_t width, size_t height, FILE *to);

#endif
