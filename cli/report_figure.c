/* Points to gnuplot scripts, pictures and tables.
 *
 * Colours are those of Okabe and Ito, which people with any colour vision tell apart; beyond seven series the dash
 * changes too, and every series has a mark of its own. */
#include "report_figure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

enum {
    WIDTH = 1100,
    HEIGHT = 620,
    FACET = 430,
    FACET_HEIGHT = 330,
    MOST_ACROSS = 3,
    WIDE = 10,
    CELL = 40,
    LABELLED_BARS = 16
};

static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};
static const int marks[] = {7, 5, 9, 13, 11, 6, 4, 8, 12, 10, 2, 1, 3};
enum { N_COLOURS = sizeof colours / sizeof colours[0], N_MARKS = sizeof marks / sizeof marks[0] };

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
    add(f, &(fig_point){fig_name(f, &f->series, series), x, 0, y, low, high});
}

void fig_add_bar(figure *f, const char *series, const char *category, double y, double low, double high)
{
    add(f, &(fig_point){fig_name(f, &f->series, series), (double)fig_name(f, &f->columns, category), 0, y, low, high});
}

void fig_add_cell(figure *f, const char *series, const char *column, const char *row, double y)
{
    add(f, &(fig_point){fig_name(f, &f->series, series), (double)fig_name(f, &f->columns, column),
                        fig_name(f, &f->rows, row), y, y, y});
}

static int by_x(const void *a, const void *b)
{
    const fig_point *p = a, *q = b;
    if (p->series != q->series)
        return p->series < q->series ? -1 : 1;
    return p->x < q->x ? -1 : p->x > q->x;
}

void fig_free(figure *f)
{
    free(f->points);
    f->points = NULL;
    f->n_points = f->room = 0;
}

/* ---- gnuplot ---- */

/* A string of gnuplot in single quotes, in which only the quote itself is special. */
static void quote(const char *text, FILE *to)
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
    quote(doubled, to);
}

static void set_text(const char *what, const char *text, FILE *to)
{
    fprintf(to, "set %s ", what);
    quote(text, to);
    fputc('\n', to);
}

/* Rows "x y low high" of one series. */
static void data_block(const figure *f, size_t series, FILE *to)
{
    fprintf(to, "$D%zu << EOD\n", series);
    for (size_t i = 0; i < f->n_points; i++) {
        const fig_point *p = &f->points[i];
        if (p->series == series)
            fprintf(to, "%.9g %.9g %.9g %.9g\n", p->x, p->y, p->low, p->high);
    }
    fputs("EOD\n", to);
}

static void style_of(size_t series, FILE *to)
{
    fprintf(to, "lc rgb '%s' pt %d ps 1.1 lw 2 dt %zu", colours[series % N_COLOURS], marks[series % N_MARKS],
            1 + series / N_COLOURS % 4);
}

static bool has_interval(const figure *f, size_t series)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->points[i].series == series && f->points[i].low < f->points[i].high)
            return true;
    return false;
}

/* Ends of an axis, intervals included. */
typedef struct range {
    double low, high;
} range;

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

/* A logarithmic axis with round tics: gnuplot's own are decades, of which figures here often span less than one.  Below
 * a factor of 3 a linear axis reads better. */
static void log_axis(char axis, range r, FILE *to)
{
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    const double span = r.high / r.low;
    if (!(r.low > 0) || span < 3)
        return;
    fprintf(to, "set logscale %c\nset %crange [%.9g:%.9g]\nset %ctics (", axis, axis, r.low / pow(span, 0.05),
            r.high * pow(span, 0.05), axis);
    const char *between = "";
    for (double decade = pow(10, floor(log10(r.low))); decade <= r.high; decade *= 10) {
        for (size_t i = 0; i < 6; i++) {
            if ((span > 30 && i != 0 && i != 2 && i != 4) || (span > 3000 && i != 0))
                continue;
            fprintf(to, "%s'%g' %.9g", between, decade * steps[i], decade * steps[i]);
            between = ", ";
        }
    }
    fputs(")\n", to);
}

enum { MOST_TICS = 8 };

/* Tics where the points are, when these are few, as budgets and depths are. */
static bool tics_at_points(const figure *f, FILE *to)
{
    double at[MOST_TICS];
    size_t n = 0;
    for (size_t i = 0; i < f->n_points; i++) {
        bool seen = false;
        for (size_t k = 0; k < n && !seen; k++)
            seen = at[k] == f->points[i].x;
        if (!seen && n == MOST_TICS)
            return false;
        if (!seen)
            at[n++] = f->points[i].x;
    }
    fputs("set xtics (", to);
    for (size_t i = 0; i < n; i++)
        fprintf(to, "%s'%.4g' %.9g", i ? ", " : "", at[i], at[i]);
    fputs(")\n", to);
    return true;
}

