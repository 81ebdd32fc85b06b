/* Open model files: lookup and typed reads.  The bytes are checked in gguf_parse.c and reservoir_parse.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "formats/gguf_object.h"
#include "formats/hf.h"
#include "formats/reservoir.h"

static vq_status open_bytes(vq_gguf **out, const char *path, vq_file_map map, const void *bytes, size_t n_bytes,
                            vq_error *err)
{
    vq_gguf *g = calloc(1, sizeof *g);
    char *copy = strdup(path);
    if (!g || !copy) {
        free(g);
        free(copy);
        vq_file_map_close(&map);
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to open it", path);
    }
    *g = (vq_gguf){.path = copy, .map = map, .bytes = bytes, .n_bytes = n_bytes};

    const bool reservoir = n_bytes >= 8 && memcmp(bytes, VQ_RESERVOIR_MAGIC, 8) == 0;
    const vq_status status = reservoir ? vq_reservoir_parse(g, err) : vq_gguf_parse(g, err);
    if (status != VQ_OK) {
        vq_fail_prefix(err, status, "%s", path);
        vq_gguf_close(g);
        return status;
    }
    *out = g;
    return VQ_OK;
}

vq_status vq_gguf_open(vq_gguf **out, const char *path, vq_error *err)
{
    if (!out || !path)
        return vq_fail(err, VQ_ERR_ARG, "vq_gguf_open: out and path must not be NULL");
    *out = NULL;
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode))
        return vq_hf_open(out, path, err);
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    return open_bytes(out, path, map, map.bytes, map.n_bytes, err);
}

vq_status vq_gguf_open_memory(vq_gguf **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    if (!out || !name || (!bytes && n_bytes))
        return vq_fail(err, VQ_ERR_ARG, "vq_gguf_open_memory: out, name and bytes must not be NULL");
    *out = NULL;
    if ((uintptr_t)bytes % 8) /* tensors are read in place */
        return vq_fail(err, VQ_ERR_ARG, "%s: the bytes lie at %p, which is not a multiple of 8", name, bytes);
    return open_bytes(out, name, (vq_file_map){0}, bytes, n_bytes, err);
}

void vq_gguf_close(vq_gguf *g)
{
    if (!g)
        return;
    for (uint64_t i = 0; g->values && i < g->n_values; i++)
        if (g->values[i].kind == VQ_GGUF_ARRAY)
            free((void *)(uintptr_t)g->values[i].strings);
    free(g->values);
    free(g->strings);
    free(g->keys);
    free(g->tensors);
    free(g->names);
    vq_reservoir_free(g->reservoir);
    vq_hf_free(g->folder);
    vq_file_map_close(&g->map);
    free(g->path);
    free(g);
}

const char *vq_gguf_path(const vq_gguf *g) { return g->path; }

bool vq_gguf_is_reservoir(const vq_gguf *g) { return g->reservoir != NULL; }

vq_status vq_gguf_check_whole(const vq_gguf *g, vq_error *err)
{
    return g->folder ? vq_hf_check_whole(g->folder, err) : vq_file_map_check(&g->map, g->path, err);
}

uint32_t vq_gguf_version(const vq_gguf *g) { return g->version; }

uint64_t vq_gguf_file_bytes(const vq_gguf *g) { return g->n_bytes; }

uint32_t vq_gguf_alignment(const vq_gguf *g) { return g->alignment; }

uint64_t vq_gguf_n_values(const vq_gguf *g) { return g->n_values; }

const vq_gguf_value *vq_gguf_value_at(const vq_gguf *g, uint64_t index)
{
    return index < g->n_values ? &g->values[index] : NULL;
}

uint64_t vq_gguf_n_tensors(const vq_gguf *g) { return g->n_tensors; }

const vq_tensor *vq_gguf_tensor_at(const vq_gguf *g, uint64_t index)
{
    return index < g->n_tensors ? &g->tensors[index] : NULL;
}

int vq_gguf_compare_names(vq_str a, vq_str b)
{
    if (a.n_bytes != b.n_bytes)
        return a.n_bytes < b.n_bytes ? -1 : 1;
    return a.n_bytes ? memcmp(a.at, b.at, a.n_bytes) : 0;
}

/* Where `name` stands in the object, or UINT64_MAX. */
static uint64_t find_name(const gguf_name *sorted, uint64_t n, const char *text)
{
    const vq_str name = {text, strlen(text)};
    uint64_t low = 0, high = n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = vq_gguf_compare_names(sorted[middle].name, name);
        if (!order)
            return sorted[middle].index;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT64_MAX;
}

const vq_gguf_value *vq_gguf_find(const vq_gguf *g, const char *key)
{
    return vq_gguf_value_at(g, find_name(g->keys, g->n_values, key));
}

const vq_tensor *vq_gguf_tensor(const vq_gguf *g, const char *name)
{
    return vq_gguf_tensor_at(g, find_name(g->names, g->n_tensors, name));
}

/* ---- typed reads ---- */

