/* Parsing by table, and help from the same table. */
#include "options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 96, MOST_WORD = 48, HELP_COLUMN = 29, HELP_WIDTH = 80 };

/* ---- suggestions ---- */

/* Insertions, deletions, replacements and swaps of neighbours that make b of a. */
static size_t distance(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    if (n > MOST_WORD || m > MOST_WORD)
        return SIZE_MAX;
    size_t d[3][MOST_WORD + 1];
    for (size_t k = 0; k <= m; k++)
        d[0][k] = k;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = d[i % 3], *above = d[(i - 1) % 3], *above2 = d[(i + 1) % 3];
        row[0] = i;
        for (size_t k = 1; k <= m; k++) {
            size_t least = above[k - 1] + (a[i - 1] != b[k - 1]);
            if (above[k] + 1 < least)
                least = above[k] + 1;
            if (row[k - 1] + 1 < least)
                least = row[k - 1] + 1;
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] && above2[k - 2] + 1 < least)
                least = above2[k - 2] + 1;
            row[k] = least;
        }
    }
    return d[n % 3][m];
}

const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2; /* below this it counts as near */
    for (size_t i = 0; i < n; i++) {
        const size_t d = distance(word, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    if (best)
        return best;
    for (size_t i = 0; i < n; i++) /* a start of a name: --temperature for --temp, --repeat for ... */
        if (strlen(word) >= 3 &&
            (strncmp(names[i], word, strlen(word)) == 0 || strncmp(names[i], word, strlen(names[i])) == 0))
            return names[i];
    return NULL;
}

/* ---- parsing ---- */

struct message {
    char *text;
    size_t n_bytes;
};

static bool wrong(const struct message *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool wrong(const struct message *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->text, m->n_bytes, format, args);
    va_end(args);
    return false;
}

static const cli_option *find(const cli_page *page, const char *name, size_t n_bytes, char letter, void **values)
{
    for (size_t g = 0; g < page->n_groups; g++) {
        for (size_t i = 0; i < page->groups[g].n; i++) {
            const cli_option *o = &page->groups[g].options[i];
            if (name ? strlen(o->name) == n_bytes && memcmp(o->name, name, n_bytes) == 0
                     : letter != 0 && o->letter == letter) {
                *values = page->groups[g].values;
                return o;
            }
        }
    }
    return NULL;
}

static const char *nearest_option(const cli_page *page, const char *name)
{
    const char *names[MOST_NAMES];
    size_t n = 0;
    for (size_t g = 0; g < page->n_groups; g++)
        for (size_t i = 0; i < page->groups[g].n && n < MOST_NAMES; i++)
            names[n++] = page->groups[g].options[i].name;
    return cli_nearest(name, names, n);
}

static bool parse_whole(const cli_option *o, const char *text, int64_t *out, const struct message *m)
{
    char *end;
    errno = 0;
    const long long x = strtoll(text, &end, 10);
    if (end == text || *end != 0)
        return wrong(m, "--%s: '%s' is not a whole number", o->name, text);
    if (errno != 0 || (double)x < o->min || (double)x > o->max)
        return wrong(m, "--%s: %s, must be %.0f to %.0f", o->name, text, o->min, o->max);
    *out = x;
    return true;
}

static bool parse_real(const cli_option *o, const char *text, float *out, const struct message *m)
{
    char *end;
    errno = 0;
    const double x = strtod(text, &end);
    if (end == text || *end != 0 || !isfinite(x))
        return wrong(m, "--%s: '%s' is not a number", o->name, text);
    if (x < o->min || x > o->max)
        return wrong(m, "--%s: %s, must be %g to %g", o->name, text, o->min, o->max);
    *out = (float)x;
    return true;
}

static bool parse_counts(const cli_option *o, const char *text, cli_counts *out, const struct message *m)
{
    cli_counts counts = {.n = 0};
    for (const char *at = text;;) {
        char word[32];
        const size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof word)
            return wrong(m, "--%s: '%s' is not a list such as 0,2048", o->name, text);
        if (counts.n == CLI_MOST_COUNTS)
            return wrong(m, "--%s: '%s' has more than %d numbers", o->name, text, CLI_MOST_COUNTS);
        memcpy(word, at, n);
        word[n] = 0;
        int64_t x;
        if (!parse_whole(o, word, &x, m))
            return false;
        counts.at[counts.n++] = (uint32_t)x;
        if (at[n] == 0)
            break;
        at += n + 1;
    }
    *out = counts;
    return true;
}

