/* Choosing a plan: for every pair of methods bits are shared out over layers, heads and sides, and the pair with the
 * smallest expected loss is taken.
 *
 * What a head may get is a row of choices: the bits that its method was measured at (in quarters between them where it
 * takes fractions), each with its bytes and its part of the loss.  Bytes are asked of the codec itself, made for this
 * head.  What a cache takes besides pages (exact rows, tables, scratch) is that of a cache which is opened with the
 * plan: opening reserves addresses, and nothing is filled. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kv/distortion.h"
#include "kv/kv_inner.h"
#include "kv/plan.h"
#include "kv/rates.h"
#include "quant/allocate.h"

enum { MOST_CHOICES = 40, MOST_FAMILIES = 16, MOST_TRIES = 8, REFERENCE_BITS = VQ_PLAN_PROBE_BITS };
#define REFERENCE VQ_PLAN_PROBE_METHOD

/* What a mixture loses to the sum of its parts, unless heads were measured: mixtures whose parts add up to 0.88 of what
 * equal bits lose were measured at 0.9 to 1.3 of it (docs/choosing.md). */
static const double MIXED_MORE = 1.25;

/* One side of all heads with one method. */
typedef struct side_choices {
    char method[VQ_PLAN_METHOD_BYTES];
    uint32_t n;
    double bits[MOST_CHOICES]; /* 0: the method has none */
    vq_page_bytes *pages;      /* [n_heads][n] of a full page */
    size_t *shared;            /* [n_heads][n] */
    double *loss;              /* [n_heads][n] */
} side_choices;

typedef struct chooser {
    const vq_kv_params *params;
    const vq_plan_wish *wish;
    vq_kernels kernels;
    uint32_t n_heads;                     /* of all layers */
    side_choices sides[2][MOST_FAMILIES]; /* keys, values */
    uint32_t n_families[2];
    double *reference[2]; /* [n_heads] error of REFERENCE on each head */
    /* Of the pair that is being tried. */
    vq_plan *plan;
    vq_choice *choices; /* [2 n_heads][MOST_CHOICES]: keys, then values */
    uint32_t *picked;   /* [2 n_heads] */
    uint32_t *kept;     /* [2 n_heads] */
} chooser;

/* ---- choices of one side ---- */

/* Of a curve at bits between its ends: straight lines in the logarithm of the loss. */
static double loss_at(const vq_rate *rates, uint32_t n, double bits)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        if (bits <= rates[i + 1].bits) {
            const double part = (bits - rates[i].bits) / (rates[i + 1].bits - rates[i].bits);
            return exp((1 - part) * log(rates[i].loss) + part * log(rates[i + 1].loss));
        }
    return rates[n - 1].loss;
}

static const vq_rate_curve *find_curve(const char *method)
{
    for (size_t i = 0; i < vq_n_rate_curves; i++)
        if (strcmp(vq_rate_curves[i].method, method) == 0)
            return &vq_rate_curves[i];
    return NULL;
}

/* The bits to choose from.  Fractions are those that losses were measured at: what lies between is worse than a line
 * between them, since some groups of a row then have a bit less than others. */
static void list_bits(side_choices *s, const vq_kv_option_info *info, const vq_rate *rates, uint32_t n)
{
    const double last = rates ? rates[n - 1].bits : info->max;
    s->n = 0;
    if (rates && info->fraction) {
        for (uint32_t i = 0; i < n && s->n < MOST_CHOICES; i++)
            s->bits[s->n++] = rates[i].bits;
        return;
    }
    for (double b = rates ? rates[0].bits : info->min; b < last && s->n < MOST_CHOICES - 1;
         b += info->fraction ? 0.25 : 1)
        s->bits[s->n++] = b;
    s->bits[s->n++] = last;
}

static bool takes_calibration(const vq_method *m)
{
    return m->codec->calibrated || m->codec->calibratable || (m->inner && m->inner->calibrated);
}

