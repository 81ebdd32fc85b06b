/* Reading reservoirs: the head, the JSON header, the metadata, and bounds of everything else (reservoir.h draws the
 * file). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "formats/reservoir.h"
#include "quant/linear.h"

enum {
    MAX_HEADER_BYTES = 1 << 28,
    MAX_TENSORS = 1 << 20,
    MAX_ROTATIONS = 4096,
    MAX_NAME_BYTES = 64, /* of a tensor, as in GGUF */
};

typedef unsigned long long ull;

/* ---- fields of JSON objects: each names itself in its message ---- */

typedef struct place {
    const json_t *object;
    const char *what; /* "tensors[3]" */
} place;

static vq_status wrong(const place *p, const char *name, const char *wanted, vq_error *err)
{
    const bool there = json_object_get(p->object, name) != NULL;
    return vq_fail(err, there ? VQ_ERR_TYPE : VQ_ERR_MISSING_KEY, "header: %s: '%s' %s%s", p->what, name,
                   there ? "must be " : "is missing, ", wanted);
}

static vq_status get_count(const place *p, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                           vq_error *err)
{
    const json_t *v = json_object_get(p->object, name);
    if (!json_is_integer(v))
        return wrong(p, name, "a whole number", err);
    const json_int_t x = json_integer_value(v);
    if (x < 0 || (uint64_t)x < least || (uint64_t)x > most)
        return vq_fail(err, VQ_ERR_VALUE, "header: %s: '%s' is %lld, must be %llu to %llu", p->what, name, (long long)x,
                       (ull)least, (ull)most);
    *out = (uint64_t)x;
    return VQ_OK;
}

static vq_status get_text(const place *p, const char *name, size_t most, vq_str *out, vq_error *err)
{
    const json_t *v = json_object_get(p->object, name);
    if (!json_is_string(v))
        return wrong(p, name, "a text", err);
    *out = (vq_str){json_string_value(v), json_string_length(v)};
    if (!out->n_bytes || out->n_bytes > most)
        return vq_fail(err, VQ_ERR_LIMIT, "header: %s: '%s' has %zu bytes, must have 1 to %zu", p->what, name,
                       out->n_bytes, most);
    return VQ_OK;
}

