/* Calibration files.
 *
 *     offset  bytes  what
 *          0      8  "VQCALIB1"
 *          8      8  xxh64 of all bytes from 16 on, seed 0; the hash that saved caches carry
 *         16      4  version, 3
 *         20      4  number of statistics, VQ_N_STATISTICS
 *         24      8  hash of the model
 *         32     20  n_layers, n_heads, n_kv_heads, d_k, d_v
 *         52      4  which codebooks are there, a set of vq_codebooks
 *         56      8  tokens counted
 *         64    ...  the statistics that are there, in the order of vq_statistic: for each layer and head its floats,
 *                    little-endian f32, padded with zeros to a multiple of 64 bytes
 *
 * Every size follows from the head, so that a file has one right length.  All floats are finite, no eigenvalue is
 * negative. */
#include "formats/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/file.h"

enum {
    VERSION = 3,
    HEADER_BYTES = 64,
    SUMMED_FROM = 16,
    ALIGN = 64,
    MOST_LAYERS = 1024,
    MOST_HEADS = 4096,
    MOST_DIM = 512,
    N_CENTROIDS = 256,
    ATOM_VALUES = 8, /* atoms are of sub-vectors of 8 values, 4 of them for each bit */
    ATOMS = 4,
};

static const char MAGIC[8] = "VQCALIB1";

struct vq_calibration {
    vq_calibration_info info;
    vq_file_map map; /* of a file */
    uint8_t *copy;   /* of bytes, or what is being made */
    const uint8_t *bytes;
    size_t n_bytes;
    size_t at[VQ_N_STATISTICS], each[VQ_N_STATISTICS]; /* where a statistic begins; bytes of one layer and head */
    char *path;
};

static const struct {
    const char *name;
    bool values;      /* rows are values: d_v */
    bool square;      /* [d][d] */
    bool query_heads; /* one for each query head */
    bool not_negative;
    uint32_t codebooks; /* part of these */
    uint32_t sub;       /* a product codebook with sub-vectors of so many values */
    uint32_t atom_bits; /* atoms for so many bits a value */
} shapes[VQ_N_STATISTICS] = {
    [VQ_KEY_MEAN] = {.name = "key mean"},
    [VQ_KEY_MOMENT] = {.name = "key moment", .square = true},
    [VQ_KEY_LEAST] = {.name = "least key"},
    [VQ_KEY_MOST] = {.name = "largest key"},
    [VQ_KEY_SPECTRUM] = {.name = "key spectrum", .not_negative = true},
    [VQ_KEY_BASIS] = {.name = "key basis", .square = true},
    [VQ_KEY_REST_MOMENT] = {.name = "moment of keys less their neighbours", .square = true},
    [VQ_KEY_REST_SPECTRUM] = {.name = "spectrum of keys less their neighbours", .not_negative = true},
    [VQ_KEY_REST_BASIS] = {.name = "basis of keys less their neighbours", .square = true},
    [VQ_KEY_NEAR_VARIANCE] = {.name = "variance of neighbours' means", .not_negative = true},
    [VQ_KEY_BEFORE_MEAN] = {.name = "key mean before RoPE"},
    [VQ_KEY_BEFORE_MOMENT] = {.name = "key moment before RoPE", .square = true},
    [VQ_VALUE_MEAN] = {.name = "value mean", .values = true},
    [VQ_VALUE_MOMENT] = {.name = "value moment", .values = true, .square = true},
    [VQ_VALUE_SPECTRUM] = {.name = "value spectrum", .values = true, .not_negative = true},
    [VQ_VALUE_BASIS] = {.name = "value basis", .values = true, .square = true},
    [VQ_VALUE_LEAST] = {.name = "least value", .values = true},
    [VQ_VALUE_MOST] = {.name = "largest value", .values = true},
    [VQ_QUERY_MEAN] = {.name = "query mean", .query_heads = true},
    [VQ_QUERY_MOMENT] = {.name = "query moment", .square = true, .query_heads = true},
    [VQ_QUERY_BEFORE_MEAN] = {.name = "query mean before RoPE", .query_heads = true},
    [VQ_QUERY_BEFORE_MOMENT] = {.name = "query moment before RoPE", .square = true, .query_heads = true},
    [VQ_QUERY_FILTER] = {.name = "query filter"},
    [VQ_QUERY_BEFORE_FILTER] = {.name = "query filter before RoPE"},
    [VQ_KEY_TURN_NEAR] = {.name = "squares of neighbours' turned means", .not_negative = true},
    [VQ_KEY_TURN_REST] = {.name = "squares of keys less neighbours' turned means", .not_negative = true},
    [VQ_KEY_SINK] = {.name = "mean key of sinks"},
    [VQ_VALUE_CODEBOOK_4] = {.name = "value codebook", .values = true, .codebooks = VQ_CODEBOOKS_VALUES, .sub = 4},
    [VQ_VALUE_CODEBOOK_8] = {.name = "value codebook", .values = true, .codebooks = VQ_CODEBOOKS_VALUES, .sub = 8},
    [VQ_KEY_SMOOTH_CODEBOOK_4] = {.name = "codebook of smoothed keys", .codebooks = VQ_CODEBOOKS_SMOOTH, .sub = 4},
    [VQ_KEY_SMOOTH_CODEBOOK_8] = {.name = "codebook of smoothed keys", .codebooks = VQ_CODEBOOKS_SMOOTH, .sub = 8},
    [VQ_KEY_FACTOR] = {.name = "factor of the queries' moment", .square = true, .codebooks = VQ_CODEBOOKS_FACTOR},
    [VQ_KEY_FACTOR_CODEBOOK_4] = {.name = "codebook of weighted keys", .codebooks = VQ_CODEBOOKS_FACTOR, .sub = 4},
    [VQ_KEY_FACTOR_CODEBOOK_8] = {.name = "codebook of weighted keys", .codebooks = VQ_CODEBOOKS_FACTOR, .sub = 8},
    [VQ_KEY_ATOMS_1] = {.name = "key atoms", .codebooks = VQ_CODEBOOKS_ATOMS, .atom_bits = 1},
    [VQ_KEY_ATOMS_2] = {.name = "key atoms", .codebooks = VQ_CODEBOOKS_ATOMS, .atom_bits = 2},
    [VQ_VALUE_ATOMS_1] = {.name = "value atoms", .values = true, .codebooks = VQ_CODEBOOKS_ATOMS, .atom_bits = 1},
    [VQ_VALUE_ATOMS_2] = {.name = "value atoms", .values = true, .codebooks = VQ_CODEBOOKS_ATOMS, .atom_bits = 2},
};

