/* What a policy has seen, in a saved cache: the policy itself beside the cache's other parameters, and behind the rows
 *
 *     state        u32 each   phase, n_generated
 *     for each layer:         seen_end u32, ring_first u32, then the queries in between, f32 [n_heads][d_k] each
 *                             (policies that look at the last ones), or for each kv head n u32 and the weights seen,
 *                             f32 [n] (those that look at all); nothing for others
 */
#include <inttypes.h>
#include <string.h>

#include "kv/evict.h"

static void put_u32(vq_evict_put put, void *arg, uint32_t x) { put(arg, &x, sizeof x); }

static void put_f64(vq_evict_put put, void *arg, double x) { put(arg, &x, sizeof x); }

void vq_evictor_put_choice(const vq_kv *kv, vq_evict_put put, void *arg)
{
    const vq_policy_choice *c = kv->evict ? &kv->evict->choice : NULL;
    const uint32_t n = c ? (uint32_t)strlen(c->policy->name) : 0;
    put_u32(put, arg, n);
    if (!c)
        return;
    put(arg, c->policy->name, n);
    put_u32(put, arg, (uint32_t)c->policy->n_options);
    for (size_t i = 0; i < c->policy->n_options; i++)
        put_f64(put, arg, c->values[i]);
    put_f64(put, arg, c->budget);
    put_u32(put, arg, c->is_percent);
    put_u32(put, arg, c->sinks);
    put_u32(put, arg, c->recent);
    put_u32(put, arg, c->every);
    put_u32(put, arg, c->prompt);
}

vq_status vq_evictor_check_choice(const vq_kv *kv, const char *name, vq_cursor *c, vq_error *err)
{
    const vq_policy_choice *want = kv->evict ? &kv->evict->choice : NULL;
    const uint32_t n = vq_cursor_u32(c);
    const uint8_t *policy = vq_cursor_take(c, n);
    if (c->bad)
        return VQ_OK; /* the caller sees that */
    const char *wanted = want ? want->policy->name : "";
    if (n != strlen(wanted) || memcmp(policy, wanted, n) != 0)
        return vq_fail(err, VQ_ERR_MISMATCH, "%s: evict is '%.*s' in the file, '%s' in the cache", name,
                       (int)(n < 64 ? n : 64), (const char *)policy, wanted);
    if (!want)
        return VQ_OK;
    const uint32_t n_options = vq_cursor_u32(c);
    if (!c->bad && n_options != want->policy->n_options)
        return vq_fail(err, VQ_ERR_MISMATCH, "%s: evict: %s has %u options in the file, %zu in this version", name,
                       wanted, n_options, want->policy->n_options);
    for (uint32_t i = 0; i < n_options && !c->bad; i++) {
        const double value = vq_cursor_f64(c);
        if (!c->bad && memcmp(&value, &want->values[i], sizeof value) != 0)
            return vq_fail(err, VQ_ERR_MISMATCH, "%s: evict: option %s is %g in the file, %g in the cache", name,
                           want->policy->options[i].name, value, want->values[i]);
    }
    const double budget = vq_cursor_f64(c);
    if (!c->bad && memcmp(&budget, &want->budget, sizeof budget) != 0)
        return vq_fail(err, VQ_ERR_MISMATCH, "%s: evict: budget is %g in the file, %g in the cache", name, budget,
                       want->budget);
    const struct {
        const char *name;
        uint32_t value;
    } fields[] = {{"budget in percent", want->is_percent},
                  {"sinks", want->sinks},
                  {"recent", want->recent},
                  {"every", want->every},
                  {"prompt", want->prompt}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const uint32_t value = vq_cursor_u32(c);
        if (!c->bad && value != fields[i].value)
            return vq_fail(err, VQ_ERR_MISMATCH, "%s: evict: %s is %" PRId32 " in the file, %" PRId32 " in the cache",
                           name, fields[i].name, (int32_t)value, (int32_t)fields[i].value);
    }
    return VQ_OK;
}

static bool adds_up(const vq_evictor *e)
{
    return e->choice.policy->sees == VQ_SEES_ALL || e->choice.policy->sees == VQ_SEES_LATER;
}