static bool set(const cli_option *o, void *values, const char *text, const struct message *m)
{
    void *to = (char *)values + o->offset;
    int64_t whole;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)to = true; return true;
    case CLI_COUNT_OR_ALL:
        if (strcmp(text, "-1") == 0) {
            *(uint32_t *)to = UINT32_MAX;
            return true;
        }
        if (!parse_whole(o, text, &whole, m))
            return false;
        *(uint32_t *)to = (uint32_t)whole;
        return true;
    case CLI_COUNT:
        if (!parse_whole(o, text, &whole, m))
            return false;
        *(uint32_t *)to = (uint32_t)whole;
        return true;
    case CLI_WHOLE: return parse_whole(o, text, to, m);
    case CLI_REAL: return parse_real(o, text, to, m);
    case CLI_TEXT: *(const char **)to = text; return true;
    case CLI_TEXTS: {
        cli_texts *texts = to;
        if (texts->n == CLI_MOST_TEXTS)
            return wrong(m, "--%s: given more than %d times", o->name, CLI_MOST_TEXTS);
        texts->at[texts->n++] = text;
        return true;
    }
    case CLI_COUNTS: return parse_counts(o, text, to, m);
    }
    return false;
}

/* A word that starts with a dash; its value may be in the same word or in the next one, *at. */
static bool parse_option(const cli_page *page, char **argv, int argc, int *at, const struct message *m)
{
    const char *word = argv[*at], *value = NULL;
    const cli_option *o;
    void *values;
    if (word[1] == '-') {
        const size_t n = strcspn(word + 2, "=");
        o = find(page, word + 2, n, 0, &values);
        if (!o) {
            char name[MOST_WORD + 1];
            snprintf(name, sizeof name, "%.*s", (int)(n < MOST_WORD ? n : MOST_WORD), word + 2);
            const char *near = nearest_option(page, name);
            return near ? wrong(m, "unknown option --%s; did you mean --%s?", name, near)
                        : wrong(m, "unknown option --%s", name);
        }
        if (word[2 + n] == '=')
            value = word + 2 + n + 1;
        if (o->kind == CLI_FLAG && value)
            return wrong(m, "--%s takes no value", o->name);
    } else {
        o = find(page, NULL, 0, word[1], &values);
        if (!o) {
            /* a long name after one dash is a common slip */
            const char *near = word[2] ? nearest_option(page, word + 1) : NULL;
            return near ? wrong(m, "unknown option %s; did you mean --%s?", word, near)
                        : wrong(m, "unknown option %s", word);
        }
        if (o->kind != CLI_FLAG && word[2])
            value = word[2] == '=' ? word + 3 : word + 2;
        else if (o->kind == CLI_FLAG && word[2])
            return wrong(m, "unknown option %s", word);
    }
    if (o->kind != CLI_FLAG && !value) {
        if (*at + 1 >= argc)
            return wrong(m, "--%s needs a value: %s", o->name, o->value);
        value = argv[++*at];
    }
    return set(o, values, value, m);
}

