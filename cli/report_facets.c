/* Facets: plots of lines beside each other on the same axes, one for each model, for many series at once.  What lies
 * beyond the ends of x is left out (tables have it), what lies beyond those of y is drawn at the edge.
 *
 * A legend of fifteen lines is a riddle, so every line has its name beside it.  Where names go is found here: the plots
 * lie at known places of the picture, so points, lines and names have known pixels, and each name takes the place
 * around one of its line's points that covers least. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "report_draw.h"

enum {
    PLOT_WIDTH = 720,
    PLOT_HEIGHT = 600,
    ACROSS = 2,
    LEFT = 98, /* pixels around a plot */
    RIGHT = 14,
    TOP = 56,
    BOTTOM = 66,
    LETTER = 7, /* of a name, in its font */
    LINE = 15,
    STEP = 5, /* lines are looked at every so many pixels */
};

static const char key[] = "asked of calibrated methods"; /* what marks mean */

/* ---- places ---- */
enum { OF_LINE = 2, OF_POINT = 12, OF_MARK = 15, OF_NAME = 60 }; /* what it costs to cover them */

typedef struct box {
    double left, top, right, bottom;
    double weight; /* what it costs to cover it */
    size_t series; /* whose it is: lines may run into their own names */
} box;

/* One plot: from values to pixels. */
typedef struct plot {
    range x, y; /* logarithms */
    double width, height;
    box *boxes;
    size_t n_boxes, room;
} plot;

static double px(const plot *p, double x) { return (log10(x) - p->x.low) / (p->x.high - p->x.low) * p->width; }

static double py(const plot *p, double y) { return (p->y.high - log10(y)) / (p->y.high - p->y.low) * p->height; }

static void occupy(plot *p, double x, double y, double half_width, double half_height, double weight, size_t series)
{
    if (p->n_boxes == p->room) {
        const size_t room = p->room ? 2 * p->room : 1024;
        box *more = realloc(p->boxes, room * sizeof *more);
        if (!more)
            return; /* a name may then lie on a line */
        p->boxes = more;
        p->room = room;
    }
    p->boxes[p->n_boxes++] = (box){x - half_width, y - half_height, x + half_width, y + half_height, weight, series};
}

/* What a name would cover. */
static double cost_of(const plot *p, const box *name)
{
    double cost = 0;
    for (size_t i = 0; i < p->n_boxes; i++) {
        const box *b = &p->boxes[i];
        const bool apart =
            b->right < name->left || b->left > name->right || b->bottom < name->top || b->top > name->bottom;
        if (!apart)
            cost += b->series == name->series && b->weight <= OF_LINE ? 0.4 * b->weight : b->weight;
    }
    return cost;
}

/* Points of a series in a plot follow each other after fig_sort. */
static size_t first_of(const figure *f, size_t facet, size_t series, size_t *n)
{
    size_t first = f->n_points;
    *n = 0;
    for (size_t i = 0; i < f->n_points; i++) {
        if (f->points[i].row != facet || f->points[i].series != series)
            continue;
        first = first == f->n_points ? i : first;
        (*n)++;
    }
    return first;
}

/* From a place to a name. */
static double distance(const box *name, double x, double y)
{
    const double dx = fmax(fmax(name->left - x, x - name->right), 0),
                 dy = fmax(fmax(name->top - y, y - name->bottom), 0);
    return hypot(dx, dy);
}

/* A name belongs to the line next to it: what else is as near costs. */
static double cost_of_neighbours(const plot *p, const box *name, double own)
{
    double cost = 0;
    for (size_t i = 0; i < p->n_boxes; i++) {
        const box *b = &p->boxes[i];
        if (b->series != name->series && b->weight == OF_POINT &&
            distance(name, (b->left + b->right) / 2, (b->top + b->bottom) / 2) < own + 3)
            cost += 6;
    }
    return cost;
}

static bool is_strong(const figure *f, size_t series)
{
    return f->plan->strong && strcmp(f->series.at[series], f->plan->strong) == 0;
}

/* Puts a name down where it covers least, beside a point of its line or the middle between two; its middle. */
static void place_name(plot *p, const figure *f, const fig_point *points, size_t n, size_t series, double *x, double *y)
{
    static const double ways[][2] = {{1, 0}, {-1, 0}, {0, -1}, {0, 1}, {1, -1}, {1, 1}, {-1, -1}, {-1, 1}};
    const double half = (double)strlen(f->series.at[series]) * (is_strong(f, series) ? LETTER + 3 : LETTER) / 2,
                 high = LINE / 2.0;
    double least = INFINITY;
    *x = *y = 0;
    for (size_t i = 0; i < 2 * n - 1; i++) { /* even: points, from the last one; odd: between it and the one before */
        const size_t k = n - 1 - i / 2;
        double own_x = px(p, points[k].x), own_y = py(p, points[k].y);
        if (i % 2) {
            own_x = (own_x + px(p, points[k - 1].x)) / 2;
            own_y = (own_y + py(p, points[k - 1].y)) / 2;
        }
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            for (int far = 0; far < 5; far++) {
                const double away = (i % 2 ? 4 : 9) + 7 * far;
                const double at_x = own_x + ways[w][0] * (half + away),
                             at_y = own_y + ways[w][1] * (high + (ways[w][0] != 0 ? away / 2 : away));
                const box name = {at_x - half, at_y - high, at_x + half, at_y + high, OF_NAME, series};
                if (name.left < 2 || name.right > p->width - 2 || name.top < 2 || name.bottom > p->height - 2)
                    continue;
                const double cost = cost_of(p, &name) + cost_of_neighbours(p, &name, distance(&name, own_x, own_y)) +
                                    2.5 * far + (i % 2) * 1.5 + 0.3 * (double)i + 0.1 * (double)w;
                if (cost < least) {
                    least = cost;
                    *x = at_x;
                    *y = at_y;
                }
            }
        }
    }
    occupy(p, *x, *y, half + 2, high, OF_NAME, series);
}

