/* GGUF, versions 2 and 3, little-endian:
 *
 *     "GGUF"  u32 version  u64 n_tensors  u64 n_values
 *     n_values times:   string key, u32 kind, value
 *         string:  u64 n_bytes, bytes
 *         array:   u32 kind of the elements, u64 n, elements
 *     n_tensors times:  string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
 *     zeros up to a multiple of general.alignment (32 without that key)
 *     data; each offset counts from here
 *
 * Everything is checked here and nowhere else.  A count is compared with the bytes that are left before anything is
 * allocated for it, so that memory stays within a few times the size of the header.  The order of tensor data is free;
 * bytes after the last tensor are legal, and so is a file without tensors. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/status.h"
#include "formats/gguf_object.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are read in place: big-endian machines are not supported"
#endif

enum {
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8, /* the format demands a multiple of 8 */
    MAX_ALIGNMENT = 1 << 20,
    MAX_KEY_BYTES = 65535, /* both limits are the format's */
    MAX_NAME_BYTES = 64,
    MAX_VALUES = 1 << 20, /* real files have some dozens and some thousands */
    MAX_TENSORS = 1 << 20,
    MIN_VALUE_BYTES = 8 + 4 + 1, /* of a record in the file */
    MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8,
    ABSURD_BYTES = 1 << 30, /* see too_many_bytes */
};

typedef unsigned long long ull;

/* Bytes of a fixed-size value in the file; 0 for strings and arrays. */
static const uint8_t kind_bytes[VQ_N_GGUF_KINDS] = {
    [VQ_GGUF_U8] = 1,  [VQ_GGUF_I8] = 1,   [VQ_GGUF_U16] = 2, [VQ_GGUF_I16] = 2, [VQ_GGUF_U32] = 4, [VQ_GGUF_I32] = 4,
    [VQ_GGUF_F32] = 4, [VQ_GGUF_BOOL] = 1, [VQ_GGUF_U64] = 8, [VQ_GGUF_I64] = 8, [VQ_GGUF_F64] = 8,
};

/* A claim beyond the end of the file: a small one looks like a cut file, a huge one like a forged number. */
static vq_status too_many_bytes(uint64_t n_bytes) { return n_bytes > ABSURD_BYTES ? VQ_ERR_LIMIT : VQ_ERR_TRUNCATED; }

/* How much of a name goes into a message: a long one must not push out what is wrong. */
static int shown(vq_str name) { return name.n_bytes < 96 ? (int)name.n_bytes : 96; }

/* ---- keys and values ---- */

static vq_status read_key(vq_cursor *c, uint64_t index, vq_str *key, vq_error *err)
{
    const uint64_t n = vq_cursor_u64(c);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "the file ends in the length of key %llu", (ull)index);
    if (n > MAX_KEY_BYTES)
        return vq_fail(err, VQ_ERR_LIMIT, "key %llu has %llu bytes, at most %d are allowed", (ull)index, (ull)n,
                       MAX_KEY_BYTES);
    if (n > vq_cursor_left(c))
        return vq_fail(err, VQ_ERR_TRUNCATED, "key %llu has %llu bytes, %llu are left in the file", (ull)index, (ull)n,
                       (ull)vq_cursor_left(c));
    if (!n)
        return vq_fail(err, VQ_ERR_KEY, "key %llu is empty", (ull)index);

    *key = (vq_str){(const char *)vq_cursor_take(c, n), n};
    for (uint64_t i = 0; i < n; i++) { /* the format says lower_snake_case with dots; converters also write A-Z and - */
        const unsigned char b = (unsigned char)key->at[i];
        if (b <= ' ' || b > '~')
            return vq_fail(err, VQ_ERR_KEY, "key %llu '%.*s' has byte 0x%02x at %llu, which is not printable ASCII",
                           (ull)index, shown(*key), key->at, b, (ull)i);
    }
    return VQ_OK;
}

static vq_status check_bools(const vq_gguf_value *v, vq_error *err)
{
    const uint8_t *b = v->raw;
    for (uint64_t i = 0; i < v->n; i++)
        if (b[i] > 1)
            return vq_fail(err, VQ_ERR_VALUE, "key '%.*s' holds a bool of %u, must be 0 or 1", shown(v->key), v->key.at,
                           b[i]);
    return VQ_OK;
}

