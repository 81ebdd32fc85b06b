/* Saved caches.  All numbers are little-endian.
 *
 *     magic        8 bytes    "VQ-CACHE"
 *     version      u32        5
 *     n_fields     u32        11
 *     fields       u64 each   n_layers n_heads n_kv_heads d_k d_v exact seed model_hash, f32 bits of scale rope_base,
 *                             calibration_hash (0: none)
 *     evict        n u32, n bytes of the policy's name; unless n is 0: n_options u32, f64 each, budget f64, and u32
 *                             each is_percent sinks recent every prompt
 *     for each layer:
 *       keys       method     n u32, n bytes of name, format u32, n_options u32, f64 each; of a codec that hands
 *                             rows to another one, that one's too
 *       values     method
 *       n_fields   u32        4
 *       fields     u64 each   window sinks residual granule
 *       and for each kv head:
 *         n_fields u32        4
 *         fields   u64 each   f64 bits of key_bits value_bits (0: the codec has no option `bits`), value_at page_bytes
 *       state      u32 each   first_pos n_rows coded_end coded_floor
 *     zeros to a multiple of 64
 *     for each layer and kv head:
 *       table      n_pages u32, first_index u32 (pages that left the window before them)
 *       masks      u64 each: bits of the min(S, n_rows) sinks, of the n_rows - coded_end exact rows; 0 is evicted
 *       pages      first row u32, n u32, flags u32 (1: offsets, 2: recoded), 0 u32, live u64; with offsets: u16 [64]
 *       and, each part padded with zeros to a multiple of 64:
 *       sinks      keys [min(S, n_rows)][d_k], values: in the type of exact rows
 *       pages      page_bytes each, those that the next query can see
 *       exact      keys [n_rows - coded_end][d_k], values
 *     evict        state of the policy (evict_file.c), then zeros to a multiple of 64
 *     checksum     u64        XXH64 of all before, seed 0
 *
 * A file is checked to its last byte before the cache is touched; then its pages are taken from a store of their own,
 * and only when they are all there does it replace the old one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/cursor.h"
#include "kv/evict.h"
#include "kv/kv_inner.h"
#include "kv/save.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

static const char magic[8] = {'V', 'Q', '-', 'C', 'A', 'C', 'H', 'E'};
enum { VERSION = 5, N_FIELDS = 11, N_LAYER_FIELDS = 4, N_HEAD_FIELDS = 4, ALIGN = 64, HAS_OFFSETS = 1, IS_RECODED = 2 };

/* What has to be equal in the file and in the cache. */
typedef struct field {
    const char *name;
    uint64_t value;
    enum { AS_COUNT, AS_FLOAT, AS_DOUBLE } kind;
} field;

static uint64_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void fields_of(const vq_kv *kv, field f[N_FIELDS])
{
    const field all[N_FIELDS] = {{"n_layers", kv->n_layers, AS_COUNT},
                                 {"n_heads", kv->n_heads, AS_COUNT},
                                 {"n_kv_heads", kv->n_kv_heads, AS_COUNT},
                                 {"d_k", kv->d_k, AS_COUNT},
                                 {"d_v", kv->d_v, AS_COUNT},
                                 {"exact", kv->exact, AS_COUNT},
                                 {"seed", kv->seed, AS_COUNT},
                                 {"model_hash", kv->model_hash, AS_COUNT},
                                 {"scale", float_bits(kv->scale), AS_FLOAT},
                                 {"rope_base", float_bits(kv->rope_base), AS_FLOAT},
                                 {"calibration", kv->calibration_hash, AS_COUNT}};
    memcpy(f, all, sizeof all);
}

static void layer_fields_of(const vq_kv_layer *l, field f[N_LAYER_FIELDS])
{
    const field all[N_LAYER_FIELDS] = {{"window", l->window, AS_COUNT},
                                       {"sinks", l->sinks, AS_COUNT},
                                       {"residual", l->residual, AS_COUNT},
                                       {"granule", l->granule, AS_COUNT}};
    memcpy(f, all, sizeof all);
}