static void occupy_lines(plot *p, const figure *f, size_t facet)
{
    for (size_t i = 0; i < f->n_points; i++) {
        const fig_point *a = &f->points[i], *b = a + 1;
        if (a->row != facet)
            continue;
        const double x = px(p, a->x), y = py(p, a->y);
        occupy(p, x, y, 6, 6, OF_POINT, a->series);
        if (i + 1 == f->n_points || b->row != facet || b->series != a->series)
            continue;
        const double dx = px(p, b->x) - x, dy = py(p, b->y) - y, length = hypot(dx, dy);
        for (double at = STEP; at < length; at += STEP)
            occupy(p, x + dx * at / length, y + dy * at / length, 1.5, 1.5, OF_LINE, a->series);
    }
    for (size_t i = 0; i < f->plan->n_marks; i++)
        occupy(p, px(p, f->plan->marks[i].x), py(p, f->plan->marks[i].y), 14, 5, OF_MARK, SIZE_MAX);
    if (f->plan->n_marks) /* the key in the corner */
        occupy(p, p->width - 110, 12, 110, 12, OF_NAME, SIZE_MAX);
}

/* ---- drawing ---- */

/* A colour that reads as text on white: light ones are taken darker. */
static void dark(const char *colour, char out[8])
{
    unsigned rgb = (unsigned)strtoul(colour + 1, NULL, 16), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = (rgb >> (16 - 8 * i) & 255) * 3 / 4;
    snprintf(out, 8, "#%02x%02x%02x", part[0], part[1], part[2]);
}

static double inside(double y, const range *log10_of)
{
    return fmin(fmax(y, pow(10, log10_of->low)), pow(10, log10_of->high));
}

void facets_size(const figure *f, size_t *width, size_t *height)
{
    const size_t across = f->rows.n < ACROSS ? f->rows.n : ACROSS, down = (f->rows.n + ACROSS - 1) / ACROSS;
    *width = across * PLOT_WIDTH + (across == 1 ? 120 : 0); /* room for the title */
    *height = down * PLOT_HEIGHT + 20;
}

static void draw_plot(const figure *f, size_t facet, plot *p, FILE *to)
{
    char colour[8];
    for (size_t s = 0; s < f->series.n; s++) {
        size_t n;
        const size_t first = first_of(f, facet, s, &n);
        if (n == 0)
            continue;
        fprintf(to, "$F%zu_%zu << EOD\n", facet, s);
        for (size_t i = first; i < first + n; i++)
            fprintf(to, "%.9g %.9g %.9g %.9g\n", f->points[i].x, f->points[i].y, f->points[i].low, f->points[i].high);
        fputs("EOD\n", to);
    }
    fputs("unset label\n", to);
    if (f->plan->n_marks) {
        fprintf(to, "$M%zu << EOD\n", facet);
        for (size_t i = 0; i < f->plan->n_marks; i++)
            fprintf(to, "%.9g %.9g\n", f->plan->marks[i].x, f->plan->marks[i].y);
        fputs("EOD\n", to);
    }
    for (size_t s = 0; s < f->series.n; s++) {
        size_t n;
        double x, y;
        const size_t first = first_of(f, facet, s, &n);
        if (n == 0)
            continue;
        place_name(p, f, &f->points[first], n, s, &x, &y);
        const bool strong = is_strong(f, s);
        dark(style_of(&f->series, f->series.at[s]).colour, colour);
        fputs("set label ", to);
        draw_quote(f->series.at[s], to);
        fprintf(to, " at graph %.5f,%.5f center front font '%s,%d' tc rgb '%s'\n", x / p->width, 1 - y / p->height,
                strong ? "DejaVu Sans Bold" : "", strong ? 13 : 11, colour);
    }
    if (f->plan->n_marks) {
        fputs("set label ", to);
        draw_quote(key, to);
        fputs(" at graph 1,0.98 right font ',10' tc rgb '#555555'\n", to);
        fprintf(to, "set arrow 1 from graph %.4f,0.98 to graph %.4f,0.98 nohead lc rgb '#666666' lw 2.5\n",
                1 - 214 / p->width, 1 - 190 / p->width);
    }
    fputs("set title ", to);
    draw_quote(f->rows.at[facet], to);
    fputs(" font ',14' offset 0,-0.4\nplot ", to);
    const char *between = "";
    for (int strong = 1; strong >= 0; strong--) { /* the tinted ground first, its line last */
        for (size_t s = 0; s < f->series.n; s++) {
            size_t n;
            first_of(f, facet, s, &n);
            const bool own = is_strong(f, s);
            if (n == 0)
                continue;
            const style look = style_of(&f->series, f->series.at[s]);
            if (strong && own && n > 1) {
                fprintf(to,
                        "%s$F%zu_%zu using 1:2 with filledcurves y=%.6g fc rgb '%s' fs transparent solid 0.10 notitle",
                        between, facet, s, pow(10, p->y.low), look.colour);
                between = ", ";
            }
            if (strong)
                continue;
            fprintf(to, "%s$F%zu_%zu using 1:3:(0):($4-$3) with vectors nohead lc rgb '%s' lw 1.2 dt 1 notitle",
                    between, facet, s, look.colour);
            between = ", ";
            fprintf(to, "%s$F%zu_%zu using 1:2 with linespoints lc rgb '%s' pt %d ps %s lw %s dt %d notitle", between,
                    facet, s, look.colour, look.mark, own ? "1.4" : "0.9", own ? "4" : "1.6", look.dash);
        }
    }
    if (f->plan->n_marks) /* a bar with a hook: it is to be below */
        fprintf(to,
                ", $M%zu using ($1*0.96):2:($1*0.08):(0) with vectors nohead lc rgb '#666666' lw 2.5 notitle, "
                "$M%zu using 1:2:(0):($2*-0.13) with vectors head filled size screen 0.004,20 lc rgb '#666666' lw 1.5 "
                "notitle",
                facet, facet);
    fputc('\n', to);
}

