/* Opening a cache: parameters are checked, codecs made, and everything but the pages laid out in one mapping. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "kv/artifacts.h"
#include "kv/evict.h"
#include "kv/kv_inner.h"
#include "kv/plan.h"

enum { MOST_CTX = 1 << 28, MOST_LAYERS = 4096, MOST_HEADS = 4096 };

vq_status vq_kv_check_params(const vq_kv_params *p, vq_error *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } fields[] = {{"n_layers", p->n_layers, MOST_LAYERS},    {"n_heads", p->n_heads, MOST_HEADS},
                  {"n_kv_heads", p->n_kv_heads, MOST_HEADS}, {"d_k", p->d_k, VQ_MAX_HEAD_DIM},
                  {"d_v", p->d_v, VQ_MAX_HEAD_DIM},          {"n_ctx", p->n_ctx, MOST_CTX},
                  {"n_batch", p->n_batch, MOST_CTX}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].max)
            return vq_fail(err, VQ_ERR_ARG, "%s is %u, allowed are 1 to %u", fields[i].name, fields[i].value,
                           fields[i].max);
    if (p->n_heads % p->n_kv_heads)
        return vq_fail(err, VQ_ERR_ARG, "n_heads is %u, which is no multiple of n_kv_heads %u", p->n_heads,
                       p->n_kv_heads);
    if (p->sinks != VQ_KV_DEFAULT && p->sinks > VQ_MAX_SINKS)
        return vq_fail(err, VQ_ERR_ARG, "sinks is %u, allowed are 0 to %d", p->sinks, VQ_MAX_SINKS);
    if (p->residual != VQ_KV_DEFAULT && p->residual > VQ_MAX_RESIDUAL)
        return vq_fail(err, VQ_ERR_ARG, "residual is %u, allowed are 0 to %d", p->residual, VQ_MAX_RESIDUAL);
    if (!isfinite(p->scale) || p->scale < 0)
        return vq_fail(err, VQ_ERR_ARG, "scale is %g", (double)p->scale);
    if (p->exact != VQ_KV_EXACT_F16 && p->exact != VQ_KV_EXACT_BF16 && p->exact != VQ_KV_EXACT_F32)
        return vq_fail(err, VQ_ERR_ARG, "exact is %d", (int)p->exact);
    for (uint32_t i = 0; p->ropes && i < p->n_layers; i++)
        if (p->ropes[i].freq && (p->ropes[i].n_rot % 2 || p->ropes[i].n_rot > p->d_k))
            return vq_fail(err, VQ_ERR_ARG, "ropes of layer %u: n_rot is %u, must be even and at most d_k %u", i,
                           p->ropes[i].n_rot, p->d_k);
    return VQ_OK;
}

/* ---- methods of the layers ---- */

static bool read_u32(const char **at, uint32_t *out)
{
    uint64_t value = 0;
    const char *start = *at;
    for (; **at >= '0' && **at <= '9' && *at - start < 10; (*at)++)
        value = value * 10 + (uint64_t)(**at - '0');
    *out = (uint32_t)value;
    return *at > start && value <= UINT32_MAX;
}

