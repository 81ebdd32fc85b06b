/* Figures to gnuplot scripts and pictures.
 *
 * Colours are those of Okabe and Ito and then of Tol, which people with any colour vision tell apart.  A method has one
 * colour in every figure as far as they reach, its variants differ by mark, dash or lightness; what others make is
 * grey. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "report_draw.h"

enum {
    WIDTH = 1100,
    HEIGHT = 600,
    FACET = 430,
    FACET_HEIGHT = 330,
    MOST_ACROSS = 3,
    WIDE = 10,
    CELL = 40,
    BAR = 19,
    PANEL_WIDTH = 620,
    PANEL_HEIGHT = 470
};

/* ---- styles ---- */
#define BLACK "#000000"
#define GREY "#8a8a8a"
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                                      "#332288", "#999933", "#882255", "#44AA99", "#661100", "#AA4499"};
static const int marks[] = {7, 5, 9, 13, 11, 6, 4, 8, 12, 10, 2, 1, 3};
enum { N_COLOURS = sizeof colours / sizeof colours[0], N_MARKS = sizeof marks / sizeof marks[0] };

/* What figures show most often looks the same in all of them. */
static const struct {
    const char *family, *colour;
} known[] = {
    {"f16", BLACK},
    {"f32", BLACK},
    {"bf16", BLACK},
    {"none", BLACK},
    {"no", BLACK}, /* "no policy" */
    {"llama.cpp", GREY},
    {"ggml", GREY},
    {"VeloxQuant-MLX", GREY},
    {"optimal", "#D55E00"},
    {"trellis", "#E69F00"},
    {"velox", "#0072B2"},
    {"int8", "#56B4E9"},
    {"kivi", "#009E73"},
    {"turboquant-mse", "#CC79A7"},
    {"turboquant-prod", "#AA4499"},
    {"turboquant-rvq", "#882255"},
    {"rabitq", "#332288"},
    {"spectralquant", "#999933"},
    {"kivi-sink", "#117733"},
    {"outlier", "#661100"},
    {"amc", "#44AA99"},
    {"vecinfer", "#004488"},
    {"commvq", "#997700"},
    {"a2ats", "#994455"},
    {"polarquant", "#6699CC"},
    {"qjl", "#AA4466"},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

/* "velox" of "velox:bits=2", "snapkv" of "snapkv 25 %" */
static size_t family_length(const char *name) { return strcspn(name, ":, "); }

static bool same_family(const char *a, const char *b)
{
    const size_t n = family_length(a);
    return n == family_length(b) && strncmp(a, b, n) == 0;
}

/* A plan has the colour of the method that it shares bits out for. */
static const char *known_colour(const char *name)
{
    static const char plan[] = "plan:";
    if (strncmp(name, plan, sizeof plan - 1) == 0)
        name += sizeof plan - 1;
    for (size_t i = 0; i < N_KNOWN; i++)
        if (same_family(name, known[i].family))
            return known[i].colour;
    return NULL;
}

/* The colour of the family of names->at[index]: its own, or the next that no family in the list has; when these run
 * out, they begin again, and *round says how often. */
static const char *colour_in(const fig_names *names, size_t index, size_t *round)
{
    const char *free_colours[N_COLOURS];
    size_t n_free = 0, n_before = 0;
    *round = 0;
    const char *own = known_colour(names->at[index]);
    if (own)
        return own;
    for (size_t c = 0; c < N_COLOURS; c++) {
        bool taken = false;
        for (size_t i = 0; i < names->n && !taken; i++) {
            const char *other = known_colour(names->at[i]);
            taken = other && strcmp(other, colours[c]) == 0;
        }
        if (!taken)
            free_colours[n_free++] = colours[c];
    }
    for (size_t i = 0; i < index; i++) { /* families before this one that took free colours */
        bool first = !known_colour(names->at[i]) && !same_family(names->at[i], names->at[index]);
        for (size_t k = 0; k < i && first; k++)
            first = !same_family(names->at[k], names->at[i]);
        n_before += first;
    }
    for (size_t i = 0; i < index; i++) /* a family that is there already keeps what its first name got */
        if (same_family(names->at[i], names->at[index]))
            return colour_in(names, i, round);
    if (n_before < n_free)
        return free_colours[n_before];
    *round = 1 + (n_before - n_free) / N_COLOURS;
    return colours[(n_before - n_free) % N_COLOURS];
}

style style_of(const fig_names *names, const char *name)
{
    size_t index = names->n, variant = 0, round;
    for (size_t i = 0; i < names->n && index == names->n; i++)
        if (strcmp(names->at[i], name) == 0)
            index = i;
    for (size_t i = 0; i < names->n && index == names->n; i++)
        if (same_family(names->at[i], name))
            index = i;
    if (index == names->n)
        index = 0;
    for (size_t i = 0; i < index; i++)
        variant += same_family(names->at[i], names->at[index]);
    static const double fills[] = {0.9, 0.6, 0.35, 0.18};
    style s = {.mark = marks[index % N_MARKS], .fill = fills[variant % 4]};
    s.colour = colour_in(names, index, &round);
    s.dash = 1 + (int)((variant + round) % 4);
    if (strcmp(s.colour, GREY) == 0)
        s.dash = 2 + (int)(variant % 3);
    return s;
}

/* ---- text ---- */

void draw_quote(const char *text, FILE *to)
{
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', to);
        if ((unsigned char)*text >= ' ')
            fputc(*text, to);
    }
    fputc('\'', to);
}

