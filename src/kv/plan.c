/* Plans and their files.
 *
 *     {"veloxquant_plan": 1,
 *      "model": "5f3c9d0a11223344",        16 hexadecimal digits; absent: any model of the shape
 *      "layers": 30, "kv_heads": 3,
 *      "keys": "velox", "values": "velox",
 *      "key_bits": [[3, 2, 3], ...],       a list for each layer with a number for each kv head; absent: the methods'
 *      "value_bits": [[2, 2, 2], ...],
 *      "key_losses": [[0.0001, ...], ...], "value_losses": ...}     absent: not measured
 *
 * Nothing else may be in it: a misspelt name would otherwise change what a plan means without a word. */
#include "kv/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"

enum {
    VERSION = 1,
    MOST_LAYERS = 4096,
    MOST_HEADS = 4096,
    MOST_FILE_BYTES = 1 << 26,
    MOST_BITS = 64,
    MOST_LOSS = 1000000
};

vq_status vq_plan_new(vq_plan **out, uint32_t n_layers, uint32_t n_kv_heads, vq_error *err)
{
    *out = NULL;
    if (n_layers < 1 || n_layers > MOST_LAYERS || n_kv_heads < 1 || n_kv_heads > MOST_HEADS)
        return vq_fail(err, VQ_ERR_ARG, "a plan of %u layers with %u kv heads, allowed are 1 to %d and 1 to %d",
                       n_layers, n_kv_heads, MOST_LAYERS, MOST_HEADS);
    const size_t n = (size_t)n_layers * n_kv_heads;
    vq_plan *p = calloc(1, sizeof *p + 4 * n * sizeof(double));
    if (!p)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a plan of %zu heads", n);
    p->n_layers = n_layers;
    p->n_kv_heads = n_kv_heads;
    p->key_bits = (double *)(void *)(p + 1);
    p->value_bits = p->key_bits + n;
    p->key_losses = p->value_bits + n;
    p->value_losses = p->key_losses + n;
    memcpy(p->keys, "f16", 4);
    memcpy(p->values, "f16", 4);
    *out = p;
    return VQ_OK;
}

void vq_plan_close(vq_plan *plan) { free(plan); }

/* ---- read ---- */

static vq_status read_count(const char *name, const json_t *o, const char *key, uint32_t most, uint32_t *out,
                            vq_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > most)
        return vq_fail(err, VQ_ERR_VALUE, "%s: %s must be a whole number from 1 to %u", name, key, most);
    *out = (uint32_t)json_integer_value(v);
    return VQ_OK;
}

static vq_status read_method(const char *name, const json_t *o, const char *key, char *out, vq_error *err)
{
    const json_t *v = json_object_get(o, key);
    const size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n >= VQ_PLAN_METHOD_BYTES || strlen(json_string_value(v)) != n)
        return vq_fail(err, VQ_ERR_VALUE, "%s: %s must be the text of a method, of 1 to %d bytes", name, key,
                       VQ_PLAN_METHOD_BYTES - 1);
    memcpy(out, json_string_value(v), n + 1);
    return VQ_OK;
}

static vq_status read_hash(const char *name, const json_t *o, uint64_t *out, vq_error *err)
{
    const json_t *v = json_object_get(o, "model");
    if (!v)
        return VQ_OK;
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return vq_fail(err, VQ_ERR_VALUE, "%s: model must be 16 hexadecimal digits", name);
    *out = strtoull(text, NULL, 16);
    return VQ_OK;
}