/* "0-1=f16,17=int8:a=1,b=2": an entry starts with a digit; its options go on up to the next one that does. */
static vq_status apply_overrides(vq_kv_layer *layers, uint32_t n_layers, uint32_t n_kv_heads, const char *text,
                                 vq_error *err)
{
    const char *at = text;
    while (*at) {
        uint32_t first, last;
        const char *entry = at;
        bool ok = read_u32(&at, &first);
        last = first;
        if (ok && *at == '-') {
            at++;
            ok = read_u32(&at, &last);
        }
        if (!ok || *at != '=')
            return vq_fail(err, VQ_ERR_ARG, "layers: '%.64s' is not of the form FIRST-LAST=METHOD", entry);
        if (first > last || last >= n_layers)
            return vq_fail(err, VQ_ERR_ARG, "layers: %u-%u, the model has layers 0 to %u", first, last, n_layers - 1);
        const char *method = ++at;
        while (*at && !(*at == ',' && at[1] >= '0' && at[1] <= '9'))
            at++;
        char name[256];
        if ((size_t)(at - method) >= sizeof name)
            return vq_fail(err, VQ_ERR_ARG, "layers: the method of %u-%u is longer than %zu bytes", first, last,
                           sizeof name - 1);
        memcpy(name, method, (size_t)(at - method));
        name[at - method] = '\0';
        vq_method m;
        const vq_status status = vq_method_parse(&m, name, err);
        if (status != VQ_OK)
            return vq_fail_prefix(err, status, "layers %u-%u", first, last);
        for (uint32_t i = first; i <= last; i++) {
            layers[i].keys = layers[i].values = m;
            for (uint32_t h = 0; h < n_kv_heads; h++)
                layers[i].heads[h].k_bits = layers[i].heads[h].v_bits = 0;
        }
        at += *at == ',';
    }
    return VQ_OK;
}

/* *bits: of one side of a head as a plan wants it, or 0, which becomes what the method's text says. */
static vq_status settle_bits(double *bits, const vq_method *m, uint32_t layer, uint32_t head, bool keys, vq_error *err)
{
    vq_method own = *m;
    const vq_kv_option_info *info;
    const double *said = vq_method_bits(&own, &info);
    if (*bits == 0) {
        *bits = said ? *said : 0;
        return VQ_OK;
    }
    const char *side = keys ? "keys" : "values";
    if (!info)
        return vq_fail(err, VQ_ERR_ARG, "plan: %s of layer %u, head %u have %g bits, but %s has no option 'bits'", side,
                       layer, head, *bits, m->codec->name);
    if (*bits < info->min || *bits > info->max || (!info->fraction && *bits != floor(*bits)))
        return vq_fail(err, VQ_ERR_ARG, "plan: %s of layer %u, head %u have %g bits, %s takes %s from %g to %g", side,
                       layer, head, *bits, m->codec->name, info->fraction ? "numbers" : "whole numbers", info->min,
                       info->max);
    return VQ_OK;
}

static vq_status choose_methods(vq_kv_layer *layers, const vq_kv_params *p, vq_error *err)
{
    vq_method keys, values;
    if (p->plan)
        VQ_TRY(vq_plan_check(p->plan, p, err));
    const char *key_text = p->plan ? p->plan->keys : p->keys, *value_text = p->plan ? p->plan->values : p->values;
    vq_status status = vq_method_parse(&keys, key_text ? key_text : "f16", err);
    if (status != VQ_OK)
        return vq_fail_prefix(err, status, "keys");
    status = vq_method_parse(&values, value_text ? value_text : "f16", err);
    if (status != VQ_OK)
        return vq_fail_prefix(err, status, "values");
    for (uint32_t i = 0; i < p->n_layers; i++) {
        layers[i].keys = keys;
        layers[i].values = values;
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            layers[i].heads[h].k_bits = p->plan ? vq_plan_bits(p->plan, i, h, true) : 0;
            layers[i].heads[h].v_bits = p->plan ? vq_plan_bits(p->plan, i, h, false) : 0;
        }
    }
    if (p->layers)
        VQ_TRY(apply_overrides(layers, p->n_layers, p->n_kv_heads, p->layers, err));
    for (uint32_t i = 0; i < p->n_layers; i++)
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            VQ_TRY(settle_bits(&layers[i].heads[h].k_bits, &layers[i].keys, i, h, true, err));
            VQ_TRY(settle_bits(&layers[i].heads[h].v_bits, &layers[i].values, i, h, false, err));
        }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        vq_kv_layer *l = &layers[i];
        l->window = p->window ? p->window[i] : 0;
        l->sinks = l->keys.sinks > l->values.sinks ? l->keys.sinks : l->values.sinks;
        l->residual = l->keys.residual > l->values.residual ? l->keys.residual : l->values.residual;
        if (p->sinks != VQ_KV_DEFAULT)
            l->sinks = p->sinks;
        if (p->residual != VQ_KV_DEFAULT)
            l->residual = p->residual;
        if (l->window) {
            l->sinks = 0;
            /* Rows beyond the window are seen by nobody: keeping them exact would change nothing. */
            l->residual = l->residual < l->window ? l->residual : l->window;
        }
    }
    return VQ_OK;
}