static const char *const kind_names[VQ_N_GGUF_KINDS] = {
    [VQ_GGUF_U8] = "u8",         [VQ_GGUF_I8] = "i8",       [VQ_GGUF_U16] = "u16", [VQ_GGUF_I16] = "i16",
    [VQ_GGUF_U32] = "u32",       [VQ_GGUF_I32] = "i32",     [VQ_GGUF_F32] = "f32", [VQ_GGUF_BOOL] = "bool",
    [VQ_GGUF_STRING] = "string", [VQ_GGUF_ARRAY] = "array", [VQ_GGUF_U64] = "u64", [VQ_GGUF_I64] = "i64",
    [VQ_GGUF_F64] = "f64",
};

static vq_status find_key(const vq_gguf *g, const char *key, const vq_gguf_value **out, vq_error *err)
{
    *out = vq_gguf_find(g, key);
    return *out ? VQ_OK : vq_fail(err, VQ_ERR_MISSING_KEY, "%s: key '%s' is missing", g->path, key);
}

static int shown(vq_str key) { return key.n_bytes < 96 ? (int)key.n_bytes : 96; /* of a name in a message */ }

static vq_status wrong_kind(const vq_gguf_value *v, const char *wanted, vq_error *err)
{
    return vq_fail(err, VQ_ERR_TYPE, "key '%.*s' has type %s, wanted %s", shown(v->key), v->key.at, kind_names[v->kind],
                   wanted);
}

vq_status vq_gguf_read_u32(const vq_gguf_value *v, uint32_t *out, vq_error *err)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } raw = {0};
    int64_t x;
    switch (v->kind) {
    case VQ_GGUF_U8:
        memcpy(&raw, v->raw, 1);
        x = raw.u8;
        break;
    case VQ_GGUF_I8:
        memcpy(&raw, v->raw, 1);
        x = raw.i8;
        break;
    case VQ_GGUF_U16:
        memcpy(&raw, v->raw, 2);
        x = raw.u16;
        break;
    case VQ_GGUF_I16:
        memcpy(&raw, v->raw, 2);
        x = raw.i16;
        break;
    case VQ_GGUF_U32:
        memcpy(&raw, v->raw, 4);
        x = raw.u32;
        break;
    case VQ_GGUF_I32:
        memcpy(&raw, v->raw, 4);
        x = raw.i32;
        break;
    case VQ_GGUF_I64:
        memcpy(&raw, v->raw, 8);
        x = raw.i64;
        break;
    case VQ_GGUF_U64:
        memcpy(&raw, v->raw, 8);
        if (raw.u64 > INT64_MAX)
            return vq_fail(err, VQ_ERR_VALUE, "key '%.*s' is %llu, more than %u", shown(v->key), v->key.at,
                           (unsigned long long)raw.u64, UINT32_MAX);
        x = (int64_t)raw.u64;
        break;
    default: return wrong_kind(v, "an integer", err);
    }
    if (x < 0 || x > UINT32_MAX)
        return vq_fail(err, VQ_ERR_VALUE, "key '%.*s' is %lld, outside 0 .. %u", shown(v->key), v->key.at, (long long)x,
                       UINT32_MAX);
    *out = (uint32_t)x;
    return VQ_OK;
}

vq_status vq_gguf_get_u32(const vq_gguf *g, const char *key, uint32_t *out, vq_error *err)
{
    const vq_gguf_value *v;
    VQ_TRY(find_key(g, key, &v, err));
    const vq_status status = vq_gguf_read_u32(v, out, err);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "%s", g->path);
}

vq_status vq_gguf_get_f32(const vq_gguf *g, const char *key, float *out, vq_error *err)
{
    const vq_gguf_value *v;
    VQ_TRY(find_key(g, key, &v, err));
    double x;
    if (v->kind == VQ_GGUF_F32) {
        float narrow;
        memcpy(&narrow, v->raw, sizeof narrow);
        x = narrow;
    } else if (v->kind == VQ_GGUF_F64) {
        memcpy(&x, v->raw, sizeof x);
    } else {
        return vq_fail_prefix(err, wrong_kind(v, "f32 or f64", err), "%s", g->path);
    }
    if (!isfinite((float)x))
        return vq_fail(err, VQ_ERR_VALUE, "%s: key '%s' is %g, not a finite f32", g->path, key, x);
    *out = (float)x;
    return VQ_OK;
}

vq_status vq_gguf_get_bool(const vq_gguf *g, const char *key, bool *out, vq_error *err)
{
    const vq_gguf_value *v;
    VQ_TRY(find_key(g, key, &v, err));
    if (v->kind != VQ_GGUF_BOOL)
        return vq_fail_prefix(err, wrong_kind(v, "bool", err), "%s", g->path);
    *out = *(const uint8_t *)v->raw != 0;
    return VQ_OK;
}

vq_status vq_gguf_get_str(const vq_gguf *g, const char *key, vq_str *out, vq_error *err)
{
    const vq_gguf_value *v;
    VQ_TRY(find_key(g, key, &v, err));
    if (v->kind != VQ_GGUF_STRING)
        return vq_fail_prefix(err, wrong_kind(v, "string", err), "%s", g->path);
    *out = v->strings[0];
    return VQ_OK;
}