static float *query_at(const vq_kv *kv, uint32_t layer, uint32_t row)
{
    const uint32_t room = kv->evict->choice.policy->n_queries;
    return kv->evict->ring + ((size_t)layer * room + row % room) * kv->n_heads * kv->d_k;
}

void vq_evictor_put_state(const vq_kv *kv, vq_evict_put put, void *arg)
{
    const vq_evictor *e = kv->evict;
    if (!e)
        return;
    put_u32(put, arg, e->phase);
    put_u32(put, arg, e->n_generated);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        put_u32(put, arg, e->seen_end[i]);
        put_u32(put, arg, e->ring ? e->ring_first[i] : 0);
        for (uint32_t row = e->ring ? e->ring_first[i] : 0; e->ring && row < e->seen_end[i]; row++)
            put(arg, query_at(kv, i, row), (size_t)kv->n_heads * kv->d_k * sizeof(float));
        for (uint32_t h = 0; adds_up(e) && h < kv->n_kv_heads; h++) {
            const size_t at = (size_t)i * kv->n_kv_heads + h;
            put_u32(put, arg, e->n_seen[at]);
            put(arg, e->seen + at * e->stride, e->n_seen[at] * sizeof *e->seen);
        }
    }
}

/* Walks over the state, and takes it in when `load`. */
static vq_status walk(const vq_kv *kv, const vq_kv_layer *layers, const char *name, vq_cursor *c, bool load,
                      vq_error *err)
{
    vq_evictor *e = kv->evict;
    const uint32_t phase = vq_cursor_u32(c), n_generated = vq_cursor_u32(c);
    if (phase > VQ_KV_DECODE)
        return vq_fail(err, VQ_ERR_VALUE, "%s: evict: phase is %u, above %d", name, phase, VQ_KV_DECODE);
    if (load) {
        e->phase = (vq_kv_phase)phase;
        e->n_generated = n_generated;
    }
    for (uint32_t i = 0; i < kv->n_layers && !c->bad; i++) {
        const uint32_t end = vq_cursor_u32(c), first = vq_cursor_u32(c);
        const uint32_t room = e->ring ? e->choice.policy->n_queries : UINT32_MAX;
        if (end > layers[i].n_rows || first > end || end - first > room)
            return vq_fail(err, VQ_ERR_VALUE, "%s: evict: queries of rows %u to %u are kept, of %u rows", name, first,
                           end, layers[i].n_rows);
        if (load)
            e->seen_end[i] = end;
        if (load && e->ring)
            e->ring_first[i] = first;
        const size_t n_bytes = (size_t)kv->n_heads * kv->d_k * sizeof(float);
        for (uint32_t row = first; e->ring && row < end && !c->bad; row++) {
            const uint8_t *q = vq_cursor_take(c, n_bytes);
            if (load)
                memcpy(query_at(kv, i, row), q, n_bytes);
        }
        for (uint32_t h = 0; adds_up(e) && h < kv->n_kv_heads && !c->bad; h++) {
            const size_t at = (size_t)i * kv->n_kv_heads + h;
            const uint32_t n = vq_cursor_u32(c);
            if (n > layers[i].n_rows)
                return vq_fail(err, VQ_ERR_VALUE, "%s: evict: weights of %u rows, of %u", name, n, layers[i].n_rows);
            const uint8_t *seen = vq_cursor_take(c, n * sizeof(float));
            if (load) {
                e->n_seen[at] = n;
                memcpy(e->seen + at * e->stride, seen, n * sizeof(float));
            }
        }
    }
    return VQ_OK;
}

vq_status vq_evictor_check_state(const vq_kv *kv, const vq_kv_layer *layers, const char *name, vq_cursor *c,
                                 vq_error *err)
{
    return kv->evict ? walk(kv, layers, name, c, false, err) : VQ_OK;
}

void vq_evictor_load_state(vq_kv *kv, vq_cursor *c)
{
    if (kv->evict)
        walk(kv, kv->layers, "", c, true, NULL);
}