/* ---- codecs ---- */

static vq_status create_side(vq_side *side, vq_kv *kv, vq_artifacts *artifacts, const vq_method *m, double bits,
                             uint32_t layer, uint32_t head, bool keys, vq_error *err)
{
    vq_method own = *m;
    const vq_kv_option_info *info;
    double *own_bits = vq_method_bits(&own, &info);
    if (own_bits)
        *own_bits = bits;
    *side = (vq_side){.codec = m->codec, .kernels = &kv->kernels, .d = keys ? kv->d_k : kv->d_v};
    const vq_kv_rope *rope = kv->ropes && kv->ropes[layer].freq ? &kv->ropes[layer] : NULL;
    if (keys && m->codec->before_rope)
        side->rope = rope;
    if (keys && m->inner && m->inner->before_rope)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s: %s takes whole keys as they were before RoPE, not parts of them",
                       m->codec->name, m->inner->name);
    const vq_calibration *calibration;
    const bool needed = m->codec->calibrated || (m->inner && m->inner->calibrated);
    const bool used = m->codec->calibratable && (kv->calibration || m->calibration[0]);
    const vq_codec *const asks = m->inner ? m->inner : m->codec;
    VQ_TRY(vq_kv_calibration_of(kv, asks->name, needed || used, keys ? asks->key_codebooks : asks->value_codebooks,
                                m->calibration, &calibration, err));
    const vq_codec_env env = {.layer = layer,
                              .head = head,
                              .d = side->d,
                              .keys = keys,
                              .seed = kv->seed,
                              .options = own.values,
                              .rope = rope,
                              .calibration = calibration,
                              .artifacts = artifacts,
                              .inner = m->inner,
                              .inner_options = own.inner_values,
                              .kernels = &kv->kernels};
    const vq_status status = m->codec->create(&side->state, &env, err);
    if (status != VQ_OK)
        return vq_fail_prefix(err, status, "%s of layer %u", keys ? "keys" : "values", layer);
    kv->n_shared += vq_side_shared_bytes(side);
    return VQ_OK;
}

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static vq_status create_codecs(vq_kv *kv, vq_error *err)
{
    vq_artifacts files = {.dir = kv->artifact_dir, .seed = kv->seed}, *artifacts = files.dir ? &files : NULL;
    vq_status status = VQ_OK;
    for (uint32_t i = 0; status == VQ_OK && i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        for (uint32_t h = 0; status == VQ_OK && h < kv->n_kv_heads; h++) {
            vq_kv_head *head = &l->heads[h];
            status = create_side(&head->k, kv, artifacts, &l->keys, head->k_bits, i, h, true, err);
            if (status == VQ_OK)
                status = create_side(&head->v, kv, artifacts, &l->values, head->v_bits, i, h, false, err);
        }
    }
    vq_artifacts_close(&files);
    return status;
}