vq_statistic_shape vq_statistic_shape_of(const vq_calibration_info *info, vq_statistic what)
{
    const size_t d = shapes[what].values ? info->d_v : info->d_k, sub = shapes[what].sub;
    vq_statistic_shape s = {
        .n_floats = shapes[what].square ? d * d : d,
        .n_heads = shapes[what].query_heads ? info->n_heads : info->n_kv_heads,
        .codebooks = shapes[what].codebooks,
        .values = shapes[what].values,
        .square = shapes[what].square,
    };
    if (sub)
        s.n_floats = (d + sub - 1) / sub * sub * N_CENTROIDS;
    else if (shapes[what].atom_bits)
        s.n_floats = (d + ATOM_VALUES - 1) / ATOM_VALUES * ATOM_VALUES * shapes[what].atom_bits * ATOMS;
    if (s.codebooks & ~info->codebooks)
        s.n_floats = s.n_heads = 0;
    return s;
}

/* Checks the shape and lays the statistics out.  The limits keep every product below 2^48. */
static vq_status lay_out(vq_calibration *c, vq_error *err)
{
    const vq_calibration_info *i = &c->info;
    const struct {
        const char *name;
        uint32_t value, most;
    } fields[] = {{"n_layers", i->n_layers, MOST_LAYERS},
                  {"n_heads", i->n_heads, MOST_HEADS},
                  {"n_kv_heads", i->n_kv_heads, MOST_HEADS},
                  {"d_k", i->d_k, MOST_DIM},
                  {"d_v", i->d_v, MOST_DIM}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        if (fields[f].value < 1 || fields[f].value > fields[f].most)
            return vq_fail(err, VQ_ERR_LIMIT, "%s: %s is %u, allowed are 1 to %u", c->path, fields[f].name,
                           fields[f].value, fields[f].most);
    if (i->n_heads % i->n_kv_heads)
        return vq_fail(err, VQ_ERR_VALUE, "%s: %u heads are no multiple of %u kv heads", c->path, i->n_heads,
                       i->n_kv_heads);
    size_t at = HEADER_BYTES;
    for (int s = 0; s < VQ_N_STATISTICS; s++) {
        const vq_statistic_shape shape = vq_statistic_shape_of(i, (vq_statistic)s);
        c->at[s] = at;
        c->each[s] = (shape.n_floats * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
        at += c->each[s] * shape.n_heads * i->n_layers;
    }
    c->n_bytes = at;
    return VQ_OK;
}

const float *vq_calibration_at(const vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head)
{
    const size_t n_heads = vq_statistic_shape_of(&c->info, what).n_heads;
    return (const float *)(const void *)(c->bytes + c->at[what] + (layer * n_heads + head) * c->each[what]);
}

float *vq_calibration_edit(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head)
{
    const size_t n_heads = vq_statistic_shape_of(&c->info, what).n_heads;
    return (float *)(void *)(c->copy + c->at[what] + (layer * n_heads + head) * c->each[what]);
}

/* Floats finite, spectra not negative, padding zero. */
static vq_status check_floats(const vq_calibration *c, vq_error *err)
{
    for (int s = 0; s < VQ_N_STATISTICS; s++) {
        const vq_statistic_shape shape = vq_statistic_shape_of(&c->info, (vq_statistic)s);
        for (uint32_t layer = 0; layer < c->info.n_layers; layer++)
            for (uint32_t head = 0; head < shape.n_heads; head++) {
                const float *x = vq_calibration_at(c, (vq_statistic)s, layer, head);
                const float least = shapes[s].not_negative ? 0 : -INFINITY;
                for (size_t i = 0; i < shape.n_floats; i++)
                    if (!isfinite(x[i]) || x[i] < least)
                        return vq_fail(err, isfinite(x[i]) ? VQ_ERR_VALUE : VQ_ERR_NONFINITE,
                                       "%s: %s of layer %u, head %u: number %zu is %g", c->path, shapes[s].name, layer,
                                       head, i, (double)x[i]);
                const uint8_t *bytes = (const uint8_t *)x;
                for (size_t i = shape.n_floats * sizeof *x; i < c->each[s]; i++)
                    if (bytes[i] != 0)
                        return vq_fail(err, VQ_ERR_VALUE, "%s: a byte after the %s of layer %u is %u, must be 0",
                                       c->path, shapes[s].name, layer, bytes[i]);
            }
    }
    return VQ_OK;
}

static vq_status parse(vq_calibration *c, const uint8_t *bytes, size_t n_bytes, vq_error *err)
{
    vq_cursor cur = vq_cursor_make(bytes, n_bytes);
    const uint8_t *magic = vq_cursor_take(&cur, sizeof MAGIC);
    if (!magic || memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return vq_fail(err, VQ_ERR_MAGIC, "%s: not a calibration file", c->path);
    c->info.hash = vq_cursor_u64(&cur);
    const uint32_t version = vq_cursor_u32(&cur), n_statistics = vq_cursor_u32(&cur);
    c->info.model_hash = vq_cursor_u64(&cur);
    c->info.n_layers = vq_cursor_u32(&cur);
    c->info.n_heads = vq_cursor_u32(&cur);
    c->info.n_kv_heads = vq_cursor_u32(&cur);
    c->info.d_k = vq_cursor_u32(&cur);
    c->info.d_v = vq_cursor_u32(&cur);
    c->info.codebooks = vq_cursor_u32(&cur);
    c->info.n_tokens = vq_cursor_u64(&cur);
    if (cur.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%s: ends after %zu bytes, in the head", c->path, n_bytes);
    if (version != VERSION || n_statistics != VQ_N_STATISTICS)
        return vq_fail(err, VQ_ERR_VERSION,
                       "%s: version %u with %u statistics, this program reads version %d with %d; calibrate again",
                       c->path, version, n_statistics, VERSION, VQ_N_STATISTICS);
    if (c->info.codebooks & ~(uint32_t)VQ_CODEBOOKS_ALL)
        return vq_fail(err, VQ_ERR_VALUE, "%s: codebooks are %u, a set of up to %d", c->path, c->info.codebooks,
                       VQ_CODEBOOKS_ALL);
    VQ_TRY(lay_out(c, err));
    if (n_bytes != c->n_bytes)
        return vq_fail(err, n_bytes < c->n_bytes ? VQ_ERR_TRUNCATED : VQ_ERR_BOUNDS,
                       "%s: has %zu bytes, its shape makes %zu", c->path, n_bytes, c->n_bytes);
    if (XXH64(bytes + SUMMED_FROM, n_bytes - SUMMED_FROM, 0) != c->info.hash)
        return vq_fail(err, VQ_ERR_CHECKSUM, "%s: the bytes do not match their checksum", c->path);
    c->bytes = bytes;
    return check_floats(c, err);
}

static vq_calibration *blank(const char *path, vq_error *err)
{
    vq_calibration *c = calloc(1, sizeof *c);
    if (c)
        c->path = strdup(path);
    if (!c || !c->path) {
        free(c);
        vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for a calibration", path);
        return NULL;
    }
    return c;
}

static vq_status finish(vq_calibration **out, vq_calibration *c, vq_status status)
{
    if (status != VQ_OK)
        vq_calibration_close(c);
    else
        *out = c;
    return status;
}

vq_status vq_calibration_open(vq_calibration **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_calibration *c = blank(path, err);
    if (!c)
        return VQ_ERR_NOMEM;
    vq_status status = vq_file_map_open(&c->map, path, err);
    if (status == VQ_OK)
        status = parse(c, c->map.bytes, c->map.n_bytes, err);
    return finish(out, c, status);
}

/* Aligned, as kernels read it. */
static uint8_t *take_bytes(size_t n_bytes)
{
    void *p = NULL;
    return posix_memalign(&p, ALIGN, n_bytes ? n_bytes : 1) == 0 ? p : NULL;
}

vq_status vq_calibration_read(vq_calibration **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    *out = NULL;
    vq_calibration *c = blank(name, err);
    if (!c)
        return VQ_ERR_NOMEM;
    c->copy = take_bytes(n_bytes);
    if (!c->copy)
        return finish(out, c, vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for %zu bytes", name, n_bytes));
    if (n_bytes > 0)
        memcpy(c->copy, bytes, n_bytes);
    return finish(out, c, parse(c, c->copy, n_bytes, err));
}

void vq_calibration_close(vq_calibration *c)
{
    if (!c)
        return;
    vq_file_map_close(&c->map);
    free(c->copy);
    free(c->path);
    free(c);
}

const vq_calibration_info *vq_calibration_get_info(const vq_calibration *c) { return &c->info; }
const char *vq_calibration_path(const vq_calibration *c) { return c->path; }

vq_status vq_calibration_make(vq_calibration **out, const vq_calibration_info *info, vq_error *err)
{
    *out = NULL;
    vq_calibration *c = blank("calibration", err);
    if (!c)
        return VQ_ERR_NOMEM;
    c->info = *info;
    vq_status status = lay_out(c, err);
    if (status == VQ_OK && !(c->copy = take_bytes(c->n_bytes)))
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for a calibration of %zu bytes", c->n_bytes);
    if (status == VQ_OK) {
        memset(c->copy, 0, c->n_bytes);
        c->bytes = c->copy;
    }
    return finish(out, c, status);
}

static void put(uint8_t *to, size_t *at, const void *value, size_t n_bytes)
{
    memcpy(to + *at, value, n_bytes);
    *at += n_bytes;
}

vq_status vq_calibration_seal(vq_calibration *c, const void **bytes, size_t *n_bytes, vq_error *err)
{
    VQ_TRY(check_floats(c, err));
    const uint32_t version = VERSION, n_statistics = VQ_N_STATISTICS;
    const uint32_t shape[5] = {c->info.n_layers, c->info.n_heads, c->info.n_kv_heads, c->info.d_k, c->info.d_v};
    size_t at = SUMMED_FROM;
    put(c->copy, &at, &version, sizeof version);
    put(c->copy, &at, &n_statistics, sizeof n_statistics);
    put(c->copy, &at, &c->info.model_hash, sizeof c->info.model_hash);
    put(c->copy, &at, shape, sizeof shape);
    put(c->copy, &at, &c->info.codebooks, sizeof c->info.codebooks);
    put(c->copy, &at, &c->info.n_tokens, sizeof c->info.n_tokens);
    c->info.hash = XXH64(c->copy + SUMMED_FROM, c->n_bytes - SUMMED_FROM, 0);
    at = 0;
    put(c->copy, &at, MAGIC, sizeof MAGIC);
    put(c->copy, &at, &c->info.hash, sizeof c->info.hash);
    *bytes = c->copy;
    *n_bytes = c->n_bytes;
    return VQ_OK;
}

vq_status vq_calibration_write(vq_calibration *c, const char *path, vq_error *err)
{
    const void *bytes;
    size_t n_bytes;
    vq_file_writer *w;
    VQ_TRY(vq_calibration_seal(c, &bytes, &n_bytes, err));
    VQ_TRY(vq_file_writer_open(&w, path, err));
    const vq_status status = vq_file_writer_write(w, bytes, n_bytes, err);
    if (status != VQ_OK) {
        vq_file_writer_abort(w);
        return status;
    }
    return vq_file_writer_commit(w, err);
}