/* One string of a value, whose length is compared with what is left. */
static vq_status read_string(vq_cursor *c, const vq_gguf_value *v, uint64_t index, vq_str *out, vq_error *err)
{
    const uint64_t n = vq_cursor_u64(c);
    const uint8_t *at = vq_cursor_take(c, n);
    if (!at)
        return vq_fail(err, too_many_bytes(n), "key '%.*s': string %llu has %llu bytes, %llu are left in the file",
                       shown(v->key), v->key.at, (ull)index, (ull)n, (ull)vq_cursor_left(c));
    *out = (vq_str){(const char *)at, n};
    return VQ_OK;
}

static vq_status read_strings(vq_cursor *c, vq_gguf_value *v, vq_error *err)
{
    const int n_key = shown(v->key);
    if (v->n > vq_cursor_left(c) / 8)
        return vq_fail(err, too_many_bytes(v->n > UINT64_MAX / 8 ? UINT64_MAX : v->n * 8),
                       "key '%.*s': an array of %llu strings needs at least 8 bytes each, %llu are left in the file",
                       n_key, v->key.at, (ull)v->n, (ull)vq_cursor_left(c));
    if (!v->n)
        return VQ_OK;

    vq_str *strings = malloc(v->n * sizeof *strings); /* at most twice what is left */
    if (!strings)
        return vq_fail(err, VQ_ERR_NOMEM, "key '%.*s': no memory for %llu strings", n_key, v->key.at, (ull)v->n);
    v->strings = strings; /* owned by the value from here on */
    for (uint64_t i = 0; i < v->n; i++)
        VQ_TRY(read_string(c, v, i, &strings[i], err));
    return VQ_OK;
}

static vq_status read_array(vq_cursor *c, vq_gguf_value *v, vq_error *err)
{
    const int n_key = shown(v->key);
    const uint32_t kind = vq_cursor_u32(c);
    const uint64_t n = vq_cursor_u64(c);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "key '%.*s': the file ends in the head of an array", n_key, v->key.at);
    if (kind >= VQ_N_GGUF_KINDS)
        return vq_fail(err, VQ_ERR_TYPE, "key '%.*s': element type %u of an array is not in 0 .. %d", n_key, v->key.at,
                       kind, VQ_N_GGUF_KINDS - 1);
    if (kind == VQ_GGUF_ARRAY)
        return vq_fail(err, VQ_ERR_LIMIT, "key '%.*s': an array of arrays; only 1 level is read", n_key, v->key.at);

    v->array_kind = kind;
    v->n = n;
    v->raw = c->at;
    if (kind == VQ_GGUF_STRING)
        return read_strings(c, v, err);

    const uint64_t each = kind_bytes[kind];
    if (n > vq_cursor_left(c) / each)
        return vq_fail(err, too_many_bytes(n > UINT64_MAX / each ? UINT64_MAX : n * each),
                       "key '%.*s': an array of %llu elements of %llu bytes, %llu bytes are left in the file", n_key,
                       v->key.at, (ull)n, (ull)each, (ull)vq_cursor_left(c));
    vq_cursor_take(c, n * each);
    return kind == VQ_GGUF_BOOL ? check_bools(v, err) : VQ_OK;
}

static vq_status read_value(vq_cursor *c, vq_gguf_value *v, vq_str *single, vq_error *err)
{
    const int n_key = shown(v->key);
    const uint32_t kind = vq_cursor_u32(c);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "key '%.*s': the file ends before its type", n_key, v->key.at);
    if (kind >= VQ_N_GGUF_KINDS)
        return vq_fail(err, VQ_ERR_TYPE, "key '%.*s': value type %u is not in 0 .. %d", n_key, v->key.at, kind,
                       VQ_N_GGUF_KINDS - 1);

    v->kind = v->array_kind = kind;
    v->n = 1;
    v->raw = c->at;
    if (kind == VQ_GGUF_ARRAY)
        return read_array(c, v, err);
    if (kind == VQ_GGUF_STRING) {
        VQ_TRY(read_string(c, v, 0, single, err));
        v->strings = single;
        return VQ_OK;
    }
    if (!vq_cursor_take(c, kind_bytes[kind]))
        return vq_fail(err, VQ_ERR_TRUNCATED, "key '%.*s': the file ends before its value", n_key, v->key.at);
    return kind == VQ_GGUF_BOOL ? check_bools(v, err) : VQ_OK;
}

/* ---- names in order ---- */

