/* From rows of results files to figures: report_panels.c decides what is drawn, report.c reads files and writes the
 * page. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>

#include "report_figure.h"

enum { REPORT_MOST_FIGURES = 96 };

typedef struct report {
    figure *figures[REPORT_MOST_FIGURES];
    size_t n_figures;
    bool failed; /* too many figures or no memory */
} report;

/* Offers a row of `source` to every panel; returns how many took it. */
size_t report_take(report *r, const json_t *row, const char *source);
void report_free(report *r);

#endif