static vq_status get_sum(const place *p, const char *name, uint64_t *out, vq_error *err)
{
    vq_str text;
    VQ_TRY(get_text(p, name, 16, &text, err));
    *out = 0;
    bool fine = text.n_bytes == 16;
    for (size_t i = 0; fine && i < 16; i++) {
        const char c = text.at[i];
        fine = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        *out = *out << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return fine ? VQ_OK
                : vq_fail(err, VQ_ERR_VALUE, "header: %s: '%s' is \"%s\", must be 16 digits 0-9 a-f", p->what, name,
                          text.at);
}

/* Where a blob lies: page-aligned, between the first page and the header. */
static vq_status get_range(const vq_reservoir_head *head, const place *p, uint64_t *at, uint64_t *n_bytes,
                           vq_error *err)
{
    VQ_TRY(get_count(p, "offset", 0, INT64_MAX, at, err));
    VQ_TRY(get_count(p, "bytes", 1, INT64_MAX, n_bytes, err));
    if (*at % VQ_RESERVOIR_PAGE)
        return vq_fail(err, VQ_ERR_ALIGN, "header: %s: offset %llu is no multiple of %d", p->what, (ull)*at,
                       VQ_RESERVOIR_PAGE);
    if (*at < VQ_RESERVOIR_PAGE || *at > head->header_at || *n_bytes > head->header_at - *at)
        return vq_fail(err, VQ_ERR_BOUNDS, "header: %s: %llu bytes at offset %llu, blobs lie in %d .. %llu", p->what,
                       (ull)*n_bytes, (ull)*at, VQ_RESERVOIR_PAGE, (ull)head->header_at);
    return VQ_OK;
}

static vq_status get_list(const json_t *header, const char *name, size_t most, const json_t **out, vq_error *err)
{
    *out = json_object_get(header, name);
    if (!json_is_array(*out))
        return vq_fail(err, *out ? VQ_ERR_TYPE : VQ_ERR_MISSING_KEY, "header: '%s' %s", name,
                       *out ? "must be a list" : "is missing");
    if (json_array_size(*out) > most)
        return vq_fail(err, VQ_ERR_LIMIT, "header: '%s' has %zu entries, at most %zu are read", name,
                       json_array_size(*out), most);
    return VQ_OK;
}

/* ---- the parts ---- */

static vq_status read_head(const vq_gguf *g, vq_reservoir_head *head, vq_error *err)
{
    if (g->n_bytes < sizeof *head)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%zu bytes: the file ends in the head of a reservoir, which has %zu",
                       g->n_bytes, sizeof *head);
    memcpy(head, g->bytes, sizeof *head);
    if (head->version != VQ_RESERVOIR_VERSION)
        return vq_fail(err, VQ_ERR_VERSION,
                       "reservoir version %u, this program reads %d; make it again with 'veloxquant quantize'",
                       head->version, VQ_RESERVOIR_VERSION);
    if (head->sum != XXH3_64bits(head, offsetof(vq_reservoir_head, sum)))
        return vq_fail(err, VQ_ERR_CHECKSUM, "the first 64 bytes were altered: their sum is not the stored one");
    if (head->page != VQ_RESERVOIR_PAGE)
        return vq_fail(err, VQ_ERR_ALIGN, "pages of %u bytes, must be %d", head->page, VQ_RESERVOIR_PAGE);
    if (head->zero)
        return vq_fail(err, VQ_ERR_VALUE, "bytes 24 to 31 are not zero");
    if (head->n_bytes != g->n_bytes)
        return vq_fail(err, head->n_bytes > g->n_bytes ? VQ_ERR_TRUNCATED : VQ_ERR_BOUNDS,
                       "%zu bytes, %llu were written: the file was %s", g->n_bytes, (ull)head->n_bytes,
                       head->n_bytes > g->n_bytes ? "cut" : "added to");
    if (head->n_header_bytes > MAX_HEADER_BYTES)
        return vq_fail(err, VQ_ERR_LIMIT, "a header of %llu bytes, at most %d are read", (ull)head->n_header_bytes,
                       MAX_HEADER_BYTES);
    if (head->header_at < VQ_RESERVOIR_PAGE || head->header_at > g->n_bytes ||
        head->n_header_bytes != g->n_bytes - head->header_at)
        return vq_fail(err, VQ_ERR_BOUNDS, "a header of %llu bytes at %llu, must be the end of the file's %zu",
                       (ull)head->n_header_bytes, (ull)head->header_at, g->n_bytes);
    if (head->header_sum != XXH3_64bits(g->bytes + head->header_at, head->n_header_bytes))
        return vq_fail(err, VQ_ERR_CHECKSUM, "the header was altered: its sum is not the stored one");
    return VQ_OK;
}

static vq_status read_metadata(vq_gguf *g, const vq_reservoir_head *head, vq_error *err)
{
    vq_reservoir *r = g->reservoir;
    const place p = {json_object_get(r->header, "metadata"), "metadata"};
    if (!json_is_object(p.object))
        return vq_fail(err, p.object ? VQ_ERR_TYPE : VQ_ERR_MISSING_KEY, "header: 'metadata' %s",
                       p.object ? "must be an object" : "is missing");
    VQ_TRY(get_range(head, &p, &r->metadata_at, &r->n_metadata_bytes, err));
    VQ_TRY(get_sum(&p, "sum", &r->metadata_sum, err));
    const uint8_t *bytes = g->bytes + r->metadata_at;
    if (r->metadata_sum != XXH3_64bits(bytes, r->n_metadata_bytes))
        return vq_fail(err, VQ_ERR_CHECKSUM, "the metadata were altered: their sum is not the stored one");
    vq_cursor c = vq_cursor_make(bytes, r->n_metadata_bytes);
    const uint64_t n = vq_cursor_u64(&c);
    if (c.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "metadata of %llu bytes: too few", (ull)r->n_metadata_bytes);
    VQ_TRY(vq_gguf_parse_values(g, &c, n, err));
    if (vq_cursor_left(&c))
        return vq_fail(err, VQ_ERR_BOUNDS, "metadata: %llu bytes after the last value", (ull)vq_cursor_left(&c));
    return VQ_OK;
}

