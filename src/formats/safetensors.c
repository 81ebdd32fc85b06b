#include "formats/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/file.h"

enum { MAX_HEADER_BYTES = 100 << 20, MAX_TENSORS = 1 << 20 }; /* the first is the format's own limit */

typedef unsigned long long ull;

struct vq_safetensors {
    char *path;
    vq_file_map map;
    json_t *header; /* names and dtypes point into it */
    const uint8_t *data;
    uint64_t n_data;
    uint64_t n;
    vq_tensor *tensors;  /* [n] */
    const char **dtypes; /* [n] */
};

/* Types that other dtypes have in bytes; 0: unknown. */
static uint32_t bytes_of(const char *dtype, vq_type *type)
{
    static const struct {
        const char *name;
        uint32_t n_bytes;
        vq_type type;
    } rows[] = {
        {"F32", 4, VQ_TYPE_F32}, {"F16", 2, VQ_TYPE_F16},    {"BF16", 2, VQ_TYPE_BF16},  {"F64", 8, VQ_N_TYPES},
        {"I64", 8, VQ_N_TYPES},  {"U64", 8, VQ_N_TYPES},     {"I32", 4, VQ_N_TYPES},     {"U32", 4, VQ_N_TYPES},
        {"I16", 2, VQ_N_TYPES},  {"U16", 2, VQ_N_TYPES},     {"I8", 1, VQ_N_TYPES},      {"U8", 1, VQ_N_TYPES},
        {"BOOL", 1, VQ_N_TYPES}, {"F8_E4M3", 1, VQ_N_TYPES}, {"F8_E5M2", 1, VQ_N_TYPES},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, dtype) == 0) {
            *type = rows[i].type;
            return rows[i].n_bytes;
        }
    }
    return 0;
}

static vq_status read_shape(const char *name, const json_t *shape, vq_tensor *t, uint64_t *n_values, vq_error *err)
{
    const size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > VQ_MAX_DIMS)
        return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.96s': 'shape' must be a list of at most %d numbers", name,
                       VQ_MAX_DIMS);
    t->n_dims = n ? (uint32_t)n : 1;
    *n_values = 1;
    for (uint32_t i = 0; i < VQ_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 1)
            return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.96s': dimension %zu must be a whole number of at least 1",
                           name, i);
        t->dims[n - 1 - i] = (uint64_t)json_integer_value(d); /* theirs varies slowest first */
        if (!vq_mul_u64(*n_values, t->dims[n - 1 - i], n_values) || *n_values > INT64_MAX / 8)
            return vq_fail(err, VQ_ERR_OVERFLOW, "tensor '%.96s': its elements do not fit in 60 bits", name);
    }
    return VQ_OK;
}

static vq_status read_tensor(vq_safetensors *s, const char *name, const json_t *about, vq_error *err)
{
    vq_tensor *t = &s->tensors[s->n];
    const char *dtype = json_string_value(json_object_get(about, "dtype"));
    const json_t *range = json_object_get(about, "data_offsets"), *first = json_array_get(range, 0),
                 *last = json_array_get(range, 1);
    uint64_t n_values = 0;
    if (!dtype)
        return vq_fail(err, VQ_ERR_MISSING_KEY, "tensor '%.96s': no text 'dtype'", name);
    const uint32_t each = bytes_of(dtype, &t->type);
    if (!each)
        return vq_fail(err, VQ_ERR_TYPE, "tensor '%.96s': dtype '%.32s' is not known", name, dtype);
    VQ_TRY(read_shape(name, json_object_get(about, "shape"), t, &n_values, err));
    if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return vq_fail(err, VQ_ERR_VALUE, "tensor '%.96s': 'data_offsets' must be two whole numbers", name);
    const int64_t from = json_integer_value(first), to = json_integer_value(last);
    if (from < 0 || to < from || (uint64_t)to > s->n_data)
        return vq_fail(err, VQ_ERR_BOUNDS, "tensor '%.96s': data from %lld to %lld, the file has 0 to %llu", name,
                       (long long)from, (long long)to, (ull)s->n_data);
    t->n_bytes = (uint64_t)(to - from);
    if (n_values * each != t->n_bytes)
        return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.96s': %llu bytes, its shape and dtype need %llu", name,
                       (ull)t->n_bytes, (ull)(n_values * each));
    t->data = s->data + from;
    if ((uintptr_t)t->data % (each < 4 ? each : 4))
        return vq_fail(err, VQ_ERR_ALIGN, "tensor '%.96s': data at %lld, which no %s can be read from", name,
                       (long long)from, dtype);
    t->name = (vq_str){name, strlen(name)};
    s->dtypes[s->n++] = dtype;
    return VQ_OK;
}