/* What a head's page holds; the layer's granule is the largest of its heads'. */
static vq_status shape_head(vq_kv *kv, vq_kv_layer *l, vq_kv_head *h, vq_error *err)
{
    const uint32_t gk = vq_side_granule(&h->k), gv = vq_side_granule(&h->v), granule = gk > gv ? gk : gv;
    l->granule = granule > l->granule ? granule : l->granule;
    vq_page_bytes k, v;
    h->k.codec->page_bytes(h->k.state, &k);
    h->v.codec->page_bytes(h->v.state, &v);
    if ((gk != VQ_GRANULE && gk != VQ_PAGE_ROWS) || (gv != VQ_GRANULE && gv != VQ_PAGE_ROWS) ||
        k.codes + k.scales == 0 || v.codes + v.scales == 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s or %s has granule %u or %u, which is not 32 or 64",
                       l->keys.codec->name, l->values.codec->name, gk, gv);
    h->split = (vq_page_bytes){.codes = k.codes + v.codes, .scales = k.scales + v.scales};
    h->value_at = align64(k.codes + k.scales);
    h->page_bytes = h->value_at + align64(v.codes + v.scales);

    const size_t query = vq_side_query_bytes(&h->k), acc = vq_side_acc_len(&h->v);
    kv->query_most = query > kv->query_most ? query : kv->query_most;
    const uint32_t retrieves = vq_side_retrieves(&h->k);
    kv->retrieve_most = retrieves > kv->retrieve_most ? retrieves : kv->retrieve_most;
    kv->acc_most = acc > kv->acc_most ? acc : kv->acc_most;
    return VQ_OK;
}

/* Which rows a layer keeps exactly and how many pages it can have, once its heads are shaped. */
static void shape_layer(const vq_kv *kv, vq_kv_layer *l)
{
    const uint64_t exact_room = (uint64_t)l->residual + l->granule, n_ctx = kv->n_ctx;
    l->exact_room = (uint32_t)(exact_room < n_ctx ? exact_room : n_ctx);
    /* After a compaction or a cut a page may begin at any granule. */
    uint64_t page_room = n_ctx / VQ_GRANULE + 4;
    /* Rows that queries of a chunk see, and a page at each end. */
    const uint64_t seen = ((uint64_t)l->window + kv->n_batch) / VQ_GRANULE + 6;
    if (l->window && seen < page_room)
        page_room = seen;
    l->page_room = (uint32_t)page_room;
}

/* ---- layout ---- */

static size_t product(vq_arena *arena, size_t a, size_t b)
{
    size_t n = 0;
    if (!vq_mul_size(a, b, &n))
        arena->overflow = true;
    return n;
}

static void lay_out_scratch(vq_arena *arena, const vq_kv *kv, vq_kv_scratch *s)
{
    const size_t nq = kv->tile_most, d = kv->d_k > kv->d_v ? kv->d_k : kv->d_v;
    s->rows = vq_arena_take(arena, VQ_PAGE_ROWS * d, sizeof(float));
    s->rows_v = vq_arena_take(arena, VQ_PAGE_ROWS * d, sizeof(float));
    s->q = vq_arena_take(arena, nq * kv->d_k, sizeof(float));
    s->q_sinks = vq_arena_take(arena, nq * kv->d_k, sizeof(float));
    s->prepared = vq_arena_take(arena, nq, kv->query_most);
    s->scores = vq_arena_take(arena, VQ_SOFTMAX_BLOCKS * nq * VQ_PAGE_ROWS, sizeof(float));
    s->coded = vq_arena_take(arena, product(arena, nq, kv->acc_most), sizeof(float));
    s->plain = vq_arena_take(arena, nq * kv->d_v, sizeof(float));
    s->part = vq_arena_take(arena, product(arena, nq, kv->acc_most), sizeof(float));
    s->max = vq_arena_take(arena, nq, sizeof(float));
    s->sum = vq_arena_take(arena, nq, sizeof(float));
    s->part_max = vq_arena_take(arena, nq, sizeof(float));
    s->part_sum = vq_arena_take(arena, nq, sizeof(float));
    s->rescale = vq_arena_take(arena, nq, sizeof(float));
    s->live = vq_arena_take(arena, VQ_SOFTMAX_BLOCKS * nq, sizeof(uint64_t));
    s->best = vq_arena_take(arena, nq * kv->retrieve_most, sizeof(float));
    s->least = vq_arena_take(arena, nq, sizeof(float));
    s->n_best = vq_arena_take(arena, nq, sizeof *s->n_best);
}