static vq_status read_rotation(vq_gguf *g, const vq_reservoir_head *head, const place *p, vq_stored_rotation *out,
                               vq_error *err)
{
    uint64_t width, at, n_bytes;
    vq_str kind;
    VQ_TRY(get_count(p, "width", 1, 1 << 20, &width, err));
    VQ_TRY(get_count(p, "seed", 0, INT64_MAX, &out->seed, err));
    VQ_TRY(get_text(p, "kind", 16, &kind, err));
    VQ_TRY(get_sum(p, "hash", &out->hash, err));
    out->width = (uint32_t)width;
    out->haar = strcmp(kind.at, "qr") == 0;
    if (!out->haar && strcmp(kind.at, "hadamard") != 0)
        return vq_fail(err, VQ_ERR_VALUE, "header: %s: 'kind' is \"%s\", must be hadamard or qr", p->what, kind.at);
    if (json_object_get(p->object, "offset")) {
        VQ_TRY(get_range(head, p, &at, &n_bytes, err));
        VQ_TRY(get_sum(p, "sum", &out->sum, err));
        if (!out->haar || n_bytes != width * width * sizeof(float))
            return vq_fail(err, VQ_ERR_SHAPE,
                           "header: %s: %llu bytes are kept, only a qr rotation is, with %llu bytes for width %llu",
                           p->what, (ull)n_bytes, (ull)(width * width * sizeof(float)), (ull)width);
        out->matrix = (const float *)(const void *)(g->bytes + at);
    }
    for (const vq_stored_rotation *other = g->reservoir->rotations; other < out; other++)
        if (other->width == out->width)
            return vq_fail(err, VQ_ERR_DUPLICATE, "header: %s: a second rotation of width %u", p->what, out->width);
    return VQ_OK;
}

static vq_status read_rotations(vq_gguf *g, const vq_reservoir_head *head, vq_error *err)
{
    vq_reservoir *r = g->reservoir;
    const json_t *list;
    VQ_TRY(get_list(r->header, "rotations", MAX_ROTATIONS, &list, err));
    const size_t n = json_array_size(list);
    if (!n)
        return VQ_OK;
    r->rotations = calloc(n, sizeof *r->rotations);
    if (!r->rotations)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu rotations", n);
    for (; r->n_rotations < n; r->n_rotations++) {
        char what[32];
        snprintf(what, sizeof what, "rotations[%u]", r->n_rotations);
        const place p = {json_array_get(list, r->n_rotations), what};
        VQ_TRY(read_rotation(g, head, &p, &r->rotations[r->n_rotations], err));
    }
    return VQ_OK;
}

static vq_status read_dims(const place *p, vq_tensor *t, vq_error *err)
{
    const json_t *dims = json_object_get(p->object, "dims");
    if (!json_is_array(dims))
        return wrong(p, "dims", "a list", err);
    const size_t n = json_array_size(dims);
    if (n < 1 || n > VQ_MAX_DIMS)
        return vq_fail(err, VQ_ERR_SHAPE, "header: %s: %zu dimensions, must be 1 to %d", p->what, n, VQ_MAX_DIMS);
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < VQ_MAX_DIMS; i++) {
        const json_t *d = json_array_get(dims, i);
        t->dims[i] = 1;
        if (i >= n)
            continue;
        if (!json_is_integer(d) || json_integer_value(d) < 1)
            return vq_fail(err, VQ_ERR_SHAPE, "header: %s: dimension %zu must be a whole number of at least 1", p->what,
                           i);
        t->dims[i] = (uint64_t)json_integer_value(d);
    }
    return VQ_OK;
}

/* Bytes that the type and dimensions need. */
static vq_status measure(const vq_gguf *g, const place *p, vq_tensor *t, vq_error *err)
{
    if (!vq_type_packed_bits(t->type))
        return vq_gguf_measure_tensor(t, err);
    if (t->n_dims != 2 || t->dims[0] > UINT32_MAX || t->dims[1] > UINT32_MAX)
        return vq_fail(err, VQ_ERR_SHAPE, "header: %s: a packed tensor has 2 dimensions below 2^32", p->what);
    const uint32_t n_in = (uint32_t)t->dims[0], n_out = (uint32_t)t->dims[1];
    if (!vq_reservoir_rotation(g, n_in))
        return vq_fail(err, VQ_ERR_MISSING_KEY, "header: %s: no rotation of width %u in 'rotations'", p->what, n_in);
    vq_error why;
    if (vq_linear_check(vq_type_packed_bits(t->type), n_in, n_out, &why) != VQ_OK)
        return vq_fail(err, VQ_ERR_SHAPE, "header: %s: %s", p->what, why.text);
    t->n_bytes = vq_linear_bytes(vq_type_packed_bits(t->type), n_in, n_out);
    return VQ_OK;
}