/* Labels of tics are formats too. */
static void quote_tic(const char *text, FILE *to)
{
    char doubled[2 * FIG_NAME];
    size_t n = 0;
    for (; *text && n + 2 < sizeof doubled; text++) {
        if (*text == '%')
            doubled[n++] = '%';
        doubled[n++] = *text;
    }
    doubled[n] = 0;
    draw_quote(doubled, to);
}

static void set_text(const char *what, const char *text, FILE *to)
{
    fprintf(to, "set %s ", what);
    draw_quote(text, to);
    fputc('\n', to);
}

const char *draw_number(double x, char out[32])
{
    char plain[32];
    if (x > 0 && x < 1e-4 && x > 1e-9) {
        snprintf(out, 32, "%.*f", (int)ceil(-log10(x) - 1e-9), x);
        return out;
    }
    snprintf(plain, sizeof plain, "%.6g", x);
    const size_t n = strlen(plain);
    if (strspn(plain, "0123456789") != n) {
        snprintf(out, 32, "%s", plain);
        return out;
    }
    size_t at = 0;
    for (size_t i = 0; i < n && at + 2 < 32; i++) {
        if (i && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = plain[i];
    }
    out[at] = 0;
    return out;
}

/* ---- axes ---- */

/* Of all points, intervals included. */
static range range_of(const figure *f, bool of_x)
{
    range r = {INFINITY, -INFINITY};
    for (size_t i = 0; i < f->n_points; i++) {
        const fig_point *p = &f->points[i];
        r.low = fmin(r.low, of_x ? p->x : fmin(p->low, p->y));
        r.high = fmax(r.high, of_x ? p->x : fmax(p->high, p->y));
    }
    return r;
}

/* gnuplot's own tics are decades, of which figures here often span less than one.  Below a factor of 3 a linear axis
 * reads better. */
bool draw_log_axis(char axis, range r, FILE *to)
{
    static const double steps[] = {1, 1.5, 2, 3, 5, 7}, bits[] = {1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    const double span = r.high / r.low;
    if (!(r.low > 0) || span < 3)
        return false;
    fprintf(to, "set logscale %c\n", axis);
    const char *between = "";
    char text[32];
    if (axis == 'x' && r.low > 0.5 &&
        r.high < 40) { /* bits a value or weight: no decades; to the next tic if it is near */
        double low = r.low / pow(span, 0.05), high = r.high * pow(span, 0.05);
        for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
            if (bits[i] <= low && low < 1.3 * bits[i])
                low = 0.98 * bits[i];
            if (bits[i] >= high && bits[i] < 1.3 * high) {
                high = 1.02 * bits[i];
                break;
            }
        }
        fprintf(to, "set xrange [%.9g:%.9g]\nset xtics (", low, high);
        for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++, between = ", ")
            fprintf(to, "%s'%s' %g", between, draw_number(bits[i], text), bits[i]);
        fputs(")\n", to);
        return true;
    }
    fprintf(to, "set %crange [%.9g:%.9g]\nset %ctics (", axis, r.low / pow(span, 0.05), r.high * pow(span, 0.05), axis);
    for (double decade = pow(10, floor(log10(r.low))); decade <= r.high; decade *= 10) {
        for (size_t i = 0; i < 6; i++) {
            const bool few = i == 0 || i == 2 || i == 4; /* 1, 2, 5 */
            if ((span > 12 && !few) || (span > 800 && i != 0))
                continue;
            fprintf(to, "%s'%s' %.9g", between, draw_number(decade * steps[i], text), decade * steps[i]);
            between = ", ";
        }
    }
    fputs(")\n", to);
    return true;
}

