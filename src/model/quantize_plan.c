/* Which tensor gets which type: the bits that were asked for, rules by name, and bits on average.
 *
 * An average is made of 2, 3 and 4 bits.  Every matrix begins at 2; then the matrix where one more bit takes the most
 * relative error (squared) off the sum over all matrices, for each bit that it costs, gets it, until no bit is left.
 * Rotated rows are normal whatever they were, so that the error at so many bits is the same for all matrices and small
 * ones (k and v, where heads are shared) win: each product counts the same, however large. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/quantize.h"
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

/* bits [n_tensors]: those at OPEN become 2, 3 or 4. */
static void spread_bits(uint32_t *bits, const vq_gguf *g, double average)
{
    double budget = 0, n_values;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (bits[i] != OPEN)
            continue;
        n_values = (double)g->tensors[i].dims[0] * (double)g->tensors[i].dims[1];
        budget += (average - 2) * n_values;
        bits[i] = OPEN + 2;
    }
    for (;;) {
        uint64_t best = UINT64_MAX;
        double most = 0;
        for (uint64_t i = 0; i < g->n_tensors; i++) {
            n_values = (double)g->tensors[i].dims[0] * (double)g->tensors[i].dims[1];
            if (bits[i] < OPEN + 2 || bits[i] >= OPEN + 4 || n_values > budget + 0.5)
                continue;
            const double now = vq_quantize_error(bits[i] - OPEN), then = vq_quantize_error(bits[i] - OPEN + 1);
            const double gain = (now * now - then * then) / n_values;
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        if (best == UINT64_MAX)
            break;
        budget -= (double)g->tensors[best].dims[0] * (double)g->tensors[best].dims[1];
        bits[best]++;
    }
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (bits[i] > OPEN)
            bits[i] -= OPEN;
}

static vq_status plan(vq_type *types, uint32_t *bits, rule *rules, const vq_gguf *g, const vq_quantize_params *p,
                      vq_error *err)
{
    for (size_t i = 0; i < p->n_rules; i++)
        VQ_TRY(read_rule(p->rules[i], &rules[i], err));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const vq_tensor *t = &g->tensors[i];
        bits[i] = KEEP;
        if (!is_matrix(t))
            continue;
        bits[i] = bits_of_rules(t, rules, p->n_rules);
        if (bits[i] == OPEN && (!in_layer(t) || p->bits == 0))
            bits[i] = KEEP;
        else if (bits[i] == OPEN && p->bits == floorf(p->bits))
            bits[i] = (uint32_t)p->bits;
    }
    for (size_t i = 0; i < p->n_rules; i++)
        if (!rules[i].used)
            return vq_fail(err, VQ_ERR_ARG, "rule '%.200s' matches no matrix of the file", p->rules[i]);
    spread_bits(bits, g, (double)p->bits);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        VQ_TRY(type_of(&g->tensors[i], bits[i], p->qr, &types[i], err));
    return VQ_OK;
}

vq_status vq_quantize_plan(vq_type *types, const vq_gguf *g, const vq_quantize_params *p, vq_error *err)
{
    if (p->bits != 0 && !(p->bits >= 2 && p->bits <= 4))
        return vq_fail(err, VQ_ERR_ARG, "%g bits, must be 2 to 4, or 0 to keep what no rule names", (double)p->bits);
    uint32_t *bits = calloc(g->n_tensors + 1, sizeof *bits);
    rule *rules = calloc(p->n_rules + 1, sizeof *rules);
    const vq_status status =
        bits && rules ? plan(types, bits, rules, g, p, err)
                      : vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)g->n_tensors);
    free(bits);
    free(rules);
    return status;
}