static vq_status create(vq_side *side, const chooser *c, const vq_method *m, double bits, uint32_t layer, uint32_t head,
                        bool keys, vq_error *err)
{
    const vq_kv_params *p = c->params;
    vq_method own = *m;
    const vq_kv_option_info *info;
    double *own_bits = vq_method_bits(&own, &info);
    if (own_bits)
        *own_bits = bits;
    const vq_kv_rope *rope = p->ropes && p->ropes[layer].freq ? &p->ropes[layer] : NULL;
    *side = (vq_side){.codec = m->codec,
                      .kernels = &c->kernels,
                      .d = keys ? p->d_k : p->d_v,
                      .rope = keys && m->codec->before_rope ? rope : NULL};
    const vq_codec_env env = {.layer = layer,
                              .head = head,
                              .d = side->d,
                              .keys = keys,
                              .seed = p->seed,
                              .options = own.values,
                              .rope = rope,
                              .calibration = takes_calibration(m) ? p->calibration : NULL,
                              .inner = m->inner,
                              .inner_options = own.inner_values,
                              .kernels = &c->kernels};
    return m->codec->create(&side->state, &env, err);
}

/* Bytes of every head at all bits, and where they are wanted errors (into loss). */
static vq_status measure(side_choices *s, const chooser *c, const vq_method *m, bool keys, bool errors, vq_error *err)
{
    const vq_kv_params *p = c->params;
    const bool own_rows = p->calibration != NULL;
    vq_distortion *d;
    VQ_TRY(vq_distortion_open(&d, p->calibration, keys ? p->d_k : p->d_v, keys, p->n_heads / p->n_kv_heads, err));
    vq_status status = VQ_OK;
    for (uint32_t at = 0; at < c->n_heads && status == VQ_OK; at++) {
        if (errors && (own_rows || at == 0))
            vq_distortion_choose(d, at / p->n_kv_heads, at % p->n_kv_heads);
        for (uint32_t i = 0; i < s->n && status == VQ_OK; i++) {
            vq_side side;
            status = create(&side, c, m, s->bits[i], at / p->n_kv_heads, at % p->n_kv_heads, keys, err);
            if (status != VQ_OK)
                break;
            const size_t to = (size_t)at * s->n + i;
            side.codec->page_bytes(side.state, &s->pages[to]);
            s->shared[to] = vq_side_shared_bytes(&side);
            if (errors)
                s->loss[to] = own_rows || at == 0 ? vq_distortion_measure(d, &side) : s->loss[i];
            side.codec->destroy(side.state);
        }
    }
    vq_distortion_close(d);
    return status;
}

/* What a method of REFERENCE_BITS loses on one side, by the measurements that come with the library. */
static double reference_loss(bool keys)
{
    const vq_rate_curve *curve = find_curve(REFERENCE);
    return curve ? loss_at(keys ? curve->keys : curve->values, curve->n, REFERENCE_BITS) : 1;
}

/* Losses of heads.  A method's loss at each number of bits is what was measured of it; where it was not, what its
 * errors (in s->loss) make of the reference's.  A head has the part of it that was measured of this head at the
 * reference, or an equal one: errors do not tell heads apart, neither by themselves nor beside what was measured
 * (docs/choosing.md). */
static void scale_losses(side_choices *s, const chooser *c, const vq_rate_curve *curve, bool keys)
{
    const double *own = keys ? c->wish->key_losses : c->wish->value_losses, *reference = c->reference[!keys];
    double all = 0;
    for (uint32_t at = 0; at < c->n_heads; at++)
        all += own ? own[at] : reference_loss(keys) / c->n_heads;
    for (uint32_t i = 0; i < s->n; i++) {
        double ratio = 0;
        if (curve)
            ratio = loss_at(keys ? curve->keys : curve->values, curve->n, s->bits[i]) / reference_loss(keys);
        for (uint32_t at = 0; at < c->n_heads && !curve; at++)
            ratio += reference[at] > 0 ? s->loss[(size_t)at * s->n + i] / reference[at] / c->n_heads : 0;
        for (uint32_t at = 0; at < c->n_heads; at++)
            s->loss[(size_t)at * s->n + i] = ratio * (own ? own[at] : all / c->n_heads);
    }
}