enum { MOST_TICS = 8 };

/* Tics where the points are, when these are few whole numbers, as lengths are. */
static bool tics_at_points(const figure *f, FILE *to)
{
    double at[FIG_MOST_NAMES];
    char text[32];
    const size_t n = fig_places(f, MOST_TICS, at);
    for (size_t i = 0; i < n; i++)
        if (at[i] != round(at[i]))
            return false;
    if (n == 0)
        return false;
    fputs("set xtics (", to);
    for (size_t i = 0; i < n; i++)
        fprintf(to, "%s'%s' %.9g", i ? ", " : "", draw_number(at[i], text), at[i]);
    fputs(")\n", to);
    return true;
}

/* gnuplot's own numbers begin with a space where a minus would be, and so stand to the right of their tics. */
#define NO_SPACE "set format x '%h'\n"

/* Names as the tics of an axis. */
static void name_tics(char axis, const fig_names *names, FILE *to)
{
    fprintf(to, "set %ctics (", axis);
    for (size_t i = 0; i < names->n; i++) {
        fputs(i ? ", " : "", to);
        quote_tic(names->at[i], to);
        fprintf(to, " %zu", i);
    }
    fputs(")\n", to);
}

/* ---- lines ---- */
typedef struct canvas {
    FILE *to;
    size_t panel;             /* number of the panel, in names of data blocks */
    const fig_names *palette; /* all names that share colours */
    bool small;               /* a panel of a sheet */
} canvas;

static void draw_lines(const figure *f, const canvas *c)
{
    FILE *to = c->to;
    double at[FIG_MOST_NAMES];
    const size_t n_places = f->plan->even_x ? fig_places(f, 12, at) : 0;
    bool apart = false; /* series that share their few places stand a little beside them, so that intervals show */
    const range x = n_places ? (range){0, (double)(n_places - 1)} : range_of(f, true), y = range_of(f, false);
    for (size_t s = 0; s < f->series.n; s++) {
        apart |= fig_has_interval(f, s) && f->series.n > 1;
        fprintf(to, "$D%zu_%zu << EOD\n", c->panel, s);
        for (size_t i = 0; i < f->n_points; i++) {
            const fig_point *p = &f->points[i];
            double place = p->x;
            for (size_t k = 0; k < n_places; k++)
                if (at[k] == p->x)
                    place = (double)k;
            if (p->series == s)
                fprintf(to, "%.9g %.9g %.9g %.9g\n", place, p->y, p->low, p->high);
        }
        fputs("EOD\n", to);
    }
    const double margin = n_places ? 0.4 : x.high > x.low ? 0.04 * (x.high - x.low) : 1;
    fprintf(to, "set xrange [%.9g:%.9g]\nset offsets 0, 0, graph 0.04, 0\n", x.low - margin, x.high + margin);
    if (y.low == y.high) /* or gnuplot warns of an empty range */
        fprintf(to, "set yrange [%.9g:%.9g]\n", fmin(0, 2 * y.low), y.high > 0 ? 2 * y.high : 1);
    else if (f->plan->y_least > 0)
        fprintf(to, "set yrange [%.9g:*]\n", fmin(f->plan->y_least, y.low) - 0.04 * (y.high - y.low));
    else if (y.low >= 0 && y.low < y.high / 2)
        fputs("set yrange [0:*]\n", to);
    double factor = 1, step = 0; /* how far the first and the last series stand apart */
    if (n_places) {
        char text[32];
        fputs("set xtics (", to);
        for (size_t i = 0; i < n_places; i++)
            fprintf(to, "%s'%s' %zu", i ? ", " : "", draw_number(at[i], text), i);
        fputs(")\n", to);
        step = apart ? fmin(0.4, 0.025 * (double)f->series.n) : 0;
    } else if (f->plan->log_x && draw_log_axis('x', x, to)) {
        if (tics_at_points(f, to) && apart)
            factor = pow(x.high / x.low, 0.05);
    } else if (x.high >= 10000) {
        const double rough = x.high / 6, unit = pow(10, floor(log10(rough))), steps = rough / unit;
        const double every = unit * (steps < 2 ? 2 : steps < 5 ? 5 : 10);
        char text[32];
        fputs("set xtics (", to);
        for (double tic = 0; tic <= x.high + margin; tic += every)
            fprintf(to, "%s'%s' %.9g", tic > 0 ? ", " : "", draw_number(tic, text), tic);
        fputs(")\n", to);
    } else {
        fputs(NO_SPACE, to);
    }
    if (f->plan->log_y)
        draw_log_axis('y', y, to);
    fputs("set grid ytics lt 1 dt 1 lw 1 lc rgb '#e4e4e4'\nplot ", to);
    const char *between = "";
    for (size_t s = 0; s < f->series.n; s++) {
        const style look = style_of(c->palette, f->series.at[s]);
        const double place = ((double)s - (double)(f->series.n - 1) / 2) / (double)f->series.n;
        char shift[64];
        snprintf(shift, sizeof shift, "($1*%.6g%+.4g)", pow(factor, place), step * place);
        if (fig_has_interval(f, s))
            fprintf(to, "%s$D%zu_%zu using %s:3:(0):($4-$3) with vectors nohead lc rgb '%s' lw 1.2 dt 1 notitle",
                    between, c->panel, s, shift, look.colour);
        between = fig_has_interval(f, s) ? ", " : between;
        fprintf(to, "%s$D%zu_%zu using %s:2 with linespoints lc rgb '%s' pt %d ps %s lw 2 dt %d title ", between,
                c->panel, s, shift, look.colour, look.mark, c->small ? "0.9" : "1.1", look.dash);
        draw_quote(f->series.at[s], to);
        between = ", ";
    }
    fputc('\n', to);
}