static int compare(const void *a, const void *b)
{
    const gguf_name *x = a, *y = b;
    return vq_gguf_compare_names(x->name, y->name);
}

vq_status vq_gguf_sort_names(gguf_name *names, uint64_t n, const char *what, vq_error *err)
{
    if (n)
        qsort(names, n, sizeof *names, compare);
    for (uint64_t i = 1; i < n; i++)
        if (!compare(&names[i - 1], &names[i]))
            return vq_fail(err, VQ_ERR_DUPLICATE, "%s '%.*s' occurs twice, as number %llu and %llu", what,
                           shown(names[i].name), names[i].name.at, (ull)names[i - 1].index, (ull)names[i].index);
    return VQ_OK;
}

static vq_status check_count(uint64_t n, uint64_t most, uint64_t each, uint64_t left, const char *what, vq_error *err)
{
    if (n > most)
        return vq_fail(err, VQ_ERR_LIMIT, "%llu %s, at most %llu are read", (ull)n, what, (ull)most);
    if (n * each > left)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%llu %s of at least %llu bytes each, %llu bytes are left in the file",
                       (ull)n, what, (ull)each, (ull)left);
    return VQ_OK;
}

vq_status vq_gguf_parse_values(vq_gguf *g, vq_cursor *c, uint64_t n, vq_error *err)
{
    VQ_TRY(check_count(n, MAX_VALUES, MIN_VALUE_BYTES, vq_cursor_left(c), "keys", err));
    g->metadata = c->at;
    if (!n)
        return VQ_OK;
    g->values = calloc(n, sizeof *g->values);
    g->strings = calloc(n, sizeof *g->strings);
    g->keys = calloc(n, sizeof *g->keys);
    if (!g->values || !g->strings || !g->keys)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu keys", (ull)n);
    g->n_values = n;
    for (uint64_t i = 0; i < n; i++) {
        VQ_TRY(read_key(c, i, &g->values[i].key, err));
        VQ_TRY(read_value(c, &g->values[i], &g->strings[i], err));
        g->keys[i] = (gguf_name){g->values[i].key, i};
    }
    g->n_metadata_bytes = (uint64_t)(c->at - g->metadata);
    return vq_gguf_sort_names(g->keys, n, "key", err);
}

/* ---- what the keys say about the file itself ---- */

static vq_status read_alignment(vq_gguf *g, vq_error *err)
{
    g->alignment = DEFAULT_ALIGNMENT;
    const vq_gguf_value *v = vq_gguf_find(g, "general.alignment");
    if (!v)
        return VQ_OK;
    uint32_t a;
    VQ_TRY(vq_gguf_read_u32(v, &a, err));
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)))
        return vq_fail(err, VQ_ERR_ALIGN, "general.alignment is %u, must be a power of two in %d .. %d", a,
                       MIN_ALIGNMENT, MAX_ALIGNMENT);
    g->alignment = a;
    return VQ_OK;
}

static vq_status refuse_split(const vq_gguf *g, vq_error *err)
{
    const vq_gguf_value *parts = vq_gguf_find(g, "split.count"), *part = vq_gguf_find(g, "split.no");
    if (!parts)
        return VQ_OK;
    uint32_t count, number = 0;
    VQ_TRY(vq_gguf_read_u32(parts, &count, err));
    if (part)
        VQ_TRY(vq_gguf_read_u32(part, &number, err));
    if (count <= 1)
        return VQ_OK;
    return vq_fail(err, VQ_ERR_SPLIT, "split.count: this is part %llu of a model in %u files; merge them into one file",
                   (ull)number + 1, count);
}

/* ---- tensors ---- */

static vq_status read_tensor_name(vq_cursor *c, uint64_t index, vq_str *name, vq_error *err)
{
    const uint64_t n = vq_cursor_u64(c);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "the file ends in the name length of tensor %llu", (ull)index);
    if (n > MAX_NAME_BYTES)
        return vq_fail(err, VQ_ERR_LIMIT, "tensor %llu has a name of %llu bytes, at most %d are allowed", (ull)index,
                       (ull)n, MAX_NAME_BYTES);
    const uint8_t *at = vq_cursor_take(c, n);
    if (!at)
        return vq_fail(err, VQ_ERR_TRUNCATED, "the file ends in the name of tensor %llu", (ull)index);
    *name = (vq_str){(const char *)at, n};
    return VQ_OK;
}