static vq_status allocate_side(side_choices *s, uint32_t n_heads, vq_error *err)
{
    const size_t n = (size_t)n_heads * s->n;
    s->pages = calloc(n, sizeof *s->pages);
    s->shared = calloc(n, sizeof *s->shared);
    s->loss = calloc(n, sizeof *s->loss);
    if (!s->pages || !s->shared || !s->loss)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu choices", n);
    return VQ_OK;
}

static void free_side(side_choices *s)
{
    free(s->pages);
    free(s->shared);
    free(s->loss);
}

/* Errors of the reference, by which others are measured. */
static vq_status measure_reference(chooser *c, bool keys, vq_error *err)
{
    side_choices s = {.n = 1, .bits = {REFERENCE_BITS}};
    vq_method m;
    VQ_TRY(vq_method_parse(&m, REFERENCE, err));
    vq_status status = allocate_side(&s, c->n_heads, err);
    if (status == VQ_OK)
        status = measure(&s, c, &m, keys, true, err);
    for (uint32_t at = 0; status == VQ_OK && at < c->n_heads; at++)
        c->reference[!keys][at] = s.loss[at];
    free_side(&s);
    return status;
}

/* Whether a cache can have the method on one side: heads of its size, a calibration that has what it needs. */
static vq_status check_opens(const chooser *c, const char *text, bool keys, vq_error *err)
{
    vq_kv_params p = *c->params;
    vq_kv *kv;
    p.plan = NULL;
    p.layers = p.evict = NULL;
    p.keys = keys ? text : NULL;
    p.values = keys ? NULL : text;
    VQ_TRY(vq_kv_open(&kv, &p, err));
    vq_kv_close(kv);
    return VQ_OK;
}

/* Adds a method to the side's families. */
static vq_status add_family(chooser *c, const char *text, bool keys, vq_error *err)
{
    side_choices *s = &c->sides[!keys][c->n_families[!keys]];
    vq_method m;
    VQ_TRY(vq_method_parse(&m, text, err));
    if (m.calibration[0])
        return vq_fail(err, VQ_ERR_ARG,
                       "%s: the calibration goes with the cache, not with a method whose bits are chosen",
                       m.codec->name);
    snprintf(s->method, sizeof s->method, "%s", text);
    VQ_TRY(check_opens(c, text, keys, err));
    const vq_rate_curve *curve = find_curve(text);
    const vq_kv_option_info *info;
    if (vq_method_bits(&m, &info))
        list_bits(s, info, curve ? keys ? curve->keys : curve->values : NULL, curve ? curve->n : 0);
    else
        s->n = 1, s->bits[0] = 0;
    c->n_families[!keys]++; /* from here on the arrays are the chooser's to free */
    VQ_TRY(allocate_side(s, c->n_heads, err));
    VQ_TRY(measure(s, c, &m, keys, !curve, err));
    scale_losses(s, c, curve, keys);
    return VQ_OK;
}

static vq_status add_families(chooser *c, vq_error *err)
{
    for (int side = 0; side < 2; side++) {
        const bool keys = side == 0;
        VQ_TRY(measure_reference(c, keys, err));
        const char *wanted = keys ? c->wish->keys : c->wish->values;
        if (wanted) {
            const vq_status status = add_family(c, wanted, keys, err);
            if (status != VQ_OK)
                return vq_fail_prefix(err, status, keys ? "keys" : "values");
            continue;
        }
        for (size_t i = 0; i < vq_n_rate_curves && c->n_families[side] < MOST_FAMILIES; i++) {
            if (vq_rate_curves[i].is_candidate && check_opens(c, vq_rate_curves[i].method, keys, NULL) == VQ_OK)
                VQ_TRY(add_family(c, vq_rate_curves[i].method, keys, err));
        }
        if (c->n_families[side] == 0)
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "no method fits heads of %u values",
                           keys ? c->params->d_k : c->params->d_v);
    }
    return VQ_OK;
}

/* ---- a pair of methods ---- */

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Rows that a head of a full cache holds as codes: pages begin after the sinks, and go when a window has left them
 * whole.
 */