/* ---- bars ---- */

/* One bar: from 0 to y, its interval, its number behind it. */
static void draw_bar(const figure *f, const canvas *c, const fig_point *p, const style *look, double width,
                     const char *title)
{
    FILE *to = c->to;
    fprintf(to,
            "$B%zu_%zu using (0):2:(%.6g<0?%.6g:0):(%.6g>0?%.6g:0):($2-%.4g):($2+%.4g) with boxxyerror fs solid %.2f "
            "border lc rgb '%s' lc rgb '%s' ",
            c->panel, (size_t)(p - f->points), p->y, p->y, p->y, p->y, width / 2, width / 2, look->fill, look->colour,
            look->colour);
    if (title) {
        fputs("title ", to);
        draw_quote(title, to);
    } else {
        fputs("notitle", to);
    }
    if (p->low < p->high)
        fprintf(to, ", $B%zu_%zu using (%.9g):2:(%.9g):(0) with vectors nohead lc rgb '#222222' lw 1.3 notitle",
                c->panel, (size_t)(p - f->points), p->low, p->high - p->low);
    const double end = p->y < 0 ? fmin(p->y, p->low) : fmax(p->y, p->high);
    char text[64];
    snprintf(text, sizeof text, f->plan->format, p->y);
    fprintf(to, ", $B%zu_%zu using (%.9g):2:('%s') with labels %s font ',%d' tc rgb '#333333' notitle", c->panel,
            (size_t)(p - f->points), end, text, p->y < 0 ? "right offset -0.6,0" : "left offset 0.6,0",
            c->small ? 10 : 11);
}