/* First mapping: the structs.  Sizes are known from the parameters. */
static vq_kv *lay_out_structs(vq_arena *arena, const vq_kv_params *p)
{
    vq_kv *kv = vq_arena_take(arena, 1, sizeof *kv);
    vq_kv_layer *layers = vq_arena_take(arena, p->n_layers, sizeof *layers);
    vq_kv_head *heads = vq_arena_take(arena, product(arena, p->n_layers, p->n_kv_heads), sizeof *heads);
    vq_kv_scratch *scratch = vq_arena_take(arena, vq_pool_n_threads(p->pool), sizeof *scratch);
    if (!kv)
        return NULL;
    kv->layers = layers;
    for (uint32_t i = 0; i < p->n_layers; i++)
        layers[i].heads = heads + (size_t)i * p->n_kv_heads;
    kv->scratch = scratch;
    return kv;
}

/* Second mapping: tables, exact rows, scratch. */
static void lay_out_rows(vq_arena *arena, vq_kv *kv)
{
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            l->heads[h].pages = vq_arena_take(arena, l->page_room, sizeof *l->heads[h].pages);
    }
    const size_t row_k = kv->d_k * kv->exact_bytes, row_v = kv->d_v * kv->exact_bytes;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            l->heads[h].sink_k = vq_arena_take(arena, l->sinks, row_k);
            l->heads[h].sink_v = vq_arena_take(arena, l->sinks, row_v);
            l->heads[h].exact_k = vq_arena_take(arena, l->exact_room, row_k);
            l->heads[h].exact_v = vq_arena_take(arena, l->exact_room, row_v);
            l->heads[h].sink_live = vq_arena_take(arena, l->sinks / 64 + 1, sizeof(uint64_t));
            l->heads[h].exact_live = vq_arena_take(arena, l->exact_room / 64 + 1, sizeof(uint64_t));
        }
    }
    kv->stage_k = vq_arena_take(arena, product(arena, kv->n_kv_heads, kv->n_batch), row_k);
    kv->stage_v = vq_arena_take(arena, product(arena, kv->n_kv_heads, kv->n_batch), row_v);
    kv->tiles = vq_arena_take(arena, (size_t)kv->n_batch + 1, sizeof *kv->tiles);
    for (uint32_t i = 0; i < kv->n_threads; i++)
        lay_out_scratch(arena, kv, &kv->scratch[i]);
    kv->token_q = vq_arena_take(arena, (size_t)kv->n_heads * kv->d_k, sizeof(float));
    kv->token_q_sinks = vq_arena_take(arena, (size_t)kv->n_heads * kv->d_k, sizeof(float));
    kv->token_prepared = vq_arena_take(arena, kv->n_heads, kv->query_most);
    kv->token_least = vq_arena_take(arena, kv->n_heads, sizeof(float));
    kv->part_acc = vq_arena_take(arena, product(arena, kv->part_room, kv->acc_most), sizeof(float));
    kv->part_max = vq_arena_take(arena, kv->part_room, sizeof(float));
    kv->part_sum = vq_arena_take(arena, kv->part_room, sizeof(float));
}

/* The arena's block, mapped by `map`; *n_bytes are whole pages of the system. */
static vq_status map_arena(vq_arena *arena, void *(*map)(size_t), size_t *n_bytes, vq_error *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n;
    if (arena->overflow || !vq_add_size(arena->at, page - 1, &n))
        return vq_fail(err, VQ_ERR_NOMEM, "the sizes of the cache do not fit into an address space");
    n = n / page * page;
    arena->base = map(n);
    if (!arena->base)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes of tables and exact rows", n);
    arena->n_bytes = *n_bytes = n;
    arena->at = 0;
    return VQ_OK;
}