static uint32_t full_rows(const vq_kv *kv, const vq_kv_layer *layer)
{
    vq_kv_layer l = *layer;
    l.n_rows = kv->n_ctx;
    l.coded_end = vq_kv_coded_end(&l, l.n_rows);
    const uint32_t seen = vq_kv_first_seen(&l), gone = seen > l.sinks ? (seen - l.sinks) / VQ_PAGE_ROWS : 0;
    const uint32_t first = l.sinks + gone * VQ_PAGE_ROWS;
    return l.coded_end > first ? l.coded_end - first : 0;
}

static uint32_t full_pages(const vq_kv *kv, const vq_kv_layer *l)
{
    return (full_rows(kv, l) + VQ_PAGE_ROWS - 1) / VQ_PAGE_ROWS;
}

static bool by_bits(const chooser *c) { return c->wish->most_bits > 0; }

/* Of one side of a head, as the limit counts it: padding is memory, but no part of what a value costs. */
static uint64_t cost(const chooser *c, const vq_kv *kv, const side_choices *s, size_t at, const vq_kv_layer *l)
{
    const size_t bytes = s->pages[at].codes + s->pages[at].scales;
    return s->shared[at] +
           (by_bits(c) ? (uint64_t)full_pages(kv, l) * bytes : (uint64_t)vq_kv_most_pages(kv, l) * align64(bytes));
}

static void write_plan(chooser *c, const side_choices *k, const side_choices *v)
{
    memcpy(c->plan->keys, k->method, sizeof c->plan->keys);
    memcpy(c->plan->values, v->method, sizeof c->plan->values);
    for (uint32_t at = 0; at < c->n_heads; at++) {
        c->plan->key_bits[at] = k->bits[c->picked[at]];
        c->plan->value_bits[at] = v->bits[c->picked[c->n_heads + at]];
    }
}

/* A cache with the picked choices, and what they come to in it. */
static vq_status open_picked(vq_kv **out, chooser *c, const side_choices *k, const side_choices *v,
                             vq_plan_candidate *sums, vq_error *err)
{
    vq_kv_params p = *c->params;
    p.keys = p.values = p.layers = NULL;
    p.plan = c->plan;
    write_plan(c, k, v);
    VQ_TRY(vq_kv_open(out, &p, err));
    const vq_kv *kv = *out;
    uint64_t n_bytes = 0, n_values = 0;
    *sums = (vq_plan_candidate){.n_bytes = vq_kv_most_bytes(kv)};
    memcpy(sums->keys, k->method, sizeof sums->keys);
    memcpy(sums->values, v->method, sizeof sums->values);
    for (uint32_t at = 0; at < c->n_heads; at++) {
        const vq_kv_layer *l = &kv->layers[at / kv->n_kv_heads];
        const uint32_t pick_k = c->picked[at], pick_v = c->picked[c->n_heads + at];
        const size_t i = (size_t)at * k->n + pick_k, j = (size_t)at * v->n + pick_v;
        n_bytes += k->shared[i] + v->shared[j] +
                   (uint64_t)full_pages(kv, l) *
                       (k->pages[i].codes + k->pages[i].scales + v->pages[j].codes + v->pages[j].scales);
        n_values += (uint64_t)full_rows(kv, l) * (kv->d_k + kv->d_v);
        sums->key_bits += k->bits[pick_k] / c->n_heads;
        sums->value_bits += v->bits[pick_v] / c->n_heads;
        sums->loss += k->loss[i] + v->loss[j];
    }
    sums->bits = n_values ? 8 * (double)n_bytes / (double)n_values : 0;
    return VQ_OK;
}

static void list_choices(chooser *c, const vq_kv *kv, const side_choices *k, const side_choices *v, uint32_t n)
{
    const side_choices *sides[2] = {k, v};
    for (int side = 0; side < 2; side++)
        for (uint32_t at = 0; at < c->n_heads; at++)
            for (uint32_t i = 0; i < n; i++) {
                const side_choices *s = sides[side];
                const size_t from = (size_t)at * s->n + (i < s->n ? i : s->n - 1); /* the last one fills up */
                c->choices[((size_t)side * c->n_heads + at) * n + i] =
                    (vq_choice){.cost = cost(c, kv, s, from, &kv->layers[at / kv->n_kv_heads]), .loss = s->loss[from]};
            }
}