static void head_fields_of(const vq_kv_head *h, field f[N_HEAD_FIELDS])
{
    const field all[N_HEAD_FIELDS] = {{"bits of keys", double_bits(h->k_bits), AS_DOUBLE},
                                      {"bits of values", double_bits(h->v_bits), AS_DOUBLE},
                                      {"value_at", h->value_at, AS_COUNT},
                                      {"page_bytes", h->page_bytes, AS_COUNT}};
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

static void put_any(void *w, const void *bytes, size_t n) { put(w, bytes, n); }

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

static void put_codec(writer *w, const vq_codec *codec, const double *values)
{
    const uint32_t n = (uint32_t)strlen(codec->name);
    put_u32(w, n);
    put(w, codec->name, n);
    put_u32(w, codec->format);
    put_u32(w, (uint32_t)codec->n_options);
    put(w, values, codec->n_options * sizeof values[0]);
}

static void put_method(writer *w, const vq_method *m)
{
    put_codec(w, m->codec, m->values);
    if (m->inner)
        put_codec(w, m->inner, m->inner_values);
}

static void put_exact_rows(writer *w, const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys)
{
    for (uint32_t row = l->coded_end, n; row < l->n_rows; row += n) {
        const unsigned char *rows = vq_kv_exact_rows(kv, l, head, keys, row, &n);
        put(w, rows, (size_t)n * (keys ? kv->d_k : kv->d_v) * kv->exact_bytes);
    }
    pad(w);
}

static void put_page_entry(writer *w, const vq_kv_page *p)
{
    put_u32(w, p->first);
    put_u32(w, p->n);
    put_u32(w, (p->offsets ? HAS_OFFSETS : 0u) | (p->is_recoded ? IS_RECODED : 0u));
    put_u32(w, 0);
    put_u64(w, p->live);
    if (p->offsets)
        put(w, p->offsets, VQ_PAGE_ROWS * sizeof *p->offsets);
}

static void put_head(writer *w, const vq_kv *kv, const vq_kv_layer *l, uint32_t head)
{
    const vq_kv_head *h = &l->heads[head];
    const uint32_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks, seen = vq_kv_first_seen(l);
    uint32_t first = 0;
    while (first < h->n_pages && vq_kv_page_end(&h->pages[first]) <= seen)
        first++;
    put_u32(w, h->n_pages - first);
    put_u32(w, h->first_index + first);
    for (uint32_t row = 0; row < n_sinks; row += 64)
        put_u64(w, vq_mask_bits(h->sink_live, row, n_sinks - row < 64 ? n_sinks - row : 64));
    for (uint32_t row = l->coded_end; row < l->n_rows; row += 64)
        put_u64(w, vq_kv_exact_live(l, head, row, l->n_rows - row < 64 ? l->n_rows - row : 64));
    for (uint32_t p = first; p < h->n_pages; p++)
        put_page_entry(w, &h->pages[p]);
    pad(w);
    put(w, h->sink_k, n_sinks * kv->d_k * kv->exact_bytes);
    pad(w);
    put(w, h->sink_v, n_sinks * kv->d_v * kv->exact_bytes);
    pad(w);
    for (uint32_t p = first; p < h->n_pages; p++)
        put(w, h->pages[p].bytes, h->page_bytes);
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
    vq_evictor_put_choice(kv, put_any, &w);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const vq_kv_layer *l = &kv->layers[i];
        put_method(&w, &l->keys);
        put_method(&w, &l->values);
        layer_fields_of(l, f);
        put_fields(&w, f, N_LAYER_FIELDS);
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            head_fields_of(&l->heads[h], f);
            put_fields(&w, f, N_HEAD_FIELDS);
        }
        put_u32(&w, l->first_pos);
        put_u32(&w, l->n_rows);
        put_u32(&w, l->coded_end);
        put_u32(&w, l->coded_floor);
    }
    pad(&w);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            put_head(&w, kv, &kv->layers[i], h);
    vq_evictor_put_state(kv, put_any, &w);
    pad(&w);
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
    vq_file_writer_freeze(file);
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

static double real_of(int kind, uint64_t bits)
{
    double real;
    float single;
    const uint32_t low = (uint32_t)bits;
    memcpy(&real, &bits, sizeof real);
    memcpy(&single, &low, sizeof single);
    return kind == AS_FLOAT ? (double)single : real;
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
        if (f[i].kind != AS_COUNT)
            return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s is %.9g in the file, %.9g in the cache", r->name, where,
                           f[i].name, real_of(f[i].kind, value), real_of(f[i].kind, f[i].value));
        return vq_fail(r->err, VQ_ERR_MISMATCH, "%s: %s%s is %" PRIu64 " in the file, %" PRIu64 " in the cache",
                       r->name, where, f[i].name, value, f[i].value);
    }
    return VQ_OK;
}

static vq_status check_codec(reader *r, const char *where, const char *side, const vq_codec *codec,
                             const double *values)
{
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
        if (memcmp(&value, &values[i], sizeof value) != 0)
            return vq_fail(r->err, VQ_ERR_MISMATCH,
                           "%s: %s%s: option %s of %s is %g in the file, %g in the cache: open the cache with %s=%g",
                           r->name, where, side, codec->options[i].name, codec->name, value, values[i],
                           codec->options[i].name, value);
    }
    return VQ_OK;
}

