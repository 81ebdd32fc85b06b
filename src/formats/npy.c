/* NumPy arrays.
 *
 *     6 bytes   "\x93NUMPY"
 *     1, 1      version: major 1, 2 or 3; minor 0
 *     2 or 4    length of the header (major 1: u16, else u32)
 *     ...       a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 100, 64), } and padding
 *     ...       the values
 *
 * The header is read by a parser for just this dict: three known keys in any order. */
#include "veloxquant/npy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/half.h"
#include "base/status.h"

enum { MOST_HEADER = 65536, MOST_NUMBER = 18 };

typedef struct header {
    uint32_t value_bytes; /* 2, 4 or 8 */
    uint32_t n_dims;
    uint64_t dims[VQ_NPY_MAX_DIMS];
    bool has_type, has_order, has_shape;
} header;

static void skip_spaces(vq_cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

/* Whether the next thing after spaces is `what`; then it is taken. */
static bool take(vq_cursor *c, const char *what)
{
    skip_spaces(c);
    const size_t n = strlen(what);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, what, n) != 0)
        return false;
    c->at += n;
    return true;
}

static bool take_number(vq_cursor *c, uint64_t *out)
{
    skip_spaces(c);
    uint32_t n = 0;
    for (*out = 0; c->at < c->end && *c->at >= '0' && *c->at <= '9' && n <= MOST_NUMBER; c->at++, n++)
        *out = 10 * *out + (uint64_t)(*c->at - '0');
    return n > 0 && n <= MOST_NUMBER;
}

static vq_status parse_type(header *h, vq_cursor *c, vq_error *err)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {{"'<f4'", 4}, {"'<f2'", 2}, {"'<f8'", 8}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (take(c, types[i].name)) {
            h->value_bytes = types[i].bytes;
            h->has_type = true;
            return VQ_OK;
        }
    skip_spaces(c);
    const int n = c->end - c->at < 16 ? (int)(c->end - c->at) : 16;
    return vq_fail(err, VQ_ERR_TYPE, "descr is %.*s.., must be '<f2', '<f4' or '<f8'", n, (const char *)c->at);
}

static vq_status parse_shape(header *h, vq_cursor *c, vq_error *err)
{
    if (!take(c, "("))
        return vq_fail(err, VQ_ERR_SHAPE, "shape is not a tuple");
    while (!take(c, ")")) {
        if (h->n_dims == VQ_NPY_MAX_DIMS)
            return vq_fail(err, VQ_ERR_LIMIT, "shape has more than %d dimensions", VQ_NPY_MAX_DIMS);
        if (!take_number(c, &h->dims[h->n_dims]))
            return vq_fail(err, VQ_ERR_SHAPE, "dimension %u of the shape is no number of at most %d digits", h->n_dims,
                           MOST_NUMBER);
        h->n_dims++;
        if (!take(c, ",")) {
            if (!take(c, ")"))
                return vq_fail(err, VQ_ERR_SHAPE, "shape does not end");
            break;
        }
    }
    h->has_shape = true;
    return VQ_OK;
}

static vq_status parse_header(header *h, vq_cursor *c, vq_error *err)
{
    if (!take(c, "{"))
        return vq_fail(err, VQ_ERR_VALUE, "the header is no dict");
    while (!take(c, "}")) {
        if (take(c, "'descr':") && !h->has_type) {
            VQ_TRY(parse_type(h, c, err));
        } else if (take(c, "'fortran_order':") && !h->has_order) {
            if (!take(c, "False"))
                return vq_fail(err, VQ_ERR_UNSUPPORTED, "fortran_order is not False; save np.ascontiguousarray(x)");
            h->has_order = true;
        } else if (take(c, "'shape':") && !h->has_shape) {
            VQ_TRY(parse_shape(h, c, err));
        } else {
            return vq_fail(err, VQ_ERR_KEY, "the header has an unknown or repeated key, or does not end");
        }
        take(c, ",");
    }
    if (!h->has_type || !h->has_order || !h->has_shape)
        return vq_fail(err, VQ_ERR_MISSING_KEY, "the header lacks one of descr, fortran_order, shape");
    return VQ_OK;
}

static float value_at(const uint8_t *p, uint32_t n_bytes)
{
    vq_cursor c = vq_cursor_make(p, n_bytes);
    if (n_bytes == 2)
        return vq_f32_from_f16(vq_cursor_u16(&c));
    return n_bytes == 4 ? vq_cursor_f32(&c) : (float)vq_cursor_f64(&c);
}