static void draw_lines(const figure *f, FILE *to)
{
    for (size_t s = 0; s < f->series.n; s++)
        data_block(f, s, to);
    const range x = range_of(f, true), y = range_of(f, false);
    const double margin = x.high > x.low ? 0.04 * (x.high - x.low) : 1;
    fprintf(to, "set xrange [%.9g:%.9g]\nset offsets 0, 0, graph 0.04, 0\n", x.low - margin, x.high + margin);
    if (y.low >= 0 && y.low < y.high / 2)
        fputs("set yrange [0:*]\n", to);
    bool apart = false; /* series that share their few places stand a little beside them, so that intervals show */
    if (f->log_x) {
        log_axis('x', x, to);
        apart = tics_at_points(f, to) && f->series.n > 3 && x.low > 0 && x.high / x.low >= 3;
    }
    if (f->log_y)
        log_axis('y', y, to);
    fputs("set grid ytics lc rgb '#dddddd'\nplot ", to);
    const char *between = "";
    for (size_t s = 0; s < f->series.n; s++) {
        const double place = ((double)s - (double)(f->series.n - 1) / 2) / (double)f->series.n;
        const double shift = apart ? pow(x.high / x.low, 0.05 * place) : 1;
        fprintf(to, "%s$D%zu using ($1*%.6g):2 with linespoints ", between, s, shift);
        style_of(s, to);
        fputs(" title ", to);
        quote(f->series.at[s], to);
        between = ", ";
        if (has_interval(f, s))
            fprintf(to, ", $D%zu using ($1*%.6g):3:(0):($4-$3) with vectors nohead lc rgb '%s' lw 1.4 dt 1 notitle", s,
                    shift, colours[s % N_COLOURS]);
    }
    fputc('\n', to);
}

static void draw_bars(const figure *f, FILE *to)
{
    const double width = 0.84 / (double)f->series.n;
    for (size_t s = 0; s < f->series.n; s++)
        data_block(f, s, to);
    fputs("set xtics (", to);
    for (size_t c = 0; c < f->columns.n; c++) {
        fputs(c ? ", " : "", to);
        quote_tic(f->columns.at[c], to);
        fprintf(to, " %zu", c);
    }
    fprintf(to, ")%s\n", f->columns.n > 6 ? " rotate by -35" : "");
    fprintf(to, "set xrange [-0.6:%g]\nset style fill solid 0.85 border lc rgb '#333333'\n",
            (double)f->columns.n - 0.4);
    fputs(f->log_y ? "set logscale y\n" : "set yrange [*<0:*]\n", to);
    fputs("set offsets 0, 0, graph 0.06, 0\nset grid ytics lc rgb '#dddddd'\nplot ", to);
    const char *between = "";
    for (size_t s = 0; s < f->series.n; s++) {
        const double off = ((double)s - (double)(f->series.n - 1) / 2) * width;
        fprintf(to, "%s$D%zu using ($1+%g):2:(%g) with boxes lc rgb '%s' title ", between, s, off, width * 0.92,
                colours[s % N_COLOURS]);
        quote(f->series.at[s], to);
        between = ", ";
        if (has_interval(f, s))
            fprintf(to, ", $D%zu using ($1+%g):3:(0):($4-$3) with vectors nohead lc rgb '#333333' lw 1.4 notitle", s,
                    off);
        if (f->series.n * f->columns.n <= LABELLED_BARS)
            fprintf(to,
                    ", $D%zu using ($1+%g):($4>0?$4:0):(sprintf('%s',$2)) with labels offset 0,0.7 font ',11' tc rgb "
                    "'#333333' "
                    "notitle",
                    s, off, f->format);
    }
    fputc('\n', to);
}

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
    double least = f->least, most = f->most;
    if (!(least < most)) {
        least = INFINITY;
        most = -INFINITY;
        for (size_t i = 0; i < f->n_points; i++) {
            least = fmin(least, f->points[i].y);
            most = fmax(most, f->points[i].y);
        }
        most = most > least ? most : least + 1;
    }
    fprintf(to,
            "set palette defined (0 '#00204d', 0.5 '#7c7b78', 1 '#ffea46')\nset cbrange [%g:%g]\nunset colorbox\n"
            "unset key\nset tics scale 0\n",
            least, most);
    fprintf(to, "set multiplot layout %zu,%zu title ", down, across);
    quote(f->title, to);
    fputs(" font ',15'\nset rmargin 1.5\nset tmargin 3\nset xtics (", to);
    for (size_t c = 0; c < f->columns.n; c++) {
        fputs(c ? ", " : "", to);
        quote_tic(f->columns.at[c], to);
        fprintf(to, " %zu", c);
    }
    fputs(")\nset ytics (", to);
    for (size_t r = 0; r < f->rows.n; r++) {
        fputs(r ? ", " : "", to);
        quote_tic(f->rows.at[r], to);
        fprintf(to, " %zu", r);
    }
    fprintf(to, ")\nset xrange [-0.5:%g]\nset yrange [%g:-0.5]\n", (double)f->columns.n - 0.5, (double)f->rows.n - 0.5);
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
                s, s, middle, f->format, s, middle, f->format);
    }
    fputs("unset multiplot\n", to);
}