void draw_facets(const figure *f, size_t width, size_t height, FILE *to)
{
    const size_t across = f->rows.n < ACROSS ? f->rows.n : ACROSS;
    const double cell = (double)width / (double)across;
    range y = {INFINITY, -INFINITY};
    for (size_t i = 0; i < f->n_points; i++) {
        if (f->points[i].x < f->plan->x_least || f->points[i].x > f->plan->x_most)
            continue;
        y.low = fmin(y.low, f->points[i].y);
        y.high = fmax(y.high, f->points[i].y);
    }
    for (size_t i = 0; i < f->plan->n_marks; i++) {
        y.low = fmin(y.low, f->plan->marks[i].y);
        y.high = fmax(y.high, f->plan->marks[i].y);
    }
    y.low = log10(fmax(y.low, f->plan->y_least)) - 0.12;
    y.high = log10(fmin(y.high, f->plan->y_most)) + 0.12;
    fputs("set multiplot title ", to);
    draw_quote(f->title, to);
    fputs(" font ',15'\nset border 3 lc rgb '#666666'\n", to);
    for (size_t k = 0; k < f->rows.n; k++) {
        const double left = (double)(k % ACROSS) * cell + LEFT, right = (double)(k % ACROSS + 1) * cell - RIGHT;
        const double top = 20 + (double)(k / ACROSS) * PLOT_HEIGHT + TOP,
                     bottom = 20 + (double)(k / ACROSS + 1) * PLOT_HEIGHT - BOTTOM;
        plot p = {{log10(f->plan->x_least), log10(f->plan->x_most)}, y, right - left, bottom - top, NULL, 0, 0};
        fprintf(to,
                "set lmargin at screen %.5f\nset rmargin at screen %.5f\nset tmargin at screen %.5f\n"
                "set bmargin at screen %.5f\n",
                left / (double)width, right / (double)width, 1 - top / (double)height, 1 - bottom / (double)height);
        draw_log_axis('y', (range){pow(10, y.low), pow(10, y.high)}, to);
        draw_log_axis('x', (range){f->plan->x_least, f->plan->x_most}, to);
        fprintf(to,
                "set yrange [%.9g:%.9g]\nset xrange [%.9g:%.9g]\nset grid xtics ytics lt 1 dt 1 "
                "lw 1 lc "
                "rgb '#e4e4e4'\n",
                pow(10, y.low), pow(10, y.high), f->plan->x_least, f->plan->x_most);
        figure at_edges = *f;
        at_edges.points = calloc(f->n_points ? f->n_points : 1, sizeof *f->points);
        if (!at_edges.points)
            break;
        at_edges.n_points = 0;
        for (size_t i = 0; i < f->n_points; i++) {
            if (f->points[i].x < f->plan->x_least || f->points[i].x > f->plan->x_most)
                continue;
            fig_point *q = &at_edges.points[at_edges.n_points++];
            *q = f->points[i];
            q->y = inside(q->y, &y);
            q->low = inside(q->low > 0 ? q->low : 0, &y);
            q->high = inside(q->high, &y);
        }
        occupy_lines(&p, &at_edges, k);
        draw_plot(&at_edges, k, &p, to);
        free(at_edges.points);
        free(p.boxes);
        fputs("set ylabel ''\n", to);
    }
    fputs("unset multiplot\n", to);
}