static vq_status check_method(reader *r, const char *where, const char *side, const vq_method *m)
{
    VQ_TRY(check_codec(r, where, side, m->codec, m->values));
    return m->inner ? check_codec(r, where, side, m->inner, m->inner_values) : VQ_OK;
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
    to->gone = vq_kv_first_seen(to);
    return VQ_OK;
}

static size_t padded(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static void take_padding(reader *r)
{
    vq_cursor_take(&r->c, padded((size_t)vq_cursor_offset(&r->c)) - vq_cursor_offset(&r->c));
}

/* One entry of a table, whose rows follow those before `*row`.  `offsets` [VQ_PAGE_ROWS] is where its offsets go. */
static vq_status read_page_entry(reader *r, const vq_kv_layer *l, uint32_t *row, vq_kv_page *out, uint16_t *offsets)
{
    const uint32_t first = vq_cursor_u32(&r->c), n = vq_cursor_u32(&r->c), flags = vq_cursor_u32(&r->c);
    const uint32_t zero = vq_cursor_u32(&r->c);
    *out = (vq_kv_page){.live = vq_cursor_u64(&r->c), .first = first, .is_recoded = flags & IS_RECODED};
    if (flags & HAS_OFFSETS) {
        out->offsets = offsets;
        for (uint32_t i = 0; i < VQ_PAGE_ROWS; i++)
            offsets[i] = vq_cursor_u16(&r->c);
    }
    if (r->c.bad)
        return truncated(r, "table of pages");
    if (n < 1 || n > VQ_PAGE_ROWS || flags > (HAS_OFFSETS | IS_RECODED) || zero != 0)
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: a page of %u rows with flags %u and %u", r->name, n, flags, zero);
    out->n = (uint8_t)n;
    bool ascending = first >= *row && first < l->coded_end;
    for (uint32_t i = 1; out->offsets && i < n; i++)
        ascending = ascending && offsets[i] > offsets[i - 1];
    if (!ascending || (out->offsets && offsets[0] != 0) || vq_kv_page_row(out, n - 1) >= l->coded_end)
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: the rows of a page from %u on are not ascending from %u to %u",
                       r->name, first, *row, l->coded_end);
    if (out->live & ~vq_low_bits(n))
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: a page of %u rows has mask %016" PRIx64, r->name, n, out->live);
    if (!out->offsets && ((first - l->sinks) % l->granule || n % l->granule))
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: %u rows from %u on are not whole granules of %u", r->name, n, first,
                       l->granule);
    *row = vq_kv_page_end(out);
    return VQ_OK;
}

static vq_status check_mask(reader *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        const uint64_t bits = vq_cursor_u64(&r->c);
        if (bits & ~vq_low_bits(n - i < 64 ? n - i : 64))
            return vq_fail(r->err, VQ_ERR_VALUE, "%s: a mask of %u rows has more bits than rows", r->name, n);
    }
    return VQ_OK;
}

/* Room that a file's rows need. */
typedef struct file_sizes {
    uint32_t *n_pages; /* [n_layers][n_kv_heads] */
    size_t n_offsets;
} file_sizes;

/* Walks over one head and counts. */
static vq_status check_head(reader *r, const vq_kv *kv, const vq_kv_layer *l, size_t page_bytes, uint32_t *n_pages,
                            size_t *n_offsets)
{
    const uint32_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const uint32_t n_exact = l->n_rows > l->coded_end ? l->n_rows - l->coded_end : 0;
    const uint32_t n = vq_cursor_u32(&r->c), index = vq_cursor_u32(&r->c);
    if (n > l->page_room)
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: %u pages, the cache has room for %u", r->name, n, l->page_room);
    if (index > l->gone / VQ_GRANULE)
        return vq_fail(r->err, VQ_ERR_VALUE, "%s: %u pages before row %u", r->name, index, l->gone);
    VQ_TRY(check_mask(r, n_sinks));
    VQ_TRY(check_mask(r, n_exact));
    uint32_t row = l->sinks;
    uint16_t offsets[VQ_PAGE_ROWS];
    vq_kv_page page;
    for (uint32_t p = 0; p < n; p++) {
        VQ_TRY(read_page_entry(r, l, &row, &page, offsets));
        *n_offsets += page.offsets != NULL;
    }
    *n_pages += n;
    take_padding(r);
    const size_t k = kv->d_k * kv->exact_bytes, v = kv->d_v * kv->exact_bytes;
    vq_cursor_take(&r->c, padded(n_sinks * k) + padded(n_sinks * v) + (uint64_t)n * page_bytes + padded(n_exact * k) +
                              padded(n_exact * v));
    return VQ_OK;
}