static vq_status read_tensor(vq_gguf *g, const vq_reservoir_head *head, uint64_t index, const place *p, uint64_t *at,
                             vq_error *err)
{
    vq_tensor *t = &g->tensors[index];
    vq_str type;
    uint64_t n_bytes;
    VQ_TRY(get_text(p, "name", MAX_NAME_BYTES, &t->name, err));
    VQ_TRY(get_text(p, "type", 16, &type, err));
    t->type = vq_type_find(type.at);
    if (t->type == VQ_N_TYPES)
        return vq_fail(err, VQ_ERR_TYPE, "header: %s: type \"%s\" is not one that this library reads", p->what,
                       type.at);
    VQ_TRY(read_dims(p, t, err));
    VQ_TRY(measure(g, p, t, err));
    VQ_TRY(get_range(head, p, at, &n_bytes, err));
    if (n_bytes != t->n_bytes)
        return vq_fail(err, VQ_ERR_SHAPE, "header: %s: %llu bytes, its type and dimensions need %llu", p->what,
                       (ull)n_bytes, (ull)t->n_bytes);
    VQ_TRY(get_sum(p, "sum", &g->reservoir->sums[index], err));
    const json_t *error = json_object_get(p->object, "error");
    if (error && !json_is_number(error))
        return wrong(p, "error", "a number", err);
    g->reservoir->errors[index] = error ? json_number_value(error) : NAN;
    t->data = g->bytes + *at;
    g->names[index] = (gguf_name){t->name, index};
    return VQ_OK;
}

static vq_status read_tensors(vq_gguf *g, const vq_reservoir_head *head, uint64_t *offsets, const json_t *list,
                              vq_error *err)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        char what[32];
        snprintf(what, sizeof what, "tensors[%llu]", (ull)i);
        const place p = {json_array_get(list, i), what};
        VQ_TRY(read_tensor(g, head, i, &p, &offsets[i], err));
    }
    VQ_TRY(vq_gguf_sort_names(g->names, g->n_tensors, "tensor", err));
    return vq_gguf_check_overlap(g, offsets, err);
}

static vq_status read_table(vq_gguf *g, const vq_reservoir_head *head, vq_error *err)
{
    vq_reservoir *r = g->reservoir;
    const json_t *list;
    VQ_TRY(get_list(r->header, "tensors", MAX_TENSORS, &list, err));
    const size_t n = json_array_size(list);
    if (!n)
        return VQ_OK;
    uint64_t *offsets = calloc(n, sizeof *offsets);
    g->tensors = calloc(n, sizeof *g->tensors);
    g->names = calloc(n, sizeof *g->names);
    r->sums = calloc(n, sizeof *r->sums);
    r->errors = calloc(n, sizeof *r->errors);
    vq_status status = VQ_OK;
    if (!offsets || !g->tensors || !g->names || !r->sums || !r->errors) {
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu tensors", n);
    } else {
        g->n_tensors = n;
        status = read_tensors(g, head, offsets, list, err);
    }
    free(offsets);
    return status;
}

vq_status vq_reservoir_parse(vq_gguf *g, vq_error *err)
{
    vq_reservoir_head head;
    VQ_TRY(read_head(g, &head, err));
    g->version = head.version;
    g->alignment = head.page;
    g->reservoir = calloc(1, sizeof *g->reservoir);
    if (!g->reservoir)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a reservoir");
    json_error_t fault;
    g->reservoir->header =
        json_loadb((const char *)g->bytes + head.header_at, head.n_header_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!g->reservoir->header)
        return vq_fail(err, VQ_ERR_VALUE, "the header is not JSON: %s (line %d, column %d)", fault.text, fault.line,
                       fault.column);
    if (!json_is_object(g->reservoir->header))
        return vq_fail(err, VQ_ERR_TYPE, "the header is not a JSON object");
    VQ_TRY(read_metadata(g, &head, err));
    VQ_TRY(read_rotations(g, &head, err));
    return read_table(g, &head, err);
}

void vq_reservoir_free(vq_reservoir *r)
{
    if (!r)
        return;
    json_decref(r->header);
    free(r->rotations);
    free(r->sums);
    free(r->errors);
    free(r);
}

const vq_stored_rotation *vq_reservoir_rotation(const vq_gguf *g, uint32_t width)
{
    for (uint32_t i = 0; g->reservoir && i < g->reservoir->n_rotations; i++)
        if (g->reservoir->rotations[i].width == width)
            return &g->reservoir->rotations[i];
    return NULL;
}