static vq_status read_dims(vq_cursor *c, vq_tensor *t, vq_error *err)
{
    const int n_name = shown(t->name);
    t->n_dims = vq_cursor_u32(c);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "tensor '%.*s': the file ends in its record", n_name, t->name.at);
    if (t->n_dims < 1 || t->n_dims > VQ_MAX_DIMS)
        return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.*s' has %u dimensions, must be 1 .. %d", n_name, t->name.at,
                       t->n_dims, VQ_MAX_DIMS);
    for (uint32_t i = 0; i < VQ_MAX_DIMS; i++) {
        t->dims[i] = i < t->n_dims ? vq_cursor_u64(c) : 1;
        if (c->bad)
            return vq_fail(err, VQ_ERR_TRUNCATED, "tensor '%.*s': the file ends in its record", n_name, t->name.at);
        if (!t->dims[i] || t->dims[i] > INT64_MAX)
            return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.*s': dimension %u is %lld, must be at least 1", n_name,
                           t->name.at, i, (long long)t->dims[i]);
    }
    return VQ_OK;
}

vq_status vq_gguf_measure_tensor(vq_tensor *t, vq_error *err)
{
    const int n_name = shown(t->name);
    uint64_t n_rows = 1, n_values;
    bool fits = true;
    for (uint32_t i = 1; i < VQ_MAX_DIMS; i++)
        fits = fits && vq_mul_u64(n_rows, t->dims[i], &n_rows);
    /* Every later product of dimensions (elements, and bytes as f32) fits too. */
    fits = fits && vq_mul_u64(n_rows, t->dims[0], &n_values) && n_values <= INT64_MAX / 8;
    if (!fits)
        return vq_fail(err, VQ_ERR_OVERFLOW, "tensor '%.*s': %llu x %llu x %llu x %llu elements do not fit in 60 bits",
                       n_name, t->name.at, (ull)t->dims[0], (ull)t->dims[1], (ull)t->dims[2], (ull)t->dims[3]);

    const uint32_t block = vq_type_block_len(t->type);
    if (t->dims[0] % block)
        return vq_fail(err, VQ_ERR_SHAPE, "tensor '%.*s': rows of %llu values are no multiple of the %u in a %s block",
                       n_name, t->name.at, (ull)t->dims[0], block, vq_type_name(t->type));
    t->n_bytes = n_rows * vq_type_row_bytes(t->type, t->dims[0]); /* below n_values * 4 */
    return VQ_OK;
}

static vq_status read_tensor(vq_cursor *c, uint64_t index, vq_tensor *t, uint64_t *offset, vq_error *err)
{
    VQ_TRY(read_tensor_name(c, index, &t->name, err));
    VQ_TRY(read_dims(c, t, err));
    const uint32_t type = vq_cursor_u32(c);
    *offset = vq_cursor_u64(c);
    const int n_name = shown(t->name);
    if (c->bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "tensor '%.*s': the file ends in its record", n_name, t->name.at);
    if (!vq_type_known(type))
        return vq_fail(err, VQ_ERR_TYPE, "tensor '%.*s' has type %u (%s), which this library does not read", n_name,
                       t->name.at, type, vq_type_name((vq_type)type));
    t->type = (vq_type)type;
    return vq_gguf_measure_tensor(t, err);
}

typedef struct data_range {
    uint64_t from, index;
} data_range;