static void draw_bars(const figure *f, const canvas *c)
{
    FILE *to = c->to;
    const bool by_category = f->series.n == 1; /* then every category has a colour */
    const double width = 0.8 / (double)f->series.n;
    const range r = range_of(f, false);
    const double low = fmin(r.low, 0), high = fmax(r.high, 0), span = high > low ? high - low : 1;
    for (size_t i = 0; i < f->n_points; i++) {
        const fig_point *p = &f->points[i];
        fprintf(to, "$B%zu_%zu << EOD\n0 %.6g\nEOD\n", c->panel, i,
                p->x + ((double)p->series - (double)(f->series.n - 1) / 2) * width);
    }
    name_tics('y', &f->columns, to);
    fprintf(to, "set xrange [%.9g:%.9g]\nset yrange [%.3g:-0.6]\n", low < 0 ? low - 0.1 * span : 0, high + 0.12 * span,
            (double)f->columns.n - 0.4);
    fputs(NO_SPACE "set border 1\nset ytics scale 0\nset grid xtics lt 1 dt 1 lw 1 lc rgb '#e4e4e4'\n", to);
    if (by_category)
        fputs("unset key\n", to);
    fputs("plot ", to);
    for (size_t i = 0; i < f->n_points; i++) {
        const fig_point *p = &f->points[i];
        const char *name = by_category ? f->columns.at[(size_t)p->x] : f->series.at[p->series];
        const style look = style_of(by_category && !c->small ? &f->columns
                                    : by_category            ? c->palette
                                                             : &f->series,
                                    name);
        bool first = !by_category;
        for (size_t k = 0; k < i && first; k++)
            first = f->points[k].series != p->series;
        fputs(i ? ", " : "", to);
        draw_bar(f, c, p, &look, width * 0.9, first ? name : NULL);
    }
    fputc('\n', to);
}

/* ---- heat ---- */

/* Grids beside each other; wide ones stand alone. */
static size_t facets_across(const figure *f)
{
    if (f->columns.n > WIDE)
        return 1;
    return f->series.n < MOST_ACROSS ? f->series.n : MOST_ACROSS;
}

static void draw_heat(const figure *f, FILE *to)
{
    const size_t across = facets_across(f), down = (f->series.n + across - 1) / across;
    double least = f->plan->least, most = f->plan->most;
    if (!(least < most)) {
        const range r = range_of(f, false);
        least = r.low;
        most = r.high > r.low ? r.high : r.low + 1;
    }
    fprintf(to,
            "set palette defined (0 '#00204d', 0.5 '#7c7b78', 1 '#ffea46')\nset cbrange [%g:%g]\nunset colorbox\n"
            "unset key\nset tics scale 0\n",
            least, most);
    fprintf(to, "set multiplot layout %zu,%zu title ", down, across);
    draw_quote(f->title, to);
    fprintf(to, " font ',15'\nset rmargin 1.5\nset tmargin %s\n", f->series.n > 1 ? "3" : "1");
    name_tics('x', &f->columns, to);
    name_tics('y', &f->rows, to);
    fprintf(to, "set xrange [-0.5:%g]\nset yrange [%g:-0.5]\n", (double)f->columns.n - 0.5, (double)f->rows.n - 0.5);
    for (size_t s = 0; s < f->series.n; s++) {
        fprintf(to, "$H%zu << EOD\n", s);
        for (size_t i = 0; i < f->n_points; i++)
            if (f->points[i].series == s)
                fprintf(to, "%g %zu %.9g\n", f->points[i].x, f->points[i].row, f->points[i].y);
        fputs("EOD\n", to);
        set_text("title", f->series.n > 1 ? f->series.at[s] : "", to);
        const double middle = least + 0.6 * (most - least);
        fprintf(to,
                "plot $H%zu using 1:2:(0.5):(0.5):3 with boxxyerror fs solid border lc rgb 'white' lc palette, "
                "$H%zu using 1:2:($3>%g?sprintf('%s',$3):'') with labels tc rgb 'black' font ',11', "
                "$H%zu using 1:2:($3>%g?'':sprintf('%s',$3)) with labels tc rgb 'white' font ',11'\n",
                s, s, middle, f->plan->format, s, middle, f->plan->format);
    }
    fputs("unset multiplot\n", to);
}

/* ---- scripts ---- */
static void plain_axes(const figure *f, FILE *to)
{
    fputs("set border 3 lc rgb '#666666'\nset tics nomirror\nset key outside right top vertical reverse Left "
          "samplen 2 width 1 spacing 1.25\n",
          to);
    set_text(f->plan->kind == FIG_BARS ? "ylabel" : "xlabel", f->plan->kind == FIG_BARS ? "" : f->plan->x_label, to);
    set_text(f->plan->kind == FIG_BARS ? "xlabel" : "ylabel", f->plan->y_label, to);
    if (f->plan->kind != FIG_HEAT)
        fputs("set tmargin 3\n", to);
}

