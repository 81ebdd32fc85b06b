/* Artifact files.
 *
 *     offset  bytes  what
 *          0      8  "VQARTIF1"
 *          8      8  xxh64 of all bytes from 16 on, seed 0
 *         16      4  version, 1
 *         20      4  head size d
 *         24      4  kind of rotation: 0 hadamard, 1 qr
 *         28      8  n_layers, n_kv_heads
 *         36      8  codebooks from how many bits to how many
 *         44      4  zero
 *         48      8  seed
 *         56      8  zero
 *         64    ...  codebooks: for each number of bits 2^bits levels, f64, ascending; zeros to a multiple of 64
 *                    for each layer, kv head, keys and then values: 64 bytes of signs (bit i: x[i] changes its sign;
 *                    zeros behind), the matrix [m][m] as f32, zeros to a multiple of 64
 *
 * Every size follows from the head, so that a file has one right length. */
#include "formats/artifact.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/cursor.h"
#include "base/file.h"
#include "quant/lloyd_max.h"

enum { ALIGN = 64, MOST_D = 8 * VQ_ARTIFACT_SIGN_BYTES, MOST_LAYERS = 1024, MOST_HEADS = 4096 };

const char vq_artifact_magic[8] = "VQARTIF1";

struct vq_artifact {
    vq_artifact_info info;
    vq_artifact_layout at;
    vq_file_map map; /* of a file */
    uint8_t *copy;   /* of bytes */
    const uint8_t *bytes;
    char *path;
};