static int compare_ranges(const void *a, const void *b)
{
    const data_range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

vq_status vq_gguf_check_overlap(const vq_gguf *g, const uint64_t *offsets, vq_error *err)
{
    if (!g->n_tensors)
        return VQ_OK;
    data_range *ranges = calloc(g->n_tensors, sizeof *ranges);
    if (!ranges)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (ull)g->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        ranges[i] = (data_range){offsets[i], i};
    qsort(ranges, g->n_tensors, sizeof *ranges, compare_ranges);
    vq_status status = VQ_OK;
    for (uint64_t i = 1; status == VQ_OK && i < g->n_tensors; i++) {
        const vq_tensor *a = &g->tensors[ranges[i - 1].index], *b = &g->tensors[ranges[i].index];
        if (ranges[i - 1].from + a->n_bytes > ranges[i].from)
            status = vq_fail(err, VQ_ERR_OVERLAP,
                             "tensors '%.*s' (offset %llu, %llu bytes) and '%.*s' (offset %llu) overlap",
                             shown(a->name), a->name.at, (ull)ranges[i - 1].from, (ull)a->n_bytes, shown(b->name),
                             b->name.at, (ull)ranges[i].from);
    }
    free(ranges);
    return status;
}

/* Offsets to pointers, once all records are read and the start of the data is known. */
static vq_status place_tensors(vq_gguf *g, uint64_t start, const uint64_t *offsets, vq_error *err)
{
    const uint64_t room = g->n_bytes > start ? g->n_bytes - start : 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        vq_tensor *t = &g->tensors[i];
        const uint64_t offset = offsets[i];
        const int n_name = shown(t->name);
        if (offset % g->alignment)
            return vq_fail(err, VQ_ERR_ALIGN, "tensor '%.*s': offset %llu is no multiple of the alignment %u", n_name,
                           t->name.at, (ull)offset, g->alignment);
        if (offset > room)
            return vq_fail(err, VQ_ERR_BOUNDS,
                           "tensor '%.*s': offset %llu lies %llu bytes past the end of the data (%llu bytes); the file "
                           "is cut or the offset wrong",
                           n_name, t->name.at, (ull)offset, (ull)(offset - room), (ull)room);
        if (t->n_bytes > room - offset)
            return vq_fail(err, VQ_ERR_BOUNDS,
                           "tensor '%.*s': %llu bytes at offset %llu, of which %llu are missing in the file", n_name,
                           t->name.at, (ull)t->n_bytes, (ull)offset, (ull)(t->n_bytes - (room - offset)));
        t->data = g->bytes + start + offset;
    }
    return vq_gguf_check_overlap(g, offsets, err);
}

static vq_status read_records(vq_gguf *g, vq_cursor *c, uint64_t *offsets, vq_error *err)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        VQ_TRY(read_tensor(c, i, &g->tensors[i], &offsets[i], err));
        g->names[i] = (gguf_name){g->tensors[i].name, i};
    }
    VQ_TRY(vq_gguf_sort_names(g->names, g->n_tensors, "tensor", err));
    const uint64_t mask = g->alignment - 1;
    return place_tensors(g, (vq_cursor_offset(c) + mask) & ~mask, offsets, err);
}

static vq_status read_tensors(vq_gguf *g, vq_cursor *c, uint64_t n, vq_error *err)
{
    if (!n)
        return VQ_OK;
    g->tensors = calloc(n, sizeof *g->tensors);
    g->names = calloc(n, sizeof *g->names);
    uint64_t *offsets = calloc(n, sizeof *offsets);
    if (!g->tensors || !g->names || !offsets) {
        free(offsets);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (ull)n);
    }
    g->n_tensors = n;
    const vq_status status = read_records(g, c, offsets, err);
    free(offsets);
    return status;
}

/* ---- the file ---- */

vq_status vq_gguf_parse(vq_gguf *g, vq_error *err)
{
    vq_cursor c = vq_cursor_make(g->bytes, g->n_bytes);
    const uint8_t *magic = vq_cursor_take(&c, 4);
    if (!magic)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%zu bytes are too few for a GGUF file", g->n_bytes);
    if (memcmp(magic, "GGUF", 4))
        return vq_fail(
            err, VQ_ERR_MAGIC,
            "starts with %02x %02x %02x %02x ('%.4s'), a GGUF file starts with 'GGUF', a reservoir with 'VQ-RESRV'",
            magic[0], magic[1], magic[2], magic[3], (const char *)magic);
    g->version = vq_cursor_u32(&c);
    if (c.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%zu bytes: the file ends in its header", g->n_bytes);
    if (g->version != 2 && g->version != 3)
        return vq_fail(err, VQ_ERR_VERSION, "GGUF version %u%s; 2 and 3 are read", g->version,
                       g->version && !(g->version & 0xffff) ? " (a big-endian file)" : "");
    const uint64_t n_tensors = vq_cursor_u64(&c), n_values = vq_cursor_u64(&c);
    if (c.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%zu bytes: the file ends in its header", g->n_bytes);

    VQ_TRY(check_count(n_tensors, MAX_TENSORS, MIN_TENSOR_BYTES, vq_cursor_left(&c), "tensors", err));
    VQ_TRY(vq_gguf_parse_values(g, &c, n_values, err));
    VQ_TRY(read_alignment(g, err));
    VQ_TRY(refuse_split(g, err));
    return read_tensors(g, &c, n_tensors, err);
}