/* Both pictures of one script: the terminal, and the font that a picture can count on. */
static void begin_picture(const char *id, int picture, size_t width, size_t height, FILE *to)
{
    static const char *const terminals[] = {"pngcairo", "svg"}, *const fonts[] = {"DejaVu Sans", "sans-serif"},
                             *const endings[] = {"png", "svg"};
    fprintf(to,
            "reset\nset terminal %s noenhanced size %zu,%zu font '%s,13' background rgb 'white'\nset output '%s.%s'\n",
            terminals[picture], width, height, fonts[picture], id, endings[picture]);
}

/* A line of text across the picture. */
static void screen_text(int number, const char *text, double x, const char *offset, int size, const char *y, FILE *to)
{
    fprintf(to, "set label %d ", number);
    draw_quote(text, to);
    fprintf(to, " at screen %g,%s center %s font ',%d'\n", x, y, offset, size);
}

static void script(const figure *f, FILE *to)
{
    size_t width = WIDTH, height = HEIGHT;
    if (f->plan->kind == FIG_FACETS) {
        facets_size(f, &width, &height);
    } else if (f->plan->kind == FIG_HEAT) {
        const size_t across = facets_across(f), down = (f->series.n + across - 1) / across;
        width = across * (f->columns.n > WIDE ? 110 + CELL * f->columns.n : across < 2 ? FACET * 3 / 2 : FACET);
        height = down * (f->rows.n > WIDE ? 130 + 24 * f->rows.n : FACET_HEIGHT) + 50;
    } else if (f->plan->kind == FIG_BARS) {
        height = 130 + f->columns.n * (f->series.n * BAR + 9);
    }
    fprintf(to, "# gnuplot %s.gp, in this folder, draws the figure again.\n", f->id);
    for (int picture = 0; picture < 2; picture++) {
        begin_picture(f->id, picture, width, height, to);
        plain_axes(f, to);
        if (f->plan->kind != FIG_HEAT &&
            f->plan->kind != FIG_FACETS) /* over the whole picture: a title is centred on the plot alone, and cut off */
            screen_text(1, f->title, 0.5, "offset 0,-1.3", 15, "screen 1", to);
        if (f->others > 0)
            fputs("set label 2 'measured beside other programs' at screen 0.99,screen 0 right offset 0,0.7 font ',10' "
                  "tc rgb '#c62828'\n",
                  to);
        const canvas c = {to, 0, &f->series, false};
        if (f->plan->kind == FIG_LINES)
            draw_lines(f, &c);
        else if (f->plan->kind == FIG_BARS)
            draw_bars(f, &c);
        else if (f->plan->kind == FIG_FACETS)
            draw_facets(f, width, height, to);
        else
            draw_heat(f, to);
        fputs("unset output\n", to);
    }
}

static int run_gnuplot(const char *dir, const char *name)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        return cli_fail("gnuplot: cannot start: %s", strerror(errno));
    if (child == 0) {
        if (chdir(dir) == 0)
            execlp("gnuplot", "gnuplot", name, (char *)NULL);
        _exit(errno == ENOENT ? 127 : 126);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return cli_fail("gnuplot: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return cli_fail("gnuplot is not installed: apt-get install gnuplot-nox");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return cli_fail("gnuplot could not draw %s/%s", dir, name);
    return CLI_FINE;
}

static FILE *open_script(const char *dir, const char *id, char *name, size_t room)
{
    char path[4096];
    snprintf(name, room, "%s.gp", id);
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        cli_fail("%.60s...: the name is too long", dir);
        return NULL;
    }
    FILE *to = fopen(path, "w");
    if (!to)
        cli_fail("%s: cannot write: %s", path, strerror(errno));
    return to;
}

static int close_script(FILE *to, const char *dir, const char *name, bool draw)
{
    const bool fine = ferror(to) == 0;
    if (fclose(to) != 0 || !fine)
        return cli_fail("%s/%s: cannot write: %s", dir, name, strerror(errno));
    return draw ? run_gnuplot(dir, name) : CLI_FINE;
}

int fig_draw(figure *f, const char *dir, bool draw)
{
    char name[FIG_NAME + 8];
    if (f->failed)
        return cli_fail("%s: more than %d names or no memory", f->id, FIG_MOST_NAMES);
    fig_sort(f);
    FILE *to = open_script(dir, f->id, name, sizeof name);
    if (!to)
        return CLI_FAILED;
    script(f, to);
    return close_script(to, dir, name, draw);
}