cli_parsed cli_options_parse(const cli_page *page, int argc, char **argv, size_t *n_operands, char *message,
                             size_t message_bytes)
{
    const struct message m = {message, message_bytes};
    size_t n = 0;
    bool options_end = false;
    *n_operands = 0;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return CLI_HELP;
    for (int i = 1; i < argc; i++) {
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (options_end || argv[i][0] != '-' || argv[i][1] == 0) {
            argv[1 + n++] = argv[i];
        } else if (!parse_option(page, argv, argc, &i, &m)) {
            return CLI_WRONG;
        }
    }
    if (n > page->most_operands)
        wrong(&m, "unexpected word '%s'", argv[1 + page->most_operands]);
    else if (n < page->least_operands)
        wrong(&m, "too few words: usage is veloxquant %s %s", page->name, page->usage);
    *n_operands = n;
    return n > page->most_operands || n < page->least_operands ? CLI_WRONG : CLI_PARSED;
}

/* ---- help ---- */

/* Words of `text` from column `at` on, lines starting at `indent`. */
static void wrap(const char *text, size_t at, size_t indent, FILE *to)
{
    bool first = true;
    while (*text) {
        const size_t n = strcspn(text, " ");
        if (!first && at + 1 + n > HELP_WIDTH) {
            fprintf(to, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        if (!first) {
            fputc(' ', to);
            at++;
        }
        fwrite(text, 1, n, to);
        at += n;
        first = false;
        text += n;
        while (*text == ' ')
            text++;
    }
    fputc('\n', to);
}

/* What the struct holds before parsing; zero, -1 and nothing mean something that the help text explains. */
static void default_text(const cli_option *o, const void *values, char *out, size_t n_bytes)
{
    const void *at = (const char *)values + o->offset;
    out[0] = 0;
    switch (o->kind) {
    case CLI_COUNT:
    case CLI_COUNT_OR_ALL:
        if (*(const uint32_t *)at != 0 && *(const uint32_t *)at != UINT32_MAX)
            snprintf(out, n_bytes, " (default %u)", *(const uint32_t *)at);
        break;
    case CLI_REAL:
        if (*(const float *)at != 0)
            snprintf(out, n_bytes, " (default %g)", (double)*(const float *)at);
        break;
    case CLI_TEXT:
        if (*(const char *const *)at)
            snprintf(out, n_bytes, " (default %s)", *(const char *const *)at);
        break;
    case CLI_COUNTS: {
        const cli_counts *counts = at;
        for (size_t i = 0, used = 0; i < counts->n; i++)
            used += (size_t)snprintf(out + used, n_bytes - used, "%s%u%s", i ? "," : " (default ", counts->at[i],
                                     i + 1 == counts->n ? ")" : "");
        break;
    }
    case CLI_FLAG:
    case CLI_WHOLE:
    case CLI_TEXTS: break;
    }
}

static void option_help(const cli_option *o, const void *values, FILE *to)
{
    char left[64], text[640], standard[96];
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "      --%s", o->name);
    if (o->kind != CLI_FLAG)
        n += snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
    default_text(o, values, standard, sizeof standard);
    snprintf(text, sizeof text, "%s%s", o->help, standard);
    fputs(left, to);
    if (n + 2 > HELP_COLUMN)
        fprintf(to, "\n%*s", HELP_COLUMN, "");
    else
        fprintf(to, "%*s", HELP_COLUMN - n, "");
    wrap(text, HELP_COLUMN, HELP_COLUMN, to);
}

static void paragraphs(const char *text, FILE *to)
{
    while (*text) {
        const size_t n = strcspn(text, "\n");
        char line[1024];
        assert(n < sizeof line);
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        wrap(line, 0, 0, to);
        text += n + (text[n] == '\n');
    }
}

void cli_options_help(const cli_page *page, FILE *to)
{
    fprintf(to, "usage: veloxquant %s%s%s\n\n", page->name, page->usage[0] ? " " : "", page->usage);
    paragraphs(page->intro, to);
    for (size_t g = 0; g < page->n_groups; g++) {
        fprintf(to, "\n%s:\n", page->groups[g].title);
        for (size_t i = 0; i < page->groups[g].n; i++)
            option_help(&page->groups[g].options[i], page->groups[g].values, to);
    }
    if (page->ending)
        fprintf(to, "\n%s", page->ending);
}
