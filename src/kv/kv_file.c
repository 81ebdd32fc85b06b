/* Saved caches.  All numbers are little-endian.
 *
 *     magic        8 bytes    "VQ-CACHE"
 *     version      u32        1
 *     n_fields     u32        10
 *     fields       u64 each   n_layers n_heads n_kv_heads d_k d_v exact seed model_hash, f32 bits of scale rope_base
 *     for each layer:
 *       keys       method     n u32, n bytes of name, format u32, n_options u32, f64 each
 *       values     method
 *       n_fields   u32        6
 *       fields     u64 each   window sinks residual granule value_at page_bytes
 *       state      u32 each   first_pos n_rows coded_end coded_floor
 *     zeros to a multiple of 64
 *     for each layer and kv head, each part padded with zeros to a multiple of 64:
 *       sinks      keys [min(S, n_rows)][d_k], values: in the type of exact rows
 *       pages      page_bytes each, those that the next query can see
 *       exact      keys [n_rows - coded_end][d_k], values
 *     checksum     u64        XXH64 of all before, seed 0
 *
 * What is derived (which pages are there, how many rows are exact) is not stored, so it can't contradict.  A file is
 * checked to its last byte before the cache is touched; then its pages are taken from a store of their own, and only
 * when they are all there does it replace the old one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/cursor.h"
#include "kv/kv_inner.h"
#include "kv/save.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

static const char magic[8] = {'V', 'Q', '-', 'C', 'A', 'C', 'H', 'E'};
enum { VERSION = 1, N_FIELDS = 10, N_LAYER_FIELDS = 6, ALIGN = 64 };

/* What has to be equal in the file and in the cache. */
typedef struct field {
    const char *name;
    uint64_t value;
    bool is_float;
} field;

static uint64_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void fields_of(const vq_kv *kv, field f[N_FIELDS])
{
    const field all[N_FIELDS] = {{"n_layers", kv->n_layers, false},
                                 {"n_heads", kv->n_heads, false},
                                 {"n_kv_heads", kv->n_kv_heads, false},
                                 {"d_k", kv->d_k, false},
                                 {"d_v", kv->d_v, false},
                                 {"exact", kv->exact, false},
                                 {"seed", kv->seed, false},
                                 {"model_hash", kv->model_hash, false},
                                 {"scale", float_bits(kv->scale), true},
                                 {"rope_base", float_bits(kv->rope_base), true}};
    memcpy(f, all, sizeof all);
}

static void layer_fields_of(const vq_kv_layer *l, field f[N_LAYER_FIELDS])
{
    const field all[N_LAYER_FIELDS] = {{"window", l->window, false},     {"sinks", l->sinks, false},
                                       {"residual", l->residual, false}, {"granule", l->granule, false},
                                       {"value_at", l->value_at, false}, {"page_bytes", l->page_bytes, false}};
    memcpy(f, all, sizeof all);
}

/* ---- write ---- */

typedef struct writer {
    vq_file_writer *file;
    XXH64_state_t hash;
    uint64_t n_bytes;
    vq_status status; /* of the first write that failed; the rest does nothing */
    vq_error *err;
} writer;

static void put(writer *w, const void *bytes, size_t n)
{
    if (w->status != VQ_OK || n == 0)
        return;
    XXH64_update(&w->hash, bytes, n);
    w->n_bytes += n;
    w->status = vq_file_writer_write(w->file, bytes, n, w->err);
}

static void put_u32(writer *w, uint32_t x) { put(w, &x, sizeof x); }

static void put_u64(writer *w, uint64_t x) { put(w, &x, sizeof x); }

static void pad(writer *w)
{
    static const unsigned char zeros[ALIGN];
    put(w, zeros, (ALIGN - w->n_bytes % ALIGN) % ALIGN);
}

static void put_fields(writer *w, const field *f, uint32_t n)
{
    put_u32(w, n);
    for (uint32_t i = 0; i < n; i++)
        put_u64(w, f[i].value);
}

static void put_method(writer *w, const vq_method *m)
{
    const uint32_t n = (uint32_t)strlen(m->codec->name);
    put_u32(w, n);
    put(w, m->codec->name, n);
    put_u32(w, m->codec->format);
    put_u32(w, (uint32_t)m->codec->n_options);
    put(w, m->values, m->codec->n_options * sizeof m->values[0]);
}

static void put_exact_rows(writer *w, const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys)
{
    for (uint32_t row = l->coded_end, n; row < l->n_rows; row += n) {
        const unsigned char *rows = vq_kv_exact_rows(kv, l, head, keys, row, &n);
        put(w, rows, (size_t)n * (keys ? kv->d_k : kv->d_v) * kv->exact_bytes);
    }
    pad(w);
}