/* An area for each head, with more pages than its table can name: merged ones are taken before others are given back.
 * And one for the offsets of all pages. */
static vq_status open_store(vq_kv *kv, vq_error *err)
{
    kv->offset_area = kv->n_layers * kv->n_kv_heads;
    VQ_TRY(vq_store_open(&kv->store, kv->offset_area + 1, err));
    vq_store_area *offsets = &kv->store.areas[kv->offset_area];
    offsets->page_bytes = align64(VQ_PAGE_ROWS * sizeof(uint16_t));
    uint64_t n_all = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        l->first_area = i * kv->n_kv_heads;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            vq_store_area *area = &kv->store.areas[l->first_area + h];
            area->page_bytes = l->heads[h].page_bytes;
            area->n_pages = 2 * l->page_room;
            n_all += area->n_pages;
        }
    }
    offsets->n_pages = (uint32_t)(n_all < UINT32_MAX ? n_all : UINT32_MAX);
    return vq_store_reserve(&kv->store, err);
}

/* A policy that renumbers looks at its sinks with other queries than at the rest: the exact rows at the start of every
 * global layer are those sinks. */
static void keep_sinks(vq_kv *kv, vq_policy_choice *c)
{
    if (!vq_policy_renumbers(c))
        return;
    uint32_t sinks = c->sinks == VQ_KV_DEFAULT ? VQ_EVICT_SINKS : c->sinks;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        if (!kv->layers[i].window && kv->layers[i].sinks > sinks)
            sinks = kv->layers[i].sinks;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        if (!kv->layers[i].window)
            kv->layers[i].sinks = sinks;
    c->sinks = sinks;
}

/* `like`: has the same parameters, and its layers are asked instead of the texts of methods; NULL: none. */
static vq_status build(vq_kv *kv, const vq_kv_params *p, const vq_kv *like, vq_error *err)
{
    vq_kernels_init(&kv->kernels, vq_cpu_detect());
    kv->pool = p->pool;
    kv->n_threads = vq_pool_n_threads(p->pool);
    kv->n_layers = p->n_layers;
    kv->n_heads = p->n_heads;
    kv->n_kv_heads = p->n_kv_heads;
    kv->group = p->n_heads / p->n_kv_heads;
    kv->d_k = p->d_k;
    kv->d_v = p->d_v;
    kv->n_ctx = p->n_ctx;
    kv->n_batch = p->n_batch < p->n_ctx ? p->n_batch : p->n_ctx;
    kv->scale = p->scale != 0 ? p->scale : (float)(1 / sqrt(p->d_k));
    kv->exact = p->exact;
    kv->exact_bytes = p->exact == VQ_KV_EXACT_F32 ? sizeof(float) : sizeof(uint16_t);
    kv->seed = p->seed;
    kv->model_hash = p->model_hash;
    kv->calibration = p->calibration;
    kv->rope_base = p->rope_base;
    kv->ropes = p->ropes;
    kv->pending = VQ_NO_LAYER;
    const uint32_t tokens = VQ_TILE_QUERIES / kv->group;
    kv->tile_tokens = tokens < 1 ? 1 : tokens > VQ_GRANULE ? VQ_GRANULE : tokens;
    kv->tile_most = kv->tile_tokens * kv->group;

    if (!like)
        VQ_TRY(choose_methods(kv->layers, p, err));
    for (uint32_t i = 0; like && i < kv->n_layers; i++) {
        kv->layers[i].keys = like->layers[i].keys;
        kv->layers[i].values = like->layers[i].values;
        kv->layers[i].window = like->layers[i].window;
        kv->layers[i].sinks = like->layers[i].sinks;
        kv->layers[i].residual = like->layers[i].residual;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            kv->layers[i].heads[h].k_bits = like->layers[i].heads[h].k_bits;
            kv->layers[i].heads[h].v_bits = like->layers[i].heads[h].v_bits;
        }
    }
    vq_policy_choice choice = {0};
    if (like && like->evict)
        choice = like->evict->choice;
    if (!like && p->evict) {
        const vq_status status = vq_policy_parse(&choice, p->evict, err);
        if (status != VQ_OK)
            return vq_fail_prefix(err, status, "evict");
        keep_sinks(kv, &choice);
    }
    if (p->artifact_dir && !(kv->artifact_dir = strdup(p->artifact_dir)))
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for the path '%.100s'", p->artifact_dir);
    VQ_TRY(create_codecs(kv, err));
    kv->acc_most = kv->d_v;
    size_t most_segments = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            VQ_TRY(shape_head(kv, l, &l->heads[h], err));
        shape_layer(kv, l);
        l->coded_end = l->coded_floor = l->exact_first = l->sinks;
        /* Sinks, blocks of pages (one more where the first is cut by the window), exact rows. */
        const size_t n_segments = l->page_room / VQ_SEGMENT_PAGES + 4;
        most_segments = n_segments > most_segments ? n_segments : most_segments;
    }
    kv->part_room = kv->n_heads * most_segments;
    VQ_TRY(open_store(kv, err));
    vq_arena arena = {0};
    lay_out_rows(&arena, kv);
    VQ_TRY(map_arena(&arena, vq_store_map_sparse, &kv->n_rows_bytes, err));
    kv->rows_block = arena.base;
    lay_out_rows(&arena, kv);
    return choice.policy ? vq_evictor_open(kv, p->ropes, &choice, err) : VQ_OK;
}