static vq_status check_heads(reader *r, const vq_kv *kv, const vq_kv_layer *layers, file_sizes *sizes)
{
    for (uint32_t i = 0; i < kv->n_layers && !r->c.bad; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads && !r->c.bad; h++)
            VQ_TRY(check_head(r, kv, &layers[i], layers[i].heads[h].page_bytes, &sizes->n_pages[i * kv->n_kv_heads + h],
                              &sizes->n_offsets));
    VQ_TRY(vq_evictor_check_state(kv, layers, r->name, &r->c, r->err));
    take_padding(r);
    return VQ_OK;
}

static vq_status check_sum(reader *r)
{
    const size_t n_hashed = (size_t)(r->c.end - r->c.start) - sizeof(uint64_t);
    vq_cursor tail = vq_cursor_make(r->c.start + n_hashed, sizeof(uint64_t));
    const uint64_t want = vq_cursor_u64(&tail), got = XXH64(r->c.start, n_hashed, 0);
    if (got != want)
        return vq_fail(r->err, VQ_ERR_CHECKSUM, "%s: checksum is %016" PRIx64 ", the bytes have %016" PRIx64, r->name,
                       want, got);
    return VQ_OK;
}

/* Checks all of the file and stops where the heads begin. */
static vq_status read_header(reader *r, const vq_kv *kv, vq_kv_layer *layers, file_sizes *sizes)
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
    VQ_TRY(vq_evictor_check_choice(kv, r->name, &r->c, r->err));
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        char where[32];
        snprintf(where, sizeof where, "layer %u: ", i);
        layers[i] = kv->layers[i];
        layer_fields_of(&layers[i], f);
        VQ_TRY(check_method(r, where, "keys", &layers[i].keys));
        VQ_TRY(check_method(r, where, "values", &layers[i].values));
        VQ_TRY(check_fields(r, where, f, N_LAYER_FIELDS));
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            char head[48];
            snprintf(head, sizeof head, "layer %u, head %u: ", i, h);
            head_fields_of(&layers[i].heads[h], f);
            VQ_TRY(check_fields(r, head, f, N_HEAD_FIELDS));
        }
        VQ_TRY(read_state(r, kv, where, &layers[i]));
    }
    take_padding(r);
    const uint8_t *heads = r->c.at;
    const vq_status status = check_heads(r, kv, layers, sizes);
    if (r->c.bad)
        return truncated(r, "rows");
    if (status == VQ_OK) {
        const uint64_t left = vq_cursor_left(&r->c), expected = sizeof(uint64_t);
        if (left < expected)
            return truncated(r, "rows");
        if (left > expected)
            return vq_fail(r->err, VQ_ERR_BOUNDS, "%s: %" PRIu64 " bytes follow the end", r->name, left - expected);
    }
    VQ_TRY(check_sum(r));
    VQ_TRY(status);
    r->c.at = heads;
    return VQ_OK;
}

static void take_rows(reader *r, void *to, size_t n)
{
    const uint8_t *from = vq_cursor_take(&r->c, padded(n));
    if (n > 0)
        memcpy(to, from, n);
}

static void take_mask(reader *r, uint64_t *mask, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64)
        mask[i / 64] = vq_cursor_u64(&r->c);
}

/* What was taken from the fresh store, in the order in which heads want it.  pages: NULL where they stay in the file.
 */
typedef struct taken {
    unsigned char **pages, **offsets;
    size_t n_pages, n_offsets;
} taken;

static void read_head(reader *r, const vq_kv *kv, const vq_kv_layer *l, uint32_t head, taken *t)
{
    vq_kv_head *h = &l->heads[head];
    const uint32_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const uint32_t n_exact = l->n_rows > l->coded_end ? l->n_rows - l->coded_end : 0;
    h->n_pages = vq_cursor_u32(&r->c);
    h->first_index = vq_cursor_u32(&r->c);
    take_mask(r, h->sink_live, n_sinks);
    take_mask(r, h->exact_live, n_exact);
    uint32_t row = l->sinks;
    for (uint32_t p = 0; p < h->n_pages; p++) {
        uint16_t offsets[VQ_PAGE_ROWS];
        read_page_entry(r, l, &row, &h->pages[p], offsets);
        if (t->pages)
            h->pages[p].bytes = t->pages[t->n_pages++];
        if (!h->pages[p].offsets)
            continue;
        h->pages[p].offsets = (uint16_t *)(void *)t->offsets[t->n_offsets++];
        memcpy(h->pages[p].offsets, offsets, sizeof offsets);
    }
    take_padding(r);
    take_rows(r, h->sink_k, n_sinks * kv->d_k * kv->exact_bytes);
    take_rows(r, h->sink_v, n_sinks * kv->d_v * kv->exact_bytes);
    for (uint32_t p = 0; p < h->n_pages; p++) {
        const uint8_t *page = vq_cursor_take(&r->c, h->page_bytes);
        if (t->pages)
            memcpy(h->pages[p].bytes, page, h->page_bytes);
        else
            h->pages[p].bytes = (unsigned char *)(uintptr_t)page; /* never written: it is not the cache's own */
    }
    take_rows(r, h->exact_k, n_exact * kv->d_k * kv->exact_bytes);
    take_rows(r, h->exact_v, n_exact * kv->d_v * kv->exact_bytes);
}