static void put_head(writer *w, const vq_kv *kv, const vq_kv_layer *l, uint32_t head)
{
    const vq_kv_head *h = &l->heads[head];
    const size_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    put(w, h->sink_k, n_sinks * kv->d_k * kv->exact_bytes);
    pad(w);
    put(w, h->sink_v, n_sinks * kv->d_v * kv->exact_bytes);
    pad(w);
    for (uint32_t p = vq_kv_first_seen_page(l); p < vq_kv_end_page(l, l->coded_end); p++)
        put(w, vq_kv_page_at(l, h, p)->bytes, l->page_bytes);
    put_exact_rows(w, kv, l, head, true);
    put_exact_rows(w, kv, l, head, false);
}

vq_status vq_kv_write(const vq_kv *kv, vq_file_writer *file, vq_error *err)
{
    writer w = {.file = file, .status = VQ_OK, .err = err};
    XXH64_reset(&w.hash, 0);
    field f[N_FIELDS];
    put(&w, magic, sizeof magic);
    put_u32(&w, VERSION);
    fields_of(kv, f);
    put_fields(&w, f, N_FIELDS);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const vq_kv_layer *l = &kv->layers[i];
        put_method(&w, &l->keys);
        put_method(&w, &l->values);
        layer_fields_of(l, f);
        put_fields(&w, f, N_LAYER_FIELDS);
        put_u32(&w, l->first_pos);
        put_u32(&w, l->n_rows);
        put_u32(&w, l->coded_end);
        put_u32(&w, l->coded_floor);
    }
    pad(&w);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            put_head(&w, kv, &kv->layers[i], h);
    put_u64(&w, XXH64_digest(&w.hash));
    return w.status;
}

vq_status vq_kv_save(const vq_kv *kv, const char *path, vq_error *err)
{
    vq_file_writer *file;
    VQ_TRY(vq_file_writer_open(&file, path, err));
    const vq_status status = vq_kv_write(kv, file, err);
    if (status != VQ_OK) {
        vq_file_writer_abort(file);
        return status;
    }
    return vq_file_writer_commit(file, err);
}

/* ---- read ---- */

typedef struct reader {
    const char *name;
    vq_cursor c;
    vq_error *err;
} reader;

static vq_status truncated(const reader *r, const char *what)
{
    return vq_fail(r->err, VQ_ERR_TRUNCATED, "%s: ends in the %s, after %zu bytes", r->name, what,
                   (size_t)(r->c.end - r->c.start));
}

static vq_status check_fields(reader *r, const char *where, const field *f, uint32_t n)
{
    const uint32_t n_file = vq_cursor_u32(&r->c);
    if (!r->c.bad && n_file != n)
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: %sn_fields is %u, version %d has %u", r->name, where, n_file, VERSION,
                       n);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t value = vq_cursor_u64(&r->c);
        if (r->c.bad)
            return truncated(r, "header");
        if (value == f[i].value)
            continue;
        if (f[i].is_float) {
            float here, there;
            const uint32_t a = (uint32_t)value, b = (uint32_t)f[i].value;
            memcpy(&there, &a, sizeof there);
            memcpy(&here, &b, sizeof here);
            return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s is %.9g in the file, %.9g in the cache", r->name, where,
                           f[i].name, (double)there, (double)here);
        }
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s is %" PRIu64 " in the file, %" PRIu64 " in the cache",
                       r->name, where, f[i].name, value, f[i].value);
    }
    return VQ_OK;
}

static vq_status check_method(reader *r, const char *where, const char *side, const vq_method *m)
{
    const vq_codec *codec = m->codec;
    const uint32_t n = vq_cursor_u32(&r->c);
    const uint8_t *name = vq_cursor_take(&r->c, n);
    const uint32_t format = vq_cursor_u32(&r->c), n_options = vq_cursor_u32(&r->c);
    if (r->c.bad)
        return truncated(r, "header");
    if (n != strlen(codec->name) || memcmp(name, codec->name, n) != 0)
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s are %.*s in the file, %s in the cache", r->name, where, side,
                       (int)(n < 64 ? n : 64), (const char *)name, codec->name);
    if (format != codec->format)
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s: %s has format %u in the file, %u in this version", r->name,
                       where, side, codec->name, format, codec->format);
    if (n_options != codec->n_options)
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s: %s has %u options in the file, %zu in this version", r->name,
                       where, side, codec->name, n_options, codec->n_options);
    for (uint32_t i = 0; i < n_options; i++) {
        const double value = vq_cursor_f64(&r->c);
        if (r->c.bad)
            return truncated(r, "header");
        if (memcmp(&value, &m->values[i], sizeof value) != 0)
            return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s: option %s of %s is %g in the file, %g in the cache",
                           r->name, where, side, codec->options[i].name, codec->name, value, m->values[i]);
    }
    return VQ_OK;
}