/* Of one side. */
static vq_status read_numbers(const char *name, const json_t *o, const char *key, const vq_plan *p, double most,
                              double *out, vq_error *err)
{
    const json_t *list = json_object_get(o, key);
    if (!list)
        return VQ_OK;
    if (json_array_size(list) != p->n_layers)
        return vq_fail(err, VQ_ERR_VALUE, "%s: %s is no list of %u layers", name, key, p->n_layers);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const json_t *layer = json_array_get(list, i);
        if (json_array_size(layer) != p->n_kv_heads)
            return vq_fail(err, VQ_ERR_VALUE, "%s: %s: layer %u is no list of %u heads", name, key, i, p->n_kv_heads);
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            const json_t *v = json_array_get(layer, h);
            const double number = json_number_value(v);
            if (!json_is_number(v) || !(number > 0 && number <= most))
                return vq_fail(err, VQ_ERR_VALUE, "%s: %s: layer %u, head %u must be a number above 0, at most %g",
                               name, key, i, h, most);
            out[(size_t)i * p->n_kv_heads + h] = number;
        }
    }
    return VQ_OK;
}

static vq_status check_names(const char *name, const json_t *o, vq_error *err)
{
    static const char *const known[] = {"veloxquant_plan", "model",    "layers",     "kv_heads",   "keys",
                                        "values",          "key_bits", "value_bits", "key_losses", "value_losses"};
    const json_t *version = json_object_get(o, "veloxquant_plan");
    if (!json_is_integer(version))
        return vq_fail(err, VQ_ERR_MAGIC, "%s: is no plan: it has no number veloxquant_plan", name);
    if (json_integer_value(version) != VERSION)
        return vq_fail(err, VQ_ERR_VERSION, "%s: veloxquant_plan is %lld, this library reads %d", name,
                       (long long)json_integer_value(version), VERSION);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || strcmp(key, known[i]) == 0;
        if (!found)
            return vq_fail(err, VQ_ERR_VALUE, "%s: plans have no '%.64s'", name, key);
    }
    return VQ_OK;
}

static vq_status read_object(vq_plan **out, const char *name, const json_t *o, vq_error *err)
{
    uint32_t n_layers = 0, n_kv_heads = 0;
    VQ_TRY(check_names(name, o, err));
    VQ_TRY(read_count(name, o, "layers", MOST_LAYERS, &n_layers, err));
    VQ_TRY(read_count(name, o, "kv_heads", MOST_HEADS, &n_kv_heads, err));
    VQ_TRY(vq_plan_new(out, n_layers, n_kv_heads, err));
    vq_plan *p = *out;
    VQ_TRY(read_hash(name, o, &p->model_hash, err));
    VQ_TRY(read_method(name, o, "keys", p->keys, err));
    VQ_TRY(read_method(name, o, "values", p->values, err));
    VQ_TRY(read_numbers(name, o, "key_bits", p, MOST_BITS, p->key_bits, err));
    VQ_TRY(read_numbers(name, o, "value_bits", p, MOST_BITS, p->value_bits, err));
    VQ_TRY(read_numbers(name, o, "key_losses", p, MOST_LOSS, p->key_losses, err));
    VQ_TRY(read_numbers(name, o, "value_losses", p, MOST_LOSS, p->value_losses, err));
    if ((p->key_losses[0] > 0) != (p->value_losses[0] > 0))
        return vq_fail(err, VQ_ERR_VALUE, "%s: key_losses and value_losses go together", name);
    return VQ_OK;
}

vq_status vq_plan_read(vq_plan **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err)
{
    *out = NULL;
    if (n_bytes > MOST_FILE_BYTES)
        return vq_fail(err, VQ_ERR_VALUE, "%s: has %zu bytes, a plan has at most %d", name, n_bytes, MOST_FILE_BYTES);
    json_error_t where;
    json_t *o = json_loadb(n_bytes ? bytes : "", n_bytes, JSON_REJECT_DUPLICATES, &where);
    if (!o)
        return vq_fail(err, VQ_ERR_VALUE, "%s: is no plan: line %d: %s", name, where.line, where.text);
    const vq_status status = read_object(out, name, o, err);
    json_decref(o);
    if (status != VQ_OK) {
        vq_plan_close(*out);
        *out = NULL;
    }
    return status;
}

vq_status vq_plan_open(vq_plan **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    const vq_status status = vq_plan_read(out, path, map.bytes, map.n_bytes, err);
    vq_file_map_close(&map);
    return status;
}