static vq_status take(taken *t, vq_store *store, const vq_kv *kv, const file_sizes *sizes, vq_error *err)
{
    for (uint32_t i = 0; t->pages && i < kv->n_layers * kv->n_kv_heads; i++) /* an area a head */
        for (uint32_t n = 0; n < sizes->n_pages[i]; n++)
            if (!(t->pages[t->n_pages++] = vq_store_take(store, i, err)))
                return VQ_ERR_NOMEM;
    while (t->n_offsets < sizes->n_offsets)
        if (!(t->offsets[t->n_offsets++] = vq_store_take(store, kv->offset_area, err)))
            return VQ_ERR_NOMEM;
    return VQ_OK;
}

/* Replaces the cache's rows, once there are pages for the file's. */
static vq_status replace(reader *r, vq_kv *kv, const vq_kv_layer *layers, const file_sizes *sizes, vq_file_map *map)
{
    size_t n_pages = 0;
    for (uint32_t i = 0; i < kv->n_layers * kv->n_kv_heads; i++)
        n_pages += sizes->n_pages[i];
    const bool stay = map && map->is_frozen && n_pages > 0;
    vq_store fresh = {0};
    vq_kv_base *base = NULL;
    unsigned char **list = calloc(n_pages + sizes->n_offsets + 1, sizeof *list);
    taken t = {.pages = stay ? NULL : list, .offsets = list + n_pages};
    vq_status status = list ? vq_store_open_like(&fresh, &kv->store, r->err)
                            : vq_fail(r->err, VQ_ERR_NOMEM, "%s: no memory to load %zu pages", r->name, n_pages);
    if (status == VQ_OK)
        status = take(&t, &fresh, kv, sizes, r->err);
    if (status == VQ_OK && stay)
        status = vq_kv_open_file_base(&base, kv, sizes->n_pages, r->err);
    if (status == VQ_OK) {
        vq_kv_let_go(kv);
        vq_store_close(&kv->store);
        kv->store = fresh;
        kv->pending = VQ_NO_LAYER;
        t.n_pages = t.n_offsets = 0;
        for (uint32_t i = 0; i < kv->n_layers; i++) {
            kv->layers[i] = layers[i];
            for (uint32_t h = 0; h < kv->n_kv_heads; h++)
                read_head(r, kv, &kv->layers[i], h, &t);
        }
        vq_evictor_load_state(kv, &r->c);
        if (base)
            vq_kv_add_file_base(kv, base, map);
    } else {
        vq_store_close(&fresh);
    }
    free(list);
    return status;
}

vq_status vq_kv_restore(vq_kv *kv, const char *name, const void *bytes, size_t n_bytes, vq_file_map *map, vq_error *err)
{
    reader r = {.name = name, .c = vq_cursor_make(bytes, n_bytes), .err = err};
    vq_kv_layer *layers = calloc(kv->n_layers, sizeof *layers);
    file_sizes sizes = {.n_pages = calloc((size_t)kv->n_layers * kv->n_kv_heads, sizeof *sizes.n_pages)};
    vq_status status = VQ_OK;
    if (!layers || !sizes.n_pages)
        status = vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for %u layers", name, kv->n_layers);
    if (status == VQ_OK)
        status = read_header(&r, kv, layers, &sizes);
    if (status == VQ_OK)
        status = replace(&r, kv, layers, &sizes, map);
    free(sizes.n_pages);
    free(layers);
    return status;
}

vq_status vq_kv_load(vq_kv *kv, const char *path, vq_error *err)
{
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    const vq_status status = vq_kv_restore(kv, path, map.bytes, map.n_bytes, &map, err);
    vq_file_map_close(&map);
    return status;
}