static vq_status bad_state(const reader *r, const char *where, const char *name, uint32_t value, const char *rule,
                           uint32_t limit)
{
    return vq_fail(r->err, VQ_ERR_VALUE, "%s: %s%s is %u, %s %u", r->name, where, name, value, rule, limit);
}

/* `to` is the cache's layer but for the state of the rows, which is the file's afterwards. */
static vq_status read_state(reader *r, const vq_kv *kv, const char *where, vq_kv_layer *to)
{
    to->first_pos = vq_cursor_u32(&r->c);
    to->n_rows = to->n_settled = vq_cursor_u32(&r->c);
    to->coded_end = to->exact_first = vq_cursor_u32(&r->c);
    to->coded_floor = vq_cursor_u32(&r->c);
    if (r->c.bad)
        return truncated(r, "header");
    if (to->n_rows > kv->n_ctx)
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %sn_rows is %u, n_ctx of the cache is %u", r->name, where,
                       to->n_rows, kv->n_ctx);
    if (to->first_pos > UINT32_MAX - kv->n_ctx)
        return bad_state(r, where, "first_pos", to->first_pos, "which leaves no room for n_ctx", kv->n_ctx);
    const uint32_t most = to->n_rows > to->sinks ? to->n_rows : to->sinks;
    if (to->coded_floor < to->sinks || to->coded_floor > most)
        return bad_state(r, where, "coded_floor", to->coded_floor, "outside sinks and rows, up to", most);
    if ((to->coded_floor - to->sinks) % to->granule)
        return bad_state(r, where, "coded_floor", to->coded_floor, "not after whole granules of", to->granule);
    const uint32_t end = vq_kv_coded_end(to, to->n_rows);
    if (to->coded_end != end)
        return bad_state(r, where, "coded_end", to->coded_end, "which the number of rows makes", end);
    to->first_page = 0;
    to->first_page = vq_kv_first_seen_page(to);
    return VQ_OK;
}

static size_t padded(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Bytes of a head's rows in a file. */
static uint64_t head_bytes(const vq_kv *kv, const vq_kv_layer *l)
{
    const size_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const size_t n_exact = l->n_rows > l->coded_end ? l->n_rows - l->coded_end : 0;
    const size_t k = kv->d_k * kv->exact_bytes, v = kv->d_v * kv->exact_bytes;
    const uint64_t n_pages = vq_kv_end_page(l, l->coded_end) - l->first_page;
    return padded(n_sinks * k) + padded(n_sinks * v) + n_pages * l->page_bytes + padded(n_exact * k) +
           padded(n_exact * v);
}

static vq_status read_header(reader *r, const vq_kv *kv, vq_kv_layer *layers)
{
    const uint8_t *start = vq_cursor_take(&r->c, sizeof magic);
    if (!start || memcmp(start, magic, sizeof magic) != 0)
        return vq_fail(r->err, VQ_ERR_MAGIC, "%s: is no saved cache", r->name);
    const uint32_t version = vq_cursor_u32(&r->c);
    if (!r->c.bad && version != VERSION)
        return vq_fail(r->err, VQ_ERR_VERSION, "%s: version is %u, this library reads %d", r->name, version, VERSION);
    field f[N_FIELDS];
    fields_of(kv, f);
    VQ_TRY(check_fields(r, "", f, N_FIELDS));
    uint64_t n_rows_bytes = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        char where[32];
        snprintf(where, sizeof where, "layer %u: ", i);
        layers[i] = kv->layers[i];
        layer_fields_of(&layers[i], f);
        VQ_TRY(check_method(r, where, "keys", &layers[i].keys));
        VQ_TRY(check_method(r, where, "values", &layers[i].values));
        VQ_TRY(check_fields(r, where, f, N_LAYER_FIELDS));
        VQ_TRY(read_state(r, kv, where, &layers[i]));
        n_rows_bytes += kv->n_kv_heads * head_bytes(kv, &layers[i]);
    }
    const uint64_t at = vq_cursor_offset(&r->c);
    vq_cursor_take(&r->c, (ALIGN - at % ALIGN) % ALIGN);
    const uint64_t left = vq_cursor_left(&r->c), expected = n_rows_bytes + sizeof(uint64_t);
    if (r->c.bad || left < expected)
        return truncated(r, "rows");
    if (left > expected)
        return vq_fail(r->err, VQ_ERR_BOUNDS, "%s: %" PRIu64 " bytes follow the end", r->name, left - expected);
    const size_t n_hashed = (size_t)(r->c.end - r->c.start) - sizeof(uint64_t);
    vq_cursor tail = vq_cursor_make(r->c.start + n_hashed, sizeof(uint64_t));
    const uint64_t want = vq_cursor_u64(&tail), got = XXH64(r->c.start, n_hashed, 0);
    if (got != want)
        return vq_fail(r->err, VQ_ERR_CHECKSUM, "%s: checksum is %016" PRIx64 ", the bytes have %016" PRIx64, r->name,
                       want, got);
    return VQ_OK;
}

