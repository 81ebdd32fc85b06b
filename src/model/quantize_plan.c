/* Which tensor gets which type: the bits that were asked for, rules by name, and bits on average.
 *
 * An average is made of 2, 3 and 4 bits, shared out so that losses together are small (quant/allocate.h).  Rotated rows
 * are normal whatever they were, so that the relative error at so many bits is the same for all matrices.  Its square
 * is the loss where nothing else is known: small matrices (k and v, where heads are shared) then win, as each counts
 * the same, however large.  Where the loss of each was measured at 2 bits, at others it is that by the ratio of
 * squares. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/quantize.h"
#include "quant/allocate.h"
#include "quant/linear.h"

enum { NAME_BYTES = 96, KEEP = 0, OPEN = 255 };

double vq_quantize_error(uint32_t bits)
{
    static const double errors[] = {0.343, 0.186, 0.0975};
    return errors[bits - 2];
}

static bool ends_with(vq_str name, const char *end)
{
    const size_t n = strlen(end);
    return name.n_bytes >= n && memcmp(name.at + name.n_bytes - n, end, n) == 0;
}

static bool is_matrix(const vq_tensor *t) { return t->n_dims == 2 && t->dims[1] > 1 && ends_with(t->name, ".weight"); }

static bool in_layer(const vq_tensor *t) { return t->name.n_bytes > 4 && memcmp(t->name.at, "blk.", 4) == 0; }

static bool is_embedding(const vq_tensor *t)
{
    return t->name.n_bytes == 17 && memcmp(t->name.at, "token_embd.weight", 17) == 0;
}

/* ---- rules ---- */

typedef struct rule {
    char glob[NAME_BYTES];
    uint32_t bits; /* KEEP, 2, 3, 4, 8 */
    bool used;
} rule;

static vq_status read_rule(const char *text, rule *out, vq_error *err)
{
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) >= NAME_BYTES)
        return vq_fail(err, VQ_ERR_ARG, "rule '%.200s': must be GLOB=BITS, with a glob of 1 to %d bytes", text,
                       NAME_BYTES - 1);
    memcpy(out->glob, text, (size_t)(equals - text));
    out->glob[equals - text] = 0;
    static const char *const values[] = {"keep", "2", "3", "4", "8"};
    static const uint32_t bits[] = {KEEP, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        if (strcmp(equals + 1, values[i]) == 0) {
            out->bits = bits[i];
            return VQ_OK;
        }
    }
    return vq_fail(err, VQ_ERR_ARG, "rule '%.200s': '%.40s' must be 2, 3, 4, 8 or keep", text, equals + 1);
}

/* Of the last rule that matches, or OPEN. */
static uint32_t bits_of_rules(const vq_tensor *t, rule *rules, size_t n)
{
    char name[NAME_BYTES];
    uint32_t bits = OPEN;
    snprintf(name, sizeof name, "%.*s", (int)t->name.n_bytes, t->name.at);
    for (size_t i = 0; i < n; i++) {
        if (fnmatch(rules[i].glob, name, 0) == 0) {
            rules[i].used = true;
            bits = rules[i].bits;
        }
    }
    return bits;
}

/* ---- what can be ---- */

static vq_status check_packed(const vq_tensor *t, uint32_t bits, bool qr, vq_error *err)
{
    const int n = (int)t->name.n_bytes;
    if (is_embedding(t))
        return vq_fail(err, VQ_ERR_ARG, "%.*s cannot take %u bits: rows are looked up one by one; 8 or keep", n,
                       t->name.at, bits);
    if (t->dims[0] > UINT32_MAX || t->dims[1] > UINT32_MAX)
        return vq_fail(err, VQ_ERR_ARG, "%.*s has too many rows or columns to pack", n, t->name.at);
    vq_status status = vq_linear_check(bits, (uint32_t)t->dims[0], (uint32_t)t->dims[1], err);
    if (status == VQ_OK && !qr && !vq_input_rotation_fits((uint32_t)t->dims[0]))
        status = vq_fail(err, VQ_ERR_ARG, "rows of %llu values cannot be rotated", (unsigned long long)t->dims[0]);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "%.*s", n, t->name.at);
}

static vq_status type_of(const vq_tensor *t, uint32_t bits, bool qr, vq_type *out, vq_error *err)
{
    *out = t->type;
    if (bits == KEEP || vq_type_packed_bits(t->type) == bits)
        return VQ_OK;
    if (vq_type_packed_bits(t->type))
        return vq_fail(err, VQ_ERR_ARG, "%.*s is %s already: quantise from the source of this reservoir",
                       (int)t->name.n_bytes, t->name.at, vq_type_name(t->type));
    if (bits == 8) {
        if (t->dims[0] % 32)
            return vq_fail(err, VQ_ERR_ARG, "%.*s cannot take 8 bits: rows of %llu values are no multiple of 32",
                           (int)t->name.n_bytes, t->name.at, (unsigned long long)t->dims[0]);
        *out = VQ_TYPE_Q8_0;
        return VQ_OK;
    }
    VQ_TRY(check_packed(t, bits, qr, err));
    *out = vq_linear_type(bits);
    return VQ_OK;
}

/* ---- bits on average ---- */

enum { LEAST_BITS = 2, N_BITS = 3 };