static int compare(const void *a, const void *b)
{
    const vq_tensor *x = *(const vq_tensor *const *)a, *y = *(const vq_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static vq_status check_overlap(const vq_safetensors *s, vq_error *err)
{
    const vq_tensor **sorted = malloc((s->n + 1) * sizeof *sorted);
    if (!sorted)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (ull)s->n);
    for (uint64_t i = 0; i < s->n; i++)
        sorted[i] = &s->tensors[i];
    qsort(sorted, s->n, sizeof *sorted, compare);
    vq_status status = VQ_OK;
    for (uint64_t i = 1; status == VQ_OK && i < s->n; i++)
        if ((const char *)sorted[i - 1]->data + sorted[i - 1]->n_bytes > (const char *)sorted[i]->data)
            status = vq_fail(err, VQ_ERR_OVERLAP, "tensors '%.96s' and '%.96s' overlap", sorted[i - 1]->name.at,
                             sorted[i]->name.at);
    free(sorted);
    return status;
}

static vq_status parse(vq_safetensors *s, const uint8_t *bytes, size_t n_bytes, vq_error *err)
{
    vq_cursor c = vq_cursor_make(bytes, n_bytes);
    const uint64_t n_header = vq_cursor_u64(&c);
    if (c.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%zu bytes are too few for a safetensors file", n_bytes);
    if (n_header > MAX_HEADER_BYTES)
        return vq_fail(err, VQ_ERR_LIMIT, "a header of %llu bytes, at most %d are read", (ull)n_header,
                       MAX_HEADER_BYTES);
    const uint8_t *text = vq_cursor_take(&c, n_header);
    if (!text)
        return vq_fail(err, VQ_ERR_TRUNCATED, "a header of %llu bytes, %llu are left in the file", (ull)n_header,
                       (ull)vq_cursor_left(&c));
    s->data = text + n_header;
    s->n_data = vq_cursor_left(&c);
    json_error_t fault;
    s->header = json_loadb((const char *)text, n_header, JSON_REJECT_DUPLICATES, &fault);
    if (!s->header)
        return vq_fail(err, VQ_ERR_VALUE, "the header is not JSON: %s (line %d, column %d)", fault.text, fault.line,
                       fault.column);
    const size_t n = json_object_size(s->header);
    if (!json_is_object(s->header) || n > MAX_TENSORS)
        return vq_fail(err, VQ_ERR_LIMIT, "the header must be an object of at most %d tensors", MAX_TENSORS);
    s->tensors = calloc(n + 1, sizeof *s->tensors);
    s->dtypes = calloc(n + 1, sizeof *s->dtypes);
    if (!s->tensors || !s->dtypes)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu tensors", n);
    const char *name;
    json_t *about;
    json_object_foreach(s->header, name, about) if (strcmp(name, "__metadata__") != 0)
        VQ_TRY(read_tensor(s, name, about, err));
    return check_overlap(s, err);
}

static vq_status open_bytes(vq_safetensors **out, const char *path, vq_file_map map, const void *bytes, size_t n_bytes,
                            vq_error *err)
{
    vq_safetensors *s = calloc(1, sizeof *s);
    char *copy = strdup(path);
    if (!s || !copy) {
        free(s);
        free(copy);
        vq_file_map_close(&map);
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to open it", path);
    }
    s->path = copy;
    s->map = map;
    const vq_status status = parse(s, bytes, n_bytes, err);
    if (status != VQ_OK) {
        vq_fail_prefix(err, status, "%s", path);
        vq_safetensors_close(s);
        return status;
    }
    *out = s;
    return VQ_OK;
}

vq_status vq_safetensors_open(vq_safetensors **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    return open_bytes(out, path, map, map.bytes, map.n_bytes, err);
}

vq_status vq_safetensors_read(vq_safetensors **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    *out = NULL;
    return open_bytes(out, name, (vq_file_map){0}, bytes, n_bytes, err);
}

void vq_safetensors_close(vq_safetensors *s)
{
    if (!s)
        return;
    json_decref(s->header);
    vq_file_map_close(&s->map);
    free(s->tensors);
    free(s->dtypes);
    free(s->path);
    free(s);
}

uint64_t vq_safetensors_count(const vq_safetensors *s) { return s->n; }

const vq_tensor *vq_safetensors_at(const vq_safetensors *s, uint64_t index) { return &s->tensors[index]; }

const char *vq_safetensors_dtype(const vq_safetensors *s, uint64_t index) { return s->dtypes[index]; }

vq_status vq_safetensors_check_whole(const vq_safetensors *s, vq_error *err)
{
    return vq_file_map_check(&s->map, s->path, err);
}
