/* What panels share: fields of rows, names, figures made on first use, facts of caches. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* ---- fields ---- */
const char *row_text(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

double row_number(const json_t *row, const char *key)
{
    const json_t *x = json_object_get(row, key);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

bool row_is(const json_t *row, const char *kind) { return strcmp(row_text(row, "kind"), kind) == 0; }

bool row_evicts(const json_t *row) { return row_text(row, "evict")[0] && strcmp(row_text(row, "evict"), "none") != 0; }

static double element(const json_t *list, size_t i)
{
    const json_t *x = json_array_get(list, i);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

interval row_interval(const json_t *row, const char *key)
{
    const json_t *x = json_object_get(row, key);
    if (json_is_array(x))
        return (interval){element(x, 0), element(x, 1), element(x, 2)};
    if (json_is_object(x))
        return (interval){row_number(x, "median"), row_number(x, "q1"), row_number(x, "q3")};
    const double value = json_is_number(x) ? json_number_value(x) : NAN;
    return (interval){value, value, value};
}

/* ---- names ---- */

/* Letters and digits, small: SmolLM2-135M and smollm2_135m are one model. */
static void fold(const char *name, char out[FIG_NAME])
{
    size_t n = 0;
    for (; *name && n + 1 < FIG_NAME; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

/* SmolLM2-135M-Instruct.Q4_1.gguf -> SmolLM2-135M, gemma-3-270m-q4_k_m.gguf -> gemma-3-270m */
static void short_name(const char *file, char out[FIG_NAME])
{
    const char *slash = strrchr(file, '/');
    snprintf(out, FIG_NAME, "%s", slash ? slash + 1 : file);
    char *end = strrchr(out, '.');
    if (end && (strcmp(end, ".gguf") == 0 || strcmp(end, ".vqr") == 0))
        *end = 0;
    for (char *at = out; *at; at++)
        if ((*at == '.' || *at == '-') && (at[1] == 'Q' || at[1] == 'q') && isdigit((unsigned char)at[2]))
            *at = 0; /* a type of weights; ends the loop */
    const size_t n = strlen(out);
    static const char tuned[] = "-Instruct";
    if (n > sizeof tuned - 1 && strcmp(out + n - (sizeof tuned - 1), tuned) == 0)
        out[n - (sizeof tuned - 1)] = 0;
}

const char *row_model(report *r, const json_t *row)
{
    char name[FIG_NAME], folded[FIG_NAME], other[FIG_NAME];
    const json_t *of_row = json_object_get(row, "model");
    short_name(json_is_object(of_row) ? row_text(of_row, "file") : row_text(row, "model"), name);
    fold(name, folded);
    for (size_t i = 0; i < r->models.n; i++) {
        fold(r->models.at[i], other);
        if (strcmp(folded, other) == 0)
            return r->models.at[i];
    }
    if (r->models.n == FIG_MOST_NAMES) {
        r->failed = true;
        return r->models.at[0];
    }
    memcpy(r->models.at[r->models.n], name, FIG_NAME);
    return r->models.at[r->models.n++];
}

const char *policy_name(const char *spec, char out[FIG_NAME])
{
    snprintf(out, FIG_NAME, "%.*s", (int)strcspn(spec, ":"), spec);
    return out;
}

const char *method_family(const char *spec, char out[FIG_NAME])
{
    const char *at = strstr(spec, "bits=");
    if (!at || at == spec || (at[-1] != ':' && at[-1] != ',') || strchr(spec, '+')) {
        snprintf(out, FIG_NAME, "%s", spec);
        return out;
    }
    const char *rest = at + strcspn(at, ",");
    /* what separates the option goes with it */
    snprintf(out, FIG_NAME, "%.*s%s", (int)(at - spec - (*rest ? 0 : 1)), spec, *rest ? rest + 1 : "");
    return out;
}

double option_of(const char *spec, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = strchr(spec, ':'); at; at = strchr(at, ','))
        if (strncmp(++at, name, n) == 0 && at[n] == '=')
            return strtod(at + n + 1, NULL);
    return NAN;
}

/* Takes an option of a method out, with what separates it. */
static void drop_option(char *method, const char *start)
{
    const size_t n = strlen(start);
    for (char *at = method; (at = strstr(at, start)) != NULL;) {
        char *end = at + n + strcspn(at + n, ",+");
        if (at == method || (at[-1] != ':' && at[-1] != ',')) {
            at = end;
            continue;
        }
        if (*end == ',')
            end++; /* goes with the option before the next one */
        else
            at--;
        memmove(at, end, strlen(end) + 1);
    }
}

const char *row_method(const json_t *row, char out[FIG_NAME])
{
    char whole[1024]; /* paths of calibrations can be long */
    snprintf(whole, sizeof whole, "%s", row_text(row, "method")[0] ? row_text(row, "method") : row_text(row, "kv"));
    drop_option(whole, "calibration=");
    char *usual = strstr(whole, ":sinks=4,residual=32");
    if (usual && usual[20] == 0)
        *usual = 0;
    snprintf(out, FIG_NAME, "%.95s", whole);
    return out;
}

const char *row_cache(const json_t *row, char out[FIG_NAME])
{
    char policy[FIG_NAME], kv[FIG_NAME];
    const char *evict = row_text(row, "evict");
    const double budget = option_of(evict, "budget");
    row_method(row, kv);
    if (!row_evicts(row))
        snprintf(out, FIG_NAME, "%s", kv);
    else if (isfinite(budget))
        snprintf(out, FIG_NAME, "%.30s%s%.30s %g%s", strcmp(kv, "f16") == 0 ? "" : kv,
                 strcmp(kv, "f16") == 0 ? "" : ", ", policy_name(evict, policy), budget,
                 strchr(evict, '%') ? " %" : " tokens");
    else
        snprintf(out, FIG_NAME, "%.45s, %.45s", kv, evict);
    return out;
}

/* ---- figures ---- */

/* File names: letters, digits and dashes. */
static void make_id(char out[FIG_NAME], const char *a, const char *b, const char *c)
{
    snprintf(out, FIG_NAME, "%s%s%s%s%s", a, b[0] ? "-" : "", b, c[0] ? "-" : "", c);
    size_t n = 0;
    for (const char *at = out; *at; at++) {
        if (isalnum((unsigned char)*at))
            out[n++] = (char)tolower((unsigned char)*at);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    out[n - (n > 0 && out[n - 1] == '-')] = 0;
}

figure *report_figure(report *r, const fig_plan *p, const char *model, const char *part, const report_file *source)
{
    char id[FIG_NAME];
    make_id(id, p->id, model, part);
    figure *f = NULL;
    for (size_t i = 0; i < r->n_figures && !f; i++)
        if (strcmp(r->figures[i]->id, id) == 0)
            f = r->figures[i];
    if (!f) {
        f = r->n_figures < REPORT_MOST_FIGURES ? calloc(1, sizeof *f) : NULL;
        if (!f) {
            r->failed = true;
            return NULL;
        }
        f->plan = p;
        memcpy(f->id, id, sizeof f->id);
        snprintf(f->model, sizeof f->model, "%s", model);
        /* "@FILE" keeps figures of different files apart, and the title says nothing of it */
        snprintf(f->title, sizeof f->title, "%s%s%s%s%.*s", p->title, model[0] ? ": " : "", model,
                 part[0] && part[0] != '@' ? ", " : "", (int)strcspn(part, "@"), part);
        r->figures[r->n_figures++] = f;
    }
    fig_name(f, &f->sources, source->name);
    if (p->timed && source->others > f->others)
        f->others = source->others;
    return f;
}

/* ---- facts ---- */
void report_note(report *r, const char *model, const char *cache, report_fact fact, double value, double at)
{
    report_cache *c = NULL;
    if (!isfinite(value))
        return;
    for (size_t i = 0; i < r->n_caches && !c; i++)
        if (strcmp(r->caches[i].model, model) == 0 && strncmp(r->caches[i].name, cache, FIG_NAME - 1) == 0)
            c = &r->caches[i];
    if (!c) {
        if (!r->caches)
            r->caches = calloc(REPORT_MOST_CACHES, sizeof *r->caches);
        if (!r->caches || r->n_caches == REPORT_MOST_CACHES) {
            r->failed = true;
            return;
        }
        c = &r->caches[r->n_caches++];
        snprintf(c->model, sizeof c->model, "%s", model);
        snprintf(c->name, sizeof c->name, "%s", cache);
        for (int i = 0; i < N_FACTS; i++)
            c->facts[i] = c->at[i] = NAN;
    }
    if (isfinite(c->facts[fact]) && isfinite(at) && at < c->at[fact])
        return;
    c->facts[fact] = value;
    c->at[fact] = at;
}

size_t report_take(report *r, const json_t *row, const report_file *source)
{
    size_t n = 0;
    for (report_panel *const *p = report_cache_panels; *p; p++)
        n += (*p)(r, row, source);
    for (report_panel *const *p = report_other_panels; *p; p++)
        n += (*p)(r, row, source);
    for (report_panel *const *p = report_bench_panels; *p; p++)
        n += (*p)(r, row, source);
    return n;
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->n_figures; i++) {
        fig_free(r->figures[i]);
        free(r->figures[i]);
    }
    for (size_t i = 0; i < r->n_files; i++)
        json_decref(r->files[i].json);
    free(r->caches);
    *r = (report){0};
}