static uint64_t picked_cost(const chooser *c, uint32_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < (size_t)2 * c->n_heads; i++)
        sum += c->choices[i * n + c->picked[i]].cost;
    return sum;
}

static bool is_within(const chooser *c, const vq_plan_candidate *got)
{
    return by_bits(c) ? got->bits <= c->wish->most_bits : got->n_bytes <= c->wish->most_bytes;
}

/* What the limit leaves for the picked choices, in the light of a cache that was opened with them. */
static double budget_of(const chooser *c, const vq_kv *kv, const vq_plan_candidate *now, uint32_t n)
{
    if (!by_bits(c))
        return (double)c->wish->most_bytes - (double)now->n_bytes + (double)picked_cost(c, n);
    double n_values = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        n_values += (double)kv->n_kv_heads * full_rows(kv, &kv->layers[i]) * (kv->d_k + kv->d_v);
    return floor(c->wish->most_bits * n_values / 8);
}

/* The most bits that keys and values of all heads may have alike; fits false where there are none. */
static vq_status try_even(chooser *c, const side_choices *k, const side_choices *v, vq_plan_candidate *out,
                          vq_error *err)
{
    out->fits = false;
    for (uint32_t i = k->n; i-- > 0 && !out->fits;) {
        uint32_t j = 0;
        while (j < v->n && v->bits[j] != k->bits[i])
            j++;
        if (j == v->n)
            continue;
        for (uint32_t at = 0; at < c->n_heads; at++) {
            c->picked[at] = i;
            c->picked[c->n_heads + at] = j;
        }
        vq_kv *kv;
        VQ_TRY(open_picked(&kv, c, k, v, out, err));
        out->fits = is_within(c, out);
        vq_kv_close(kv);
    }
    return VQ_OK;
}

/* What was picked, or equal bits where it is a mixture that is not expected to lose less. */
static vq_status prefer_even(chooser *c, const side_choices *k, const side_choices *v, vq_plan_candidate *out,
                             vq_error *err)
{
    if (c->wish->key_losses)
        return VQ_OK;
    vq_plan_candidate mixed = *out;
    mixed.loss *= MIXED_MORE;
    memcpy(c->kept, c->picked, (size_t)2 * c->n_heads * sizeof *c->kept);
    out->fits = false;
    if (strcmp(k->method, v->method) == 0)
        VQ_TRY(try_even(c, k, v, out, err));
    if (out->fits && out->loss <= mixed.loss)
        return VQ_OK;
    *out = mixed;
    memcpy(c->picked, c->kept, (size_t)2 * c->n_heads * sizeof *c->kept);
    write_plan(c, k, v);
    return VQ_OK;
}

/* The best of one pair; where the limit is too low for it, the smallest cache, with fits false. */
static vq_status try_pair(chooser *c, const side_choices *k, const side_choices *v, vq_plan_candidate *out,
                          vq_error *err)
{
    const uint32_t n = k->n > v->n ? k->n : v->n;
    const size_t n_items = (size_t)2 * c->n_heads;
    vq_kv *kv;
    memset(c->picked, 0, n_items * sizeof *c->picked);
    VQ_TRY(open_picked(&kv, c, k, v, out, err));
    list_choices(c, kv, k, v, n);
    vq_kv_close(kv);
    vq_allocate_least(c->picked, c->choices, n_items, n);
    VQ_TRY(open_picked(&kv, c, k, v, out, err));
    out->fits = is_within(c, out);
    double budget = budget_of(c, kv, out, n);
    vq_kv_close(kv);
    if (!out->fits)
        return VQ_OK;
    /* Areas of heads are rounded up to pages of the system's, which a budget of bytes does not foresee. */
    for (int i = 0; i < MOST_TRIES; i++) {
        vq_plan_candidate got;
        if (vq_allocate(c->picked, c->choices, n_items, n, (uint64_t)budget, err) != VQ_OK)
            break; /* what was found first it is */
        VQ_TRY(open_picked(&kv, c, k, v, &got, err));
        const double left = budget_of(c, kv, &got, n);
        vq_kv_close(kv);
        got.fits = is_within(c, &got);
        if (got.fits) {
            *out = got;
            return prefer_even(c, k, v, out, err);
        }
        budget = left < budget - 1 ? left : budget - 1;
        if (budget < 0)
            break;
    }
    vq_allocate_least(c->picked, c->choices, n_items, n);
    write_plan(c, k, v);
    return VQ_OK;
}