static vq_status read_values(vq_npy *out, const header *h, vq_cursor *c, vq_error *err)
{
    uint64_t n = 1, n_bytes;
    bool fits = true;
    for (uint32_t i = 0; i < h->n_dims; i++)
        fits = fits && vq_mul_u64(n, h->dims[i], &n);
    if (!fits || !vq_mul_u64(n, h->value_bytes, &n_bytes))
        return vq_fail(err, VQ_ERR_OVERFLOW, "the product of the dimensions does not fit");
    if (n_bytes != vq_cursor_left(c))
        return vq_fail(err, n_bytes > vq_cursor_left(c) ? VQ_ERR_TRUNCATED : VQ_ERR_BOUNDS,
                       "%llu bytes of values follow the header, its shape needs %llu",
                       (unsigned long long)vq_cursor_left(c), (unsigned long long)n_bytes);
    /* n is now at most the bytes of the file */
    float *data = malloc(n > 0 ? n * sizeof *data : 1);
    if (!data)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu values", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        data[i] = value_at(c->at + i * h->value_bytes, h->value_bytes);
        if (!isfinite(data[i])) {
            free(data);
            return vq_fail(err, VQ_ERR_NONFINITE, "value %llu is not finite as a 32-bit float", (unsigned long long)i);
        }
    }
    out->n_dims = h->n_dims;
    memcpy(out->dims, h->dims, sizeof out->dims);
    out->data = data;
    return VQ_OK;
}

static vq_status read_all(vq_npy *out, vq_cursor *c, vq_error *err)
{
    const uint8_t *magic = vq_cursor_take(c, 6);
    if (!magic || memcmp(magic, "\x93NUMPY", 6) != 0)
        return vq_fail(err, VQ_ERR_MAGIC, "not a NumPy array file");
    const uint8_t major = vq_cursor_u8(c), minor = vq_cursor_u8(c);
    if (!c->bad && (major < 1 || major > 3 || minor != 0))
        return vq_fail(err, VQ_ERR_VERSION, "version %u.%u, must be 1.0, 2.0 or 3.0", major, minor);
    const uint32_t n = major == 1 ? vq_cursor_u16(c) : vq_cursor_u32(c);
    if (n > MOST_HEADER)
        return vq_fail(err, VQ_ERR_LIMIT, "a header of %u bytes, the limit is %d", n, MOST_HEADER);
    const uint8_t *text = vq_cursor_take(c, n);
    if (!text)
        return vq_fail(err, VQ_ERR_TRUNCATED, "the file ends in its header");
    vq_cursor inner = vq_cursor_make(text, n);
    header h = {0};
    VQ_TRY(parse_header(&h, &inner, err));
    return read_values(out, &h, c, err);
}

vq_status vq_npy_read_memory(vq_npy *out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    *out = (vq_npy){0};
    vq_cursor c = vq_cursor_make(bytes, n_bytes);
    const vq_status status = read_all(out, &c, err);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "%s", name);
}

vq_status vq_npy_read(vq_npy *out, const char *path, vq_error *err)
{
    *out = (vq_npy){0};
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    const vq_status status = vq_npy_read_memory(out, path, map.bytes, map.n_bytes, err);
    vq_file_map_close(&map);
    return status;
}

void vq_npy_free(vq_npy *npy)
{
    if (!npy)
        return;
    free(npy->data);
    *npy = (vq_npy){0};
}

vq_status vq_npy_write(const char *path, const float *data, const uint64_t *dims, uint32_t n_dims, vq_error *err)
{
    char text[256], shape[128] = "";
    size_t n = 1, at = 0;
    for (uint32_t i = 0; i < n_dims && i < VQ_NPY_MAX_DIMS; i++) {
        at += (size_t)snprintf(shape + at, sizeof shape - at, "%llu, ", (unsigned long long)dims[i]);
        if (!vq_mul_size(n, dims[i], &n))
            return vq_fail(err, VQ_ERR_OVERFLOW, "%s: the product of the dimensions does not fit", path);
    }
    /* The values begin at a multiple of 64 bytes; the header ends in a newline. */
    int used = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", shape);
    while ((10 + used + 1) % 64 != 0)
        text[used++] = ' ';
    text[used++] = '\n';
    const unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)used, (unsigned char)(used >> 8)};
    vq_file_writer *w;
    VQ_TRY(vq_file_writer_open(&w, path, err));
    vq_status status = vq_file_writer_write(w, start, sizeof start, err);
    if (status == VQ_OK)
        status = vq_file_writer_write(w, text, (size_t)used, err);
    if (status == VQ_OK)
        status = vq_file_writer_write(w, data, n * sizeof *data, err);
    if (status == VQ_OK)
        return vq_file_writer_commit(w, err);
    vq_file_writer_abort(w);
    return status;
}