static void take_rows(reader *r, void *to, size_t n)
{
    const uint8_t *from = vq_cursor_take(&r->c, padded(n));
    if (n > 0)
        memcpy(to, from, n);
}

static void read_head(reader *r, const vq_kv *kv, const vq_kv_layer *l, uint32_t head, unsigned char *const *pages)
{
    const vq_kv_head *h = &l->heads[head];
    const size_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const size_t n_exact = l->n_rows > l->coded_end ? l->n_rows - l->coded_end : 0;
    take_rows(r, h->sink_k, n_sinks * kv->d_k * kv->exact_bytes);
    take_rows(r, h->sink_v, n_sinks * kv->d_v * kv->exact_bytes);
    memset(h->pages, 0, l->page_room * sizeof *h->pages);
    for (uint32_t p = l->first_page; p < vq_kv_end_page(l, l->coded_end); p++) {
        const uint32_t n = l->coded_end - l->sinks - p * VQ_PAGE_ROWS;
        vq_kv_page *page = vq_kv_page_at(l, h, p);
        page->bytes = pages[p - l->first_page];
        page->live = n < VQ_PAGE_ROWS ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
        memcpy(page->bytes, vq_cursor_take(&r->c, l->page_bytes), l->page_bytes);
    }
    take_rows(r, h->exact_k, n_exact * kv->d_k * kv->exact_bytes);
    take_rows(r, h->exact_v, n_exact * kv->d_v * kv->exact_bytes);
}

/* Replaces the cache's rows, once the file's pages are there. */
static vq_status replace(reader *r, vq_kv *kv, const vq_kv_layer *layers)
{
    size_t n_pages = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        n_pages += (size_t)kv->n_kv_heads * (vq_kv_end_page(&layers[i], layers[i].coded_end) - layers[i].first_page);
    vq_store fresh = {.n_classes = kv->store.n_classes};
    vq_store_class *classes = calloc(fresh.n_classes, sizeof *classes);
    fresh.classes = classes;
    unsigned char **pages = calloc(n_pages + 1, sizeof *pages);
    vq_status status = VQ_OK;
    if (!fresh.classes || !pages)
        status = vq_fail(r->err, VQ_ERR_NOMEM, "%s: no memory to load %zu pages", r->name, n_pages);
    for (uint32_t i = 0; status == VQ_OK && i < fresh.n_classes; i++)
        fresh.classes[i].n_bytes = kv->store.classes[i].n_bytes;
    size_t at = 0;
    for (uint32_t i = 0; status == VQ_OK && i < kv->n_layers; i++) {
        const vq_kv_layer *l = &layers[i];
        const size_t end = at + (size_t)kv->n_kv_heads * (vq_kv_end_page(l, l->coded_end) - l->first_page);
        for (; at < end && status == VQ_OK; at++)
            if (!(pages[at] = vq_store_take(&fresh, l->page_class, r->err)))
                status = VQ_ERR_NOMEM;
    }
    if (status == VQ_OK) {
        vq_store_release(&kv->store);
        memcpy(kv->store.classes, classes, fresh.n_classes * sizeof *classes);
        fresh.classes = kv->store.classes;
        kv->store = fresh;
        kv->pending = VQ_NO_LAYER;
        at = 0;
        for (uint32_t i = 0; i < kv->n_layers; i++) {
            kv->layers[i] = layers[i];
            const vq_kv_layer *l = &kv->layers[i];
            for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
                read_head(r, kv, l, h, pages + at);
                at += vq_kv_end_page(l, l->coded_end) - l->first_page;
            }
        }
    } else if (classes) {
        vq_store_release(&fresh);
    }
    free(classes);
    free(pages);
    return status;
}

vq_status vq_kv_restore(vq_kv *kv, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    reader r = {.name = name, .c = vq_cursor_make(bytes, n_bytes), .err = err};
    vq_kv_layer *layers = calloc(kv->n_layers, sizeof *layers);
    if (!layers)
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for %u layers", name, kv->n_layers);
    vq_status status = read_header(&r, kv, layers);
    if (status == VQ_OK)
        status = replace(&r, kv, layers);
    free(layers);
    return status;
}

vq_status vq_kv_load(vq_kv *kv, const char *path, vq_error *err)
{
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    const vq_status status = vq_kv_restore(kv, path, map.bytes, map.n_bytes, err);
    vq_file_map_close(&map);
    return status;
}