static vq_status open_checked(vq_kv **out, const vq_kv_params *params, const vq_kv *like, vq_error *err)
{
    vq_arena arena = {0};
    lay_out_structs(&arena, params);
    size_t n_bytes = 0;
    VQ_TRY(map_arena(&arena, vq_store_map, &n_bytes, err));
    vq_kv *kv = lay_out_structs(&arena, params);
    kv->n_struct_bytes = n_bytes;
    const vq_status status = build(kv, params, like, err);
    if (status != VQ_OK) {
        vq_kv_close(kv);
        return status;
    }
    *out = kv;
    return VQ_OK;
}

vq_status vq_kv_open(vq_kv **out, const vq_kv_params *params, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_kv_check_params(params, err));
    return open_checked(out, params, NULL, err);
}

vq_status vq_kv_open_like(vq_kv **out, const vq_kv *like, vq_error *err)
{
    const vq_kv_params p = {.n_layers = like->n_layers,
                            .n_heads = like->n_heads,
                            .n_kv_heads = like->n_kv_heads,
                            .d_k = like->d_k,
                            .d_v = like->d_v,
                            .n_ctx = like->n_ctx,
                            .n_batch = like->n_batch,
                            .scale = like->scale,
                            .exact = like->exact,
                            .seed = like->seed,
                            .model_hash = like->model_hash,
                            .rope_base = like->rope_base,
                            .pool = like->pool,
                            .calibration = like->calibration,
                            .artifact_dir = like->artifact_dir,
                            .ropes = like->ropes};
    *out = NULL;
    return open_checked(out, &p, like, err);
}

void vq_kv_close(vq_kv *kv)
{
    if (!kv)
        return;
    if (kv->family) {
        vq_kv_let_go(kv);
        vq_kv_leave_family(kv);
    }
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            vq_side *sides[2] = {&kv->layers[i].heads[h].k, &kv->layers[i].heads[h].v};
            for (int j = 0; j < 2; j++)
                if (sides[j]->state)
                    sides[j]->codec->destroy(sides[j]->state);
        }
    vq_evictor_close(kv->evict);
    vq_kv_close_calibrations(kv);
    free(kv->artifact_dir);
    vq_store_close(&kv->store);
    vq_store_unmap(kv->rows_block, kv->n_rows_bytes);
    vq_store_unmap(kv, kv->n_struct_bytes);
}