/* ---- sheets ---- */

/* Names of a panel that have colours: its series, or the categories of bars in one series. */
static const fig_names *coloured(const figure *f)
{
    return f->plan->kind == FIG_BARS && f->series.n == 1 ? &f->columns : &f->series;
}

/* Whether a name is a family of others, "velox" where "velox:bits=2" is. */
static bool has_variants(figure *const *panels, size_t n, const char *name)
{
    for (size_t i = 0; i < n && !strchr(name, ':'); i++) {
        const fig_names *names = panels[i] ? coloured(panels[i]) : NULL;
        for (size_t k = 0; names && k < names->n; k++)
            if (strchr(names->at[k], ':') && same_family(names->at[k], name))
                return true;
    }
    return false;
}

/* Names that the panels share colours by, in the order of the panels.  A family of others looks like those and needs no
 * entry. */
static void collect_palette(figure *const *panels, size_t n, fig_names *out)
{
    for (size_t i = 0; i < n; i++) {
        const fig_names *names = panels[i] ? coloured(panels[i]) : NULL;
        for (size_t k = 0; names && k < names->n; k++)
            if (!has_variants(panels, n, names->at[k]) && out->n < FIG_MOST_NAMES)
                fig_name(panels[i], out, names->at[k]);
    }
}

/* The last panel: what the marks of all others mean. */
static void draw_legend(const fig_names *names, FILE *to)
{
    fputs("unset border\nunset tics\nunset xlabel\nunset ylabel\nunset title\nunset grid\nset xrange [0:1]\nset yrange "
          "[0:1]\n",
          to);
    const bool two = names->n > 20; /* columns */
    fprintf(to,
            "set key inside center center vertical Left reverse samplen 3 spacing 1.2 maxrows %zu font ',%d'\nplot ",
            two ? (names->n + 1) / 2 : 20, two ? 10 : 13);
    for (size_t i = 0; i < names->n; i++) {
        const style look = style_of(names, names->at[i]);
        fprintf(to, "%sNaN with linespoints lc rgb '%s' pt %d ps 1.1 lw 2 dt %d title ", i ? ", " : "", look.colour,
                look.mark, look.dash);
        draw_quote(names->at[i], to);
    }
    fputs(names->n ? "\n" : "NaN notitle\n", to);
}

int fig_draw_sheet(figure *const *panels, const char *const *names, size_t n, const char *id, const char *title,
                   const char *dir, bool draw)
{
    char name[FIG_NAME + 8];
    fig_names *palette = calloc(1, sizeof *palette);
    FILE *to = palette ? open_script(dir, id, name, sizeof name) : NULL;
    if (!to) {
        free(palette);
        return CLI_FAILED;
    }
    collect_palette(panels, n, palette);
    size_t n_there = 0;
    for (size_t i = 0; i < n; i++)
        n_there += panels[i] != NULL;
    const size_t across = n_there + 1 == 4 ? 2 : MOST_ACROSS, down = (n_there + 1 + across - 1) / across;
    fprintf(to, "# gnuplot %s.gp, in this folder, draws the figure again.\n", id);
    for (int picture = 0; picture < 2; picture++) {
        begin_picture(id, picture, across * PANEL_WIDTH, down * PANEL_HEIGHT + 50, to);
        fprintf(to, "set multiplot layout %zu,%zu title ", down, across);
        draw_quote(title, to);
        fputs(" font ',18'\n", to);
        for (size_t i = 0; i < n; i++) {
            if (!panels[i])
                continue;
            fputs("reset\n", to);
            fig_sort(panels[i]);
            plain_axes(panels[i], to);
            set_text("title", names[i], to);
            fputs("set title font ',15'\n", to);
            const canvas c = {to, i, palette, true};
            fputs("unset key\nset lmargin 11\nset rmargin 3\n", to);
            if (panels[i]->plan->kind == FIG_BARS) {
                fputs("unset lmargin\n", to);
                draw_bars(panels[i], &c);
            } else {
                draw_lines(panels[i], &c);
            }
        }
        fputs("reset\n", to);
        draw_legend(palette, to);
        fputs("unset multiplot\nunset output\n", to);
    }
    free(palette);
    return close_script(to, dir, name, draw);
}