/* ---- write ---- */

/* Lists of numbers by layer, or NULL where there are none. */
static json_t *numbers_of(const vq_plan *p, const double *x)
{
    if (x[0] == 0)
        return NULL;
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_layers; i++) {
        json_t *layer = json_array();
        for (uint32_t h = 0; h < p->n_kv_heads; h++, x++)
            json_array_append_new(layer, *x == floor(*x) ? json_integer((json_int_t)*x) : json_real(*x));
        json_array_append_new(list, layer);
    }
    return list;
}

static vq_status write_text(const vq_plan *p, vq_file_writer *file, vq_error *err)
{
    char hash[24] = "";
    snprintf(hash, sizeof hash, "%016" PRIx64, p->model_hash);
    json_t *o = json_pack("{si so* si si ss ss so* so* so* so*}", "veloxquant_plan", VERSION, "model",
                          p->model_hash ? json_string(hash) : NULL, "layers", (int)p->n_layers, "kv_heads",
                          (int)p->n_kv_heads, "keys", p->keys, "values", p->values, "key_bits",
                          numbers_of(p, p->key_bits), "value_bits", numbers_of(p, p->value_bits), "key_losses",
                          numbers_of(p, p->key_losses), "value_losses", numbers_of(p, p->value_losses));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    vq_status status = text ? vq_file_writer_write(file, text, strlen(text), err)
                            : vq_fail(err, VQ_ERR_NOMEM, "no memory for the text of a plan");
    if (status == VQ_OK)
        status = vq_file_writer_write(file, "\n", 1, err);
    free(text);
    json_decref(o);
    return status;
}

/* There are numbers for all heads or for none. */
static vq_status check_whole(const vq_plan *p, const double *x, const char *what, vq_error *err)
{
    for (size_t i = 0; i < (size_t)p->n_layers * p->n_kv_heads; i++)
        if ((x[i] == 0) != (x[0] == 0))
            return vq_fail(err, VQ_ERR_ARG, "a plan that has %s for some heads and not for others", what);
    return VQ_OK;
}

vq_status vq_plan_save(const vq_plan *plan, const char *path, vq_error *err)
{
    VQ_TRY(check_whole(plan, plan->key_bits, "bits of keys", err));
    VQ_TRY(check_whole(plan, plan->value_bits, "bits of values", err));
    VQ_TRY(check_whole(plan, plan->key_losses, "losses of keys", err));
    VQ_TRY(check_whole(plan, plan->value_losses, "losses of values", err));
    vq_file_writer *file;
    VQ_TRY(vq_file_writer_open(&file, path, err));
    const vq_status status = write_text(plan, file, err);
    if (status != VQ_OK) {
        vq_file_writer_abort(file);
        return status;
    }
    return vq_file_writer_commit(file, err);
}

/* ---- use ---- */

vq_status vq_plan_check(const vq_plan *plan, const vq_kv_params *p, vq_error *err)
{
    if (p->keys || p->values)
        return vq_fail(err, VQ_ERR_ARG,
                       "a plan says how keys and values are stored, so methods for them are one too many");
    if (plan->n_layers != p->n_layers || plan->n_kv_heads != p->n_kv_heads)
        return vq_fail(err, VQ_ERR_MISMATCH, "the plan is for %u layers with %u kv heads, the model has %u with %u",
                       plan->n_layers, plan->n_kv_heads, p->n_layers, p->n_kv_heads);
    if (plan->model_hash && p->model_hash && plan->model_hash != p->model_hash)
        return vq_fail(err, VQ_ERR_MISMATCH,
                       "the plan is for the model with hash %016" PRIx64 ", this one has %016" PRIx64, plan->model_hash,
                       p->model_hash);
    return VQ_OK;
}

double vq_plan_bits(const vq_plan *plan, uint32_t layer, uint32_t head, bool keys)
{
    return (keys ? plan->key_bits : plan->value_bits)[(size_t)layer * plan->n_kv_heads + head];
}