/* ---- all pairs ---- */

static bool is_better(const vq_plan_candidate *a, const vq_plan_candidate *b)
{
    if (a->fits != b->fits)
        return a->fits;
    if (!a->fits)
        return a->n_bytes < b->n_bytes;
    return a->loss != b->loss ? a->loss < b->loss : a->n_bytes < b->n_bytes;
}

/* Into a list of the best so far; what is last falls off when it is full. */
static void insert(vq_plan_candidate *list, size_t *n, const vq_plan_candidate *new)
{
    size_t at = *n < VQ_PLAN_MOST_CANDIDATES ? (*n)++ : *n - 1;
    if (at + 1 == VQ_PLAN_MOST_CANDIDATES && at + 1 == *n && !is_better(new, &list[at]) && list[at].keys[0])
        return;
    for (; at > 0 && is_better(new, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = *new;
}

static void copy_plan(vq_plan *to, const vq_plan *from)
{
    const size_t n = (size_t)from->n_layers * from->n_kv_heads;
    memcpy(to->keys, from->keys, sizeof to->keys);
    memcpy(to->values, from->values, sizeof to->values);
    memcpy(to->key_bits, from->key_bits, n * sizeof *to->key_bits);
    memcpy(to->value_bits, from->value_bits, n * sizeof *to->value_bits);
}

static vq_status try_all(chooser *c, vq_plan *best, vq_plan_candidate *list, size_t *n, vq_error *err)
{
    for (uint32_t i = 0; i < c->n_families[0]; i++)
        for (uint32_t j = 0; j < c->n_families[1]; j++) {
            vq_plan_candidate got;
            VQ_TRY(try_pair(c, &c->sides[0][i], &c->sides[1][j], &got, err));
            if (*n == 0 || is_better(&got, &list[0]))
                copy_plan(best, c->plan);
            insert(list, n, &got);
        }
    return VQ_OK;
}

static vq_status nothing_fits(const chooser *c, const vq_plan_candidate *list, size_t n, vq_error *err)
{
    if (!by_bits(c))
        return vq_fail(err, VQ_ERR_FULL,
                       "a budget of %llu bytes: the smallest possible cache for %u tokens takes %llu (keys %s, values "
                       "%s, at %.3g and %.3g bits)",
                       (unsigned long long)c->wish->most_bytes, c->params->n_ctx, (unsigned long long)list[0].n_bytes,
                       list[0].keys, list[0].values, list[0].key_bits, list[0].value_bits);
    const vq_plan_candidate *least = &list[0];
    for (size_t i = 1; i < n; i++)
        if (list[i].bits < least->bits)
            least = &list[i];
    return vq_fail(err, VQ_ERR_FULL, "%g bits a value: the smallest possible at %u tokens is %.4g (keys %s, values %s)",
                   c->wish->most_bits, c->params->n_ctx, ceil(least->bits * 1000) / 1000, least->keys, least->values);
}

static vq_status check_wish(const vq_plan_wish *w, size_t n_heads, vq_error *err)
{
    const double *losses[2] = {w->key_losses, w->value_losses};
    if (!losses[0] != !losses[1])
        return vq_fail(err, VQ_ERR_ARG, "losses of heads are given for one side and not for the other");
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; losses[side] && i < n_heads; i++)
            if (!(losses[side][i] >= 0 && losses[side][i] < 1e6))
                return vq_fail(err, VQ_ERR_ARG, "the loss of head %zu is %g, allowed are 0 to 1e6", i, losses[side][i]);
    if ((w->most_bytes > 0) == (w->most_bits > 0))
        return vq_fail(err, VQ_ERR_ARG, "a plan is chosen for a limit in bytes or for one in bits: one of the two");
    if (!isfinite(w->most_bits) || w->most_bits < 0)
        return vq_fail(err, VQ_ERR_ARG, "most_bits is %g", w->most_bits);
    return VQ_OK;
}

static vq_status choose(chooser *c, vq_plan *best, vq_plan_candidate *list, size_t *n, vq_error *err)
{
    c->choices = calloc((size_t)2 * c->n_heads * MOST_CHOICES, sizeof *c->choices);
    c->picked = calloc((size_t)2 * c->n_heads, sizeof *c->picked);
    c->kept = calloc((size_t)2 * c->n_heads, sizeof *c->kept);
    for (int side = 0; side < 2; side++)
        c->reference[side] = calloc(c->n_heads, sizeof(double));
    if (!c->choices || !c->picked || !c->kept || !c->reference[0] || !c->reference[1])
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to choose for %u heads", c->n_heads);
    VQ_TRY(vq_plan_new(&c->plan, c->params->n_layers, c->params->n_kv_heads, err));
    VQ_TRY(add_families(c, err));
    VQ_TRY(try_all(c, best, list, n, err));
    return list[0].fits ? VQ_OK : nothing_fits(c, list, *n, err);
}

static double side_loss(const char *text, bool keys)
{
    vq_method m, known;
    const vq_kv_option_info *info;
    if (vq_method_parse(&m, text, NULL) != VQ_OK)
        return NAN;
    const double *bits = vq_method_bits(&m, &info);
    for (size_t i = 0; i < vq_n_rate_curves; i++) {
        const vq_rate_curve *curve = &vq_rate_curves[i];
        if (vq_method_parse(&known, curve->method, NULL) != VQ_OK || known.codec != m.codec)
            continue;
        double *known_bits = vq_method_bits(&known, &info);
        if (bits && known_bits)
            *known_bits = *bits;
        if (known.inner != m.inner || memcmp(known.values, m.values, m.codec->n_options * sizeof m.values[0]) != 0 ||
            (m.inner && memcmp(known.inner_values, m.inner_values, m.inner->n_options * sizeof m.values[0]) != 0))
            continue;
        const vq_rate *rates = keys ? curve->keys : curve->values;
        if (!bits)
            return rates[0].loss;
        if (*bits >= rates[0].bits && *bits <= rates[curve->n - 1].bits)
            return loss_at(rates, curve->n, *bits);
    }
    return NAN;
}

double vq_plan_expected_loss(const char *keys, const char *values)
{
    return side_loss(keys, true) + side_loss(values, false);
}

vq_status vq_plan_choose(vq_plan **out, const vq_kv_params *params, const vq_plan_wish *wish,
                         vq_plan_candidate *candidates, size_t *n_candidates, vq_error *err)
{
    *out = NULL;
    vq_plan_candidate own[VQ_PLAN_MOST_CANDIDATES] = {0}, *list = candidates ? candidates : own;
    size_t n = 0;
    VQ_TRY(vq_kv_check_params(params, err));
    VQ_TRY(check_wish(wish, (size_t)params->n_layers * params->n_kv_heads, err));
    vq_plan *best;
    VQ_TRY(vq_plan_new(&best, params->n_layers, params->n_kv_heads, err));
    best->model_hash = params->model_hash;
    chooser *c = calloc(1, sizeof *c);
    vq_status status = VQ_OK;
    if (c) {
        c->params = params;
        c->wish = wish;
        c->n_heads = params->n_layers * params->n_kv_heads;
        vq_kernels_init(&c->kernels, vq_cpu_detect());
        status = choose(c, best, list, &n, err);
        for (int side = 0; side < 2; side++)
            for (uint32_t i = 0; i < c->n_families[side]; i++)
                free_side(&c->sides[side][i]);
        vq_plan_close(c->plan);
        free(c->reference[0]);
        free(c->reference[1]);
        free(c->choices);
        free(c->picked);
        free(c->kept);
        free(c);
    } else {
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory to choose a plan");
    }
    if (n_candidates)
        *n_candidates = n;
    if (status != VQ_OK) {
        vq_plan_close(best);
        return status;
    }
    *out = best;
    return VQ_OK;
}