static size_t align(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

vq_status vq_artifact_lay_out(vq_artifact_layout *out, const vq_artifact_info *info, const char *name, vq_error *err)
{
    const struct {
        const char *name;
        uint32_t value, least, most;
    } fields[] = {{"head size", info->d, 1, MOST_D},
                  {"n_layers", info->n_layers, 1, MOST_LAYERS},
                  {"n_kv_heads", info->n_kv_heads, 1, MOST_HEADS},
                  {"least bits", info->least_bits, 1, VQ_LLOYD_MAX_BITS},
                  {"most bits", info->most_bits, info->least_bits, VQ_LLOYD_MAX_BITS}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        if (fields[f].value < fields[f].least || fields[f].value > fields[f].most)
            return vq_fail(err, VQ_ERR_LIMIT, "%s: %s is %u, allowed are %u to %u", name, fields[f].name,
                           fields[f].value, fields[f].least, fields[f].most);
    const size_t n_levels = ((size_t)2 << info->most_bits) - ((size_t)1 << info->least_bits);
    out->m = info->qr ? info->d : info->d / (info->d & -info->d);
    const size_t n_floats = out->m > 1 ? (size_t)out->m * out->m : 0;
    out->rotations = VQ_ARTIFACT_HEADER_BYTES + align(n_levels * sizeof(double));
    out->each = VQ_ARTIFACT_SIGN_BYTES + align(n_floats * sizeof(float));
    out->n_rotations = (size_t)info->n_layers * info->n_kv_heads * 2;
    out->n_bytes = out->rotations + out->n_rotations * out->each; /* the limits keep it below 2^44 */
    return VQ_OK;
}

size_t vq_artifact_levels(double *out, const vq_artifact_info *info)
{
    size_t n = 0;
    for (uint32_t bits = info->least_bits; bits <= info->most_bits; bits++)
        for (uint32_t code = 0; code < 1u << bits; code++)
            out[n++] = vq_lloyd_max_level(bits, code);
    return n;
}

static const uint8_t *rotation_at(const vq_artifact *a, size_t i)
{
    return a->bytes + a->at.rotations + i * a->at.each;
}

static size_t number_of(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys)
{
    return ((size_t)layer * a->info.n_kv_heads + head) * 2 + !keys;
}

/* n zeros, up to the next part. */
static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

static vq_status check_codebooks(const vq_artifact *a, vq_error *err)
{
    double want[VQ_ARTIFACT_MOST_LEVELS];
    const size_t n = vq_artifact_levels(want, &a->info);
    vq_cursor cur = vq_cursor_make(a->bytes + VQ_ARTIFACT_HEADER_BYTES, n * sizeof *want);
    for (size_t i = 0; i < n; i++) {
        const double level = vq_cursor_f64(&cur);
        if (!(level == want[i]))
            return vq_fail(err, VQ_ERR_VALUE, "%s: level %zu of the codebooks is %.17g, must be %.17g", a->path, i,
                           level, want[i]);
    }
    const size_t end = VQ_ARTIFACT_HEADER_BYTES + n * sizeof *want;
    if (!all_zero(a->bytes + end, a->at.rotations - end))
        return vq_fail(err, VQ_ERR_VALUE, "%s: bytes after the codebooks are not 0", a->path);
    return VQ_OK;
}

static vq_status check_rotation(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys, vq_error *err)
{
    const uint8_t *signs = vq_artifact_signs(a, layer, head, keys);
    const float *matrix = vq_artifact_matrix(a, layer, head, keys);
    const uint32_t n_sign_bytes = (a->info.d + 7) / 8;
    const size_t n = matrix ? (size_t)a->at.m * a->at.m : 0, used = VQ_ARTIFACT_SIGN_BYTES + n * sizeof(float);
    const char *side = keys ? "keys" : "values";
    for (size_t i = 0; i < n; i++)
        if (!isfinite(matrix[i]))
            return vq_fail(err, VQ_ERR_NONFINITE, "%s: number %zu of the rotation of %s of layer %u, head %u is %g",
                           a->path, i, side, layer, head, (double)matrix[i]);
    if (!all_zero(signs + n_sign_bytes, VQ_ARTIFACT_SIGN_BYTES - n_sign_bytes) ||
        !all_zero(signs + used, a->at.each - used))
        return vq_fail(err, VQ_ERR_VALUE, "%s: padding of the rotation of %s of layer %u, head %u is not 0", a->path,
                       side, layer, head);
    if (!vq_rotation_begins(a->info.d, a->at.m, signs, matrix, vq_rotation_seed(a->info.seed, layer, head, keys)))
        return vq_fail(err, VQ_ERR_MISMATCH,
                       "%s: the rotation of %s of layer %u, head %u is not what seed %" PRIu64
                       " gives; 'veloxquant precompute' makes the file again",
                       a->path, side, layer, head, a->info.seed);
    return VQ_OK;
}

static vq_status parse(vq_artifact *a, const uint8_t *bytes, size_t n_bytes, vq_error *err)
{
    vq_cursor cur = vq_cursor_make(bytes, n_bytes);
    const uint8_t *magic = vq_cursor_take(&cur, sizeof vq_artifact_magic);
    if (!magic || memcmp(magic, vq_artifact_magic, sizeof vq_artifact_magic) != 0)
        return vq_fail(err, VQ_ERR_MAGIC, "%s: not a file of precomputed rotations", a->path);
    const uint64_t sum = vq_cursor_u64(&cur);
    const uint32_t version = vq_cursor_u32(&cur);
    a->info.d = vq_cursor_u32(&cur);
    const uint32_t kind = vq_cursor_u32(&cur);
    a->info.n_layers = vq_cursor_u32(&cur);
    a->info.n_kv_heads = vq_cursor_u32(&cur);
    a->info.least_bits = vq_cursor_u32(&cur);
    a->info.most_bits = vq_cursor_u32(&cur);
    const uint32_t zero = vq_cursor_u32(&cur);
    a->info.seed = vq_cursor_u64(&cur);
    const uint64_t more_zero = vq_cursor_u64(&cur);
    if (cur.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%s: ends after %zu bytes, its head has %d", a->path, n_bytes,
                       VQ_ARTIFACT_HEADER_BYTES);
    if (version != VQ_ARTIFACT_VERSION)
        return vq_fail(err, VQ_ERR_VERSION,
                       "%s: version %u, this program reads version %d; 'veloxquant precompute' makes the file again",
                       a->path, version, VQ_ARTIFACT_VERSION);
    if (kind > 1)
        return vq_fail(err, VQ_ERR_VALUE, "%s: kind of rotation is %u, must be 0 or 1", a->path, kind);
    if (zero || more_zero)
        return vq_fail(err, VQ_ERR_VALUE, "%s: a reserved field is not 0", a->path);
    a->info.qr = kind == 1;
    VQ_TRY(vq_artifact_lay_out(&a->at, &a->info, a->path, err));
    if (n_bytes != a->at.n_bytes)
        return vq_fail(err, n_bytes < a->at.n_bytes ? VQ_ERR_TRUNCATED : VQ_ERR_BOUNDS,
                       "%s: has %zu bytes, its shape makes %zu", a->path, n_bytes, a->at.n_bytes);
    if (XXH64(bytes + VQ_ARTIFACT_SUMMED_FROM, n_bytes - VQ_ARTIFACT_SUMMED_FROM, 0) != sum)
        return vq_fail(err, VQ_ERR_CHECKSUM, "%s: the bytes do not match their checksum", a->path);
    a->info.n_bytes = n_bytes;
    a->bytes = bytes;
    VQ_TRY(check_codebooks(a, err));
    for (uint32_t layer = 0; layer < a->info.n_layers; layer++)
        for (uint32_t head = 0; head < a->info.n_kv_heads; head++) {
            VQ_TRY(check_rotation(a, layer, head, true, err));
            VQ_TRY(check_rotation(a, layer, head, false, err));
        }
    return VQ_OK;
}

static vq_artifact *blank(const char *path, vq_error *err)
{
    vq_artifact *a = calloc(1, sizeof *a);
    if (a)
        a->path = strdup(path);
    if (!a || !a->path) {
        free(a);
        vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to read it", path);
        return NULL;
    }
    return a;
}

static vq_status finish(vq_artifact **out, vq_artifact *a, vq_status status)
{
    if (status != VQ_OK)
        vq_artifact_close(a);
    else
        *out = a;
    return status;
}

vq_status vq_artifact_open(vq_artifact **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_artifact *a = blank(path, err);
    if (!a)
        return VQ_ERR_NOMEM;
    vq_status status = vq_file_map_open(&a->map, path, err);
    if (status == VQ_OK)
        status = parse(a, a->map.bytes, a->map.n_bytes, err);
    return finish(out, a, status);
}

vq_status vq_artifact_read(vq_artifact **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    *out = NULL;
    vq_artifact *a = blank(name, err);
    if (!a)
        return VQ_ERR_NOMEM;
    void *copy = NULL;
    if (posix_memalign(&copy, ALIGN, n_bytes ? n_bytes : 1) != 0)
        return finish(out, a, vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for %zu bytes", name, n_bytes));
    a->copy = copy;
    if (n_bytes > 0)
        memcpy(copy, bytes, n_bytes);
    return finish(out, a, parse(a, copy, n_bytes, err));
}

void vq_artifact_close(vq_artifact *a)
{
    if (!a)
        return;
    vq_file_map_close(&a->map);
    free(a->copy);
    free(a->path);
    free(a);
}

const vq_artifact_info *vq_artifact_get_info(const vq_artifact *a) { return &a->info; }

const double *vq_artifact_codebook(const vq_artifact *a, uint32_t bits)
{
    if (bits < a->info.least_bits || bits > a->info.most_bits)
        return NULL;
    const size_t before = ((size_t)1 << bits) - ((size_t)1 << a->info.least_bits);
    return (const double *)(const void *)(a->bytes + VQ_ARTIFACT_HEADER_BYTES) + before;
}

const uint8_t *vq_artifact_signs(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys)
{
    return rotation_at(a, number_of(a, layer, head, keys));
}

const float *vq_artifact_matrix(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys)
{
    if (a->at.m == 1)
        return NULL;
    const uint8_t *bytes = vq_artifact_signs(a, layer, head, keys) + VQ_ARTIFACT_SIGN_BYTES;
    return (const float *)(const void *)bytes;
}

void vq_artifact_load(const vq_artifact *a, uint32_t layer, uint32_t head, bool keys, const vq_codes_kernels *k,
                      vq_rotation *out)
{
    out->k = k;
    memcpy(out->signs, vq_artifact_signs(a, layer, head, keys), (a->info.d + 7) / 8);
    if (out->across)
        memcpy(out->across, vq_artifact_matrix(a, layer, head, keys), (size_t)a->at.m * a->at.m * sizeof(float));
}

vq_status vq_artifact_path(char *out, size_t n, const char *dir, const vq_artifact_info *info, vq_error *err)
{
    const int used =
        snprintf(out, n, "%s/%s-d%u-seed%" PRIu64 ".vqa", dir, info->qr ? "qr" : "hadamard", info->d, info->seed);
    if (used < 0 || (size_t)used >= n)
        return vq_fail(err, VQ_ERR_ARG, "%.200s: the path of a file in it takes more than %zu bytes", dir, n);
    return VQ_OK;
}