/* What there is to choose for the matrices that no rule decides. */
typedef struct spread {
    bool *open;         /* [n_tensors] */
    vq_choice *choices; /* [n_open][N_BITS] */
    uint32_t *picked;   /* [n_open] */
    size_t n_open;
    uint64_t n_values;
} spread;

static uint64_t n_values_of(const vq_tensor *t) { return t->dims[0] * t->dims[1]; }

/* Costs are bits. */
static void list_choices(spread *s, const double *losses, const vq_gguf *g)
{
    const double least = vq_quantize_error(VQ_SENSITIVITY_BITS);
    vq_choice *c = s->choices;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (!s->open[i])
            continue;
        const uint64_t n = n_values_of(&g->tensors[i]);
        s->n_values += n;
        for (uint32_t b = LEAST_BITS; b < LEAST_BITS + N_BITS; b++) {
            const double error = vq_quantize_error(b) / least;
            *c++ = (vq_choice){.cost = b * n, .loss = (isnan(losses[i]) ? 1 : losses[i]) * error * error};
        }
    }
}

static vq_status choose(spread *s, uint32_t *bits, double *losses, const vq_gguf *g, double average,
                        const vq_sensitivity_source *sensitivity, vq_error *err)
{
    for (uint64_t i = 0; i < g->n_tensors; i++)
        s->open[i] = bits[i] == OPEN;
    if (sensitivity)
        VQ_TRY(sensitivity->measure(sensitivity->arg, g, s->open, losses, err));
    list_choices(s, losses, g);
    VQ_TRY(vq_allocate(s->picked, s->choices, s->n_open, N_BITS, (uint64_t)(average * (double)s->n_values + 0.5), err));
    const uint32_t *picked = s->picked;
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (s->open[i])
            bits[i] = LEAST_BITS + *picked++;
    return VQ_OK;
}

/* bits [n_tensors]: those at OPEN become 2, 3 or 4. */
static vq_status spread_bits(uint32_t *bits, double *losses, const vq_gguf *g, double average,
                             const vq_sensitivity_source *sensitivity, vq_error *err)
{
    spread s = {0};
    for (uint64_t i = 0; i < g->n_tensors; i++)
        s.n_open += bits[i] == OPEN;
    if (s.n_open == 0)
        return VQ_OK;
    s.open = calloc(g->n_tensors, sizeof *s.open);
    s.choices = calloc(s.n_open, N_BITS * sizeof *s.choices);
    s.picked = calloc(s.n_open, sizeof *s.picked);
    const vq_status status = s.open && s.choices && s.picked
                                 ? choose(&s, bits, losses, g, average, sensitivity, err)
                                 : vq_fail(err, VQ_ERR_NOMEM, "no memory to share bits out");
    free(s.open);
    free(s.choices);
    free(s.picked);
    return status;
}

/* Of a matrix that no rule decides. */
static uint32_t bits_of_all(const vq_tensor *t, const vq_quantize_params *p, bool measures)
{
    if (!in_layer(t) || p->bits == 0)
        return KEEP;
    return p->bits == floorf(p->bits) && !measures ? (uint32_t)p->bits : OPEN;
}

static vq_status plan(vq_type *types, double *losses, uint32_t *bits, rule *rules, const vq_gguf *g,
                      const vq_quantize_params *p, const vq_sensitivity_source *sensitivity, vq_error *err)
{
    for (size_t i = 0; i < p->n_rules; i++)
        VQ_TRY(read_rule(p->rules[i], &rules[i], err));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const vq_tensor *t = &g->tensors[i];
        bits[i] = KEEP;
        losses[i] = NAN;
        if (!is_matrix(t))
            continue;
        bits[i] = bits_of_rules(t, rules, p->n_rules);
        if (bits[i] == OPEN)
            bits[i] = bits_of_all(t, p, sensitivity != NULL);
    }
    for (size_t i = 0; i < p->n_rules; i++)
        if (!rules[i].used)
            return vq_fail(err, VQ_ERR_ARG, "rule '%.200s' matches no matrix of the file", p->rules[i]);
    VQ_TRY(spread_bits(bits, losses, g, (double)p->bits, sensitivity, err));
    for (uint64_t i = 0; i < g->n_tensors; i++)
        VQ_TRY(type_of(&g->tensors[i], bits[i], p->qr, &types[i], err));
    return VQ_OK;
}

vq_status vq_quantize_plan(vq_type *types, double *losses, const vq_gguf *g, const vq_quantize_params *p,
                           const vq_sensitivity_source *sensitivity, vq_error *err)
{
    if (p->bits != 0 && !(p->bits >= 2 && p->bits <= 4))
        return vq_fail(err, VQ_ERR_ARG, "%g bits, must be 2 to 4, or 0 to keep what no rule names", (double)p->bits);
    if (sensitivity && !(p->bits > 2 && p->bits < 4))
        return vq_fail(err, VQ_ERR_ARG,
                       "sensitivity shares bits out, and %g bits leave nothing to share; it takes more "
                       "than 2 and less than 4 on average",
                       (double)p->bits);
    uint32_t *bits = calloc(g->n_tensors + 1, sizeof *bits);
    rule *rules = calloc(p->n_rules + 1, sizeof *rules);
    const vq_status status =
        bits && rules ? plan(types, losses, bits, rules, g, p, sensitivity, err)
                      : vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)g->n_tensors);
    free(bits);
    free(rules);
    return status;
}