static void script(const figure *f, FILE *to)
{
    const size_t across = facets_across(f), down = (f->series.n + across - 1) / across;
    const size_t facet = f->columns.n > WIDE ? 110 + CELL * f->columns.n : across < 2 ? FACET * 3 / 2 : FACET;
    const size_t facet_height = f->rows.n > WIDE ? 130 + 24 * f->rows.n : FACET_HEIGHT;
    const size_t width = f->kind == FIG_HEAT ? facet * across : WIDTH;
    const size_t height = f->kind == FIG_HEAT ? facet_height * down + 50 : HEIGHT;
    static const char *const kinds[] = {"pngcairo", "svg"}, *const endings[] = {"png", "svg"};
    fprintf(to, "# gnuplot %s.gp, in this folder, draws the figure again.\n", f->id);
    for (int i = 0; i < 2; i++) {
        fprintf(to, "reset\nset terminal %s noenhanced size %zu,%zu font 'DejaVu Sans,%d' background rgb 'white'\n",
                kinds[i], width, height, 13);
        fprintf(to, "set output '%s.%s'\n", f->id, endings[i]);
        fputs("set border 3 lc rgb '#666666'\nset tics nomirror\nset key outside right top vertical reverse Left "
              "samplen 2 width 1 spacing 1.2\n",
              to);
        set_text("xlabel", f->x_label, to);
        set_text("ylabel", f->y_label, to);
        if (f->kind != FIG_HEAT) {
            set_text("title", f->title, to);
            fputs("set title font ',15'\n", to);
        }
        if (f->kind == FIG_LINES)
            draw_lines(f, to);
        else if (f->kind == FIG_BARS)
            draw_bars(f, to);
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

int fig_draw(figure *f, const char *dir)
{
    char path[4096], name[FIG_NAME + 8];
    if (f->failed)
        return cli_fail("%s: more than %d names or no memory", f->id, FIG_MOST_NAMES);
    if (f->kind != FIG_HEAT && f->n_points > 0)
        qsort(f->points, f->n_points, sizeof *f->points, by_x);
    snprintf(name, sizeof name, "%s.gp", f->id);
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return cli_fail("%.60s...: the name is too long", dir);
    FILE *to = fopen(path, "w");
    if (!to)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    script(f, to);
    const bool fine = ferror(to) == 0;
    if (fclose(to) != 0 || !fine)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    const int status = run_gnuplot(dir, name);
    f->drawn = status == CLI_FINE;
    return status;
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
    snprintf(text, sizeof text, f->format, p->y);
    fprintf(to, "<td>%s", text);
    if (p->low < p->high) {
        char low[64], high[64];
        snprintf(low, sizeof low, f->format, p->low);
        snprintf(high, sizeof high, f->format, p->high);
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
    fputs("<tr><th></th><th>", to);
    html_text(f->x_label, to);
    fputs("</th><th>", to);
    html_text(f->y_label, to);
    fputs("</th></tr>\n", to);
    for (size_t i = 0; i < f->n_points; i++) {
        fputs("<tr><th>", to);
        html_text(f->series.at[f->points[i].series], to);
        fprintf(to, "</th><td>%.4g</td>", f->points[i].x);
        cell(f, &f->points[i], to);
        fputs("</tr>\n", to);
    }
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum { MOST_COLUMNS = 16 };

/* Columns where series share their x; a list of pairs where they don't. */
static size_t shared_columns(const figure *f, double *out)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_points; i++) {
        bool seen = false;
        for (size_t k = 0; k < n && !seen; k++)
            seen = out[k] == f->points[i].x;
        if (!seen && n == MOST_COLUMNS)
            return 0;
        if (!seen)
            out[n++] = f->points[i].x;
    }
    qsort(out, n, sizeof *out, by_number);
    return n;
}

void fig_table(const figure *f, FILE *to)
{
    double x[FIG_MOST_NAMES] = {0};
    size_t n = f->columns.n;
    for (size_t i = 0; i < n; i++)
        x[i] = (double)i;
    fputs("<table>\n", to);
    if (f->kind == FIG_LINES)
        n = shared_columns(f, x);
    if (n == 0) {
        pairs_table(f, to);
        fputs("</table>\n", to);
        return;
    }
    fputs("<tr><th></th>", to);
    for (size_t c = 0; c < n; c++) {
        fputs("<th>", to);
        if (f->kind == FIG_LINES)
            fprintf(to, "%.6g", x[c]);
        else
            html_text(f->columns.at[c], to);
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    const size_t n_rows = f->kind == FIG_HEAT ? f->rows.n : 1;
    for (size_t s = 0; s < f->series.n; s++) {
        for (size_t r = 0; r < n_rows; r++) {
            fputs("<tr><th>", to);
            html_text(f->series.at[s], to);
            if (f->kind == FIG_HEAT) {
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
    fputs("</table>\n", to);
}
